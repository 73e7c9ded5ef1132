"""100,000 spoilt messages over all topics: nothing dies, and every unreadable one is put aside whole.

Worker, history writer and remediator run as processes against a real broker and the real engine. When
they have read everything, the dead letters are compared with what was sent, message by message; then
the parts must still do their work, also after a restart on top of all that.
"""

from __future__ import annotations

import base64
import re
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from bus import topics
from bus.consumer import client_config, readable
from bus.producer import Publisher
from bus.producer import client_config as producer_config
from bus.settings import ClickHouseSettings, KafkaSettings
from history.client import connect
from schemas.deadletter import DeadLetter
from schemas.identity import content_id, nic
from schemas.incident import Incident, IncidentState
from schemas.packet import LinkTransition
from schemas.registry import Unreadable, decode
from schemas.topics import TOPICS
from tests.conftest import eventually
from tests.e2e.mutation import SEED, Mutant, mutants
from tests.remediators.samples import HttpReceiver

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]

COUNT = 100_000
PATIENCE_S = 900.0
_SECOND_NS = 1_000_000_000
READERS = {
    "history": tuple(TOPICS),
    "streams.detectors": ("telemetry.packet", "telemetry.gpu"),
    "streams.incidents": ("signals",),
    "remediate": ("incidents",),
}
GROUPS = {
    "history": READERS["history"],
    "streams": READERS["streams.detectors"] + READERS["streams.incidents"],
    "remediate": READERS["remediate"],
}
# Why a part may put a message aside that the contract allows.
EXPLAINED = re.compile(
    r"at_ns \d+ is [\d,.]+ days before it was sent; the history keeps \d+ days of it"
    r"|detector \w+: ValidationError: .*"
    r"|correlator: ValidationError: .*",
    re.S,
)


class Place(NamedTuple):
    """Where a message lies: topic without prefix, partition, offset."""

    topic: str
    partition: int
    offset: int


class Part:
    """A long-running part as a process of its own."""

    def __init__(self, module: str, flags: list[str], folder: Path) -> None:
        self.module = module
        self._flags = flags
        self.log = folder / f"{module}.log"
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        code = (
            "import sys; from bus import log; from bus.settings import load; "
            f"from {self.module} import run; "
            f"s = load(sys.argv[1:]); log.configure(s, '{self.module}'); run(s)"
        )
        with self.log.open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-c", code, *self._flags], stdout=out, stderr=out
            )

    def lives(self) -> bool:
        return self.process.poll() is None

    def restart(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0, self.tail()
        self.process = self._start()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def memory_mb(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) >> 10

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    server = HttpReceiver()
    yield server
    server.close()


@pytest.fixture
def parts(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings, receiver: HttpReceiver, tmp_path: Path
) -> Iterator[list[Part]]:
    topics.ensure(kafka)
    keep_everything(kafka)
    flags = [
        f"kafka.bootstrap={kafka.bootstrap}",
        f"kafka.prefix={kafka.prefix}",
        f"clickhouse.url={clickhouse.url}",
        f"clickhouse.database={clickhouse.database}",
        f"data_dir={tmp_path}",
        "metrics.stream_port=0",
        "metrics.remediate_port=0",
        "metrics.history_port=0",
        f"remedies.notify.receivers.tests.url={receiver.url}",
    ]
    modules = ("history.writer", "streams.worker", "remediators.worker")
    running = [Part(module, flags, tmp_path) for module in modules]
    yield running
    for part in running:
        part.kill()


def test_nothing_dies_and_every_unreadable_message_is_put_aside(
    kafka: KafkaSettings,
    clickhouse: ClickHouseSettings,
    receiver: HttpReceiver,
    parts: list[Part],
) -> None:
    began_s = time.monotonic()
    sent = produce(kafka, COUNT)
    assert len(sent) == COUNT
    produced_s = time.monotonic()
    fault(kafka, "sentinel")
    await_all_read(kafka, parts)
    read_s = time.monotonic()

    letters, alien = dead_letters(kafka, sent)
    compare(sent, letters)
    reasons = {(one.topic, one.reader, one.reason[:300]) for one in alien}
    assert not alien, f"dead letters about what the parts themselves said: {list(reasons)[:5]}"
    assert_served(kafka, clickhouse, receiver, "sentinel")

    counts = tell(sent, letters)
    print(f"produced in {produced_s - began_s:.0f} s, read in {read_s - produced_s:.0f} s")
    print(*counts, *(f"{one.module}: {one.memory_mb()} MB at most" for one in parts), sep="\n")

    for part in parts:
        part.restart()
    fault(kafka, "after-restart")
    await_all_read(kafka, parts)
    assert_served(kafka, clickhouse, receiver, "after-restart")
    again, alien = dead_letters(kafka, sent)
    assert {place: set(by) for place, by in again.items()} == {
        place: set(by) for place, by in letters.items()
    }
    assert not alien


def produce(kafka: KafkaSettings, count: int) -> dict[Place, tuple[Mutant, int]]:
    """Send the mutants; returns them, with the time they were sent at (ms), by place."""
    client = Producer({**producer_config(kafka, "fuzz"), "linger.ms": 20})
    sent: dict[Place, tuple[Mutant, int]] = {}

    def send(mutant: Mutant) -> None:
        def arrived(error: KafkaError | None, message: Message) -> None:
            assert error is None, error
            place = Place(mutant.topic, int(message.partition() or 0), int(message.offset() or 0))
            sent[place] = (mutant, message.timestamp()[1])

        name = topics.name_on_broker(kafka, mutant.topic)
        while True:
            try:
                client.produce(name, mutant.value, mutant.key, on_delivery=arrived)
            except BufferError:
                client.poll(0.1)
            else:
                break
        client.poll(0)

    for mutant in mutants(SEED, count, time.time_ns()):
        send(mutant)
    assert client.flush(120) == 0
    return sent


def keep_everything(kafka: KafkaSettings) -> None:
    """The broker is one of bounded disk: it may delete before it is read what a newer message
    replaces, and what is beyond the bound. Here all of it is to be read and looked at."""
    admin = AdminClient(kafka.client("fuzz"))
    keep = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in (("min.compaction.lag.ms", "7200000"), ("retention.bytes", "-1"))
    ]
    names = [topics.name_on_broker(kafka, topic) for topic in TOPICS]
    futures = admin.incremental_alter_configs(
        [
            ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=keep)
            for name in names
        ]
    )
    for future in futures.values():
        future.result(15)


