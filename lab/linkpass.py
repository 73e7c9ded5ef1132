"""The benchmark ``linkpass``: what a running job feels of dying links, with LinkPass and without.

Every part runs in a lab of its own, with a real agent in every host. Stalls are read from the job's
own iterations; what Evertick saw is read from its topics.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median

from bus.consumer import read_all
from lab import cycles
from lab.bench import BenchError, Findings, Options, benchmark, registered, wanted
from lab.fabric import Fabric, NoLab
from lab.percentile import percentile
from lab.processes import cpu_seconds, tree
from lab.stage import Stage
from lab.topology import Topology
from lab.workloads.runner import RingJob
from schemas.event import Event
from schemas.packet import LinkTransition
from schemas.path import RouteMove, RouteMoveReason

_CYCLES, _CYCLES_QUICK = 100, 10
_OTHERS, _OTHERS_QUICK = 30, 4
_LOADED_S, _LOADED_QUICK_S = 600.0, 20.0
_CPU_S, _CPU_QUICK_S = 30.0, 10.0
_RATE_MBPS = 1000
_VECTOR_BYTES = 128 * 1024
_SATURATING_BYTES = 4 << 20
_COMPUTE_MS = 2.0
_PAUSE_S = 1.5
_JOB_S = 3600.0
_SETTLE_S = 60.0
_ITERATIONS = 50
_CPU_PEERS = 8
# The defaults keep a path that flaps away for up to a minute; here every second fault would find the
# traffic on the way back, which is what the gap of a failback is measured on.
_HOLD = {"hold_down_max_s": 1.0}
_NEAR_NS = 100_000_000
_WATCHDOG = "collectors.reflex.watchdog"

_STALL = ("cycles", "app_errors", "stall_p50_ms", "stall_p99_ms", "failback_gap_p99_ms")
_FLAPS = ("flaps_injected", "flaps_seen")
_FALSE = "false_failovers"
_WITHOUT = "without_stall_p50_ms"
_MPTCP = "mptcp_stall_p50_ms"
_CPU = "linkpass_cpu_percent_of_core"


@benchmark(
    "linkpass",
    "dying links under a running job: stalls with LinkPass, without, and with multipath TCP",
    (*_STALL, *_FLAPS, _FALSE, _WITHOUT, _MPTCP, _CPU),
)
def linkpass(options: Options) -> Findings:
    """Measure one part after another."""
    keys = set(wanted(registered()["linkpass"], options.only))
    found = Findings()
    try:
        if keys & {*_STALL, *_FLAPS}:
            found.add(_with(options))
        if _WITHOUT in keys:
            found.add(_kernel_alone(options, mptcp=False))
        if _MPTCP in keys:
            found.add(_kernel_alone(options, mptcp=True))
        if _CPU in keys:
            found.add(_cpu(options))
        if _FALSE in keys:
            found.add(_loaded(options))
    except NoLab as reason:
        raise BenchError(str(reason)) from None
    return found


def _with(options: Options) -> Findings:
    count = _CYCLES_QUICK if options.quick else _CYCLES
    options.say(f"two hosts, two rails, agents with LinkPass; {count} faults under a job")
    with Stage(Topology(2, 2, _RATE_MBPS), options.flags, _HOLD) as stage:
        _ready(stage)
        with RingJob(stage.fabric, _JOB_S, _VECTOR_BYTES, _COMPUTE_MS) as job:
            _running(job)
            made = cycles.run(
                stage.fabric,
                count,
                _PAUSE_S,
                lambda: cycles.rail_in_use(stage.fabric, "host-1", "host-2"),
                said=_progress(options, count),
            )
            alive = job.running
            iterations = job.iterations()
        time.sleep(2.0)
        events = _events(stage)
    stalls = cycles.stalls_ms(made, iterations)
    quiet = [
        move.at_ns
        for move in _moves(events, RouteMoveReason.FAILBACK)
        if all(not one.began_ns - _NEAR_NS < move.at_ns < one.ended_ns + _NEAR_NS for one in made)
    ]
    gaps = cycles.gaps_ms(quiet, iterations)
    by_kind = {
        kind: [stall for one, stall in zip(made, stalls, strict=True) if one.fault == kind]
        for kind in sorted({one.fault for one in made})
    }
    worst = ", ".join(
        f"{kind} {median(values):.0f}/{max(values):.0f}" for kind, values in by_kind.items()
    )
    return Findings(
        {
            "cycles": len(made),
            "app_errors": 0 if alive else 1,
            "stall_p50_ms": round(median(stalls), 1),
            "stall_p99_ms": round(percentile(stalls, 99), 1),
            "failback_gap_p99_ms": round(percentile(gaps, 99), 1) if gaps else None,
            "flaps_injected": sum(one.flaps for one in made),
            "flaps_seen": sum(
                1 + event.unseen
                for event in events
                if isinstance(event, LinkTransition)
                and not event.carrier
                and any(
                    event.subject == stage.topology.nic(one.host, one.rail)
                    and one.began_ns - _NEAR_NS <= event.at_ns <= one.ended_ns + _NEAR_NS
                    for one in made
                )
            ),
        },
        [
            f"stall by fault, p50/max ms: {worst}; an iteration took "
            f"{median(one.took_ns for one in iterations) / 1e6:.1f} ms",
            f"failbacks measured: {len(gaps)}; hold-down bounded to {_HOLD['hold_down_max_s']:g} s",
        ],
    )


def _kernel_alone(options: Options, mptcp: bool) -> Findings:
    count = _OTHERS_QUICK if options.quick else _OTHERS
    name = "multipath TCP" if mptcp else "no help at all"
    options.say(f"the same with {name}; {count} faults")
    with Fabric(Topology(2, 2, _RATE_MBPS)) as fabric:
        if mptcp:
            for host in fabric.hosts.values():
                host.sysctl({"mptcp/enabled": 1})
        with RingJob(fabric, _JOB_S, _VECTOR_BYTES, _COMPUTE_MS, mptcp=mptcp) as job:
            _running(job)
            # What is not moved needs longer to recover than the fault lasted.
            made = cycles.run(
                fabric, count, 2 * _PAUSE_S, lambda: 0, said=_progress(options, count)
            )
            alive, iterations = job.running, job.iterations()
    stalls = cycles.stalls_ms(made, iterations, after_ns=3_000_000_000)
    key = _MPTCP if mptcp else _WITHOUT
    died = "" if alive else "; the job died"
    return Findings(
        {key: round(median(stalls), 1)},
        [f"{name}: {count} faults of 0.4 to 0.7 s, longest stall {max(stalls):.0f} ms{died}"],
    )


def _cpu(options: Options) -> Findings:
    seconds = _CPU_QUICK_S if options.quick else _CPU_S
    options.say(f"a host with {_CPU_PEERS} peers on 2 rails, {seconds:.0f} s")
    with Stage(Topology(_CPU_PEERS + 1, 2), options.flags, {}) as stage:
        agent = stage.agent("host-1")
        for host in stage.topology.host_names[1:]:
            stage.agent(host, peers=["host-1"])
        _await_routes(stage, "host-1", _CPU_PEERS)
        time.sleep(3.0)
        [watchdog] = [pid for pid, line in tree(agent.pid).items() if _WATCHDOG in line]
        before_s, began_s = cpu_seconds(watchdog), time.monotonic()
        time.sleep(seconds)
        used_s, took_s = cpu_seconds(watchdog) - before_s, time.monotonic() - began_s
    return Findings(
        {_CPU: round(100 * used_s / took_s, 2)},
        ["the watchdog's process, with what its packets cost on their way through the kernel"],
    )


def _loaded(options: Options) -> Findings:
    seconds = _LOADED_QUICK_S if options.quick else _LOADED_S
    options.say(f"both cores busy, links saturated, nothing broken: {seconds:.0f} s")
    with Stage(Topology(2, 2, _RATE_MBPS), options.flags, {}) as stage, ExitStack() as stack:
        _ready(stage)
        began_ns = time.time_ns()
        for _ in range(2):
            burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(burner.wait)
            stack.callback(burner.kill)
        job = stack.enter_context(RingJob(stage.fabric, _JOB_S, _SATURATING_BYTES))
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s:
            time.sleep(1.0)
            for agent in stage.agents.values():
                agent.check()
        done = len(job.iterations())
        events = _events(stage)
    false = [move for move in _moves(events, RouteMoveReason.FAILOVER) if move.at_ns >= began_ns]
    sent = done * _SATURATING_BYTES / seconds * 8 / 1e6
    return Findings(
        {_FALSE: len(false)},
        [
            f"under load for {seconds:.0f} s: two busy processes and a job that moved {sent:,.0f} Mb/s"
        ],
    )


def _ready(stage: Stage) -> None:
    stage.start_agents()
    for host in stage.topology.host_names:
        _await_routes(stage, host, stage.topology.hosts - 1)


def _await_routes(stage: Stage, host: str, count: int) -> None:
    """Wait until LinkPass has a host's routes."""
    deadline_s = time.monotonic() + _SETTLE_S
    while cycles.own_routes(stage.fabric, host) < count:
        for agent in stage.agents.values():
            agent.check()
        if time.monotonic() > deadline_s:
            raise BenchError(f"LinkPass on {host} has no routes after {_SETTLE_S:.0f} s")
        time.sleep(0.1)


def _running(job: RingJob) -> None:
    if not cycles.settled(job, _ITERATIONS, _SETTLE_S):
        raise BenchError("the job does not get going")


def _events(stage: Stage) -> list[Event]:
    records = read_all(stage.kafka, ["telemetry.packet"], "bench")
    return [record.event for record in records if record.event is not None]


def _moves(events: list[Event], reason: RouteMoveReason) -> list[RouteMove]:
    return [one for one in events if isinstance(one, RouteMove) and one.reason is reason]


def _progress(options: Options, count: int) -> Callable[[int], None]:
    def said(done: int) -> None:
        if done % 10 == 0:
            options.say(f"{done} of {count} faults")

    return said
