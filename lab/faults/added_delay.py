"""A link whose way became longer: every frame is held back, none is lost.

The kernel's own means for it (netem) is often not there. So the leaf's port is taken off its bridge
and a second pair of interfaces put in its place, with a thread between that passes frames on after the
delay. Frames keep their offload header on the way, so that large segments pass as they are.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from typing import Any

from lab.faults.base import Fault

_SOL_PACKET = 263
_PACKET_IGNORE_OUTGOING = 23
_PACKET_VNET_HDR = 15
_ETH_P_ALL = 0x0003
_FRAME_BYTES = 1 << 17
_BUFFER_BYTES = 8 << 20
_SO_RCVBUFFORCE = 33
_LOOK_S = 0.1


class AddedDelay(Fault):
    """The same delay in both directions."""

    name = "added_delay"
    about = "the way over the link becomes longer"

    def __init__(self, *arguments: Any, delay_ms: float = 5.0) -> None:
        super().__init__(*arguments)
        self._delay_s = delay_ms / 1000
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []

    def _break(self) -> None:
        inner, outer = f"d{self.port}", f"o{self.port}"
        self.leaf.ip(
            f"link add {inner} type veth peer name {outer}\n"
            f"link set {inner} up promisc on\nlink set {self.port} promisc on\n"
        )
        self._sockets = [self.leaf.call(_tap, name) for name in (self.port, inner)]
        self._stop.clear()
        near, far = self._sockets
        self._threads = [
            threading.Thread(target=self._relay, args=pair, daemon=True)
            for pair in ((near, far), (far, near))
        ]
        for thread in self._threads:
            thread.start()
        self.leaf.ip(
            f"link set {self.port} nomaster\nlink set {outer} master br0\nlink set {outer} up\n"
        )

    def _mend(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for one in self._sockets:
            one.close()
        self.leaf.ip(
            f"link del d{self.port}\nlink set {self.port} promisc off\n"
            f"link set {self.port} master br0\n"
        )

    def _relay(self, source: socket.socket, target: socket.socket) -> None:
        waiting: deque[tuple[float, bytes]] = deque()
        while not self._stop.is_set():
            wait_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else _LOOK_S
            if select.select([source], [], [], min(wait_s, _LOOK_S))[0]:
                waiting.append((time.monotonic() + self._delay_s, source.recv(_FRAME_BYTES)))
            while waiting and waiting[0][0] <= time.monotonic():
                try:
                    target.send(waiting.popleft()[1])
                except OSError:
                    # A queue that is full drops, as a link's does.
                    continue


def _tap(interface: str) -> socket.socket:
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    tap.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    tap.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    try:
        tap.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
    except PermissionError:
        # Root of a namespace of users only: what the host's own bound allows has to do.
        tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    tap.bind((interface, 0))
    return tap
