"""The benchmark ``packets``: how true the telemetry of TCP flows is, and what it costs.

The truth is what the lab itself does: frames are held back for a known time, known segments are thrown
away, and what was done is compared with the rows that collector ``tcp`` makes of it with eBPF. The cost
is that of a whole agent out here while hosts of a lab move 5 Gb/s between them.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from collectors.base import Host, Unavailable
from collectors.ebpf.flows import possible
from collectors.ebpf.watch import NoEbpf
from collectors.tcp import TcpCollector, TcpSettings
from lab.bench import BenchError, Findings, Options, benchmark, registered, wanted
from lab.bulk import Bulk, connect
from lab.fabric import Fabric, NoLab
from lab.faults.added_delay import AddedDelay
from lab.namespace import Namespace, command
from lab.processes import cpu_seconds, rss_bytes
from lab.sandbox import Part, Sandbox, metric, wait_for
from lab.topology import Topology
from lab.truth import Truth
from schemas.packet import TcpFlowStats

_RTT = "rtt_error_percent"
_TIMED = "rtt_error_to_endpoints_percent"
_COUNTED = "retransmits_counted_of_injected"
_CPU = "agent_cpu_percent_of_core"
_RSS = "agent_rss_mb"
_CALLBACK = "kernel_ns_per_callback"
_KERNEL = "kernel_cpu_percent_of_core"

_DELAYS_MS = (5.0, 10.0, 20.0)
_ROUNDS, _ROUNDS_QUICK = 100, 20
_SEGMENTS, _SEGMENTS_QUICK = 20_000, 4000
_ONE_IN = 100
_LOSSY_BYTES_PER_S = 4_000_000
_LOSSY_S = 120.0
_BULK_BYTES_PER_S = 625_000_000
_FLOWS = 4
_SETTLE_S, _SETTLE_QUICK_S = 12.0, 6.0
_WATCH_S, _WATCH_QUICK_S = 60.0, 10.0
_START_S = 60.0
_STATISTICS = Path("/proc/sys/kernel/bpf_stats_enabled")
_SOCK_OPS = 13


@benchmark(
    "packets",
    "telemetry of TCP flows by eBPF: how true it is, what it costs the agent and the traffic",
    (_RTT, _TIMED, _COUNTED, _CPU, _RSS, _CALLBACK, _KERNEL),
)
def packets(options: Options) -> Findings:
    """Measure one part after another."""
    keys = set(wanted(registered()["packets"], options.only))
    found = Findings()
    try:
        possible()
        with Fabric(Topology(hosts=2, rails=1)) as fabric:
            if keys & {_RTT, _TIMED}:
                found.add(_delay(fabric, options))
            if _COUNTED in keys:
                found.add(_loss(fabric, options))
            if keys & {_CPU, _RSS, _CALLBACK, _KERNEL}:
                found.add(_cost(fabric, options))
    except NoEbpf as reason:
        raise BenchError(f"{reason}; {reason.fix}".rstrip("; ")) from None
    except NoLab as reason:
        raise BenchError(str(reason)) from None
    return found


def _delay(fabric: Fabric, options: Options) -> Findings:
    """The worst relative error of the median round-trip time over several added delays: to what was
    added, of which the lab's own lateness is a part, and to what the endpoints timed themselves."""
    source, target, address = _hosts(fabric)
    rounds = _ROUNDS_QUICK if options.quick else _ROUNDS
    notes, errors, differences = [], [], []
    for delay_ms in _DELAYS_MS:
        options.say(f"{rounds} round trips with {delay_ms:.0f} ms each way")
        with (
            _collector(source) as collector,
            AddedDelay(fabric, Truth(), "host-2", delay_ms=delay_ms),
        ):
            near, far = connect(source, target, address)
            with near, far:
                _rows(source, collector)
                timed_us = []
                for _ in range(rounds):
                    began_s = time.monotonic()
                    near.sendall(b"ping")
                    far.recv(4)
                    far.sendall(b"pong")
                    near.recv(4)
                    timed_us.append(1e6 * (time.monotonic() - began_s))
                (row,) = [
                    row
                    for row in _rows(source, collector)
                    if row["local"] == "{}:{}".format(*near.getsockname())
                ]
        told_us, true_us = int(str(row["rtt_p50_us"])), 2000 * delay_ms
        felt_us = median(timed_us)
        errors.append(100 * abs(told_us - true_us) / true_us)
        differences.append(100 * abs(told_us - felt_us) / felt_us)
        notes.append(
            f"{2 * delay_ms:.0f} ms injected: {told_us / 1000:.2f} ms told, {felt_us / 1000:.2f} ms "
            "timed by the endpoints (medians)"
        )
    return Findings({_RTT: round(max(errors), 2), _TIMED: round(max(differences), 2)}, notes)


