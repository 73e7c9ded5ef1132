"""Names of topics on the broker, and their creation.

Topics are always made here and never by the broker on first use: such a topic has one partition,
and a Faust worker that expects four loops on the mismatch.
"""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.error import KafkaError

from bus.settings import KafkaSettings, SettingsError
from schemas.topics import TOPICS, TopicSpec

_TIMEOUT_S = 15.0
_SEGMENT_MAX_BYTES = 64 << 20


def name_on_broker(kafka: KafkaSettings, topic: str) -> str:
    """A topic's name with the prefix."""
    return kafka.prefix + topic


def name_in_contract(kafka: KafkaSettings, topic: str) -> str:
    """A topic's name without the prefix."""
    return topic.removeprefix(kafka.prefix)


def storage(spec: TopicSpec, budget_bytes: int | None) -> dict[str, str]:
    """A topic's settings on the broker.

    Args:
        spec: the topic.
        budget_bytes: what all topics together may take on disk; None leaves them bounded by time.
    """
    config = {
        "cleanup.policy": "compact" if spec.compacted else "delete",
        "max.message.bytes": str(spec.max_message_bytes),
    }
    if not spec.compacted:
        config["retention.ms"] = str(spec.retention_ms)
    if budget_bytes is not None:
        # Only closed segments are deleted, so a partition may hold its bound and one segment more.
        partition_bytes = int(budget_bytes * spec.retention_share / spec.partitions)
        # A message larger than a segment would be refused.
        segment_bytes = max(spec.max_message_bytes, min(_SEGMENT_MAX_BYTES, partition_bytes // 4))
        config["segment.bytes"] = str(segment_bytes)
        if not spec.compacted:
            config["retention.bytes"] = str(max(segment_bytes, partition_bytes - segment_bytes))
    return config


def ensure(
    kafka: KafkaSettings,
    budget_bytes: int | None = None,
    specs: Iterable[TopicSpec] = TOPICS.values(),
) -> list[str]:
    """Create the topics that are missing.

    Args:
        kafka: the broker.
        budget_bytes: see :func:`storage`.
        specs: which; those of the contract.

    Returns:
        Names of those that were created, as on the broker.

    Raises:
        SettingsError: the broker cannot be reached or refuses.
    """
    admin = AdminClient(kafka.client("evertick-topics"))
    try:
        there = admin.list_topics(timeout=_TIMEOUT_S).topics
    except KafkaException as error:
        raise SettingsError(
            f"Kafka at {kafka.bootstrap} does not answer ({error.args[0].str()}); "
            "is it running, and is kafka.bootstrap right?"
        ) from None
    missing = [spec for spec in specs if name_on_broker(kafka, spec.name) not in there]
    futures = (
        admin.create_topics(
            [
                NewTopic(
                    name_on_broker(kafka, spec.name),
                    num_partitions=spec.partitions,
                    replication_factor=kafka.replication,
                    config=storage(spec, budget_bytes),
                )
                for spec in missing
            ],
            operation_timeout=_TIMEOUT_S,
        )
        if missing
        else {}
    )
    for topic, future in futures.items():
        try:
            future.result(_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise SettingsError(f"cannot create topic {topic}: {error.args[0].str()}") from None
    return list(futures)