def fault(kafka: KafkaSettings, node: str) -> None:
    """A link goes down and comes back."""
    now_ns = time.time_ns()
    down, up = now_ns - 2 * _SECOND_NS, now_ns - _SECOND_NS
    common: dict[str, Any] = {
        "node": node, "subject": nic(node, "eth0"), "clock_error_ns": 1000, "admin_up": True,
        "present": True, "physical": True, "carrier_losses": 1,
    }  # fmt: skip
    Publisher(kafka, "fuzz").publish(
        LinkTransition(id=content_id(node, 0), at_ns=down, carrier=False, since_ns=0, **common),
        LinkTransition(id=content_id(node, 1), at_ns=up, carrier=True, since_ns=down, **common),
    )


def await_all_read(kafka: KafkaSettings, parts: list[Part]) -> None:
    """Wait until every group has committed the end of every topic it reads."""
    clients = {group: Consumer({**client_config(kafka, group, "earliest")}) for group in GROUPS}

    def behind() -> dict[str, int]:
        lags = {}
        for group, client in clients.items():
            places = [
                TopicPartition(topics.name_on_broker(kafka, topic), partition)
                for topic in GROUPS[group]
                for partition in range(TOPICS[topic].partitions)
            ]
            lags[group] = sum(
                client.get_watermark_offsets(place, 30)[1] - max(place.offset, 0)
                for place in client.committed(places, timeout=30)
            )
        return lags

    def done() -> bool:
        for part in parts:
            assert part.lives(), f"{part.module} died:\n{part.tail()}"
        return not any(behind().values()) and not any(behind().values())

    try:
        eventually(done, PATIENCE_S, "everything to be read")
    finally:
        for client in clients.values():
            client.close()


def dead_letters(
    kafka: KafkaSettings, sent: dict[Place, tuple[Mutant, int]]
) -> tuple[dict[Place, dict[str, DeadLetter]], list[DeadLetter]]:
    """The parts' dead letters by place and reader, and unexplained ones about what parts sent."""
    found: dict[Place, dict[str, DeadLetter]] = defaultdict(dict)
    alien: list[DeadLetter] = []
    for message in everything(kafka, "deadletter"):
        if Place("deadletter", 0, int(message.offset() or 0)) in sent:
            continue
        letter = decode(message.value(), "deadletter")
        assert isinstance(letter, DeadLetter)
        place = Place(letter.topic, letter.partition, letter.offset)
        if place in sent:
            found[place][letter.reader] = letter
        elif EXPLAINED.fullmatch(letter.reason) is None:
            # A signal or an incident that a part made of an absurd but valid message may be refused.
            alien.append(letter)
    return found, alien


