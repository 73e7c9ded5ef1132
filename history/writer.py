"""From every topic into ClickHouse, in large blocks, nothing twice.

ClickHouse drops a block whose deduplication token it has seen. For that a block that is written
again after a crash must be *the same block*, so its bounds must outlive the process. They are kept
where the offsets are: before a block is inserted, the offset it starts at is committed once more with
the offset it ends at as metadata; after the insert the end is committed. A writer that finds such an
intent at its start reads exactly those offsets and inserts them under the same token::

    commit(from, "to=END")  →  INSERT … token "topic/partition/from-END/table"  →  commit(END)

Blocks are per topic and partition, so that this also holds when partitions move to another writer.
A block is written in a thread while the next one is read: one in flight, no more. When ClickHouse is
away the writer waits and Kafka keeps what comes. When partitions move meanwhile, what was in flight
counts for nothing here: whoever reads the partition now finds the intent and the server the token.

A block that ClickHouse refuses for what is in it is halved until the message at fault is alone, which
goes to ``deadletter`` with ClickHouse's reason. So does an event that is older than what is kept: a
few of them, far apart, would make as many partitions, to be deleted at once.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from clickhouse_connect.driver.exceptions import ClickHouseError
from confluent_kafka import KafkaException, Message, TopicPartition
from prometheus_client import Counter, Histogram
from pydantic import Field

from bus import health, log, topics
from bus.clock import Clock
from bus.consumer import Consumer, take
from bus.producer import Undelivered
from bus.settings import Section, Settings, section
from history.client import Unreachable, connect, first_line
from history.insert import Away, Inserter, Refused
from history.migrate import migrate
from history.retention import Retention
from history.tables import Block, Blocks
from schemas.event import Batch, Event
from schemas.inventory import InventoryItem
from schemas.registry import decode, encode
from schemas.topics import TOPICS

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

GROUP = "history"
_INTENT = re.compile(r"to=(\d+)")
_POLL_MESSAGES = 500
_RETRY_MAX_S = 10.0
_PATIENCE_S = 5.0
_OVERFULL = 2
_RETRY_S = 0.5
_DAY_NS = 86_400 * 1_000_000_000

_rows = Counter("evertick_history_rows", "Rows written", ["table"])
_insert_s = Histogram("evertick_history_insert_seconds", "Time of one insert", ["table"])
_log = log.get(__name__)

Place = tuple[str, int]
"""Topic (without prefix) and partition."""


class HistorySettings(Section):
    """Settings of the history (table ``history``)."""

    block_rows: Annotated[int, Field(ge=1, le=1_000_000)] = 250_000
    """Rows at which a block is written at once."""
    flush_s: Annotated[float, Field(ge=0.05, le=60)] = 1.0
    """Seconds after which a smaller block is written."""
    samples_days: Annotated[int, Field(ge=1)] = 14
    """Days that samples are kept."""
    events_days: Annotated[int, Field(ge=1)] = 730
    """Days that occurrences, signals, incidents, actions and outcomes are kept."""
    max_bytes: Annotated[int, Field(ge=0)] = 0
    """Bound on the tables' size on disk; the oldest samples go first. 0 for none."""


class Pending:
    """What was read of one partition and not yet written."""

    def __init__(self, start: int, intent: int | None, config: HistorySettings) -> None:
        self._config = config
        self.start = start
        """Negative until the first message tells."""
        self.end = start
        self.intent = intent
        """End of a block that an earlier writer may have written already."""
        self.since_s = time.monotonic()
        self.blocks = Blocks()
        self.read: list[Message] = []
        """What the blocks are made of."""

    def add(self, messages: list[Message], consumer: Consumer, clock: Clock) -> list[Message]:
        """Take in messages up to the intent's end; returns those beyond it."""
        beyond: list[Message] = []
        if self.intent is not None:
            beyond = [message for message in messages if (message.offset() or 0) >= self.intent]
            messages = messages[: len(messages) - len(beyond)]
        if self.end == self.start:
            self.since_s = time.monotonic()
        if messages and self.start < 0:
            self.start = messages[0].offset() or 0
        by_offset = {message.offset(): message for message in messages}
        refused: list[tuple[Message, str]] = []
        for record in consumer.read(messages):
            message = by_offset[record.offset]
            if outlived := _outlived(record.event, message.timestamp()[1], self._config):
                refused.append((message, outlived))
                continue
            self.read.append(message)
            _fill(self.blocks, record.event, message.value() or b"", message, clock)
        if refused:
            consumer.put_aside(*refused)
        if messages:
            self.end = (messages[-1].offset() or 0) + 1
        if beyond:
            self.end = self.intent or self.end
        return beyond


