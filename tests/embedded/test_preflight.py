"""What ``evertick up`` refuses before it starts anything, and how the data folder is divided."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.settings import Settings, SettingsError, load
from evertick import extras
from evertick.embedded import folder, preflight


def chosen(tmp_path: Path, *flags: str) -> Settings:
    names = (
        "embedded.kafka_port",
        "embedded.kafka_controller_port",
        "embedded.clickhouse_port",
        "metrics.agent_port",
        "metrics.stream_port",
        "metrics.remediate_port",
        "metrics.history_port",
    )
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in names]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    given_ports = [f"{name}={port}" for name, port in zip(names, ports, strict=True)]
    return load([f"data_dir={tmp_path / 'data'}", *given_ports, *flags])


def refused(settings: Settings) -> str:
    with pytest.raises(SettingsError) as caught:
        preflight.check(settings)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_a_fresh_folder_is_made_and_marked(tmp_path: Path) -> None:
    held = preflight.check(chosen(tmp_path))
    assert json.loads((tmp_path / "data" / folder.MARKER).read_text()) == {"format": folder.FORMAT}
    held.close()
    preflight.check(chosen(tmp_path)).close()


def test_a_taken_port_names_the_setting_and_the_listener_and_changes_nothing(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused(chosen(tmp_path, f"embedded.clickhouse_port={port}"))
    assert f"port {port} (embedded.clickhouse_port) is taken by" in line
    assert f"(process {os.getpid()})" in line
    assert "--set embedded.clickhouse_port=PORT" in line
    assert list(tmp_path.iterdir()) == []


def test_two_settings_with_one_port_are_refused(tmp_path: Path) -> None:
    settings = chosen(tmp_path, "metrics.agent_port=21790", "metrics.stream_port=21790")
    assert "metrics.agent_port and metrics.stream_port are both 21790" in refused(settings)


def test_a_part_that_cannot_be_watched_is_refused(tmp_path: Path) -> None:
    assert "setting metrics.agent_port" in refused(chosen(tmp_path, "metrics.agent_port=0"))


def test_a_foreign_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.tex").write_text("dear")
    line = refused(chosen(tmp_path))
    assert "thesis.tex" in line and "set data_dir" in line
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["thesis.tex"]


def test_a_folder_that_an_agent_alone_has_used_is_ours(tmp_path: Path) -> None:
    (tmp_path / "data" / "agent").mkdir(parents=True)
    preflight.check(chosen(tmp_path)).close()


@pytest.mark.parametrize("marker", ['{"format": 99}', "not json", "[]"])
def test_a_folder_of_another_format_is_refused(tmp_path: Path, marker: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / folder.MARKER).write_text(marker)
    assert "set data_dir" in refused(chosen(tmp_path))


def test_a_held_folder_is_refused_before_its_ports(tmp_path: Path) -> None:
    held = preflight.check(chosen(tmp_path))
    assert f"process {os.getpid()}" in refused(chosen(tmp_path))
    held.close()


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    assert "is not a folder" in refused(chosen(tmp_path))


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_too_little_disk_is_refused_with_a_bound_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 3 << 30))
    line = refused(chosen(tmp_path))
    assert "3.0 GiB free" in line and f"embedded.data_max_bytes={3 << 30}" in line
    preflight.check(chosen(tmp_path, f"embedded.data_max_bytes={3 << 30}")).close()


def test_a_control_group_bounds_the_memory(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/outer/inner\n")
    group = tmp_path / "cgroup/outer"
    (group / "inner").mkdir(parents=True)
    (group / "memory.max").write_text("2000000\n")
    (group / "memory.current").write_text("1500000\n")
    (group / "memory.stat").write_text("anon 5\ninactive_file 300000\n")
    found = preflight.available_memory_bytes(tmp_path / "proc", tmp_path / "cgroup")
    assert found == 800_000


def test_too_little_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "available_memory_bytes", lambda: 1 << 30)
    assert "1.0 GiB of memory are available" in refused(chosen(tmp_path))


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "missing", lambda extra: ["chdb"])
    assert "package chdb" in refused(chosen(tmp_path))


@pytest.mark.parametrize(
    "flag",
    [
        "kafka.bootstrap=broker.example:9092",
        "kafka.security_protocol=SSL",
        "kafka.replication=3",
        "clickhouse.url=http://db.example:8123",
        "embedded.host=0.0.0.0",
        f"embedded.data_max_bytes={1 << 30}",
    ],
)
def test_what_the_stack_would_not_use_is_refused(tmp_path: Path, flag: str) -> None:
    assert f"setting {flag.partition('=')[0]}" in refused(chosen(tmp_path, flag))


def test_settings_that_name_the_stack_itself_are_welcome(tmp_path: Path) -> None:
    settings = chosen(tmp_path)
    both = [
        f"kafka.bootstrap={preflight.bootstrap(settings)}",
        f"clickhouse.url={preflight.clickhouse_url(settings)}",
        f"embedded.kafka_port={settings.embedded.kafka_port}",
        f"embedded.clickhouse_port={settings.embedded.clickhouse_port}",
    ]
    preflight.own_addresses(load(both))


@given(st.integers(folder.DATA_MIN_BYTES, 1 << 42))
def test_shares_stay_below_the_bound(data_max_bytes: int) -> None:
    shares = folder.split(data_max_bytes)
    assert shares.sum() <= data_max_bytes
    assert folder.topics_worst_bytes(shares.topics_budget_bytes) <= shares.kafka_topics
    assert shares.history_max_bytes < shares.history
    assert shares.spool_max_bytes < shares.spool
