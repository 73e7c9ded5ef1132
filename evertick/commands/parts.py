"""``evertick agent | stream | remediate``: the long-running parts, one process each."""

from __future__ import annotations

from importlib import import_module

import typer

from evertick.commands.globals import settings


def agent(ctx: typer.Context) -> None:
    """Watch this host and send what is seen to Kafka.

    One agent runs on every node. What of it works on this host says: evertick doctor. It stops on
    Ctrl-C or SIGTERM; what Kafka has not taken by then waits on disk for the next start.

    Example: evertick agent --set kafka.bootstrap=broker:9092 --set agent.node=node-3
    """
    run(ctx, "agent", "collectors.agent")


def stream(ctx: typer.Context) -> None:
    """Turn telemetry into signals, and signals into incidents.

    Several may run; they share the nodes among them. It stops on Ctrl-C or SIGTERM and goes on
    where it stopped.

    Example: evertick stream --set kafka.bootstrap=broker:9092
    """
    run(ctx, "stream", "streams.worker")


def remediate(ctx: typer.Context) -> None:
    """Act on incidents as policy allows, and keep the ledger of what was done.

    Remedies only observe until a setting tells them to act, except for the notice. It stops on
    Ctrl-C or SIGTERM; actions that are not done by then are done at the next start.

    Example: evertick remediate --set remedies.notify.enabled=true
    """
    run(ctx, "remediate", "remediators.worker")


def run(ctx: typer.Context, part: str, module: str) -> None:
    """Run a part until it is told to stop.

    Args:
        ctx: the command's context.
        part: its name in the log, and the extra that brings its packages.
        module: where its ``run`` is.

    Raises:
        SettingsError: a setting does not fit, or the part's packages are not installed.
    """
    from bus import log
    from bus.settings import SettingsError

    chosen = settings(ctx)
    log.configure(chosen, part)
    try:
        start = import_module(module).run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == module.partition(".")[0]:
            raise
        raise SettingsError(
            f"the {part} part needs the package {error.name}; "
            f"install it with: pip install -e '.[{part}]'"
        ) from None
    start(chosen)
