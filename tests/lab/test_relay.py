"""A host of the lab reaches a port of this host's loopback, and no more."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from lab.fabric import Fabric, missing
from lab.namespace import Namespace
from lab.relay import Relay
from lab.topology import Topology
from tests.conftest import free_port

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")
_S = 20


@pytest.fixture(scope="module")
def host() -> Iterator[Namespace]:
    with Fabric(Topology(hosts=2, rails=1)) as fabric:
        yield fabric.hosts["host-1"]


def connect(host: Namespace, port: int) -> socket.socket:
    return host.call(socket.create_connection, ("127.0.0.1", port), _S)


def test_what_is_said_inside_is_heard_outside_and_answered(host: Namespace) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def echo() -> None:
            for _ in range(2):
                end, _address = server.accept()
                with end:
                    while piece := end.recv(1 << 16):
                        end.sendall(piece.upper())

        threading.Thread(target=echo, daemon=True).start()
        with Relay([host], [port]):
            for _ in range(2):
                with connect(host, port) as end:
                    end.sendall(b"hello" * 50_000)
                    end.shutdown(socket.SHUT_WR)
                    heard = b"".join(iter(lambda end=end: end.recv(1 << 16), b""))
                assert heard == b"HELLO" * 50_000
        with pytest.raises(ConnectionRefusedError):
            connect(host, port)


def test_what_nobody_listens_on_is_closed_at_once(host: Namespace) -> None:
    port = free_port()
    with Relay([host], [port]), connect(host, port) as end:
        assert end.recv(1) == b""


def test_other_ports_stay_out_of_reach(host: Namespace) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        Relay([host], []),
        pytest.raises(ConnectionRefusedError),
    ):
        connect(host, server.getsockname()[1])
