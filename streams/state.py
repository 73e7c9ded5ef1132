"""What detectors and correlators must remember: compacted topics of our own, read at assignment.

Each kind of processor has one. A record lies in the partition that its input came from, so whoever
is assigned an input partition reads the state partition of the same number and knows all it needs.
Keys are ours, values JSON; a null value says that there is nothing to remember any more.

Why not Faust's tables: their changelog goes by the table's key or by the event at hand, while ours
must follow the input's partition also from a timer; they are restored by a procedure of several
round trips of which their users report hangs; and its write would not wait for our outputs. This is
one read of a small topic.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from confluent_kafka.error import KafkaError

from bus.consumer import client_config
from bus.producer import Undelivered
from bus.settings import KafkaSettings, SettingsError
from bus.topics import name_on_broker

_TIMEOUT_S = 15.0
_CONFIG = {
    "cleanup.policy": "compact",
    # Small segments and an eager cleaner: the topic stays near the size of what is remembered.
    "segment.bytes": str(4 << 20),
    "segment.ms": "3600000",
    "min.cleanable.dirty.ratio": "0.2",
    "delete.retention.ms": "3600000",
}

Remembered = dict[str, bytes]


def ensure(kafka: KafkaSettings, topic: str, sources: Collection[str]) -> int:
    """Make the state topic, with as many partitions as its sources have; returns how many.

    Raises:
        SettingsError: the sources differ in their number of partitions, or Kafka refuses.
    """
    admin = AdminClient(kafka.client("evertick-state"))
    try:
        there = admin.list_topics(timeout=_TIMEOUT_S).topics
    except KafkaException as error:
        raise SettingsError(
            f"Kafka at {kafka.bootstrap} does not answer ({error.args[0].str()})"
        ) from None
    counts = {
        source: len(there[name].partitions)
        for source in sources
        if (name := name_on_broker(kafka, source)) in there
    }
    if len(counts) < len(sources) or len(set(counts.values())) != 1:
        raise SettingsError(
            f"topics must be there with one number of partitions, but have {counts}: "
            "a node's telemetry is brought together by its partition; make them equal"
        )
    partitions = next(iter(counts.values()))
    name = name_on_broker(kafka, topic)
    if name not in there:
        futures = admin.create_topics(
            [NewTopic(name, partitions, kafka.replication, config=_CONFIG)]
        )
    elif len(there[name].partitions) < partitions:
        futures = admin.create_partitions([NewPartitions(name, partitions)])
    else:
        return partitions
    try:
        futures[name].result(_TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise SettingsError(f"cannot create topic {name}: {error.args[0].str()}") from None
    return partitions


def read(
    kafka: KafkaSettings, topic: str, partitions: Collection[int], timeout_s: float = 60.0
) -> dict[int, Remembered]:
    """All that is remembered in some partitions, by partition and key.

    Raises:
        Undelivered: the end was not reached in time.
    """
    name = name_on_broker(kafka, topic)
    found: dict[int, Remembered] = {partition: {} for partition in partitions}
    client = Consumer({**client_config(kafka, f"{topic}-replay", "earliest")})
    try:
        ends: dict[int, int] = {}
        for partition in partitions:
            low, high = client.get_watermark_offsets(TopicPartition(name, partition), timeout_s)
            if high > low:
                ends[partition] = high
        client.assign([TopicPartition(name, partition, 0) for partition in ends])
        deadline = time.monotonic() + timeout_s
        while ends:
            if time.monotonic() > deadline:
                raise Undelivered(f"{name}: {len(ends)} partitions not read to their end in time")
            for message in client.consume(1000, 0.02):
                if message.error() is not None:
                    continue
                key = (message.key() or b"").decode(errors="replace")
                value = message.value()
                if value is None:
                    found[message.partition()].pop(key, None)
                else:
                    found[message.partition()][key] = value
            # The end is told by position, not by offset: compaction may have taken the last ones.
            for place in client.position([TopicPartition(name, partition) for partition in ends]):
                if place.offset >= ends[place.partition]:
                    del ends[place.partition]
    except KafkaException as error:
        raise Undelivered(f"{name}: {error.args[0].str()}") from None
    finally:
        client.close()
    return found
