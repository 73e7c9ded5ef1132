"""The exchange of heartbeats with all peers, over all paths: what comes in, what goes out.

Here the pure machines (:mod:`collectors.reflex.peer`) meet the sockets (:mod:`collectors.reflex.ports`).
A heartbeat is the same on all paths to a peer, so it is built, read and proven once a tick and peer,
and only its last bytes are looked at for each path.
"""

from __future__ import annotations

import select
import time
from collections.abc import Set
from ipaddress import ip_address
from typing import NamedTuple

from collectors.reflex import wire
from collectors.reflex.links import Links
from collectors.reflex.peer import REPLAYED, STRANGER, Peer
from collectors.reflex.plan import PathPlan, PeerPlan, Plan
from collectors.reflex.ports import BATCH, Port, Receiver, Refused

_ROUNDS = 4
"""Batches of one socket before the others get their turn."""
_NEWS_AT_ONCE = 48
_SECOND_NS = 1_000_000_000


class Place:
    """An interface with our address on it, and what of the peers lies behind."""

    __slots__ = (
        "answered_ns",
        "carrier",
        "index",
        "interface",
        "local",
        "paths",
        "port",
        "refused",
    )

    def __init__(self, interface: str, local: str, refused: Refused) -> None:
        self.interface = interface
        self.local = local
        self.refused = refused
        self.index = 0
        self.carrier = False
        self.port: Port | None = None
        self.paths: dict[bytes, Path] = {}
        """By the peers' packed addresses."""
        self.answered_ns: dict[bytes, int] = {}


class Path(NamedTuple):
    """One path to a peer."""

    end: PeerEnd
    number: int
    plan: PathPlan
    place: Place


class PeerEnd:
    """One peer with its paths."""

    __slots__ = (
        "body",
        "heartbeat",
        "inward",
        "macs",
        "names",
        "outward",
        "paths",
        "plan",
        "state",
    )

    def __init__(self, node: str, key: bytes, plan: PeerPlan, state: Peer) -> None:
        self.plan = plan
        self.state = state
        self.paths: list[Path] = []
        self.names = wire.pack_names([path.interface for path in plan.paths])
        self.outward = wire.Seal(key, node, plan.name, len(plan.paths))
        self.inward = wire.Seal(key, plan.name, node, wire.PATHS_MAX)
        self.body = b""
        """The last body that came, read and proven once for all paths."""
        self.heartbeat: wire.Heartbeat | None = None
        self.macs = b""