@dataclass(frozen=True, slots=True)
class Flight:
    """A block on its way into ClickHouse."""

    stored: Future[bool]
    """Whether it is there."""
    place: Place
    end: int
    moves: int
    """Of the writer, when it was sent."""


class Writer:
    """Consumes every topic and writes it."""

    def __init__(self, settings: Settings, config: HistorySettings, client: Client) -> None:
        self._kafka = settings.kafka
        self._config = config
        self._inserter = Inserter(client)
        self._clock = Clock()
        self._pending: dict[Place, Pending] = {}
        self._thread = ThreadPoolExecutor(1, "insert")
        self._flight: Flight | None = None
        self._moves = 0
        """How often partitions were given or taken; what was in flight before is no longer ours."""
        self._consumer = Consumer(
            settings.kafka, GROUP, TOPICS, on_assign=self._assigned, on_revoke=self._revoked
        )

    def step(self, stopped: threading.Event) -> None:
        """Read for a moment and write what is due."""
        if self._flight is not None and self._flight.stored.done():
            self._land()
        messages = take(self._consumer.client, _POLL_MESSAGES, 0.1)
        for place, group in _by_place(messages, self._kafka.prefix).items():
            self._take(place, group, stopped)
        now_s = time.monotonic()
        for place, pending in sorted(self._pending.items(), key=lambda item: item[1].since_s):
            if pending.intent is not None:
                if self._position(place) >= pending.intent:
                    pending.end = pending.intent
                    self._write(place, pending, stopped)
            elif self._due(pending, now_s):
                self._write(place, pending, stopped)

    def close(self, stopped: threading.Event) -> None:
        """Write what is left, unless ClickHouse is away, and leave the group."""
        for place, pending in list(self._pending.items()):
            if pending.end > pending.start and pending.intent is None:
                self._write(place, pending, stopped)
        self._land()
        self._thread.shutdown()
        self._consumer.close()

    def _due(self, pending: Pending, now_s: float) -> bool:
        """A block is full or old, and the way is free; one that is overfull waits for it."""
        rows, full = pending.blocks.rows, self._config.block_rows
        if self._flight is not None:
            return rows >= full * _OVERFULL
        return pending.end > pending.start and (
            rows >= full or now_s - pending.since_s >= self._config.flush_s
        )

    def _take(self, place: Place, messages: list[Message], stopped: threading.Event) -> None:
        pending = self._pending.get(place)
        while messages and pending is not None:
            messages = pending.add(messages, self._consumer, self._clock)
            if messages:
                self._write(place, pending, stopped)
                pending = self._pending.get(place)

    def _write(self, place: Place, pending: Pending, stopped: threading.Event) -> None:
        """Send a block on its way, once the one before has arrived."""
        self._land()
        if self._pending.get(place) is not pending:
            return
        if pending.intent is None and pending.blocks.rows:
            self._commit(place, pending.start, f"to={pending.end}")
        self._pending[place] = Pending(pending.end, None, self._config)
        stored = self._thread.submit(self._store, place, pending, self._moves, stopped)
        self._flight = Flight(stored, place, pending.end, self._moves)

    def _land(self) -> None:
        """Wait for the block in flight, without losing the place in the group."""
        if self._flight is None:
            return
        flight, client = self._flight, self._consumer.client
        # To pause throws away what was fetched ahead, so it is not done for every block.
        if not wait([flight.stored], _PATIENCE_S).done:
            assigned = client.assignment()
            client.pause(assigned)
            while not wait([flight.stored], 0).done:
                client.poll(0.1)
            client.resume([place for place in assigned if place in client.assignment()])
        self._flight = None
        if flight.stored.result() and flight.moves == self._moves:
            self._commit(flight.place, flight.end, "")

    def _store(self, place: Place, pending: Pending, moves: int, stopped: threading.Event) -> bool:
        """Write one block, however long ClickHouse is away. False when told to stop meanwhile, or when
        partitions moved: it is left to the next writer, whom the intent tells."""

        def insist(call: Callable[[], None]) -> None:
            delay_s = 0.1
            while True:
                try:
                    return call()
                except (Away, Undelivered) as error:
                    reason = first_line(error)
                    _log.warning("cannot write yet", place=place, reason=reason, again_in_s=delay_s)
                until_s = time.monotonic() + delay_s
                while time.monotonic() < until_s:
                    if stopped.wait(0.1) or self._moves != moves:
                        raise _Left
                delay_s = min(delay_s * 2, _RETRY_MAX_S)

        span = f"{place[0]}/{place[1]}/{pending.start}-{pending.end}"
        try:
            for table, block in pending.blocks.by_table():
                token = f"{span}/{table}"
                try:
                    insist(partial(self._insert, table, block, token))
                except Refused:
                    self._salvage(table, pending.read, token, insist)
        except _Left:
            _log.info("a block is left to the next writer", block=span)
            return False
        return True

    def _salvage(
        self,
        table: str,
        read: list[Message],
        token: str,
        insist: Callable[[Callable[[], None]], None],
    ) -> None:
        """Insert what can be inserted of a block that was refused, and put the rest aside. The same
        block comes apart in the same way after a crash."""
        blocks = Blocks()
        for message in read:
            value = message.value()
            topic = (message.topic() or "").removeprefix(self._kafka.prefix)
            event = None if value is None else decode(value, topic)
            # As we would write it: another reader of JSON may refuse what the contract allows, such as a
            # field that is there twice.
            _fill(blocks, event, b"" if event is None else encode(event), message, self._clock)
        block = dict(blocks.by_table()).get(table)
        if block is None:
            return
        try:
            part = f"{token}/{read[0].offset()}-{read[-1].offset()}"
            insist(partial(self._insert, table, block, part))
        except Refused as refused:
            if len(read) > 1:
                half = len(read) // 2
                self._salvage(table, read[:half], token, insist)
                self._salvage(table, read[half:], token, insist)
                return
            reason = f"table {table}: {refused}"
            _log.error("ClickHouse refused a message; it was put aside", reason=reason)
            insist(partial(self._consumer.put_aside, (read[0], reason)))

    def _insert(self, table: str, block: Block, token: str) -> None:
        started_s = time.monotonic()
        self._inserter.insert(table, block, token)
        _insert_s.labels(table).observe(time.monotonic() - started_s)
        _rows.labels(table).inc(block.rows)

    def _position(self, place: Place) -> int:
        """The offset that is read next; also beyond offsets that compaction has removed."""
        name = topics.name_on_broker(self._kafka, place[0])
        [position] = self._consumer.client.position([TopicPartition(name, place[1])])
        return int(position.offset)

    def _commit(self, place: Place, offset: int, metadata: str) -> None:
        topic, partition = place
        self._consumer.client.commit(
            offsets=[
                TopicPartition(
                    topics.name_on_broker(self._kafka, topic), partition, offset, metadata
                )
            ],
            asynchronous=False,
        )

    def _assigned(self, client: object, places: list[TopicPartition]) -> None:
        self._moves += 1
        committed = self._committed(places)
        for place in committed:
            intent = _INTENT.fullmatch(place.metadata or "")
            name = topics.name_in_contract(self._kafka, place.topic), place.partition
            end = int(intent[1]) if intent else None
            self._pending[name] = Pending(place.offset, end, self._config)
        self._consumer.client.assign(committed)

    def _committed(self, places: list[TopicPartition]) -> list[TopicPartition]:
        """Where we stand; a negative offset where nothing was committed yet.

        A broker that is busy or has just come back is waited out here: what a callback of librdkafka
        raises comes out of its call as something else.
        """
        while True:
            try:
                found: list[TopicPartition] = self._consumer.client.committed(places, timeout=5)
                return found
            except KafkaException as error:
                _log.warning("cannot learn yet where to go on", reason=error.args[0].str())
                time.sleep(_RETRY_S)

    def _revoked(self, client: object, places: list[TopicPartition]) -> None:
        self._moves += 1
        for place in places:
            name = topics.name_in_contract(self._kafka, place.topic), place.partition
            self._pending.pop(name, None)


