"""``evertick doctor``: each check by what it is given, the whole by what this host is."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from bus.settings import ClickHouseSettings, KafkaSettings, Settings, SettingsError, load
from bus.topics import ensure
from collectors.base import Capability, registered
from evertick import checks
from evertick.checks import Check, Verdict
from evertick.cli import app
from evertick.commands import doctor
from evertick.commands.doctor import judged
from tests.conftest import eventually, free_port

run = CliRunner()


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of this machine, and nothing that listens where the defaults point."""
    for name in list(os.environ):
        if name.upper().startswith("EVERTICK_") and name != "EVERTICK_CACHE_DIR":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERTICK_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("EVERTICK_KAFKA__BOOTSTRAP", "127.0.0.1:1")
    monkeypatch.setenv("EVERTICK_CLICKHOUSE__URL", "http://127.0.0.1:1")


def file(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def by_name() -> tuple[dict[str, Check], int]:
    """What doctor says here, by name, and its exit code."""
    found = run.invoke(app, ["doctor", "--json"])
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    document = json.loads(found.stdout)
    assert document["works"] == (found.exit_code == 0)
    return {one["name"]: Check(**one) for one in document["checks"]}, found.exit_code


def test_without_services_it_says_what_is_missing_and_how_to_have_it() -> None:
    found, code = by_name()
    assert code == 1
    for name in ("Kafka", "ClickHouse"):
        assert found[name].verdict == Verdict.FAILS
        assert "does not answer" in found[name].detail
        assert "evertick up" in found[name].fix
    for name in registered():
        assert any(label.split(":")[0] == name for label in found)
    for name in ("discipline", "disk", "memory", "permissions", "eBPF", "RDMA", "kernel log"):
        assert name in found


def test_with_services_they_are_well(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERTICK_KAFKA__BOOTSTRAP", kafka.bootstrap)
    monkeypatch.setenv("EVERTICK_KAFKA__PREFIX", kafka.prefix)
    monkeypatch.setenv("EVERTICK_CLICKHOUSE__URL", clickhouse.url)
    found, _ = by_name()
    assert found["Kafka"].verdict == Verdict.OK
    assert found["ClickHouse"].verdict == Verdict.OK
    assert found["topics"].verdict == Verdict.NOTE
    ensure(kafka)
    found, code = by_name()
    assert found["topics"] == Check("services", "topics", Verdict.OK, "all 12 are there", "")
    assert code == any(check.verdict == Verdict.FAILS for check in found.values())


def test_for_a_person_it_ends_with_a_verdict() -> None:
    found = run.invoke(app, ["doctor"])
    assert found.exit_code == 1
    assert found.stdout.splitlines()[-1].startswith("Something that is enabled does not work")
    assert "COLLECTORS" in found.stdout


def test_it_changes_nothing(tmp_path: Path) -> None:
    by_name()
    assert list(tmp_path.iterdir()) == []


def test_a_capability_fails_where_it_can_be_mended_or_is_all_there_is() -> None:
    works = Capability("a", True, "fine")
    mendable = Capability("b", False, "no right", "run as root")
    absent = Capability("c", False, "no such device")
    verdicts = [check.verdict for check in judged("x", True, [works, mendable, absent])]
    assert verdicts == [Verdict.OK, Verdict.FAILS, Verdict.NOTE]
    assert [check.verdict for check in judged("x", True, [absent])] == [Verdict.FAILS]
    off = list(judged("x", False, [works, mendable]))
    assert [check.verdict for check in off] == [Verdict.OFF, Verdict.OFF]
    assert off[0].fix == "--set collectors.x.enabled=true"


def test_a_clock_that_nobody_disciplines_is_told() -> None:
    assert checks.clock(16_000_000_000).verdict == Verdict.NOTE
    assert "chrony" in checks.clock(16_000_000_000).fix
    assert checks.clock(2_500_000).detail == "right within ±2.5 ms"


def test_disk(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    plenty = load(
        [f"data_dir={tmp_path}/a/b", "agent.spool_max_bytes=1048576",
         "embedded.data_max_bytes=1073741824"]
    )  # fmt: skip
    if free > 2 << 30:
        assert checks.disk(plenty).verdict == Verdict.OK
    spool = load([f"data_dir={tmp_path}", f"agent.spool_max_bytes={free * 2}"])
    assert checks.disk(spool).verdict == Verdict.FAILS
    assert "agent.spool_max_bytes" in checks.disk(spool).fix
    stack = load(
        [f"data_dir={tmp_path}", "agent.spool_max_bytes=1048576",
         f"embedded.data_max_bytes={free * 2}"]
    )  # fmt: skip
    assert checks.disk(stack).verdict == Verdict.NOTE


def test_memory(tmp_path: Path) -> None:
    file(tmp_path, "proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable:  8000000 kB\n")
    assert checks.memory(tmp_path) == Check("host", "memory", Verdict.OK, "8.2 GB available")
    file(tmp_path, "proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable:  1000000 kB\n")
    assert checks.memory(tmp_path).verdict == Verdict.NOTE


def test_permissions(tmp_path: Path) -> None:
    file(tmp_path, "proc/self/status", "Name:\tx\nCapEff:\t000001ffffffffff\n")
    assert checks.permissions(tmp_path).verdict == Verdict.OK
    file(tmp_path, "proc/self/status", "Name:\tx\nCapEff:\t0000000000001000\n")
    found = checks.permissions(tmp_path)
    assert found.verdict == Verdict.NOTE
    assert "CAP_SYSLOG" in found.detail
    assert "CAP_NET_ADMIN" not in found.detail


def test_ebpf(tmp_path: Path) -> None:
    assert "no kernel types" in checks.ebpf(tmp_path, 0).detail
    file(tmp_path, "sys/kernel/btf/vmlinux", "")
    assert checks.ebpf(tmp_path, 0).verdict == Verdict.OK
    refused = checks.ebpf(tmp_path, errno.EPERM)
    assert refused.verdict == Verdict.NOTE
    assert "Operation not permitted" in refused.detail


def test_gpus_and_rdma(tmp_path: Path) -> None:
    assert checks.gpus(tmp_path).verdict == Verdict.NOTE
    assert checks.rdma(tmp_path).verdict == Verdict.NOTE
    file(
        tmp_path,
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15\nGCC version: 12\n",
    )
    file(tmp_path, "proc/driver/nvidia/gpus/0000:9b:00.0/information", "")
    file(tmp_path, "sys/class/infiniband/mlx5_0/fw_ver", "")
    assert checks.gpus(tmp_path).detail == "1 GPUs, NVIDIA UNIX x86_64 Kernel Module  550.54.15"
    assert checks.rdma(tmp_path).detail == "mlx5_0"


def test_the_kernel_log(tmp_path: Path) -> None:
    assert checks.kernel_log(tmp_path / "none").verdict == Verdict.NOTE
    file(tmp_path, "kmsg", "")
    assert checks.kernel_log(tmp_path / "kmsg").verdict == Verdict.OK


def serve(folder: Path, port: int, **environment: str) -> subprocess.Popen[str]:
    """``evertick history serve`` as a process."""
    arguments = ["history", "serve", "--path", str(folder), "--port", str(port)]
    return subprocess.Popen(
        [sys.executable, "-m", "evertick", *arguments],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **environment},
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_wrong_password_is_told_as_such(tmp_path: Path) -> None:
    """The engine as ``evertick history serve`` runs it, with an account."""
    port = free_port()
    password = "correct-horse"
    server = serve(tmp_path / "history", port, EVERTICK_CLICKHOUSE__PASSWORD=password)

    def check(word: str) -> Check:
        where = ClickHouseSettings(url=f"http://127.0.0.1:{port}", password=SecretStr(word))
        return checks.clickhouse(Settings(clickhouse=where))

    try:
        eventually(lambda: check(password).verdict is Verdict.OK, 60, "the engine to answer")
        refused = check("wrong-battery")
        assert refused.verdict is Verdict.FAILS
        assert "refuses" in refused.detail
        assert "clickhouse.user" in refused.fix
        assert "wrong-battery" not in str(refused)
    finally:
        server.terminate()
        _, complaint = server.communicate(timeout=30)
    assert server.returncode == 0, complaint


def test_a_folder_or_a_port_that_is_taken_is_one_line_and_exit_2(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        taken_port = taken.getsockname()[1]
        for path, port in (("new", taken_port), ("file", free_port())):
            server = serve(tmp_path / path, port)
            _, complaint = server.communicate(timeout=60)
            assert server.returncode == 2, complaint
            assert len(complaint.splitlines()) == 1


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("remedies.notify.receivers.a.kind=bogus", "remedies.notify.receivers.a.kind"),
        ("detectors.link_flapping.burst_losses=many", "detectors.link_flapping.burst_losses"),
        ("detectors.nonsense.x=1", "detectors.nonsense"),
        ("correlator.nonsense=1", "correlator.nonsense"),
        ("history.flush_s=soon", "history.flush_s"),
    ],
)
def test_settings_that_a_part_would_refuse_are_refused_here(flag: str, told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        doctor.own_settings(load([flag]))
