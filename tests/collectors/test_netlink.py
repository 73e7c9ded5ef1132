"""Netlink decoding: what the kernel writes is read, what it never writes is refused."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.ethtool import Ethtool, pause_places
from collectors.netlink import (
    NetlinkError,
    NetlinkSocket,
    attribute,
    attributes,
    error_of,
    integer,
    messages,
    text,
)
from collectors.nics import (
    RTM_GETLINK,
    Link,
    NicSettings,
    link_request,
    links,
    parse_address,
    parse_link,
    watched,
)


def datagram(kind: int, body: bytes, sequence: int = 1) -> bytes:
    whole = struct.pack("=IHHII", 16 + len(body), kind, 0, sequence, 0) + body
    return whole + b"\0" * (-len(whole) % 4)


def link_body(name: str = "eth7", flags: int = 1, family: int = 0, **more: bytes) -> bytes:
    body = struct.pack("=BxHiII", family, 1, 7, flags, 0)
    body += attribute(3, name.encode() + b"\0") + attribute(33, b"\1")
    body += attribute(47, struct.pack("=I", 4)) + attribute(48, struct.pack("=I", 3))
    for kind, value in more.items():
        body += attribute(int(kind[1:]), value)
    return body


def test_messages_come_apart() -> None:
    read = list(messages(datagram(16, b"abcde", 1) + datagram(17, b"", 2)))
    assert [(message.type, message.sequence, message.body) for message in read] == [
        (16, 1, b"abcde"),
        (17, 2, b""),
    ]


def test_a_link_is_read() -> None:
    kind = attribute(1, b"bond\0")
    link = parse_link(link_body(_18=kind, _1=b"\x02\0\0\0\0\x01", _4=struct.pack("=I", 9000)))
    assert link is not None
    assert (link.ifindex, link.name, link.admin_up, link.carrier) == (7, "eth7", True, True)
    assert (link.up_count, link.down_count, link.kind) == (4, 3, "bond")
    assert (link.mac, link.mtu_bytes, link.statistics) == ("02:00:00:00:00:01", 9000, None)


def test_messages_of_bridges_are_not_about_the_interface() -> None:
    assert parse_link(link_body(family=socket.AF_BRIDGE)) is None


def test_an_acknowledgement_is_no_error() -> None:
    ack, refusal = messages(
        datagram(2, struct.pack("=i", 0)) + datagram(2, struct.pack("=i", -19) + b"rest")
    )
    assert error_of(ack) is None
    refused = error_of(refusal)
    assert refused is not None and refused.errno == 19


@pytest.mark.parametrize(
    "data", [b"x", datagram(16, b"abcd")[:-1], struct.pack("=IHHII", 4, 1, 0, 0, 0)]
)
def test_cut_messages_are_refused(data: bytes) -> None:
    with pytest.raises(NetlinkError):
        list(messages(data))


@settings(max_examples=300)
@given(st.binary(max_size=200) | st.integers(0, 90).map(lambda cut: link_body()[:cut]))
def test_no_bytes_do_harm(data: bytes) -> None:
    for read in (
        lambda: [error_of(message) for message in messages(data)],
        lambda: attributes(data),
        lambda: parse_link(data),
        lambda: parse_address(data),
        lambda: parse_link(data[:0] + link_body(_18=data, _23=data)),
    ):
        try:
            read()
        except NetlinkError:
            continue


@given(st.dictionaries(st.integers(0, 0x3FFF), st.binary(max_size=40), max_size=8))
def test_attributes_round_trip(wanted: dict[int, bytes]) -> None:
    body = b"head" + b"".join(attribute(kind, value) for kind, value in wanted.items())
    assert attributes(body, 4) == wanted


def test_small_values() -> None:
    assert integer(None, 7) == 7
    assert integer(struct.pack("=H", 513)) == 513
    assert text(b"eth0\0junk") == "eth0"


def test_the_kernel_answers() -> None:
    opened = NetlinkSocket(socket.NETLINK_ROUTE)
    try:
        names = {
            link.name for link in links(opened.dump(RTM_GETLINK, link_request(statistics=True)))
        }
    finally:
        opened.close()
    assert "lo" in names


def test_a_refusal_is_an_os_error() -> None:
    opened = NetlinkSocket(socket.NETLINK_ROUTE)
    try:
        with pytest.raises(OSError, match=r".+"):
            opened.dump(9999, b"")
    finally:
        opened.close()


def test_what_is_watched() -> None:
    def link(name: str, **facts: object) -> Link:
        return Link(ifindex=10**6, name=name, admin_up=True, carrier=True, **facts)  # type: ignore[arg-type]

    plain = NicSettings()
    assert watched(link("eth0", device="0000:01:00.0"), plain)
    assert watched(link("ib0", device="0000:02:00.0", kind="ipoib"), plain)
    assert watched(link("bond0", kind="bond"), plain)
    assert not watched(link("veth12ab", kind="veth"), plain)
    assert not watched(link("lo", loopback=True), plain)
    assert not watched(link("rep0", device="0000:01:00.0", port_name="pf0vf3"), plain)
    assert not watched(link("eth0", device="0000:01:00.0"), NicSettings(exclude=["eth*"]))
    asked = NicSettings(include=["veth*"], exclude=["veth9"])
    assert watched(link("veth1", kind="veth"), asked)
    assert not watched(link("veth9", kind="veth"), asked)


def test_pause_frames_are_told_from_their_durations() -> None:
    names = [
        "rx_packets",
        "rx_prio3_pause",
        "rx_prio3_pause_duration",
        "tx_global_pause",
        "tx_pause_storm_warning_events",
        "rx_pause_ctrl_phy",
        "rx_pfc_frames",
    ]
    assert pause_places(names) == ([1, 6], [3])


def test_an_interface_that_is_not_there_has_nothing_to_tell() -> None:
    ethtool = Ethtool()
    try:
        assert ethtool.speed_mbps("nosuch0") is None
        assert ethtool.driver("nosuch0") == ("", "")
        assert ethtool.pauses("nosuch0") == (0, 0)
    finally:
        ethtool.close()
