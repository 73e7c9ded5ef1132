"""Route messages, and what lies beneath a route of ours."""

from __future__ import annotations

import socket
import struct

from hypothesis import given
from hypothesis import strategies as st

from collectors.netlink import attribute, attributes
from collectors.reflex.routes import PROTOCOL, Hop, Route, beneath, parse_route, route_request

_BY_OPERATOR = 3


def route(network: str, length: int, metric: int = 0, protocol: int = _BY_OPERATOR) -> Route:
    return Route(network, length, metric, protocol, (Hop(2, "10.1.0.254"),))


@given(
    st.ip_addresses(v=4).map(str), st.ip_addresses(v=4).map(str), st.integers(1, 9), st.booleans()
)
def test_what_is_asked_for_is_read_back(to: str, gateway: str, index: int, sourced: bool) -> None:
    body = route_request(to, Hop(index, gateway), "10.9.0.1" if sourced else None, 5, 4)
    assert parse_route(body) == Route(to, 32, 5, PROTOCOL, (Hop(index, gateway),))
    found = attributes(body, 12)
    metrics = attributes(found[8])
    assert struct.unpack("=I", metrics[13]) == (4,)
    assert struct.unpack("=I", metrics[1]) == (1 << 13,)
    assert (7 in found) is sourced


def test_ipv6_and_ipv4_over_ipv6() -> None:
    body = route_request("fd09::2", Hop(3, "fe80::2"), "fd09::1", 5, 0)
    assert parse_route(body) == Route("fd09::2", 128, 5, PROTOCOL, (Hop(3, "fe80::2"),))
    assert 8 not in attributes(body, 12)
    mixed = route_request("10.9.0.2", Hop(3, "fe80::2"), None, 5, 0)
    assert parse_route(mixed) == Route("10.9.0.2", 32, 5, PROTOCOL, (Hop(3, "fe80::2"),))


def test_several_hops_are_read_and_other_tables_left() -> None:
    head = struct.pack("=BBBBBBBBI", socket.AF_INET, 24, 0, 0, 254, 3, 0, 1, 0)
    hops = b"".join(
        struct.pack("=HBBi", 16, 0, 0, index) + attribute(5, bytes([10, index, 0, 1]))
        for index in (1, 2)
    )
    body = head + attribute(1, bytes([10, 9, 0, 0])) + attribute(9, hops)
    found = parse_route(body)
    assert found == Route("10.9.0.0", 24, 0, 3, (Hop(1, "10.1.0.1"), Hop(2, "10.2.0.1")))
    assert parse_route(body[:4] + bytes([200]) + body[5:]) is None


def test_beneath_is_the_longest_prefix_then_the_least_metric_and_never_ours() -> None:
    table = [
        route("0.0.0.0", 0),
        route("10.9.0.0", 24, 100),
        route("10.9.0.0", 24, 50),
        route("10.9.0.2", 32, 5, PROTOCOL),
        route("10.9.1.0", 24),
    ]
    assert beneath(table, "10.9.0.2") == route("10.9.0.0", 24, 50)
    assert beneath(table, "10.8.0.2") == route("0.0.0.0", 0)
    assert beneath(table[1:], "10.8.0.2") is None
    assert beneath(table, "fd09::2") is None
