"""``evertick bench``: what it can do on this machine, in figures."""

from __future__ import annotations

import signal
import sys
import time
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evertick.commands import screen
from evertick.commands.globals import of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lab.bench import Benchmark


def bench(
    ctx: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="Which benchmark; without one they are listed.")
    ] = None,
    only: Annotated[
        str, typer.Option(metavar="PREFIX", help="Only figures whose names begin so.")
    ] = "",
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Smaller counts: to see whether it works, not for figures."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for a program.")] = False,
) -> None:
    """Measure what Evertick does on this machine, and print the figures.

    It starts what it needs in a temporary folder on free ports and removes everything when it ends;
    a running evertick up and its data are not touched. Settings of this host do not hold here, only
    those given with --set. Progress goes to standard error.

    Example: evertick bench pipeline --json
    """
    try:
        from lab.bench import BenchError, Options, registered, report

        benchmarks = registered()
    except ModuleNotFoundError as error:
        from bus.settings import SettingsError

        raise SettingsError(
            f"evertick bench needs the package {error.name}; "
            "install it with: pip install -e '.[embedded]'"
        ) from None
    if name is None:
        _list(benchmarks, as_json)
        return
    if name not in benchmarks:
        raise typer.BadParameter(
            f"no benchmark {name!r}; there are: {', '.join(benchmarks)}", param_hint="NAME"
        )
    if of(ctx).config is not None:
        raise typer.BadParameter(
            "a benchmark runs with the defaults and reads no settings file; use --set",
            param_hint="--config",
        )
    began_s = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - began_s:4.0f} s] {line}", file=sys.stderr, flush=True)

    before = signal.signal(signal.SIGTERM, _end)
    try:
        result = report(benchmarks[name], Options(of(ctx).flags, only, quick, say))
    except BenchError as error:
        for line in str(error).splitlines():
            print(f"evertick: {line}", file=sys.stderr)
        raise typer.Exit(1) from None
    finally:
        signal.signal(signal.SIGTERM, before)
    if as_json:
        screen.data(result)
    else:
        _print(result)


def _list(benchmarks: Mapping[str, Benchmark], as_json: bool) -> None:
    if as_json:
        screen.data(
            [
                {"name": one.name, "about": one.about, "figures": list(one.keys)}
                for one in benchmarks.values()
            ]
        )
        return
    table = screen.table("BENCHMARK", "WHAT IT MEASURES")
    for one in benchmarks.values():
        table.add_row(one.name, one.about)
    screen.show(table, screen.console())


def _print(result: dict[str, Any]) -> None:
    table = screen.table("FIGURE", "VALUE")
    for key, value in result["figures"].items():
        table.add_row(key, "not measured here" if value is None else f"{value:,}")
    screen.show(table, screen.console())
    facts = ", ".join(f"{name} {value}" for name, value in result["machine"].items())
    typer.echo(f"\n{facts}\nstarted {result['started']}, took {result['seconds']} s")
    for note in result["notes"]:
        typer.echo(f"- {note}")


def _end(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends a benchmark as Ctrl-C does: what it started is removed on the way out."""
    raise KeyboardInterrupt
