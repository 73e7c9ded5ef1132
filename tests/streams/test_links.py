"""link_down and link_flapping: what raises, what clears, what is read twice."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.identity import content_id
from schemas.packet import LinkTransition
from schemas.signal import Phase, Severity, Signal
from streams.base import Detector
from streams.flapping import FlappingSettings
from streams.links import LinkDown, LinkFlapping

S = 1_000_000_000
T0 = 1_700_000_000 * S
NIC = "nic:node-3/eth1"


def transition(
    at_ns: int,
    carrier: bool,
    since_ns: int = 0,
    *,
    admin_up: bool = True,
    present: bool = True,
    physical: bool = True,
    unseen: int = 0,
    subject: str = NIC,
) -> LinkTransition:
    return LinkTransition(
        id=content_id("transition", subject, at_ns, carrier),
        at_ns=at_ns,
        clock_error_ns=1000,
        node="node-3",
        subject=subject,
        carrier=carrier,
        admin_up=admin_up,
        present=present,
        physical=physical,
        since_ns=since_ns,
        carrier_losses=1,
        unseen=unseen,
    )


def down() -> LinkDown:
    return LinkDown("node-3", "default", LinkDown.Settings())


def flapping(**changes: float) -> LinkFlapping:
    return LinkFlapping("node-3", "default", FlappingSettings(**changes))


def feed(detector: Detector, *events: LinkTransition) -> list[Signal]:
    return [signal for event in events for signal in detector.observe(event)]


def flaps(count: int, period_ns: int = S // 2, start_ns: int = T0) -> list[LinkTransition]:
    events = []
    for index in range(count):
        lost_ns = start_ns + index * period_ns
        events.append(transition(lost_ns, False, physical=False))
        events.append(transition(lost_ns + period_ns // 2, True, lost_ns, physical=False))
    return events


def test_a_loss_raises_and_its_return_clears_without_memory() -> None:
    (raised,) = feed(down(), transition(T0, False))
    (cleared,) = feed(down(), transition(T0 + 2 * S, True, T0))
    assert (raised.phase, cleared.phase) == (Phase.RAISED, Phase.CLEARED)
    assert raised.episode == cleared.episode
    assert raised.kind == "link.down" and raised.subject == NIC
    assert raised.severity is Severity.CRITICAL
    assert [one.what for one in cleared.evidence] == ["carrier lost", "carrier back after 2.0 s"]
    assert cleared.summary == "node-3/eth1: had no carrier for 2.0 s"


def test_a_virtual_interface_is_a_warning() -> None:
    (raised,) = feed(down(), transition(T0, False, physical=False))
    assert raised.severity is Severity.WARNING


def test_set_down_or_unmade_is_no_fault_and_ends_one() -> None:
    (raised,) = feed(down(), transition(T0, False))
    for ending in (
        transition(T0 + S, False, T0, admin_up=False),
        transition(T0 + S, False, T0, admin_up=False, present=False, physical=False),
    ):
        (cleared,) = feed(down(), ending)
        assert cleared.phase is Phase.CLEARED and cleared.episode == raised.episode
    assert feed(down(), transition(T0, False, admin_up=False)) == []


def test_removal_of_a_device_is_a_loss() -> None:
    (raised,) = feed(down(), transition(T0, False, present=False, admin_up=False))
    assert raised.phase is Phase.RAISED and raised.evidence[0].what == "interface removed"


def test_first_sight_of_a_link_that_is_up_says_nothing() -> None:
    assert feed(down(), transition(T0, True)) == []


def test_unseen_losses_are_told() -> None:
    (raised,) = feed(down(), transition(T0, False, unseen=3))
    assert raised.attributes["losses"] == 4
    assert "3 more losses" in raised.evidence[0].what


def test_twenty_flaps_in_ten_seconds() -> None:
    detector = flapping()
    signals = feed(detector, *flaps(20))
    signals += detector.tick(T0 + 11 * S)
    assert signals[0].phase is Phase.RAISED
    assert signals[0].at_ns == T0 + S
    updates = [signal for signal in signals if signal.phase is Phase.UPDATED]
    assert 9 <= len(updates) <= 11
    last = updates[-1]
    assert last.attributes["losses"] == 20
    assert len(last.evidence) == 40
    assert last.summary.startswith("node-3/eth1 flaps: 20 carrier losses in 9.8 s")
    assert list(detector.tick(T0 + 60 * S)) == []
    (cleared,) = detector.tick(T0 + 100 * S)
    assert cleared.phase is Phase.CLEARED
    assert cleared.at_ns == T0 + 39 * S // 4 + 60 * S
    assert {signal.episode for signal in signals} == {cleared.episode}
    assert len(cleared.evidence) == 40


def test_more_than_eight_in_an_hour() -> None:
    events = flaps(9, period_ns=300 * S)
    detector = flapping()
    assert feed(detector, *events[:16]) == []
    signals = feed(detector, *events[16:])
    assert signals[0].phase is Phase.RAISED and signals[0].raised_ns == T0
    assert signals[0].attributes["losses"] == 9


def test_unseen_losses_count() -> None:
    assert feed(flapping(), transition(T0, False, unseen=2))[0].phase is Phase.RAISED
    assert feed(flapping(), transition(T0, True, unseen=3))[0].phase is Phase.RAISED


def test_losses_of_interfaces_that_are_set_down_do_not_count() -> None:
    events = [transition(T0 + i * S, False, admin_up=False) for i in range(5)]
    assert feed(flapping(), *events) == []


def test_no_end_while_carrier_is_away() -> None:
    detector = flapping()
    feed(detector, *flaps(4)[:-1])
    assert not [s for s in detector.tick(T0 + 1000 * S) if s.phase is Phase.CLEARED]
    feed(detector, transition(T0 + 1000 * S, True, T0 + 3 * S // 2))
    assert [s.phase for s in detector.tick(T0 + 1059 * S)] == []
    assert [s.phase for s in detector.tick(T0 + 1060 * S)] == [Phase.CLEARED]


def test_transitions_that_the_kernel_announced_as_one_have_one_time() -> None:
    detector = flapping()
    feed(detector, *flaps(3)[:-1])
    lost_ns, noticed_ns = T0 + S, T0 + 2 * S
    feed(
        detector,
        transition(noticed_ns, True, lost_ns),
        transition(noticed_ns, False, noticed_ns),
        transition(noticed_ns, True, noticed_ns),
    )
    (cleared,) = detector.tick(T0 + 62 * S)
    assert cleared.phase is Phase.CLEARED and cleared.attributes["losses"] == 4


def test_set_down_ends_it_at_once() -> None:
    detector = flapping()
    feed(detector, *flaps(4))
    (cleared,) = feed(detector, transition(T0 + 5 * S, False, admin_up=False))
    assert cleared.phase is Phase.CLEARED and cleared.at_ns == T0 + 5 * S


def test_a_later_event_ends_it_without_a_tick_and_counting_begins_anew() -> None:
    detector = flapping()
    feed(detector, *flaps(4))
    signals = feed(detector, transition(T0 + 500 * S, False))
    assert [signal.phase for signal in signals] == [Phase.CLEARED]
    assert signals[0].at_ns < T0 + 500 * S


def test_evidence_is_bounded_and_counted() -> None:
    detector = flapping()
    signals = feed(detector, *flaps(200, period_ns=S // 10))
    last = signals[-1]
    assert len(last.evidence) == 64
    assert len(last.evidence) + last.evidence_dropped >= 380
    assert len(json.dumps(detector.state())) < 20_000


def test_interfaces_are_bounded() -> None:
    detector = flapping()
    for index in range(2000):
        feed(detector, transition(T0 + index, False, subject=f"nic:node-3/veth{index}"))
    assert len(detector.state()) <= 512
    list(detector.tick(T0 + 10_000 * S))
    assert detector.state() == {}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 40 * S), min_size=1, max_size=40),
    st.data(),
)
def test_reading_twice_and_restarting_change_nothing(
    gaps_ns: list[int], data: st.DataObject
) -> None:
    events, at_ns, carrier, since_ns = [], T0, True, 0
    for gap_ns in gaps_ns:
        before_ns, at_ns, carrier = at_ns, at_ns + gap_ns, not carrier
        since_ns = before_ns
        events.append(transition(at_ns, carrier, since_ns))
    plain = flapping()
    expected = feed(plain, *events)

    detector, signals = flapping(), []
    for index, event in enumerate(events):
        signals += feed(detector, event)
        if data.draw(st.booleans()):
            back = data.draw(st.integers(0, index))
            signals += feed(detector, *events[back : index + 1])
        if data.draw(st.booleans()):
            state = json.loads(json.dumps(detector.state()))
            detector = flapping()
            detector.restore(state)
    assert signals == expected
    assert detector.state() == plain.state()
