"""The peers' routes in the kernel's main table (rtnetlink, RFC 3549).

A route of ours carries a protocol number of our own and leads to one service address. Moving it is one
message: the kernel replaces the next hop in one step, and flows that are under way take the new one
with their next segment. Routes that do not carry our number are read, never touched.

``rto_min`` goes with the route: TCP's least retransmission timeout, 200 ms by default, would be most
of the stall that a failover leaves.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from ipaddress import ip_address
from typing import NamedTuple

from collectors.netlink import (
    NLMSG_ERROR,
    Message,
    NetlinkSocket,
    attribute,
    attributes,
    error_of,
    integer,
)

PROTOCOL = 77
"""Says in a route that it is LinkPass's (``rtm_protocol``; ``ip route show proto 77``)."""

_RTM_NEWROUTE, _RTM_DELROUTE, _RTM_GETROUTE = 24, 25, 26
_RTM_DELNEIGH = 29
_NLM_F_ACK = 0x4
_NLM_F_REPLACE, _NLM_F_CREATE = 0x100, 0x400
_RT_TABLE_MAIN = 254
_RT_SCOPE_UNIVERSE = 0
_RTN_UNICAST = 1
_RTNH_F_ONLINK = 4
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY = 1, 4, 5, 6
_RTA_PREFSRC, _RTA_METRICS, _RTA_MULTIPATH, _RTA_TABLE, _RTA_VIA = 7, 8, 9, 15, 18
_RTAX_LOCK, _RTAX_RTO_MIN = 1, 13
_NDA_DST = 1
_RTMSG = struct.Struct("=BBBBBBBBI")
_RTNEXTHOP = struct.Struct("=HBBi")
_NDMSG = struct.Struct("=BxxxiHBB")
_U32 = struct.Struct("=I")
_FAMILY = struct.Struct("=H")


class Hop(NamedTuple):
    """A next hop."""

    ifindex: int
    """Of its interface."""
    gateway: str
    """Empty where the destination is on the interface's own network."""


class Route(NamedTuple):
    """A unicast route of the main table."""

    destination: str
    """The network's address; of the default route, all zeros."""
    prefix_len: int
    metric: int
    protocol: int
    hops: tuple[Hop, ...]


def family_of(address: str) -> int:
    """``AF_INET`` or ``AF_INET6``."""
    return socket.AF_INET if ip_address(address).version == 4 else socket.AF_INET6


def route_request(
    destination: str, hop: Hop | None, source: str | None, metric: int, rto_min_ms: int
) -> bytes:
    """Body of a message that sets a route to one address, or without a hop removes it."""
    family = family_of(destination)
    packed = ip_address(destination).packed
    body = _RTMSG.pack(
        family,
        len(packed) * 8,
        0,
        0,
        _RT_TABLE_MAIN,
        PROTOCOL,
        _RT_SCOPE_UNIVERSE,
        _RTN_UNICAST if hop is not None else 0,
        _RTNH_F_ONLINK if hop is not None else 0,
    )
    body += attribute(_RTA_DST, packed) + attribute(_RTA_PRIORITY, _U32.pack(metric))
    if hop is None:
        return body
    gateway = ip_address(hop.gateway.partition("%")[0])
    via = family_of(str(gateway))
    if via == family:
        body += attribute(_RTA_GATEWAY, gateway.packed)
    else:
        body += attribute(_RTA_VIA, _FAMILY.pack(via) + gateway.packed)
    body += attribute(_RTA_OIF, _U32.pack(hop.ifindex))
    if source is not None:
        body += attribute(_RTA_PREFSRC, ip_address(source).packed)
    if rto_min_ms:
        # The kernel heeds this metric only where it is locked.
        metrics = attribute(_RTAX_LOCK, _U32.pack(1 << _RTAX_RTO_MIN))
        metrics += attribute(_RTAX_RTO_MIN, _U32.pack(rto_min_ms))
        body += attribute(_RTA_METRICS, metrics)
    return body


def parse_route(body: bytes) -> Route | None:
    """Read a route message; None for one that is not a unicast route of the main table.

    Raises:
        NetlinkError: it is malformed.
        struct.error: it is cut short.
    """
    family, length, _, _, table, protocol, _, kind, _ = _RTMSG.unpack_from(body)
    if family not in (socket.AF_INET, socket.AF_INET6) or kind != _RTN_UNICAST:
        return None
    found = attributes(body, _RTMSG.size)
    if integer(found.get(_RTA_TABLE), table) != _RT_TABLE_MAIN:
        return None
    zeros = bytes(4 if family == socket.AF_INET else 16)
    hops = [_hop(integer(found.get(_RTA_OIF)), found)] if _RTA_OIF in found else []
    several = found.get(_RTA_MULTIPATH, b"")
    while len(several) >= _RTNEXTHOP.size:
        size, _, _, index = _RTNEXTHOP.unpack_from(several)
        if size < _RTNEXTHOP.size:
            break
        hops.append(_hop(index, attributes(several[:size], _RTNEXTHOP.size)))
        several = several[(size + 3) & ~3 :]
    return Route(
        str(ip_address(found.get(_RTA_DST, zeros))),
        length,
        integer(found.get(_RTA_PRIORITY)),
        protocol,
        tuple(hops),
    )


