"""The ring all-reduce, rank by rank on loopback: sums, agreement on the end, what it says of failures."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.workloads.ring import _add
from tests.conftest import eventually, free_port

_ROOT = Path(__file__).resolve().parents[2]
_WAIT_S = 60
lanes = st.lists(st.integers(0, (1 << 63) - 1), min_size=1, max_size=50)


def start(rank: int, peers: str, port: int, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "lab.workloads.ring", f"--rank={rank}", f"--peers={peers}"]
    return subprocess.Popen(
        [*command, f"--port={port}", *words],
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(rank: subprocess.Popen[str]) -> tuple[int, dict[str, Any]]:
    said, complaint = rank.communicate(timeout=_WAIT_S)
    assert said, complaint
    return rank.returncode, json.loads(said.splitlines()[-1])


@given(st.data())
def test_lanes_are_added_each_for_itself(data: st.DataObject) -> None:
    one = data.draw(lanes)
    other = data.draw(st.lists(st.integers(0, (1 << 63) - 1), min_size=len(one), max_size=len(one)))

    def packed(values: list[int]) -> bytes:
        return b"".join(value.to_bytes(8, "little") for value in values)

    assert _add(packed(one), packed(other)) == packed(
        [left + right for left, right in zip(one, other, strict=True)]
    )


@pytest.mark.parametrize("ranks", [2, 5])
def test_all_ranks_end_together_with_the_right_sums(ranks: int, tmp_path: Path) -> None:
    peers = ",".join(f"127.0.0.{number}" for number in range(1, ranks + 1))
    port = free_port()
    job = [
        start(rank, peers, port, "--seconds=0.5", "--bytes=40000", f"--log={tmp_path / str(rank)}")
        for rank in range(ranks)
    ]
    summaries = [ended(rank) for rank in job]
    assert [(code, one["errors"], one["right"]) for code, one in summaries] == [
        (0, 0, True)
    ] * ranks
    (iterations,) = {one["iterations"] for _, one in summaries}
    assert iterations > 1
    for rank in range(ranks):
        lines = [json.loads(line) for line in (tmp_path / str(rank)).read_text().splitlines()]
        assert len(lines) == iterations
        assert all(before["at_ns"] <= after["at_ns"] for before, after in pairwise(lines))


def test_a_rank_whose_neighbour_died_says_so(tmp_path: Path) -> None:
    peers, port = "127.0.0.1,127.0.0.2", free_port()
    log = tmp_path / "log"
    first = start(0, peers, port, "--seconds=60", f"--log={log}")
    second = start(1, peers, port, "--seconds=60")
    eventually(lambda: log.exists() and log.stat().st_size, what="the first iteration")
    second.kill()
    second.communicate()
    code, said = ended(first)
    assert code == 1
    assert said["errors"] == 1
    assert "gone" in said["error"] or "lost" in said["error"]
