"""The Faust app: which topics go to which processor, and the settings under which Faust runs.

Two agents, one a processor: ``telemetry.* -> detectors -> signals -> correlators -> incidents``.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable
from typing import Any

import faust
from aiokafka.helpers import create_ssl_context

from bus import log
from bus.consumer import Record
from bus.health import Health
from bus.settings import KafkaSettings, Settings
from bus.topics import name_on_broker
from schemas.inventory import InventoryItem
from streams import incidents as incidents_module
from streams import state
from streams.detecting import NAME as DETECTORS
from streams.detecting import Fleet
from streams.incidents import Zones
from streams.inventory import InventoryReader
from streams.processor import Processor
from streams.transport import (
    CHUNK_MAX_MESSAGES,
    CHUNKS_WAITING_MAX,
    ChunkStream,
    ChunkTransport,
)

GROUP = "streams"
_STALLED_S = 30.0
_TICK_S = 1.0
_WATCH_S = 2.0
# A dead letter of the largest message there may be.
_REQUEST_MAX_BYTES = 13 << 20

_log = log.get(__name__)


class StreamApp(faust.App):
    """The app with its two processors."""

    def __init__(self, settings: Settings, fleet: Fleet, zones: Zones, health: Health) -> None:
        """
        Raises:
            SettingsError: topics differ in their number of partitions, or Kafka refuses.
        """
        kafka = settings.kafka
        super().__init__(
            kafka.prefix + GROUP,
            broker=[f"kafka://{server.strip()}" for server in kafka.bootstrap.split(",")],
            Stream=ChunkStream,
            stream_wait_empty=True,
            stream_buffer_maxsize=CHUNKS_WAITING_MAX,
            topic_disable_leader=True,
            topic_allow_declare=False,
            web_enabled=False,
            consumer_auto_offset_reset="earliest",
            consumer_max_fetch_size=_REQUEST_MAX_BYTES,
            broker_check_crcs=False,
            broker_max_poll_records=CHUNK_MAX_MESSAGES,
            broker_commit_interval=1.0,
            broker_session_timeout=6.0,
            broker_heartbeat_interval=1.0,
            broker_request_timeout=30.0,
            producer_acks=-1,
            producer_linger=0.0,
            producer_compression_type="zstd",
            producer_max_request_size=_REQUEST_MAX_BYTES,
            producer_request_timeout=30.0,
            worker_redirect_stdouts=False,
            datadir=settings.data_dir / "faust",
            **_security(kafka),
        )
        self.transport = ChunkTransport(self.conf.broker_consumer, self)
        self._kafka = kafka
        self._health = health
        self._inventory_known = asyncio.Event()
        self._inventory: InventoryReader | None = None
        self._zones = zones
        self._assigned = False
        sources = {DETECTORS: fleet.topics(), incidents_module.NAME: list(incidents_module.SOURCES)}
        self.processors = [
            Processor(DETECTORS, fleet, sources[DETECTORS], kafka, self._send),
            Processor(incidents_module.NAME, zones, incidents_module.SOURCES, kafka, self._send),
        ]
        for processor in self.processors:
            topics = sources[processor.name]
            if topics:
                partitions = state.ensure(kafka, processor.state_topic, topics)
                self._wire(processor, topics, partitions)
        self.on_partitions_assigned.connect(self._take_up)
        self.on_partitions_revoked.connect(self._give_up)
        self.task(self._ticking)
        self.task(self._watching)

    async def on_start(self) -> None:
        """Begin to read the inventory."""
        await super().on_start()
        loop = asyncio.get_running_loop()
        self._inventory = InventoryReader(
            self._kafka,
            lambda records: _post(loop, self._learn, records),
            lambda: _post(loop, self._inventory_known.set),
        )

    async def on_stop(self) -> None:
        """End with the inventory."""
        await super().on_stop()
        if self._inventory is not None:
            self._inventory.close()

    def _wire(self, processor: Processor, topics: list[str], partitions: int) -> None:
        """Make a processor the agent of its topics. Values are bytes; we decode them ourselves."""
        source = self.topic(
            *(name_on_broker(self._kafka, topic) for topic in topics),
            key_type=bytes,
            value_type=bytes,
            key_serializer="raw",
            value_serializer="raw",
            allow_empty=True,
            partitions=partitions,
        )

        async def run(stream: ChunkStream) -> None:
            await self._inventory_known.wait()
            try:
                await processor.run(stream)
            except asyncio.CancelledError:
                if not self.should_stop:
                    raise
            except Exception as error:
                # Faust would start the agent again without the events it held: rather end, and
                # read them again from the last commit.
                await self.crash(error)
                raise

        self.agent(source, name=processor.name)(run)

    async def _send(
        self, topic: str, key: bytes, value: bytes | None, partition: int | None
    ) -> Awaitable[Any]:
        waiting: Awaitable[Any] = await self.producer.send(topic, key, value, partition, None, None)
        return waiting

    def _learn(self, records: list[Record]) -> None:
        for record in records:
            if record.event is None or isinstance(record.event, InventoryItem):
                self._zones.inventory(record.key, record.event)

    async def _take_up(self, _: Any, assigned: set[Any], **kwargs: Any) -> None:
        for processor in self.processors:
            await processor.assigned(
                {tp.partition for tp in assigned if tp.topic in processor.sources}
            )
        self._assigned = True

    async def _give_up(self, _: Any, revoked: set[Any], **kwargs: Any) -> None:
        self._assigned = False
        for processor in self.processors:
            await processor.revoked()

    async def _ticking(self) -> None:
        await self._inventory_known.wait()
        while not self.should_stop:
            await asyncio.sleep(_TICK_S)
            for processor in self.processors:
                await processor.tick(time.time_ns())

    async def _watching(self) -> None:
        """Say that things move as long as they do. The ends are asked of the broker, through the
        consumer's own thread: one that has died in silence answers nothing."""
        while not self.should_stop:
            await asyncio.sleep(_WATCH_S)
            self._health.progress("event loop", _STALLED_S)
            if not self._assigned or self.rebalancing:
                continue
            try:
                await asyncio.wait_for(self._measure(), _STALLED_S)
            except Exception as error:  # noqa: BLE001 - no progress is reported, which is the point
                _log.warning("cannot ask Kafka how far behind we are", reason=str(error))

    async def _measure(self) -> None:
        consumer: Any = self.consumer
        places = consumer.assignment()
        ends = dict(await consumer.highwaters(*places)) if places else {}
        starts = {tp: consumer._committed_offset[tp] for tp in places}
        if unknown := [tp for tp, start in starts.items() if start is None]:
            starts.update(await consumer.earliest_offsets(*unknown))
        now_s = time.monotonic()
        for processor in self.processors:
            waiting = processor.measure(ends, starts)
            if not waiting or now_s - processor.moved_s < _STALLED_S:
                self._health.progress(processor.name, _STALLED_S)


def _post(loop: asyncio.AbstractEventLoop, call: Any, *arguments: Any) -> None:
    """Call in the loop, from a thread; a loop that is closed needs nothing any more."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(call, *arguments)


def _security(kafka: KafkaSettings) -> dict[str, Any]:
    """The settings of Kafka as Faust names them."""
    context: ssl.SSLContext | None = None
    if kafka.security_protocol.endswith("SSL"):
        context = create_ssl_context(cafile=kafka.ssl_ca_file or None)
    if kafka.security_protocol.startswith("SASL"):
        return {
            "broker_credentials": faust.SASLCredentials(
                username=kafka.sasl_username,
                password=kafka.sasl_password.get_secret_value(),
                mechanism=kafka.sasl_mechanism,
                ssl_context=context,
            )
        }
    return {"broker_credentials": faust.SSLCredentials(context)} if context else {}
