"""From the id that the kernel gives a cgroup to its path, and from the path to a job.

The id is the inode of the cgroup's folder in the cgroup2 file system, where a folder can be opened by
it (``open_by_handle_at``), so no tree is searched. Schedulers name the cgroups that they make after
their jobs; where a pattern fits, its group is the job's name.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

PATTERNS = (
    # Slurm: …/slurmstepd.scope/job_1234/step_0/…, or before version 22.05 …/slurm/uid_0/job_1234/…
    r"/(?P<slurm>job_\d+)(?:/|$)",
    # Kubernetes: …/kubepods-burstable-pod<uid>.slice/… by systemd, …/kubepods/burstable/pod<uid>/…
    r"/kubepods[^/]*-(?P<pod>pod[0-9a-f]{8}(?:[_-][0-9a-f]{4}){3}[_-][0-9a-f]{12})\.slice(?:/|$)",
    r"/kubepods(?:/[a-z]+)?/(?P<pod>pod[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:/|$)",
)
"""How the best known schedulers name the cgroups of their jobs."""

_MOUNTS = Path("/proc/self/mounts")
_FILEID_KERNFS = 0xFE
_HANDLE = struct.Struct("=IiQ")
_KNOWN_MAX = 10_000


class NoCgroups(Exception):
    """The cgroup2 file system is mounted nowhere."""


def mount(mounts: Path = _MOUNTS) -> Path:
    """Where the cgroup2 file system is mounted.

    Raises:
        NoCgroups: nowhere.
    """
    for line in mounts.read_text().splitlines():
        _, place, kind, *_ = line.split(" ")
        if kind == "cgroup2":
            # Blanks in names are octal there.
            return Path(re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), place))
    raise NoCgroups("no cgroup2 file system is mounted")


def job(path: str, patterns: Iterable[re.Pattern[str]]) -> str:
    """The job that a cgroup is of, by the first pattern that fits; empty where none does.

    The name is the pattern's first group that took part. A pod's id is written with dashes, as
    Kubernetes does.
    """
    for pattern in patterns:
        found = pattern.search(path)
        if found is not None:
            name = next(filter(None, found.groups()), found[0])
            return name.replace("_", "-") if name.startswith("pod") else name
    return ""


class Cgroups:
    """The cgroups of this host by id, with what was found out of each kept."""

    def __init__(self, root: Path, patterns: Sequence[str]) -> None:
        """
        Args:
            root: where the cgroup2 file system is mounted.
            patterns: regular expressions for :func:`job`.

        Raises:
            OSError: it cannot be opened.
        """
        self._root = str(root)
        self._descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._known: dict[int, tuple[str, str]] = {}
        self._libc = ctypes.CDLL(None, use_errno=True)

    @property
    def descriptor(self) -> int:
        """Of the root's folder."""
        return self._descriptor

    def find(self, cgroup: int) -> tuple[str, str]:
        """Path and job of a cgroup, by its id; empty where it is gone or there is none."""
        known = self._known.get(cgroup)
        if known is None:
            path = self._path(cgroup) if cgroup else ""
            known = path, job(path, self._patterns)
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[cgroup] = known
        return known

    def close(self) -> None:
        """Close the folder."""
        os.close(self._descriptor)

    def _path(self, cgroup: int) -> str:
        handle = _HANDLE.pack(8, _FILEID_KERNFS, cgroup)
        descriptor = self._libc.open_by_handle_at(self._descriptor, handle, os.O_PATH)
        if descriptor < 0:
            return ""  # it went with its job
        try:
            place = os.readlink(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
        return place.removeprefix(self._root) or "/"
