"""Cables to break: veth pairs whose far ends lie in a network namespace of their own.

The namespace has no name: a thread holds it, and the kernel removes it and every pair with the
thread or the process. The near ends lie in the namespace of the caller, where the agent sees them.
Needs root and iproute2.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import queue
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_IFREQ = struct.Struct("=16sH22x")
_IP_S = 60.0
_GONE_S = 30.0
# The kernel puts off news of a veth whose index is that of its peer: it takes it for a device that
# stands for itself. So far ends get indices that near ends do not reach.
_FAR_INDEX = 1_000_000
_T = TypeVar("_T")


class NoNamespaces(Exception):
    """This machine makes no network namespaces for us; the text says why."""


class FarSide:
    """A nameless network namespace and the pairs into it; a context manager."""

    def __init__(self) -> None:
        """Make it.

        Raises:
            NoNamespaces: not root, no iproute2, or the kernel refuses.
        """
        if os.geteuid() != 0:
            raise NoNamespaces("needs root to make network namespaces")
        if shutil.which("ip") is None:
            raise NoNamespaces("needs iproute2 (the command ip) to make veth pairs")
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]] | None] = (
            queue.SimpleQueue()
        )
        self._near: list[str] = []
        made: queue.SimpleQueue[int | OSError] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._live, args=(made,), daemon=True)
        self._thread.start()
        answer = made.get()
        if isinstance(answer, OSError):
            raise NoNamespaces(f"the kernel makes no network namespace: {answer.strerror}")
        self._thread_id = answer
        self._control = self.run(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, function: Callable[[], _T]) -> _T:
        """Call a function in the namespace; sockets that it makes stay there."""
        answer: queue.SimpleQueue[tuple[_T | None, BaseException | None]] = queue.SimpleQueue()
        self._work.put((function, answer))
        result, error = answer.get()
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def pairs(self, names: Sequence[str]) -> None:
        """Make pairs, both ends up; an end has the same name on both sides.

        Raises:
            NoNamespaces: the kernel has no veth, or a name is taken.
        """
        first = _FAR_INDEX + len(self._near)
        # What was made before a failure goes with the namespace; the rest is somebody else's.
        _ip(
            *(
                f"link add dev {name} type veth peer name {name} index {first + number} "
                f"netns {self._thread_id}"
                for number, name in enumerate(names)
            )
        )
        self._near += names
        for name in names:
            self.set_up(name)
        _ip(*(f"link set dev {name} up" for name in names))

    def address(self, name: str, near: str, far: str) -> None:
        """Give the ends of a pair addresses (``address/prefix``)."""
        _ip(f"address add {near} dev {name}")
        self.run(lambda: _ip(f"address add {far} dev {name}"))

    def set_down(self, name: str) -> None:
        """Set the far end down: the near end loses its carrier."""
        self._set(name, up=False)

    def set_up(self, name: str) -> None:
        """Set the far end up."""
        self._set(name, up=True)

    def close(self) -> None:
        """Let go of the namespace and wait until the kernel has removed the pairs."""
        if not self._thread.is_alive():
            return
        self._control.close()
        self._work.put(None)
        self._thread.join()
        deadline = time.monotonic() + _GONE_S
        while any(Path(f"/sys/class/net/{name}").exists() for name in self._near):
            if time.monotonic() > deadline:
                # Something else holds the namespace open, such as a socket that was made in it.
                _ip(*(f"link delete dev {name}" for name in self._near))
                return
            time.sleep(0.05)

    def _set(self, name: str, up: bool) -> None:
        request = _IFREQ.pack(name.encode(), 0)
        _, flags = _IFREQ.unpack(fcntl.ioctl(self._control, _SIOCGIFFLAGS, request))
        flags = flags | _IFF_UP if up else flags & ~_IFF_UP
        fcntl.ioctl(self._control, _SIOCSIFFLAGS, _IFREQ.pack(name.encode(), flags))

    def _live(self, made: queue.SimpleQueue[int | OSError]) -> None:
        """The thread that is in the namespace."""
        if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
            number = ctypes.get_errno()
            made.put(OSError(number, os.strerror(number)))
            return
        made.put(threading.get_native_id())
        while (work := self._work.get()) is not None:
            function, answer = work
            try:
                answer.put((function(), None))
            except BaseException as error:  # noqa: BLE001 - raised in the thread that asked
                answer.put((None, error))


def _ip(*commands: str) -> None:
    done = subprocess.run(
        ["ip", "-batch", "-"],
        input="\n".join(commands),
        capture_output=True,
        text=True,
        timeout=_IP_S,
        check=False,
    )
    if done.returncode != 0:
        raise NoNamespaces(f"ip: {(done.stderr or done.stdout).strip().splitlines()[0]}")
