"""From a stream of messages to outputs and remembered state, around a pure core.

A :class:`Core` is plain Python: events in, events out. The processor around it keeps this order, by
which a crash does no harm: outputs are acknowledged by Kafka, then what changed in memory is written
to the state topic and acknowledged, then the input is. What dies in between is read again on top of
the older state and says the same things under the same ids.

Work goes by the batch, so that a storm costs two round trips a batch and not two a message. Memory
of a partition is forgotten when it is revoked and read from its state topic before the first of its
messages is handled again. One lock keeps batches, ticks and rebalances apart.

Ticks carry the time now, or, where a backlog is being read, the time of the newest event: a detector
must not conclude from silence that nothing happened while the news is still in the queue.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from faust.types import TP
from prometheus_client import Counter, Gauge

from bus import log
from bus.consumer import dead_letter, readable
from bus.producer import Undelivered
from bus.settings import KafkaSettings
from bus.topics import name_in_contract, name_on_broker
from schemas.event import Batch, Event
from schemas.registry import Unreadable, encode, topic_of
from schemas.topics import TOPICS
from streams import state
from streams.transport import Chunk, ChunkStream

BATCH_MAX_MESSAGES = 200
_FAULTS_TOLD_MAX = 1000

_messages = Counter("evertick_stream_messages", "Messages processed", ["topic"])
_rows = Counter("evertick_stream_rows", "Rows of telemetry and single events processed", ["topic"])
_outputs = Counter("evertick_stream_outputs", "Messages sent", ["topic"])
_dead = Counter("evertick_stream_deadletters", "Messages put aside", ["topic"])
_too_large = Counter("evertick_stream_too_large", "Outputs too large for their topic", ["topic"])
_seconds = Counter(
    "evertick_stream_core_seconds", "Time in detectors or correlators", ["processor"]
)
_lag = Gauge("evertick_stream_lag_messages", "Messages not yet processed", ["topic", "partition"])

_log = log.get(__name__)


@dataclass(frozen=True, slots=True)
class Change:
    """Something to remember: JSON, or None for nothing any more."""

    partition: int
    key: str
    value: bytes | None


class Core(Protocol):
    """What a processor runs: plain data, no Kafka, no clock."""

    faults: list[str]
    """What failed in the last ``observe`` or ``tick``, in words; the processor empties it."""

    def observe(self, partition: int, event: Event) -> list[Event]:
        """Take in one event of a partition; returns what follows."""

    def tick(self, partition: int, now_ns: int) -> list[Event]:
        """What follows for a partition from time alone."""

    def changes(self) -> list[Change]:
        """What must be remembered since the last call."""

    def restore(self, partition: int, remembered: Mapping[str, bytes]) -> None:
        """Take up a partition with what was remembered of it."""

    def evict(self, partition: int) -> None:
        """Forget a partition; somebody else has it."""


Send = Callable[[str, bytes, bytes | None, int | None], Awaitable[Awaitable[Any]]]
"""Hand a message (topic on the broker, key, value, partition) to the producer; what it returns is
done once Kafka has acknowledged it."""


class Processor:
    """Runs a core over the partitions assigned to this worker."""

    def __init__(
        self, name: str, core: Core, sources: Iterable[str], kafka: KafkaSettings, send: Send
    ) -> None:
        self.name = name
        self.core = core
        self.state_topic = f"state.{name}"
        self.sources = frozenset(name_on_broker(kafka, source) for source in sources)
        self.done: dict[TP, int] = {}
        """For each topic and partition that moved here, the offset to go on from."""
        self.moved_s = time.monotonic()
        """When it last finished a batch."""
        self._kafka = kafka
        self._send = send
        self._lock = asyncio.Lock()
        self._held: set[int] = set()
        self._newest_ns: dict[int, int] = {}
        self._behind: set[int] = set()
        self._told: set[str] = set()

    async def run(self, stream: ChunkStream) -> None:
        """The agent's loop."""
        while True:
            try:
                chunks = await stream.take(BATCH_MAX_MESSAGES)
            except StopAsyncIteration:
                return
            await self.handle(chunks)
            stream.done(chunks)
            for chunk in chunks:
                self.done[chunk.tp] = chunk.records[-1].offset + 1
            self.moved_s = time.monotonic()

    async def handle(self, chunks: list[Chunk]) -> None:
        """Process messages up to the point where they may be acknowledged."""
        async with self._lock:
            await self._hold({chunk.tp.partition for chunk in chunks})
            outputs: list[Event] = []
            for chunk in chunks:
                outputs += self._observe(chunk)
            await self._commit(outputs)

    def _observe(self, chunk: Chunk) -> list[Event]:
        topic, partition = name_in_contract(self._kafka, chunk.tp.topic), chunk.tp.partition
        outputs: list[Event] = []
        rows, newest_ns, core_s = 0, self._newest_ns.get(partition, 0), 0.0
        for record in chunk.records:
            try:
                event = readable(record.value, topic, record.timestamp)
            except Unreadable as reason:
                outputs.append(self._put_aside(record, topic, str(reason)))
                continue
            rows += len(event.columns) if isinstance(event, Batch) else 1
            newest_ns = max(newest_ns, event.at_ns)
            began_s = time.perf_counter()
            outputs += self.core.observe(partition, event)
            core_s += time.perf_counter() - began_s
            if self.core.faults:
                outputs.append(self._put_aside(record, topic, self._faults()))
        self._newest_ns[partition] = newest_ns
        _messages.labels(topic).inc(len(chunk.records))
        _rows.labels(topic).inc(rows)
        _seconds.labels(self.name).inc(core_s)
        return outputs

    async def tick(self, now_ns: int) -> None:
        """Let time pass for the partitions held."""
        async with self._lock:
            outputs: list[Event] = []
            for partition in self._held:
                newest_ns = self._newest_ns.get(partition, now_ns)
                at_ns = min(now_ns, newest_ns) if partition in self._behind else now_ns
                outputs += self.core.tick(partition, at_ns)
            if self.core.faults:
                self._faults()
            await self._commit(outputs)

    async def assigned(self, partitions: set[int]) -> None:
        """Take up partitions without waiting for their first message, so that they tick."""
        async with self._lock:
            await self._hold(partitions)

    async def revoked(self) -> None:
        """Forget everything; what stays with this worker is read again, in case others had it."""
        async with self._lock:
            for partition in self._held:
                self.core.evict(partition)
            self._held.clear()
            self._newest_ns.clear()
            self._behind.clear()
            for tp in self.done:
                _lag.remove(name_in_contract(self._kafka, tp.topic), tp.partition)
            self.done.clear()

    def measure(self, ends: Mapping[TP, int], starts: Mapping[TP, int]) -> int:
        """Messages that wait, given the ends of the assigned partitions and where reading began."""
        waiting = 0
        self._behind.clear()
        for tp, end in ends.items():
            if tp.topic in self.sources:
                place = self.done.setdefault(tp, starts.get(tp, 0))
                lag = max(0, end - place)
                _lag.labels(name_in_contract(self._kafka, tp.topic), tp.partition).set(lag)
                waiting += lag
                if lag > BATCH_MAX_MESSAGES:
                    self._behind.add(tp.partition)
        return waiting

    async def _hold(self, partitions: set[int]) -> None:
        missing = partitions - self._held
        if not missing:
            return
        found = await asyncio.get_running_loop().run_in_executor(
            None, state.read, self._kafka, self.state_topic, missing
        )
        for partition in missing:
            self.core.restore(partition, found[partition])
        self._held |= missing
        if self.core.faults:
            self._faults()

    async def _commit(self, outputs: list[Event]) -> None:
        """Send outputs, wait; write what changed, wait."""
        if outputs:
            await self._sent([self._message(event) for event in outputs])
        changes = self.core.changes()
        if self.core.faults:
            self._faults()
        if changes:
            topic = name_on_broker(self._kafka, self.state_topic)
            await self._sent(
                [(topic, one.key.encode(), one.value, one.partition) for one in changes]
            )

    async def _sent(
        self, messages: list[tuple[str, bytes, bytes | None, int | None] | None]
    ) -> None:
        acknowledged = [await self._send(*message) for message in messages if message is not None]
        try:
            for waiting in acknowledged:
                await waiting
        except Exception as error:
            raise Undelivered(f"{self.name}: Kafka did not take an output: {error}") from error

    def _message(self, event: Event) -> tuple[str, bytes, bytes, None] | None:
        topic = topic_of(event)
        value = encode(event)
        if len(value) > TOPICS[topic].max_message_bytes - 1024:
            # Sending it again for ever would stop everything behind it.
            _too_large.labels(topic).inc()
            _log.error("an output is too large for its topic", topic=topic, bytes=len(value))
            return None
        _outputs.labels(topic).inc()
        return name_on_broker(self._kafka, topic), event.key().encode(), value, None

    def _put_aside(self, record: Any, topic: str, reason: str) -> Event:
        _dead.labels(topic).inc()
        return dead_letter(
            f"streams.{self.name}",
            topic,
            record.partition,
            record.offset,
            record.key or b"",
            record.value or b"",
            reason,
        )

    def _faults(self) -> str:
        """What failed in the core, told in the log once for each distinct fault."""
        faults, self.core.faults = self.core.faults, []
        for fault in faults:
            if fault not in self._told and len(self._told) < _FAULTS_TOLD_MAX:
                self._told.add(fault)
                _log.error("a fault in the core", processor=self.name, fault=fault)
        return "; ".join(faults)
