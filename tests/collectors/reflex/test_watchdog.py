"""The watchdog itself, in two hosts with two rails: network namespaces, real routes, real faults."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from collectors.reflex.choice import HoldDown
from collectors.reflex.liveness import Timing
from collectors.reflex.plan import PathPlan, PeerPlan, Plan, settings_of

_MS = 1_000_000
_HOME = Path(__file__).resolve().parents[3]
_PORT = 17241


class Hosts:
    """Two hosts, ``1`` and ``2``, and a switch for each of two rails."""

    def __init__(self, tag: str) -> None:
        self.hosts = [f"{tag}-1", f"{tag}-2"]
        self.switch = f"{tag}-s"

    def make(self) -> None:
        self.ip("netns", "add", self.switch)
        # Different indices at the two ends: the kernel delays news of a veth whose peer has its own.
        for number in range(4):
            self.inside(self.switch, "link", "add", f"pad{number}", "type", "bridge")
        for rail in (0, 1):
            self.inside(self.switch, "link", "add", f"leaf{rail}", "type", "bridge")
            self.inside(self.switch, "link", "set", f"leaf{rail}", "up")
        for number, host in enumerate(self.hosts, 1):
            self.ip("netns", "add", host)
            self.inside(host, "link", "set", "lo", "up")
            self.inside(host, "addr", "add", f"10.9.0.{number}/32", "dev", "lo")
            self.inside(host, "addr", "add", f"fd09::{number}/128", "dev", "lo")
            for rail in (0, 1):
                port = f"h{number}r{rail}"
                self.inside(
                    host, "link", "add", f"rail{rail}", "type", "veth", "peer", "name", port,
                    "netns", self.switch,
                )  # fmt: skip
                self.inside(self.switch, "link", "set", port, "master", f"leaf{rail}", "up")
                self.inside(host, "addr", "add", f"10.{rail}.0.{number}/24", "dev", f"rail{rail}")
                self.inside(
                    host,
                    "addr",
                    "add",
                    f"fd0{rail + 1}::{number}/64",
                    "dev",
                    f"rail{rail}",
                    "nodad",
                )
                self.inside(host, "link", "set", f"rail{rail}", "up")

    def remove(self) -> None:
        for name in (*self.hosts, self.switch):
            subprocess.run(["ip", "netns", "del", name], check=False, timeout=30)

    def silence(self, host: int, rail: int, on: bool) -> None:
        """Let the switch forward nothing from or to a host's port, which keeps its carrier."""
        master = ["nomaster"] if on else ["master", f"leaf{rail}"]
        self.inside(self.switch, "link", "set", f"h{host}r{rail}", *master)

    def carrier(self, host: int, rail: int, on: bool) -> None:
        self.inside(self.switch, "link", "set", f"h{host}r{rail}", "up" if on else "down")

    def beneath(
        self, host: int, rail: int, address: str = "10.9.0.{}", via: str = "10.{}.0.{}"
    ) -> None:
        """The operator's own route to the other host."""
        other = 3 - host
        self.inside(
            self.hosts[host - 1], "route", "replace", address.format(other), "via",
            via.format(rail, other), "dev", f"rail{rail}", "metric", "100",
        )  # fmt: skip

    def route(self, host: int, address: str | None = None) -> str:
        """The rail that a host's traffic to the other's service address takes; empty for none."""
        done = subprocess.run(
            ["ip", "-n", self.hosts[host - 1], "route", "get", address or f"10.9.0.{3 - host}"],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        words = done.stdout.split()
        return words[words.index("dev") + 1] if "dev" in words else ""

    def ours(self, host: int, *words: str) -> list[str]:
        done = subprocess.run(
            ["ip", *words, "-n", self.hosts[host - 1], "route", "show", "proto", "77"],
            capture_output=True, text=True, timeout=30, check=True,
        )  # fmt: skip
        return done.stdout.splitlines()

    def inside(self, name: str, *words: str) -> None:
        self.ip("-n", name, *words)

    @staticmethod
    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, timeout=30, capture_output=True)


