"""``evertick incidents``: what is broken, and since when."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evertick.commands import screen
from evertick.commands.globals import settings

if TYPE_CHECKING:
    from schemas.incident import Incident

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def duration_ns(words: str) -> int:
    """A length of time such as ``90s``, ``15m``, ``24h``, ``7d``, in nanoseconds.

    Raises:
        typer.BadParameter: it is none.
    """
    number, unit = words[:-1], words[-1:].lower()
    if unit not in _UNITS_S or not number.isascii() or not number.isdigit() or len(number) > 6:
        raise typer.BadParameter(f"{words!r} is no length of time; write 90s, 15m, 24h or 7d")
    return int(number) * _UNITS_S[unit] * 1_000_000_000


def incidents(
    ctx: typer.Context,
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that are resolved.")
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="All that began in the last TIME (90s, 15m, 24h, 7d), and open ones.",
        ),
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="Only of this kind, or below it: link, link.down.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for a program.")] = False,
) -> None:
    """List incidents: what is broken, since when, how badly.

    Open ones only, unless told otherwise. An id may be shortened wherever one is asked for.

    Example: evertick incidents --since 24h --kind link
    """
    from evertick.sources import open_source

    now_ns = time.time_ns()
    from_ns = 0 if since is None else now_ns - duration_ns(since)
    open_only = not everything and since is None
    source = open_source(settings(ctx))
    found = of_kind(source.newest(open_only, from_ns), kind)
    shown = found[:limit]
    if source.note:
        screen.note(source.note)
    if as_json:
        screen.data([document(incident) for incident in shown])
        return
    if not shown:
        of = f" of kind {kind}" if kind else ""
        typer.echo(f"No open incidents{of}." if open_only else f"No incidents{of}.")
        return
    _print(shown, now_ns)
    if len(found) > len(shown):
        screen.note(f"{len(found) - len(shown)} more; raise --limit to see them")


def of_kind(found: list[Incident], kind: str | None) -> list[Incident]:
    """Those of a kind or below it, the newest first."""
    wanted = [
        one for one in found if kind is None or one.kind == kind or one.kind.startswith(f"{kind}.")
    ]
    return sorted(wanted, key=lambda one: (-one.opened_ns, one.incident))


def document(incident: Incident) -> dict[str, Any]:
    """An incident for a program: the message as it travels, with its times in words beside."""
    from evertick.wording import utc
    from schemas.registry import encode

    made: dict[str, Any] = json.loads(encode(incident))
    for name in ("opened", "mitigated", "resolved"):
        if (at_ns := made.get(f"{name}_ns")) is not None:
            made[name] = utc(at_ns)
    return made


def _print(shown: list[Incident], now_ns: int) -> None:
    from evertick.wording import ago, short

    table = screen.table("ID", "SEVERITY", "STATE", "OPENED", "KIND", "SUBJECT", "SUMMARY")
    for one in shown:
        style = screen.STYLES[one.severity]
        table.add_row(
            short(one.incident),
            screen.text(one.severity, style),
            one.state,
            ago(one.opened_ns, now_ns),
            screen.text(one.kind),
            screen.text(one.subject),
            screen.text(one.summary),
        )
    screen.show(table, screen.console())
