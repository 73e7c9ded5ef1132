"""Collector ``linkpass``: a reflex that keeps peers reachable, and the events of what it did.

The work is done by a watchdog (:mod:`collectors.reflex`), a process of its own: it hears the peers
over every path and moves a peer's route within milliseconds. Here it is started, started again when
it dies, and its reports become events. After a failover the flows to the peer are asked how long they
stood still; that is done here as well, so that the watchdog never waits for it.

What the watchdog says while it ends cannot be sent any more: it is written to a file, with the paths
that were told dead, and goes out at the next start.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from prometheus_client import Counter

from bus import log
from bus.settings import SettingsError
from collectors.base import Capability, Collector, Host, Unavailable
from collectors.netlink import NetlinkError
from collectors.reflex.child import Child
from collectors.reflex.config import LinkPassSettings
from collectors.reflex.powers import powers
from collectors.reflex.stall import Flows, StallWatch
from collectors.reflex.telling import Teller
from schemas.event import Event
from schemas.registry import Unreadable, decode, encode

_TOPICS = {"path.route_move": "telemetry.packet", "outcome.reflex": "outcomes"}
_WAIT_S = 1.0
_STALL_STEP_S = 0.005
_STALL_MAX_NS = 10_000_000_000
_STOP_S = 0.8
_RESTART_S, _RESTART_MAX_S = 0.1, 5.0
_WELL_S = 30.0
"""A watchdog that lived for so long is started again at once when it dies."""

_restarts = Counter("evertick_linkpass_restarts", "Times that the watchdog died and was restarted")
_lost = Counter("evertick_linkpass_lost_reports", "Reports that found the pipe to the agent full")

_log = log.get(__name__)


class _Watch(NamedTuple):
    """The flows of a failover that are being looked at."""

    left: int
    failed_ns: int
    watch: StallWatch


class LinkPassCollector(Collector):
    """See the module."""

    name: ClassVar[str] = "linkpass"
    about: ClassVar[str] = "moves peers' routes off dead paths in milliseconds, and tells of it"
    interval_s: ClassVar[float] = 0.0
    Settings = LinkPassSettings

    settings: LinkPassSettings

    def __init__(self, host: Host, settings: LinkPassSettings) -> None:
        super().__init__(host, settings)
        if not settings.peers:
            raise Unavailable("no peers; name them in [collectors.linkpass.peers.NODE]")
        if host.node in settings.peers:
            raise SettingsError(f"setting collectors.linkpass.peers.{host.node}: that is this node")
        try:
            self._plan = settings.plan(host.node)
        except (OSError, ValueError) as error:
            raise Unavailable(f"no key: {error}") from None
        self._addresses = {peer.name: peer.addresses for peer in self._plan.peers}
        self._file = host.data_dir / "linkpass.json"
        self._teller = Teller(self._plan, host.zone, host.clock.read)
        self._unsent: list[Event] = []
        self._restore()
        self._watches: dict[str, _Watch] = {}
        self._restart_s = _RESTART_S
        self._child: Child | None = None
        self._start_at_s = time.monotonic()
        try:
            self._flows: Flows | None = Flows()
        except OSError as error:
            self._flows = None
            _log.warning("stalls of flows are not measured", reason=str(error))
        self._start()

    def collect(self) -> Iterator[Event]:
        """Wait up to a second for reports; yields the events of :mod:`schemas.path`."""
        while self._unsent:
            yield self._unsent[0]
            # The caller came back for more, so it has that one.
            del self._unsent[0]
        if self._child is None:
            time.sleep(min(_WAIT_S, max(0.0, self._start_at_s - time.monotonic())))
            if time.monotonic() >= self._start_at_s:
                _restarts.inc()
                self._start()
            return
        dead = dict(self._teller.dead)
        for report in self._child.read(_STALL_STEP_S if self._watches else _WAIT_S):
            self._heard_s = time.monotonic()
            yield from self._events(report)
        yield from self._look()
        if self._teller.dead != dead:
            self._save()
        silent_s = time.monotonic() - self._heard_s
        if self._child.ended or silent_s > 3 * self.settings.health_interval_s + 10:
            self._bury(silent_s)

    def close(self) -> None:
        """End the watchdog in good order, and keep what it says."""
        if self._child is not None:
            for report in self._child.stop(_STOP_S):
                self._unsent += self._events(report)
            self._child.reap()
            self._child = None
        self._save()
        if self._flows is not None:
            self._flows.close()

    @classmethod
    def capabilities(cls, host: Host, settings: LinkPassSettings) -> list[Capability]:
        """What of it works on this host."""
        if not settings.peers:
            return [
                Capability(
                    cls.name, False, "no peers; name them in [collectors.linkpass.peers.NODE]"
                )
            ]
        return powers(settings)

    # --- the watchdog

    def _start(self) -> None:
        self._teller.restart()
        self._heard_s = self._started_s = time.monotonic()
        try:
            self._child = Child(self._plan)
        except OSError as error:
            self._again(f"cannot be started: {error}")

    def _bury(self, silent_s: float) -> None:
        assert self._child is not None
        hung = "" if self._child.ended else f"said nothing for {silent_s:.0f} s, "
        child, self._child = self._child, None
        self._again(hung + child.reap())

    def _again(self, reason: str) -> None:
        now_s = time.monotonic()
        if now_s - self._started_s > _WELL_S:
            self._restart_s = _RESTART_S
        _log.error("watchdog died, starting another", reason=reason, pause_s=self._restart_s)
        self._start_at_s = now_s + self._restart_s
        self._restart_s = min(_RESTART_MAX_S, self._restart_s * 2)

    # --- its reports

    def _events(self, report: dict[str, Any]) -> Iterator[Event]:
        kind = report["kind"]
        if kind == "ready":
            _log.info("watchdog runs", pid=report["pid"])
            if report["slower"]:
                _log.warning("watchdog runs like any other process", reason=report["slower"])
        elif kind == "note":
            _log.warning("watchdog", says=report["text"])
        elif kind == "lost":
            _lost.inc(report["reports"])
            _log.warning("reports of the watchdog were lost", reports=report["reports"])
        else:
            yield from self._teller.events(report)
            if kind == "move" and report["reason"] == "failover" and not report["dry_run"]:
                yield from self._watch(report)

    def _watch(self, report: dict[str, Any]) -> Iterator[Event]:
        """Begin to look at the flows of a failover."""
        peer, failed_ns = report["peer"], report["failed_ns"]
        before = self._watches.get(peer)
        if self._flows is None or (before is not None and before.failed_ns == failed_ns):
            return
        if before is not None:
            yield from self._told(peer, before, time.time_ns())
        watch = StallWatch(failed_ns, report["at_ns"])
        self._watches[peer] = _Watch(report["left"], failed_ns, watch)

    def _look(self) -> Iterator[Event]:
        for peer, watch in list(self._watches.items()):
            assert self._flows is not None
            now_ns = time.time_ns()
            try:
                flows = self._flows.to(self._addresses[peer], now_ns)
            except (OSError, NetlinkError) as error:
                del self._watches[peer]
                _log.warning("flows cannot be asked for their stall", peer=peer, reason=str(error))
                continue
            if watch.watch.observe(flows) or now_ns - watch.failed_ns > _STALL_MAX_NS:
                yield from self._told(peer, watch, now_ns)

    def _told(self, peer: str, watch: _Watch, now_ns: int) -> Iterator[Event]:
        self._watches.pop(peer, None)
        stall = watch.watch.result(now_ns)
        if stall.flows:
            yield self._teller.stall(peer, watch.left, watch.failed_ns, now_ns, stall)

    # --- what outlives a run

    def _restore(self) -> None:
        try:
            saved = json.loads(self._file.read_bytes())
            self._unsent = [
                decode(text.encode(), _TOPICS.get(json.loads(text)["schema"], "telemetry.packet"))
                for text in saved["unsent"]
            ]
            self._teller.dead = {
                path: (str(fault), int(since_ns))
                for path, (fault, since_ns) in saved["dead"].items()
            }
        except FileNotFoundError:
            return
        except (OSError, KeyError, TypeError, ValueError, AttributeError, Unreadable) as error:
            _log.warning("cannot read what LinkPass left, starting afresh", reason=repr(error))

    def _save(self) -> None:
        """Write it in one step: whoever reads it sees the old or the new, whole."""
        state = {
            "unsent": [encode(event).decode() for event in self._unsent],
            "dead": self._teller.dead,
        }
        self._file.parent.mkdir(parents=True, exist_ok=True)
        new = Path(f"{self._file}.new")
        new.write_text(json.dumps(state))
        os.replace(new, self._file)
