"""A named network namespace with a thread that lives in it.

What must happen inside (a socket, a sysctl, a flag of an interface) is run by that thread; programs
are started in it by ``ip netns exec``, which also shows them the namespace's own ``/sys``.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_IFREQ = struct.Struct("=16sH22x")
_NAMES = Path("/run/netns")
_COMMAND_S = 60.0
_T = TypeVar("_T")


class CommandFailed(Exception):
    """A command of iproute2 or nftables did not succeed; the text is its complaint."""


class Namespace:
    """One namespace that exists already."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._thread = ThreadPoolExecutor(1, name, initializer=_enter, initargs=(name,))
        self._flags = self.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))

    def call(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Run a function inside; what it returns or raises comes out."""
        return self._thread.submit(function, *arguments).result()

    def spawn(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program inside; the options are those of ``Popen``. Its process is the program
        itself, so it is ended by its own id."""
        return subprocess.Popen(["ip", "netns", "exec", self.name, *command], **options)

    def ip(self, lines: str) -> None:
        """Run lines of ``ip -batch`` inside."""
        command(["ip", "-n", self.name, "-batch", "-"], lines)

    def tc(self, lines: str) -> None:
        """Run lines of ``tc -batch`` inside."""
        command(["tc", "-n", self.name, "-batch", "-"], lines)

    def nft(self, lines: str) -> None:
        """Run a script of nftables inside, all of it or nothing."""
        command(["ip", "netns", "exec", self.name, "nft", "-f", "-"], lines)

    def sysctl(self, values: dict[str, int | str]) -> None:
        """Set kernel settings below ``/proc/sys/net``; names with slashes."""

        def write() -> None:
            for name, value in values.items():
                Path("/proc/sys/net", name).write_text(str(value))

        self.call(write)

    def set_up(self, interface: str, up: bool) -> None:
        """Set an interface up or down, within microseconds."""
        request = _IFREQ.pack(interface.encode(), 0)
        found = _IFREQ.unpack(fcntl.ioctl(self._flags, _SIOCGIFFLAGS, request))[1]
        flags = found | _IFF_UP if up else found & ~_IFF_UP
        fcntl.ioctl(self._flags, _SIOCSIFFLAGS, _IFREQ.pack(interface.encode(), flags))

    def close(self) -> None:
        """Leave it; it is removed by who made it."""
        self._flags.close()
        self._thread.shutdown()


def command(words: Sequence[str], stdin: str = "") -> str:
    """Run a command to its end; returns what it printed.

    Raises:
        CommandFailed: it failed, or took more than a minute.
    """
    try:
        done = subprocess.run(
            words, input=stdin, capture_output=True, text=True, timeout=_COMMAND_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandFailed(f"{words[0]}: {error}") from None
    if done.returncode:
        raise CommandFailed(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def _enter(name: str) -> None:
    descriptor = os.open(_NAMES / name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(descriptor, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {name}")
    finally:
        os.close(descriptor)
