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
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import parse_qsl

import uvicorn

from history import wire
from history.asgi import (
    GoneError,
    Receive,
    Scope,
    Send,
    disconnected,
    exception_note,
    read_body,
    reply,
    reply_error,
    result_headers,
    start,
    write,
)
from history.engine import Engine, Head, QueryError, Statement
from history.folder import DataFolderError
from history.request import Account, admit, flag, statement_of

QUERIES_AT_ONCE = 16
KEEP_ALIVE_S = 600
EXIT_S = 1.8

log = logging.getLogger(__name__)


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
            await reply(send, 200, "Ok.\n", {})
            return
        query_id = params.get("query_id") or str(uuid.uuid4())
        base = {
            "X-ClickHouse-Query-Id": query_id,
            "X-ClickHouse-Timezone": "UTC",
            "X-ClickHouse-Server-Display-Name": "evertick",
        }
        if path != "/":
            await reply(send, 404, f"There is no handle {path}. Use / or /ping\n", base)
            return
        try:
            admit(self._account, headers, params)
            if self._running >= QUERIES_AT_ONCE:
                raise QueryError("Too many simultaneous queries", 202)
            body = await read_body(headers, receive)
            statement = statement_of(scope["method"], headers, params, body, query_id)
        except (QueryError, wire.WireError) as error:
            await reply_error(send, error, base)
            return
        except GoneError:
            return
        compress = flag(params, "enable_http_compression")
        encoding = wire.accepted_encoding(headers.get("accept-encoding", "") if compress else "")
        self._running += 1
        try:
            await self._answer(statement, encoding, base, receive, send)
        except GoneError:
            log.info("client left query %s", query_id)
        except Exception:
            # uvicorn's own log is off: it would tell of every cut response as of a fault.
            log.exception("query %s failed inside the front", query_id)
            raise
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
        gone = asyncio.create_task(disconnected(receive))
        results = _Results(self._engine.run(statement))
        tag = secrets.token_hex(8)
        encoder: wire.Encoder | None = None
        try:
            while (item := await self._next(results, gone, statement)) is not None:
                if isinstance(item, Head):
                    encoder = wire.Encoder(encoding)
                    await start(send, 200, {**base, **result_headers(item, encoding, tag)})
                elif encoder is not None and item:
                    await write(send, encoder.encode(item), more=True)
            if encoder is not None:
                await write(send, encoder.finish(), more=False)
        except (QueryError, wire.WireError) as error:
            if encoder is None:
                await reply_error(send, error, base)
                return
            # Returning with the response unfinished makes uvicorn cut the connection.
            note = exception_note(str(error), tag)
            await write(send, encoder.encode(note) + encoder.finish(), more=True)
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
            raise GoneError
        return item


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
            front,
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
