"""Reading events: decoded, unreadable ones put aside, offsets committed only after the effect.

A reader polls for records, does what it does with them, and commits. If it dies in between, the same
records come again; so every effect must be one that may be had twice. A message that cannot be
decoded goes to ``deadletter`` with the reason before anything behind it is committed.

So does one from the future: much of what reads it goes by the newest time it has seen, and would
take everything after it for old. A day ahead both of when it was sent and of our own clock is too
far, so that no one clock alone condemns a message.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition
from prometheus_client import Counter

from bus import log
from bus.clock import Clock
from bus.producer import Publisher, Undelivered
from bus.settings import KafkaSettings
from bus.topics import name_in_contract, name_on_broker
from schemas.deadletter import ORIGINAL_MAX_BYTES, DeadLetter
from schemas.event import Event
from schemas.identity import content_id
from schemas.registry import Unreadable, decode
from schemas.topics import TOPICS

_KEY_MAX_BYTES = 16 << 10
_AHEAD_MAX_NS = 86_400 * 1_000_000_000

_read = Counter("evertick_consumer_read", "Messages read", ["topic"])
_dead = Counter("evertick_consumer_deadletters", "Messages that could not be read", ["topic"])

_AGAIN_S = 0.2
_log = log.get(__name__)


@dataclass(frozen=True, slots=True)
class Record:
    """One message as read. ``event`` is None for a deletion on a compacted topic."""

    topic: str
    partition: int
    offset: int
    key: str
    event: Event | None


def dead_letter(
    reader: str, topic: str, partition: int, offset: int, key: bytes, value: bytes, reason: str
) -> DeadLetter:
    """The dead letter for a message, under an id of its place, so that it is the same if read twice."""
    now = Clock().read()
    return DeadLetter(
        id=content_id("deadletter", reader, topic, partition, offset),
        at_ns=now.ns,
        clock_error_ns=now.error_ns,
        topic=topic,
        partition=partition,
        offset=offset,
        reader=reader,
        reason=reason[:2048],
        # A key may be as large as its message, and a dead letter must fit its topic.
        key_base64=base64.b64encode(key[:_KEY_MAX_BYTES]).decode(),
        original_base64=base64.b64encode(value[:ORIGINAL_MAX_BYTES]).decode(),
        original_bytes=len(value),
    )


def client_config(
    kafka: KafkaSettings, group: str, start: str
) -> dict[str, str | int | float | bool]:
    """Settings of a consumer whose offsets we commit ourselves."""
    return {
        **kafka.client(group),
        "group.id": kafka.prefix + group,
        "auto.offset.reset": start,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 1000,
        "fetch.wait.max.ms": 500,
        "fetch.message.max.bytes": 12 << 20,
        "queued.max.messages.kbytes": 32 << 10,
        # The default of a second is longer than it takes us to empty a full queue.
        "fetch.queue.backoff.ms": 10,
        "allow.auto.create.topics": False,
    }


class Consumer:
    """A member of a consumer group."""

    def __init__(
        self,
        kafka: KafkaSettings,
        group: str,
        topics: Iterable[str],
        start: str = "earliest",
        on_assign: Callable[[KafkaConsumer, list[TopicPartition]], None] | None = None,
        on_revoke: Callable[[KafkaConsumer, list[TopicPartition]], None] | None = None,
    ) -> None:
        """Join a group.

        Args:
            kafka: where the broker is.
            group: name of the group, without the prefix.
            topics: what to read, names without the prefix.
            start: where a group without committed offsets starts: ``earliest`` or ``latest``.
            on_assign: called with the partitions that are now ours, and where they start; it must
                call ``assign``.
            on_revoke: called with partitions that are no longer ours.
        """
        self._kafka = kafka
        self._group = group
        self._publisher = Publisher(kafka, f"{group}-deadletters")
        self.client = KafkaConsumer(client_config(kafka, group, start))
        callbacks = {
            name: call
            for name, call in (
                ("on_assign", on_assign),
                ("on_revoke", on_revoke),
                ("on_lost", on_revoke),
            )
            if call is not None
        }
        self.client.subscribe([name_on_broker(kafka, topic) for topic in topics], **callbacks)

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """The next records, decoded; empty after ``timeout_s`` without any.

        Raises:
            Undelivered: a dead letter could not be sent. Nothing was committed: seek or restart.
        """
        return self.read(take(self.client, max_records, timeout_s))

    def read(self, messages: Iterable[Message]) -> list[Record]:
        """Decode raw messages; those that cannot be read are in ``deadletter`` on return."""
        records: list[Record] = []
        dead: list[DeadLetter] = []
        for message in messages:
            error = message.error()
            if error is not None:
                _complain(self._group, error)
                continue
            record = to_record(self._kafka, self._group, message)
            if isinstance(record, Record):
                records.append(record)
            else:
                dead.append(record)
        if dead:
            self._publisher.publish(*dead)
        return records

    def put_aside(self, *refused: tuple[Message, str]) -> None:
        """Send messages that this reader cannot use, each with the reason, to ``deadletter``; they
        are there on return.

        Raises:
            Undelivered: one could not be sent.
        """
        letters = [_letter(self._kafka, self._group, message, why) for message, why in refused]
        self._publisher.publish(*letters)

    def commit(self, offsets: dict[tuple[str, int], int]) -> None:
        """Commit, for each (topic, partition), the offset to go on from. Waits for the broker.

        A commit that fails is tried again with the next one: the records come twice at the worst.
        """
        if not offsets:
            return
        try:
            self.client.commit(
                offsets=[
                    TopicPartition(name_on_broker(self._kafka, topic), partition, offset)
                    for (topic, partition), offset in offsets.items()
                ],
                asynchronous=False,
            )
        except KafkaException as error:
            _log.warning("offsets not committed", group=self._group, reason=error.args[0].str())

    def run(
        self,
        handle: Callable[[list[Record]], None],
        stopped: Callable[[], bool],
        max_records: int = 500,
        moved: Callable[[], None] = lambda: None,
    ) -> None:
        """Poll, handle, commit, until stopped. ``moved`` is called after every round.

        An exception of ``handle`` ends the loop with nothing of that round committed.
        """
        while not stopped():
            messages = take(self.client, max_records, 0.2)
            records = self.read(messages)
            if records:
                handle(records)
            self.commit(next_offsets(self._kafka, messages))
            moved()

    def close(self) -> None:
        """Leave the group."""
        self.client.close()


def to_record(kafka: KafkaSettings, reader: str, message: Message) -> Record | DeadLetter:
    """Decode one message, or say why not."""
    broker_topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert broker_topic is not None and partition is not None and offset is not None
    topic = name_in_contract(kafka, broker_topic)
    _read.labels(topic).inc()
    key, value = (message.key() or b"").decode(errors="replace"), message.value()
    spec = TOPICS.get(topic)
    if value is None and spec is not None and spec.compacted:
        return Record(topic, partition, offset, key, None)
    try:
        event = readable(value, topic, message.timestamp()[1])
    except Unreadable as reason:
        return _letter(kafka, reader, message, str(reason))
    return Record(topic, partition, offset, key, event)


def readable(value: bytes | None, topic: str, sent_ms: int) -> Event:
    """Decode what was read from a topic; ``sent_ms`` is its time stamp on the broker.

    Raises:
        Unreadable: as :func:`schemas.registry.decode`, or the event is from the future.
    """
    event = decode(value, topic)
    ahead_ns = event.at_ns - max(sent_ms * 1_000_000, time.time_ns())
    if ahead_ns > _AHEAD_MAX_NS:
        raise Unreadable(
            f"at_ns {event.at_ns} is {ahead_ns / 86_400e9:,.1f} days ahead of when it was sent; "
            "is the clock of its producer right?"
        )
    return event


def _letter(kafka: KafkaSettings, reader: str, message: Message, reason: str) -> DeadLetter:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None and partition is not None and offset is not None
    topic = name_in_contract(kafka, topic)
    _dead.labels(topic).inc()
    key, value = message.key() or b"", message.value() or b""
    return dead_letter(reader, topic, partition, offset, key, value, reason)


def next_offsets(kafka: KafkaSettings, messages: Iterable[Message]) -> dict[tuple[str, int], int]:
    """For each (topic, partition) among the messages, the offset behind the last of them."""
    offsets: dict[tuple[str, int], int] = {}
    for message in messages:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if message.error() is None and topic and partition is not None and offset is not None:
            offsets[name_in_contract(kafka, topic), partition] = offset + 1
    return offsets


def read_all(
    kafka: KafkaSettings, topics: Iterable[str], reader: str, timeout_s: float = 60.0
) -> Iterable[Record]:
    """Everything that some topics hold now, from their beginning: the input of a fold.

    Within a partition in order; unreadable messages are passed over, whoever consumes the topic
    puts them aside.

    Raises:
        Undelivered: the end was not reached in time.
    """
    client = KafkaConsumer({**client_config(kafka, f"{reader}-replay", "earliest")})
    deadline = time.monotonic() + timeout_s
    try:
        ends: dict[tuple[str, int], int] = {}
        places = []
        for topic in topics:
            for place, end in bounds(client, name_on_broker(kafka, topic), deadline):
                if end > place.offset:
                    ends[place.topic, place.partition] = end
                    places.append(place)
        if not places:
            return
        client.assign(places)
        while ends:
            if time.monotonic() > deadline:
                raise Undelivered(f"{len(ends)} partitions were not read to their end in time")
            for message in take(client, 1000, 0.2):
                if message.error() is not None:
                    continue
                record = to_record(kafka, reader, message)
                if isinstance(record, Record):
                    yield record
            for place in client.position([TopicPartition(*where) for where in ends]):
                if place.offset >= ends[place.topic, place.partition]:
                    del ends[place.topic, place.partition]
    finally:
        client.close()


def take(client: KafkaConsumer, most: int, timeout_s: float) -> list[Message]:
    """What has arrived, as soon as anything has; ``consume`` itself waits for the full number."""
    first = client.poll(timeout_s)
    return [] if first is None else [first, *client.consume(most - 1, 0)]


def bounds(
    client: KafkaConsumer, topic: str, deadline_s: float
) -> list[tuple[TopicPartition, int]]:
    """For each partition of a topic (named as on the broker) where it begins, and its end.

    A broker that has just started, or a topic that has just been made, has no leaders for a moment:
    that is waited out.

    Raises:
        Undelivered: no answer until the deadline (on the monotonic clock).
    """
    while True:
        left_s = max(0.1, deadline_s - time.monotonic())
        try:
            found = client.list_topics(topic, timeout=left_s).topics[topic]
            if found.error is not None:
                raise KafkaException(found.error)
            answer = []
            for partition in found.partitions:
                place = TopicPartition(topic, partition)
                low, high = client.get_watermark_offsets(place, left_s)
                answer.append((TopicPartition(topic, partition, low), high))
            return answer
        except KafkaException as error:
            if time.monotonic() > deadline_s:
                raise Undelivered(f"{topic}: {error.args[0].str()}") from None
            time.sleep(_AGAIN_S)


def _complain(group: str, error: KafkaError) -> None:
    """Transient errors are librdkafka's to mend; they are worth a line, no more."""
    if error.code() != KafkaError._PARTITION_EOF:
        _log.warning("Kafka", group=group, reason=error.str())
