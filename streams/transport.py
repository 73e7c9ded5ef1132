"""Faust's Kafka transport and stream, by the fetch instead of by the message.

As it comes, Faust spends some 65 µs on every message: two asyncio tasks made to watch one queue,
sensors, a decoder, a wake-up of the agent, an entry in a list of acknowledged offsets. Telemetry
comes by the thousand, so here what one fetch brought of one partition, a :class:`Chunk`, travels as
one: put into the agent's queue, processed, acknowledged. Nothing of Faust is patched: these are
subclasses of its transport, consumer, conductor and stream, put in through ``App.transport`` and
the ``Stream`` setting. Groups, assignment, the commit itself, flow control and rebalancing stay
Faust's.

Partitions whose agent is behind are left out of the next fetch, so that one agent's backlog does
not hold up another's input.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from time import monotonic
from typing import Any, ClassVar

from aiokafka.structs import ConsumerRecord
from faust import Stream
from faust.transport.conductor import Conductor
from faust.transport.drivers import aiokafka
from faust.types import TP
from mode.utils.futures import notify

CHUNKS_WAITING_MAX = 8
"""Per agent; it is Faust's ``stream_buffer_maxsize``."""
CHUNK_MAX_MESSAGES = 200
"""What one fetch may bring; it is Faust's ``broker_max_poll_records``."""
_FETCH_WAIT_S = 1.0
_FULL_WAIT_S = 0.01


class Chunk:
    """Consecutive messages of one partition."""

    # ``acked`` and ``refcount`` are what Faust looks at when it waits for work in progress.
    __slots__ = ("__weakref__", "acked", "generation_id", "records", "refcount", "tp")

    def __init__(self, tp: TP, records: list[ConsumerRecord], generation_id: int) -> None:
        self.tp = tp
        self.records = records
        self.generation_id = generation_id
        self.acked = False
        self.refcount = 1


class ChunkConductor(Conductor):
    """Knows which agent's queue a partition goes to."""

    def queues(self, tp: TP) -> list[Any]:
        """The queues of the agents that read a partition."""
        return [channel.queue for channel in self._tp_index.get(tp, ())]


class ChunkConsumer(aiokafka.Consumer):
    """Fetches, hands over and acknowledges by the chunk."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._processed: dict[TP, int] = {}
        super().__init__(*args, **kwargs)

    async def _drain_messages(self, fetcher: Any) -> None:
        """Faust's fetch loop, with one watch for a rebalance a fetch."""
        try:
            while not (self.should_stop or fetcher.should_stop):
                # A fetch that is served from memory lets nobody else run.
                await asyncio.sleep(0)
                if not self.flow_active:
                    await self.wait(self.can_resume_flow)
                    continue
                wanted = self._get_active_partitions()
                ready = {tp for tp in wanted if self._has_room(tp)}
                if not ready:
                    await self.sleep(_FULL_WAIT_S)
                    continue
                wait_s = _FETCH_WAIT_S if len(ready) == len(wanted) else _FULL_WAIT_S
                records = await self._getmany(active_partitions=ready, timeout=wait_s)
                if records and not self.should_stop:
                    if self.flow_active:
                        await self.wait_first(self._deliver(records), self.suspend_flow.wait())
                    else:
                        # They came too late for this assignment: whoever has it next reads them.
                        await self.perform_seek()
        except self.consumer_stopped_errors:
            if not self.app.should_stop:
                raise
        except asyncio.CancelledError:
            if not self.app.should_stop:
                raise

    async def _deliver(self, records: Mapping[TP, list[ConsumerRecord]]) -> None:
        generation = self.app.consumer_generation_id
        for tp, found in records.items():
            next_offset = self._read_offset[tp] or 0
            new = [record for record in found if record.offset >= next_offset]
            if not new:
                continue
            for queue in self.app.topics.queues(tp):
                await queue.put(Chunk(tp, new, generation))
            self._read_offset[tp] = new[-1].offset + 1

    def _has_room(self, tp: TP) -> bool:
        return not any(queue.full() for queue in self.app.topics.queues(tp))

    def begin(self, chunk: Chunk) -> None:
        """Note that a chunk is being processed: a rebalance waits until it is done."""
        self.unacked.add(chunk)
        self.app.monitor.stream_inbound_time[chunk.tp] = monotonic()

    def done(self, chunk: Chunk) -> None:
        """Acknowledge a chunk: its offset goes out with the next commit."""
        chunk.acked = True
        self.unacked.discard(chunk)
        self._processed[chunk.tp] = chunk.records[-1].offset + 1
        notify(self._waiting_for_ack)

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Wait for work in progress and commit it, then forget it."""
        await super().on_partitions_revoked(revoked)
        self._processed.clear()

    def _filter_tps_with_pending_acks(self, topics: Any = None) -> Iterator[TP]:
        return iter(list(self._processed))

    def _filter_committable_offsets(self, tps: Iterable[TP]) -> dict[TP, int]:
        """Chunks of a partition are processed in order, so the newest stands for all before it."""
        return {
            tp: offset
            for tp in tps
            if (offset := self._processed[tp]) > (self._committed_offset[tp] or 0)
        }


class ChunkTransport(aiokafka.Transport):
    """The ``kafka://`` transport with these parts."""

    Consumer: ClassVar[Any] = ChunkConsumer
    Conductor: ClassVar[Any] = ChunkConductor


class ChunkStream(Stream):
    """A stream whose agent takes chunks and acknowledges them itself."""

    async def take(self, most_messages: int) -> list[Chunk]:
        """Wait for a chunk; return it with others that wait already, up to a number of messages.

        Chunks of an assignment that has ended meanwhile are left out and not acknowledged: whoever
        has the partition now reads them.

        Raises:
            StopAsyncIteration: the stream ends.
        """
        await self.maybe_start()
        queue, app = self.channel.queue, self.app
        chunks: list[Chunk] = []
        while not chunks:
            chunks = [await queue.get()]
            messages = len(chunks[0].records)
            while messages < most_messages and not queue.empty():
                chunks.append(queue.get_nowait())
                messages += len(chunks[-1].records)
            if app.flow_control.is_active():
                now = app.consumer_generation_id
                chunks = [chunk for chunk in chunks if chunk.generation_id == now]
            else:
                chunks = []
        for chunk in chunks:
            app.consumer.begin(chunk)
        return chunks

    def done(self, chunks: Iterable[Chunk]) -> None:
        """Acknowledge what was taken."""
        for chunk in chunks:
            self.app.consumer.done(chunk)
