"""Faults at random under a running job, and what the job felt of each.

What a job felt is read from the times of its iterations: an iteration in which nothing moved for a
while took that much longer than the usual one.
"""

from __future__ import annotations

import random
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from collectors.reflex.routes import PROTOCOL
from lab import faults
from lab.fabric import Fabric
from lab.faults.base import Fault
from lab.faults.flap_train import FlapTrain
from lab.namespace import command
from lab.truth import Truth
from lab.workloads.runner import Iteration, RingJob

KINDS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("carrier_lost", {}),
    ("blackhole", {}),
    ("one_way", {"direction": "to_host"}),
    ("one_way", {"direction": "from_host"}),
    ("flap_train", {"count": 5, "down_s": 0.05, "up_s": 0.05}),
)
_HOLD_S = (0.4, 0.7)
_AFTER_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Cycle:
    """One fault."""

    fault: str
    host: str
    rail: int
    began_ns: int
    ended_ns: int
    flaps: int


def rail_in_use(fabric: Fabric, source: str, target: str) -> int:
    """The rail that a host's traffic to another takes now."""
    address = fabric.topology.service_addresses(target)[0]
    told = command(["ip", "-n", fabric.hosts[source].name, "route", "get", address]).split()
    return fabric.topology.rail_names.index(told[told.index("dev") + 1])


def own_routes(fabric: Fabric, host: str) -> int:
    """How many IPv4 routes of LinkPass's a host has."""
    words = ["ip", "-n", fabric.hosts[host].name, "route", "show", "proto", str(PROTOCOL)]
    return len(command(words).splitlines())


def run(
    fabric: Fabric,
    count: int,
    pause_s: float,
    rail: Callable[[], int],
    seed: int = 1,
    said: Callable[[int], None] = lambda done: None,
) -> list[Cycle]:
    """Make faults one after another, each on the path that is in use.

    Args:
        fabric: where.
        count: how many.
        pause_s: from the end of one to the beginning of the next.
        rail: the rail in use.
        seed: of the choice of faults.
        said: told how many are done.
    """
    chance = random.Random(seed)
    truth = Truth()
    cycles = []
    for number in range(count):
        kind, options = chance.choice(KINDS)
        host = chance.choice(fabric.topology.host_names[:2])
        where = rail()
        fault = faults.make(kind, fabric, truth, host, where, **options)
        fault.begin()
        _hold(fault, chance.uniform(*_HOLD_S))
        fault.end()
        span = truth.spans[-1]
        assert span.ended_ns is not None
        flaps = fault.flaps if isinstance(fault, FlapTrain) else int(kind == "carrier_lost")
        cycles.append(Cycle(kind, host, where, span.began_ns, span.ended_ns, flaps))
        said(number + 1)
        time.sleep(pause_s)
    return cycles


def stalls_ms(
    cycles: Sequence[Cycle], iterations: Sequence[Iteration], after_ns: int = _AFTER_NS
) -> list[float]:
    """What the job felt of each fault: the longest iteration that overlaps it or the second after,
    over the usual one."""
    usual_ns = median(one.took_ns for one in iterations)
    found = []
    for cycle in cycles:
        took = _overlapping(iterations, cycle.began_ns, cycle.ended_ns + after_ns)
        found.append(max(0.0, (max(took, default=0) - usual_ns) / 1e6))
    return found


def gaps_ms(
    moments_ns: Sequence[int], iterations: Sequence[Iteration], around_ns: int = 30_000_000
) -> list[float]:
    """What the job felt around each of these moments."""
    usual_ns = median(one.took_ns for one in iterations)
    found = []
    for at_ns in moments_ns:
        took = _overlapping(iterations, at_ns - around_ns, at_ns + around_ns)
        found.append(max(0.0, (max(took, default=0) - usual_ns) / 1e6))
    return found


def job_errors(summaries: Sequence[dict[str, Any]]) -> int:
    """Ranks that failed or reduced wrongly."""
    return sum(int(bool(one.get("errors")) or not one.get("right", False)) for one in summaries)


def settled(job: RingJob, least: int, within_s: float) -> bool:
    """Wait until a job has done some iterations; False where it does not in time."""
    deadline_s = time.monotonic() + within_s
    while len(job.iterations()) < least:
        if time.monotonic() > deadline_s or not job.running:
            return False
        time.sleep(0.05)
    return True


def _overlapping(iterations: Sequence[Iteration], from_ns: int, to_ns: int) -> list[int]:
    first = bisect_left(iterations, from_ns, key=lambda one: one.at_ns)
    took = []
    for one in iterations[first:]:
        if one.at_ns - one.took_ns > to_ns:
            break
        took.append(one.took_ns)
    return took


def _hold(fault: Fault, seconds: float) -> None:
    time.sleep(max(seconds, fault.length_s) if isinstance(fault, FlapTrain) else seconds)
