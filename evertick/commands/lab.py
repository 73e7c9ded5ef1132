"""``evertick lab``: links break under a running job, with Evertick and without it."""

from __future__ import annotations

import signal
import sys
import time
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from evertick.commands import screen
from evertick.commands.globals import of

if TYPE_CHECKING:
    from lab.demo import Played
    from lab.scene import Audience


def lab(
    ctx: typer.Context,
    hosts: Annotated[int, typer.Option(min=2, max=16, help="Hosts, each with a node agent.")] = 2,
    rails: Annotated[int, typer.Option(min=2, max=8, help="NICs a host, each to a leaf.")] = 2,
    only_without: Annotated[
        bool, typer.Option("--without", help="Only the run without Evertick.")
    ] = False,
    only_with: Annotated[bool, typer.Option("--with", help="Only the run with Evertick.")] = False,
    most: Annotated[
        int | None,
        typer.Option("--faults", min=1, help="Only so many faults, the last ones of the script."),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Lines instead of a screen; so it is in a pipe, too.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="The summary as JSON; what happens to standard error.")
    ] = False,
) -> None:
    """Break the links of a small cluster under a running job, and watch what Evertick does.

    Hosts and switches are network namespaces of this machine, with a real node agent in each host;
    they are gone when it ends. First with Evertick, then the same faults without it, under 3 minutes.
    Needs root, or: python -m lab.rootless evertick lab. Exits with 1 where the job failed although
    Evertick was there.

    Example: evertick lab --hosts 4 --with
    """
    if only_with and only_without:
        raise typer.BadParameter("--with and --without exclude each other; give neither for both")
    if of(ctx).config is not None:
        raise typer.BadParameter(
            "the lab runs with the defaults and reads no settings file; use --set",
            param_hint="--config",
        )
    try:
        from lab import demo
        from lab.bench import BenchError
        from lab.fabric import NoLab, missing
        from lab.topology import Topology
    except ModuleNotFoundError as error:
        from bus.settings import SettingsError

        raise SettingsError(
            f"evertick lab needs the package {error.name}; "
            "install it with: pip install -e '.[embedded]'"
        ) from None
    why = missing()
    if why:
        screen.note(why)
        raise typer.Exit(2)
    began_s = time.monotonic()
    before = signal.signal(signal.SIGTERM, _end)
    played: list[Played] = []
    try:
        for with_evertick in [True] if only_with else [False] if only_without else [True, False]:
            audience = _audience(plain, as_json)
            audience.say(f"--- {'with' if with_evertick else 'without'} Evertick")
            topology = Topology(hosts, rails)
            played.append(demo.play(topology, audience, with_evertick, of(ctx).flags, most))
    except NoLab as reason:
        screen.note(str(reason))
        raise typer.Exit(2) from None
    except BenchError as error:
        for line in str(error).splitlines():
            screen.note(line)
        raise typer.Exit(1) from None
    finally:
        signal.signal(signal.SIGTERM, before)
    took_s = time.monotonic() - began_s
    if as_json:
        _data(played, took_s)
    else:
        _print(played, took_s)
    if any(one.score.with_evertick and one.score.job_errors for one in played):
        raise typer.Exit(1)


def _audience(plain: bool, as_json: bool) -> Audience:
    from lab.scene import Lines, Screen

    if as_json:
        return Lines(lambda line: print(line, file=sys.stderr, flush=True))
    if plain or not sys.stdout.isatty():
        return Lines(lambda line: print(screen.printable(line), flush=True))
    return Screen(screen.console())


def _data(played: list[Played], took_s: float) -> None:
    from lab.score import assumptions

    topology = played[0].view.topology
    screen.data(
        {
            "hosts": topology.hosts,
            "rails": topology.rails,
            "seconds": round(took_s, 1),
            "runs": {
                "with" if one.score.with_evertick else "without": one.score.document()
                for one in played
            },
            "assumptions": assumptions(),
        }
    )


def _print(played: list[Played], took_s: float) -> None:
    from evertick.wording import offset
    from lab.scene import understood
    from lab.score import assumptions, rows

    console = screen.console()
    for one in played:
        for incident, lines in understood(one.view):
            typer.echo()
            title = f"{incident.kind} on {incident.subject}, {incident.state} in the end"
            console.print(screen.text(title, "bold"))
            told = screen.table("", "")
            told.show_header = False
            for line in lines:
                told.add_row(screen.text(offset(line.offset_ns)), screen.text(line.text))
            screen.show(told, console)
    typer.echo()
    names = (f"{'with' if one.score.with_evertick else 'without'} Evertick" for one in played)
    table = screen.table("", *names)
    for name, figures in rows([one.score for one in played]):
        table.add_row(screen.text(name), *map(screen.text, figures))
    screen.show(table, console)
    typer.echo(f"\nIt took {took_s:.0f} s. What the price assumes:")
    for assumption in assumptions():
        typer.echo(f"- {assumption}")


def _end(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends it as Ctrl-C does: the lab is taken away on the way out."""
    raise KeyboardInterrupt