def _loss(fabric: Fabric, options: Options) -> Findings:
    """Segments counted as sent again, of those that were thrown away."""
    source, target, address = _hosts(fabric)
    segments = _SEGMENTS_QUICK if options.quick else _SEGMENTS
    options.say(f"{segments} segments, one in {_ONE_IN} thrown away")
    size = segments * 1448
    # One segment a packet, so that what is thrown away can be counted.
    for namespace in (source, target):
        namespace.ip("link set rail0 gso_max_segs 1\n")
    leaf, port = fabric.leaves[0], fabric.topology.port("host-2")
    with _collector(source) as collector:
        with Bulk(source, target, address, 1, _LOSSY_BYTES_PER_S, size) as bulk:
            # Long ones are data; none of the short ones, which acknowledge.
            leaf.nft(
                "add table netdev packets\n"
                f'add chain netdev packets out {{ type filter hook egress device "{port}" '
                "priority 0; }\n"
                "add rule netdev packets out ip protocol tcp ip length > 200 "
                f"numgen inc mod {_ONE_IN} {_ONE_IN // 2} counter drop\n"
            )
            try:
                if not bulk.arrived(_LOSSY_S):
                    raise BenchError(f"{size} bytes did not arrive within {_LOSSY_S:.0f} s")
                injected = _dropped(leaf)
            finally:
                leaf.nft("delete table netdev packets\n")
        rows = _rows(source, collector)
    for namespace in (source, target):
        namespace.ip("link set rail0 gso_max_segs 65535\n")
    counted = sum(int(str(row["segments_retransmitted"])) for row in rows)
    episodes = sum(int(str(row["loss_episodes"])) for row in rows)
    timeouts = sum(int(str(row["timeouts"])) for row in rows)
    return Findings(
        {_COUNTED: round(counted / injected, 4)},
        [
            f"{injected} segments thrown away, {counted} counted as sent again, in {episodes} "
            f"episodes of loss with {timeouts} timeouts"
        ],
    )


def _cost(fabric: Fabric, options: Options) -> Findings:
    """CPU and memory of an agent with every collector at its default, and what the program in the
    kernel adds to the traffic."""
    source, target, address = _hosts(fabric)
    watch_s = _WATCH_QUICK_S if options.quick else _WATCH_S
    with Sandbox(options.flags) as sandbox:
        options.say("starting Kafka")
        sandbox.kafka()
        port = sandbox.settings.metrics.agent_port
        with Bulk(source, target, address, _FLOWS, _BULK_BYTES_PER_S) as bulk:
            agent = sandbox.start("agent", flags=["collectors.tcp.all_namespaces=true"])
            wait_for(
                lambda: metric(port, "evertick_collector_events_total", collector="tcp"),
                "TCP flows from the agent",
                [agent],
                _START_S,
            )
            time.sleep(_SETTLE_QUICK_S if options.quick else _SETTLE_S)
            options.say(f"agent under {_FLOWS} flows of 5 Gb/s together, {watch_s:.0f} s")
            began_s, used_s, moved = time.monotonic(), cpu_seconds(agent.pid), bulk.received_bytes
            time.sleep(watch_s)
            used_s, took_s = cpu_seconds(agent.pid) - used_s, time.monotonic() - began_s
            moved = bulk.received_bytes - moved
            agent.check()
            memory = rss_bytes(agent.pid)
            options.say("what a callback costs")
            calls, run_ns, elapsed_s = _callbacks(agent, watch_s / 4)
    return Findings(
        {
            _CPU: round(100 * used_s / took_s, 3),
            _RSS: round(memory / 1e6, 1),
            _CALLBACK: round(run_ns / calls, 1) if calls else None,
            _KERNEL: round(run_ns / elapsed_s / 1e7, 3),
        },
        [
            f"agent: {moved * 8 / took_s / 1e9:.2f} Gb/s between two hosts of a lab in {took_s:.0f} s",
            f"kernel: {calls / elapsed_s:,.0f} callbacks/s, the kernel's own statistics, which are off "
            "while the agent is measured; their time is charged to who moves the traffic",
        ],
    )


def _hosts(fabric: Fabric) -> tuple[Namespace, Namespace, str]:
    return fabric.hosts["host-1"], fabric.hosts["host-2"], fabric.topology.rail_address("host-2", 0)


@contextmanager
def _collector(namespace: Namespace) -> Iterator[TcpCollector]:
    """Collector ``tcp`` of a host; its state folder is never used."""
    host = Host(namespace.name, "default", Path(os.devnull))
    settings = TcpSettings(all_namespaces=False)
    try:
        collector = namespace.call(TcpCollector, host, settings)
    except Unavailable as reason:
        raise BenchError(str(reason)) from None
    try:
        yield collector
    finally:
        namespace.call(collector.close)


def _rows(namespace: Namespace, collector: TcpCollector) -> list[dict[str, object]]:
    found = []
    for event in namespace.call(lambda: list(collector.collect())):
        if isinstance(event, TcpFlowStats):
            columns = event.columns.__dict__
            found += [
                dict(zip(columns, values, strict=True))
                for values in zip(*columns.values(), strict=True)
            ]
    return found


def _dropped(leaf: Namespace) -> int:
    listed = command(
        ["ip", "netns", "exec", leaf.name, "nft", "list", "table", "netdev", "packets"]
    )
    return int(re.findall(r"counter packets (\d+)", listed)[0])


def _callbacks(agent: Part, seconds: float) -> tuple[int, int, float]:
    """Runs of the agent's program on sockets, nanoseconds in it, seconds that were looked at."""
    before = _STATISTICS.read_text()
    _STATISTICS.write_text("1")
    try:
        began_s, (calls, run_ns) = time.monotonic(), _statistics(agent.pid)
        time.sleep(seconds)
        later_calls, later_ns = _statistics(agent.pid)
        return later_calls - calls, later_ns - run_ns, time.monotonic() - began_s
    finally:
        _STATISTICS.write_text(before)


def _statistics(pid: int) -> tuple[int, int]:
    """What the kernel tells of the BPF programs that a process holds."""
    for place in Path(f"/proc/{pid}/fdinfo").iterdir():
        told = dict(
            line.split(":\t", 1) for line in place.read_text().splitlines() if ":\t" in line
        )
        if told.get("prog_type") == str(_SOCK_OPS) and "run_cnt" in told:
            return int(told["run_cnt"]), int(told["run_time_ns"])
    raise BenchError(f"process {pid} holds no program on sockets")
