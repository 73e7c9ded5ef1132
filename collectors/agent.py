"""The node agent: runs the collectors of a host and sends what they see.

Each collector has a thread of its own, so that a slow or hanging one holds up nobody. Runs are
scheduled on the monotonic clock, spread over the interval, and runs that were missed while one took
too long are left out, not caught up. A collector that fails is tried again at its interval and, after
several failures in a row, opened afresh; one that finds nothing to observe here is asked again once a
minute.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import Counter, Gauge, Summary

from bus import log
from bus.health import Health, serve
from bus.producer import Producer
from bus.settings import Settings, SettingsError, section
from bus.spool import Spool
from collectors.base import Collector, CollectorSettings, Host, Unavailable, registered
from schemas import identity
from schemas.agent import TelemetryDropped
from schemas.event import Event
from schemas.identity import content_id
from schemas.inventory import InventoryNode

_UNAVAILABLE_RETRY_S = 60.0
_OPEN_RETRY_MAX_S = 60.0
_FAILED_PAUSE_S = 1.0
_FAILURES_TO_REOPEN = 3
_INVENTORY_INTERVAL_S = 600.0
_LOOK_INTERVAL_S = 1.0
# A collector driven by events waits up to a second; meanwhile the producer goes on sending.
_JOIN_S = 1.1
_FLUSH_S = 0.2

_run_seconds = Summary(
    "evertick_collector_run_seconds",
    "Time that runs took; of collectors driven by events it includes their waiting",
    ["collector"],
)
_success = Gauge("evertick_collector_success", "Whether the last run succeeded", ["collector"])
_last_run = Gauge(
    "evertick_collector_last_run_timestamp", "When the last run ended, Unix time", ["collector"]
)
_events = Counter("evertick_collector_events", "Events that collectors yielded", ["collector"])

_log = log.get(__name__)


@dataclass(frozen=True, slots=True)
class Plan:
    """A collector that is to run."""

    collector: type[Collector]
    settings: CollectorSettings

    @property
    def name(self) -> str:
        """Its name."""
        return self.collector.name

    @property
    def interval_s(self) -> float:
        """Seconds between runs; 0 where it waits for events itself."""
        asked = self.settings.interval_s
        return self.collector.interval_s if asked is None else asked


def plans(settings: Settings) -> list[Plan]:
    """What the settings want to run.

    Raises:
        SettingsError: a collector that does not exist, a setting that does not fit.
    """
    known = registered()
    unknown = sorted(set(settings.collectors) - set(known))
    if unknown:
        raise SettingsError(
            f"setting collectors.{unknown[0]}: no such collector (known: {', '.join(known)})"
        )
    wanted: list[Plan] = []
    for name, collector in known.items():
        own = section(collector.Settings, settings.collectors.get(name, {}), f"collectors.{name}")
        plan = Plan(collector, own)
        if collector.interval_s > 0 and plan.interval_s == 0:
            raise SettingsError(f"setting collectors.{name}.interval_s: must be more than 0")
        if collector.enabled if own.enabled is None else own.enabled:
            wanted.append(plan)
    return wanted


class Agent:
    """The threads of a set of collectors."""

    def __init__(
        self, host: Host, wanted: Iterable[Plan], send: Callable[[Event], None], health: Health
    ) -> None:
        """
        Args:
            host: the host they run on.
            wanted: the collectors.
            send: takes each event, from any thread; must not wait.
            health: hears of every run.
        """
        self._host = host
        self._plans = list(wanted)
        self._send = send
        self._health = health
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads and tell the fleet that this node is there."""
        self.announce()
        for place, plan in enumerate(self._plans):
            # Spread over a second, so that all are at work soon, yet no two at one moment.
            runner = _Runner(self._host, plan, self._send, self._health, self._stopping)
            thread = threading.Thread(
                target=runner.run,
                args=(place / len(self._plans),),
                name=f"collector-{plan.name}",
                daemon=True,
            )
            self._threads.append(thread)
            thread.start()

    def announce(self) -> None:
        """Send this node's inventory."""
        now = self._host.clock.read()
        subject = identity.node(self._host.node)
        self._send(
            InventoryNode(
                id=content_id("inventory.node", subject, self._host.boot_id, now.ns),
                zone=self._host.zone,
                at_ns=now.ns,
                clock_error_ns=now.error_ns,
                subject=subject,
                node=self._host.node,
                boot_id=self._host.boot_id,
                kernel=self._host.kernel,
                agent_version=agent_version(),
                collectors=[plan.name for plan in self._plans],
            )
        )

    def stop(self, timeout_s: float = _JOIN_S) -> list[str]:
        """End the threads; returns the names of collectors that did not end in time."""
        self._stopping.set()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return [thread.name for thread in self._threads if thread.is_alive()]


