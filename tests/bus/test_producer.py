"""The producer against a real broker that goes away and comes back."""

from __future__ import annotations

import time
from pathlib import Path

from bus import topics
from bus.consumer import read_all
from bus.producer import Producer, Publisher
from bus.settings import KafkaSettings
from bus.spool import Spool
from schemas.agent import TelemetryDropped
from schemas.event import Event
from schemas.identity import content_id, nic, node
from schemas.packet import LinkTransition, TcpFlowColumns, TcpFlows
from tests.conftest import KafkaServer, eventually

NOW_NS = time.time_ns()


def transition(i: int) -> LinkTransition:
    return LinkTransition(
        id=content_id("transition", i),
        node="n1",
        at_ns=NOW_NS + i,
        clock_error_ns=1,
        subject=nic("n1", "eth0"),
        carrier=bool(i % 2),
        admin_up=True,
        present=True,
        physical=True,
        since_ns=NOW_NS + i - 1,
        carrier_losses=i,
    )


def flows(i: int, rows: int = 100) -> TcpFlows:
    ones = [1] * rows
    return TcpFlows(
        id=content_id("flows", i),
        node="n1",
        at_ns=NOW_NS + i,
        from_ns=NOW_NS + i - 1,
        clock_error_ns=1,
        columns=TcpFlowColumns(
            local=["10.0.0.1:1"] * rows,
            remote=["10.0.0.2:2"] * rows,
            rtt_us=ones,
            cwnd_segments=ones,
            segments_sent=ones,
            segments_retransmitted=ones,
            bytes_sent=ones,
            bytes_received=ones,
            delivery_rate_bytes_per_s=ones,
        ),
    )


def arrived(kafka: KafkaSettings) -> list[Event]:
    return [
        record.event
        for record in read_all(kafka, ["telemetry.packet"], "test")
        if record.event is not None
    ]


def test_sends_in_order(kafka: KafkaSettings, tmp_path: Path) -> None:
    topics.ensure(kafka)
    producer = Producer(kafka, "test", Spool(tmp_path / "s.db", 1 << 20))
    sent: list[Event] = []
    for i in range(200):
        sent += [transition(i), flows(i, rows=1)]
    for event in sent:
        producer.send(event)
    assert producer.flush(30) == 0
    producer.close()
    assert arrived(kafka) == sent


def test_no_occurrence_is_lost_while_kafka_is_away(own_kafka: KafkaServer, tmp_path: Path) -> None:
    kafka = KafkaSettings(bootstrap=own_kafka.bootstrap)
    topics.ensure(kafka)
    spool = Spool(tmp_path / "s.db", 2 << 20)
    producer = Producer(kafka, "test", spool)
    producer.send(transition(0))
    assert producer.flush(30) == 0
    own_kafka.kill()
    for i in range(1, 3000):
        producer.send(flows(i))
        if i % 10 == 0:
            producer.send(transition(i))
    assert spool.message_bytes <= 2 << 20
    own_kafka.start()
    assert producer.flush(60) == 0
    dropped = spool.take_dropped()
    eventually(lambda: len(spool) == 0, what="the spool to empty")
    producer.close()
    events = arrived(kafka)
    assert [e for e in events if isinstance(e, LinkTransition)] == [
        transition(i) for i in range(0, 3000, 10)
    ]
    batches = [e for e in events if isinstance(e, TcpFlows)]
    assert dropped is not None
    assert len(batches) + dropped.messages == 2999
    assert [b.at_ns for b in batches] == sorted(b.at_ns for b in batches)


def test_what_was_not_sent_leaves_at_the_next_start(own_kafka: KafkaServer, tmp_path: Path) -> None:
    kafka = KafkaSettings(bootstrap=own_kafka.bootstrap)
    topics.ensure(kafka)
    own_kafka.kill()
    producer = Producer(kafka, "test", Spool(tmp_path / "s.db", 1 << 20))
    sent: list[Event] = [transition(0), flows(1), transition(2)]
    for event in sent:
        producer.send(event)
    producer.close(timeout_s=0.2)
    own_kafka.start()
    producer = Producer(kafka, "test", Spool(tmp_path / "s.db", 1 << 20))
    assert producer.flush(30) == 0
    producer.close()
    events = arrived(kafka)
    assert {event.id for event in events} == {event.id for event in sent}
    assert [e for e in events if isinstance(e, LinkTransition)] == [sent[0], sent[2]]


def test_publish_waits_for_the_broker(kafka: KafkaSettings) -> None:
    topics.ensure(kafka)
    event = TelemetryDropped(
        id=content_id("d"),
        node="n1",
        at_ns=2,
        clock_error_ns=0,
        subject=node("n1"),
        messages=1,
        message_bytes=1,
        from_ns=1,
    )
    Publisher(kafka, "test").publish(event, event)
    assert arrived(kafka) == [event, event]
