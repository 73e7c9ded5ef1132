"""What many tests share: a real Kafka, and what this machine can do."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from bus.settings import ClickHouseSettings, KafkaSettings
from evertick.embedded.kafka import (
    KafkaConfig,
    command,
    ensure_jars,
    format_storage,
    wait_ready,
)


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def eventually(true: Callable[[], object], within_s: float = 30.0, what: str = "") -> None:
    """Wait until something holds; fails the test when it does not in time."""
    deadline = time.monotonic() + within_s
    while not true():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {within_s:g} s: {what or true}")
        time.sleep(0.05)


class KafkaServer:
    """One real broker that a test may kill and start again."""

    def __init__(self, folder: Path) -> None:
        self.config = KafkaConfig(data_dir=folder, port=free_port(), controller_port=free_port())
        self._jars = ensure_jars()
        folder.mkdir(parents=True, exist_ok=True)
        self._log = (folder / "kafka.log").open("ab")
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return self.config.bootstrap

    def start(self) -> None:
        format_storage(self.config, self._jars)
        process = subprocess.Popen(
            command(self.config, self._jars), stdout=self._log, stderr=subprocess.STDOUT
        )
        self.process = process
        wait_ready(self.config, lambda: process.poll() is None, timeout_s=120)

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def close(self) -> None:
        self.kill()
        self._log.close()


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """One broker for all tests that only need one; each takes topics of its own by a prefix."""
    server = KafkaServer(tmp_path_factory.mktemp("kafka"))
    server.start()
    yield server
    server.close()


@pytest.fixture
def kafka(kafka_server: KafkaServer, request: pytest.FixtureRequest) -> Iterator[KafkaSettings]:
    """Settings with a topic prefix that no other test has; its topics go when the test ends."""
    prefix = f"t{os.getpid()}-{abs(hash(request.node.nodeid)) % 10**9}."
    settings = KafkaSettings(bootstrap=kafka_server.bootstrap, prefix=prefix)
    yield settings
    admin = AdminClient(settings.client("tests"))
    mine = [name for name in admin.list_topics(timeout=10).topics if name.startswith(prefix)]
    if mine:
        for future in admin.delete_topics(mine, operation_timeout=10).values():
            future.result(10)


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[KafkaServer]:
    """A broker for one test alone, which may kill it."""
    server = KafkaServer(tmp_path / "kafka")
    server.start()
    yield server
    server.close()


def cannot_make_namespaces() -> str:
    """Why network namespaces cannot be made here; empty where they can."""
    if os.geteuid() != 0:
        return "needs root to make network namespaces"
    if shutil.which("ip") is None:
        return "needs iproute2 to make network namespaces"
    return ""


class HistoryServer:
    """The embedded engine behind its HTTP front, as a process that a test may kill."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "history.front",
                "--path",
                str(self.folder),
                "--port",
                str(self.port),
            ]
        )
        eventually(self._answers, 60, "the history's front to answer")

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/ping", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@pytest.fixture(scope="session")
def history_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HistoryServer]:
    """One engine for all tests that only need one; each takes a database of its own."""
    server = HistoryServer(tmp_path_factory.mktemp("history") / "data")
    server.start()
    yield server
    server.kill()


@pytest.fixture
def clickhouse(history_server: HistoryServer, request: pytest.FixtureRequest) -> ClickHouseSettings:
    """Settings with a database that no other test has."""
    database = f"t{abs(hash(request.node.nodeid)) % 10**9}"
    return ClickHouseSettings(url=history_server.url, database=database)
