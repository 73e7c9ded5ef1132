"""The watchdog process: ``python -m collectors.reflex.watchdog``, its plan as a line of JSON on stdin.

One thread, one loop. At every tick it looks at what has come and sends a heartbeat over each path; in
between it sleeps, for a wake costs as much as a peer. It wakes at once for the kernel's news of
carriers and for the peers' news, and every millisecond while a heartbeat is missing somewhere. Where it is allowed to, it runs under
``SCHED_FIFO`` with its memory locked, so a busy host does not delay it.

It ends in good order at a line ``stop`` or SIGTERM: peers are told, and routes of its own are taken
away where that harms nobody. When stdin closes without a word the agent was killed: it ends at once
and leaves the routes, which the next start adopts.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import sys
import time
from secrets import randbits
from types import FrameType

from collectors.reflex import wire
from collectors.reflex.exchange import Exchange, PeerEnd
from collectors.reflex.links import Links
from collectors.reflex.liveness import quantile
from collectors.reflex.peer import Transition
from collectors.reflex.plan import Plan, plan_of
from collectors.reflex.report import Reports, utc
from collectors.reflex.steering import Steering

_MILLISECOND_NS = 1_000_000
_SECOND_NS = 1_000_000_000
_SETTLE_NS = 2 * _MILLISECOND_NS
"""News is looked at no more often than this, however much of it there is."""
_UNEASY_NS = 1 * _MILLISECOND_NS
"""How often to look while a verdict is near."""
_OPEN_AGAIN_NS = 200 * _MILLISECOND_NS
_NOTE_AGAIN_NS = 10 * _SECOND_NS
_HEALTH_ROWS = 8
_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4


class Watchdog:
    """The loop and what it holds."""

    def __init__(self, plan: Plan, reports: Reports, commands: int) -> None:
        """
        Args:
            plan: what to do.
            reports: where to tell of it.
            commands: descriptor of the agent's commands.

        Raises:
            OSError: no netlink here.
        """
        now_ns = time.monotonic_ns()
        self._plan = plan
        self._reports = reports
        self._commands = commands
        self._links = Links()
        self._steering = Steering(plan)
        self._exchange = Exchange(plan, randbits(64) or 1, now_ns)
        self._peers = self._exchange.peers
        # Each wakes for more: the kernel and the agent; news as well; everything.
        self._kernel, self._soon, self._all = select.epoll(), select.epoll(), select.epoll()
        for epoll in (self._kernel, self._soon, self._all):
            epoll.register(self._links.fileno(), select.EPOLLIN)
            epoll.register(commands, select.EPOLLIN)
        self._ending = False
        self._open_after_ns = 0
        self._second_ns = now_ns + _SECOND_NS
        self._health_from_ns = now_ns
        self._noted: dict[str, int] = {}

    def end(self, *_: int | FrameType | None) -> None:
        """End in good order, soon; may be called from a signal handler."""
        self._ending = True

    def run(self) -> None:
        """Run until told to end.

        Raises:
            BrokenPipeError: the agent reads no more.
            OSError, NetlinkError: the kernel does not tell of its interfaces or routes.
        """
        while not self._links.complete:
            select.select([self._links], [], [], 1.0)
            self._links.read()
        self._exchange.carriers(self._links)
        self._steering.adopt(self._peers)
        heartbeat_ns = self._plan.timing.heartbeat_ns
        due_ns = settled_ns = time.monotonic_ns()
        while not self._ending:
            now_ns = time.monotonic_ns()
            uneasy = any([end.state.life.uneasy(now_ns) for end in self._peers])  # noqa: C419
            planned_ns = min(due_ns, now_ns + _UNEASY_NS) if uneasy else due_ns
            events = self._wait(now_ns, settled_ns, planned_ns, uneasy)
            now_ns = time.monotonic_ns()
            if now_ns - planned_ns > heartbeat_ns // 2:
                for end in self._peers:
                    end.state.excuse(now_ns - planned_ns)
            if events:
                settled_ns = now_ns + _SETTLE_NS
                self._heed(events, now_ns)
            self._exchange.look(now_ns, events)
            if now_ns >= due_ns:
                self._tick(now_ns)
                due_ns = max(due_ns + heartbeat_ns, now_ns)
            else:
                for end in self._peers:
                    self._act(end, now_ns)
        self._steering.release(self._peers)
        for end in self._peers:
            self._exchange.tell(end, wire.LEAVING)
        self._report()

    def _wait(self, now_ns: int, settled_ns: int, planned_ns: int, uneasy: bool) -> set[int]:
        """Wait for something to see to; returns the descriptors that are ready."""
        if now_ns < settled_ns < planned_ns:
            ready = self._kernel.poll((settled_ns - now_ns) / 1e9)
            if ready:
                return {descriptor for descriptor, _ in ready}
            now_ns = time.monotonic_ns()
        epoll = self._all if uneasy else self._soon
        return {descriptor for descriptor, _ in epoll.poll(max(0, planned_ns - now_ns) / 1e9)}

    def _heed(self, ready: set[int], now_ns: int) -> None:
        """See to the agent's commands and the kernel's news."""
        if self._commands in ready:
            said = os.read(self._commands, 4096)
            if not said:
                # The agent was killed. Its routes stay as they are, for its next start.
                sys.exit(0)
            self._ending = self._ending or b"stop" in said
        if self._links.fileno() in ready and self._links.read():
            if self._exchange.carriers(self._links):
                self._open_after_ns = 0
            # Before anything else: nothing that heartbeats say is as fresh.
            for end in self._peers:
                self._act(end, now_ns)

    def _tick(self, now_ns: int) -> None:
        if now_ns >= self._open_after_ns:
            self._exchange.open(self._soon, self._all)
            self._open_after_ns = now_ns + _OPEN_AGAIN_NS
        self._steering.unblock()
        for end in self._peers:
            self._act(end, now_ns)
            self._exchange.beat(end)
        self._exchange.send()
        if now_ns >= self._second_ns:
            self._second_ns = now_ns + _SECOND_NS
            self._tell_refused(now_ns)
            self._report()
        if now_ns - self._health_from_ns >= self._plan.health_ns:
            self._tell_health(now_ns)

    def _act(self, end: PeerEnd, now_ns: int) -> None:
        """Renew verdicts, move the route if need be, tell the peer, and last report."""
        state = end.state
        if state.rests(now_ns):
            return
        changed = state.judge(now_ns)
        decision = state.decide(now_ns)
        if decision is not None and self._steering.move(end, decision, now_ns):
            changed = True
        if changed:
            self._exchange.tell(end)
        for told in state.news():
            if told.alive and told.place == state.chosen and not self._plan.dry_run:
                # The kernel drops routes over an interface that was set down.
                self._steering.keep(end, told.place)
            self._tell_transition(end, told)
        self._report()

    # --- what is told

    def _report(self) -> None:
        now_ns = time.monotonic_ns()
        for kind, fields in self._steering.take_said():
            # What goes wrong may go wrong at every attempt; it is told now and then.
            text = fields.get("text")
            if text is not None:
                if now_ns < self._noted.get(text, 0):
                    continue
                self._noted[text] = now_ns + _NOTE_AGAIN_NS
            self._reports.send(kind, **fields)

    def _tell_transition(self, end: PeerEnd, told: Transition) -> None:
        self._reports.send(
            "transition",
            peer=end.plan.name,
            path=told.place,
            peer_interface=end.state.interfaces[told.place],
            alive=told.alive,
            fault=told.fault,
            since_ns=utc(told.since_ns),
            at_ns=utc(told.at_ns),
            paths_alive=told.paths_alive,
            missed=told.missed,
        )

    def _tell_refused(self, now_ns: int) -> None:
        self._exchange.count_dropped(now_ns)
        for interface, refused in self._exchange.refused.items():
            if refused:
                self._reports.send(
                    "refused",
                    interface=interface,
                    from_ns=utc(refused.from_ns),
                    at_ns=utc(now_ns),
                    malformed=refused.malformed,
                    forged=refused.forged,
                    replayed=refused.replayed,
                    unprocessed=refused.unprocessed,
                    sources=sorted(refused.sources),
                )
            refused.clear(now_ns)

    def _tell_health(self, now_ns: int) -> None:
        from_ns, self._health_from_ns = self._health_from_ns, now_ns
        rows = []
        for number, end in enumerate(self._peers):
            life = end.state.life
            expected, life.expected = life.expected, 0
            for place, path in enumerate(life.paths):
                rtts, path.rtts_ns = path.rtts_ns, []
                heard, path.heard = path.heard, 0
                rows.append(
                    (
                        number,
                        place,
                        bool(life.alive[place]),
                        place == end.state.chosen,
                        expected,
                        heard,
                        quantile(rtts, 0.5) // 1000,
                        max(rtts, default=0) // 1000,
                        path.jitter_ns // 1000,
                        life.timeout_ns(path) // 1000,
                    )
                )
        for start in range(0, len(rows), _HEALTH_ROWS):
            self._reports.send(
                "health",
                from_ns=utc(from_ns),
                at_ns=utc(now_ns),
                rows=rows[start : start + _HEALTH_ROWS],
            )


def _prefer(priority: int) -> str:
    """Run before everything else and never wait for memory; returns why not, if so."""
    failed = ""
    libc = ctypes.CDLL(None, use_errno=True)
    # Only what is in use: locking all that is mapped would make the process ten times its size.
    if libc.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT):
        failed = f"memory is not locked: {os.strerror(ctypes.get_errno())}"
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    except OSError as error:
        failed = f"no SCHED_FIFO: {error.strerror}; a loaded host may delay it"
    gc.collect()
    gc.freeze()
    return failed


def main() -> None:
    """Read the plan, run, end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = bytearray()
    while not line.endswith(b"\n"):
        read = os.read(sys.stdin.fileno(), 1 << 16)
        if not read:
            sys.exit(0)
        line += read
    plan = plan_of(json.loads(line))
    reports = Reports(sys.stdout.fileno())
    watchdog = Watchdog(plan, reports, sys.stdin.fileno())
    signal.signal(signal.SIGTERM, watchdog.end)
    reports.send("ready", pid=os.getpid(), slower=_prefer(plan.priority))
    try:
        watchdog.run()
    except BrokenPipeError:
        # The agent is gone; as with its stdin.
        sys.exit(0)


if __name__ == "__main__":
    main()
