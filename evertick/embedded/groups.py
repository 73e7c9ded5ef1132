"""What the broker knows of a consumer group: who is in it, and whether it gets on.

This is the view from outside: a worker that has stopped consuming in silence may well answer on its
own ``/healthz``, but its committed offsets stand still while there is something to read.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from bus.settings import KafkaSettings

_TIMEOUT_S = 4.0
_C = TypeVar("_C")
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
    """Asks the broker. Calls block for up to four seconds a request: not for an event loop.

    Only librdkafka's older, synchronous requests are used: its admin requests were seen to abort the
    process (an assertion on ``eonce->refcnt``) when the broker is killed while one is under way, and
    a supervisor that dies takes everything with it.

    All methods raise ``confluent_kafka.KafkaException`` where the broker does not answer.
    """

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka
        self._admin = _kept(AdminClient(kafka.client("evertick-up")))
        self._readers: dict[str, Consumer] = {}

    def answers(self) -> bool:
        """Whether the broker answers a metadata request."""
        return bool(self._admin.list_topics(timeout=_TIMEOUT_S).brokers)

    def describe(self, group: str) -> Group:
        """Who is in a group (name without the prefix)."""
        name = self._kafka.prefix + group
        for found in self._admin.list_groups(name, timeout=_TIMEOUT_S):
            if found.id == name:
                return Group(
                    found.state == "Stable",
                    frozenset(member.id for member in found.members),
                    frozenset(
                        place for member in found.members for place in assigned(member.assignment)
                    ),
                )
        return Group(False, frozenset(), frozenset())

    def offsets(self, group: str, places: frozenset[Place]) -> dict[Place, tuple[int, int]]:
        """For each place, where the group goes on, and the end of the partition."""
        reader = self._reader(group)
        found: dict[Place, tuple[int, int]] = {}
        partitions = [TopicPartition(*place) for place in sorted(places)]
        for place in reader.committed(partitions, timeout=_TIMEOUT_S) if partitions else []:
            low, high = reader.get_watermark_offsets(place, timeout=_TIMEOUT_S)
            start = place.offset if place.offset >= 0 else low
            found[place.topic, place.partition] = (start, high)
        return found

    def _reader(self, group: str) -> Consumer:
        """A client that may ask for the offsets of a group; it never joins."""
        if group not in self._readers:
            self._readers[group] = _kept(
                Consumer(
                    {
                        **self._kafka.client("evertick-up"),
                        "group.id": self._kafka.prefix + group,
                        "enable.auto.commit": False,
                    }
                )
            )
        return self._readers[group]


def _kept(client: _C) -> _C:
    """A client that is never destroyed: librdkafka was seen to wait for ever in its destructor for
    the thread of a broker that had been killed, and the process with it."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
    return client


def assigned(assignment: bytes) -> list[Place]:
    """What a member's assignment holds, in Kafka's consumer protocol (``ConsumerProtocolAssignment``:
    version, then an array of a topic and an array of its partitions). Empty where there is none."""
    if len(assignment) < 6:
        return []
    (topics,) = struct.unpack_from(">i", assignment, 2)
    at = 6
    places = []
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", assignment, at)
        topic = assignment[at + 2 : at + 2 + length].decode()
        at += 2 + length
        (count,) = struct.unpack_from(">i", assignment, at)
        partitions = struct.unpack_from(f">{count}i", assignment, at + 4)
        at += 4 + 4 * count
        places += [(topic, partition) for partition in partitions]
    return places


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
        moved = False
        waiting: dict[Place, float] = {}
        seen: dict[Place, tuple[int, float]] = {}
        for place, (at, end) in offsets.items():
            before = self._seen.get(place)
            if before is None or before[0] != at or at >= end:
                moved |= before is not None and before[0] != at
                seen[place] = (at, now_s)
            else:
                seen[place] = before
                waiting[place] = now_s - before[1]
        self._seen = seen
        if moved or not waiting or self._moved_s is None:
            self._moved_s = now_s
        if not waiting:
            return None
        worst = max(waiting, key=lambda place: waiting[place])
        still_s = min(waiting[worst], now_s - self._moved_s)
        if still_s >= STALLED_S or waiting[worst] >= PARTITION_STALLED_S:
            lag = sum(end - at for at, end in (offsets[place] for place in waiting))
            return (
                f"commits nothing for {max(still_s, waiting[worst]):.0f} s with {lag} messages "
                f"to read ({worst[0]}/{worst[1]})"
            )
        return None
