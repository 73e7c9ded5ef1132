"""The agent: no collector holds up another, and it ends when told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.health import Health
from bus.settings import AgentSettings, Settings, SettingsError
from bus.spool import Spool
from collectors import base
from collectors.agent import Agent, Plan, next_due, plans, report_dropped
from collectors.base import Collector, CollectorSettings, Host, Unavailable
from schemas.agent import TelemetryDropped
from schemas.event import Event
from schemas.inventory import InventoryNode
from tests.conftest import eventually, free_port

_PATIENCE_S = 20.0


@pytest.fixture
def kind(monkeypatch: pytest.MonkeyPatch) -> Callable[..., type[Collector]]:
    """Makes collectors that only this test knows."""
    monkeypatch.setattr(base, "_registered", {})

    def make(
        named: str, collect: Callable[[], None], opening: Callable[[], None] = lambda: None
    ) -> type[Collector]:
        class Made(Collector):
            name: ClassVar[str] = named
            about: ClassVar[str] = "of a test"
            interval_s: ClassVar[float] = 0.05

            def __init__(self, host: Host, settings: CollectorSettings) -> None:
                super().__init__(host, settings)
                opening()

            def collect(self) -> Iterator[Event]:
                collect()
                return iter(())

        return Made

    return make


def started(host: Host, *collectors: type[Collector]) -> tuple[Agent, list[Event], Health]:
    sent: list[Event] = []
    health = Health()
    wanted = [Plan(collector, CollectorSettings()) for collector in collectors]
    agent = Agent(host, wanted, sent.append, health)
    agent.start()
    return agent, sent, health


def fail(error: Exception) -> None:
    raise error


def test_a_hanging_and_a_failing_collector_hold_up_nobody(
    host: Host, kind: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    release, runs = threading.Event(), [0]

    def count() -> None:
        runs[0] += 1

    agent, sent, health = started(
        host,
        kind("hangs", lambda: release.wait(60)),
        kind("fails", lambda: fail(RuntimeError("no such register"))),
        kind("works", count),
    )
    eventually(lambda: runs[0] >= 20, _PATIENCE_S)
    assert health.late() == {}
    assert agent.stop(0.2) == ["collector-hangs"]
    release.set()
    assert agent.stop(_PATIENCE_S) == []
    (node,) = sent
    assert isinstance(node, InventoryNode)
    assert (node.subject, node.collectors) == ("node:node-1", ["hangs", "fails", "works"])
    said = capsys.readouterr()
    assert (said.out + said.err).count("no such register") == 1


def test_a_collector_that_fails_for_long_is_opened_afresh(host: Host, kind: Any) -> None:
    opened = [0]

    def opening() -> None:
        opened[0] += 1

    def collect() -> None:
        if opened[0] < 2:
            raise OSError("stale socket")
        done.set()

    done = threading.Event()
    agent, _, _ = started(host, kind("stale", collect, opening))
    assert done.wait(_PATIENCE_S)
    agent.stop(_PATIENCE_S)
    assert opened[0] == 2


def test_nothing_to_observe_is_no_error(
    host: Host, kind: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = threading.Event()

    def opening() -> None:
        asked.set()
        raise Unavailable("no such hardware")

    agent, _, health = started(host, kind("absent", lambda: None, opening))
    assert asked.wait(_PATIENCE_S)
    agent.stop(_PATIENCE_S)
    said = capsys.readouterr()
    assert "no such hardware" in said.out + said.err
    assert health.late() == {}


@given(st.floats(0, 1e6), st.floats(0.01, 3600), st.floats(0, 1e5))
def test_missed_runs_are_left_out(due_s: float, pause_s: float, late_s: float) -> None:
    now_s = due_s + late_s
    due_next_s = next_due(due_s, pause_s, now_s)
    assert due_next_s > due_s
    assert now_s - 1e-3 <= due_next_s <= max(now_s, due_s) + pause_s + 1e-3


def test_an_unknown_collector_is_named_with_those_there_are() -> None:
    with pytest.raises(SettingsError, match=r"collectors\.lnik.*interface.*link.*tcp"):
        plans(Settings(collectors={"lnik": {}}))


def test_settings_of_collectors() -> None:
    wanted = plans(
        Settings(
            collectors={
                "tcp": {"interval_s": "2", "include_loopback": "true"},
                "interface": {"enabled": "false"},
                "link": {"include": "veth*,tap*"},
            }
        )
    )
    by_name = {plan.name: plan for plan in wanted}
    assert "interface" not in by_name
    assert by_name["tcp"].interval_s == 2
    assert by_name["link"].settings.include == ["veth*", "tap*"]  # type: ignore[attr-defined]
    with pytest.raises(SettingsError, match=r"collectors\.tcp\.interval_s"):
        plans(Settings(collectors={"tcp": {"interval_s": 0}}))
    with pytest.raises(SettingsError, match=r"collectors\.tcp\.row_max.*rows_max"):
        plans(Settings(collectors={"tcp": {"row_max": 5}}))


def test_what_the_spool_dropped_is_told(host: Host, tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool.db", 1000)
    for at_ns in range(1, 21):
        spool.append("telemetry.packet", b"k", bytes(100), at_ns, durable=False)
    sent: list[Event] = []
    report_dropped(host, spool, sent.append)
    report_dropped(host, spool, sent.append)
    spool.close()
    (dropped,) = sent
    assert isinstance(dropped, TelemetryDropped)
    assert dropped.messages >= 10
    assert (dropped.from_ns, dropped.at_ns) == (1, dropped.messages)
    assert dropped.message_bytes == 100 * dropped.messages


def test_the_agent_runs_without_kafka_and_ends_when_told(tmp_path: Path) -> None:
    port, kafka = free_port(), free_port()
    program = (
        "from pathlib import Path\n"
        "from bus import log\n"
        "from bus.settings import load\n"
        "from collectors.agent import run\n"
        f"settings = load(['data_dir={tmp_path}', 'metrics.agent_port={port}',"
        f" 'kafka.bootstrap=127.0.0.1:{kafka}', 'agent.node=node-7'])\n"
        "log.configure(settings, 'agent')\n"
        "run(settings)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    agent = subprocess.Popen(
        [sys.executable, "-c", program], env=environment, cwd=tmp_path, stderr=subprocess.PIPE
    )

    def page(name: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", timeout=5) as answer:
            return str(answer.read().decode())

    def runs() -> bool:
        try:
            return 'evertick_collector_success{collector="interface"} 1.0' in page("metrics")
        except OSError:
            return False

    try:
        eventually(runs, 60)
        assert "healthy" in page("healthz")
        assert 'evertick_collector_last_run_timestamp{collector="tcp"}' in page("metrics")
        agent.send_signal(signal.SIGTERM)
        _, said = agent.communicate(timeout=30)
    finally:
        agent.kill()
        agent.wait(30)
    assert agent.returncode == 0, said.decode()
    assert b"Traceback" not in said
    spool = Spool(tmp_path / "agent" / "spool.db", 1 << 20)
    kept = [row.topic for row in spool.after(0, 1000)]
    spool.close()
    assert "inventory" in kept and "telemetry.packet" in kept


def test_two_agents_on_one_data_folder_are_refused(tmp_path: Path) -> None:
    held = Spool(tmp_path / "agent" / "spool.db", 1 << 20)
    try:
        with pytest.raises(SettingsError, match="another agent"):
            Spool(tmp_path / "agent" / "spool.db", 1 << 20)
    finally:
        held.close()
    assert AgentSettings().node


def test_the_interval_of_a_slow_run_is_not_caught_up(host: Host, kind: Any) -> None:
    runs: list[float] = []

    def slow_once() -> None:
        runs.append(time.monotonic())
        if len(runs) == 1:
            time.sleep(0.5)

    agent, _, _ = started(host, kind("slow", slow_once))
    eventually(lambda: len(runs) >= 4, _PATIENCE_S)
    agent.stop(_PATIENCE_S)
    # Ten runs were missed; they do not follow one another without a pause.
    assert runs[3] - runs[1] > 0.05
