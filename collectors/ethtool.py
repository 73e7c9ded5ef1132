"""What a network driver tells of its interface: speed, name, bus address, pause frames.

By the ``SIOCETHTOOL`` ioctl (``linux/ethtool.h``) and not from sysfs, because an ioctl sees the network
namespace of its socket while ``/sys/class/net`` shows that of whoever mounted it. "Not supported" is
a normal answer to all of it.
"""

from __future__ import annotations

import ctypes
import fcntl
import re
import socket
import struct
from typing import NamedTuple

_SIOCETHTOOL = 0x8946
_GDRVINFO = 0x03
_GSTRINGS = 0x1B
_GSTATS = 0x1D
_GSSET_INFO = 0x37
_GLINKSETTINGS = 0x4C
_SS_STATS = 1
_NAME_BYTES = 32
_DRVINFO_BYTES = 196
_LINKSETTINGS_BYTES = 48
_SPEED_UNKNOWN = 0xFFFFFFFF
_U64 = 8

# Counters of frames: not their durations, not what a driver counts a second time under another name.
_PAUSE = re.compile(r"pause|pfc", re.IGNORECASE)
_NO_FRAMES = re.compile(
    r"duration|_us\b|storm|transition|xon2xoff|error|warning|ctrl_phy|_ena_|drop|disc",
    re.IGNORECASE,
)
_DIRECTION = re.compile(r"(?:^|[^a-z])(rx|tx)(?:[^a-z]|$)", re.IGNORECASE)


class Driver(NamedTuple):
    """The driver of an interface, and the bus address of its device; empty where there is none."""

    name: str
    bus_address: str


class Pauses(NamedTuple):
    """Pause frames in total, plain and of all priorities."""

    received: int
    sent: int


class Ethtool:
    """Asks drivers, in the network namespace of the thread that makes it."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._pause_places: dict[str, tuple[int, list[int], list[int]]] = {}

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def speed_mbps(self, interface: str) -> int | None:
        """Speed in Mb/s; None where it is unknown, also where the link is down."""
        buffer = bytearray(_LINKSETTINGS_BYTES)
        struct.pack_into("=I", buffer, 0, _GLINKSETTINGS)
        if not self._ask(interface, buffer):
            return None
        # The kernel first says, negated, how many words its masks of link modes have.
        words = struct.unpack_from("=b", buffer, 15)[0]
        if words >= 0:
            return None
        buffer = bytearray(_LINKSETTINGS_BYTES + 3 * 4 * -words)
        struct.pack_into("=I", buffer, 0, _GLINKSETTINGS)
        struct.pack_into("=b", buffer, 15, -words)
        if not self._ask(interface, buffer):
            return None
        speed: int = struct.unpack_from("=I", buffer, 4)[0]
        return None if speed in (0, _SPEED_UNKNOWN) else speed

    def driver(self, interface: str) -> Driver:
        """Its driver and where the device is, such as ``mlx5_core`` at ``0000:1a:00.0``."""
        buffer = bytearray(_DRVINFO_BYTES)
        struct.pack_into("=I", buffer, 0, _GDRVINFO)
        if not self._ask(interface, buffer):
            return Driver("", "")
        return Driver(_text(buffer, 4), _text(buffer, 4 + 3 * _NAME_BYTES))

    def pauses(self, interface: str) -> Pauses:
        """Pause frames since the driver was loaded; zeros where it does not tell."""
        count = self._statistics_count(interface)
        known = self._pause_places.get(interface)
        if known is None or known[0] != count:
            known = (count, *pause_places(self._names(interface, count)))
            self._pause_places[interface] = known
        _, received, sent = known
        if not received and not sent:
            return Pauses(0, 0)
        # The kernel writes as many values as the driver has at this moment, whatever we ask for: room
        # for more, should a queue be added in between.
        buffer = bytearray(8 + _U64 * (2 * count + 256))
        struct.pack_into("=II", buffer, 0, _GSTATS, count)
        if not self._ask(interface, buffer) or struct.unpack_from("=I", buffer, 4)[0] != count:
            return Pauses(0, 0)
        values = struct.unpack_from(f"={count}Q", buffer, 8)
        return Pauses(sum(values[at] for at in received), sum(values[at] for at in sent))

    def _statistics_count(self, interface: str) -> int:
        buffer = bytearray(24)
        struct.pack_into("=IIQ", buffer, 0, _GSSET_INFO, 0, 1 << _SS_STATS)
        if not self._ask(interface, buffer) or not struct.unpack_from("=Q", buffer, 8)[0]:
            return 0
        count: int = struct.unpack_from("=I", buffer, 16)[0]
        return count

    def _names(self, interface: str, count: int) -> list[str]:
        if count == 0:
            return []
        buffer = bytearray(12 + _NAME_BYTES * (2 * count + 256))
        struct.pack_into("=III", buffer, 0, _GSTRINGS, _SS_STATS, count)
        if not self._ask(interface, buffer):
            return []
        return [_text(buffer, 12 + _NAME_BYTES * place) for place in range(count)]

    def _ask(self, interface: str, buffer: bytearray) -> bool:
        """Let the kernel fill the buffer; false where driver or interface have no answer."""
        memory = (ctypes.c_char * len(buffer)).from_buffer(buffer)
        request = struct.pack("16sP16x", interface.encode()[:15], ctypes.addressof(memory))
        try:
            fcntl.ioctl(self._socket, _SIOCETHTOOL, request)
        except OSError:
            # EOPNOTSUPP: not this driver; ENODEV: it vanished; EINVAL: it is down; EPERM: a
            # container. For all of them there is nothing to tell.
            return False
        return True


def pause_places(names: list[str]) -> tuple[list[int], list[int]]:
    """Where in a driver's statistics the pause frames are: places of received, of sent."""
    places: dict[str, list[int]] = {"rx": [], "tx": []}
    for place, name in enumerate(names):
        direction = _DIRECTION.search(name)
        if direction and _PAUSE.search(name) and not _NO_FRAMES.search(name):
            places[direction[1].lower()].append(place)
    return places["rx"], places["tx"]


def _text(buffer: bytearray, offset: int) -> str:
    raw = bytes(buffer[offset : offset + _NAME_BYTES])
    return raw.partition(b"\0")[0].decode(errors="replace")
