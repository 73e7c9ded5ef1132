"""The whole stack by ``evertick up``: ready, each part killed and back, stopped, killed, up again."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
READY_S = 120.0
PORTS = (
    "embedded.kafka_port",
    "embedded.kafka_controller_port",
    "embedded.clickhouse_port",
    "metrics.agent_port",
    "metrics.stream_port",
    "metrics.remediate_port",
    "metrics.history_port",
)


def eventually(true: Callable[[], object], what: str, within_s: float = READY_S) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {within_s:g} s: {what}")
        time.sleep(0.05)


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has reaped yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


class Up:
    """Runs of ``evertick up`` on one folder and one set of ports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in PORTS]
        self.ports = [s.getsockname()[1] for s in sockets]
        for s in sockets:
            s.close()
        self.process: subprocess.Popen[bytes] | None = None

    def argv(self) -> list[str]:
        flags = [f"data_dir={self.data}"]
        flags += [f"{name}={port}" for name, port in zip(PORTS, self.ports, strict=True)]
        argv = [sys.executable, "-m", "evertick", "up", "--json"]
        for flag in flags:
            argv += ["--set", flag]
        return argv

    def begin(self) -> subprocess.Popen[bytes]:
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            return subprocess.Popen(self.argv(), stdout=out, stderr=err, cwd=ROOT)

    def start(self) -> dict[str, Any]:
        """Start it and wait until it says that all is ready."""
        process = self.process = self.begin()
        eventually(
            lambda: process.poll() is not None or self._document() is not None,
            f"ready; it said {self.errors()}",
        )
        document = self._document()
        assert document is not None, self.errors()
        return document

    def pids(self) -> dict[str, int]:
        """The process of each part that was ready last."""
        ready = re.findall(r"info (\w+): ready after .* \(process (\d+)\)", self.errors())
        return {name: int(pid) for name, pid in ready}

    def errors(self) -> str:
        return (self.folder / "err").read_text()

    def running(self) -> list[int]:
        """Every process of this stack, told by the folder in its command line."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and not gone(int(entry.name)):
                try:
                    words = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if str(self.data).encode() in words:
                    found.append(int(entry.name))
        return found

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
        if self.process is not None:
            self.process.wait()

    def _document(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads((self.folder / "out").read_text())
            return found
        except (FileNotFoundError, ValueError):
            return None


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    stack = Up(tmp_path_factory.mktemp("up"))
    yield stack
    stack.end()


def test_each_part_comes_back_and_sigterm_ends_all(up: Up) -> None:
    document = up.start()
    names = ["kafka", "clickhouse", "history", "stream", "remediate", "agent"]
    assert {part["name"]: part["pid"] for part in document["parts"]} == up.pids()
    assert [part["name"] for part in document["parts"]] == names
    assert document["data_dir"] == str(up.data)
    for name in names:
        killed = up.pids()[name]
        os.kill(killed, signal.SIGKILL)
        eventually(
            lambda name=name, killed=killed: up.pids()[name] != killed,
            f"{name} is back; it said {up.errors()}",
        )
        assert f"warning {name}: exited by SIGKILL" in up.errors()
    assert up.process is not None
    second = subprocess.run(
        up.argv(), check=False, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert second.returncode == 2
    assert f"in use by another evertick up (process {up.process.pid})" in second.stderr
    assert up.process.poll() is None
    up.process.send_signal(signal.SIGTERM)
    assert up.process.wait(60) == 0
    assert up.running() == []
    assert "everything has ended" in up.errors()


def test_a_killed_up_leaves_nothing_and_the_next_goes_on(up: Up) -> None:
    up.start()
    assert up.process is not None
    pids = up.pids()
    os.kill(up.process.pid, signal.SIGKILL)
    up.process.wait()
    eventually(lambda: all(gone(pid) for pid in pids.values()), "parts are gone", 30)
    up.start()
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(60) == 0
    assert up.running() == []
