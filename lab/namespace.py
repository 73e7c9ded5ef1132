"""A named network namespace with a thread that made it and lives in it.

What must happen inside (a socket, a sysctl, a flag of an interface) is run by that thread; programs
are started in it by ``ip netns exec``, which also shows them the namespace's own ``/sys``, and with the
host's own name.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

_CLONE_NEWNET = 0x40000000
_MS_BIND, _MS_REC, _MS_SHARED = 0x1000, 0x4000, 0x100000
_MNT_DETACH = 2
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_IFREQ = struct.Struct("=16sH22x")
_NAMES = Path("/run/netns")
_COMMAND_S = 60.0
_KILLED_S = 10.0
_LOOK_S = 0.01
# The new /sys of ``ip netns exec`` hides what was mounted below the old one: what an agent looks at is
# mounted again, as far as this user may. It finds out by itself what is missing.
_AS_HOST = """
hostname "$0"
mount -t cgroup2 none /sys/fs/cgroup 2>/dev/null
mount -t tracefs none /sys/kernel/tracing 2>/dev/null
mount -t bpf none /sys/fs/bpf 2>/dev/null
exec "$@"
"""
_libc = ctypes.CDLL(None, use_errno=True)
_T = TypeVar("_T")


class CommandFailed(Exception):
    """A command of iproute2 or nftables did not succeed; the text is its complaint."""


class Namespace:
    """One namespace, seen by ``ip netns`` until it is removed."""

    def __init__(self, name: str, host: str) -> None:
        """Make it.

        Args:
            name: in ``ip netns``.
            host: the host name that programs in it see.

        Raises:
            CommandFailed: the kernel refuses, or the name is taken.
        """
        self.name = name
        self.host = host
        self._thread = ThreadPoolExecutor(1, name)
        try:
            self.call(_make, name)
        except OSError as error:
            self._thread.shutdown()
            raise CommandFailed(f"namespace {name}: {error}") from None
        self._flags = self.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))

    def call(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Run a function inside; what it returns or raises comes out."""
        return self._thread.submit(function, *arguments).result()

    def spawn(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program inside; the options are those of ``Popen``. Its process is the program
        itself, so it is ended by its own id."""
        return subprocess.Popen(self.words(command), **options)

    def words(self, command: Sequence[str]) -> list[str]:
        """The command that becomes a program inside."""
        inside = ["unshare", "--uts", "sh", "-c", _AS_HOST, self.host]
        return ["ip", "netns", "exec", self.name, *inside, *command]

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
        """Leave it; :func:`remove` takes it away."""
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


def inhabitants(name: str) -> list[int]:
    """Processes that are in a named namespace; none where there is no such namespace."""
    try:
        place = os.stat(_NAMES / name)
    except FileNotFoundError:
        return []
    return [
        int(process.name)
        for process in Path("/proc").iterdir()
        if process.name.isdigit() and _lives_in(process, place)
    ]


def kill_inhabitants(name: str) -> None:
    """``kill -9`` for every process in a named namespace, and wait until they are gone."""
    deadline_s = time.monotonic() + _KILLED_S
    while found := inhabitants(name):
        place = os.stat(_NAMES / name)
        for pid in found:
            # Held by a descriptor: the id cannot become another process's meanwhile.
            with contextlib.suppress(ProcessLookupError), _held(pid) as descriptor:
                if _lives_in(Path(f"/proc/{pid}"), place):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        if time.monotonic() > deadline_s:
            raise CommandFailed(f"processes in {name} cannot be killed: {found}")
        time.sleep(_LOOK_S)


def _lives_in(process: Path, place: os.stat_result) -> bool:
    try:
        found = os.stat(process / "ns/net")
    except OSError:
        # Gone meanwhile, a zombie, or another user's.
        return False
    return (found.st_dev, found.st_ino) == (place.st_dev, place.st_ino)


@contextlib.contextmanager
def _held(pid: int) -> Iterator[int]:
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def remove(name: str) -> None:
    """Take a namespace's name away, which is its end when nothing is in it any more; no matter
    whether it is there."""
    place = _NAMES / name
    # Another lab's sweep may have been quicker.
    _libc.umount2(os.fsencode(place), _MNT_DETACH)
    place.unlink(missing_ok=True)


def _make(name: str) -> None:
    """What ``ip netns add`` does, except that it goes back to where it was, which takes a right over
    the host's own network that only root has."""
    if _libc.unshare(_CLONE_NEWNET):
        raise _failure("cannot be made")
    _NAMES.mkdir(exist_ok=True)
    _share_names()
    place = _NAMES / name
    os.close(os.open(place, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0))
    if _libc.mount(b"/proc/thread-self/ns/net", os.fsencode(place), None, _MS_BIND, None):
        failure = _failure("cannot be named")
        place.unlink()
        raise failure


def _share_names() -> None:
    """Let a name's end be seen in all namespaces of mounts, or it would live on in copies."""
    names = os.fsencode(_NAMES)
    if _libc.mount(b"", names, b"none", _MS_SHARED | _MS_REC, None) == 0:
        return
    # It is not the root of a mount yet.
    if _libc.mount(names, names, b"none", _MS_BIND | _MS_REC, None) or _libc.mount(
        b"", names, b"none", _MS_SHARED | _MS_REC, None
    ):
        raise _failure(f"{_NAMES} cannot be shared")


def _failure(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")