class _Runner:
    """The life of one collector, in its thread."""

    def __init__(
        self,
        host: Host,
        plan: Plan,
        send: Callable[[Event], None],
        health: Health,
        stopping: threading.Event,
    ) -> None:
        self._host = host
        self._plan = plan
        self._send = send
        self._health = health
        self._stopping = stopping
        self._collector: Collector | None = None
        self._said: set[str] = set()
        self._open_failures = 0
        self._run_failures = 0
        self._events = _events.labels(plan.name)
        self._seconds = _run_seconds.labels(plan.name)
        self._success = _success.labels(plan.name)
        self._last_run = _last_run.labels(plan.name)

    def run(self, phase_s: float) -> None:
        """Run until the agent stops; the first time after ``phase_s`` seconds."""
        self._progress(phase_s)
        due_s = time.monotonic() + phase_s
        try:
            while not self._stopping.wait(max(0.0, due_s - time.monotonic())):
                pause_s = self._open() if self._collector is None else 0.0
                if self._collector is not None:
                    pause_s = self._collect(self._collector)
                self._progress(pause_s)
                due_s = next_due(due_s, pause_s, time.monotonic())
        finally:
            self._close()
            self._health.forget(self._plan.name)

    def _open(self) -> float:
        """Open the collector; returns the pause before the next attempt if it could not be."""
        try:
            self._collector = self._plan.collector(self._host, self._plan.settings)
        except Unavailable as reason:
            self._say_once("info", "nothing to observe", str(reason))
            self._success.set(0)
            return _UNAVAILABLE_RETRY_S
        except Exception as error:  # noqa: BLE001 - one collector's fault is not the agent's
            self._say_once("error", "collector cannot be opened", repr(error))
            self._success.set(0)
            self._open_failures += 1
            first_s = self._plan.interval_s or _FAILED_PAUSE_S
            return min(_OPEN_RETRY_MAX_S, first_s * 2.0 ** min(self._open_failures - 1, 10))
        self._open_failures = self._run_failures = 0
        return 0.0

    def _collect(self, collector: Collector) -> float:
        """Run the collector once; returns the pause before the next run."""
        started_s = time.monotonic()
        pause_s = self._plan.interval_s
        try:
            for event in collector.collect():
                self._send(event)
                self._events.inc()
        except Unavailable as reason:
            self._say_once("info", "nothing to observe any more", str(reason))
            self._success.set(0)
            self._close()
            pause_s = _UNAVAILABLE_RETRY_S
        except Exception as error:  # noqa: BLE001 - one collector's fault is not the agent's
            self._say_once("error", "collector failed", repr(error))
            self._success.set(0)
            self._run_failures += 1
            if self._run_failures >= _FAILURES_TO_REOPEN:
                self._close()
            pause_s = max(pause_s, _FAILED_PAUSE_S)
        else:
            self._success.set(1)
            self._run_failures = 0
        self._seconds.observe(time.monotonic() - started_s)
        self._last_run.set_to_current_time()
        return pause_s

    def _close(self) -> None:
        collector, self._collector = self._collector, None
        if collector is None:
            return
        try:
            collector.close()
        except Exception as error:  # noqa: BLE001 - it is given up anyway
            self._say_once("error", "collector cannot be closed", repr(error))

    def _progress(self, pause_s: float) -> None:
        self._health.progress(self._plan.name, 3 * max(pause_s, self._plan.interval_s, 1.0) + 10)

    def _say_once(self, level: str, what: str, reason: str) -> None:
        if (what + reason) not in self._said and len(self._said) < 100:
            self._said.add(what + reason)
            getattr(_log, level)(what, collector=self._plan.name, reason=reason)


def next_due(due_s: float, pause_s: float, now_s: float) -> float:
    """When to run next: on the grid of the pause, leaving out what is already past."""
    if pause_s <= 0:
        return now_s
    missed = max(0.0, (now_s - due_s) // pause_s)
    return due_s + pause_s * (missed + 1)


def agent_version() -> str:
    """Version of this agent; ``unknown`` where it runs from a plain checkout."""
    try:
        return version("evertick")
    except PackageNotFoundError:
        return "unknown"


def run(settings: Settings) -> None:
    """Run the agent of this host until SIGTERM or SIGINT.

    Raises:
        SettingsError: a setting, the metrics port or the data folder does not do.
    """
    wanted = plans(settings)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    data_dir = settings.data_dir / "agent"
    spool = Spool(data_dir / "spool.db", settings.agent.spool_max_bytes)
    host = Host(node=settings.agent.node, zone=settings.zone, data_dir=data_dir)
    health = Health()
    serve(health, settings.metrics.host, settings.metrics.agent_port, "agent")
    producer = Producer(settings.kafka, f"evertick-agent-{host.node}", spool)
    agent = Agent(host, wanted, producer.send, health)
    agent.start()
    _log.info("agent runs", node=host.node, collectors=[plan.name for plan in wanted])
    announced_s = time.monotonic()
    while not stop.wait(_LOOK_INTERVAL_S):
        health.progress("agent", 3 * _LOOK_INTERVAL_S + 10)
        report_dropped(host, spool, producer.send)
        if time.monotonic() - announced_s >= _INVENTORY_INTERVAL_S:
            announced_s = time.monotonic()
            agent.announce()
    hanging = agent.stop()
    if hanging:
        _log.warning("collectors did not end in time", threads=hanging)
    producer.close(_FLUSH_S)
    _log.info("agent ended", node=host.node)


def report_dropped(host: Host, spool: Spool, send: Callable[[Event], None]) -> None:
    """Tell what the spool had to drop since it was last asked, if anything."""
    dropped = spool.take_dropped()
    if dropped is None:
        return
    _log.warning("samples dropped, Kafka is away too long", messages=dropped.messages)
    send(
        TelemetryDropped(
            id=content_id(
                "telemetry.dropped", host.node, dropped.from_ns, dropped.to_ns, dropped.messages
            ),
            zone=host.zone,
            at_ns=dropped.to_ns,
            clock_error_ns=host.clock.read().error_ns,
            node=host.node,
            subject=identity.node(host.node),
            messages=dropped.messages,
            message_bytes=dropped.message_bytes,
            from_ns=dropped.from_ns,
        )
    )
