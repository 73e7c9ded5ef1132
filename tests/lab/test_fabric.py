"""A lab is made, broken in every way and taken away whole; a job feels each fault and goes on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import faults
from lab.fabric import Fabric, missing, sweep
from lab.namespace import Namespace
from lab.topology import Topology
from lab.truth import Truth
from lab.workloads.runner import RingJob
from schemas.registry import encode
from tests.conftest import eventually

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")


@pytest.fixture(scope="module")
def fabric() -> Iterator[Fabric]:
    with Fabric(Topology(hosts=2, rails=2)) as made:
        yield made


def names(tag: str) -> list[str]:
    return [name for name in os.listdir("/run/netns") if tag in name]


def test_comes_and_goes_whole() -> None:
    with Fabric(Topology(hosts=3, rails=2, rate_mbps=1000)) as fabric:
        assert len(names(fabric.tag)) == 5
        reached = [
            Ping(fabric.hosts["host-1"], fabric.hosts[host], address).works()
            for host in ("host-2", "host-3")
            for address in fabric.topology.service_addresses(host)
        ]
        assert reached == [True] * 4
    assert names(fabric.tag) == []


def test_a_failure_inside_takes_it_away() -> None:
    with pytest.raises(RuntimeError), Fabric(Topology()) as fabric:
        raise RuntimeError
    assert names(fabric.tag) == []


def test_what_a_killed_owner_left_is_swept_and_a_living_lab_is_not(fabric: Fabric) -> None:
    code = (
        "import sys, time; from lab.fabric import Fabric; from lab.topology import Topology;"
        "f = Fabric(Topology()).__enter__(); left = f.hosts['host-1'].spawn(['sleep', '60']);"
        "print(f.tag, left.pid, flush=True); time.sleep(60)"
    )
    root = Path(__file__).resolve().parents[2]
    owner = subprocess.Popen(
        [sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    tag, left = owner.stdout.readline().split()
    assert sweep() == []
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    assert names(tag)
    assert alive(left)
    assert sweep() == [tag]
    assert names(tag) == []
    eventually(lambda: not alive(left), 5, "a process of the killed lab to be gone")
    assert names(fabric.tag)


def alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_interrupted_lab_leaves_nothing_running() -> None:
    code = (
        "import time; from lab.fabric import Fabric; from lab.topology import Topology\n"
        "with Fabric(Topology()) as f:\n"
        "    left = f.hosts['host-2'].spawn(['sleep', '60'])\n"
        "    print(f.tag, left.pid, flush=True); time.sleep(60)"
    )
    root = Path(__file__).resolve().parents[2]
    owner = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert owner.stdout is not None
    tag, left = owner.stdout.readline().split()
    assert names(tag)
    owner.send_signal(signal.SIGINT)
    owner.communicate(timeout=60)
    assert names(tag) == []
    assert not alive(left)


def test_a_program_sees_its_host(fabric: Fabric) -> None:
    program = fabric.hosts["host-2"].spawn(
        ["sh", "-c", "hostname; ls /sys/class/net; echo $$"], stdout=subprocess.PIPE, text=True
    )
    said, _ = program.communicate(timeout=60)
    assert said.split() == ["host-2", "lo", "rail0", "rail1", "svc0", str(program.pid)]


class Ping:
    """Datagrams from one host to another's address."""

    def __init__(self, source: Namespace, target: Namespace, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._there = target.call(socket.socket, family, socket.SOCK_DGRAM)
        self._there.bind((address, 0))
        self._there.settimeout(0.3)
        self._here = source.call(socket.socket, family, socket.SOCK_DGRAM)
        self._to = self._there.getsockname()[:2]

    def works(self, tries: int = 5) -> bool:
        for _ in range(tries):
            try:
                self._here.sendto(b"ping", self._to)
                self._there.recv(16)
            except OSError:
                continue
            return True
        return False


def carrier(host: Namespace, interface: str) -> str:
    shown = subprocess.run(
        ["ip", "-n", host.name, "-o", "link", "show", interface],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    return "gone" if not shown else "no" if "NO-CARRIER" in shown else "yes"


@pytest.mark.parametrize(
    ("fault", "options", "reaches", "answers", "carries"),
    [
        ("carrier_lost", {}, False, False, "no"),
        ("blackhole", {}, False, False, "yes"),
        ("one_way", {"direction": "to_host"}, True, False, "yes"),
        ("one_way", {"direction": "from_host"}, False, True, "yes"),
        ("random_loss", {"percent": 30}, True, True, "yes"),
        ("added_delay", {"delay_ms": 20}, True, True, "yes"),
        ("rate_cut", {"rate_mbps": 10}, True, True, "yes"),
        ("switch_dead", {}, False, False, "no"),
        ("host_dead", {}, False, False, "no"),
        ("interface_removed", {}, False, False, "gone"),
    ],
)
def test_each_fault_does_what_it_says_and_is_mended(
    fabric: Fabric,
    fault: str,
    options: dict[str, object],
    reaches: bool,
    answers: bool,
    carries: str,
) -> None:
    one, two = fabric.hosts["host-1"], fabric.hosts["host-2"]
    topology, truth = fabric.topology, Truth()

    def ways() -> tuple[bool, bool]:
        there = Ping(one, two, topology.service_addresses("host-2")[0]).works()
        back = Ping(two, one, topology.service_addresses("host-1")[0]).works()
        return there, back

    assert ways() == (True, True)
    with faults.make(fault, fabric, truth, "host-1", 0, **options):
        eventually(lambda: carrier(one, "rail0") == carries, 5)
        assert ways() == (reaches, answers)
    eventually(lambda: ways() == (True, True), 10)
    (span,) = truth.spans
    assert span.fault == fault
    assert span.ended_ns is not None
    assert span.ended_ns > span.began_ns


def test_delay_is_what_was_asked(fabric: Fabric) -> None:
    ping = Ping(fabric.hosts["host-1"], fabric.hosts["host-2"], "10.99.0.2")
    assert ping.works()
    with faults.make("added_delay", fabric, Truth(), "host-1", 0, delay_ms=30):
        assert ping.works()
        began_s = time.monotonic()
        assert ping.works(1)
        assert time.monotonic() - began_s >= 0.03


def test_a_train_of_flaps_is_as_long_as_asked(fabric: Fabric) -> None:
    host = fabric.hosts["host-1"]

    def changes() -> int:
        command = [
            "ip",
            "netns",
            "exec",
            host.name,
            "cat",
            "/sys/class/net/rail1/carrier_down_count",
        ]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    before = changes()
    train = faults.make("flap_train", fabric, Truth(), "host-1", 1, count=4, down_s=0.03, up_s=0.03)
    train.begin()
    eventually(lambda: train.flaps == 4, 10)  # type: ignore[attr-defined]
    train.end()
    eventually(lambda: changes() - before == 4, 5)


def test_truth_is_told_as_events(fabric: Fabric) -> None:
    told: list[tuple[bytes, bytes]] = []
    truth = Truth(lambda key, value: told.append((key, value)))
    faults.make("blackhole", fabric, truth, "host-1", 1).hold(0.01)
    assert [key for key, _ in told] == [b"link:host-1/rail1--leaf-2/p1"] * 2
    assert b'"phase":"begin"' in told[0][1]
    assert b'"phase":"end"' in told[1][1]
    faults.make("flap_train", fabric, truth, "host-1", 1, count=1, down_s=0.02).hold(0.05)
    assert b'"count":1,"down_s":0.02,"flaps":1' in told[3][1]


def test_an_unknown_fault_is_named(fabric: Fabric) -> None:
    with pytest.raises(ValueError, match=r"no fault 'flood'; there are added_delay, blackhole"):
        faults.make("flood", fabric, Truth(), "host-1")


@pytest.mark.parametrize("version", [4, 6])
def test_a_job_stalls_over_a_dead_link_and_ends_right(fabric: Fabric, version: int) -> None:
    with RingJob(fabric, 3, vector_bytes=1 << 16, version=version) as job:
        eventually(lambda: len(job.iterations()) > 20, 20)
        faults.make("blackhole", fabric, Truth(), "host-2", 0).hold(0.4)
        summaries = job.wait(60)
    assert [(one["errors"], one["right"]) for one in summaries] == [(0, True)] * 2
    assert all(one["stall_max_ms"] >= 300 for one in summaries)


def test_a_job_says_why_it_died(fabric: Fabric) -> None:
    with RingJob(fabric, 30, vector_bytes=1 << 16, patience_s=0.5) as job:
        eventually(lambda: len(job.iterations()) > 5, 20)
        with faults.make("host_dead", fabric, Truth(), "host-2"):
            summaries = job.wait(60)
    assert {one["errors"] for one in summaries} == {1}
    assert all("nothing moved" in one["error"] or "gone" in one["error"] for one in summaries)


def test_settings_and_inventory_of_a_topology() -> None:
    topology = Topology(hosts=3, rails=2)
    table = topology.linkpass("host-2", "k" * 16)
    assert set(table["peers"]) == {"host-1", "host-3"}
    assert table["peers"]["host-3"]["paths"][1] == {
        "interface": "rail1",
        "local": "10.101.0.2",
        "remote": "10.101.0.3",
        "via": ["10.101.0.3", "fd0e:1::3"],
    }
    assert len({encode(item) for item in topology.inventory(1)}) == 6
    assert len(topology.job("llm", 1).ranks) == 3
