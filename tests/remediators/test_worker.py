"""The worker as a process of its own, against a real Kafka and real receivers."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka import Producer as KafkaProducer

from bus import topics
from bus.consumer import read_all
from bus.producer import Publisher
from bus.settings import KafkaSettings
from schemas.action import Action, ActionMode, Outcome, OutcomeStatus
from schemas.incident import Incident, IncidentState
from tests.conftest import KafkaServer, eventually, free_port
from tests.remediators.samples import Got, HttpReceiver, incident, resolved

ROOT = Path(__file__).resolve().parents[2]
RUN = """
from bus import log
from bus.settings import load
from remediators.worker import run
settings = load()
log.configure(settings, "remediate")
run(settings)
"""


class WorkerProcess:
    """A worker that a test may kill and start again."""

    def __init__(self, kafka: KafkaSettings, folder: Path, notify: dict[str, Any]) -> None:
        self.port = free_port()
        self._config = folder / "evertick.toml"
        self._log_path = folder / "worker.log"
        self._log = self._log_path.open("ab")
        self._kafka = kafka
        self.configure(notify)
        self.process: subprocess.Popen[bytes] | None = None

    def configure(self, notify: dict[str, Any]) -> None:
        """Write its settings: ``notify`` is the table ``remedies.notify``."""
        lines = [
            "[kafka]",
            f"bootstrap = {json.dumps(self._kafka.bootstrap)}",
            f"prefix = {json.dumps(self._kafka.prefix)}",
            "[metrics]",
            f"remediate_port = {self.port}",
            "[remedies.notify]",
            *_toml(notify, "remedies.notify"),
        ]
        self._config.write_text("\n".join(lines))

    def start(self) -> None:
        environment = {
            "PYTHONPATH": str(ROOT),
            "EVERTICK_CONFIG": str(self._config),
            "PATH": "/usr/bin:/bin",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN], env=environment, stdout=self._log, stderr=self._log
        )

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def terminate(self) -> tuple[int, float]:
        """SIGTERM; the exit status and the seconds that it took."""
        assert self.process is not None
        began_s = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(30)
        self.process = None
        return status, time.monotonic() - began_s

    def log(self) -> str:
        return self._log_path.read_text()

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
            text: str = answer.read().decode()
            return text

    def close(self) -> None:
        self.kill()
        self._log.close()


def _toml(table: dict[str, Any], path: str) -> list[str]:
    plain = [f"{key} = {json.dumps(value)}" for key, value in table.items() if not _is_table(value)]
    for key, value in table.items():
        if _is_table(value):
            plain += [f"[{path}.{key}]", *_toml(value, f"{path}.{key}")]
    return plain


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


class Bench:
    """A Kafka with topics, a worker, and what a test says and reads."""

    def __init__(self, kafka: KafkaSettings, folder: Path) -> None:
        topics.ensure(kafka)
        self.kafka = kafka
        self._folder = folder
        self._publisher = Publisher(kafka, "test")
        self._open: list[Any] = []

    def worker(self, start: bool = True, **notify: Any) -> WorkerProcess:
        worker = WorkerProcess(self.kafka, self._folder, notify)
        self._open.append(worker)
        if start:
            worker.start()
        return worker

    def receiver(self, **how: Any) -> HttpReceiver:
        receiver = HttpReceiver(**how)
        self._open.append(receiver)
        return receiver

    def tell(self, *incidents: Incident) -> None:
        self._publisher.publish(*incidents)

    def ledger(self) -> tuple[list[Action], list[Outcome]]:
        try:
            records = list(read_all(self.kafka, ["actions", "outcomes"], "test"))
        except KafkaException:  # topics that were made a moment ago may have no leader yet
            return [], []
        events = [record.event for record in records]
        return (
            [event for event in events if isinstance(event, Action)],
            [event for event in events if isinstance(event, Outcome)],
        )

    def outcomes(self) -> Counter[tuple[str, str]]:
        return Counter((outcome.purpose, outcome.status) for outcome in self.ledger()[1])

    def close(self) -> None:
        for thing in self._open:
            thing.close()


@pytest.fixture
def bench(kafka: KafkaSettings, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(kafka, tmp_path)
    yield made
    made.close()


def hook(receiver: HttpReceiver, **more: Any) -> dict[str, Any]:
    return {"url": receiver.url, "secret": "hush", **more}


def both(numbers: range) -> Counter[tuple[str, str]]:
    """One firing and one resolved notice for each incident."""
    return Counter(
        (incident(number).incident, status)
        for number in numbers
        for status in ("firing", "resolved")
    )


def in_order(receiver: HttpReceiver) -> bool:
    """No resolved notice came before the firing one of its incident."""
    first: dict[tuple[str, str], int] = {}
    for at, got in enumerate(receiver.got):
        first.setdefault(got.notice, at)
    return all(
        (name, "firing") in first and first[name, "firing"] < at
        for (name, status), at in first.items()
        if status == "resolved"
    )


def test_one_firing_and_one_resolved_for_each_incident_and_receiver(bench: Bench) -> None:
    ours, theirs = bench.receiver(), bench.receiver()
    worker = bench.worker(receivers={"ours": hook(ours, format="evertick"), "theirs": hook(theirs)})
    numbers = range(30)
    for number in numbers:
        bench.tell(incident(number))
    for number in numbers:  # each flaps, is refined and reopens, and is said twice
        flaps = incident(number, 2, kind="link.flapping")
        cleared = incident(number, 3, state=IncidentState.MITIGATED)
        bench.tell(flaps, cleared, cleared, incident(number, 4, reopened=1), resolved(number, 5))
        bench.tell(resolved(number, 5))
    everything = both(numbers)
    eventually(lambda: bench.outcomes().total() >= 120, 60, "all outcomes")
    assert ours.notices() == everything
    assert theirs.notices() == everything
    assert in_order(ours) and in_order(theirs)
    assert all(got.signed_with("hush") for got in [*ours.got, *theirs.got])
    actions, outcomes = bench.ledger()
    assert len(actions) == len({action.id for action in actions}) == 120
    assert {outcome.status for outcome in outcomes} == {OutcomeStatus.SUCCEEDED}
    assert {got.key for got in [*ours.got, *theirs.got]} == {action.id for action in actions}
    for got in ours.got:
        assert got.json["idempotency_key"] == got.key
        assert got.json["incident"]["schema"] == "incident"
    metrics = worker.get("/metrics")
    assert (
        'evertick_remedy_attempts_total{receiver="ours",remedy="notify",result="succeeded"} 60.0'
        in metrics
    )
    assert 'evertick_remedy_queue{receiver="ours",remedy="notify"} 0.0' in metrics
    assert json.loads(worker.get("/healthz"))["healthy"]
    status, took_s = worker.terminate()
    assert status == 0
    assert took_s < 10
    # A start with nothing left to do says nothing anew.
    worker.start()
    bench.tell(incident(99))
    eventually(lambda: (incident(99).incident, "firing") in ours.notices(), 60)
    assert ours.notices().total() == 61


def test_kill_9_loses_nothing_and_repeats_at_most_the_one_in_flight(bench: Bench) -> None:
    receiver = bench.receiver()
    worker = bench.worker(receivers={"pager": hook(receiver, format="evertick")})
    numbers = range(60)
    kills = 0

    def speak() -> None:
        for number in numbers:
            bench.tell(incident(number))
            bench.tell(resolved(number))

    speaker = threading.Thread(target=speak)
    eventually(lambda: "healthy" in _quietly(worker), 60)
    speaker.start()
    for share in (20, 50, 80):
        eventually(lambda share=share: len(receiver.got) >= share, 60, f"{share} notices")
        worker.kill()
        kills += 1
        worker.start()
    speaker.join(60)
    everything = both(numbers)
    eventually(lambda: set(receiver.notices()) == set(everything), 90, "every notice")
    eventually(lambda: len({o.action for o in bench.ledger()[1]}) == 120, 60, "every outcome")
    assert in_order(receiver)
    keys: dict[tuple[str, str], set[str]] = {}
    for got in receiver.got:
        keys.setdefault(got.notice, set()).add(got.key)
    assert all(len(one) == 1 for one in keys.values()), "a repetition has the same key"
    repeated = receiver.notices().total() - len(everything)
    assert repeated <= kills


def _quietly(worker: WorkerProcess) -> str:
    try:
        return worker.get("/healthz")
    except OSError:
        return ""


def test_a_receiver_that_is_away_holds_up_nobody(bench: Bench) -> None:
    healthy = bench.receiver()
    released = threading.Event()

    def hang(_: Got) -> tuple[int, dict[str, str]]:
        released.wait(120)
        return 200, {}

    broken_until = 6
    broken = bench.receiver()
    broken.answer = lambda _: (500, {}) if len(broken.got) <= broken_until else (200, {})
    hung = bench.receiver(answer=hang)
    refusing = free_port()
    bench.worker(
        receivers={
            "hung": hook(hung, timeout_s=1),
            "refusing": {"url": f"http://127.0.0.1:{refusing}/hook"},
            "rejecting": hook(bench.receiver(answer=lambda _: (410, {}))),
            "broken": hook(broken),
            "healthy": hook(healthy),
        }
    )
    numbers = range(10)
    for number in numbers:
        bench.tell(incident(number))
        bench.tell(resolved(number))
    everything = both(numbers)
    eventually(lambda: healthy.notices() == everything, 60, "the healthy one")
    assert not released.is_set()
    # The broken one recovers by itself: each notice arrived, in order, though some came again.
    eventually(lambda: set(broken.notices()) == set(everything), 90, "the broken one")
    assert in_order(broken)
    # One that comes to life later gets all of them, in order.
    late = bench.receiver(port=refusing)
    eventually(lambda: set(late.notices()) == set(everything), 120, "the one that was away")
    assert late.notices() == everything
    assert in_order(late)
    released.set()
    eventually(lambda: set(hung.notices()) == set(everything), 120, "the one that hung")
    # What is refused for good fails at once, and its end is not told either.
    eventually(lambda: bench.outcomes()["resolved", "skipped"] == 10, 60, "the rejected")
    outcomes = bench.outcomes()
    assert outcomes["firing", "failed"] == 10
    assert healthy.notices() == everything


def test_actions_left_by_a_kill_are_done_at_the_next_start(bench: Bench) -> None:
    port = free_port()
    worker = bench.worker(receivers={"pager": {"url": f"http://127.0.0.1:{port}/hook"}})
    numbers = range(5)
    for number in numbers:
        bench.tell(incident(number), resolved(number))
    eventually(lambda: len(bench.ledger()[0]) == 10, 60, "all decided")
    worker.kill()
    receiver = bench.receiver(port=port)
    worker.start()
    eventually(lambda: receiver.notices() == both(numbers), 60, "all delivered")
    assert in_order(receiver)
    eventually(lambda: bench.outcomes().total() == 10, 60, "all recorded")
    actions, _ = bench.ledger()
    assert {got.key for got in receiver.got} == {action.id for action in actions}


def test_a_receiver_that_is_gone_from_the_settings_is_told_in_the_ledger(bench: Bench) -> None:
    worker = bench.worker(receivers={"old": {"url": f"http://127.0.0.1:{free_port()}/"}})
    bench.tell(incident())
    eventually(lambda: bench.ledger()[0], 60)
    worker.kill()
    worker.configure({})
    worker.start()
    eventually(lambda: bench.ledger()[1], 60)
    [outcome] = bench.ledger()[1]
    assert outcome.status is OutcomeStatus.FAILED
    assert "'old' is no longer configured" in outcome.detail
    assert worker.log().count("notices go nowhere") == 1


def test_a_silence_that_ends_while_the_incident_is_open(bench: Bench) -> None:
    receiver = bench.receiver()
    forever = {"start": "2020-01-01T00:00:00Z", "end": "2200-01-01T00:00:00Z"}
    silent = {"start": forever["start"], "end": forever["end"]}
    worker = bench.worker(start=False, receivers={"pager": hook(receiver)})
    with worker._config.open("a") as config:
        config.write("\n[[remedies.notify.silences]]\n")
        config.write("".join(f"{key} = {value}\n" for key, value in silent.items()))
    worker.start()
    bench.tell(incident(1), incident(2), resolved(2, 3))
    eventually(lambda: bench.outcomes().total() == 3, 60)
    actions, outcomes = bench.ledger()
    assert {action.mode for action in actions} == {ActionMode.OBSERVE}
    assert {outcome.status for outcome in outcomes} == {OutcomeStatus.SKIPPED}
    assert all("silenced until 2200" in outcome.detail for outcome in outcomes)
    worker.kill()
    # The silence is lifted: what is still open is told, without any new revision; the rest is not.
    worker.configure({"receivers": {"pager": hook(receiver)}})
    worker.start()
    eventually(lambda: receiver.got, 60, "the firing notice")
    bench.tell(resolved(1, 2))
    eventually(lambda: len(receiver.got) == 2, 60, "its end")
    assert receiver.notices() == both(range(1, 2))


def test_it_ends_in_time_while_a_receiver_hangs_and_kafka_is_away(
    own_kafka: KafkaServer, tmp_path: Path
) -> None:
    bench = Bench(KafkaSettings(bootstrap=own_kafka.bootstrap), tmp_path)
    try:
        with socket.create_server(("127.0.0.1", 0)) as hung:
            worker = bench.worker(
                receivers={"hung": {"url": f"http://127.0.0.1:{hung.getsockname()[1]}/"}}
            )
            bench.tell(incident())
            hung.settimeout(60)
            peer, _ = hung.accept()
            own_kafka.kill()
            status, took_s = worker.terminate()
            peer.close()
        assert status == 0
        assert took_s < 10
    finally:
        bench.close()


def test_kafka_away_for_a_while(own_kafka: KafkaServer, tmp_path: Path) -> None:
    bench = Bench(KafkaSettings(bootstrap=own_kafka.bootstrap), tmp_path)
    try:
        receiver = bench.receiver()
        bench.worker(receivers={"pager": hook(receiver)})
        bench.tell(incident(0))
        eventually(lambda: len(receiver.got) == 1, 60)
        own_kafka.kill()
        time.sleep(1)
        own_kafka.start()
        bench.tell(incident(1), resolved(0), resolved(1))
        eventually(lambda: set(receiver.notices()) == set(both(range(2))), 120)
        assert in_order(receiver)
    finally:
        bench.close()


def test_a_message_that_is_none_goes_to_the_dead_letters(bench: Bench) -> None:
    receiver = bench.receiver()
    bench.worker(receivers={"pager": hook(receiver)})
    client = KafkaProducer({"bootstrap.servers": bench.kafka.bootstrap})
    for value in (b"not JSON", b'{"schema":"incident","version":9}', b'{"schema":"incident"}'):
        client.produce(topics.name_on_broker(bench.kafka, "incidents"), value)
    client.flush(30)
    bench.tell(incident())
    eventually(lambda: receiver.got, 60)
    eventually(
        lambda: len(list(read_all(bench.kafka, ["deadletter"], "test"))) == 3, 60, "dead letters"
    )
