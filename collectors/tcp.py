"""Collector ``tcp``: every established TCP flow, from the kernel's ``sock_diag``, without root.

Segments and bytes are those of the interval: the difference to the last run, by socket cookie. Every
run sees all established flows, so a flow that the last run did not see was established since, and
all its counts belong to this interval. The first run only takes the counts down and yields nothing:
what flows did before the agent started is not the interval's. What a flow did between the last run
and its end is not seen, nor are flows that live shorter than an interval.

``tcp_info`` grew with the kernel; fields that an older one does not have are 0.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Annotated, ClassVar, NamedTuple

from pydantic import Field

from collectors.base import Collector, CollectorSettings, Host, Unavailable
from collectors.netlink import NetlinkError, NetlinkSocket, attributes
from schemas.event import Batch, Event
from schemas.identity import content_id
from schemas.packet import TcpFlowColumns, TcpFlows

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_TCP_ESTABLISHED = 1
_INET_DIAG_INFO = 2
_RECEIVE_BUFFER_BYTES = 1 << 20

# struct inet_diag_req_v2; the socket's identity behind it is of no account in a dump.
_REQUEST = struct.Struct("=BBBxI48x")
# struct inet_diag_msg: family, state, timer, retrans; ports; addresses; interface, cookie; the rest.
_DIAG = struct.Struct("!BBxx2s2s16s16s")
_DIAG_BYTES = 72
_COOKIE_AT = 44
_COOKIE = struct.Struct("=Q")

# struct tcp_info of linux/tcp.h: rtt, snd_cwnd, total_retrans, bytes_acked, bytes_received, segs_out,
# delivery_rate.
_INFO = struct.Struct("=68xI8xI16xI16xQQI20xQ")
_V4_MAPPED = bytes(10) + b"\xff\xff"


class TcpError(NetlinkError):
    """A sock_diag message that is not what the kernel's headers say."""


class Counts(NamedTuple):
    """Totals since the flow was established. Segments are 32 bits wide and wrap."""

    segments_sent: int
    segments_retransmitted: int
    bytes_acknowledged: int
    bytes_received: int


class Gauges(NamedTuple):
    """A flow as it is at this moment."""

    rtt_us: int
    cwnd_segments: int
    delivery_rate_bytes_per_s: int


class Ends(NamedTuple):
    """The two ends of a flow, for people."""

    local: str
    remote: str
    loopback: bool
    """It does not leave the host."""


class TcpSettings(CollectorSettings):
    """Settings of collector ``tcp``."""

    include_loopback: bool = False
    """Observe also flows that do not leave the host."""
    rows_max: Annotated[int, Field(ge=1, le=Batch.ROWS_MAX)] = 1000
    """Flows in one message; more are split into several."""


class TcpCollector(Collector):
    """See the module."""

    name: ClassVar[str] = "tcp"
    about: ClassVar[str] = "round-trip time, retransmits, window and bytes of established TCP flows"
    interval_s: ClassVar[float] = 5.0
    Settings = TcpSettings

    settings: TcpSettings

    def __init__(self, host: Host, settings: TcpSettings) -> None:
        super().__init__(host, settings)
        try:
            self._socket = NetlinkSocket(
                _NETLINK_SOCK_DIAG, receive_buffer_bytes=_RECEIVE_BUFFER_BYTES
            )
        except OSError as error:
            raise Unavailable(
                f"no sock_diag socket: {error.strerror}; the kernel needs CONFIG_INET_DIAG"
            ) from None
        self._before_ns: int | None = None
        self._known: dict[int, tuple[Ends, Counts]] = {}

    def collect(self) -> Iterator[Event]:
        """``TcpFlows`` of at most ``rows_max`` rows each; nothing where there is no flow."""
        bodies = [
            message.body
            for family in _families()
            for message in self._socket.dump(_SOCK_DIAG_BY_FAMILY, request(family))
            if message.type == _SOCK_DIAG_BY_FAMILY
        ]
        now = self.host.clock.read()
        first = self._before_ns is None
        from_ns = now.ns if self._before_ns is None else min(self._before_ns, now.ns)
        known: dict[int, tuple[Ends, Counts]] = {}
        rows: list[tuple[str | int, ...]] = []
        for body in bodies:
            cookie, counts, gauges = parse_flow(body)
            before = self._known.get(cookie)
            ends, earlier = (parse_ends(body), _NOTHING) if before is None else before
            known[cookie] = ends, counts
            if self.settings.include_loopback or not ends.loopback:
                rows.append(row(ends, earlier, counts, gauges))
        self._before_ns, self._known = now.ns, known
        if first:
            return
        for part, start in enumerate(range(0, len(rows), self.settings.rows_max)):
            columns = zip(*rows[start : start + self.settings.rows_max], strict=True)
            yield TcpFlows(
                id=content_id("tcp.flows", self.host.node, from_ns, now.ns, part),
                zone=self.host.zone,
                at_ns=now.ns,
                clock_error_ns=now.error_ns,
                node=self.host.node,
                from_ns=from_ns,
                columns=TcpFlowColumns(
                    **dict(zip(TcpFlowColumns.model_fields, map(list, columns), strict=True))
                ),
            )

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


