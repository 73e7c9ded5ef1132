"""path_down, path_flapping and path_failover: what raises, what clears, what is read twice."""

from __future__ import annotations

import json
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.event import Telemetry
from schemas.identity import content_id
from schemas.path import PathFault, PathHealth, PathHealthColumns, RouteMoveReason
from schemas.signal import Phase, Severity, Signal
from streams.base import Detector
from streams.failovers import PathFailover
from streams.flapping import FlappingSettings
from streams.paths import PathDown, PathFlapping
from tests.streams.fleet import MS, T0, Fleet, S

FLEET = Fleet(3)
PATH = FLEET.path("host-1", "host-2", 0)


def make(kind: type[Detector], **changes: Any) -> Any:
    return kind("host-1", "default", kind.Settings(**changes))


def feed(detector: Detector, *events: Telemetry) -> list[Signal]:
    return [signal for event in events for signal in detector.observe(event)]


def death(at_ns: int = T0, **more: Any) -> Any:
    return FLEET.transition("host-1", "host-2", 0, False, at_ns, at_ns + 30 * MS, **more)


def back(since_ns: int = T0, at_ns: int = T0 + S) -> Any:
    return FLEET.transition("host-1", "host-2", 0, True, since_ns, at_ns)


def health(at_ns: int, *, alive: bool = True) -> PathHealth:
    return PathHealth(
        id=content_id("health", at_ns),
        at_ns=at_ns,
        from_ns=at_ns - S,
        clock_error_ns=0,
        node="host-1",
        columns=PathHealthColumns(
            path=[PATH],
            peer=["host-2"],
            interface=["rail0"],
            alive=[alive],
            in_use=[True],
            heartbeats_expected=[100],
            heartbeats_heard=[100],
            rtt_p50_us=[100],
            rtt_max_us=[150],
            jitter_us=[5],
            timeout_us=[30_000],
        ),
    )


def test_a_death_raises_and_its_return_clears_without_memory() -> None:
    (raised,) = feed(make(PathDown), death(fault=PathFault.DEAF))
    (cleared,) = feed(make(PathDown), back())
    assert (raised.phase, cleared.phase) == (Phase.RAISED, Phase.CLEARED)
    assert raised.episode == cleared.episode and raised.subject == PATH
    assert raised.severity is Severity.WARNING and raised.raised_ns == T0
    assert raised.summary == "host-1/rail0 → host-2/rail0: dead towards us, the peer hears us"


def test_the_last_path_to_a_peer_is_critical() -> None:
    (raised,) = feed(make(PathDown), death(paths_alive=0))
    assert raised.severity is Severity.CRITICAL
    assert raised.summary.endswith("no path to this peer is left")
    # What its death was like is what it is judged by, also once it is over.
    detector = make(PathDown)
    feed(detector, death(paths_alive=0))
    (cleared,) = feed(detector, back())
    assert cleared.attributes["paths_alive"] == 0


