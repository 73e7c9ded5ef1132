"""Schema changes: numbered SQL files, applied once each, in order, at start.

A file that was applied is never edited; what has to change becomes the next number. Each statement is
recorded before the next runs, and is written so that it may run twice (IF NOT EXISTS), so a start that
was killed in the middle goes on where it stopped.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from bus import log
from history.client import connect

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from bus.settings import ClickHouseSettings

_NAME = re.compile(r"(\d{4})_\w+\.sql")
_COMMENT = re.compile(r"^\s*--.*$", re.MULTILINE)

_log = log.get(__name__)


class Migration(NamedTuple):
    """One numbered file."""

    number: int
    name: str
    statements: list[str]


def migrations() -> list[Migration]:
    """All of them, in order."""
    found = []
    for file in files("history").joinpath("migrations").iterdir():
        match = _NAME.fullmatch(file.name)
        if match:
            text = _COMMENT.sub("", file.read_text(encoding="utf-8"))
            statements = [part.strip() for part in text.split(";") if part.strip()]
            found.append(Migration(int(match[1]), file.name, statements))
    return sorted(found)


def migrate(settings: ClickHouseSettings) -> list[str]:
    """Bring the database up to date; creates it where it is missing.

    Returns:
        Names of the files that were applied.

    Raises:
        history.client.Unreachable: ClickHouse does not answer.
        clickhouse_connect.driver.exceptions.DatabaseError: a statement failed.
    """
    first = connect(settings, database="default")
    first.command(f"CREATE DATABASE IF NOT EXISTS {settings.database}")
    first.close()
    client = connect(settings)
    try:
        return _apply(client)
    finally:
        client.close()


def _apply(client: Client) -> list[str]:
    client.command(
        "CREATE TABLE IF NOT EXISTS migrations (number UInt32, statement UInt32, name String,"
        " at DateTime64(3, 'UTC') DEFAULT now64(3)) ENGINE = MergeTree ORDER BY (number, statement)"
    )
    done = {
        tuple(row) for row in client.query("SELECT number, statement FROM migrations").result_rows
    }
    applied = []
    for migration in migrations():
        fresh = [
            (index, statement)
            for index, statement in enumerate(migration.statements)
            if (migration.number, index) not in done
        ]
        for index, statement in fresh:
            client.command(statement)
            client.insert(
                "migrations",
                [[migration.number, index, migration.name]],
                column_names=["number", "statement", "name"],
            )
        if fresh:
            applied.append(migration.name)
            _log.info("history schema changed", migration=migration.name)
    return applied