_NOTHING = Counts(0, 0, 0, 0)


def request(family: int) -> bytes:
    """The body of a dump of the established TCP sockets of an address family, with ``tcp_info``."""
    return _REQUEST.pack(
        family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 1 << _TCP_ESTABLISHED
    )


def parse_flow(body: bytes) -> tuple[int, Counts, Gauges]:
    """Read an ``inet_diag_msg``: socket cookie, counts, gauges.

    Raises:
        TcpError: it is malformed.
    """
    if len(body) < _DIAG_BYTES:
        raise TcpError(f"socket message of {len(body)} bytes")
    try:
        info = attributes(body, _DIAG_BYTES).get(_INET_DIAG_INFO, b"")
    except NetlinkError as error:
        raise TcpError(str(error)) from None
    if len(info) < _INFO.size:
        info = info.ljust(_INFO.size, b"\0")
    rtt, cwnd, retransmitted, acknowledged, received, sent, rate = _INFO.unpack_from(info)
    (cookie,) = _COOKIE.unpack_from(body, _COOKIE_AT)
    return (
        cookie,
        Counts(sent, retransmitted, acknowledged, received),
        Gauges(rtt, cwnd, rate),
    )


def parse_ends(body: bytes) -> Ends:
    """Read who speaks with whom from an ``inet_diag_msg``.

    Raises:
        TcpError: it is malformed.
    """
    if len(body) < _DIAG.size:
        raise TcpError(f"socket message of {len(body)} bytes")
    family, _, local_port, remote_port, local, remote = _DIAG.unpack_from(body)
    if family == socket.AF_INET:
        local, remote = local[:4], remote[:4]
    elif family != socket.AF_INET6:
        raise TcpError(f"address family {family}")
    local, remote = local.removeprefix(_V4_MAPPED), remote.removeprefix(_V4_MAPPED)
    return Ends(
        _end(local, local_port),
        _end(remote, remote_port),
        local == remote or ip_address(local).is_loopback or ip_address(remote).is_loopback,
    )


def row(ends: Ends, before: Counts, counts: Counts, gauges: Gauges) -> tuple[str | int, ...]:
    """A row in the order of ``TcpFlowColumns``."""
    return (
        ends.local,
        ends.remote,
        gauges.rtt_us,
        gauges.cwnd_segments,
        (counts.segments_sent - before.segments_sent) & 0xFFFFFFFF,
        (counts.segments_retransmitted - before.segments_retransmitted) & 0xFFFFFFFF,
        max(0, counts.bytes_acknowledged - before.bytes_acknowledged),
        max(0, counts.bytes_received - before.bytes_received),
        gauges.delivery_rate_bytes_per_s,
    )


def _end(address: bytes, port: bytes) -> str:
    number = int.from_bytes(port, "big")
    shown = ip_address(address)
    return f"{shown}:{number}" if shown.version == 4 else f"[{shown}]:{number}"


def _families() -> tuple[int, ...]:
    return (socket.AF_INET, socket.AF_INET6) if socket.has_ipv6 else (socket.AF_INET,)
