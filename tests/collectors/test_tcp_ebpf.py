"""Collector ``tcp`` with eBPF, in the kernel that is here."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import collectors.ebpf
from collectors.base import Host
from collectors.ebpf import libbpf, watch
from collectors.ebpf.cgroup import mount
from collectors.ebpf.flows import ROWS_MAX, possible
from collectors.ebpf.libbpf import BpfObject
from collectors.ebpf.watch import NoEbpf
from collectors.tcp import TcpCollector, TcpSettings
from schemas.packet import TcpFlows, TcpFlowStats
from schemas.registry import decode, encode

_SOURCES = Path(collectors.ebpf.__file__).parent
_OF_PROGRAMS = ("sockops", "iter/tcp", ".maps")


@pytest.fixture(autouse=True)
def _kernel_can() -> None:
    try:
        possible()
    except NoEbpf as reason:
        pytest.skip(f"no eBPF here: {reason}")


@contextmanager
def opened(host: Host, **settings: Any) -> Iterator[TcpCollector]:
    collector = TcpCollector(host, TcpSettings(include_loopback=True, **settings))
    try:
        yield collector
    finally:
        collector.close()


def rows(collector: TcpCollector) -> dict[tuple[str, str], dict[str, Any]]:
    found = {}
    for event in collector.collect():
        assert isinstance(event, TcpFlowStats)
        assert decode(encode(event), "telemetry.packet") == event
        columns = event.columns.model_dump()
        for place in range(len(event.columns)):
            row = {name: column[place] for name, column in columns.items()}
            key = row["local"], row["remote"]
            assert key not in found
            found[key] = row
    return found


def pair(address: str = "127.0.0.1") -> tuple[socket.socket, socket.socket]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listener:
        near = socket.create_connection(listener.getsockname()[:2])
        far, _ = listener.accept()
    return near, far


def key(end: socket.socket) -> tuple[str, str]:
    def shown(name: tuple[Any, ...]) -> str:
        return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"

    return shown(end.getsockname()), shown(end.getpeername())


def push(near: socket.socket, far: socket.socket, size: int) -> None:
    """Send and receive so many bytes, and see them acknowledged."""

    def drain() -> None:
        left = size
        while left and (read := len(far.recv(min(left, 1 << 16)))):
            left -= read
        far.sendall(b"done")

    thread = threading.Thread(target=drain)
    thread.start()
    near.sendall(bytes(size))
    assert near.recv(4, socket.MSG_WAITALL) == b"done"
    thread.join(60)


def soon(look: Callable[[], bool], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not look():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_counts_are_those_of_the_interval(host: Host, address: str) -> None:
    try:
        old, old_far = pair(address)
    except OSError:
        pytest.skip(f"this machine has no address {address}")
    push(old, old_far, 300_000)
    with opened(host) as collector:
        push(old, old_far, 50_000)
        new, new_far = pair(address)
        push(new, new_far, 70_000)
        seen, idle = rows(collector), rows(collector)
    for near, far, size in ((old, old_far, 50_000), (new, new_far, 70_000)):
        row, other = seen[key(near)], seen[key(far)]
        # The kernel counts the SYN as a byte.
        assert size <= row["bytes_sent"] <= size + 1
        assert row["bytes_received"] == 4
        assert other["bytes_received"] == size
        assert row["segments_sent"] > 0 and row["cwnd_segments"] > 0
        assert not row["closed"] and not row["segments_retransmitted"]
        assert (row["loss_episodes"], row["timeouts"]) == (0, 0)
        if row["complete"]:
            assert sum(row["rtt_samples"]) > 0
            assert 0 < row["rtt_min_us"] <= row["rtt_p50_us"] <= row["rtt_p99_us"]
            assert row["rtt_p99_us"] <= row["rtt_max_us"]
        later = idle[key(near)]
        assert (later["bytes_sent"], later["bytes_received"], later["rtt_samples"]) == (0, 0, [])
    assert seen[key(new)]["complete"]
    for end in (old, old_far, new, new_far):
        end.close()


def test_a_flow_that_was_there_before_is_complete_on_new_kernels(host: Host) -> None:
    release = tuple(int(part) for part in re.findall(r"\d+", host.kernel)[:2])
    near, far = pair()
    with near, far, opened(host) as collector:
        push(near, far, 1000)
        assert rows(collector)[key(near)]["complete"] == (release >= (6, 12))


def test_flows_that_end_within_an_interval_are_told_once(host: Host) -> None:
    with opened(host) as collector:
        ends = set()
        for _ in range(30):
            near, far = pair()
            ends |= {key(near), key(far)}
            push(near, far, 5000)
            near.close()
            far.close()
        seen: dict[tuple[str, str], dict[str, Any]] = {}

        def all_ended() -> bool:
            for flow, row in rows(collector).items():
                if flow in ends:
                    assert flow not in seen or not seen[flow]["closed"]
                    seen[flow] = row
            return len(seen) == 60 and all(row["closed"] for row in seen.values())

        soon(all_ended)
        # Data, the SYN, the FIN.
        assert {
            5000 <= row["bytes_sent"] + row["bytes_received"] - 4 <= 5004 for row in seen.values()
        } == {True}
        assert not ends & set(rows(collector))


def test_lost_segments_are_episodes_and_timeouts(namespaces: Any, host: Host) -> None:
    namespaces.address()
    listener = namespaces.inside(namespaces.b, lambda: socket.create_server(("10.99.0.2", 0)))
    near = namespaces.inside(namespaces.a, lambda: socket.create_connection(listener.getsockname()))
    far, _ = listener.accept()
    with near, far, listener, opened(host, all_namespaces=True) as collector:
        push(near, far, 100_000)
        well = rows(collector)[key(near)]
        # Data arrives but every acknowledgement is lost.
        namespaces.ip("-n", namespaces.b, "route", "add", "blackhole", "10.99.0.1/32")
        near.sendall(bytes(1000))
        bad = []

        def timed_out() -> bool:
            bad.append(rows(collector)[key(near)])
            return sum(row["timeouts"] for row in bad) >= 2

        soon(timed_out)
        namespaces.ip("-n", namespaces.b, "route", "del", "blackhole", "10.99.0.1/32")
    assert (well["segments_retransmitted"], well["loss_episodes"], well["timeouts"]) == (0, 0, 0)
    assert sum(row["segments_retransmitted"] for row in bad) >= 2
    # All is sent again for one and the same loss.
    assert sum(row["loss_episodes"] for row in bad) == 1


def test_other_namespaces_only_where_wanted(namespaces: Any, host: Host) -> None:
    namespaces.address()
    listener = namespaces.inside(namespaces.b, lambda: socket.create_server(("10.99.0.2", 0)))
    with opened(host, all_namespaces=False) as own, opened(host, all_namespaces=True) as every:
        near = namespaces.inside(
            namespaces.a, lambda: socket.create_connection(listener.getsockname())
        )
        far, _ = listener.accept()
        push(near, far, 1000)
        assert not {key(near), key(far)} & set(rows(own))
        assert {key(near), key(far)} <= set(rows(every))
        near.close()
        far.close()
        listener.close()
        assert not any(local.startswith("10.99.") for local, _ in rows(own))


_DIALER = """
import socket, sys
sys.stdin.readline()
near = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
near.sendall(b"hello")
sys.stdin.readline()
"""


def test_a_flow_belongs_to_the_job_of_its_cgroup(host: Host) -> None:
    folder = mount() / f"evertick-test-{os.getpid()}" / "job_42"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener, opened(host) as collector:
            process = subprocess.Popen(
                [sys.executable, "-c", _DIALER, str(listener.getsockname()[1])],
                stdin=subprocess.PIPE,
                text=True,
            )
            assert process.stdin is not None
            (folder / "cgroup.procs").write_text(str(process.pid))
            process.stdin.write("go\n")
            process.stdin.flush()
            far, peer = listener.accept()
            assert far.recv(5) == b"hello"
            row = rows(collector)[f"127.0.0.1:{peer[1]}", key(far)[0]]
            far.close()
            process.communicate("end\n", timeout=30)
        assert row["job"] == "job_42"
        assert row["cgroup"].endswith(f"evertick-test-{os.getpid()}/job_42")
    finally:
        soon(lambda: not (folder / "cgroup.procs").read_text())
        folder.rmdir()
        folder.parent.rmdir()


def test_many_flows_are_split_into_batches_that_fit_a_message(host: Host) -> None:
    ends = [pair() for _ in range(ROWS_MAX // 2 + 10)]
    with opened(host, rows_max=10_000) as collector:
        events = list(collector.collect())
    for near, far in ends:
        near.close()
        far.close()
    assert next(len(event.columns) for event in events) == ROWS_MAX  # type: ignore[attr-defined]
    assert len({event.id for event in events}) == len(events) >= 2


_WATCHER = """
import signal, sys
from pathlib import Path
from collectors.base import Host
from collectors.tcp import TcpCollector, TcpSettings
collector = TcpCollector(Host("n", "default", Path("/")), TcpSettings())
list(collector.collect())
print("at work", flush=True)
signal.pause()
"""


def test_kill_9_leaves_nothing_in_the_kernel() -> None:
    def links() -> set[int]:
        library, found, at = ctypes.CDLL("libbpf.so.1"), set(), ctypes.c_uint32(0)
        while library.bpf_link_get_next_id(at, ctypes.byref(at)) == 0:
            found.add(at.value)
        return found

    before = links()
    process = subprocess.Popen(
        [sys.executable, "-c", _WATCHER],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "at work\n"
    assert len(links() - before) >= 2
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    process.stdout.close()
    soon(lambda: not links() - before)


@pytest.mark.parametrize(
    ("module", "name", "value", "reason", "fix"),
    [
        (libbpf, "_LIBRARY", "libbpf.so.99", "libbpf", "apt-get install libbpf1"),
        (watch, "_BTF", Path("/nowhere"), "kernel types", "CONFIG_DEBUG_INFO_BTF"),
    ],
)
def test_without_its_means_sock_diag_takes_over(
    host: Host, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, value: Any, reason: str,
    fix: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(module, name, value)
    with opened(host) as collector:
        near, far = pair()
        with near, far:
            list(collector.collect())
            assert {type(event) for event in collector.collect()} == {TcpFlows}
    diag, ebpf = TcpCollector.capabilities(host, TcpSettings())
    assert diag.works and not ebpf.works and ebpf.optional
    assert reason in ebpf.detail and fix in ebpf.fix


def test_the_kernel_refuses_what_is_no_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.o"
    broken.write_bytes(b"\x7fELF")
    monkeypatch.setattr(watch, "_OBJECT", broken)
    with pytest.raises(NoEbpf, match="eBPF: open"):
        watch.load()


def test_both_ways_are_told_to_the_doctor(host: Host) -> None:
    found = TcpCollector.capabilities(host, TcpSettings())
    assert [(one.name, one.works) for one in found] == [("sock_diag", True), ("eBPF", True)]


def sections(path: Path, folder: Path) -> dict[str, bytes]:
    """The parts of an object that the kernel gets."""
    found = {}
    for name in _OF_PROGRAMS:
        out = folder / name.replace("/", "-")
        subprocess.run(
            ["llvm-objcopy", f"--dump-section={name}={out}", path, folder / "copy"], check=True
        )
        found[name] = out.read_bytes()
    return found


def test_the_object_is_what_its_source_makes(tmp_path: Path) -> None:
    for program in ("clang", "llvm-strip", "llvm-objcopy"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program} to build the object")
    if not Path("/usr/include/bpf/bpf_helpers.h").exists():
        pytest.skip("needs libbpf-dev to build the object")
    built = tmp_path / "flows.bpf.o"
    subprocess.run(["sh", _SOURCES / "build.sh", built], check=True)
    BpfObject(built.read_bytes()).close()
    by = re.search(r"clang \d+\.\d+\.\d+", (_SOURCES / "build.sh").read_text())
    version = subprocess.run(["clang", "--version"], capture_output=True, text=True, check=True)
    assert by is not None
    if by[0] not in version.stdout.replace("version ", ""):
        pytest.skip(f"built and loaded; not compared, the object was made by {by[0]}")
    assert sections(built, tmp_path) == sections(_SOURCES / "flows.bpf.o", tmp_path)
