"""A lab in a namespace of users, where the process is root of its own networks only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lab import rootless

pytestmark = pytest.mark.skipif(
    bool(rootless.refused()) or not all(map(shutil.which, ("ip", "tc", "nft"))),
    reason=rootless.refused() or "needs iproute2 and nftables",
)
_ROOT = Path(__file__).resolve().parents[2]
_RUN_S = 120
_LAB = """
import os
from lab import faults
from lab.fabric import Fabric
from lab.topology import Topology
from lab.truth import Truth
from lab.workloads.runner import RingJob
with Fabric(Topology(hosts=2, rails=2, rate_mbps=1000)) as fabric:
    for kind in faults.known():
        faults.make(kind, fabric, Truth(), "host-2", 1).hold(0.01)
    with RingJob(fabric, 0.3, vector_bytes=20000) as job:
        assert [one["right"] for one in job.wait(60)] == [True, True]
assert os.listdir("/run/netns") == []
print("all of it")
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lab.rootless", *command],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=_RUN_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
    )


def test_a_lab_is_made_broken_and_taken_away() -> None:
    done = run(sys.executable, "-c", _LAB)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "all of it\n"


def test_the_host_sees_nothing_of_it_and_it_sees_the_host() -> None:
    before = sorted(os.listdir("/run"))
    done = run("sh", "-c", "touch /run/netns-of-mine && ls /run && cat /proc/self/net/dev")
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir("/run")) == before
    assert set(before) - {"netns", "evertick-lab"} <= set(done.stdout.split())
    assert Path("/proc/self/net/dev").read_text().count("\n") <= done.stdout.count("\n")


def test_the_status_is_the_commands_own() -> None:
    assert run("sh", "-c", "exit 3").returncode == 3


def test_without_a_command_it_says_what_to_write() -> None:
    done = run()
    assert done.returncode == 1
    assert "python -m lab.rootless COMMAND" in done.stderr
