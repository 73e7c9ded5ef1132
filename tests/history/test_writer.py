"""The writer against a real broker and the real engine: all rows, in order, none twice."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Producer, TopicPartition

from bus import topics
from bus.consumer import read_all
from bus.producer import Publisher
from bus.settings import ClickHouseSettings, KafkaSettings, Settings, load
from history.client import connect
from history.migrate import migrate, migrations
from history.queries import QUERIES, ask
from history.retention import Retention
from history.writer import GROUP, HistorySettings, Writer
from schemas.deadletter import DeadLetter
from schemas.event import Event
from schemas.identity import content_id
from schemas.packet import TcpFlows
from schemas.registry import decode, encode
from tests.bus.test_producer import NOW_NS, flows, transition
from tests.conftest import HistoryServer, eventually


def settings_for(kafka: KafkaSettings, clickhouse: ClickHouseSettings) -> Settings:
    return load(
        [
            f"kafka.bootstrap={kafka.bootstrap}",
            f"kafka.prefix={kafka.prefix}",
            f"clickhouse.url={clickhouse.url}",
            f"clickhouse.database={clickhouse.database}",
            "metrics.history_port=0",
        ]
    )


@pytest.fixture
def settings(kafka: KafkaSettings, clickhouse: ClickHouseSettings) -> Settings:
    topics.ensure(kafka)
    return settings_for(kafka, clickhouse)


def count(clickhouse: ClickHouseSettings, table: str) -> int:
    client = connect(clickhouse)
    try:
        return int(client.query(f"SELECT count() FROM {table}").result_rows[0][0])
    finally:
        client.close()


class Process:
    """The writer as a process of its own, which a test may kill."""

    def __init__(self, settings: Settings, *more: str) -> None:
        code = (
            "import sys; from bus import log; from bus.settings import load; from history import writer;"
            "s = load(sys.argv[1:]); log.configure(s, 'history'); writer.run(s)"
        )
        flags = [
            f"kafka.bootstrap={settings.kafka.bootstrap}",
            f"kafka.prefix={settings.kafka.prefix}",
            f"clickhouse.url={settings.clickhouse.url}",
            f"clickhouse.database={settings.clickhouse.database}",
            "metrics.history_port=0",
            *more,
        ]
        self._process = subprocess.Popen([sys.executable, "-c", code, *flags], cwd=os.getcwd())

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(20)


def test_every_event_becomes_its_row(settings: Settings) -> None:
    sent: list[Event] = []
    for i in range(300):
        sent += [flows(i), transition(i)]
    Publisher(settings.kafka, "t").publish(*sent)
    process = Process(settings, "history.flush_s=0.2")
    eventually(lambda: _there(settings.clickhouse, "tcp_flows", 30_000), 60, "30,000 rows")
    eventually(lambda: _there(settings.clickhouse, "link_transitions", 300), 60, "300 rows")
    assert process.stop() == 0
    client = connect(settings.clickhouse)
    rows = client.query(
        "SELECT toUnixTimestamp64Nano(at), carrier, carrier_losses FROM link_transitions ORDER BY at"
    ).result_rows
    assert rows == [(NOW_NS + i, bool(i % 2), i) for i in range(300)]
    assert count(settings.clickhouse, "tcp_flows") == 30_000
    assert client.query("SELECT sum(bytes_sent), uniqExact(at) FROM tcp_flows").result_rows == [
        (30_000, 300)
    ]
    client.close()


def _there(clickhouse: ClickHouseSettings, table: str, rows: int) -> bool:
    try:
        return count(clickhouse, table) >= rows
    except Exception:  # noqa: BLE001  (the database is not made yet)
        return False


def test_kill_9_at_any_moment_doubles_and_loses_nothing(settings: Settings) -> None:
    stop = threading.Event()
    sent = 0

    def produce() -> None:
        nonlocal sent
        publisher = Publisher(settings.kafka, "t")
        while not stop.is_set():
            publisher.publish(*(flows(i) for i in range(sent, sent + 20)), transition(sent))
            sent += 20

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        for pause_s in (3.0, 1.4, 1.7, 2.1, 1.5, 2.6):
            process = Process(settings, "history.flush_s=0.1", "history.block_rows=1000")
            time.sleep(pause_s)
            process.kill()
    finally:
        stop.set()
        thread.join()
    process = Process(settings, "history.flush_s=0.1")
    eventually(
        lambda: _there(settings.clickhouse, "tcp_flows", sent * 100), 90, f"{sent * 100} rows"
    )
    eventually(
        lambda: _there(settings.clickhouse, "link_transitions", sent // 20), 30, "all transitions"
    )
    assert process.stop() == 0
    assert count(settings.clickhouse, "tcp_flows") == sent * 100
    assert count(settings.clickhouse, "link_transitions") == sent // 20


def test_an_intent_is_written_again_as_the_same_block(settings: Settings) -> None:
    """A writer that died between insert and commit left its intent; the next one repeats it."""
    migrate(settings.clickhouse)
    publisher = Publisher(settings.kafka, "t")
    publisher.publish(*(flows(i) for i in range(10)))
    config = HistorySettings(flush_s=0.05)
    client = connect(settings.clickhouse)
    died = Writer(settings, config, client)
    commits: list[tuple[object, int, str]] = []
    commit = died._commit

    def only_intents(place: tuple[str, int], offset: int, metadata: str) -> None:
        commits.append((place, offset, metadata))
        if metadata:
            commit(place, offset, metadata)

    died._commit = only_intents  # type: ignore[method-assign]
    never = threading.Event()
    eventually(lambda: (died.step(never), count(settings.clickhouse, "tcp_flows") == 1000)[1])
    died._consumer.close()
    publisher.publish(*(flows(i) for i in range(10, 20)))
    again = Writer(settings, config, client)
    eventually(lambda: (again.step(never), count(settings.clickhouse, "tcp_flows") == 2000)[1])
    for _ in range(5):
        again.step(never)
    assert count(settings.clickhouse, "tcp_flows") == 2000
    assert _committed(settings.kafka) == {20}
    again.close(never)
    client.close()


def _committed(kafka: KafkaSettings) -> set[int]:
    client = KafkaConsumer({**kafka.client("t"), "group.id": kafka.prefix + GROUP})
    places = [TopicPartition(topics.name_on_broker(kafka, "telemetry.packet"), p) for p in range(4)]
    offsets = {place.offset for place in client.committed(places, timeout=10) if place.offset >= 0}
    client.close()
    return offsets - {0}


@pytest.fixture
def own_history(tmp_path: Path) -> Iterator[HistoryServer]:
    server = HistoryServer(tmp_path / "data")
    server.start()
    yield server
    server.kill()


def test_waits_while_clickhouse_is_away(kafka: KafkaSettings, own_history: HistoryServer) -> None:
    topics.ensure(kafka)
    settings = settings_for(kafka, ClickHouseSettings(url=own_history.url, database="evertick"))
    publisher = Publisher(kafka, "t")
    process = Process(settings, "history.flush_s=0.1")
    publisher.publish(*(flows(i) for i in range(5)))
    eventually(lambda: _there(settings.clickhouse, "tcp_flows", 500), 60, "the first rows")
    own_history.kill()
    publisher.publish(*(flows(i) for i in range(5, 10)))
    time.sleep(1)
    own_history.start()
    eventually(lambda: _there(settings.clickhouse, "tcp_flows", 1000), 60, "the rest")
    assert process.stop() == 0
    assert count(settings.clickhouse, "tcp_flows") == 1000


def write(settings: Settings, done: Callable[[], bool]) -> None:
    """Run a writer in this process until something holds."""
    client = connect(settings.clickhouse)
    writer = Writer(settings, HistorySettings(flush_s=0.05), client)
    never = threading.Event()
    eventually(lambda: (writer.step(never), done())[1], 60)
    writer.close(never)
    client.close()


def dead_letters(kafka: KafkaSettings) -> list[DeadLetter]:
    events = [record.event for record in read_all(kafka, ["deadletter"], "t")]
    return [event for event in events if isinstance(event, DeadLetter)]


def test_what_clickhouse_refuses_costs_only_itself(settings: Settings) -> None:
    migrate(settings.clickhouse)
    client = connect(settings.clickhouse)
    client.command("ALTER TABLE link_transitions ADD CONSTRAINT odd CHECK carrier_losses != 7")
    client.close()
    Publisher(settings.kafka, "t").publish(*(transition(i) for i in range(20)), flows(0))
    write(settings, lambda: count(settings.clickhouse, "link_transitions") == 19)
    assert count(settings.clickhouse, "tcp_flows") == 100
    assert _committed(settings.kafka) == {21}
    (letter,) = dead_letters(settings.kafka)
    assert letter.reason.startswith("table link_transitions: ")
    assert "odd" in letter.reason
    assert base64.b64decode(letter.original_base64) == encode(transition(7))


@pytest.mark.parametrize(
    ("field", "again"),
    [(b'"zone":"default"', b'"zone":"pod-1"'), (b'"rtt_us":[1]', b'"rtt_us":[7]')],
)
def test_a_field_that_is_there_twice_is_read_as_the_contract_reads_it(
    settings: Settings, field: bytes, again: bytes
) -> None:
    """The later one holds, for ClickHouse too, which by itself refuses or takes the other."""
    migrate(settings.clickhouse)
    odd = encode(flows(1, rows=1)).replace(field, field + b"," + again)
    assert odd.count(again) == 1
    producer = Producer(settings.kafka.client("t"))
    producer.produce(topics.name_on_broker(settings.kafka, "telemetry.packet"), odd, "n1")
    assert producer.flush(10) == 0
    Publisher(settings.kafka, "t").publish(flows(2, rows=1))
    write(settings, lambda: count(settings.clickhouse, "tcp_flows") == 2)
    assert dead_letters(settings.kafka) == []
    read = decode(odd, "telemetry.packet")
    assert isinstance(read, TcpFlows)
    client = connect(settings.clickhouse)
    rows = client.query("SELECT zone, rtt_us FROM tcp_flows ORDER BY at LIMIT 1").result_rows
    client.close()
    assert rows == [(read.zone, read.columns.rtt_us[0])]


def test_samples_of_many_hours_fit_one_block(settings: Settings) -> None:
    """ClickHouse refuses a block of more than 100 partitions, unless told otherwise."""
    migrate(settings.clickhouse)
    hour_ns = 3600 * 10**9
    sent = [
        flows(i, rows=1).model_copy(
            update={"at_ns": NOW_NS - i * hour_ns, "from_ns": NOW_NS - i * hour_ns - 1}
        )
        for i in range(250)
    ]
    Publisher(settings.kafka, "t").publish(*sent)
    write(settings, lambda: count(settings.clickhouse, "tcp_flows") == 250)
    assert dead_letters(settings.kafka) == []


def test_what_was_too_old_when_it_was_sent_is_put_aside(settings: Settings) -> None:
    migrate(settings.clickhouse)
    day_ns = 86_400 * 10**9
    old = flows(1, rows=1).model_copy(
        update={"at_ns": NOW_NS - 30 * day_ns, "from_ns": NOW_NS - 30 * day_ns - 1}
    )
    Publisher(settings.kafka, "t").publish(old, flows(2, rows=1))
    write(settings, lambda: count(settings.clickhouse, "tcp_flows") == 1)
    (letter,) = dead_letters(settings.kafka)
    assert "30.0 days before it was sent; the history keeps 14 days" in letter.reason


def test_migrations_are_numbered_without_gaps_and_run_once(clickhouse: ClickHouseSettings) -> None:
    assert [m.number for m in migrations()] == list(range(1, len(migrations()) + 1))
    assert migrate(clickhouse) == [m.name for m in migrations()]
    assert migrate(clickhouse) == []


def test_every_named_query_runs(clickhouse: ClickHouseSettings) -> None:
    migrate(clickhouse)
    client = connect(clickhouse)
    values = {
        "open_only": False,
        "since_ns": 0,
        "kind": "",
        "limit": 10,
        "prefix": "ab",
        "incident": content_id("x"),
        "episodes": [content_id("y")],
        "node": "n1",
    }
    for name in QUERIES:
        assert ask(client, name, **values) == []
    client.close()


def test_the_oldest_hours_go_when_the_bound_is_reached(settings: Settings) -> None:
    migrate(settings.clickhouse)
    client = connect(settings.clickhouse)
    for hour in range(6):
        client.command(
            "INSERT INTO tcp_flows (at, node, local, remote, bytes_sent)"
            f" SELECT now64(9) - toIntervalHour({hour}), 'n', toString(rand64()), toString(rand64()),"
            " rand64() FROM numbers(20000)"
        )
    kept = "SELECT count() FROM (SELECT DISTINCT toStartOfHour(at) FROM tcp_flows)"
    assert client.query(kept).result_rows == [(6,)]
    size = client.query(
        "SELECT sum(bytes_on_disk) FROM system.parts WHERE active AND database = currentDatabase()"
    ).result_rows[0][0]
    retention = Retention(client, samples_days=7, events_days=30, max_bytes=int(size * 0.6))
    assert retention.fit() >= 2
    assert client.query(
        "SELECT max(at) > now64(9) - toIntervalHour(1) FROM tcp_flows"
    ).result_rows == [(True,)]
    Retention(client, samples_days=9, events_days=30, max_bytes=0)
    assert "toIntervalDay(9)" in str(client.command("SHOW CREATE TABLE tcp_flows"))
    client.close()
