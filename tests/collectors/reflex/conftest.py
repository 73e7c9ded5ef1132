"""Two peers over a simulated network, for properties of both together."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import pytest

from collectors.reflex import wire
from collectors.reflex.choice import HoldDown
from collectors.reflex.liveness import Timing
from collectors.reflex.peer import STRANGER, Decision, Peer, Transition

MS = 1_000_000
TIMING = Timing(10 * MS, 30 * MS)
HOLD = HoldDown(300 * MS, 2400 * MS, 10_000 * MS)
STEP_NS = 2 * MS


@dataclass
class End:
    """One of the two, as its watchdog would hold it."""

    peer: Peer
    names: bytes
    skew_ns: int
    """Its monotonic clock against that of the simulation."""
    due_ns: int = 0
    asleep_until_ns: int = 0
    moves: list[tuple[int, Decision]] = field(default_factory=list)
    told: list[Transition] = field(default_factory=list)


class Network:
    """Both ends, and between them paths that lose, delay and stop."""

    hold, timing = HOLD, TIMING

    def __init__(self, paths: int = 2) -> None:
        tags = list(range(1, paths + 1))
        self.now_ns = 0
        self.paths = paths
        self.ends = [
            End(
                Peer(name, other, session, tags, TIMING, HOLD),
                wire.pack_names([f"{name}{place}" for place in range(paths)]),
                skew_ns,
                phase_ns,
            )
            for name, other, session, skew_ns, phase_ns in (
                ("a", "b", 11, 10**15, 0),
                ("b", "a", 22, 5 * 10**12, 4 * MS),
            )
        ]
        self.cut = [[False] * paths, [False] * paths]
        """Whether what an end sends on a path is lost."""
        self.delay_ns = [[100_000] * paths, [100_000] * paths]
        self._flying: list[tuple[int, int, int, int, wire.Heartbeat]] = []
        self._number = 0

    def run(self, duration_ms: int) -> None:
        """Let time pass."""
        until_ns = self.now_ns + duration_ms * MS
        while self.now_ns < until_ns:
            self.now_ns += STEP_NS
            self._arrive()
            for number, end in enumerate(self.ends):
                if self.now_ns >= end.asleep_until_ns:
                    self._act(number, end)

    def sleep(self, number: int, duration_ms: int) -> None:
        """An end's host stands still; what arrives meanwhile waits."""
        self.ends[number].asleep_until_ns = self.now_ns + duration_ms * MS

    def _send(self, number: int, places: list[int], heartbeat: wire.Heartbeat) -> None:
        for place in places:
            if not self.cut[number][place]:
                self._number += 1
                arrival_ns = self.now_ns + self.delay_ns[number][place]
                heapq.heappush(
                    self._flying, (arrival_ns, self._number, 1 - number, place, heartbeat)
                )

    def _arrive(self) -> None:
        waiting = []
        while self._flying and self._flying[0][0] <= self.now_ns:
            item = heapq.heappop(self._flying)
            _, _, number, place, heartbeat = item
            end = self.ends[number]
            if self.now_ns < end.asleep_until_ns:
                waiting.append(item)
            else:
                self._take(number, place, heartbeat)
        for item in waiting:
            heapq.heappush(self._flying, item)

    def _take(self, number: int, place: int, heartbeat: wire.Heartbeat) -> None:
        end = self.ends[number]
        now_ns = self.now_ns + end.skew_ns
        slot = end.peer.slot(place, heartbeat)
        if slot is None or end.peer.stale(place, heartbeat):
            return
        if end.peer.receive(place, slot, heartbeat, now_ns) == STRANGER:
            answer = end.peer.heartbeat(now_ns, end.names, wire.ANSWER, heartbeat.session)
            self._send(number, [place], answer)

    def _act(self, number: int, end: End) -> None:
        now_ns = self.now_ns + end.skew_ns
        if end.asleep_until_ns:
            late_ns = self.now_ns - end.due_ns
            if late_ns > 0:
                end.peer.excuse(late_ns)
            end.asleep_until_ns = 0
        changed = end.peer.judge(now_ns)
        decision = end.peer.decide(now_ns)
        if decision is not None:
            end.peer.moved(decision.place)
            end.moves.append((self.now_ns, decision))
            changed = True
        end.told += end.peer.news()
        if changed or self.now_ns >= end.due_ns:
            if self.now_ns >= end.due_ns:
                end.due_ns = self.now_ns + TIMING.heartbeat_ns
            heartbeat = end.peer.heartbeat(now_ns, end.names)
            carriers = [place for place, path in enumerate(end.peer.paths) if path.carrier]
            self._send(number, carriers, heartbeat)


@pytest.fixture(scope="session")
def network_type() -> type[Network]:
    return Network