def test_a_return_that_nobody_told_of_is_seen_in_the_health() -> None:
    detector = make(PathDown)
    feed(detector, death())
    assert feed(detector, health(T0 + S // 2)) == []  # it began before the death
    assert feed(detector, health(T0 + 2 * S, alive=False)) == []
    (cleared,) = feed(detector, health(T0 + 3 * S))
    assert cleared.phase is Phase.CLEARED and cleared.raised_ns == T0
    assert detector.state() == {}


def test_a_watchdog_that_says_nothing_any_more_leaves_no_death_open() -> None:
    detector = make(PathDown)
    feed(detector, death())
    state = json.loads(json.dumps(detector.state()))
    detector = make(PathDown)
    detector.restore(state)
    assert list(detector.tick(T0 + 60 * S)) == []
    assert [one.phase for one in detector.tick(T0 + 130 * S)] == [Phase.CLEARED]


def test_three_deaths_in_ten_seconds_are_flapping() -> None:
    detector = make(PathFlapping)
    signals = []
    for flap in range(3):
        at_ns = T0 + flap * S
        signals += feed(detector, death(at_ns), back(at_ns, at_ns + 80 * MS))
    assert [one.phase for one in signals] == [Phase.RAISED]
    assert signals[0].kind == "path.flapping" and signals[0].subject == PATH
    assert signals[0].attributes["peer_interface"] == "rail0"
    (told,) = detector.tick(T0 + 10 * S)
    assert "dead 3 times" in told.summary
    (cleared,) = detector.tick(T0 + 100 * S)
    assert cleared.phase is Phase.CLEARED and cleared.episode == signals[0].episode


def move(at_ns: int, from_rail: int, to_rail: int, **more: Any) -> Any:
    return FLEET.move("host-1", "host-2", from_rail, to_rail, at_ns, **more)


def test_a_failover_its_stall_and_the_way_back() -> None:
    detector = make(PathFailover)
    (raised,) = feed(detector, move(T0 + 34 * MS, 0, 1, failed_ns=T0))
    assert raised.kind == "path.failover" and raised.subject == PATH and raised.raised_ns == T0
    assert raised.severity is Severity.INFO
    assert raised.summary == (
        "host-1: traffic for host-2 left 10.0.0.1->10.0.0.2 to 10.0.1.1->10.0.1.2 "
        "34 ms after its last sign of life"
    )
    (felt,) = feed(detector, FLEET.stall("host-1", "host-2", 0, T0 + 80 * MS, T0, 61))
    assert felt.episode == raised.episode and felt.attributes["stall_ns"] == 61 * MS
    assert "2 flows stood still for up to 61 ms" in felt.summary
    assert feed(detector, FLEET.stall("host-1", "host-2", 0, T0 + 80 * MS, T0, 61)) == []
    failback = move(T0 + 9 * S, 1, 0, reason=RouteMoveReason.FAILBACK)
    (cleared,) = feed(detector, failback)
    assert cleared.phase is Phase.CLEARED and cleared.episode == raised.episode
    assert cleared.attributes["stall_ns"] == 61 * MS
    assert feed(detector, failback, move(T0 + 34 * MS, 0, 1, failed_ns=T0)) == []


def test_a_rehearsal_is_no_failover() -> None:
    dry = move(T0, 0, 1, failed_ns=T0).model_copy(update={"dry_run": True})
    assert feed(make(PathFailover), dry) == []


def test_a_watchdog_started_anew_on_the_other_path_keeps_the_failover() -> None:
    detector = make(PathFailover)
    feed(detector, move(T0 + MS, 0, 1, failed_ns=T0))
    start = move(T0 + S, 1, 1, reason=RouteMoveReason.START)
    assert feed(detector, start) == []
    released = move(T0 + 2 * S, 1, 0, reason=RouteMoveReason.RELEASE)
    (cleared,) = feed(detector, released.model_copy(update={"to_path": None}))
    assert cleared.phase is Phase.CLEARED


def test_two_failovers_and_one_way_back() -> None:
    fleet = Fleet(3, rails=3)
    detector = make(PathFailover)
    signals = feed(
        detector,
        fleet.move("host-1", "host-2", 0, 1, T0 + MS, T0),
        fleet.move("host-1", "host-2", 1, 2, T0 + S, T0 + S - MS),
        fleet.move("host-1", "host-2", 2, 0, T0 + 5 * S, reason=RouteMoveReason.FAILBACK),
    )
    assert [one.phase for one in signals] == [Phase.RAISED, Phase.RAISED, *[Phase.CLEARED] * 2]
    assert {one.subject for one in signals[:2]} == {one.subject for one in signals[2:]}


def test_a_watchdog_that_fell_silent_leaves_no_failover_open() -> None:
    detector = make(PathFailover)
    feed(detector, move(T0, 0, 1, failed_ns=T0))
    feed(detector, health(T0 + 100 * S))
    assert list(detector.tick(T0 + 200 * S)) == []
    assert [one.phase for one in detector.tick(T0 + 221 * S)] == [Phase.CLEARED]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32))
def test_reading_twice_and_restarting_change_nothing(seed: int) -> None:
    order = random.Random(seed)
    events: list[Telemetry] = []
    at_ns, rail = T0, 0
    for _ in range(order.randint(1, 20)):
        at_ns += order.randint(1, 3000) * MS
        events.append(death(at_ns))
        events.append(move(at_ns + 31 * MS, rail, 1 - rail, failed_ns=at_ns))
        if order.random() < 0.7:
            events.append(
                FLEET.stall("host-1", "host-2", rail, at_ns + 50 * MS, at_ns, order.randint(1, 90))
            )
        rail = 1 - rail
        events.append(back(at_ns, at_ns + 90 * MS))
        at_ns += 90 * MS
        if order.random() < 0.5:
            at_ns += order.randint(1, 3000) * MS
            events.append(move(at_ns, rail, 0, reason=RouteMoveReason.FAILBACK))
            rail = 0
    for kind in (PathFlapping, PathFailover):
        wanted = [event for event in events if isinstance(event, kind.consumes)]
        plain = make(kind)
        expected = feed(plain, *wanted)
        detector, signals = make(kind), []
        for index, event in enumerate(wanted):
            signals += feed(detector, event)
            if order.random() < 0.3:
                again = feed(detector, *wanted[order.randint(0, index) : index + 1])
                # A stall of traffic that is back is told again, under the same id.
                assert {one.id for one in again} <= {one.id for one in signals}
            if order.random() < 0.3:
                state = json.loads(json.dumps(detector.state()))
                detector = make(kind)
                detector.restore(state)
        assert signals == expected
        assert detector.state() == plain.state()


def test_settings_are_those_of_flapping() -> None:
    assert PathFlapping.Settings is FlappingSettings
