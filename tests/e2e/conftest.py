"""The whole system as `evertick up` runs it, with cables that a test may cut and receivers."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from bus.consumer import read_all
from history.client import connect
from lab.processes import tree
from lab.sandbox import Part, Sandbox
from lab.veth import FarSide
from schemas.identity import nic
from schemas.incident import Incident, IncidentState
from schemas.inventory import InventoryNic
from tests.conftest import cannot_make_namespaces, eventually
from tests.remediators.samples import Got, HttpReceiver

# Of this process alone, so that runs beside one another do not meet.
NEAR = f"e{os.getpid():x}-"
PATTERN = f"{NEAR}[0-9]*"
READY_S = 240.0


class Stack:
    """`evertick up` in a sandbox, watching the veths of a test and telling a receiver."""

    def __init__(self, *flags: str) -> None:
        self._stack = ExitStack()
        self.receiver = HttpReceiver()
        self._stack.callback(self.receiver.close)
        self.sandbox = self._stack.enter_context(
            Sandbox(
                [
                    f"collectors.link.include={PATTERN}",
                    f"collectors.interface.include={PATTERN}",
                    f"remedies.notify.receivers.test.url={self.receiver.url}",
                    "remedies.notify.receivers.test.format=evertick",
                    *flags,
                ]
            )
        )
        self.settings = self.sandbox.settings
        self.far = self._stack.enter_context(FarSide())
        self.up: Part = self.sandbox.start("up", "--json")
        eventually(
            lambda: (self.up.check(), self.up.printed().endswith("}\n"))[1], READY_S, "evertick up"
        )
        self.pids = {part["name"]: part["pid"] for part in json.loads(self.up.printed())["parts"]}

    def close(self) -> None:
        """End it; what it and its parts said is shown where the test failed."""
        for log in [
            *self.sandbox.folder.glob("*.log"),
            *(self.settings.data_dir / "logs").glob("*.log"),
        ]:
            lines = log.read_text(errors="replace").splitlines()[-40:]
            print(f"--- {log.name}", *lines, sep="\n")
        self._stack.close()

    def cables(self, names: list[str]) -> dict[str, str]:
        """Make veths and wait until the agent watches them; their subjects by name."""
        self.far.pairs(names)
        subjects = {name: nic(self.settings.agent.node, name) for name in names}
        eventually(lambda: set(subjects.values()) <= self._known(), 90, "the agent to see them")
        return subjects

    def _known(self) -> set[str]:
        return {
            record.event.subject
            for record in read_all(self.settings.kafka, ["inventory"], "test")
            if isinstance(record.event, InventoryNic)
        }

    def incidents(self) -> dict[str, list[Incident]]:
        """Every revision on the topic, by subject."""
        found: dict[str, list[Incident]] = defaultdict(list)
        for record in read_all(self.settings.kafka, ["incidents"], "test"):
            if isinstance(record.event, Incident):
                found[record.event.subject].append(record.event)
        return found

    def resolved(self, subjects: set[str]) -> bool:
        """Each subject's last incident is resolved."""
        found = self.incidents()
        return all(
            subject in found and found[subject][-1].state is IncidentState.RESOLVED
            for subject in subjects
        )

    def notices(self) -> Counter[tuple[str, str]]:
        """How often each (incident, status) arrived, under however many keys."""
        return Counter(got.notice for got in self.receiver.got)

    def by_key(self) -> dict[str, list[Got]]:
        """What arrived under each idempotency key."""
        found: dict[str, list[Got]] = defaultdict(list)
        for got in self.receiver.got:
            found[got.key].append(got)
        return found

    def ask(self, sql: str) -> list[tuple[object, ...]]:
        """Ask ClickHouse over HTTP."""
        client = connect(self.settings.clickhouse)
        try:
            return [tuple(row) for row in client.query(sql).result_rows]
        finally:
            client.close()

    def kill(self, part: str) -> None:
        """kill -9 one part as it runs now."""
        os.kill(self._pid(part), signal.SIGKILL)

    def _pid(self, part: str) -> int:
        mark = {"history": "history write", "clickhouse": "history serve"}.get(part, f" {part}")
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            for pid, line in tree(self.up.pid).items():
                words = line.strip()
                if words.endswith(mark) or (part == "kafka" and "kafka.Kafka" in words):
                    return pid
            time.sleep(0.1)
        raise AssertionError(f"no process of {part}: {tree(self.up.pid)}")


@pytest.fixture
def stack() -> Iterator[Stack]:
    """A stack for one test."""
    if reason := cannot_make_namespaces():
        pytest.skip(reason)
    running = Stack()
    yield running
    running.close()
