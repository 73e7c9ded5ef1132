"""Follows a run while it lasts: the job's iterations, and what Evertick says on its topics.

A thread of its own does it, so that whoever breaks things and whoever draws the screen can take
their time. It reads with a consumer in no group, from the beginning of every topic.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer

from bus.consumer import Record, bounds, client_config, take, to_record
from bus.settings import KafkaSettings
from bus.topics import name_on_broker
from lab.workloads.runner import Iteration, Job
from schemas.action import Action, Outcome
from schemas.event import Event
from schemas.incident import Incident
from schemas.path import FlowStall, PathTransition, ReflexOutcome, RouteMove
from schemas.signal import Signal

TOPICS = ("telemetry.packet", "signals", "incidents", "actions", "outcomes")
_WANTED = (
    Action,
    FlowStall,
    Incident,
    Outcome,
    PathTransition,
    ReflexOutcome,
    RouteMove,
    Signal,
)
_LOOK_S = 0.25
_BOUNDS_S = 20.0
_AT_ONCE = 1000


class Watch:
    """A context manager; what it has seen may be read at any time, from any thread."""

    def __init__(self, kafka: KafkaSettings | None) -> None:
        """
        Args:
            kafka: where Evertick publishes; None where there is no Evertick.
        """
        self.job: Job | None = None
        """The job to follow, once it runs."""
        self._kafka = kafka
        self._events: list[Event] = []
        self._iterations: tuple[int, Sequence[Iteration]] = (0, ())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="watch", daemon=True)
        self._failed: Exception | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def events(self) -> Sequence[Event]:
        """Those of Evertick's so far that tell of paths, signals, incidents and what was done."""
        return self._events[:]

    @property
    def iterations(self) -> tuple[int, Sequence[Iteration]]:
        """Of the job so far, and when they were read, nanoseconds UTC."""
        return self._iterations

    def check(self) -> None:
        """See that it still follows.

        Raises:
            Exception: what ended it.
        """
        if self._failed is not None:
            raise self._failed

    def _follow(self) -> None:
        try:
            client = None if self._kafka is None else self._consumer(self._kafka)
            try:
                while not self._stop.is_set():
                    if client is None or self._kafka is None:
                        self._stop.wait(_LOOK_S)
                    else:
                        self._read(client, self._kafka)
                    if (job := self.job) is not None:
                        read_ns = time.time_ns()
                        self._iterations = read_ns, job.iterations()
            finally:
                if client is not None:
                    client.close()
        except Exception as error:  # noqa: BLE001 - told by check() in the main thread
            self._failed = error

    def _consumer(self, kafka: KafkaSettings) -> Consumer:
        client = Consumer(client_config(kafka, "lab-watch", "earliest"))
        deadline_s = time.monotonic() + _BOUNDS_S
        client.assign(
            [
                place
                for topic in TOPICS
                for place, _ in bounds(client, name_on_broker(kafka, topic), deadline_s)
            ]
        )
        return client

    def _read(self, client: Consumer, kafka: KafkaSettings) -> None:
        for message in take(client, _AT_ONCE, _LOOK_S):
            if message.error() is not None:
                continue
            record = to_record(kafka, "lab-watch", message)
            if isinstance(record, Record) and isinstance(record.event, _WANTED):
                self._events.append(record.event)
