"""Requests and responses of ClickHouse's HTTP protocol as ASGI messages."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from history import wire
from history.engine import Head, QueryError

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

BODY_LIMIT_BYTES = 256 << 20
CLIENT_STALL_S = 120.0

# HTTP status by ClickHouse's error code, as its own server answers; the others are 500.
STATUS_BY_CODE = {
    516: 403, 192: 403, 193: 403, 497: 403, 164: 403,
    60: 404, 81: 404, 46: 404, 47: 404, 115: 404,
    62: 400, 27: 400, 6: 400, 36: 400, 73: 400, 456: 400, 457: 400,
    48: 501, 202: 503,
}  # fmt: skip
CONTENT_TYPES = {
    "JSON": "application/json; charset=UTF-8",
    "JSONCompact": "application/json; charset=UTF-8",
    "JSONEachRow": "application/x-ndjson; charset=UTF-8",
    "TabSeparated": "text/tab-separated-values; charset=UTF-8",
    "CSV": "text/csv; charset=UTF-8; header=absent",
    "CSVWithNames": "text/csv; charset=UTF-8; header=present",
}


class GoneError(Exception):
    """The client has left or does not take its result."""


def result_headers(head: Head, encoding: str, tag: str) -> dict[str, str]:
    """The headers of a result, known before its first byte."""
    headers = {
        "Content-Type": CONTENT_TYPES.get(head.format, "application/octet-stream"),
        "X-ClickHouse-Format": head.format,
        "X-ClickHouse-Summary": json.dumps(dict(head.summary)),
        "X-ClickHouse-Exception-Tag": tag,
    }
    return headers | ({"Content-Encoding": encoding} if encoding else {})


def exception_note(message: str, tag: str) -> bytes:
    """The tagged form (ClickHouse 25.11) of an error that comes after part of a result."""
    text = f"{message}\n"
    size = len(text.encode())
    return f"\r\n__exception__\r\n{tag}\r\n{text}{size} {tag}\r\n__exception__\r\n".encode()


async def read_body(headers: Mapping[str, str], receive: Receive) -> bytes:
    """The whole body. Raises `BodyTooLargeError`, or `GoneError` when the client leaves."""
    too_large = wire.BodyTooLargeError(
        f"the request's body is larger than {BODY_LIMIT_BYTES} bytes: insert in smaller blocks"
    )
    length = headers.get("content-length", "0")
    if length.isdecimal() and int(length) > BODY_LIMIT_BYTES:
        raise too_large
    parts: list[bytes] = []
    total = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise GoneError
        part = message.get("body", b"")
        total += len(part)
        if total > BODY_LIMIT_BYTES:
            raise too_large
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


async def disconnected(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def start(send: Send, status: int, headers: Mapping[str, str]) -> None:
    """Sends status and headers."""
    lines = [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": lines})


async def write(send: Send, data: bytes, *, more: bool) -> None:
    """Sends a piece of the body. Raises `GoneError` when the client has long taken nothing."""
    message = {"type": "http.response.body", "body": data, "more_body": more}
    try:
        await asyncio.wait_for(send(message), CLIENT_STALL_S)
    except TimeoutError:
        raise GoneError from None


async def reply(send: Send, status: int, text: str, headers: Mapping[str, str]) -> None:
    """A whole response of plain text."""
    body = text.encode()
    plain = {"Content-Type": "text/plain; charset=UTF-8", "Content-Length": str(len(body))}
    await start(send, status, {**headers, **plain})
    await write(send, body, more=False)


async def reply_error(
    send: Send, error: QueryError | wire.WireError, headers: Mapping[str, str]
) -> None:
    """An error response with ClickHouse's code, in the status its own server gives."""
    if isinstance(error, QueryError):
        status, failure = STATUS_BY_CODE.get(error.code, 500), error
    elif isinstance(error, wire.BodyTooLargeError):
        status, failure = 413, QueryError(str(error), 307)
    else:
        status, failure = 400, QueryError(str(error), 33)
    extra = {"X-ClickHouse-Exception-Code": str(failure.code)}
    if status == 413:
        # The rest of the body is on its way: it cannot be told from a next request.
        extra["Connection"] = "close"
    await reply(send, status, f"{failure}\n", {**headers, **extra})
