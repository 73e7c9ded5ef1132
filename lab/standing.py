"""What ``evertick up`` takes while nothing happens: memory and CPU of all its processes."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack

from lab import latency
from lab.bench import Findings, Options
from lab.processes import cpu_seconds_of, pss_bytes, tree
from lab.receiver import Receiver
from lab.sandbox import Part, Sandbox, wait_for
from lab.veth import NoNamespaces

RSS = "embedded_rss_mb"
CPU = "embedded_idle_cpu_percent_of_core"
_FAULTS, _FAULTS_QUICK, _FAULTS_TO_WARM_UP = 100, 12, 10
_IDLE_S, _IDLE_QUICK_S = 60.0, 10.0
_SETTLE_S, _SETTLE_QUICK_S = 15.0, 5.0
_READY_S = 180.0
_ONE_TIME_S = 90.0
_ONE_TIME_WORK = "evertick.embedded.broker record"


def embedded(keys: set[str], options: Options) -> Findings:
    """Run ``evertick up``: cut cables, then let it stand; only what ``keys`` ask for."""
    found = Findings()
    with ExitStack() as stack:
        receiver = stack.enter_context(Receiver())
        watched = [
            f"{name}.include={latency.PATTERN}"
            for name in ("collectors.link", "collectors.interface")
        ]
        notices = [f"remedies.notify.receivers.bench.url={receiver.url}"]
        sandbox = stack.enter_context(Sandbox([*options.flags, *watched, *notices]))
        options.say("evertick up")
        up = sandbox.start("up", "--json")
        wait_for(lambda: up.printed().endswith("}\n"), "evertick up is ready", [up], _READY_S)
        told = json.loads(up.printed())
        found.notes.append(f"embedded: ready after {told['ready_after_s']:.1f} s")
        names = {part["pid"]: part["name"] for part in told["parts"]} | {up.pid: "up"}
        found.add(_faults(sandbox, receiver, up, keys, options))
        if keys & {RSS, CPU}:
            found.add(_stand(up, names, options))
        up.check()
    return found


def _faults(
    sandbox: Sandbox, receiver: Receiver, up: Part, keys: set[str], options: Options
) -> Findings:
    latencies = keys & {latency.P50, latency.P99, latency.WEBHOOK}
    many = _FAULTS_QUICK if options.quick else _FAULTS
    count = many if latencies else _FAULTS_TO_WARM_UP
    options.say(f"{count} faults, one after another")
    try:
        return latency.faults(
            sandbox.settings.kafka, sandbox.settings.agent.node, receiver, up, count
        )
    except NoNamespaces as reason:
        return Findings(
            dict.fromkeys((latency.P50, latency.P99, latency.WEBHOOK)),
            [f"faults: none could be made on this machine: {reason}"],
        )


def _stand(up: Part, names: dict[int, str], options: Options) -> Findings:
    """Memory and CPU of the tree of processes without load; ``names`` are those of the parts."""
    idle_s = _IDLE_QUICK_S if options.quick else _IDLE_S
    options.say("waiting until the embedded stack has nothing more to do")
    # At its first start here Kafka's classes are archived, once for this user.
    wait_for(
        lambda: not any(_ONE_TIME_WORK in command for command in tree(up.pid).values()),
        "the archive of Kafka's classes",
        [up],
        _ONE_TIME_S,
        1.0,
    )
    time.sleep(_SETTLE_QUICK_S if options.quick else _SETTLE_S)
    options.say(f"embedded stack without load, {idle_s:.0f} s")
    before, began_s = cpu_seconds_of(tree(up.pid)), time.monotonic()
    time.sleep(idle_s)
    commands = tree(up.pid)
    after, took_s = cpu_seconds_of(commands), time.monotonic() - began_s
    # What a child used that is gone is with its parent now.
    used_s = {pid: after[pid] - before.get(pid, 0.0) for pid in after}
    percent = 100 * (sum(after.values()) - sum(before.values())) / took_s
    memory: dict[int, int] = {}
    for pid in commands:
        try:
            memory[pid] = pss_bytes(pid)
        except ProcessLookupError:
            continue  # it ended meanwhile
    shares = ", ".join(
        f"{names.get(pid, commands[pid])} {memory[pid] / 1e6:.0f} MB {100 * used_s.get(pid, 0) / took_s:.2f} %"
        for pid in sorted(memory, key=lambda pid: memory[pid], reverse=True)
    )
    return Findings(
        {RSS: round(sum(memory.values()) / 1e6, 1), CPU: round(percent, 2)},
        [f"embedded, memory and CPU by process: {shares}"],
    )
