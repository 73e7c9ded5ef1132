"""Cables to break, on the real kernel."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.traffic import Traffic
from lab.veth import FarSide, NoNamespaces
from tests.conftest import eventually

_HERE = f"evt{os.getpid()}"
_NEAR, _FAR = "198.18.254.1", "198.18.254.2"


def _carrier(name: str) -> str:
    return (Path("/sys/class/net") / name / "carrier").read_text().strip()


def _exists(name: str) -> bool:
    return (Path("/sys/class/net") / name).exists()


@pytest.fixture
def far() -> Iterator[FarSide]:
    try:
        side = FarSide()
        side.pairs([f"{_HERE}a", f"{_HERE}b"])
    except NoNamespaces as reason:
        pytest.skip(str(reason))
    with side:
        yield side


def test_a_cut_cable_has_no_carrier_and_others_have(far: FarSide) -> None:
    cut, other = f"{_HERE}a", f"{_HERE}b"
    eventually(lambda: _carrier(cut) == _carrier(other) == "1", what="carrier at first")
    far.set_down(cut)
    eventually(lambda: _carrier(cut) == "0", what="carrier lost")
    assert _carrier(other) == "1"
    far.set_up(cut)
    eventually(lambda: _carrier(cut) == "1", what="carrier back")


def test_closing_removes_the_pairs(far: FarSide) -> None:
    assert _exists(f"{_HERE}a")
    far.close()
    assert not _exists(f"{_HERE}a") and not _exists(f"{_HERE}b")


def test_a_taken_name_is_refused(far: FarSide) -> None:
    with FarSide() as another, pytest.raises(NoNamespaces, match="exists"):
        another.pairs([f"{_HERE}a"])
    assert _exists(f"{_HERE}a")


def test_a_killed_process_leaves_no_pairs(far: FarSide) -> None:
    name = f"{_HERE}k"
    program = f"""
        import time
        from lab.veth import FarSide
        far = FarSide()
        far.pairs(["{name}"])
        print("made", flush=True)
        time.sleep(60)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert child.stdout is not None and child.stdout.readline() == b"made\n"
    assert _exists(name)
    child.kill()
    child.communicate()
    eventually(lambda: not _exists(name), what="pair removed by the kernel")


def test_traffic_flows_into_the_namespace(far: FarSide) -> None:
    name = f"{_HERE}a"
    far.address(name, f"{_NEAR}/30", f"{_FAR}/30")
    server = far.run(lambda: socket.create_server((_FAR, 0)))

    def received() -> int:
        return int((Path("/sys/class/net") / name / "statistics/tx_bytes").read_text())

    with Traffic(server, 20):
        before = received()
        eventually(lambda: received() - before > 20 * 1024, what="a second of traffic")
