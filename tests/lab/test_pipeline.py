"""The benchmark itself, with small counts: that it measures, not what."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import eventually

_RUN_S = 240


def _start(tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "evertick", "bench", "pipeline", "--json", "--quick", *words],
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "progress").open("w"),
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def _left(tmp_path: Path) -> list[str]:
    return [path.name for path in tmp_path.glob("evertick-bench-*")]


@pytest.mark.e2e
@pytest.mark.parametrize("only", ["stream_", "history_"])
def test_rates(tmp_path: Path, only: str) -> None:
    process = _start(tmp_path, "--only", only)
    output, _ = process.communicate(timeout=_RUN_S)
    assert process.returncode == 0, (tmp_path / "progress").read_text()
    figures = json.loads(output)["figures"]
    assert len(figures) == 1 and all(value > 0 for value in figures.values())
    assert not _left(tmp_path)


@pytest.mark.e2e
def test_ended_by_a_signal_it_leaves_nothing(tmp_path: Path) -> None:
    process = _start(tmp_path, "--only", "fault_")
    eventually(lambda: "evertick up" in (tmp_path / "progress").read_text(), 60, "its start")
    eventually(lambda: _below(tmp_path), 60, "processes in its folder")
    assert _left(tmp_path)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert not _left(tmp_path)
    eventually(lambda: not _below(tmp_path), 30, "processes to be gone")


def _below(tmp_path: Path) -> list[int]:
    """Processes that name the folder in their command line."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if f"{tmp_path}/evertick-bench-".encode() in place.read_bytes():
                found.append(int(place.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found