def everything(kafka: KafkaSettings, topic: str) -> Iterator[Message]:
    """All messages of a topic up to its present end."""
    client = Consumer({**client_config(kafka, "fuzz-look", "earliest")})
    name = topics.name_on_broker(kafka, topic)
    try:
        for partition in range(TOPICS[topic].partitions):
            low, high = client.get_watermark_offsets(TopicPartition(name, partition), 30)
            client.assign([TopicPartition(name, partition, low)])
            at = low
            while at < high:
                for message in client.consume(500, 1.0):
                    assert message.error() is None, message.error()
                    at = int(message.offset() or 0) + 1
                    yield message
    finally:
        client.close()


def compare(
    sent: dict[Place, tuple[Mutant, int]], letters: dict[Place, dict[str, DeadLetter]]
) -> None:
    """Each unreadable message has its dead letter from each of its readers, no other has one."""
    for place, (mutant, sent_ms) in sent.items():
        by_reader = letters.get(place, {})
        if is_readable(mutant, sent_ms):
            for letter in by_reader.values():
                assert EXPLAINED.fullmatch(letter.reason), (place, mutant.how, letter.reason)
            continue
        readers = {reader for reader, names in READERS.items() if place.topic in names}
        assert set(by_reader) == readers, (place, mutant.how, set(by_reader))
        for letter in by_reader.values():
            assert letter.reason
            assert letter.original_bytes == len(mutant.value or b"")
            assert base64.b64decode(letter.original_base64) == (mutant.value or b"")
            assert base64.b64decode(letter.key_base64) == mutant.key
            assert letter.id == content_id("deadletter", letter.reader, *place)


def is_readable(mutant: Mutant, sent_ms: int) -> bool:
    """As the contract and the bus have it; a deletion on a compacted topic is no message."""
    if mutant.value is None:
        return TOPICS[mutant.topic].compacted
    try:
        readable(mutant.value, mutant.topic, sent_ms)
    except Unreadable:
        return False
    return True


def assert_served(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings, receiver: HttpReceiver, node: str
) -> None:
    """The fault of a node became an incident that is over, two notices and rows of history."""
    subject = nic(node, "eth0")

    def resolved() -> list[Incident]:
        return [
            event
            for message in everything(kafka, "incidents")
            if subject.encode() in (message.value() or b"")
            and isinstance(event := decode(message.value(), "incidents"), Incident)
            and event.state is IncidentState.RESOLVED
        ]

    eventually(resolved, 60, f"the incident on {subject}")
    (incident,) = resolved()
    for purpose in ("firing", "resolved"):
        eventually(lambda p=purpose: receiver.notices()[incident.incident, p], 60, purpose)  # type: ignore[misc]
        assert receiver.notices()[incident.incident, purpose] == 1
    client = connect(clickhouse)
    try:

        def rows(query: str) -> int:
            return int(client.query(query, parameters={"s": subject}).result_rows[0][0])

        transitions = "SELECT count() FROM link_transitions WHERE subject = {s:String}"
        over = "SELECT count() FROM incidents WHERE subject = {s:String} AND state = 'resolved'"
        eventually(lambda: rows(transitions) == 2, 60, "both transitions in the history")
        eventually(lambda: rows(over) == 1, 60, "the incident in the history")
    finally:
        client.close()


def tell(
    sent: dict[Place, tuple[Mutant, int]], letters: dict[Place, dict[str, DeadLetter]]
) -> list[str]:
    """Figures, in words."""
    unreadable = sum(not is_readable(*one) for one in sent.values())
    reasons = Counter(
        re.sub(r"'[^']*'|\d[\d,.]*|^[a-z_.]+ version", "…", letter.reason)[:48]
        for by_reader in letters.values()
        for letter in by_reader.values()
    )
    by_reader = Counter(reader for by in letters.values() for reader in by)
    return [
        f"{len(sent):,} messages, {unreadable:,} unreadable",
        f"{sum(by_reader.values()):,} dead letters: {dict(by_reader)}",
        *(f"{count:7,} {reason}" for reason, count in reasons.most_common(25)),
    ]
