"""A sandbox heeds nothing of the host and leaves nothing behind."""

from __future__ import annotations

import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from bus.settings import SettingsError
from lab.bench import BenchError
from lab.receiver import Receiver
from lab.sandbox import Sandbox, free_ports, metric, wait_for

_SLEEP = "import time; print('up', flush=True); time.sleep(600)"


def test_settings_of_the_host_do_not_hold_but_flags_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERTICK_ZONE", "production")
    monkeypatch.setenv("EVERTICK_KAFKA__BOOTSTRAP", "broker:9092")
    monkeypatch.setenv("EVERTICK_NONSENSE", "1")
    with Sandbox(["agent.node=node-7", "data_dir=/nonexistent"]) as sandbox:
        settings = sandbox.settings
        assert settings.zone == "default" and settings.agent.node == "node-7"
        assert settings.kafka.bootstrap == f"127.0.0.1:{settings.embedded.kafka_port}"
        assert settings.data_dir.is_relative_to(sandbox.folder)
    assert os.environ["EVERTICK_ZONE"] == "production"


def test_a_wrong_flag_is_refused_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SettingsError, match="bootstrab"):
        Sandbox(["kafka.bootstrab=x"])
    assert not list(tmp_path.iterdir())


def test_processes_and_folder_are_gone_after_a_failure() -> None:
    try:
        with Sandbox() as sandbox:
            part = sandbox.run("sleeper", [sys.executable, "-c", _SLEEP])
            wait_for(part.printed, "it is up", [part], 30)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert not part.alive()
    assert not Path(f"/proc/{part.pid}").exists()
    assert not sandbox.folder.exists()


def test_waiting_ends_when_a_part_ends_and_tells_what_it_said() -> None:
    with Sandbox() as sandbox:
        part = sandbox.run(
            "crasher", [sys.executable, "-c", "import sys; sys.exit('no such luck')"]
        )
        with pytest.raises(BenchError, match=r"crasher ended with status 1(.|\n)*no such luck"):
            wait_for(lambda: False, "nothing", [part], 30)


def test_waiting_ends_in_time() -> None:
    began_s = time.monotonic()
    with pytest.raises(BenchError, match="a miracle"):
        wait_for(lambda: False, "a miracle", [], 0.3)
    assert time.monotonic() - began_s >= 0.3


def test_ports_are_different_and_free() -> None:
    ports = free_ports(8)
    assert len(set(ports)) == 8
    assert metric(ports[0], "evertick_any_total") == 0.0


def test_the_receiver_notes_the_first_notice_of_each_status() -> None:
    body = b'{"alerts": [{"status": "firing", "labels": {"incident": "%d"}}]}'
    with Receiver() as receiver:
        for incident in (1, 1, 2):
            urllib.request.urlopen(receiver.url, data=body % incident, timeout=10).close()
        assert set(receiver.arrived_ns) == {("1", "firing"), ("2", "firing")}
        assert receiver.arrived_ns["1", "firing"] < receiver.arrived_ns["2", "firing"]
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(receiver.url, timeout=10)
