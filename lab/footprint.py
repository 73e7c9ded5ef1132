"""What a node agent costs its host."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack

from lab.bench import Findings, Options
from lab.processes import cpu_seconds, rss_bytes
from lab.sandbox import Sandbox, metric, wait_for
from lab.traffic import Traffic
from lab.veth import FarSide, NoNamespaces

CPU = "agent_cpu_percent_of_core"
RSS = "agent_rss_mb"
_FLOWS = 200
_BACKLOG = 512
_SETTLE_S, _SETTLE_QUICK_S = 12.0, 6.0
_WATCH_S, _WATCH_QUICK_S = 60.0, 10.0
_START_S = 60.0
# RFC 2544: addresses for benchmarks, routed nowhere.
_NEAR, _FAR, _PREFIX = "198.18.255.1", "198.18.255.2", 30
_PAIR = "evbench"


def agent(sandbox: Sandbox, options: Options) -> Findings:
    """CPU and memory of ``evertick agent`` with every collector at its default interval, while 200
    TCP flows carry 1 KiB a second each."""
    port = sandbox.settings.metrics.agent_port
    watch_s = _WATCH_QUICK_S if options.quick else _WATCH_S
    with ExitStack() as stack:
        flags: list[str] = []
        try:
            far = stack.enter_context(FarSide())
            far.pairs([_PAIR])
            far.address(_PAIR, f"{_NEAR}/{_PREFIX}", f"{_FAR}/{_PREFIX}")
            server = far.run(lambda: socket.create_server((_FAR, 0), backlog=_BACKLOG))
            where = f"{_FLOWS} TCP flows into a network namespace"
        except NoNamespaces as reason:
            server = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
            flags = ["collectors.tcp.include_loopback=true"]
            where = f"{_FLOWS} TCP connections over loopback, each seen at both ends ({reason})"
        stack.enter_context(Traffic(server, _FLOWS))
        process = sandbox.start("agent", flags=flags)
        stack.callback(process.stop)
        wait_for(
            lambda: metric(port, "evertick_collector_events_total", collector="tcp"),
            "TCP flows from the agent",
            [process],
            _START_S,
        )
        time.sleep(_SETTLE_QUICK_S if options.quick else _SETTLE_S)
        events = metric(port, "evertick_collector_events_total")
        options.say(f"agent with {where}, {watch_s:.0f} s")
        began_s, used_s = time.monotonic(), cpu_seconds(process.pid)
        time.sleep(watch_s)
        used_s, took_s = cpu_seconds(process.pid) - used_s, time.monotonic() - began_s
        process.check()
        memory = rss_bytes(process.pid)
        events = metric(port, "evertick_collector_events_total") - events
        working = metric(port, "evertick_collector_success")
    return Findings(
        {CPU: round(100 * used_s / took_s, 3), RSS: round(memory / 1e6, 1)},
        [
            f"agent: {where}; {events:.0f} events in {took_s:.0f} s from {working:.0f} collectors "
            "whose last run succeeded"
        ],
    )
