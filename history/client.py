"""The connection to ClickHouse, a real server or the embedded engine's HTTP front: one code."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import clickhouse_connect
from clickhouse_connect.driver.exceptions import ClickHouseError

from bus.settings import ClickHouseSettings, SettingsError

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_CONNECT_TIMEOUT_S = 5
_ANSWER_TIMEOUT_S = 60


class Unreachable(Exception):
    """ClickHouse does not answer, or answers with an error; the text says which and the fix."""


def connect(settings: ClickHouseSettings, database: str | None = None) -> Client:
    """A client on our database.

    Args:
        settings: where ClickHouse is.
        database: another database, such as ``default`` before ours exists.

    Raises:
        Unreachable: no answer there.
        SettingsError: the URL has no host.
    """
    url = urlsplit(settings.url)
    if not url.hostname:
        raise SettingsError(f"setting clickhouse.url: {settings.url} has no host")
    try:
        return clickhouse_connect.get_client(
            host=url.hostname,
            port=url.port or (8443 if url.scheme == "https" else 8123),
            secure=url.scheme == "https",
            username=settings.user,
            password=settings.password.get_secret_value(),
            database=settings.database if database is None else database,
            connect_timeout=_CONNECT_TIMEOUT_S,
            send_receive_timeout=_ANSWER_TIMEOUT_S,
            # Named sessions serialize queries on the server, and nothing of ours needs one.
            autogenerate_session_id=False,
        )
    except (ClickHouseError, OSError) as error:
        raise Unreachable(
            f"ClickHouse at {settings.url} does not answer: {first_line(error)}; "
            "is it running, and are clickhouse.url, user and database right?"
        ) from None


def first_line(error: Exception) -> str:
    """The first line of an error: the rest is a stack trace of the server."""
    return str(error).strip().partition("\n")[0][:300]
