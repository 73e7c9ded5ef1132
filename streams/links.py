"""Links that are down or flap: detectors ``link_down`` and ``link_flapping``.

``link_down`` keeps no state at all: a return carries when carrier was lost, which names the episode
that it ends. ``link_flapping`` keeps each interface's newest transitions; they are at once what it
counts, what it shows as evidence and how it knows a transition that it reads a second time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import Field

from schemas.packet import LinkTransition
from schemas.signal import EVIDENCE_MAX, Evidence, Phase, Severity, Signal
from streams.base import Detector, DetectorSettings

_SECOND_NS = 1_000_000_000
_TRANSITIONS_MAX = 128
_INTERFACES_MAX = 512
_UPDATE_NS = _SECOND_NS


def _severity(physical: bool) -> Severity:
    """A cable is a person's errand; a virtual interface most often a container's end."""
    return Severity.CRITICAL if physical else Severity.WARNING


def _is_loss(transition: LinkTransition) -> bool:
    """A fault: an interface that should have carrier has none. Set down or unmade is no fault."""
    if transition.carrier:
        return False
    if not transition.present:
        return transition.physical
    return transition.admin_up


def _place(subject: str) -> str:
    return subject.removeprefix("nic:")


def _seconds(duration_ns: int) -> str:
    return f"{max(0, duration_ns) / _SECOND_NS:,.1f} s"


def _lost(transition: LinkTransition) -> str:
    what = "carrier lost" if transition.present else "interface removed"
    return f"{what}{_unseen(transition.unseen)}"


def _unseen(losses: int) -> str:
    if losses == 0:
        return ""
    counted = "1 more loss" if losses == 1 else f"{losses:,} more losses"
    return f", and {counted} that only the kernel's counter shows"


class LinkDown(Detector):
    """A loss of carrier raises, its return clears."""

    name: ClassVar[str] = "link_down"
    version: ClassVar[int] = 1
    about: ClassVar[str] = "network interfaces that lost carrier while they should have it"
    consumes = (LinkTransition,)

    def observe(self, event: LinkTransition) -> Iterable[Signal]:
        """One signal at most. A clearing of an episode that never was (an interface set down while
        it had carrier) says nothing to a reader and is simply passed over there."""
        if _is_loss(event):
            yield self._raised(event)
        elif event.since_ns > 0:
            yield self._cleared(event)

    def _raised(self, event: LinkTransition) -> Signal:
        what = _lost(event)
        return self.signal(
            Phase.RAISED,
            kind="link.down",
            subject=event.subject,
            raised_ns=event.at_ns,
            at_ns=event.at_ns,
            clock_error_ns=event.clock_error_ns,
            severity=_severity(event.physical),
            summary=f"{_place(event.subject)}: {what}",
            evidence=[Evidence(at_ns=event.at_ns, what=what)],
            advice="Check cable, transceiver and the port at the other end.",
            attributes={"losses": 1 + event.unseen, "physical": int(event.physical)},
        )

    def _cleared(self, event: LinkTransition) -> Signal:
        lasted = _seconds(event.at_ns - event.since_ns)
        if event.carrier:
            what, summary = f"carrier back after {lasted}", f"had no carrier for {lasted}"
        elif event.present:
            what = summary = "set down"
        else:
            what = summary = "interface removed"
        return self.signal(
            Phase.CLEARED,
            kind="link.down",
            subject=event.subject,
            raised_ns=event.since_ns,
            at_ns=event.at_ns,
            clock_error_ns=event.clock_error_ns,
            severity=_severity(event.physical),
            summary=f"{_place(event.subject)}: {summary}",
            evidence=[
                Evidence(at_ns=event.since_ns, what="carrier lost"),
                Evidence(at_ns=event.at_ns, what=f"{what}{_unseen(event.unseen)}"),
            ],
            attributes={"losses": 1 + event.unseen, "physical": int(event.physical)},
        )


class LinkFlappingSettings(DetectorSettings):
    """When losses of carrier are flapping. A window raises with *more* than ``losses`` or with
    ``burst_losses`` and more."""

    losses: Annotated[int, Field(ge=1, le=60)] = 8
    """More carrier losses than this within ``window_s`` are flapping."""
    window_s: Annotated[float, Field(gt=0, le=86_400)] = 3600.0
    burst_losses: Annotated[int, Field(ge=2, le=60)] = 3
    """This many carrier losses within ``burst_s`` are flapping too."""
    burst_s: Annotated[float, Field(gt=0, le=3600)] = 10.0
    quiet_s: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    """Flapping has ended after this long with carrier and without a transition."""


@dataclass(slots=True)
class _Transition:
    at_ns: int
    carrier: bool
    losses: int
    what: str
    clock_error_ns: int
    since_ns: int

    def row(self) -> list[Any]:
        return [
            self.at_ns,
            self.carrier,
            self.losses,
            self.what,
            self.clock_error_ns,
            self.since_ns,
        ]


@dataclass(slots=True)
class _Episode:
    raised_ns: int
    losses: int
    transitions: int
    told_ns: int
    """Time of the newest transition that a signal has told of."""


@dataclass(slots=True)
class _Interface:
    physical: bool
    up: bool = True
    counted_from_ns: int = 0
    """Losses before it belong to an episode that is over."""
    newest: list[_Transition] = field(default_factory=list)
    episode: _Episode | None = None

    def knows(self, event: LinkTransition) -> bool:
        """This transition was read before (or is older than all that a full memory holds)."""
        if len(self.newest) == _TRANSITIONS_MAX and event.at_ns < self.newest[0].at_ns:
            return True
        # Several transitions that the kernel announced as one have one time.
        said = (event.at_ns, event.since_ns, event.carrier)
        return any(
            (known.at_ns, known.since_ns, known.carrier) == said for known in reversed(self.newest)
        )


class LinkFlapping(Detector):
    """Interfaces that lose carrier again and again."""

    name: ClassVar[str] = "link_flapping"
    version: ClassVar[int] = 1
    about: ClassVar[str] = "network interfaces that lose carrier again and again"
    consumes = (LinkTransition,)
    Settings = LinkFlappingSettings
    settings: LinkFlappingSettings

    def __init__(self, node: str, zone: str, settings: Any) -> None:
        super().__init__(node, zone, settings)
        self._interfaces: dict[str, _Interface] = {}

    def observe(self, event: LinkTransition) -> Iterator[Signal]:
        """Signals that follow, also those that end other interfaces' episodes by now."""
        yield from self._ended(event.at_ns)
        interface = self._interfaces.get(event.subject)
        if interface is None:
            interface = self._interfaces[event.subject] = _Interface(event.physical)
            self._bound()
        if interface.knows(event):
            return
        self.changed = True
        loss = _is_loss(event)
        # Losses that the kernel counted behind our back happened, whatever the state is now.
        losses = int(loss) + event.unseen
        if loss:
            what = _lost(event)
        else:
            what = f"carrier back{_unseen(event.unseen)}" if event.carrier else "set down"
        interface.physical = event.physical
        interface.up = event.carrier
        if not event.carrier and not loss:
            yield from self._set_down(event, interface)
        interface.newest.append(
            _Transition(
                event.at_ns, event.carrier, losses, what, event.clock_error_ns, event.since_ns
            )
        )
        del interface.newest[:-_TRANSITIONS_MAX]
        if interface.episode is not None:
            interface.episode.losses += losses
            interface.episode.transitions += 1
            if event.at_ns - interface.episode.told_ns >= _UPDATE_NS:
                yield self._tell(event.subject, interface, interface.episode, Phase.UPDATED)
        elif losses and (began_ns := self._flaps_since(interface, event.at_ns)) is not None:
            inside = [one for one in interface.newest if one.at_ns >= began_ns]
            interface.episode = _Episode(
                began_ns, sum(one.losses for one in inside), len(inside), event.at_ns
            )
            yield self._tell(event.subject, interface, interface.episode, Phase.RAISED)

    def tick(self, now_ns: int) -> Iterator[Signal]:
        """Tell what the limit of one update a second held back, end what has been quiet."""
        for subject, interface in self._interfaces.items():
            episode = interface.episode
            if (
                episode is not None
                and interface.newest[-1].at_ns != episode.told_ns
                and now_ns - episode.told_ns >= _UPDATE_NS
            ):
                yield self._tell(subject, interface, episode, Phase.UPDATED)
        yield from self._ended(now_ns)
        oldest_ns = now_ns - int(self.settings.window_s * _SECOND_NS)
        for subject in [
            subject
            for subject, interface in self._interfaces.items()
            if interface.episode is None
            and (not interface.newest or interface.newest[-1].at_ns < oldest_ns)
        ]:
            del self._interfaces[subject]
            self.changed = True

    def state(self) -> dict[str, Any]:
        """The newest transitions of each interface and the episode it is in."""
        return {
            subject: {
                "physical": interface.physical,
                "up": interface.up,
                "counted_from_ns": interface.counted_from_ns,
                "newest": [one.row() for one in interface.newest],
                "episode": None
                if (episode := interface.episode) is None
                else [episode.raised_ns, episode.losses, episode.transitions, episode.told_ns],
            }
            for subject, interface in self._interfaces.items()
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what ``state`` returned."""
        self._interfaces = {
            subject: _Interface(
                stored["physical"],
                stored["up"],
                stored["counted_from_ns"],
                [_Transition(*row) for row in stored["newest"]],
                None if stored["episode"] is None else _Episode(*stored["episode"]),
            )
            for subject, stored in state.items()
        }

    def _flaps_since(self, interface: _Interface, now_ns: int) -> int | None:
        """When the flapping began that the losses up to now amount to; None where they do not."""
        for needed, window_s in (
            (self.settings.burst_losses, self.settings.burst_s),
            (self.settings.losses + 1, self.settings.window_s),
        ):
            from_ns = max(now_ns - int(window_s * _SECOND_NS), interface.counted_from_ns)
            inside = [
                one for one in interface.newest if one.losses and from_ns <= one.at_ns <= now_ns
            ]
            if sum(one.losses for one in inside) >= needed:
                return inside[0].at_ns
        return None

    def _ended(self, now_ns: int) -> Iterator[Signal]:
        quiet_ns = int(self.settings.quiet_s * _SECOND_NS)
        for subject, interface in self._interfaces.items():
            if interface.episode is None or not interface.up:
                continue
            ended_ns = interface.newest[-1].at_ns + quiet_ns
            if ended_ns <= now_ns:
                yield self._clear(
                    subject, interface, ended_ns, f", quiet for {self.settings.quiet_s:g} s"
                )

    def _set_down(self, event: LinkTransition, interface: _Interface) -> Iterator[Signal]:
        """Somebody set it down or unmade it: whatever it did is over."""
        if interface.episode is not None:
            why = ", then set down" if event.present else ", then removed"
            yield self._clear(event.subject, interface, event.at_ns, why)

    def _clear(self, subject: str, interface: _Interface, at_ns: int, why: str) -> Signal:
        assert interface.episode is not None
        signal = self._tell(subject, interface, interface.episode, Phase.CLEARED, at_ns, why)
        interface.episode = None
        interface.counted_from_ns = at_ns
        return signal

    def _tell(
        self,
        subject: str,
        interface: _Interface,
        episode: _Episode,
        phase: Phase,
        at_ns: int | None = None,
        why: str = "",
    ) -> Signal:
        self.changed = True
        last = interface.newest[-1]
        episode.told_ns = last.at_ns
        shown = [one for one in interface.newest if one.at_ns >= episode.raised_ns]
        shown = shown[-min(EVIDENCE_MAX, episode.transitions) :]
        verb = "flapped" if phase is Phase.CLEARED else "flaps"
        return self.signal(
            phase,
            kind="link.flapping",
            subject=subject,
            raised_ns=episode.raised_ns,
            at_ns=last.at_ns if at_ns is None else at_ns,
            clock_error_ns=last.clock_error_ns,
            severity=_severity(interface.physical),
            summary=f"{_place(subject)} {verb}: {episode.losses:,} carrier losses in "
            f"{_seconds(last.at_ns - episode.raised_ns)}{why}",
            evidence=[Evidence(at_ns=one.at_ns, what=one.what) for one in shown],
            evidence_dropped=episode.transitions - len(shown),
            advice="Reseat or replace cable and transceiver; keep jobs off this link until then.",
            attributes={"losses": episode.losses, "physical": int(interface.physical)},
        )

    def _bound(self) -> None:
        """Container hosts make interfaces without end; those that do nothing now go first."""
        while len(self._interfaces) > _INTERFACES_MAX:
            idle = (name for name, one in self._interfaces.items() if one.episode is None)
            del self._interfaces[next(idle, next(iter(self._interfaces)))]
