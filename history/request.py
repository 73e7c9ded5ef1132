"""From an HTTP request of ClickHouse's protocol to a statement for the engine.

Says who may ask (`admit`) and what is asked (`statement_of`); both are plain functions on the
request's method, headers (lower-case names), URL parameters and body.
"""

import base64
import binascii
import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from history import wire
from history.engine import QueryError, Statement

DECODED_LIMIT_BYTES = 1 << 30

# Parameters that steer the transport; every other one is a setting of the query.
TRANSPORT_PARAMETERS = frozenset(
    (
        "query", "database", "default_format", "query_id", "session_id", "session_timeout",
        "session_check", "user", "password", "quota_key", "wait_end_of_query", "buffer_size",
        "client_protocol_version", "role", "send_progress_in_http_headers", "stacktrace",
        "http_headers_progress_interval_ms", "enable_http_compression", "compress", "decompress",
        "http_zlib_compression_level", "cancel_http_readonly_queries_on_client_close",
    )
)  # fmt: skip


@dataclass(frozen=True)
class Account:
    """The one user that a password-protected front knows; without a password anyone may ask."""

    user: str = "default"
    password: str | None = None


def flag(params: Mapping[str, str], name: str) -> bool:
    """Whether a yes/no parameter is given and not off."""
    return params.get(name, "0") not in ("", "0", "false")


def admit(account: Account, headers: Mapping[str, str], params: Mapping[str, str]) -> None:
    """Raises `QueryError` unless the request may run: credentials, origin, what we can speak."""
    if "origin" in headers or headers.get("sec-fetch-site") == "cross-site":
        # A page open in someone's browser on this host must not reach the engine.
        raise QueryError("Requests from web pages are not served", 497)
    if flag(params, "compress") or flag(params, "decompress"):
        raise QueryError("compress and decompress are not supported: use HTTP compression", 48)
    if account.password is None:
        return
    user = headers.get("x-clickhouse-user") or params.get("user") or "default"
    key = headers.get("x-clickhouse-key") or params.get("password") or ""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            user, _, key = base64.b64decode(token, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            user, key = "", ""
    same_user = hmac.compare_digest(user.encode(), account.user.encode())
    same_key = hmac.compare_digest(key.encode(), account.password.encode())
    if not (same_user and same_key):
        raise QueryError("Authentication failed: the password is wrong, or no such user", 516)


def statement_of(
    method: str,
    headers: Mapping[str, str],
    params: Mapping[str, str],
    body: bytes,
    query_id: str,
) -> Statement:
    """The statement a request asks for. Raises `QueryError` or `wire.WireError` if malformed."""
    params = dict(params)
    tables: list[tuple[str, str, str, bytes]] = []
    content_type = headers.get("content-type", "")
    if content_type.startswith("multipart/"):
        files: list[tuple[str, bytes]] = []
        for name, is_file, content in wire.form_fields(content_type, body):
            if is_file:
                files.append((name, content))
            else:
                params[name] = content.decode()
        for name, content in files:
            structure = params.pop(f"{name}_structure", None) or params.pop(f"{name}_types", None)
            if structure is None:
                raise QueryError(f"external table {name} needs {name}_structure", 36)
            format_ = params.pop(f"{name}_format", "TabSeparated")
            tables.append((name, structure, format_, content))
        body = b""
    encoding = headers.get("content-encoding", "").lower()
    timeout = params.get("session_timeout", "60")
    if not timeout.isdecimal():
        raise QueryError(f"session_timeout must be whole seconds, not {timeout!r}", 27)
    bound = {k: v for k, v in params.items() if k.startswith("param_")}
    return Statement(
        query=params.get("query", ""),
        query_id=query_id,
        pieces=wire.decode(body, encoding, DECODED_LIMIT_BYTES),
        database=params.get("database") or headers.get("x-clickhouse-database") or "default",
        settings={
            k: v for k, v in params.items() if k not in TRANSPORT_PARAMETERS and k not in bound
        },
        params={k.removeprefix("param_"): v for k, v in bound.items()},
        default_format=params.get("default_format")
        or headers.get("x-clickhouse-format")
        or "TabSeparated",
        session_id=params.get("session_id", ""),
        session_timeout_s=float(timeout),
        read_only=method in ("GET", "HEAD"),
        tables=tuple(tables),
    )
