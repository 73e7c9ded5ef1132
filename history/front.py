"""ClickHouse's HTTP protocol in front of the embedded engine.

Enough of the protocol for `clickhouse_connect`, Grafana's data source and curl, so that the
same code reaches this process or a real ClickHouse server by URL alone.

It is a bare ASGI application on uvicorn, which takes half of aiohttp's memory (8 against 19 MB);
one event loop is enough, since the engine works on threads. The loop *pulls* a result piece by
piece: a slow client holds a connection but no thread. An error before the first byte is an
ordinary error response with the engine's code; an error after it is written in the tagged form
of ClickHouse 25.11 and the connection is cut, so that no client takes the part for the whole.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import uvicorn

from history import wire
from history.engine import DataFolderError, Engine, Head, QueryError, Statement
from history.request import Account, admit, flag, statement_of

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

BODY_LIMIT_BYTES = 256 << 20
QUERIES_AT_ONCE = 16
CLIENT_STALL_S = 120.0
KEEP_ALIVE_S = 600
EXIT_S = 1.8

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

log = logging.getLogger(__name__)


class _GoneError(Exception):
    """The client has left or does not take its result."""


class _Results:
    """A result, pulled by whichever thread is free; closing waits for the step under way."""

    def __init__(self, items: Iterator[Head | bytes]) -> None:
        self._items = items
        self._lock = threading.Lock()

    def next(self) -> Head | bytes | None:
        with self._lock:
            return next(self._items, None)

    def close(self) -> None:
        with self._lock:
            self._items.close()  # type: ignore[attr-defined]


class Front:
    """The ASGI application over one engine."""

    def __init__(self, engine: Engine, account: Account) -> None:
        self._engine = engine
        self._account = account
        self._pool = ThreadPoolExecutor(QUERIES_AT_ONCE + 1, "query")
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        query_string = scope["query_string"].decode("latin-1")
        params = dict(parse_qsl(query_string, keep_blank_values=True))
        path, reading = scope["path"], scope["method"] in ("GET", "HEAD")
        if path in ("/ping", "/replicas_status") or (reading and path == "/" and not query_string):
            await _reply(send, 200, "Ok.\n", {})
            return
        query_id = params.get("query_id") or str(uuid.uuid4())
        base = {
            "X-ClickHouse-Query-Id": query_id,
            "X-ClickHouse-Timezone": "UTC",
            "X-ClickHouse-Server-Display-Name": "evertick",
        }
        if path != "/":
            await _reply(send, 404, f"There is no handle {path}. Use / or /ping\n", base)
            return
        try:
            admit(self._account, headers, params)
            if self._running >= QUERIES_AT_ONCE:
                raise QueryError("Too many simultaneous queries", 202)
            body = await _body(headers, receive)
            statement = statement_of(scope["method"], headers, params, body, query_id)
        except (QueryError, wire.WireError) as error:
            await _reply_error(send, error, base)
            return
        except _GoneError:
            return
        compress = flag(params, "enable_http_compression")
        encoding = wire.accepted_encoding(headers.get("accept-encoding", "") if compress else "")
        self._running += 1
        try:
            await self._answer(statement, encoding, base, receive, send)
        except _GoneError:
            log.info("client left query %s", query_id)
        finally:
            self._running -= 1

    def close(self) -> None:
        """Waits for the worker threads; cancel the engine's queries before."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def _answer(
        self,
        statement: Statement,
        encoding: str,
        base: Mapping[str, str],
        receive: Receive,
        send: Send,
    ) -> None:
        gone = asyncio.create_task(_disconnected(receive))
        results = _Results(self._engine.run(statement))
        tag = secrets.token_hex(8)
        encoder: wire.Encoder | None = None
        try:
            while (item := await self._next(results, gone, statement)) is not None:
                if isinstance(item, Head):
                    encoder = wire.Encoder(encoding)
                    await _start(send, 200, {**base, **_head(item, encoding, tag)})
                elif encoder is not None and item:
                    await _write(send, encoder.encode(item), more=True)
            if encoder is not None:
                await _write(send, encoder.finish(), more=False)
        except (QueryError, wire.WireError) as error:
            if encoder is None:
                await _reply_error(send, error, base)
                return
            # Returning with the response unfinished makes uvicorn cut the connection.
            note = _exception_note(str(error), tag)
            await _write(send, encoder.encode(note) + encoder.finish(), more=True)
        finally:
            gone.cancel()
            await asyncio.get_running_loop().run_in_executor(self._pool, results.close)

    async def _next(
        self, results: _Results, gone: "asyncio.Task[None]", statement: Statement
    ) -> Head | bytes | None:
        """The next item; the SELECT of a client that has left meanwhile is cancelled.

        Not an INSERT: its body is here complete, and half of it would be worse than all.
        """
        loop = asyncio.get_running_loop()
        step = loop.run_in_executor(self._pool, results.next)
        await asyncio.wait((step, gone), return_when=asyncio.FIRST_COMPLETED)
        if not step.done():
            await loop.run_in_executor(self._pool, self._engine.cancel, statement.query_id)
        item = await step
        if gone.done():
            raise _GoneError
        return item


