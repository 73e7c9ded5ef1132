"""The network namespaces of this host, such as those of its containers.

They are found by the processes that live in them and by the files that they are mounted on, as container
runtimes and ``ip netns`` do. A namespace is entered by way of such a place each time and never held open:
it must be able to go when its container does.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

_CLONE_NEWNET = 0x40000000
_SEARCH_S = 30.0
_OWN = "/proc/thread-self/ns/net"
_MOUNTS = Path("/proc/thread-self/mountinfo")
_T = TypeVar("_T")


def is_the_hosts() -> bool:
    """Whether this thread is in the namespace of the first process, that of the host."""
    try:
        return _identity("/proc/1/ns/net") == _identity(_OWN)
    except OSError:
        return False  # a host that hides it is not ours to look over


class Namespaces:
    """All namespaces but that of the thread that made this."""

    def __init__(self) -> None:
        self._own = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._others: dict[tuple[int, int], str] = {}
        self._searched_s = float("-inf")

    def each(self, visit: Callable[[], _T]) -> list[_T]:
        """What a function returns in each of them, called by this thread.

        Raises:
            OSError: this thread may not change namespaces.
        """
        if time.monotonic() - self._searched_s > _SEARCH_S or not self._all_there():
            self._searched_s = time.monotonic()
            self._others = self._search()
        found: list[_T] = []
        for identity, name in self._others.items():
            try:
                place = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue  # its last process has ended
            try:
                # Another process may have got that number.
                if _identity(place) == identity:
                    self._enter(place)
                    try:
                        found.append(visit())
                    finally:
                        self._enter(self._own)
            finally:
                os.close(place)
        return found

    def close(self) -> None:
        """Let go of the own one."""
        os.close(self._own)

    def _enter(self, place: int) -> None:
        if self._libc.setns(place, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "cannot enter a network namespace")

    def _all_there(self) -> bool:
        return all(map(os.path.exists, self._others.values()))

    def _search(self) -> dict[tuple[int, int], str]:
        own = _identity(self._own)
        found: dict[tuple[int, int], str] = {}
        for place in (*mounted(_MOUNTS.read_text()), *_processes()):
            try:
                identity = _identity(place)
            except OSError:
                continue  # it has ended, or is a dying one
            if identity != own:
                found.setdefault(identity, place)
        return found


def mounted(mountinfo: str) -> Iterator[str]:
    """Files that network namespaces are mounted on, from the text of ``mountinfo`` (proc(5))."""
    for line in mountinfo.splitlines():
        _, _, _, root, place, *rest = line.split(" ")
        if root.startswith("net:[") and "nsfs" in rest:
            yield place


def _processes() -> Iterator[str]:
    return (f"/proc/{name}/ns/net" for name in os.listdir("/proc") if name.isdigit())


def _identity(place: str | int) -> tuple[int, int]:
    found = os.stat(place)
    return found.st_dev, found.st_ino
