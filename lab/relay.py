"""Lets the processes of a lab's host reach ports of this host's loopback, and nothing else.

A socket that was made inside a namespace keeps listening there, whoever accepts from it: so one thread
out here accepts for all hosts and passes on what it gets. Kafka then is where its own address says,
at ``127.0.0.1``, also for an agent that lives in a namespace without any way out.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Self

from lab.namespace import Namespace

_PIECE_BYTES = 1 << 16


class Relay:
    """Ports of loopback, made reachable from namespaces; a context manager."""

    def __init__(self, namespaces: Iterable[Namespace], ports: Iterable[int]) -> None:
        """
        Raises:
            OSError: a port is taken inside.
        """
        ports = list(ports)
        self._listeners = [
            (namespace.call(_listen, port), port) for namespace in namespaces for port in ports
        ]
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        for listener, port in self._listeners:
            self._servers.append(await asyncio.start_server(_passing_to(port), sock=listener))

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


def _listen(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(64)
    return listener


def _passing_to(
    port: int,
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        # Nobody may be listening out here; and when the lab ends this is cancelled.
        with contextlib.suppress(OSError, asyncio.CancelledError):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
            ends.append(far_writer)
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        for end in ends:
            end.close()

    return serve


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while piece := await reader.read(_PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
        # That side has said all; the answer may still be on its way.
        writer.write_eof()
    except OSError:
        # What broke on one side breaks on the other: who uses it sees that.
        writer.transport.abort()