def _head(head: Head, encoding: str, tag: str) -> dict[str, str]:
    headers = {
        "Content-Type": CONTENT_TYPES.get(head.format, "application/octet-stream"),
        "X-ClickHouse-Format": head.format,
        "X-ClickHouse-Summary": json.dumps(dict(head.summary)),
        "X-ClickHouse-Exception-Tag": tag,
    }
    return headers | ({"Content-Encoding": encoding} if encoding else {})


def _exception_note(message: str, tag: str) -> bytes:
    text = f"{message}\n"
    size = len(text.encode())
    return f"\r\n__exception__\r\n{tag}\r\n{text}{size} {tag}\r\n__exception__\r\n".encode()


async def _body(headers: Mapping[str, str], receive: Receive) -> bytes:
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
            raise _GoneError
        part = message.get("body", b"")
        total += len(part)
        if total > BODY_LIMIT_BYTES:
            raise too_large
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _start(send: Send, status: int, headers: Mapping[str, str]) -> None:
    lines = [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": lines})


async def _write(send: Send, data: bytes, *, more: bool) -> None:
    message = {"type": "http.response.body", "body": data, "more_body": more}
    try:
        await asyncio.wait_for(send(message), CLIENT_STALL_S)
    except TimeoutError:
        raise _GoneError from None


async def _reply(send: Send, status: int, text: str, headers: Mapping[str, str]) -> None:
    body = text.encode()
    plain = {"Content-Type": "text/plain; charset=UTF-8", "Content-Length": str(len(body))}
    await _start(send, status, {**headers, **plain})
    await _write(send, body, more=False)


async def _reply_error(
    send: Send, error: QueryError | wire.WireError, headers: Mapping[str, str]
) -> None:
    if isinstance(error, QueryError):
        status = STATUS_BY_CODE.get(error.code, 500)
        failure = error
    else:
        large = isinstance(error, wire.BodyTooLargeError)
        status, failure = (413, QueryError(str(error), 307)) if large else (
            400,
            QueryError(str(error), 33),
        )
    extra = {"X-ClickHouse-Exception-Code": str(failure.code)}
    if status == 413:
        # The rest of the body is on its way: it cannot be told from a next request.
        extra["Connection"] = "close"
    await _reply(send, status, f"{failure}\n", {**headers, **extra})


class _Server(uvicorn.Server):
    """uvicorn, which cancels the running queries before it waits for their connections."""

    engine: Engine

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to the caller of `serve`."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.engine.cancel)
        await super().shutdown(sockets)


def serve(
    path: Path,
    host: str = "127.0.0.1",
    port: int = 8123,
    user: str | None = None,
    password: str | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Serves the history in `path` until `stop` is set; `/ping` answers as soon as it is ready.

    With a `password`, every request but `/ping` needs it, for `user` (default `default`).
    Raises `DataFolderError` for a folder that cannot be used, `OSError` for a taken address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named TCP, since asyncio turns Nagle's algorithm off only where the protocol says so.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        engine = Engine(path)
        front = Front(engine, Account(user or "default", password))
        config = uvicorn.Config(
            front,  # type: ignore[arg-type]
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level=logging.CRITICAL,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
        )
        server = _Server(config)
        server.engine = engine
        if stop is not None:
            threading.Thread(target=_stop_on, args=(stop, server), daemon=True).start()
        try:
            server.run(sockets=[listener])
        finally:
            engine.cancel()
            front.close()
            engine.close()


def _stop_on(stop: threading.Event, server: uvicorn.Server) -> None:
    stop.wait()
    server.should_exit = True


def main(argv: list[str] | None = None) -> int:
    """Runs `serve` as a program: exit code 2 and one line when it cannot start."""
    parser = argparse.ArgumentParser(
        prog="history.front", description="The embedded history, over ClickHouse's HTTP protocol."
    )
    parser.add_argument("--path", type=Path, required=True, help="data folder, made when missing")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8123, help="TCP port to listen on")
    parser.add_argument("--user", default="default", help="user that the password belongs to")
    parser.epilog = "The password is read from EVERTICK_CLICKHOUSE__PASSWORD; without it, none."
    options = parser.parse_args(argv)
    stop = threading.Event()

    def on_signal(_signal: int, _frame: object) -> None:
        stop.set()
        # A query deep in the engine may not hear of its cancellation in time. The engine's
        # files outlive any death of the process, so leaving it behind is safe.
        deadline = threading.Timer(EXIT_S, os._exit, (0,))
        deadline.daemon = True
        deadline.start()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    password = os.environ.get("EVERTICK_CLICKHOUSE__PASSWORD") or None
    try:
        serve(options.path, options.host, options.port, options.user, password, stop)
    except DataFolderError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        where = f"{options.host}:{options.port}"
        print(f"cannot listen on {where}: {error.strerror}; choose another", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
