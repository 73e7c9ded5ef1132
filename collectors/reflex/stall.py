"""How long TCP flows to a peer stood still around a failover, from the kernel's ``sock_diag``.

A flow that had data unacknowledged stood still from its last acknowledgement before the route moved
until the first one after. Both follow from ``tcpi_last_ack_recv``, the time since the last one,
asked for every few milliseconds until all flows move again; so the end may be found late by one such
step, never early. The kernel hands out only the flows to the peer's addresses: the filter runs there
(``linux/inet_diag.h``).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from typing import NamedTuple

from collectors.netlink import NetlinkError, NetlinkSocket, attribute, attributes

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_TCP_ESTABLISHED = 1
_INET_DIAG_INFO, _INET_DIAG_REQ_BYTECODE = 2, 1
_BC_D_COND = 8
_RECEIVE_BUFFER_BYTES = 1 << 20
_REQUEST = struct.Struct("=BBBxI48x")
_OPERATION = struct.Struct("=BBH")
_CONDITION = struct.Struct("=BBxxi")
_DIAG_BYTES = 72
_ENDS = struct.Struct("!BBxx2s2s16s16s")
_COOKIE = struct.Struct("=Q")
_COOKIE_AT = 44
# struct tcp_info: unacked at 24, last_ack_recv at 56.
_INFO = struct.Struct("=24xI28xI")
_MILLISECOND_NS = 1_000_000
_V4_MAPPED = bytes(10) + b"\xff\xff"
_SAMPLE_MAX = 16


class Flow(NamedTuple):
    """A flow at one moment."""

    cookie: int
    name: str
    """``local->remote``."""
    unacknowledged: int
    """Segments under way."""
    acknowledged_ns: int
    """When the last acknowledgement came."""


class Stall(NamedTuple):
    """What came of a failover for the flows."""

    flows: int
    recovered: int
    stall_ns: int
    sample: tuple[str, ...]


def request(family: int, address: str) -> bytes:
    """A dump of the established TCP sockets of a family that are connected to an address."""
    packed = ip_address(address).packed
    condition = _CONDITION.pack(family_of(address), len(packed) * 8, -1) + packed  # any port
    size = _OPERATION.size + len(condition)
    # Met: go on behind it, which is the end, so yes. Not met: beyond the end, so no.
    program = _OPERATION.pack(_BC_D_COND, size, size + 4) + condition
    return _REQUEST.pack(
        family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 1 << _TCP_ESTABLISHED
    ) + attribute(_INET_DIAG_REQ_BYTECODE, program)


def parse_flow(body: bytes, now_ns: int) -> Flow:
    """Read an ``inet_diag_msg``.

    Raises:
        NetlinkError: it is malformed.
    """
    if len(body) < _DIAG_BYTES:
        raise NetlinkError(f"socket message of {len(body)} bytes")
    info = attributes(body, _DIAG_BYTES).get(_INET_DIAG_INFO, b"")
    if len(info) < _INFO.size:
        raise NetlinkError(f"tcp_info of {len(info)} bytes")
    unacknowledged, since_ms = _INFO.unpack_from(info)
    family, _, local_port, remote_port, local, remote = _ENDS.unpack_from(body)
    size = 4 if family == socket.AF_INET else 16
    (cookie,) = _COOKIE.unpack_from(body, _COOKIE_AT)
    name = f"{_end(local[:size], local_port)}->{_end(remote[:size], remote_port)}"
    return Flow(cookie, name, unacknowledged, now_ns - since_ms * _MILLISECOND_NS)


def _end(address: bytes, port: bytes) -> str:
    shown = ip_address(address.removeprefix(_V4_MAPPED))
    number = int.from_bytes(port, "big")
    return f"{shown}:{number}" if shown.version == 4 else f"[{shown}]:{number}"


def family_of(address: str) -> int:
    """``AF_INET`` or ``AF_INET6``."""
    return socket.AF_INET if ip_address(address).version == 4 else socket.AF_INET6


class Flows:
    """The established flows of this network namespace."""

    def __init__(self) -> None:
        """Open the socket; raises ``OSError`` where the kernel has no ``sock_diag``."""
        self._socket = NetlinkSocket(_NETLINK_SOCK_DIAG, receive_buffer_bytes=_RECEIVE_BUFFER_BYTES)

    def to(self, addresses: Iterable[str], now_ns: int) -> list[Flow]:
        """Flows to any of the addresses, as they are at ``now_ns``.

        Raises:
            OSError: the kernel refused.
            NetlinkError: no answer, or a malformed one.
        """
        found = []
        for address in addresses:
            # A socket that takes both families speaks IPv4 under IPv6.
            for family in {family_of(address), socket.AF_INET6}:
                for message in self._socket.dump(_SOCK_DIAG_BY_FAMILY, request(family, address)):
                    if message.type == _SOCK_DIAG_BY_FAMILY:
                        found.append(parse_flow(message.body, now_ns))
        return found

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class StallWatch:
    """The flows to one peer after one failover. Pure: it is fed with what :class:`Flows` saw."""

    def __init__(self, failed_ns: int, moved_ns: int) -> None:
        """
        Args:
            failed_ns: last sign of life on the path that was left.
            moved_ns: when the kernel had the new route.
        """
        self._failed_ns = failed_ns
        self._moved_ns = moved_ns
        self._stood_since_ns: dict[int, int] | None = None
        self._moving: dict[int, int] = {}
        """Stall of each flow that moves again."""
        self._names: dict[int, str] = {}

    def observe(self, flows: Sequence[Flow]) -> bool:
        """Take in the flows as they are; returns whether all move again."""
        if self._stood_since_ns is None:
            self._stood_since_ns = {}
            for flow in flows:
                moves = flow.acknowledged_ns >= self._moved_ns
                if flow.unacknowledged or moves:
                    # One that moves already may have stood still ever since the path failed.
                    since_ns = self._failed_ns if moves else flow.acknowledged_ns
                    self._stood_since_ns[flow.cookie] = since_ns
                    self._names[flow.cookie] = flow.name
        for flow in flows:
            since_ns = self._stood_since_ns.get(flow.cookie, 0)
            moves = flow.acknowledged_ns >= self._moved_ns
            if moves and since_ns and flow.cookie not in self._moving:
                self._moving[flow.cookie] = max(0, flow.acknowledged_ns - since_ns)
        return len(self._moving) == len(self._stood_since_ns)

    def result(self, now_ns: int) -> Stall:
        """What is known at ``now_ns``."""
        stood = self._stood_since_ns or {}
        still = [
            now_ns - since_ns for cookie, since_ns in stood.items() if cookie not in self._moving
        ]
        return Stall(
            len(stood),
            len(self._moving),
            max([*self._moving.values(), *still], default=0),
            tuple(sorted(self._names.values())[:_SAMPLE_MAX]),
        )