class Dog:
    """One watchdog and what it has reported."""

    def __init__(self, hosts: Hosts, host: int, six: bool = False, **options: Any) -> None:
        self.reports: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            ["ip", "netns", "exec", hosts.hosts[host - 1], sys.executable, "-SP", "-m",
             "collectors.reflex.watchdog"],
            env={**os.environ, "PYTHONPATH": str(_HOME)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
        )  # fmt: skip
        assert self._process.stdin is not None
        self.pid = self._process.pid
        plan = plan_of_host(host, six, **options)
        self._process.stdin.write(json.dumps(settings_of(plan)).encode() + b"\n")
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.reports.append(json.loads(line))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [report for report in list(self.reports) if report["kind"] == kind]

    def moves(self) -> list[tuple[str, Any]]:
        return [(move["reason"], move["taken"]) for move in self.of("move")]

    def stop(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(b"stop\n")
        self._end()

    def orphan(self) -> None:
        """As when the agent is killed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._end()

    def _end(self) -> None:
        try:
            assert self._process.wait(10) == 0
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            raise
        self._thread.join(10)


def plan_of_host(host: int, six: bool, **options: Any) -> Plan:
    other = 3 - host
    service, rail = ("fd09::{}", "fd0{}::{}") if six else ("10.9.0.{}", "10.{}.0.{}")
    paths = []
    for number in (0, 1):
        of_rail = number + 1 if six else number
        local, remote = rail.format(of_rail, host), rail.format(of_rail, other)
        paths.append(PathPlan(f"rail{number}", local, remote, (remote,), False))
    plan = Plan(
        node=f"host-{host}",
        key=b"k" * 32,
        port=_PORT,
        addresses=(service.format(host),),
        metric=5,
        rto_min_ms=4,
        dry_run=False,
        priority=20,
        health_ns=200 * _MS,
        timing=Timing(10 * _MS, 30 * _MS),
        hold=HoldDown(300 * _MS, 1000 * _MS, 5000 * _MS),
        peers=(PeerPlan(f"host-{other}", (service.format(other),), tuple(paths)),),
    )
    return plan._replace(**options)


def eventually(what: Callable[[], Any], timeout_s: float = 15.0) -> Any:
    deadline_s = time.monotonic() + timeout_s
    while not (found := what()):
        assert time.monotonic() < deadline_s, "not in time"
        time.sleep(0.01)
    return found


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    made = Hosts(f"evw{os.getpid()}x{time.monotonic_ns() % 100000}")
    try:
        made.make()
    except subprocess.CalledProcessError as error:
        made.remove()
        pytest.skip(f"this machine makes no hosts in namespaces: {error.stderr!r}")
    try:
        yield made
    finally:
        made.remove()


@pytest.fixture
def dogs() -> Iterator[list[Dog]]:
    started: list[Dog] = []
    yield started
    for dog in started:
        with contextlib.suppress(ProcessLookupError):
            os.kill(dog.pid, signal.SIGKILL)


def both(hosts: Hosts, dogs: list[Dog], **options: Any) -> tuple[Dog, Dog, int]:
    """Two watchdogs that have their routes, and the rail that both chose."""
    one, two = Dog(hosts, 1, **options), Dog(hosts, 2, **options)
    dogs += [one, two]
    first = eventually(lambda: one.of("move") and two.of("move") and one.of("move")[0])
    rail = first["taken"]
    eventually(lambda: two.of("move")[-1]["taken"] == rail)
    return one, two, rail


@pytest.mark.parametrize("six", [False, True])
def test_a_silent_loss_moves_both_ends_and_back(hosts: Hosts, dogs: list[Dog], six: bool) -> None:
    address = {1: "fd09::2", 2: "fd09::1"} if six else {1: "10.9.0.2", 2: "10.9.0.1"}
    one, two, rail = both(hosts, dogs, six=six)
    assert hosts.route(1, address[1]) == hosts.route(2, address[2]) == f"rail{rail}"
    (ours,) = hosts.ours(1, *(["-6"] if six else []))
    assert "rto_min lock 4ms" in ours and "metric 5" in ours
    hosts.silence(1, rail, True)
    eventually(
        lambda: {hosts.route(1, address[1]), hosts.route(2, address[2])} == {f"rail{1 - rail}"}
    )
    for dog in (one, two):
        (death,) = eventually(lambda dog=dog: dog.of("transition"))
        assert (death["alive"], death["path"], death["fault"]) == (False, rail, "silent")
        assert dog.of("move")[-1]["reason"] == "failover"
        assert 0 < dog.of("move")[-1]["failed_ns"] < dog.of("move")[-1]["decided_ns"]
    hosts.silence(1, rail, False)
    eventually(lambda: {hosts.route(1, address[1]), hosts.route(2, address[2])} == {f"rail{rail}"})
    assert one.moves()[-1] == two.moves()[-1] == ("failback", rail)


def test_carrier_and_its_return(hosts: Hosts, dogs: list[Dog]) -> None:
    one, two, rail = both(hosts, dogs)
    hosts.carrier(2, rail, False)
    eventually(lambda: hosts.route(1) == hosts.route(2) == f"rail{1 - rail}")
    eventually(lambda: two.of("transition"))
    assert two.of("transition")[0]["fault"] == "carrier"
    hosts.carrier(2, rail, True)
    eventually(lambda: hosts.route(1) == hosts.route(2) == f"rail{rail}")
    # An interface set down takes its routes with it; one that is replaced has another index.
    hosts.inside(hosts.hosts[0], "link", "set", f"rail{rail}", "down")
    eventually(lambda: hosts.route(1) == hosts.route(2) == f"rail{1 - rail}")
    hosts.inside(hosts.hosts[0], "link", "set", f"rail{rail}", "up")
    eventually(lambda: hosts.route(1) == hosts.route(2) == f"rail{rail}")
    assert [told["alive"] for told in one.of("transition")] == [False, True] * 2


def test_all_paths_dead_is_said_and_the_route_stays(hosts: Hosts, dogs: list[Dog]) -> None:
    one, _, rail = both(hosts, dogs)
    for other in (0, 1):
        hosts.silence(2, other, True)
    eventually(lambda: any(told["paths_alive"] == 0 for told in one.of("transition")))
    time.sleep(0.3)
    here = hosts.route(1)
    for other in (0, 1):
        hosts.silence(2, other, False)
    eventually(lambda: hosts.route(1) == hosts.route(2) == f"rail{rail}")
    assert here in ("rail0", "rail1")


def test_orderly_end_leaves_what_the_operator_had(hosts: Hosts, dogs: list[Dog]) -> None:
    hosts.beneath(1, 0)
    one, two, rail = both(hosts, dogs)
    one.stop()
    assert not hosts.ours(1) and hosts.route(1) == "rail0"
    assert one.moves()[-1] == ("release", None)
    # The other was told, and holds nothing dead.
    time.sleep(0.3)
    assert not two.of("transition")
    # Without a route beneath, taking ours away would cut the peer off.
    two.stop()
    assert len(hosts.ours(2)) == 1 and hosts.route(2) == f"rail{rail}"
    assert "there is no other" in two.of("note")[-1]["text"]


def test_a_route_beneath_that_leads_into_a_dead_path_is_not_uncovered(
    hosts: Hosts, dogs: list[Dog]
) -> None:
    one, _, rail = both(hosts, dogs)
    hosts.beneath(1, rail)
    hosts.silence(1, rail, True)
    eventually(lambda: hosts.route(1) == f"rail{1 - rail}")
    one.stop()
    assert hosts.route(1) == f"rail{1 - rail}"
    assert "dead" in one.of("note")[-1]["text"]


def test_a_killed_agent_leaves_routes_which_the_next_start_puts_right(
    hosts: Hosts, dogs: list[Dog]
) -> None:
    one, _, rail = both(hosts, dogs)
    one.orphan()
    assert hosts.route(1) == f"rail{rail}"
    hosts.silence(1, rail, True)
    time.sleep(0.2)
    assert hosts.route(1) == f"rail{rail}"
    again = Dog(hosts, 1)
    dogs.append(again)
    eventually(lambda: hosts.route(1) == hosts.route(2) == f"rail{1 - rail}")
    assert again.moves() == [("restore", 1 - rail)]
    hosts.silence(1, rail, False)
    eventually(lambda: hosts.route(1) == hosts.route(2) == f"rail{rail}")


def test_a_dry_run_tells_and_moves_nothing(hosts: Hosts, dogs: list[Dog]) -> None:
    hosts.beneath(1, 0)
    one, _, rail = both(hosts, dogs, dry_run=True)
    hosts.silence(1, rail, True)
    eventually(lambda: one.moves()[-1] == ("failover", 1 - rail))
    assert all(move["dry_run"] for move in one.of("move"))
    assert not hosts.ours(1) and hosts.route(1) == "rail0"


def test_a_forged_flood_moves_nothing_and_is_told(hosts: Hosts, dogs: list[Dog]) -> None:
    one, two, rail = both(hosts, dogs)
    eventually(lambda: one.of("health"))
    # Long enough for the peers to be no news to each other.
    time.sleep(3.2)
    one.reports.clear()
    two.reports.clear()
    flood(hosts, rail, seconds=2.5)
    eventually(lambda: sum(refusals(one)) > 5000)
    assert not one.of("move") and not one.of("transition")
    assert not two.of("move") and not two.of("transition")
    told = one.of("refused")
    assert {report["interface"] for report in told} == {f"rail{rail}"}
    assert any("10.66.0.66" in report["sources"] for report in told)
    for dog in (one, two):
        rows = [row for report in dog.of("health") for row in report["rows"]]
        assert rows and all(row[2] for row in rows)


def refusals(dog: Dog) -> list[int]:
    return [
        report["malformed"] + report["forged"] + report["replayed"] + report["unprocessed"]
        for report in dog.of("refused")
    ]


_FLOOD = """
import socket, struct, sys, time
interface, target, seconds = sys.argv[1], bytes.fromhex(sys.argv[2]), float(sys.argv[3])
host, peer, port = sys.argv[4], sys.argv[5], int(sys.argv[6])
out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
out.bind((interface, 0))
def frame(source, source_port, target_port, payload):
    udp = struct.pack("!HHHH", source_port, target_port, 8 + len(payload), 0) + payload
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0,
                       socket.inet_aton(source), socket.inet_aton(host))
    total = sum(struct.unpack("!10H", head))
    total = (total & 0xFFFF) + (total >> 16)
    head = head[:10] + struct.pack("!H", ~total & 0xFFFF) + head[12:]
    return target + bytes.fromhex("020000000066") + bytes.fromhex("0800") + head + udp
