"""Network interfaces as rtnetlink tells of them, and which of them are watched.

Watched by default is what carries the node's traffic: interfaces with a device behind them (PCI,
USB; RDMA ports have one too) and bonds over them. Veths, bridges, tunnels and the representors of
virtual functions come and go with containers and virtual machines; they are watched only when a
pattern asks for them.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from bus.settings import Words
from collectors.base import CollectorSettings
from collectors.netlink import Message, NetlinkError, attribute, attributes, integer, text

RTM_NEWLINK = 16
RTM_DELLINK = 17
RTM_GETLINK = 18
RTM_NEWADDR = 20
RTM_DELADDR = 21
RTM_GETADDR = 22

_IFLA_ADDRESS = 1
_IFLA_IFNAME = 3
_IFLA_MTU = 4
_IFLA_LINKINFO = 18
_IFLA_STATS64 = 23
_IFLA_EXT_MASK = 29
_IFLA_CARRIER = 33
_IFLA_CARRIER_CHANGES = 35
_IFLA_PHYS_PORT_NAME = 38
_IFLA_NEW_NETNSID = 45
_IFLA_CARRIER_UP_COUNT = 47
_IFLA_CARRIER_DOWN_COUNT = 48
_IFLA_NEW_IFINDEX = 49
_IFLA_PARENT_DEV_NAME = 56
_IFLA_INFO_KIND = 1
_IFA_ADDRESS = 1
_IFA_LOCAL = 2
_IFF_UP = 0x1
_IFF_LOOPBACK = 0x8
_IFF_RUNNING = 0x40
_RTEXT_FILTER_SKIP_STATS = 1 << 3
_RT_SCOPE_LINK = 253
_AF_UNSPEC = 0

_IFINFO = struct.Struct("=BxHiII")
_IFADDR = struct.Struct("=BBBBi")
_STATS64 = struct.Struct("=16Q")
_BONDS = ("bond", "team")
_REPRESENTOR = re.compile(r"(?:c\d+)?pf\d+(?:vf|sf)\d+")
_SYSFS = Path("/sys/class/net")


class Statistics(NamedTuple):
    """The head of ``struct rtnl_link_stats64``, in its order."""

    rx_packets: int
    tx_packets: int
    rx_bytes: int
    tx_bytes: int
    rx_errors: int
    tx_errors: int
    rx_dropped: int
    tx_dropped: int
    multicast: int
    collisions: int
    rx_length_errors: int
    rx_over_errors: int
    rx_crc_errors: int
    rx_frame_errors: int
    rx_fifo_errors: int
    rx_missed_errors: int


@dataclass(frozen=True, slots=True)
class Link:
    """An interface at one moment."""

    ifindex: int
    name: str
    admin_up: bool
    carrier: bool
    """What the driver says; without meaning while the interface is administratively down."""
    up_count: int = 0
    """Times that carrier came, since the interface exists."""
    down_count: int = 0
    kind: str = ""
    """``veth``, ``bond``, …; empty for an ordinary device."""
    device: str = ""
    """Name of the device behind it, such as its PCI address."""
    port_name: str = ""
    mac: str = ""
    mtu_bytes: int = 0
    loopback: bool = False
    moved: bool = False
    """Of a removal: it did not vanish but went to another network namespace."""
    statistics: Statistics | None = None


class NicSettings(CollectorSettings):
    """Which interfaces; patterns as in a shell (``veth*``)."""

    include: Words = []
    """Watch these too, whatever they are."""
    exclude: Words = []
    """Never watch these."""


def link_request(*, statistics: bool) -> bytes:
    """The body of an ``RTM_GETLINK`` dump."""
    mask = 0 if statistics else _RTEXT_FILTER_SKIP_STATS
    return _IFINFO.pack(_AF_UNSPEC, 0, 0, 0, 0) + attribute(_IFLA_EXT_MASK, struct.pack("=I", mask))


def address_request() -> bytes:
    """The body of an ``RTM_GETADDR`` dump, of all families."""
    return _IFADDR.pack(_AF_UNSPEC, 0, 0, 0, 0)


def parse_link(body: bytes) -> Link | None:
    """Read the body of an ``RTM_NEWLINK`` or ``RTM_DELLINK``.

    Returns:
        None for a message that is not about the interface itself: bridges and wireless drivers
        send theirs, of the same type, to the same listeners.

    Raises:
        NetlinkError: it is malformed.
    """
    if len(body) < _IFINFO.size:
        raise NetlinkError(f"link message of {len(body)} bytes")
    family, _, ifindex, flags, _ = _IFINFO.unpack_from(body)
    found = attributes(body, _IFINFO.size)
    name = text(found.get(_IFLA_IFNAME))
    if family != _AF_UNSPEC or not name:
        return None
    info = attributes(found[_IFLA_LINKINFO]) if _IFLA_LINKINFO in found else {}
    changes = integer(found.get(_IFLA_CARRIER_CHANGES))
    raw = found.get(_IFLA_STATS64, b"")
    return Link(
        ifindex=ifindex,
        name=name,
        admin_up=bool(flags & _IFF_UP),
        carrier=bool(integer(found.get(_IFLA_CARRIER), flags & _IFF_RUNNING)),
        # Before Linux 4.16 there was only the sum of both.
        up_count=integer(found.get(_IFLA_CARRIER_UP_COUNT), changes // 2),
        down_count=integer(found.get(_IFLA_CARRIER_DOWN_COUNT), (changes + 1) // 2),
        kind=text(info.get(_IFLA_INFO_KIND)),
        device=text(found.get(_IFLA_PARENT_DEV_NAME)),
        port_name=text(found.get(_IFLA_PHYS_PORT_NAME)),
        mac=found.get(_IFLA_ADDRESS, b"").hex(":"),
        mtu_bytes=integer(found.get(_IFLA_MTU)),
        loopback=bool(flags & _IFF_LOOPBACK),
        moved=_IFLA_NEW_NETNSID in found or _IFLA_NEW_IFINDEX in found,
        statistics=(Statistics(*_STATS64.unpack_from(raw)) if len(raw) >= _STATS64.size else None),
    )


def parse_address(body: bytes) -> tuple[int, str] | None:
    """Read the body of an ``RTM_NEWADDR``: interface index and ``address/prefix``.

    Returns:
        None for an address that reaches no further than the link (``fe80::…``).

    Raises:
        NetlinkError: it is malformed.
    """
    if len(body) < _IFADDR.size:
        raise NetlinkError(f"address message of {len(body)} bytes")
    _, prefix, _, scope, ifindex = _IFADDR.unpack_from(body)
    found = attributes(body, _IFADDR.size)
    # On a point-to-point interface IFA_ADDRESS is the peer's.
    raw = found.get(_IFA_LOCAL) or found.get(_IFA_ADDRESS)
    if raw is None or scope >= _RT_SCOPE_LINK:
        return None
    if len(raw) not in (4, 16):
        raise NetlinkError(f"address of {len(raw)} bytes")
    return ifindex, f"{ip_address(raw)}/{prefix}"


def links(answers: list[Message]) -> list[Link]:
    """The interfaces in the answers to a dump."""
    parsed = (parse_link(message.body) for message in answers if message.type == RTM_NEWLINK)
    return [link for link in parsed if link is not None]


def physical(link: Link) -> bool:
    """Whether a device stands behind it."""
    if link.device:
        return True
    # The kernel names the device since Linux 5.14; before, sysfs does, where it shows the same
    # network namespace as the socket sees.
    return not (link.kind or link.loopback) and _device_in_sysfs(link)


def watched(link: Link, settings: NicSettings) -> bool:
    """Whether the settings want this interface."""
    if any(fnmatchcase(link.name, pattern) for pattern in settings.exclude):
        return False
    if any(fnmatchcase(link.name, pattern) for pattern in settings.include):
        return True
    if _REPRESENTOR.fullmatch(link.port_name):
        return False
    return link.kind in _BONDS or physical(link)


def _device_in_sysfs(link: Link) -> bool:
    place = _SYSFS / link.name
    try:
        return (
            int((place / "ifindex").read_text()) == link.ifindex
            and (place / "address").read_text().strip() == link.mac
            and (place / "device").exists()
        )
    except (OSError, ValueError):
        # It vanished while it was read, or sysfs shows another namespace.
        return False
