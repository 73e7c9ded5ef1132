"""``evertick history``: the writer of the history, and the embedded engine's HTTP front."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evertick.commands.globals import settings
from evertick.commands.parts import run

app = typer.Typer(invoke_without_command=True)


@app.callback()
def history(ctx: typer.Context) -> None:
    """Keep the history: copy every topic into ClickHouse.

    Without a further word it writes, as does: evertick history write. The tables are created and
    brought up to date at start. While ClickHouse is away it waits; nothing is lost.

    Example: evertick history --set clickhouse.url=http://clickhouse:8123
    """
    if ctx.invoked_subcommand is None:
        run(ctx, "history", "history.writer")


@app.command()
def write(ctx: typer.Context) -> None:
    """Copy every topic into ClickHouse, until Ctrl-C or SIGTERM."""
    run(ctx, "history", "history.writer")


@app.command()
def serve(
    ctx: typer.Context,
    path: Annotated[
        Path | None,
        typer.Option(help="Data folder, made where missing.  [default: DATA_DIR/history]"),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on.  [default: embedded.host]")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, help="Port to listen on.  [default: embedded.clickhouse_port]"
        ),
    ] = None,
) -> None:
    """Run ClickHouse's engine inside this process, for those who have no ClickHouse.

    Clients reach it as they would a server, over HTTP. One process at a time may have the folder.

    Example: evertick history serve --path ./history --port 8123
    """
    chosen = settings(ctx)
    from bus import log

    log.configure(chosen, "history-serve")
    import os

    from history import front

    password = chosen.clickhouse.password.get_secret_value()
    if password:
        # Not an argument: every user of the host can read those.
        os.environ["EVERTICK_CLICKHOUSE__PASSWORD"] = password
    raise typer.Exit(
        front.main(
            [
                f"--path={path or chosen.data_dir / 'history'}",
                f"--host={host or chosen.embedded.host}",
                f"--port={port or chosen.embedded.clickhouse_port}",
                f"--user={chosen.clickhouse.user}",
            ]
        )
    )
