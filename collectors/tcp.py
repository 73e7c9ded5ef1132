"""Collector ``tcp``: every TCP flow of the host, by an eBPF program where that can be had, else from
the kernel's ``sock_diag``, which needs no root.

With eBPF (:mod:`collectors.ebpf.watch`) it tells ``tcp.flow_stats``, and in their place ``tcp.flows``
without it; never both, so that no flow counts twice.

From ``sock_diag``: segments and bytes are those of the interval, the difference to the last run, by
socket cookie. Every run sees all established flows, so a flow that the last run did not see was
established since, and all its counts belong to this interval. The first run only takes the counts down
and yields nothing: what flows did before the agent started is not the interval's. What a flow did
between the last run and its end is not seen, nor are flows that live shorter than an interval.

``tcp_info`` grew with the kernel; fields that an older one does not have are 0.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterator
from typing import Annotated, ClassVar, NamedTuple

from pydantic import AfterValidator, Field

from bus import log
from bus.settings import Words
from collectors.base import Capability, Collector, CollectorSettings, Host, Unavailable
from collectors.ebpf import cgroup
from collectors.ebpf.flows import Flows, possible
from collectors.ebpf.namespaces import is_the_hosts
from collectors.ebpf.watch import NoEbpf
from collectors.endpoints import Ends, ends
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

_log = log.get(__name__)


def _patterns(patterns: list[str]) -> list[str]:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    return patterns


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


class TcpSettings(CollectorSettings):
    """Settings of collector ``tcp``."""

    include_loopback: bool = False
    """Observe also flows that do not leave the host."""
    rows_max: Annotated[int, Field(ge=1, le=Batch.ROWS_MAX)] = 1000
    """Flows in one message; more are split into several."""
    ebpf: bool = True
    """Watch flows by an eBPF program where this host allows it."""
    all_namespaces: bool | None = None
    """Watch by it the flows of all network namespaces, such as those of containers. None: only where
    the agent is in the host's own."""
    job_patterns: Annotated[Words, AfterValidator(_patterns)] = list(cgroup.PATTERNS)
    """Regular expressions for the paths of the cgroups that belong to jobs; the first that fits names
    the job by its first group."""


class TcpCollector(Collector):
    """See the module."""

    name: ClassVar[str] = "tcp"
    about: ClassVar[str] = "round-trip time, retransmits, window and bytes of TCP flows"
    interval_s: ClassVar[float] = 5.0
    Settings = TcpSettings

    settings: TcpSettings

    def __init__(self, host: Host, settings: TcpSettings) -> None:
        super().__init__(host, settings)
        self._source: Flows | SockDiag
        if settings.ebpf:
            try:
                self._source = Flows(
                    host,
                    settings.job_patterns,
                    is_the_hosts() if settings.all_namespaces is None else settings.all_namespaces,
                    settings.include_loopback,
                )
                return
            except NoEbpf as reason:
                _log.info("TCP flows are read from sock_diag", reason=str(reason), fix=reason.fix)
        self._source = SockDiag(host, settings.include_loopback)

    def collect(self) -> Iterator[Event]:
        """``TcpFlowStats`` or ``TcpFlows`` of at most ``rows_max`` rows each; nothing where there is
        no flow."""
        return self._source.collect(self.settings.rows_max)

    def close(self) -> None:
        """Detach the programs, close the socket."""
        self._source.close()

    @classmethod
    def capabilities(cls, host: Host, settings: TcpSettings) -> list[Capability]:
        """Both ways to see flows; programs are loaded for it, but attached to nothing."""
        found = []
        try:
            SockDiag(host, settings.include_loopback).close()
            found.append(Capability("sock_diag", True, "established flows, read once an interval"))
        except Unavailable as reason:
            found.append(Capability("sock_diag", False, str(reason)))
        if not settings.ebpf:
            return found
        try:
            found.append(Capability("eBPF", True, possible()))
        except NoEbpf as reason:
            less = f"{reason}; so no histograms, episodes of loss, jobs of flows"
            found.append(Capability("eBPF", False, less, reason.fix, optional=True))
        return found


class SockDiag:
    """Flows from ``sock_diag``."""

    def __init__(self, host: Host, include_loopback: bool) -> None:
        """Open the socket.

        Raises:
            Unavailable: the kernel has none.
        """
        self._host = host
        self._include_loopback = include_loopback
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

    def collect(self, rows_max: int) -> Iterator[Event]:
        """``TcpFlows`` since the last call, in parts of so many rows."""
        bodies = [
            message.body
            for family in _families()
            for message in self._socket.dump(_SOCK_DIAG_BY_FAMILY, request(family))
            if message.type == _SOCK_DIAG_BY_FAMILY
        ]
        now = self._host.clock.read()
        first = self._before_ns is None
        from_ns = now.ns if self._before_ns is None else min(self._before_ns, now.ns)
        known: dict[int, tuple[Ends, Counts]] = {}
        rows: list[tuple[str | int, ...]] = []
        for body in bodies:
            cookie, counts, gauges = parse_flow(body)
            before = self._known.get(cookie)
            between, earlier = (parse_ends(body), _NOTHING) if before is None else before
            known[cookie] = between, counts
            if self._include_loopback or not between.loopback:
                rows.append(row(between, earlier, counts, gauges))
        self._before_ns, self._known = now.ns, known
        if first:
            return
        for part, start in enumerate(range(0, len(rows), rows_max)):
            columns = zip(*rows[start : start + rows_max], strict=True)
            yield TcpFlows(
                id=content_id("tcp.flows", self._host.node, from_ns, now.ns, part),
                zone=self._host.zone,
                at_ns=now.ns,
                clock_error_ns=now.error_ns,
                node=self._host.node,
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
    return ends(
        local, int.from_bytes(local_port, "big"), remote, int.from_bytes(remote_port, "big")
    )


def row(between: Ends, before: Counts, counts: Counts, gauges: Gauges) -> tuple[str | int, ...]:
    """A row in the order of ``TcpFlowColumns``."""
    return (
        between.local,
        between.remote,
        gauges.rtt_us,
        gauges.cwnd_segments,
        (counts.segments_sent - before.segments_sent) & 0xFFFFFFFF,
        (counts.segments_retransmitted - before.segments_retransmitted) & 0xFFFFFFFF,
        max(0, counts.bytes_acknowledged - before.bytes_acknowledged),
        max(0, counts.bytes_received - before.bytes_received),
        gauges.delivery_rate_bytes_per_s,
    )


def _families() -> tuple[int, ...]:
    return (socket.AF_INET, socket.AF_INET6) if socket.has_ipv6 else (socket.AF_INET,)
