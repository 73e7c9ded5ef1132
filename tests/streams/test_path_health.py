"""path_degraded and heartbeats_refused: what is a fault, what is load, what is the host's."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from schemas.event import Telemetry
from schemas.identity import content_id
from schemas.packet import InterfaceColumns, InterfaceCounters
from schemas.path import HeartbeatsRefused, PathHealth, PathHealthColumns
from schemas.signal import Phase, Signal
from streams.heartbeats import RefusedHeartbeats
from streams.path_health import PathDegraded
from tests.streams.fleet import T0, S

RAILS = ("rail0", "rail1")


class Node:
    """Two rails, two peers, an interval a second."""

    def __init__(self, seed: int = 1) -> None:
        self.detector = PathDegraded("host-1", "default", PathDegraded.Settings())
        self.random = random.Random(seed)
        self.at_ns = T0
        self.bytes = dict.fromkeys(RAILS, 0)

    def interval(
        self,
        *,
        lost: Sequence[int] = (0, 0, 0, 0),
        rtt_us: Sequence[float] = (100, 100, 100, 100),
        swing_us: float = 20,
        alive: Sequence[bool] = (True, True, True, True),
        load: Sequence[float] = (0, 0),
    ) -> list[Signal]:
        """One more second; ``load`` is bytes per second by rail, paths are by peer, then rail."""
        self.at_ns += S
        for rail, rate in zip(RAILS, load, strict=True):
            self.bytes[rail] += int(rate)
        p50 = [max(1, int(us * self.random.uniform(0.9, 1.1))) for us in rtt_us]
        events: list[Telemetry] = [
            InterfaceCounters(
                id=content_id("counters", self.at_ns),
                at_ns=self.at_ns,
                from_ns=self.at_ns - S,
                clock_error_ns=0,
                node="host-1",
                columns=_interfaces(self.bytes),
            ),
            PathHealth(
                id=content_id("health", self.at_ns),
                at_ns=self.at_ns,
                from_ns=self.at_ns - S,
                clock_error_ns=0,
                node="host-1",
                columns=PathHealthColumns(
                    path=[
                        f"path:host-1/10.0.{i % 2}.1->10.0.{i % 2}.{2 + i // 2}" for i in range(4)
                    ],
                    peer=["host-2", "host-2", "host-3", "host-3"],
                    interface=[*RAILS, *RAILS],
                    alive=list(alive),
                    in_use=[True] * 4,
                    heartbeats_expected=[100] * 4,
                    heartbeats_heard=[100 - one for one in lost],
                    rtt_p50_us=p50,
                    rtt_max_us=[int(one + swing_us) for one in p50],
                    jitter_us=[int(swing_us / 10)] * 4,
                    timeout_us=[30_000] * 4,
                ),
            ),
        ]
        return [signal for event in events for signal in self.detector.observe(event)]

    def intervals(self, count: int, **what: Any) -> list[Signal]:
        return [signal for _ in range(count) for signal in self.interval(**what)]


def _interfaces(totals: dict[str, int]) -> InterfaceColumns:
    zeros = [0] * len(totals)
    columns: dict[str, Any] = dict.fromkeys(InterfaceColumns.model_fields, zeros)
    columns |= {"interface": list(totals), "carrier": [True] * len(totals)}
    columns |= {"tx_bytes": list(totals.values())}
    return InterfaceColumns(**columns)


@pytest.fixture
def node() -> Node:
    made = Node()
    assert made.intervals(20) == []
    return made


def test_lasting_loss_raises_and_clears(node: Node) -> None:
    assert node.intervals(2, lost=(5, 0, 0, 0)) == []
    (raised,) = node.interval(lost=(5, 0, 0, 0))
    assert raised.phase is Phase.RAISED and raised.kind == "path.degraded"
    assert raised.subject == "path:host-1/10.0.0.1->10.0.0.2"
    assert raised.attributes["degraded"] == "loss" and "5.0% of 100" in raised.summary
    assert raised.raised_ns == T0 + 20 * S
    assert node.intervals(4) == []
    (cleared,) = node.interval()
    assert cleared.phase is Phase.CLEARED and cleared.episode == raised.episode


def test_a_single_bad_interval_says_nothing(node: Node) -> None:
    for _ in range(5):
        assert node.interval(lost=(90, 0, 0, 0), rtt_us=(90_000, 100, 100, 100)) == []
        assert node.intervals(5) == []


def test_loss_a_little_above_nothing_says_nothing(node: Node) -> None:
    assert node.intervals(30, lost=(1, 0, 1, 0)) == []


def test_added_delay(node: Node) -> None:
    signals = node.intervals(3, rtt_us=(5100, 100, 5100, 100))
    assert [one.attributes["degraded"] for one in signals] == ["delay", "delay"]
    assert "was 0." in signals[0].summary
    # While it lasts the baseline stays what it was.
    assert node.intervals(200, rtt_us=(5100, 100, 5100, 100))[-1].phase is Phase.UPDATED
    assert {one.phase for one in node.intervals(5)} == {Phase.CLEARED}


def test_what_all_interfaces_suffer_is_the_hosts(node: Node) -> None:
    assert node.intervals(30, rtt_us=(3000, 3000, 3000, 3000)) == []


def test_a_loaded_link_is_not_degraded(node: Node) -> None:
    busy = node.intervals(60, load=(1e9, 0), rtt_us=(20_000, 100, 20_000, 100), lost=(3, 0, 3, 0))
    assert busy == []


def test_a_rate_cut_is_told_from_delay(node: Node) -> None:
    assert node.intervals(20, load=(1e9, 0)) == []
    signals = node.intervals(5, load=(1e8, 0), rtt_us=(30_000, 100, 30_000, 100), swing_us=20_000)
    assert {one.attributes["degraded"] for one in signals} == {"rate"}
    steady = Node(2)
    steady.intervals(20)
    steady.intervals(20, load=(1e9, 0))
    signals = steady.intervals(5, load=(1e8, 0), rtt_us=(30_000, 100, 30_000, 100), swing_us=50)
    assert {one.attributes["degraded"] for one in signals} == {"delay"}


def test_a_dead_path_is_not_degraded(node: Node) -> None:
    assert node.intervals(10, lost=(100, 0, 0, 0), alive=(False, True, True, True)) == []


def test_noise_raises_no_alarm() -> None:
    node = Node(7)
    noise = random.Random(3)
    for _ in range(2000):
        rtt_us = [noise.lognormvariate(4.6, 0.4) for _ in range(4)]
        lost = [int(noise.random() < 0.02) for _ in range(4)]
        assert node.interval(rtt_us=rtt_us, lost=lost) == []


def test_reading_twice_and_restarting_change_nothing(node: Node) -> None:
    (raised,) = node.intervals(3, lost=(5, 0, 0, 0))
    state = json.loads(json.dumps(node.detector.state()))
    node.detector = PathDegraded("host-1", "default", PathDegraded.Settings())
    node.detector.restore(state)
    (cleared,) = node.intervals(5)
    assert cleared.episode == raised.episode and cleared.phase is Phase.CLEARED
    assert node.detector.state() == {}


def test_silence_ends_it(node: Node) -> None:
    node.intervals(3, lost=(5, 0, 0, 0))
    assert list(node.detector.tick(node.at_ns + 60 * S)) == []
    assert [one.phase for one in node.detector.tick(node.at_ns + 121 * S)] == [Phase.CLEARED]


def refused(at_ns: int, forged: int = 0, replayed: int = 0) -> HeartbeatsRefused:
    return HeartbeatsRefused(
        id=content_id("refused", at_ns),
        at_ns=at_ns,
        from_ns=at_ns - S,
        clock_error_ns=0,
        node="host-1",
        subject="node:host-1",
        interface="rail0",
        malformed=0,
        forged=forged,
        replayed=replayed,
        unprocessed=0,
        sources=["10.0.0.66"],
    )


def test_a_flood_is_one_signal() -> None:
    detector = RefusedHeartbeats("host-1", "default", RefusedHeartbeats.Settings())
    signals: list[Signal] = []
    for second in range(60):
        event = refused(T0 + second * S, forged=10_000)
        signals += detector.observe(event)
        signals += detector.observe(event)
        state = json.loads(json.dumps(detector.state()))
        detector = RefusedHeartbeats("host-1", "default", RefusedHeartbeats.Settings())
        detector.restore(state)
    assert signals[0].phase is Phase.RAISED and signals[0].subject == "nic:host-1/rail0"
    assert len(signals) <= 7 and {one.episode for one in signals} == {signals[0].episode}
    assert "10,000/s from 10.0.0.66" in signals[0].summary
    (cleared,) = detector.tick(T0 + 80 * S)
    assert cleared.phase is Phase.CLEARED and cleared.attributes["forged"] == 600_000


def test_a_few_of_an_earlier_run_are_usual() -> None:
    detector = RefusedHeartbeats("host-1", "default", RefusedHeartbeats.Settings())
    assert list(detector.observe(refused(T0, replayed=5))) == []
    assert list(detector.tick(T0 + 20 * S)) == []
    assert list(detector.observe(refused(T0 + 100 * S, replayed=18))) == []
    assert detector.state() != {}
