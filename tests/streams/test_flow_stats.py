"""tcp_retransmits on what eBPF tells: the same verdicts as on what sock_diag tells."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.packet import TcpFlowStats, TcpFlowStatsColumns
from schemas.signal import Phase
from streams.flows import TcpRetransmits, TcpRetransmitsSettings
from tests.streams.test_flows import BAD, GOOD, T0, Row, S, flows


def stats(at_ns: int, rows: list[Row]) -> TcpFlowStats:
    """The same flows as eBPF tells them."""
    plain = flows(at_ns, rows)
    columns: dict[str, list[object]] = {}
    for name, field in TcpFlowStatsColumns.model_fields.items():
        empty = {list[str]: "", list[bool]: True, list[list[int]]: []}.get(field.annotation, 0)  # type: ignore[call-overload]
        columns[name] = getattr(plain.columns, name, [empty] * len(rows))
    return TcpFlowStats(
        id=plain.id,
        at_ns=plain.at_ns,
        clock_error_ns=plain.clock_error_ns,
        node=plain.node,
        from_ns=plain.from_ns,
        columns=TcpFlowStatsColumns(**columns),  # type: ignore[arg-type]
    )


def detector() -> TcpRetransmits:
    return TcpRetransmits("node-3", "default", TcpRetransmitsSettings())


def test_it_raises_and_clears() -> None:
    one, phases = detector(), []
    for index, rows in enumerate([BAD, BAD, GOOD, GOOD, GOOD]):
        at_ns = T0 + index * S
        phases += [s.phase for s in (*one.observe(stats(at_ns, rows)), *one.tick(at_ns + S))]
    assert phases == [Phase.RAISED, Phase.CLEARED]


_ROW = st.tuples(
    st.sampled_from(["10.0.0.3:1", "10.0.0.3:2"]),
    st.sampled_from(["10.0.0.9:80", "10.0.1.9:80"]),
    st.integers(0, 300),
    st.integers(0, 20),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(_ROW, max_size=5), max_size=8), st.lists(st.booleans(), min_size=8))
def test_whichever_way_flows_are_told_the_verdicts_are_the_same(
    intervals: list[list[Row]], by_ebpf: list[bool]
) -> None:
    plain, mixed = detector(), detector()
    for index, rows in enumerate(intervals):
        at_ns = T0 + index * S
        told = (stats if by_ebpf[index] else flows)(at_ns, rows)
        assert list(plain.observe(flows(at_ns, rows))) == list(mixed.observe(told))
        assert list(plain.tick(at_ns + S)) == list(mixed.tick(at_ns + S))