class _Left(Exception):
    """A block is not ours to write any more."""


def _fill(
    blocks: Blocks, event: Event | None, value: bytes, message: Message, clock: Clock
) -> None:
    if event is not None:
        blocks.add(event, value)
    else:
        key = (message.key() or b"").decode(errors="replace")
        blocks.forget_subject(key, clock.read().ns)


def _outlived(event: Event | None, sent_ms: int, config: HistorySettings) -> str:
    """Why an event is too old to be written, if it is. A backlog is not: what counts is its age when
    it was sent. Of the inventory, the newest is kept whatever its age."""
    if event is None or isinstance(event, InventoryItem):
        return ""
    days = config.samples_days if isinstance(event, Batch) else config.events_days
    age_ns = min(sent_ms * 1_000_000, time.time_ns()) - event.at_ns
    if age_ns <= days * _DAY_NS:
        return ""
    return (
        f"at_ns {event.at_ns} is {age_ns / _DAY_NS:,.1f} days before it was sent; "
        f"the history keeps {days} days of it"
    )


def run(settings: Settings) -> None:
    """Write history until told to stop.

    Raises:
        bus.settings.SettingsError: Kafka cannot be reached, or a setting does not fit.
    """
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    config = section(HistorySettings, settings.history, "history")
    topics.ensure(settings.kafka)
    alive = health.Health()
    server = health.serve(alive, settings.metrics.host, settings.metrics.history_port, "history")
    client = _await_clickhouse(settings, stopped, alive)
    if client is not None:
        retention = Retention(client, config.samples_days, config.events_days, config.max_bytes)
        writer = Writer(settings, config, client)
        _log.info("writing history", clickhouse=settings.clickhouse.url)
        while not stopped.is_set():
            try:
                writer.step(stopped)
            except KafkaException as error:
                _log.warning("Kafka", reason=error.args[0].str())
            alive.progress("writer", within_s=30)
            retention.step()
        writer.close(stopped)
        client.close()
    if server is not None:
        server.shutdown()


def _await_clickhouse(
    settings: Settings, stopped: threading.Event, alive: health.Health
) -> Client | None:
    """Connect and migrate as soon as ClickHouse answers; None when told to stop before."""
    said = ""
    while not stopped.is_set():
        try:
            migrate(settings.clickhouse)
            return connect(settings.clickhouse)
        except (Unreachable, ClickHouseError) as error:
            if str(error) != said:
                said = str(error)
                _log.warning("waiting for ClickHouse", reason=first_line(error))
        alive.progress("writer", within_s=30)
        stopped.wait(0.5)
    return None


def _by_place(messages: Iterable[Message], prefix: str) -> dict[Place, list[Message]]:
    groups: dict[Place, list[Message]] = {}
    for message in messages:
        topic, partition = message.topic(), message.partition()
        if message.error() is None and topic is not None and partition is not None:
            groups.setdefault((topic.removeprefix(prefix), partition), []).append(message)
    return groups
