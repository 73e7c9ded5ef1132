"""``evertick up``: the whole system on this host, in the foreground."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evertick.commands.globals import of, settings

if TYPE_CHECKING:
    from bus.settings import Settings
    from evertick.embedded.supervisor import Supervisor

_REFRESH_S = 0.25
_NICEST = 19
_DETAIL_CHARS = 60


def up(
    ctx: typer.Context,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object when all is ready.")
    ] = False,
) -> None:
    """Run everything on this host: Kafka, history, detectors, remedies and the agent.

    Nothing else need be installed or running. It stays in the foreground, restarts what dies, and
    ends with Ctrl-C; data is kept in data_dir, which never exceeds embedded.data_max_bytes. All
    listens on 127.0.0.1 unless embedded.host says otherwise.

    Example: evertick up --set data_dir=./data --set embedded.kafka_port=19092
    """
    chosen = settings(ctx)
    import asyncio

    from evertick.embedded import parts, preflight
    from evertick.embedded.folder import LOG_FILE_MAX_BYTES, LOGS
    from evertick.embedded.logs import Events, RotatingFile
    from evertick.embedded.supervisor import CannotStart, Supervisor
    from evertick.reach import Lost

    began_s = time.monotonic()
    preflight.packages()
    folder = preflight.check(chosen)
    log = RotatingFile(folder.path / LOGS / "up.log", LOG_FILE_MAX_BYTES)
    events = Events(log, chosen.log_json)
    events.quiet = sys.stderr.isatty()

    async def live() -> None:
        events.say("up", f"starting on data folder {folder.path}")
        stack = Supervisor(
            parts.all_parts(chosen, of(ctx).argv()), parts.environment(), folder, events
        )
        screen = _Screen(stack, began_s) if sys.stderr.isatty() else None

        def on_ready() -> None:
            took_s = time.monotonic() - began_s
            if screen is not None:
                screen.close()
            events.quiet = False
            events.say("up", f"everything is ready after {took_s:.1f} s")
            _tell(stack, chosen, took_s, as_json)
            broker = stack.states["kafka"].process
            if broker is not None and not parts.has_class_archive(broker.pid):
                stack.help_out("prepare", parts.record_classes(), _NICEST)

        try:
            await stack.run(on_ready)
        finally:
            if screen is not None:
                screen.close()
            events.quiet = False

    try:
        asyncio.run(live())
        events.say("up", "everything has ended")
    except CannotStart as error:
        raise Lost(f"{error}; its log is in {folder.path / LOGS}") from None
    finally:
        log.close()
        folder.close()


class _Screen:
    """Progress on a terminal: a line a part with its state and its seconds, until closed."""

    def __init__(self, stack: Supervisor, began_s: float) -> None:
        import asyncio

        from rich.console import Console
        from rich.live import Live

        self._stack = stack
        self._live = Live(
            self._table(), console=Console(stderr=True), auto_refresh=False, transient=True
        )
        self._live.start()
        self._task = asyncio.ensure_future(self._refresh())

    def close(self) -> None:
        """Take it away."""
        self._task.cancel()
        self._live.stop()

    async def _refresh(self) -> None:
        import asyncio

        while True:
            self._live.update(self._table(), refresh=True)
            await asyncio.sleep(_REFRESH_S)

    def _table(self) -> Any:
        from evertick.commands.screen import table, text

        shown = table("PART", "STATE", "SECONDS", "")
        for part in self._stack.parts:
            state = self._stack.states[part.name]
            detail = ""
            if state.phase == "waiting":
                detail = "for " + ", ".join(
                    need for need in part.needs if not self._stack.states[need].ready.is_set()
                )
            elif state.phase == "starting" and state.process is not None and state.process.tail:
                detail = state.process.tail[-1][:_DETAIL_CHARS]
            if state.phase == "ready" and state.ready_after_s is not None:
                seconds = state.ready_after_s
            else:
                seconds = time.monotonic() - state.since_s
            style = "green" if state.phase == "ready" else "yellow"
            shown.add_row(
                text(part.name), text(state.phase, style), text(f"{seconds:.1f}"), text(detail)
            )
        return shown


def _tell(stack: Supervisor, chosen: Settings, took_s: float, as_json: bool) -> None:
    """What runs and where."""
    import os

    from evertick.commands.screen import data
    from evertick.embedded.folder import LOGS
    from evertick.embedded.preflight import bootstrap, clickhouse_url

    folder = chosen.data_dir.absolute()
    parts = [
        {
            "name": part.name,
            "pid": process.pid if (process := stack.states[part.name].process) else None,
            "where": part.where,
            "metrics": part.metrics,
            "log": str(folder / LOGS / f"{part.name}.log"),
            "ready_after_s": round(stack.states[part.name].ready_after_s or 0.0, 3),
        }
        for part in stack.parts
    ]
    document = {
        "ready_after_s": round(took_s, 3),
        "pid": os.getpid(),
        "data_dir": str(folder),
        "data_max_bytes": chosen.embedded.data_max_bytes,
        "kafka": bootstrap(chosen),
        "clickhouse": clickhouse_url(chosen),
        "parts": parts,
        "try": _commands(chosen),
    }
    if as_json:
        data(document)
        sys.stdout.flush()
        return
    from evertick.commands.screen import console, table, text

    shown = table("PART", "PROCESS", "WHERE")
    for part in parts:
        where = str(part["where"] or part["metrics"])
        if part["where"] and part["metrics"]:
            where = f"{part['where']}, {part['metrics']}"
        shown.add_row(text(str(part["name"])), text(str(part["pid"])), text(where))
    terminal = console()
    terminal.print(text(f"Evertick is up after {took_s:.1f} s."))
    terminal.print()
    terminal.print(shown)
    terminal.print()
    bound = chosen.embedded.data_max_bytes / (1 << 30)
    terminal.print(text(f"Data  {folder} (at most {bound:.1f} GiB; logs in {folder / LOGS})"))
    for label, command in zip(("Try   ", "      "), _commands(chosen), strict=True):
        terminal.print(text(label + command), soft_wrap=True)  # to be copied whole
    terminal.print(text(f"Stop  Ctrl-C, or: kill {os.getpid()}"))


def _commands(chosen: Settings) -> list[str]:
    """The first commands to try, with the settings by which they find this stack."""
    from evertick.embedded.preflight import bootstrap, clickhouse_url

    reach = ""
    if bootstrap(chosen) != chosen.kafka.bootstrap:
        reach += f" --set kafka.bootstrap={bootstrap(chosen)}"
    if clickhouse_url(chosen) != chosen.clickhouse.url:
        reach += f" --set clickhouse.url={clickhouse_url(chosen)}"
    return [f"evertick incidents{reach}", f"evertick tail signals{reach}"]
