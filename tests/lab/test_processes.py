"""CPU, memory and family of processes, on real ones."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from lab.processes import cpu_seconds, cpu_seconds_of, pss_bytes, rss_bytes, tree
from tests.conftest import eventually

_BUSY = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"


def test_cpu_time_of_a_child_is_its_own_until_it_is_reaped() -> None:
    before = cpu_seconds(os.getpid(), with_reaped=True)
    child = subprocess.Popen(
        [sys.executable, "-c", _BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.readline()
    assert cpu_seconds(child.pid) >= 0.29
    child.communicate(b"\n")
    assert cpu_seconds(os.getpid(), with_reaped=True) - before >= 0.29
    with pytest.raises(ProcessLookupError):
        cpu_seconds(child.pid)
    assert list(cpu_seconds_of([child.pid, os.getpid()])) == [os.getpid()]


def test_memory_grows_with_what_is_held() -> None:
    # In a process of its own: this one may have freed memory at hand that is counted already.
    code = (
        "import sys\nprint('small', flush=True)\nsys.stdin.readline()\n"
        "held = bytearray(b'x') * (64 << 20)\nprint('large', flush=True)\nsys.stdin.readline()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "small\n"
        resident, proportional = rss_bytes(child.pid), pss_bytes(child.pid)
        assert 0 < proportional <= resident
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "large\n"
        assert rss_bytes(child.pid) - resident > 60 << 20
        assert pss_bytes(child.pid) - proportional > 60 << 20
        child.kill()


def test_a_tree_holds_grandchildren_with_their_command_lines() -> None:
    shell = subprocess.Popen(["sh", "-c", "sleep 60; true"])
    try:
        eventually(lambda: "sleep 60" in tree(shell.pid).values(), 10)
        assert shell.pid in tree(os.getpid())
    finally:
        for pid in sorted(tree(shell.pid), reverse=True):
            os.kill(pid, 9)
        shell.wait()
    assert tree(shell.pid) == {}