class Exchange:
    """See the module."""

    def __init__(self, plan: Plan, session: int, now_ns: int) -> None:
        """
        Args:
            plan: what to do.
            session: ours.
            now_ns: the time, monotonic.
        """
        self._plan = plan
        self._session = session
        self._receiver = Receiver()
        self._looked_ns = now_ns
        self.refused: dict[str, Refused] = {}
        """By interface."""
        self.places: dict[tuple[str, str], Place] = {}
        self.peers: list[PeerEnd] = []
        for each in plan.peers:
            self._add(each, now_ns)

    def carriers(self, links: Links) -> bool:
        """Take over the state of interfaces; returns whether sockets have to be opened."""
        reopen = False
        for place in self.places.values():
            link = links.state(place.interface)
            place.carrier = link.carrier
            for path in place.paths.values():
                path.end.state.carrier(path.number, link.carrier)
            if link.ifindex != place.index:
                place.index = link.ifindex
                reopen = True
                if place.port is not None:
                    # An epoll forgets a descriptor that is closed.
                    place.port.close()
                    place.port = None
        return reopen

    def open(self, news: select.epoll, everything: select.epoll) -> None:
        """Open the sockets that are not, where it is possible now, and register them."""
        for place in self.places.values():
            if place.port is not None or not place.index:
                continue
            routed = any(path.plan.routed for path in place.paths.values())
            try:
                port = Port(
                    place.interface,
                    place.index,
                    place.local,
                    self._plan.port,
                    self._session,
                    routed,
                )
            except OSError:
                # No address yet, most likely. It is tried again, and its paths stay dead.
                continue
            port.aim(
                {path.plan.remote: wire.size(len(path.end.paths)) for path in place.paths.values()}
            )
            place.port = port
            news.register(port.news, select.EPOLLIN)
            everything.register(port.news, select.EPOLLIN)
            everything.register(port.steady, select.EPOLLIN)

    def look(self, now_ns: int, ready: Set[int]) -> None:
        """Take in all steady heartbeats that have come, and news from the sockets that are ready."""
        offset_ns = time.time_ns() - time.monotonic_ns()
        since_ns, self._looked_ns = self._looked_ns, now_ns
        for place in self.places.values():
            port = place.port
            if port is None:
                continue
            for _ in range(_ROUNDS):
                batch = self._receiver.receive(port.steady, port.address_at)
                for data, sender, utc_ns in batch:
                    came_ns = utc_ns - offset_ns
                    if not since_ns <= came_ns <= now_ns:
                        # A clock that was set in between must not make it come at another time.
                        came_ns = min(now_ns, max(since_ns, came_ns))
                    self._hear(place, data, sender, came_ns)
                if len(batch) < BATCH:
                    break
            if port.news not in ready:
                continue
            news = self._receiver.receive(port.news, port.address_at, _NEWS_AT_ONCE)
            for data, sender, utc_ns in news:
                came_ns = min(now_ns, max(since_ns, utc_ns - offset_ns))
                self._hear(place, data, sender, came_ns)

    def beat(self, end: PeerEnd) -> None:
        """Lay a peer's next steady heartbeat into the batches that :meth:`send` sends."""
        state = end.state
        heartbeat = state.heartbeat(time.monotonic_ns(), end.names)
        if state.peer_session is None:
            # The steady port is closed to those who do not know the peer's session.
            self._tell(end, end.paths, heartbeat)
        body = wire.pack(heartbeat)
        macs = end.outward.macs(body, len(end.paths))
        for path in end.paths:
            port = path.place.port
            if port is not None:
                port.put(path.plan.remote, body + wire.mac_at(macs, path.number))

    def send(self) -> None:
        """Send the steady heartbeats, but not into a dead interface, where they would wait."""
        for place in self.places.values():
            if place.port is not None and place.carrier:
                place.port.send()

    def tell(self, end: PeerEnd, flags: int = 0) -> None:
        """Send a peer a heartbeat at once, on all paths, as news."""
        self._tell(end, end.paths, end.state.heartbeat(time.monotonic_ns(), end.names, flags))

    def count_dropped(self, now_ns: int) -> None:
        """Add what the kernel threw away since the last second to what was refused."""
        a_second = 2 * _SECOND_NS // self._plan.timing.heartbeat_ns
        for place in self.places.values():
            if place.port is not None:
                # A peer that does not know our session yet sends what the kernel throws away.
                new = sum(path.end.state.new(now_ns) for path in place.paths.values())
                dropped = place.port.take_dropped() - new * a_second
                place.refused.unprocessed += max(0, dropped)

    def _hear(self, place: Place, data: bytes, sender: bytes, came_ns: int) -> None:
        path = place.paths.get(sender)
        body = data[: -wire.MAC_BYTES]
        if path is None:
            if wire.unpack(body) is None:
                place.refused.malformed += 1
            else:
                place.refused.forged += 1
            place.refused.source(sender)
            return
        end, number = path.end, path.number
        state = end.state
        heartbeat, macs = end.heartbeat, end.macs
        # Most often another path has brought the same, and it was read and proven then.
        proven = body == end.body
        if not proven:
            heartbeat = wire.unpack(body)
            if heartbeat is not None:
                macs = end.inward.macs(body, len(heartbeat.entries) // wire.ENTRY_FIELDS)
        if heartbeat is None:
            place.refused.malformed += 1
        elif (slot := state.slot(number, heartbeat)) is None or not wire.same(
            macs[slot * wire.MAC_BYTES : (slot + 1) * wire.MAC_BYTES], data[-wire.MAC_BYTES :]
        ):
            place.refused.forged += 1
        elif (outcome := state.receive(number, slot, heartbeat, came_ns)) == REPLAYED:
            place.refused.replayed += 1
        else:
            if not proven:
                end.body, end.heartbeat, end.macs = body, heartbeat, macs
            if outcome == STRANGER:
                self._answer(path, sender, heartbeat.session, came_ns)
            return
        place.refused.source(sender)

    def _answer(self, path: Path, sender: bytes, session: int, now_ns: int) -> None:
        place, end = path.place, path.end
        if now_ns - place.answered_ns.get(sender, 0) < self._plan.timing.heartbeat_ns // 2:
            if not end.state.new(now_ns):
                place.refused.unprocessed += 1
            return
        place.answered_ns[sender] = now_ns
        self._tell(end, [path], end.state.heartbeat(now_ns, end.names, wire.ANSWER, session))

    def _tell(self, end: PeerEnd, paths: list[Path], heartbeat: wire.Heartbeat) -> None:
        body = wire.pack(heartbeat)
        macs = end.outward.macs(body, len(end.paths))
        for path in paths:
            if path.place.port is not None and path.place.carrier:
                path.place.port.tell(path.plan.remote, body + wire.mac_at(macs, path.number))

    def _add(self, plan: PeerPlan, now_ns: int) -> None:
        node = self._plan.node
        tags = [wire.tag(node, path.local, plan.name, path.remote) for path in plan.paths]
        state = Peer(node, plan.name, self._session, tags, self._plan.timing, self._plan.hold)
        end = PeerEnd(node, self._plan.key, plan, state)
        for number, path_plan in enumerate(plan.paths):
            interface, local = path_plan.interface, path_plan.local
            refused = self.refused.setdefault(interface, Refused(now_ns))
            place = self.places.setdefault((interface, local), Place(interface, local, refused))
            path = Path(end, number, path_plan, place)
            place.paths[ip_address(path_plan.remote).packed] = path
            end.paths.append(path)
        self.peers.append(end)
