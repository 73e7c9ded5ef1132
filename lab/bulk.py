"""Bulk TCP transfers between two hosts of a lab, each paced by the kernel to a rate."""

from __future__ import annotations

import socket
import threading
import time
from types import TracebackType
from typing import Self

from lab.namespace import Namespace

_SO_MAX_PACING_RATE = 47
_PIECE = bytes(1 << 19)
_TAKE_BYTES = 1 << 20
_CONNECT_S = 10.0


def connect(
    source: Namespace, target: Namespace, address: str
) -> tuple[socket.socket, socket.socket]:
    """A TCP connection from one host to another at this address; both ends, the near one first."""
    with target.call(lambda: socket.create_server((address, 0))) as listener:
        listener.settimeout(_CONNECT_S)
        end = listener.getsockname()[:2]
        near = source.call(lambda: socket.create_connection(end, _CONNECT_S))
        far, _ = listener.accept()
    near.settimeout(None)
    far.settimeout(None)
    return near, far


class Bulk:
    """Transfers that go on until they are stopped; a context manager."""

    def __init__(
        self,
        source: Namespace,
        target: Namespace,
        address: str,
        flows: int,
        rate_bytes_per_s: int,
        total_bytes: int = 0,
    ) -> None:
        """
        Args:
            source: who sends.
            target: who receives.
            address: of the target.
            flows: how many connections.
            rate_bytes_per_s: of all of them together.
            total_bytes: how many each sends; 0 for no end.
        """
        self._total = total_bytes
        self._received = [0] * flows
        self._ends = [connect(source, target, address) for _ in range(flows)]
        for near, _ in self._ends:
            near.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, rate_bytes_per_s // flows)
        self._senders = [
            threading.Thread(target=self._send, args=(near,)) for near, _ in self._ends
        ]
        self._takers = [
            threading.Thread(target=self._take, args=(index, far))
            for index, (_, far) in enumerate(self._ends)
        ]

    def __enter__(self) -> Self:
        for thread in (*self._takers, *self._senders):
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for end in (end for pair in self._ends for end in pair):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # its other end has ended it already
        for thread in (*self._senders, *self._takers):
            thread.join()
        for end in (end for pair in self._ends for end in pair):
            end.close()

    @property
    def received_bytes(self) -> int:
        """What has arrived by now."""
        return sum(self._received)

    def arrived(self, within_s: float) -> bool:
        """Wait until all has arrived; false where it has not in time."""
        deadline = time.monotonic() + within_s
        while self.received_bytes < self._total * len(self._ends):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def _send(self, end: socket.socket) -> None:
        left = self._total
        try:
            while left or not self._total:
                piece = _PIECE if not self._total else _PIECE[:left]
                end.sendall(piece)
                left -= len(piece) if self._total else 0
        except OSError:
            return  # stopped

    def _take(self, index: int, end: socket.socket) -> None:
        try:
            # The bytes are thrown away in the kernel: copying them would be the costliest part.
            while taken := len(end.recv(_TAKE_BYTES, socket.MSG_TRUNC)):
                self._received[index] += taken
        except OSError:
            return  # stopped
