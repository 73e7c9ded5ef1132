"""LinkPass in real agents on hosts of a lab, under a job that must not notice.

What is asserted is who moved what and that the job ended right; how long it stood still is the
benchmark's matter.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from bus.consumer import read_all
from lab import cycles, faults
from lab.fabric import missing
from lab.namespace import Namespace
from lab.processes import tree
from lab.stage import Stage
from lab.topology import Topology
from lab.truth import Truth
from lab.workloads.runner import RingJob
from schemas.event import Event
from schemas.path import HeartbeatsRefused, RouteMove, RouteMoveReason
from tests.conftest import eventually

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")

PORT = 7701
FLOOD_PER_S = 10_000
KILLS = 50


@pytest.fixture
def stage() -> Iterator[Stage]:
    """Three hosts; agents on the first two, who are peers. The third is a stranger."""
    with Stage(Topology(3, 2), linkpass={"hold_down_max_s": 1.0}) as made:
        for host, peer in (("host-1", "host-2"), ("host-2", "host-1")):
            made.agent(host, [peer])
        for host in ("host-1", "host-2"):
            eventually(lambda host=host: cycles.own_routes(made.fabric, host) == 1, 30)  # type: ignore[misc]
        # Until both ends have heard each other for a while.
        time.sleep(1)
        yield made


def events(stage: Stage) -> list[Event]:
    return [one.event for one in read_all(stage.kafka, ["telemetry.packet"], "t") if one.event]


def moves(stage: Stage, since_ns: int) -> list[RouteMove]:
    return [one for one in events(stage) if isinstance(one, RouteMove) and one.at_ns >= since_ns]


def raw_udp(source: str, target: str, payload: bytes) -> bytes:
    """An IPv4 packet whose source may be a lie; the kernel fills in its checksum, UDP goes without."""
    udp = struct.pack("!HHHH", PORT, PORT, 8 + len(payload), 0) + payload
    return (
        struct.pack(
            "!BBHHHBBH4s4s",
            0x45,
            0,
            20 + len(udp),
            0,
            0,
            64,
            socket.IPPROTO_UDP,
            0,
            socket.inet_aton(source),
            socket.inet_aton(target),
        )
        + udp
    )


def captured(leaf: Namespace, port: str, count: int) -> list[bytes]:
    """Payloads of heartbeats that a leaf's port receives."""
    tap = leaf.call(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)))
    tap.bind((port, 0))
    tap.settimeout(5)
    found = []
    while len(found) < count:
        frame = tap.recv(4096)
        ip = frame[14:]
        if (
            frame[12:14] == b"\x08\0"
            and ip[9] == socket.IPPROTO_UDP
            and struct.unpack("!H", ip[22:24])[0] == PORT
        ):
            found.append(ip[28:])
    tap.close()
    return found


def flood(stranger: Namespace, packets: list[bytes], target: str, seconds: float) -> int:
    raw = stranger.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW))
    began_s, sent = time.monotonic(), 0
    while (passed_s := time.monotonic() - began_s) < seconds:
        while sent < passed_s * FLOOD_PER_S:
            raw.sendto(packets[sent % len(packets)], (target, 0))
            sent += 1
        time.sleep(0.001)
    raw.close()
    return sent


@pytest.mark.parametrize("what", ["forged", "replayed", "malformed", "strangers"])
def test_a_flood_of_false_heartbeats_moves_nothing_and_is_told(stage: Stage, what: str) -> None:
    topology, fabric = stage.topology, stage.fabric
    own, peer = topology.rail_address("host-1", 0), topology.rail_address("host-2", 0)
    genuine = captured(fabric.leaves[0], topology.port("host-2"), 50)
    if what == "forged":
        payloads = [one[:-4] + b"\0\0\0\0" for one in genuine]
    elif what == "malformed":
        payloads = [b"not a heartbeat", b"", genuine[0][:20]]
    else:
        payloads = genuine
    source = topology.rail_address("host-3", 0) if what == "strangers" else peer
    with RingJob(Pair(stage), 6, vector_bytes=1 << 16, compute_ms=2) as job:  # type: ignore[arg-type]
        assert cycles.settled(job, 20, 20)
        since_ns = time.time_ns()
        sent = flood(
            fabric.hosts["host-3"], [raw_udp(source, own, one) for one in payloads], own, 3.0
        )
        summaries = job.wait(60)
    assert cycles.job_errors(summaries) == 0
    assert moves(stage, since_ns) == []

    def told() -> int:
        return sum(
            one.malformed + one.forged + one.replayed + one.unprocessed
            for one in events(stage)
            if isinstance(one, HeartbeatsRefused) and one.at_ns >= since_ns
        )

    eventually(lambda: told() >= 0.9 * sent, 10, f"most of {sent} false heartbeats are reported")


