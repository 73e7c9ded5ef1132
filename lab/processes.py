"""What processes use, from ``/proc``: CPU time, memory, who is whose child."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int, with_reaped: bool = False) -> float:
    """CPU time that a process has used, of all its threads, user and system, in steps of 10 ms.

    Args:
        pid: the process.
        with_reaped: add that of its children that have ended and been waited for.

    Raises:
        ProcessLookupError: there is no such process.
    """
    fields = _stat(pid)
    return sum(int(ticks) for ticks in fields[11 : 15 if with_reaped else 13]) / _TICKS_PER_S


def cpu_seconds_of(pids: Iterable[int]) -> dict[int, float]:
    """CPU time by process, with that of reaped children; processes that are gone are left out."""
    used: dict[int, float] = {}
    for pid in pids:
        try:
            used[pid] = cpu_seconds(pid, with_reaped=True)
        except ProcessLookupError:
            continue
    return used


def rss_bytes(pid: int) -> int:
    """Resident memory of a process, shared pages in full.

    Raises:
        ProcessLookupError: there is no such process.
    """
    return int(_read(pid, "statm").split()[1]) * _PAGE_BYTES


def pss_bytes(pid: int) -> int:
    """Proportional set size: a page that n processes share counts for one nth.

    Raises:
        ProcessLookupError: there is no such process.
    """
    for line in _read(pid, "smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(f"process {pid} has no memory any more")


def tree(root: int) -> dict[int, str]:
    """A process and all below it, by id, each with its command line."""
    parents: dict[int, list[int]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                parents.setdefault(int(_stat(int(place.name))[1]), []).append(int(place.name))
            except ProcessLookupError:
                continue
    found: dict[int, str] = {}
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        try:
            found[pid] = _read(pid, "cmdline").replace("\0", " ").strip()
        except ProcessLookupError:
            continue
        waiting += parents.get(pid, [])
    return found


def _stat(pid: int) -> list[str]:
    """The fields of ``stat`` from the state on; the name before it may hold anything."""
    return _read(pid, "stat").rpartition(")")[2].split()


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except FileNotFoundError:
        raise ProcessLookupError(f"no process {pid}") from None
