"""Hosts for collectors: a state folder, and network namespaces where this machine can make them."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from collectors.base import Collector, Host
from schemas.event import Event

_CLONE_NEWNET = 0x40000000
_T = TypeVar("_T")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(node="node-1", zone="default", data_dir=tmp_path, boot_id="boot-1")


class Namespaces:
    """Two network namespaces, ``a`` and ``b``, with a veth pair ``va``–``vb`` between them."""

    def __init__(self, tag: str) -> None:
        self.a, self.b = f"{tag}-a", f"{tag}-b"

    def make(self) -> None:
        for name in (self.a, self.b):
            self.ip("netns", "add", name)
            self.ip("-n", name, "link", "set", "lo", "up")
        # Different indices at the two ends: the kernel delays news of a veth whose peer has its own.
        self.ip("-n", self.b, "link", "add", "pad", "type", "bridge")
        self.pair()

    def remove(self) -> None:
        for name in (self.a, self.b):
            subprocess.run(["ip", "netns", "del", name], check=False, timeout=30)

    def pair(self) -> None:
        self.ip(*f"link add va netns {self.a} type veth peer name vb netns {self.b}".split())
        self.ip("-n", self.a, "link", "set", "va", "up")
        self.ip("-n", self.b, "link", "set", "vb", "up")

    def address(self) -> None:
        self.ip("-n", self.a, "addr", "add", "10.99.0.1/24", "dev", "va")
        self.ip("-n", self.b, "addr", "add", "10.99.0.2/24", "dev", "vb")

    def peer(self, *states: str) -> None:
        """Set the far end ``up`` or ``down``, one after another."""
        for state in states:
            self.ip("-n", self.b, "link", "set", "vb", state)

    def near(self, *words: str) -> None:
        """Set the near end."""
        self.ip("-n", self.a, "link", "set", "va", *words)

    @staticmethod
    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, timeout=30)

    def inside(self, namespace: str, function: Callable[[], _T]) -> _T:
        """Call a function in a namespace; sockets that it makes stay there."""
        result: list[Any] = []

        def enter() -> None:
            try:
                place = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
                try:
                    if ctypes.CDLL(None, use_errno=True).setns(place, _CLONE_NEWNET):
                        raise OSError(ctypes.get_errno(), f"setns {namespace}")
                finally:
                    os.close(place)
                result.append(function())
            except Exception as error:  # noqa: BLE001 - raised again outside the thread
                result.append(error)

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join(60)
        if isinstance(result[0], Exception):
            raise result[0]
        return result[0]  # type: ignore[no-any-return]


@pytest.fixture
def namespaces(request: pytest.FixtureRequest) -> Iterator[Namespaces]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    made = Namespaces(f"evc{os.getpid()}x{time.monotonic_ns() % 100000}")
    try:
        made.make()
    except subprocess.CalledProcessError as error:
        made.remove()
        pytest.skip(f"this machine makes no network namespaces with veth: {error}")
    try:
        yield made
    finally:
        made.remove()


def until(
    collector: Collector, wanted: Callable[[list[Event]], bool], timeout_s: float = 20.0
) -> list[Event]:
    """Collect until the events are as wanted; all of them."""
    events: list[Event] = []
    deadline = time.monotonic() + timeout_s
    while not wanted(events):
        assert time.monotonic() < deadline, f"not in time; seen {events}"
        events += collector.collect()
    return events


@pytest.fixture(name="until")
def _until() -> Callable[..., list[Event]]:
    return until
