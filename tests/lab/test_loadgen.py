"""Synthetic telemetry is what agents would send, and the same each time."""

from __future__ import annotations

from bus.settings import KafkaSettings
from bus.topics import ensure
from lab.latency import reading
from lab.loadgen import fill, tcp_flows
from schemas.registry import decode, encode

END_NS = 1_700_000_000_000_000_000


def test_batches_are_valid_and_the_same_each_time() -> None:
    batches = list(tcp_flows(nodes=3, intervals=4, rows=100, end_ns=END_NS))
    assert [encode(batch) for batch in batches] == [
        encode(batch) for batch in tcp_flows(nodes=3, intervals=4, rows=100, end_ns=END_NS)
    ]
    assert len({batch.id for batch in batches}) == 12
    assert {batch.node for batch in batches[:3]} == {"bench-000", "bench-001", "bench-002"}
    assert batches[-1].at_ns == END_NS
    for batch in batches:
        assert decode(encode(batch), "telemetry.packet") == batch
        assert len(batch.columns) == 100
        assert all(
            map(int.__le__, batch.columns.segments_retransmitted, batch.columns.segments_sent)
        )


def test_a_node_has_the_same_flows_in_every_interval_with_new_values() -> None:
    first, later = tcp_flows(nodes=1, intervals=2, rows=50, end_ns=END_NS)
    assert first.columns.local == later.columns.local
    assert first.columns.remote == later.columns.remote
    assert first.columns.rtt_us != later.columns.rtt_us


def test_about_one_row_in_a_hundred_has_retransmits() -> None:
    rows = [
        again
        for batch in tcp_flows(nodes=10, intervals=20, rows=100, end_ns=END_NS)
        for again in batch.columns.segments_retransmitted
    ]
    assert 0.005 < sum(map(bool, rows)) / len(rows) < 0.02


def test_fill_puts_all_on_the_topic(kafka: KafkaSettings) -> None:
    ensure(kafka)
    batches = list(tcp_flows(nodes=5, intervals=10, rows=20, end_ns=END_NS))
    assert fill(kafka, batches) == 50
    found = set()
    with reading(kafka, "telemetry.packet", from_start=True) as reader:
        for _, event in reader.events(within_s=60):
            found.add(event.id)
            if len(found) == 50:
                break
    assert found == {batch.id for batch in batches}
