"""The machine that a figure was measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def description() -> dict[str, str | int | float]:
    """CPU, cores that this process may use, memory, kernel, Python."""
    return {
        "cpu_model": _field(Path("/proc/cpuinfo"), "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(_memory_bytes() / (1 << 30), 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def load() -> float:
    """Processes that run or wait to run, mean of the last minute."""
    return os.getloadavg()[0]


def _memory_bytes() -> int:
    return int(_field(Path("/proc/meminfo"), "MemTotal").split()[0]) * 1024


def _field(path: Path, name: str) -> str:
    """The first ``name: value`` of a file in ``/proc``; empty where there is none."""
    for line in path.read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""
