"""Two peers and the network between them, in simulated time: no socket, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field

from collectors.reflex import wire
from collectors.reflex.choice import FAILBACK, HoldDown
from collectors.reflex.liveness import Timing
from collectors.reflex.peer import ACCEPTED, REPLAYED, STRANGER, Decision, Peer, Transition

MS = 1_000_000
TIMING = Timing(10 * MS, 30 * MS)
HOLD = HoldDown(200 * MS, 1600 * MS, 5000 * MS)
TAGS = [11, 22]


@dataclass
class Move:
    at_ns: int
    decision: Decision


@dataclass
class End:
    """One node: its machine, its clock's offset, and what it did."""

    name: str
    other: str
    session: int
    phase_ns: int
    offset_ns: int
    peer: Peer = field(init=False)
    due_ns: int = field(init=False)
    stalled_until_ns: int = 0
    inbox: list[tuple[int, int, wire.Heartbeat]] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    told: list[Transition] = field(default_factory=list)
    wrong_ns: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start(self.session)
        self.due_ns = self.phase_ns

    def start(self, session: int) -> None:
        self.peer = Peer(self.name, self.other, session, TAGS, TIMING, HOLD)

    def failbacks(self) -> list[int]:
        return [move.at_ns for move in self.moves if move.decision.reason == FAILBACK]


class Network:
    """Two ends, ``a`` and ``b``, with two paths. ``now_ns`` is true time."""

    def __init__(self) -> None:
        self.a = End("a", "b", 1001, 0, 5_000 * MS)
        self.b = End("b", "a", 2002, 4 * MS, 90_000 * MS)
        self.now_ns = 0
        self.lost = {("a", 0): False, ("a", 1): False, ("b", 0): False, ("b", 1): False}
        """By sender and path."""
        self.delay_ns = dict.fromkeys(self.lost, MS // 5)
        self.captured: list[tuple[str, int, wire.Heartbeat]] = []
        self._wire: list[tuple[int, End, int, wire.Heartbeat]] = []

    def run(self, milliseconds: int) -> None:
        """Let time pass."""
        for _ in range(milliseconds):
            self.now_ns += MS
            arrived = [item for item in self._wire if item[0] <= self.now_ns]
            self._wire = [item for item in self._wire if item[0] > self.now_ns]
            for at_ns, end, place, heartbeat in arrived:
                end.inbox.append((at_ns, place, heartbeat))
            for end in (self.a, self.b):
                self._step(end)

    def stall(self, end: End, milliseconds: int) -> None:
        """Let one end's loop stand still."""
        end.stalled_until_ns = self.now_ns + milliseconds * MS

    def _step(self, end: End) -> None:
        if self.now_ns < end.stalled_until_ns:
            return
        if end.stalled_until_ns:
            late_ns = self.now_ns - min(end.due_ns, end.stalled_until_ns)
            if late_ns > TIMING.heartbeat_ns // 2:
                end.peer.excuse(late_ns)
            end.stalled_until_ns = 0
        local_ns = self.now_ns + end.offset_ns
        peer = end.peer
        for at_ns, place, heartbeat in end.inbox:
            slot = peer.slot(place, heartbeat)
            assert slot is not None
            outcome = peer.receive(place, slot, heartbeat, at_ns + end.offset_ns)
            if outcome == STRANGER:
                answer = peer.heartbeat(local_ns, b"", wire.ANSWER, heartbeat.session)
                self._send(end, place, answer)
            else:
                assert outcome in (ACCEPTED, REPLAYED, "idle")
        end.inbox.clear()
        changed = peer.judge(local_ns)
        decision = peer.decide(local_ns)
        if decision is not None:
            peer.moved(decision.place)
            end.moves.append(Move(self.now_ns, decision))
            changed = True
        end.told += peer.news()
        alive = peer.life.alive
        if peer.chosen is not None and alive[peer.chosen] is False and True in alive:
            end.wrong_ns.append(self.now_ns)
        if changed:
            self._beat(end, local_ns)
        if self.now_ns >= end.due_ns:
            self._beat(end, local_ns)
            end.due_ns = max(end.due_ns + TIMING.heartbeat_ns, self.now_ns)

    def _beat(self, end: End, local_ns: int) -> None:
        heartbeat = end.peer.heartbeat(local_ns, wire.pack_names(["x"] * len(TAGS)))
        for place in range(len(TAGS)):
            if end.peer.paths[place].carrier:
                self._send(end, place, heartbeat)

    def _send(self, end: End, place: int, heartbeat: wire.Heartbeat) -> None:
        self.captured.append((end.name, place, heartbeat))
        if not self.lost[end.name, place]:
            at_ns = self.now_ns + self.delay_ns[end.name, place]
            self._wire.append((at_ns, self.b if end is self.a else self.a, place, heartbeat))

    def deliver(self, to: End, place: int, heartbeat: wire.Heartbeat) -> str:
        """Give an end a heartbeat out of the order of things; returns what it made of it."""
        slot = to.peer.slot(place, heartbeat)
        assert slot is not None
        return to.peer.receive(place, slot, heartbeat, self.now_ns + to.offset_ns)
