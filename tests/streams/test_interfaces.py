"""interface_errors: rates from totals, resets, wraps, clocks that step back, hysteresis."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.identity import content_id
from schemas.packet import InterfaceColumns, InterfaceCounters
from schemas.signal import Phase, Signal
from streams.interfaces import InterfaceErrors, InterfaceErrorsSettings, increase

S = 1_000_000_000
T0 = 1_700_000_000 * S


def counters(at_ns: int, **totals: int) -> InterfaceCounters:
    """Counters of eth0 (all 0) and eth1 (as given)."""
    columns: dict[str, list[int]] = {
        name: [0, totals.get(name, 0)]
        for name, field in InterfaceColumns.model_fields.items()
        if field.annotation == list[int]
    }
    return InterfaceCounters(
        id=content_id("counters", at_ns, str(totals)),
        at_ns=at_ns,
        clock_error_ns=1000,
        node="node-3",
        from_ns=at_ns,
        columns=InterfaceColumns(interface=["eth0", "eth1"], carrier=[True, True], **columns),
    )


def detector(**changes: float) -> InterfaceErrors:
    return InterfaceErrors("node-3", "default", InterfaceErrorsSettings(**changes))


def run(one: InterfaceErrors, totals: list[int], step_s: int = 10, first: int = 0) -> list[Signal]:
    return [
        signal
        for index, total in enumerate(totals, first)
        for signal in one.observe(counters(T0 + index * step_s * S, rx_errors=total))
    ]


def test_two_bad_intervals_raise_and_three_good_ones_clear() -> None:
    one = detector()
    signals = run(one, [0, 0, 500, 1000, 1500, 1500, 1500, 1500])
    assert [signal.phase for signal in signals] == [Phase.RAISED, Phase.UPDATED, Phase.CLEARED]
    raised, _, cleared = signals
    assert raised.kind == "interface.errors" and raised.subject == "nic:node-3/eth1"
    assert raised.raised_ns == T0 + 10 * S and raised.at_ns == T0 + 30 * S
    assert raised.evidence[0].value == 50.0
    assert cleared.at_ns == T0 + 70 * S
    assert cleared.episode == raised.episode
    assert one.state() == {}


def test_one_bad_interval_is_nothing() -> None:
    assert run(detector(), [0, 5000, 5000, 10_000, 10_000]) == []


def test_a_total_is_not_a_rate() -> None:
    assert run(detector(), [10**12, 10**12, 10**12 + 50, 10**12 + 100]) == []


def test_between_half_and_the_threshold_it_goes_on() -> None:
    signals = run(detector(), [0, 500, 1000, *range(1070, 1070 + 70 * 20, 70)])
    assert [signal.phase for signal in signals] == [Phase.RAISED]


def test_crc_errors_that_the_driver_counts_apart_are_seen_and_not_counted_twice() -> None:
    one = detector()
    signals = [
        signal
        for i in range(4)
        for signal in one.observe(
            counters(T0 + i * S, rx_crc_errors=20 * i, rx_errors=20 * i, tx_errors=0)
        )
    ]
    assert signals[0].evidence[0].value == 20.0
    assert "CRC" in signals[0].evidence[0].what


def test_drops_only_when_asked() -> None:
    def drops(one: InterfaceErrors) -> list[Signal]:
        return [
            signal
            for i in range(4)
            for signal in one.observe(counters(T0 + i * S, rx_dropped=10_000 * i))
        ]

    assert drops(detector()) == []
    assert drops(detector(dropped_per_s=1000))[0].evidence[0].unit == "drops/s"


def test_increase() -> None:
    assert increase(5, 9) == 4
    assert increase((1 << 32) - 10, 20) == 30
    assert increase(1_000_000, 20) == 0
    assert increase((1 << 40) + 5, 20) == 0


def test_a_reset_and_a_step_back_give_no_rate() -> None:
    one = detector()
    assert run(one, [10**9, 10**9, 0, 10, 20]) == []
    back = [counters(T0 - 50 * S, rx_errors=10**6), counters(T0 - 50 * S, rx_errors=10**7)]
    assert [signal for event in back for signal in one.observe(event)] == []


def test_an_interface_that_goes_ends_its_episode() -> None:
    one = detector()
    run(one, [0, 500, 1000])
    gone = counters(T0 + 40 * S)
    columns = {name: column[:1] for name, column in gone.columns.model_dump().items()}
    event = gone.model_copy(update={"columns": InterfaceColumns(**columns)})
    (cleared,) = one.observe(event)
    assert cleared.phase is Phase.CLEARED and "removed" in cleared.summary


def test_silence_ends_an_episode_also_after_a_restart() -> None:
    one = detector()
    run(one, [0, 500, 1000])
    again = detector()
    again.restore(json.loads(json.dumps(one.state())))
    assert list(again.tick(T0 + 1000 * S)) == []
    assert list(again.tick(T0 + 1100 * S)) == []
    (cleared,) = again.tick(T0 + 1120 * S)
    (also,) = one.tick(T0 + 1000 * S)
    assert cleared.episode == also.episode
    assert also.at_ns == T0 + 140 * S


def test_a_restored_episode_goes_on() -> None:
    one = detector()
    (raised,) = run(one, [0, 500, 1000])
    again = detector()
    again.restore(json.loads(json.dumps(one.state())))
    signals = run(again, [1000, 1000, 1000, 1000], first=3)
    assert [(signal.phase, signal.episode) for signal in signals] == [
        (Phase.CLEARED, raised.episode)
    ]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(T0 - 100 * S, T0 + 100 * S), st.integers(0, (1 << 64) - 1)),
        max_size=30,
    )
)
def test_any_totals_at_any_time(rows: list[tuple[int, int]]) -> None:
    one = detector()
    active: set[str] = set()
    for at_ns, total in rows:
        for signal in one.observe(counters(at_ns, rx_errors=total, tx_errors=total // 3)):
            assert all((evidence.value or 0) >= 0 for evidence in signal.evidence)
            if signal.phase is Phase.RAISED:
                assert not active
                active.add(signal.episode)
            else:
                assert signal.episode in active
            if signal.phase is Phase.CLEARED:
                active.remove(signal.episode)
