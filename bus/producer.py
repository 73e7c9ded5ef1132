"""Sending events: idempotent, compressed, in order, with a disk behind it.

An occurrence is written to the spool before it is handed to librdkafka and deleted when Kafka has
acknowledged it, so neither a broker that is away nor the death of this process loses it. A sample
goes straight to librdkafka; only once too much is unacknowledged does it wait in the spool, in
bounded space. Messages leave in the order in which they were sent, and librdkafka retries for ever,
so a broker's absence reorders nothing.

What follows for readers: after a crash a message may arrive twice, under the same id.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as KafkaProducer
from prometheus_client import Counter, Gauge

from bus import log
from bus.settings import KafkaSettings
from bus.spool import Spool
from bus.topics import name_on_broker
from schemas.event import Batch, Event
from schemas.registry import encode, topic_of

_IN_FLIGHT_MAX_MESSAGES = 1000
_IN_FLIGHT_MAX_BYTES = 4 << 20
_PUMP_AT_ONCE = 100

_sent = Counter("evertick_producer_sent", "Messages acknowledged by Kafka", ["topic"])
_refused = Counter("evertick_producer_refused", "Messages that Kafka refused for good", ["topic"])
_spooled = Gauge("evertick_spool_bytes", "Bytes of messages that wait on disk")

_log = log.get(__name__)


class Undelivered(Exception):
    """Kafka did not acknowledge in time, or refused."""


def client_config(kafka: KafkaSettings, client_id: str) -> dict[str, Any]:
    """Settings of an idempotent, compressed producer."""
    return {
        **kafka.client(client_id),
        "enable.idempotence": True,
        "acks": "all",
        "compression.type": "zstd",
        "linger.ms": 0,
        # Java's partitioner, so that Faust finds a key on the same partition as we do.
        "partitioner": "murmur2_random",
        "message.max.bytes": 12 << 20,
        "statistics.interval.ms": 0,
    }


class Producer:
    """Sends without waiting, for a node agent. Safe for use from several threads."""

    def __init__(self, kafka: KafkaSettings, client_id: str, spool: Spool) -> None:
        self._kafka = kafka
        self._spool = spool
        self._client = KafkaProducer({**client_config(kafka, client_id), "message.timeout.ms": 0})
        self._lock = threading.Lock()
        self._in_flight_messages = 0
        self._in_flight_bytes = 0
        self._arrived: deque[int] = deque()
        # Places in the spool: the newest row, and the newest that librdkafka has been given.
        self._last_seq = spool.last()
        self._given_seq = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)
        self._thread.start()

    def send(self, event: Event) -> None:
        """Send an event: at once where that is possible, else as soon as Kafka takes it."""
        topic = topic_of(event)
        key, value = event.key().encode(), encode(event)
        durable = not isinstance(event, Batch)
        with self._lock:
            waiting = self._given_seq < self._last_seq
            if not durable and not waiting and self._has_room():
                self._give(topic, key, value, event.at_ns, None)
                return
            seq = self._spool.append(topic, key, value, event.at_ns, durable)
            self._last_seq = seq
            if durable and not waiting and self._has_room():
                self._give(topic, key, value, event.at_ns, seq)
                self._given_seq = seq
        _spooled.set(self._spool.message_bytes)

    def flush(self, timeout_s: float) -> int:
        """Wait until all is acknowledged; returns the number of messages that were not in time."""
        deadline = threading.Event()
        timer = threading.Timer(timeout_s, deadline.set)
        timer.start()
        try:
            while (unsent := self._unacknowledged()) and not deadline.wait(0.01):
                pass
        finally:
            timer.cancel()
        return unsent

    def close(self, timeout_s: float = 2.0) -> None:
        """Send what can be sent in time; the rest stays on disk for the next start."""
        self.flush(timeout_s)
        self._stop.set()
        self._thread.join()
        # In-flight samples are called back with an error by the purge, and go to the spool.
        self._client.purge()
        self._client.flush(1.0)
        self._forget_arrived()
        self._spool.close()

    def _unacknowledged(self) -> int:
        with self._lock:
            return self._in_flight_messages + (self._given_seq < self._last_seq)

    def _has_room(self) -> bool:
        return (
            self._in_flight_messages < _IN_FLIGHT_MAX_MESSAGES
            and self._in_flight_bytes < _IN_FLIGHT_MAX_BYTES
        )

    def _give(self, topic: str, key: bytes, value: bytes, at_ns: int, seq: int | None) -> None:
        """Hand one message to librdkafka; the lock is held."""

        def arrived(error: KafkaError | None, _: Any) -> None:
            with self._lock:
                self._in_flight_messages -= 1
                self._in_flight_bytes -= len(value)
            if error is None:
                _sent.labels(topic).inc()
            elif error.code() in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
                if seq is None:
                    self._spool.append(topic, key, value, at_ns, durable=False)
                return
            else:
                _refused.labels(topic).inc()
                _log.error("Kafka refused a message", topic=topic, reason=error.str())
            if seq is not None:
                self._arrived.append(seq)

        self._client.produce(name_on_broker(self._kafka, topic), value, key, on_delivery=arrived)
        self._in_flight_messages += 1
        self._in_flight_bytes += len(value)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._client.poll(0.2)
            self._forget_arrived()
            self._pump()

    def _forget_arrived(self) -> None:
        places = [self._arrived.popleft() for _ in range(len(self._arrived))]
        if places:
            self._spool.delete(places)
            _spooled.set(self._spool.message_bytes)

    def _pump(self) -> None:
        """Give librdkafka what waits in the spool, as far as there is room."""
        while True:
            with self._lock:
                if self._given_seq >= self._last_seq or not self._has_room():
                    return
                rows = self._spool.after(self._given_seq, _PUMP_AT_ONCE)
                if not rows:
                    self._given_seq = self._last_seq
                    return
                for row in rows:
                    if not self._has_room():
                        break
                    self._give(row.topic, row.key, row.value, row.at_ns, row.seq)
                    self._given_seq = row.seq


class Publisher:
    """Sends and waits until Kafka has it, for consumers that commit only after the effect."""

    def __init__(self, kafka: KafkaSettings, client_id: str, timeout_s: float = 30.0) -> None:
        self._kafka = kafka
        self._timeout_s = timeout_s
        self._client = KafkaProducer(
            {**client_config(kafka, client_id), "message.timeout.ms": int(timeout_s * 1000)}
        )

    def publish(self, *events: Event) -> None:
        """Send events and wait until all are acknowledged.

        Raises:
            Undelivered: one was not, in time; send them all again, their ids make that harmless.
        """
        failures: list[str] = []

        def arrived(error: KafkaError | None, _: Any) -> None:
            if error is not None:
                failures.append(error.str())

        for event in events:
            topic = name_on_broker(self._kafka, topic_of(event))
            try:
                self._client.produce(
                    topic, encode(event), event.key().encode(), on_delivery=arrived
                )
            except (BufferError, KafkaException) as error:
                raise Undelivered(str(error)) from None
        if self._client.flush(self._timeout_s + 1) or failures:
            raise Undelivered(failures[0] if failures else "Kafka did not answer in time")
