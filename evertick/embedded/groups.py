"""What the broker knows of a consumer group: who is in it, and whether it gets on.

This is the view from outside: a worker that has stopped consuming in silence may well answer on its
own ``/healthz``, but its committed offsets stand still while there is something to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from bus.settings import KafkaSettings

_TIMEOUT_S = 4.0
STALLED_S = 30.0
PARTITION_STALLED_S = 120.0
"""One partition may wait for its turn behind the backlog of others."""

Place = tuple[str, int]
"""Topic and partition, as on the broker."""


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group at one moment."""

    stable: bool
    members: frozenset[str]
    assigned: frozenset[Place]


class Groups:
    """Asks the broker. Calls block for up to four seconds: not for an event loop.

    All methods raise ``confluent_kafka.KafkaException`` where the broker does not answer.
    """

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka
        self._admin = AdminClient(kafka.client("evertick-up"))

    def answers(self) -> bool:
        """Whether the broker answers a metadata request."""
        return bool(self._admin.list_topics(timeout=_TIMEOUT_S).brokers)

    def describe(self, group: str) -> Group:
        """Who is in a group (name without the prefix)."""
        name = self._kafka.prefix + group
        asked = self._admin.describe_consumer_groups([name], request_timeout=_TIMEOUT_S)
        found = asked[name].result(_TIMEOUT_S)
        return Group(
            found.state == ConsumerGroupState.STABLE,
            frozenset(member.member_id for member in found.members),
            frozenset(
                (place.topic, place.partition)
                for member in found.members
                for place in member.assignment.topic_partitions
            ),
        )

    def offsets(self, group: str, places: frozenset[Place]) -> dict[Place, tuple[int, int]]:
        """For each place, where the group goes on, and the end of the partition."""
        if not places:
            return {}
        partitions = [TopicPartition(*place) for place in sorted(places)]
        ask = ConsumerGroupTopicPartitions(self._kafka.prefix + group, partitions)
        [answer] = self._admin.list_consumer_group_offsets(
            [ask], request_timeout=_TIMEOUT_S
        ).values()
        committed = {
            (tp.topic, tp.partition): tp.offset for tp in answer.result(_TIMEOUT_S).topic_partitions
        }
        ends = self._listed(places, OffsetSpec.latest())
        fresh = frozenset(place for place in places if committed.get(place, -1) < 0)
        starts = self._listed(fresh, OffsetSpec.earliest()) if fresh else {}
        return {
            place: (starts[place] if place in starts else committed[place], ends[place])
            for place in places
        }

    def _listed(self, places: frozenset[Place], spec: OffsetSpec) -> dict[Place, int]:
        asked = self._admin.list_offsets(
            {TopicPartition(*place): spec for place in places}, request_timeout=_TIMEOUT_S
        )
        return {
            (tp.topic, tp.partition): future.result(_TIMEOUT_S).offset
            for tp, future in asked.items()
        }


@dataclass(slots=True)
class Progress:
    """Whether a group gets on, from what is seen of it now and then. Pure."""

    _seen: dict[Place, tuple[int, float]] = field(default_factory=dict)
    """For each place, where the group was and since when (seconds)."""
    _moved_s: float | None = None
    _joined_s: float | None = None

    def observe(
        self, now_s: float, members: int, offsets: Mapping[Place, tuple[int, int]]
    ) -> str | None:
        """Take in a look at the group.

        Args:
            now_s: the time, monotonic.
            members: how many members the group has.
            offsets: for each of its places, where it goes on and where the partition ends.

        Returns:
            What stands still, in words; None while all is well.
        """
        if members or self._joined_s is None:
            self._joined_s = now_s
        if not members:
            gone_s = now_s - self._joined_s
            return f"has left its group for {gone_s:.0f} s" if gone_s >= STALLED_S else None
        moved = self._moved_s is None
        waiting: dict[Place, float] = {}
        seen: dict[Place, tuple[int, float]] = {}
        for place, (at, end) in offsets.items():
            before = self._seen.get(place)
            if before is None or before[0] != at or at >= end:
                moved = moved or (before is not None and before[0] != at)
                seen[place] = (at, now_s)
            else:
                seen[place] = before
                waiting[place] = now_s - before[1]
        self._seen = seen
        if moved or not waiting:
            self._moved_s = now_s
        if not waiting:
            return None
        worst = max(waiting, key=lambda place: waiting[place])
        still_s = min(waiting[worst], now_s - (self._moved_s or now_s))
        if still_s >= STALLED_S or waiting[worst] >= PARTITION_STALLED_S:
            lag = sum(end - at for at, end in (offsets[place] for place in waiting))
            return (
                f"commits nothing for {max(still_s, waiting[worst]):.0f} s with {lag} messages "
                f"to read ({worst[0]}/{worst[1]})"
            )
        return None
