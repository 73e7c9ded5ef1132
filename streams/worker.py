"""The stream worker: one process of the Faust app.

``run`` blocks until SIGTERM or SIGINT. Several workers divide the partitions among themselves; when
one dies, the others have its partitions within about nine seconds.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
from typing import Any

import faust

from bus import log
from bus.health import Health, serve
from bus.settings import Settings, section
from bus.topics import ensure
from streams.app import StreamApp
from streams.base import registered
from streams.correlator import Correlator, CorrelatorSettings
from streams.detecting import Fleet
from streams.incidents import Zones

_STOP_S = 1.8

_log = log.get(__name__)


def _end_now() -> None:
    _log.warning("did not stop in time, ending at once", within_s=_STOP_S)
    os._exit(0)


class _Worker(faust.Worker):
    """Faust's worker without its say in our log, terminal and process title."""

    def __init__(self, app: StreamApp) -> None:
        super().__init__(app, quiet=True, redirect_stdouts=False, override_logging=False)
        self.spinner = None

    async def live(self) -> None:
        """Start, and end at a signal or at a crash, which is raised.

        Faust's own way to run a worker sleeps for over a second when it is told to stop.
        """
        try:
            await self.start()
        finally:
            await self.stop()
        if self.crash_reason is not None:
            raise self.crash_reason

    def _schedule_shutdown(self, signal: Any) -> None:
        """Stop in good order, or without it: what was not committed is read again, and harmless."""
        timer = threading.Timer(_STOP_S, _end_now)
        timer.daemon = True
        timer.start()
        super()._schedule_shutdown(signal)

    def _setproctitle(self, info: str, *, ident: str = "") -> None:
        pass


def run(settings: Settings) -> None:
    """Run until told to stop.

    Raises:
        SettingsError: settings that do not fit, Kafka that cannot be reached, a taken port.
    """
    fleet = Fleet(registered(), settings.detectors)
    zones = Zones(_correlators(settings))
    ensure(settings.kafka)
    # Said at every start and under any load; neither is a fault.
    for name in ("faust.app.base", "mode.timers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    health = Health()
    server = serve(health, settings.metrics.host, settings.metrics.stream_port, "stream")
    # What is there now stays for good, and telemetry itself makes no cycles.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    try:
        asyncio.run(_live(settings, fleet, zones, health))
    finally:
        if server is not None:
            server.shutdown()


async def _live(settings: Settings, fleet: Fleet, zones: Zones, health: Health) -> None:
    app = StreamApp(settings, fleet, zones, health)
    app.finalize()
    await _Worker(app).live()


def _correlators(settings: Settings) -> Any:
    checked = section(CorrelatorSettings, settings.correlator, "correlator")
    return lambda zone: Correlator(zone, checked)
