"""What was really broken, and when: the truth that Evertick's words are measured against.

Faults say it when they begin and end. It travels on a topic of the lab's own, so that a recording of a
run holds both, and is no part of the contract: ``FaultTruth.model_validate_json`` reads it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from confluent_kafka import Producer
from pydantic import Field

from bus import topics
from bus.producer import client_config
from bus.settings import KafkaSettings
from schemas.event import Event, Nanoseconds
from schemas.identity import Subject, content_id
from schemas.registry import encode
from schemas.topics import TopicSpec

TOPIC = TopicSpec("lab.truth", "subject", "faults that the lab makes", partitions=1)
_FLUSH_S = 10.0


class FaultTruth(Event):
    """A fault of the lab began or ended."""

    schema_name: Literal["lab.fault"] = Field(default="lab.fault", alias="schema")
    version: Literal[1] = 1

    fault: str
    """Its kind: ``blackhole``."""
    subject: Subject
    """What is broken: a cable or a switch or a host."""
    phase: Literal["begin", "end"]
    began_ns: Nanoseconds
    details: dict[str, int | float | str] = {}
    """How it was asked for, such as ``percent`` or ``direction``, and what came of it."""

    def key(self) -> str:
        return self.subject


@dataclass(frozen=True, slots=True)
class Span:
    """One fault from its beginning to its end, nanoseconds UTC."""

    fault: str
    subject: str
    began_ns: int
    ended_ns: int | None


class Truth:
    """Remembers faults, and hands each on as an event."""

    def __init__(self, tell: Callable[[bytes, bytes], None] = lambda key, value: None) -> None:
        """
        Args:
            tell: sends key and value to :data:`TOPIC`.
        """
        self.spans: list[Span] = []
        self._tell = tell

    def began(self, fault: str, subject: str, details: Mapping[str, int | float | str]) -> int:
        """A fault began now; returns the time, which names it."""
        now_ns = time.time_ns()
        self.spans.append(Span(fault, subject, now_ns, None))
        self._say(fault, subject, "begin", now_ns, now_ns, details)
        return now_ns

    def ended(
        self, fault: str, subject: str, began_ns: int, details: Mapping[str, int | float | str]
    ) -> None:
        """The fault that began then ended now."""
        now_ns = time.time_ns()
        open_ = Span(fault, subject, began_ns, None)
        self.spans[self.spans.index(open_)] = Span(fault, subject, began_ns, now_ns)
        self._say(fault, subject, "end", began_ns, now_ns, details)

    def _say(
        self,
        fault: str,
        subject: str,
        phase: Literal["begin", "end"],
        began_ns: int,
        at_ns: int,
        details: Mapping[str, int | float | str],
    ) -> None:
        event = FaultTruth(
            id=content_id("lab", fault, subject, phase, began_ns),
            at_ns=at_ns,
            clock_error_ns=0,
            fault=fault,
            subject=subject,
            phase=phase,
            began_ns=began_ns,
            details=dict(details),
        )
        self._tell(event.key().encode(), encode(event))


@contextmanager
def published(kafka: KafkaSettings) -> Iterator[Truth]:
    """A truth that is also told on its topic, which is made where it is missing.

    Raises:
        SettingsError: the broker cannot be reached or refuses.
    """
    topics.ensure(kafka, specs=[TOPIC])
    name = topics.name_on_broker(kafka, TOPIC.name)
    producer = Producer(client_config(kafka, "lab-truth"))

    def tell(key: bytes, value: bytes) -> None:
        producer.produce(name, value, key)
        producer.poll(0)

    try:
        yield Truth(tell)
    finally:
        producer.flush(_FLUSH_S)