class Pair:
    """A lab of which a job sees the first two hosts only."""

    def __init__(self, stage: Stage) -> None:
        self.topology = Topology(2, stage.topology.rails)
        self.hosts = stage.fabric.hosts


def test_a_replayed_heartbeat_of_a_dead_path_does_not_revive_it(stage: Stage) -> None:
    topology, fabric = stage.topology, stage.fabric
    genuine = captured(fabric.leaves[0], topology.port("host-2"), 100)
    own, peer = topology.rail_address("host-1", 0), topology.rail_address("host-2", 0)
    rail = cycles.rail_in_use(fabric, "host-1", "host-2")
    with faults.make("blackhole", fabric, Truth(), "host-2", 0):
        eventually(lambda: cycles.rail_in_use(fabric, "host-1", "host-2") == 1, 10)
        since_ns = time.time_ns()
        flood(fabric.hosts["host-3"], [raw_udp(peer, own, one) for one in genuine], own, 2.0)
        assert moves(stage, since_ns) == []
        assert cycles.rail_in_use(fabric, "host-1", "host-2") == 1
    eventually(lambda: cycles.rail_in_use(fabric, "host-1", "host-2") == rail, 20)


# Fifty starts of an agent take some minutes, on a slow machine more than the limit of one test.
@pytest.mark.timeout(1200)
def test_an_agent_killed_in_a_failover_finds_its_routes_again(stage: Stage) -> None:
    """Fifty times, at any moment from before the fault is noticed to after the way back."""
    fabric, chance = stage.fabric, random.Random(7)
    pair = Pair(stage)
    with RingJob(pair, 600, vector_bytes=1 << 16, compute_ms=2) as job:  # type: ignore[arg-type]
        assert cycles.settled(job, 20, 20)
        for _ in range(KILLS):
            host = chance.choice(["host-1", "host-2"])
            peer = "host-2" if host == "host-1" else "host-1"
            rail = cycles.rail_in_use(fabric, "host-1", "host-2")
            kind = chance.choice(["carrier_lost", "blackhole", "one_way"])
            fault = faults.make(kind, fabric, Truth(), host, rail)
            with fault:
                time.sleep(chance.uniform(0, 0.06))
                agent = stage.agents[host]
                watchdogs = [pid for pid, line in tree(agent.pid).items() if "watchdog" in line]
                os.kill(agent.pid, signal.SIGKILL)
                eventually(lambda: not any(map(_alive, watchdogs)), 5, "the watchdog ends, too")  # noqa: B023
                agent.stop()
                stage.agent(host, [peer])
                eventually(
                    lambda: cycles.rail_in_use(fabric, host, peer) == 1 - rail,  # noqa: B023
                    20,
                    f"{host} leaves rail {rail} after {kind}",
                )
                before = len(job.iterations())
                eventually(lambda: len(job.iterations()) > before + 3, 20, "the job goes on")  # noqa: B023
        assert job.running
    assert cycles.own_routes(fabric, "host-1") == 1


def test_an_orderly_end_gives_the_routes_back(stage: Stage) -> None:
    stage.agents["host-1"].stop()
    assert cycles.own_routes(stage.fabric, "host-1") == 0
    with faults.make("blackhole", stage.fabric, Truth(), "host-1", 1):
        assert cycles.rail_in_use(stage.fabric, "host-1", "host-2") == 0
    assert [one.reason for one in moves(stage, 0) if one.node == "host-1"][-1] in (
        RouteMoveReason.RELEASE,
        RouteMoveReason.START,
    )


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
