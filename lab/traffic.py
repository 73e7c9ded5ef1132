"""Live TCP connections, a little traffic on each, for an agent to observe."""

from __future__ import annotations

import selectors
import socket
import threading
from types import TracebackType
from typing import Self

_MESSAGE = b"x" * 1024
_CONNECT_S = 10.0


class Traffic:
    """Connections from here to a listener, each of which carries 1 KiB a second; a context
    manager."""

    def __init__(self, listener: socket.socket, connections: int) -> None:
        """
        Args:
            listener: a listening socket, in whatever network namespace; it is closed with this.
            connections: how many to open.
        """
        self._listener = listener
        self._stopping = threading.Event()
        self._ends = selectors.DefaultSelector()
        self._near: list[socket.socket] = []
        self._far: list[socket.socket] = []
        address = listener.getsockname()
        for _ in range(connections):
            self._near.append(socket.create_connection(address[:2], timeout=_CONNECT_S))
            far, _peer = listener.accept()
            far.setblocking(False)
            self._far.append(far)
            self._ends.register(far, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._flow, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join()
        self._ends.close()
        for end in (*self._near, *self._far, self._listener):
            end.close()

    def _flow(self) -> None:
        while not self._stopping.wait(1.0):
            for near in self._near:
                near.sendall(_MESSAGE)
            while ready := self._ends.select(timeout=0):
                for key, _ in ready:
                    key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
