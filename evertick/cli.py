"""The command line: ``evertick COMMAND``.

Nothing but typer is imported before a command runs, so that help is quick and a node agent carries
no more than it needs. What a command raises becomes an exit code here: 2 for settings that do not
fit and services that cannot be reached (nothing was changed), 1 for a service lost on the way, 130
for Ctrl-C. A reader that closes the pipe (``evertick tail signals | head``) is no error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from evertick.commands import (
    bench,
    doctor,
    history,
    incidents,
    lab,
    parts,
    schema,
    show,
    tail,
    up,
)
from evertick.commands.globals import Globals

_HOISTED = ("--config", "--set")


def hoist(args: list[str]) -> list[str]:
    """Move global options that stand behind the command before it, where the parser wants them.

    What follows a ``--`` stays where it is.
    """
    front: list[str] = []
    rest: list[str] = []
    words = iter(args)
    for word in words:
        if word == "--":
            rest += [word, *words]
        elif word in _HOISTED:
            front += [word, *([value] if (value := next(words, None)) is not None else [])]
        elif word.startswith(tuple(f"{option}=" for option in _HOISTED)):
            front.append(word)
        else:
            rest.append(word)
    return front + rest


def paragraphs(text: str) -> str:
    """A docstring for a terminal of any width: lines that belong together in one."""
    return "\n\n".join(" ".join(part.split()) for part in cleandoc(text).split("\n\n"))


def _below(group: Any) -> Iterator[Any]:
    """All commands of a group, and those of the groups in it."""
    for command in getattr(group, "commands", {}).values():
        yield command
        yield from _below(command)


class Commands(TyperGroup):
    """The group of all commands: takes global options anywhere, turns exceptions into exit codes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for command in (self, *_below(self)):
            command.help = paragraphs(command.help or "")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line, global options first."""
        return super().parse_args(ctx, hoist(args))

    def invoke(self, ctx: Any) -> Any:
        """Run a command; end with its exit code."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            # Python would complain once more when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except Exception as error:
            code = _exit_code(error)
            if code is None:
                raise
            for line in str(error).splitlines():
                print(f"evertick: {line}", file=sys.stderr)
            raise typer.Exit(code) from None


def _exit_code(error: Exception) -> int | None:
    """The exit code for an error that its message explains; None for one that is a defect.

    Classes are told by module and name: one whose module was not imported cannot have been raised,
    and importing ClickHouse's client to find that out takes longer than most commands.
    """
    return _EXIT_CODES.get(f"{type(error).__module__}.{type(error).__name__}")


_EXIT_CODES = {
    "bus.settings.SettingsError": 2,
    "evertick.sources.NoSuchIncident": 2,
    "evertick.embedded.jars.EmbeddedKafkaError": 2,
    "history.engine.DataFolderError": 2,
    "bus.producer.Undelivered": 1,
    "evertick.reach.Lost": 1,
    "evertick.sources.HistoryAway": 1,
}

app = typer.Typer(
    cls=Commands,
    name="evertick",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with: evertick up. What this host can observe: evertick doctor.",
)


def _version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    try:
        print(version_of("evertick"))
    except PackageNotFoundError:
        print("not installed as a package")
    raise typer.Exit


@app.callback()
def _globals(
    ctx: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Settings file, instead of ./evertick.toml or /etc/evertick/evertick.toml.",
        ),
    ] = None,
    flags: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="One setting, stronger than environment and file; may be repeated. "
            "Example: --set kafka.bootstrap=broker:9092",
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Keeps GPU clusters ticking: sees what broke, says whom it hurts, keeps the job running.

    --config and --set may stand before or behind the command. The environment works too:
    EVERTICK_KAFKA__BOOTSTRAP is kafka.bootstrap.
    """
    ctx.obj = Globals(config, flags or [])


_PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Run": (up.up, parts.agent, parts.stream, parts.remediate),
    "Look": (incidents.incidents, show.show, tail.tail, doctor.doctor),
    "Build on": (lab.lab, bench.bench),
}
for _panel, _commands in _PANELS.items():
    for _command in _commands:
        app.command(rich_help_panel=_panel)(_command)
app.add_typer(history.app, name="history", rich_help_panel="Run")
app.add_typer(schema.app, name="schema", rich_help_panel="Build on")


def main() -> None:
    """The program ``evertick``."""
    app(prog_name="evertick")