def _hop(index: int, found: dict[int, bytes]) -> Hop:
    gateway = found.get(_RTA_GATEWAY) or found.get(_RTA_VIA, b"")[_FAMILY.size :]
    return Hop(index, str(ip_address(gateway)) if gateway else "")


def beneath(routes: Iterable[Route], destination: str) -> Route | None:
    """The route that a destination would take without ours: longest prefix, then least metric."""
    address = ip_address(destination)
    bits = address.max_prefixlen
    fitting = [
        route
        for route in routes
        if route.protocol != PROTOCOL
        and (network := ip_address(route.destination)).version == address.version
        and int(network) >> (bits - route.prefix_len) == int(address) >> (bits - route.prefix_len)
    ]
    return min(fitting, key=lambda route: (-route.prefix_len, route.metric), default=None)


class Routes:
    """The routes of this network namespace."""

    def __init__(self, metric: int, rto_min_ms: int) -> None:
        """
        Args:
            metric: of our routes; the least wins among routes to one address.
            rto_min_ms: TCP's least retransmission timeout on them; 0 leaves it as it is.

        Raises:
            OSError: no netlink here.
        """
        self._metric = metric
        self._rto_min_ms = rto_min_ms
        self._socket = NetlinkSocket(socket.NETLINK_ROUTE)

    def table(self) -> list[Route]:
        """All unicast routes of the main table.

        Raises:
            OSError: the kernel refused.
            NetlinkError: no answer, or a malformed one.
        """
        request = _RTMSG.pack(socket.AF_UNSPEC, 0, 0, 0, 0, 0, 0, 0, 0)
        found = (
            parse_route(message.body)
            for message in self._socket.dump(_RTM_GETROUTE, request)
            if message.type == _RTM_NEWROUTE
        )
        return [route for route in found if route is not None]

    def take(self, destination: str, hop: Hop, source: str | None) -> None:
        """Lead a service address over a hop, in one step, whatever our route was.

        Raises:
            OSError: the kernel refused: no right to, interface gone or down, source not ours.
            NetlinkError: no answer.
        """
        body = route_request(destination, hop, source, self._metric, self._rto_min_ms)
        self._do(_RTM_NEWROUTE, body, _NLM_F_CREATE | _NLM_F_REPLACE)

    def release(self, destination: str, metric: int | None = None) -> None:
        """Take our route to a service address away, also one of a metric that we no longer use.

        Raises:
            OSError: the kernel refused; ``ESRCH`` where there was none.
            NetlinkError: no answer.
        """
        metric = self._metric if metric is None else metric
        self._do(_RTM_DELROUTE, route_request(destination, None, None, metric, 0), 0)

    def unblock(self, hop: Hop) -> None:
        """Throw away what waits for a hop whose interface has lost its carrier.

        With the carrier the kernel forgets the hop's link-layer address; what is sent until the route
        is moved queues for an answer that cannot come, for up to three seconds. TCP sends nothing
        again that still lies in a queue of its own host (``TCPSpuriousRtxHostQueues``), so the flow
        would stand still as long, on a route that works. Removing the neighbour empties the queue and
        tells TCP, which sends again at once (RFC 6069).

        Raises:
            OSError: the kernel refused; ``ENOENT`` where nothing waited.
            NetlinkError: no answer.
        """
        gateway = ip_address(hop.gateway)
        body = _NDMSG.pack(family_of(hop.gateway), hop.ifindex, 0, 0, 0)
        self._do(_RTM_DELNEIGH, body + attribute(_NDA_DST, gateway.packed), 0)

    def close(self) -> None:
        """Close the socket; routes stay."""
        self._socket.close()

    def _do(self, kind: int, body: bytes, flags: int) -> None:
        sequence = self._socket.request(kind, body, _NLM_F_ACK | flags)
        answer: Message | None = None
        while answer is None or answer.sequence != sequence:
            answer = next(
                (found for found in self._socket.receive() if found.type == NLMSG_ERROR), answer
            )
        error = error_of(answer)
        if error is not None:
            raise error
