"""The consumer against a real broker: nothing lost, the unreadable put aside."""

from __future__ import annotations

import base64

import pytest
from confluent_kafka import Producer as KafkaProducer

from bus import topics
from bus.consumer import Consumer, Record, read_all
from bus.producer import Publisher, client_config
from bus.settings import KafkaSettings
from schemas.deadletter import DeadLetter
from schemas.identity import content_id
from schemas.registry import encode
from tests.bus.test_producer import flows, transition


def produce_raw(kafka: KafkaSettings, topic: str, *values: bytes | None) -> None:
    client = KafkaProducer(client_config(kafka, "raw"))
    for value in values:
        client.produce(topics.name_on_broker(kafka, topic), value, b"n1")
    assert client.flush(30) == 0


def consume(
    kafka: KafkaSettings, until: int, group: str = "g", commit: bool = True
) -> list[Record]:
    consumer = Consumer(kafka, group, ["telemetry.packet"])
    got: list[Record] = []

    def handle(records: list[Record]) -> None:
        got.extend(records)
        if not commit:
            raise InterruptedError

    try:
        consumer.run(handle, stopped=lambda: len(got) >= until)
    except InterruptedError:
        pass
    finally:
        consumer.close()
    return got


def test_what_is_not_committed_comes_again(kafka: KafkaSettings) -> None:
    topics.ensure(kafka)
    sent = [transition(i) for i in range(20)]
    Publisher(kafka, "t").publish(*sent)
    assert [r.event for r in consume(kafka, 20, commit=False)] == sent
    assert [r.event for r in consume(kafka, 20)] == sent
    Publisher(kafka, "t").publish(transition(20))
    assert [r.event for r in consume(kafka, 1)] == [transition(20)]


GOOD = encode(flows(1, rows=2))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\xff\xfe not json", "not JSON"),
        (b"[1,2]", "not an object"),
        (b'{"a":1}', "no schema named"),
        (GOOD.replace(b'"version":1', b'"version":99'), "has no version 99"),
        (GOOD.replace(b'"schema":"tcp.flows"', b'"schema":"no.such"'), "unknown schema"),
        (GOOD.replace(b'"rtt_us":[1,1]', b'"rtt_us":[1]'), "unequal length"),
        (GOOD.replace(b'"rtt_us":[1,1]', b'"rtt_us":[1,-1]'), "negative or over 64 bits"),
        (GOOD.replace(b'"rtt_us":[1,1]', b'"rtt_us":[1,"x"]'), "valid integer"),
        (b"x" * 5_000_000, "5000000 bytes"),
        (GOOD[:-1] + b',"pad":"' + b"x" * 5_000_000 + b'"}', "at most"),
        (None, "empty message"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_unreadable_is_put_aside_and_the_rest_goes_on(
    kafka: KafkaSettings, value: bytes | None, reason: str
) -> None:
    topics.ensure(kafka)
    produce_raw(kafka, "telemetry.packet", value, GOOD)
    assert [r.event for r in consume(kafka, 1)] == [flows(1, rows=2)]
    letters = [r.event for r in read_all(kafka, ["deadletter"], "test")]
    assert len(letters) == 1
    letter = letters[0]
    assert isinstance(letter, DeadLetter)
    assert reason in letter.reason
    assert letter.topic == "telemetry.packet"
    assert letter.offset == 0
    assert base64.b64decode(letter.key_base64) == b"n1"
    assert base64.b64decode(letter.original_base64) == (value or b"")


def test_a_deletion_on_a_compacted_topic_is_no_fault(kafka: KafkaSettings) -> None:
    topics.ensure(kafka)
    produce_raw(kafka, "inventory", None)
    [record] = read_all(kafka, ["inventory"], "test")
    assert (record.event, record.key) == (None, "n1")


def test_same_place_same_dead_letter(kafka: KafkaSettings) -> None:
    topics.ensure(kafka)
    produce_raw(kafka, "telemetry.packet", b"garbage", GOOD)
    consume(kafka, 1, commit=False)
    consume(kafka, 1)
    letters = [r.event for r in read_all(kafka, ["deadletter"], "test")]
    assert len(letters) == 2
    assert letters[0] is not None
    assert letters[1] is not None
    assert (
        letters[0].id
        == letters[1].id
        == content_id("deadletter", "g", "telemetry.packet", _partition(letters[0]), 0)
    )


def _partition(letter: object) -> int:
    assert isinstance(letter, DeadLetter)
    return letter.partition


def test_an_event_from_the_future_is_put_aside(kafka: KafkaSettings) -> None:
    """Whoever takes it for the newest would take all that follows for old."""
    topics.ensure(kafka)
    week_ns = 7 * 86_400 * 10**9
    ahead = transition(1).model_copy(update={"at_ns": transition(1).at_ns + week_ns})
    Publisher(kafka, "t").publish(ahead, transition(2))
    assert [r.event for r in consume(kafka, 1)] == [transition(2)]
    (letter,) = [r.event for r in read_all(kafka, ["deadletter"], "test")]
    assert isinstance(letter, DeadLetter)
    assert "7.0 days ahead of when it was sent" in letter.reason


def test_the_dead_letter_of_the_largest_message_fits_its_topic(kafka: KafkaSettings) -> None:
    topics.ensure(kafka)
    client = KafkaProducer(client_config(kafka, "raw"))
    name = topics.name_on_broker(kafka, "deadletter")
    client.produce(name, b"v" * (8 << 20), b"k" * (3 << 20))
    assert client.flush(30) == 0
    consumer = Consumer(kafka, "g", ["deadletter"])
    letters: list[Record] = []
    consumer.run(letters.extend, stopped=lambda: bool(letters))
    consumer.close()
    assert isinstance(letters[0].event, DeadLetter)
    assert letters[0].event.original_bytes == 8 << 20
    assert base64.b64decode(letters[0].event.key_base64) == b"k" * (16 << 10)
