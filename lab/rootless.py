"""A lab for users who are not root: a namespace of users, in which one is root of one's own networks.

The kernel lets everyone make such a namespace, unless the distribution or a container forbids it. In
it the process may make network namespaces, interfaces and filters, but it sees the host's own network
and files as before. Only ``/run`` is replaced, because iproute2 keeps its names there: by a folder in
memory that holds everything the host's holds.

Run any command in it: ``python -m lab.rootless evertick lab``.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

_ENTER = ("unshare", "--user", "--map-root-user", "--mount")
_TRY = "mount -t tmpfs none /run && unshare --net ip link add lab type bridge"
_TRY_S = 20.0
_RUN = Path("/run")
_MS_BIND, _MS_REC = 0x1000, 0x4000
_libc = ctypes.CDLL(None, use_errno=True)


def refused() -> str:
    """Why it cannot be done on this machine; empty where it can. It is tried, not guessed."""
    if shutil.which("unshare") is None:
        return "without it, it needs the command unshare (Debian: apt install util-linux)"
    try:
        done = subprocess.run(
            [*_ENTER, "sh", "-c", _TRY],
            capture_output=True,
            text=True,
            timeout=_TRY_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"namespaces of users cannot be made either: {error}"
    if done.returncode:
        said = done.stderr.strip().splitlines()[:1] or [f"exit {done.returncode}"]
        return (
            f"namespaces of users cannot be made either ({said[0]}); see the sysctls "
            "user.max_user_namespaces and kernel.apparmor_restrict_unprivileged_userns"
        )
    return ""


def enter(command: Sequence[str]) -> NoReturn:
    """Become a command that runs as root of a namespace of users.

    Raises:
        OSError: there is no ``unshare``.
    """
    os.execvp(_ENTER[0], [*_ENTER, sys.executable, "-m", "lab.rootless", "--inside", *command])


def _replace_run() -> None:
    """Put a folder of our own in the place of ``/run``, with all that is in the host's.

    Raises:
        OSError: the kernel refuses.
    """
    stage = Path(tempfile.mkdtemp(prefix="evertick-run-"))
    try:
        _mount("tmpfs", stage, "tmpfs", 0)
        for entry in _RUN.iterdir():
            place = stage / entry.name
            if entry.is_symlink():
                place.symlink_to(entry.readlink())
                continue
            if entry.name in ("netns", "evertick-lab"):
                continue
            place.mkdir() if entry.is_dir() else place.touch()
            _mount(str(entry), place, "", _MS_BIND | _MS_REC)
        _mount(str(stage), _RUN, "", _MS_BIND | _MS_REC)
    finally:
        # The mount itself is seen by nobody outside.
        _libc.umount2(os.fsencode(stage), 2)
        stage.rmdir()


def _mount(source: str, target: Path, kind: str, flags: int) -> None:
    if _libc.mount(os.fsencode(source), os.fsencode(target), kind.encode() or None, flags, None):
        number = ctypes.get_errno()
        raise OSError(number, f"cannot mount {source} on {target}: {os.strerror(number)}")


def main() -> None:
    """The command line: ``python -m lab.rootless COMMAND …``."""
    words = sys.argv[1:]
    if words[:1] == ["--inside"]:
        _replace_run()
        os.execvp(words[1], words[1:])
    if not words:
        sys.exit("name a command: python -m lab.rootless COMMAND")
    if why := refused():
        sys.exit(f"no lab without root: {why}")
    enter(words)


if __name__ == "__main__":
    main()
