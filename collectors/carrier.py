"""From what the kernel says of interfaces to the losses and returns of carrier that it means.

Plain state machines, one for each interface, without socket or clock::

    UP ──── carrier gone ───► LOST ── carrier back ──► UP
    any ─── set down ───────► DOWN ── set up ───────► WAITING ── carrier ──► UP
                                                         └─ none for too long ──► LOST

The kernel counts every change of carrier but announces several in quick succession (up to a second
for an ordinary NIC) as one. So the counts are compared as well: a loss that nobody announced is told
as a loss and a return at the moment it was noticed. The same comparison finds what happened while
the agent was away; such a loss is dated to the last moment at which the agent saw the link well.

An interface that somebody sets down is no fault, nor is a port that never had carrier since the
interface exists (nothing is plugged in). A port that is set up and had carrier before is given some
time to negotiate. Removal of a device is a loss; removal of a virtual interface ends what was wrong
with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from collectors.nics import Link, physical

_SET_DOWN_BY_REMOVAL_NS = 5_000_000_000
"""The kernel sets an interface down before it removes it; this much earlier it was somebody else."""


class State(StrEnum):
    """Where an interface stands."""

    UP = "up"
    LOST = "lost"
    """Without carrier, and told so."""
    WAITING = "waiting"
    """Set up, without carrier, and no loss was told: it negotiates, or nothing is plugged in."""
    DOWN = "down"
    """Set down by somebody."""


@dataclass(slots=True)
class Port:
    """What is remembered of one interface."""

    name: str
    ifindex: int
    physical: bool
    state: State
    since_ns: int
    """When the state began, as far as it was seen."""
    up_count: int
    down_count: int
    mtu_bytes: int = 0
    gone: bool = False
    """It was removed, or the host restarted, while LOST: its return ends the loss."""
    seen_ns: int | None = None
    """Set for a port known from an earlier run until it is seen again: when it was last seen."""


@dataclass(frozen=True, slots=True)
class Transition:
    """A change to be told; the fields are those of ``LinkTransition``."""

    interface: str
    at_ns: int
    carrier: bool
    admin_up: bool
    present: bool
    physical: bool
    since_ns: int
    carrier_losses: int
    unseen: int = 0
    mtu_bytes: int = 0


class Carriers:
    """All watched interfaces of a network namespace."""

    def __init__(self, bring_up_ns: int) -> None:
        """
        Args:
            bring_up_ns: how long an interface that was set up may be without carrier before that
                is a loss.
        """
        self._bring_up_ns = bring_up_ns
        self._ports: dict[str, Port] = {}
        self._names: dict[int, str] = {}

    def state(self) -> list[dict[str, Any]]:
        """What must outlive the process, as JSON data."""
        return [asdict(port) for port in self._ports.values()]

    def restore(self, state: Iterable[dict[str, Any]], seen_ns: int, same_boot: bool) -> None:
        """Take up what ``state`` returned in an earlier run.

        Args:
            state: that.
            seen_ns: when that run last saw that all was so.
            same_boot: the host did not restart since; else its counts began anew, and only losses
                that are still to be ended are taken up.

        Raises:
            TypeError, ValueError: it is not such data.
        """
        for item in state:
            port = Port(**{**item, "state": State(item["state"])})
            if not same_boot:
                if port.state is not State.LOST:
                    continue
                port.gone, port.ifindex = True, 0
            port.seen_ns = max(seen_ns, port.since_ns)
            self._ports[port.name] = port
            if port.ifindex:
                self._names[port.ifindex] = port.name

    def observe(self, link: Link, now_ns: int) -> list[Transition]:
        """Take in the state of an interface."""
        told: list[Transition] = []
        old_name = self._names.get(link.ifindex)
        if old_name is not None and old_name != link.name:
            # Renamed: under its old name it is gone, and nothing broke.
            told += self._end(self._ports[old_name], now_ns)
        port = self._ports.get(link.name)
        if port is not None and port.ifindex != link.ifindex and not port.gone:
            # Removed and made anew without a word of it.
            told += self._vanish(port, port.seen_ns or now_ns)
            port = self._ports.get(link.name)
        if port is None:
            self._remember(link, now_ns)
        elif port.gone:
            told += self._return(port, link, now_ns)
        else:
            told += self._compare(port, link, now_ns)
        return told

    def remove(self, link: Link, now_ns: int) -> list[Transition]:
        """Take in that an interface was removed or went to another network namespace."""
        name = self._names.get(link.ifindex)
        if name is None:
            return []
        port = self._ports[name]
        return self._end(port, now_ns) if link.moved else self._vanish(port, now_ns)

    def complete(
        self, watched: set[int], unwatched_names: set[str], now_ns: int
    ) -> list[Transition]:
        """Take in that all interfaces have been observed: the others are gone.

        Args:
            watched: indices of those that were observed.
            unwatched_names: interfaces that exist but are not to be watched (any more).
            now_ns: the time.
        """
        told: list[Transition] = []
        for port in list(self._ports.values()):
            if port.ifindex in watched:
                continue
            if port.name in unwatched_names:
                was_lost = port.state is State.LOST
                ended = self._end(port, now_ns)
                told += ended if was_lost else []
            elif port.gone and not port.physical:
                told += self._end(port, now_ns)
            elif not port.gone:
                told += self._vanish(port, port.seen_ns or now_ns)
            else:
                port.seen_ns = None
        return told

    def tick(self, now_ns: int) -> list[Transition]:
        """What follows from time alone."""
        told: list[Transition] = []
        for port in self._ports.values():
            if (
                port.state is State.WAITING
                and port.up_count > 0
                and port.seen_ns is None
                and now_ns - port.since_ns >= self._bring_up_ns
            ):
                told.append(self._lose(port, now_ns, unseen=0))
        return told

    def _remember(self, link: Link, now_ns: int) -> None:
        self._ports[link.name] = Port(
            name=link.name,
            ifindex=link.ifindex,
            physical=physical(link),
            state=_state_of(link),
            since_ns=now_ns,
            up_count=link.up_count,
            down_count=link.down_count,
            mtu_bytes=link.mtu_bytes,
        )
        self._names[link.ifindex] = link.name

    def _compare(self, port: Port, link: Link, now_ns: int) -> list[Transition]:
        """What happened between the port as remembered and the link as it is."""
        losses = max(0, link.down_count - port.down_count)
        returns = max(0, link.up_count - port.up_count)
        noticed_ns = now_ns if port.seen_ns is None else port.seen_ns
        before, after = port.state, _state_of(link)
        port.up_count, port.down_count = link.up_count, link.down_count
        port.mtu_bytes, port.seen_ns = link.mtu_bytes, None
        told: list[Transition] = []
        if after is State.DOWN:
            if before in (State.UP, State.LOST):
                # Setting an interface down takes its carrier: that one is no loss.
                unseen = max(0, losses - 1) if before is State.UP else losses
                told.append(self._move(port, State.DOWN, now_ns, unseen=unseen))
            elif before is State.WAITING:
                port.state, port.since_ns = State.DOWN, now_ns
        elif before is State.DOWN:
            # Drivers switch carrier off and on while they open: these are no losses.
            if after is State.UP:
                told.append(self._move(port, State.UP, now_ns))
            else:
                port.state, port.since_ns = State.WAITING, now_ns
        elif after is State.UP:
            if before is State.UP and losses:
                told.append(self._lose(port, noticed_ns, unseen=losses - 1))
                told.append(self._move(port, State.UP, now_ns))
            elif before is not State.UP:
                told.append(self._move(port, State.UP, now_ns))
                if before is State.LOST and losses:
                    told.append(self._lose(port, now_ns, unseen=losses - 1))
                    told.append(self._move(port, State.UP, now_ns))
        elif before is State.UP:
            told.append(self._lose(port, noticed_ns, unseen=max(0, losses - 1)))
        elif losses and returns:
            told.append(self._move(port, State.UP, noticed_ns))
            told.append(self._lose(port, noticed_ns, unseen=losses - 1))
        return told

    def _return(self, port: Port, link: Link, now_ns: int) -> list[Transition]:
        """A port that was gone is there again; the loss ends once it has carrier."""
        state = _state_of(link)
        if state is State.DOWN and port.physical:
            # Every driver starts that way; whether it works is not known yet.
            return []
        port.gone, port.seen_ns = False, None
        port.ifindex, self._names[link.ifindex] = link.ifindex, link.name
        port.up_count, port.down_count = link.up_count, link.down_count
        port.mtu_bytes = link.mtu_bytes
        return [] if state is State.WAITING else [self._move(port, state, now_ns)]

    def _vanish(self, port: Port, now_ns: int) -> list[Transition]:
        """It was removed."""
        just_set_down = (
            port.state is State.DOWN and now_ns - port.since_ns < _SET_DOWN_BY_REMOVAL_NS
        )
        if not port.physical or (port.state is State.DOWN and not just_set_down):
            return self._end(port, now_ns)
        self._names.pop(port.ifindex, None)
        told = []
        if port.state is not State.LOST:
            told.append(self._move(port, State.LOST, now_ns, present=False))
        port.gone, port.ifindex, port.seen_ns = True, 0, None
        return told

    def _end(self, port: Port, now_ns: int) -> list[Transition]:
        """It is watched no more: what was wrong with it ends."""
        self._names.pop(port.ifindex, None)
        del self._ports[port.name]
        return [self._move(port, State.DOWN, now_ns, present=False)]

    def _lose(self, port: Port, at_ns: int, unseen: int) -> Transition:
        return self._move(port, State.LOST, at_ns, unseen=unseen)

    def _move(
        self, port: Port, state: State, at_ns: int, *, unseen: int = 0, present: bool = True
    ) -> Transition:
        """Put the port into a state, and say so."""
        since_ns, port.state, port.since_ns = port.since_ns, state, at_ns
        return Transition(
            interface=port.name,
            at_ns=at_ns,
            carrier=state is State.UP,
            admin_up=state is not State.DOWN,
            present=present,
            physical=port.physical,
            since_ns=since_ns,
            carrier_losses=port.down_count,
            unseen=unseen,
            mtu_bytes=port.mtu_bytes,
        )


def _state_of(link: Link) -> State:
    if not link.admin_up:
        return State.DOWN
    return State.UP if link.carrier else State.WAITING
