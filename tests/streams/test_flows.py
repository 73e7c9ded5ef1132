"""tcp_retransmits: ratio by path, hysteresis, batches that share an interval, bounded state."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.identity import content_id
from schemas.packet import TcpFlowColumns, TcpFlows
from schemas.signal import Phase, Signal
from streams.flows import TcpRetransmits, TcpRetransmitsSettings, address

S = 1_000_000_000
T0 = 1_700_000_000 * S

Row = tuple[str, str, int, int]


def flows(at_ns: int, rows: list[Row], part: int = 0) -> TcpFlows:
    zeros = [0] * len(rows)
    return TcpFlows(
        id=content_id("flows", at_ns, part, str(rows)),
        at_ns=at_ns,
        clock_error_ns=1000,
        node="node-3",
        from_ns=at_ns - S,
        columns=TcpFlowColumns(
            local=[row[0] for row in rows],
            remote=[row[1] for row in rows],
            rtt_us=zeros,
            cwnd_segments=zeros,
            segments_sent=[row[2] for row in rows],
            segments_retransmitted=[row[3] for row in rows],
            bytes_sent=zeros,
            bytes_received=zeros,
            delivery_rate_bytes_per_s=zeros,
        ),
    )


def detector(**changes: float) -> TcpRetransmits:
    return TcpRetransmits("node-3", "default", TcpRetransmitsSettings(**changes))


def run(one: TcpRetransmits, intervals: list[list[Row]], first: int = 0) -> list[Signal]:
    """Show intervals of a second each, and let a tick end each of them."""
    signals: list[Signal] = []
    for index, rows in enumerate(intervals, first):
        signals += one.observe(flows(T0 + index * S, rows))
        signals += one.tick(T0 + index * S + S)
    return signals


BAD: list[Row] = [("10.0.0.3:4000", "10.0.0.9:80", 100, 5)]
GOOD: list[Row] = [("10.0.0.3:4000", "10.0.0.9:80", 100, 0)]


def test_two_bad_intervals_raise_and_three_good_ones_clear() -> None:
    one = detector()
    signals = run(one, [GOOD, BAD, BAD, BAD, GOOD, GOOD, GOOD, GOOD])
    assert [signal.phase for signal in signals] == [Phase.RAISED, Phase.CLEARED]
    raised, cleared = signals
    assert raised.kind == "tcp.retransmits"
    assert raised.subject == "path:node-3/10.0.0.3->10.0.0.9"
    assert raised.raised_ns == T0 and raised.at_ns == T0 + 2 * S
    assert raised.evidence[0].value == 0.05
    assert cleared.episode == raised.episode and cleared.at_ns == T0 + 6 * S
    assert len(cleared.evidence) == 3
    assert one.state() == {}


def test_without_ticks_the_next_interval_ends_the_last() -> None:
    one = detector()
    signals = [signal for index in range(3) for signal in one.observe(flows(T0 + index * S, BAD))]
    assert [signal.at_ns for signal in signals] == [T0 + S]


def test_flows_of_one_path_count_together_and_ports_do_not() -> None:
    many = [(f"10.0.0.3:{4000 + i}", "10.0.0.9:80", 10, int(i == 0)) for i in range(20)]
    assert run(detector(), [many] * 3) == []
    bad = [(f"10.0.0.3:{4000 + i}", f"10.0.0.9:{80 + i}", 10, 1) for i in range(20)]
    assert len(run(detector(), [bad] * 3)) == 1


def test_few_segments_say_nothing_but_do_not_clear() -> None:
    few: list[Row] = [("10.0.0.3:4000", "10.0.0.9:80", 3, 3)]
    assert run(detector(), [few] * 5) == []
    assert [s.phase for s in run(detector(), [BAD, BAD, *[few] * 5])] == [Phase.RAISED]


def test_a_path_that_is_gone_clears() -> None:
    assert [s.phase for s in run(detector(), [BAD, BAD, [], [], []])] == [
        Phase.RAISED,
        Phase.CLEARED,
    ]


def test_a_node_that_falls_silent_clears_also_after_a_restart() -> None:
    one = detector()
    (raised,) = run(one, [BAD, BAD])
    again = detector()
    again.restore(json.loads(json.dumps(one.state())))
    (cleared,) = one.tick(T0 + 500 * S)
    assert cleared.phase is Phase.CLEARED and cleared.episode == raised.episode
    assert list(again.tick(T0 + 500 * S)) == []
    assert [signal.episode for signal in again.tick(T0 + 620 * S)] == [raised.episode]


def test_a_restored_episode_goes_on() -> None:
    one = detector()
    (raised,) = run(one, [BAD, BAD])
    again = detector()
    again.restore(json.loads(json.dumps(one.state())))
    signals = run(again, [GOOD] * 3, first=2)
    assert [(s.phase, s.episode) for s in signals] == [(Phase.CLEARED, raised.episode)]


def test_a_bad_row_in_a_good_batch_does_not_hide_the_rest_of_the_batch() -> None:
    path = ("10.0.0.3:4000", "10.0.0.9:80")
    first: list[Row] = [(*path, 10, 1), (*path, 1200, 2)]
    second: list[Row] = [(*path, 1010, 30)]
    one = detector(for_intervals=1)
    signals: list[Signal] = []
    for index in range(3):
        at_ns = T0 + index * S
        signals += [*one.observe(flows(at_ns, first)), *one.observe(flows(at_ns, second, 1))]
        signals += one.tick(at_ns + S)
    # 33 of 2,220 segments; the second batch alone would be above the ratio.
    assert signals == []


def test_batches_of_one_interval_are_judged_together_and_none_twice() -> None:
    one = detector()
    signals: list[Signal] = []
    quiet: list[Row] = [(f"10.0.0.3:{5000 + i}", "10.0.0.9:80", 100, 0) for i in range(5)]
    for index in range(4):
        at_ns = T0 + index * S
        for part, rows in enumerate((BAD, quiet, BAD)):
            signals += one.observe(flows(at_ns, rows, part))
            signals += one.observe(flows(at_ns, rows, part))
        signals += one.tick(at_ns + S)
    # 10 of 700 segments: below the ratio, though two of three batches are above it.
    assert signals == []


def test_updates_are_limited() -> None:
    signals = run(detector(), [BAD] * 32)
    assert [signal.phase for signal in signals] == [Phase.RAISED, *[Phase.UPDATED] * 3]


def test_reading_again_raises_nothing_new() -> None:
    one = detector()
    assert run(one, [BAD]) == []
    assert run(one, [GOOD, BAD], first=-1) == []


def test_paths_are_bounded_and_counted() -> None:
    one = detector(paths_max=50)
    rows = [(f"10.0.{i // 250}.{i % 250}:4000", "10.9.0.9:80", 100, 50) for i in range(1000)]
    signals = run(one, [rows, rows])
    assert len(signals) == 50
    assert one.paths_ignored == 1900
    assert len(one.state()) == 50
    assert len(run(one, [[], [], []], first=2)) == 50
    assert one.state() == {}


def test_addresses() -> None:
    assert address("10.0.0.3:80") == "10.0.0.3"
    assert address("[fe80::1%eth0]:80") == "fe80::1%eth0"
    assert address("[::ffff:10.0.0.3]:80") == "10.0.0.3"


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 8),
            st.lists(
                st.tuples(st.integers(1, 3), st.integers(0, 500), st.integers(0, 100)), max_size=4
            ),
        ),
        max_size=30,
    )
)
def test_any_flows_at_any_time(intervals: list[tuple[int, list[tuple[int, int, int]]]]) -> None:
    one, active = detector(), set()
    for second, rows in intervals:
        batch = flows(
            T0 + second * S,
            [(f"10.0.0.{i}:1", "10.0.0.9:2", sent, again) for i, sent, again in rows],
        )
        for signal in [*one.observe(batch), *one.tick(batch.at_ns + S)]:
            if signal.phase is Phase.RAISED:
                assert signal.episode not in active
                active.add(signal.episode)
            else:
                assert signal.episode in active
            if signal.phase is Phase.CLEARED:
                active.remove(signal.episode)