magic = b"EVH1" + bytes(38) + b"\\0\\2"
frames = [
    frame(peer, port, port, magic + bytes(58 + 16)),
    frame(peer, port + 1, port + 1, magic + bytes(58 + 16)),
    frame("10.66.0.66", 999, port + 1, b"hello"),
    frame("10.66.0.66", 999, port, b"hello"),
]
end, sent = time.monotonic() + seconds, 0
began = time.monotonic()
while time.monotonic() < end:
    for each in frames:
        out.send(each)
    sent += len(frames)
    # Ten thousand a second.
    time.sleep(max(0, began + sent / 10000 - time.monotonic()))
"""


def flood(hosts: Hosts, rail: int, seconds: float) -> None:
    """Send forged heartbeats to host 1 from the switch, in the peer's name and in others'."""
    told = subprocess.run(
        ["ip", "-n", hosts.hosts[0], "-j", "link", "show", f"rail{rail}"],
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    mac = json.loads(told.stdout)[0]["address"].replace(":", "")
    subprocess.run(
        ["ip", "netns", "exec", hosts.switch, sys.executable, "-c", _FLOOD, f"leaf{rail}", mac,
         str(seconds), f"10.{rail}.0.1", f"10.{rail}.0.2", str(_PORT)],
        check=True, timeout=60,
    )  # fmt: skip


def test_the_flood_is_made_of_heartbeats() -> None:
    assert struct.calcsize("!4sQQQQIBB") == 42 and socket.AF_PACKET
