"""The sockets that heartbeats go through: two for each interface, for all peers behind it.

Steady heartbeats come by the dozen and are looked at once a tick, so they are sent and received in
batches (``sendmmsg``, ``recvmmsg``): a system call costs more than all that is done with a heartbeat. A
filter in the kernel lets only those pass that name our session, which is 64 random bits: strangers
cannot fill this socket's queue, and the kernel counts what it threw away.

News (a path died, a peer that does not know our session yet) goes to the next port, on which the loop
wakes at once. There everybody may knock, so only a few datagrams are looked at each time.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from ipaddress import ip_address
from typing import Any

from collectors.reflex import wire

_SO_BINDTODEVICE = 25
_SO_ATTACH_FILTER = 26
_SO_RCVBUFFORCE = 33
_SO_TIMESTAMPNS = 35
_SO_MEMINFO = 55
_MEMINFO = struct.Struct("=9I")
_MEMINFO_DROPS = 8
_DSCP_CS6 = 0xC0
_PRIORITY = 6
_STEADY_BUFFER_BYTES = 2 << 20
_NEWS_BUFFER_BYTES = 128 << 10
_SOURCES_MAX = 8

# struct mmsghdr of a 64-bit kernel: name, its length, vector, its length, control, its length, flags;
# bytes transferred.
_MMSGHDR = struct.Struct("=QI4xQQQQi4xI4x")
_LENGTH = struct.Struct("=56xI4x")
_IOVEC = struct.Struct("=QQ")
_NAME_BYTES = 28
# A control message with a timespec: length, level, type; seconds, nanoseconds.
_STAMP = struct.Struct("=16xqq")
_DATAGRAM_BYTES = -(-(wire.BYTES_MAX + 1) // 64) * 64
BATCH = 64

# Classic BPF (linux/filter.h): load a word at an absolute offset, compare, return.
_FILTER = struct.Struct("=HBBI")
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_UDP_HEADER_BYTES = 8

_libc = ctypes.CDLL(None, use_errno=True)


class Refused:
    """What was refused on one interface since it was last asked."""

    __slots__ = ("forged", "from_ns", "malformed", "replayed", "sources", "unprocessed")

    def __init__(self, from_ns: int) -> None:
        self.clear(from_ns)

    def clear(self, from_ns: int) -> None:
        """Begin to count anew."""
        self.from_ns = from_ns
        self.malformed = self.forged = self.replayed = self.unprocessed = 0
        self.sources: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self.malformed or self.forged or self.replayed or self.unprocessed)

    def source(self, address: bytes) -> None:
        """Note an address that one claimed to come from."""
        if len(self.sources) < _SOURCES_MAX:
            self.sources.add(str(ip_address(address)))


class Receiver:
    """Buffers for a batch of datagrams; one serves all sockets of a thread."""

    def __init__(self) -> None:
        # A slice of such an array is bytes at once, which its type does not say.
        self._data: Any = ctypes.create_string_buffer(BATCH * _DATAGRAM_BYTES)
        self._names: Any = ctypes.create_string_buffer(BATCH * _NAME_BYTES)
        self._control = ctypes.create_string_buffer(BATCH * _STAMP.size)
        self._vectors = ctypes.create_string_buffer(BATCH * _IOVEC.size)
        headers = bytearray()
        for place in range(BATCH):
            _IOVEC.pack_into(
                self._vectors,
                place * _IOVEC.size,
                ctypes.addressof(self._data) + place * _DATAGRAM_BYTES,
                _DATAGRAM_BYTES,
            )
            headers += _MMSGHDR.pack(
                ctypes.addressof(self._names) + place * _NAME_BYTES,
                _NAME_BYTES,
                ctypes.addressof(self._vectors) + place * _IOVEC.size,
                1,
                ctypes.addressof(self._control) + place * _STAMP.size,
                _STAMP.size,
                0,
                0,
            )
        # The kernel writes into the headers: they are made anew from this before each call.
        self._fresh = bytes(headers)
        self._headers = ctypes.create_string_buffer(len(headers))
        self._seen = [memoryview(part).cast("B") for part in (self._headers, self._control)]

    def receive(
        self, descriptor: int, address: slice, most: int = BATCH
    ) -> list[tuple[bytes, bytes, int]]:
        """What has come to a socket, without waiting: datagram, sender's address, time of arrival
        (UTC, nanoseconds)."""
        ctypes.memmove(self._headers, self._fresh, most * _MMSGHDR.size)
        count = _libc.recvmmsg(descriptor, self._headers, most, socket.MSG_DONTWAIT, None)
        if count <= 0:
            # Nothing there, or the interface went down, of which rtnetlink tells.
            return []
        headers, control = self._seen
        lengths = _LENGTH.iter_unpack(headers[: count * _MMSGHDR.size])
        stamps = _STAMP.iter_unpack(control[: count * _STAMP.size])
        found = []
        data, names = self._data, self._names
        at, name_at, end = 0, address.start, address.stop
        for (length,), (seconds, rest_ns) in zip(lengths, stamps, strict=True):
            came_ns = seconds * 1_000_000_000 + rest_ns
            found.append((data[at : at + length], names[name_at:end], came_ns))
            at += _DATAGRAM_BYTES
            name_at += _NAME_BYTES
            end += _NAME_BYTES
        return found


class Port:
    """The sockets of one address on one interface."""

    def __init__(
        self, interface: str, index: int, local: str, port: int, session: int, routed: bool
    ) -> None:
        """
        Args:
            interface: name of the interface.
            index: its index.
            local: our address there.
            port: UDP port for steady heartbeats; the next one is for news.
            session: ours; steady heartbeats that do not name it are dropped in the kernel.
            routed: a peer lies behind a gateway.

        Raises:
            OSError: the address is not there (yet), the interface is gone, no right to.
        """
        self.index = index
        self._port = port
        version = ip_address(local).version
        self._family = socket.AF_INET if version == 4 else socket.AF_INET6
        self.address_at = slice(4, 8) if version == 4 else slice(8, 24)
        """Where a sender's address stands in its socket address."""
        self._dropped = [0, 0]
        self._steady = self._open(interface, local, port, _STEADY_BUFFER_BYTES, routed)
        try:
            _attach(self._steady, session)
            self._news = self._open(interface, local, port + 1, _NEWS_BUFFER_BYTES, routed)
        except OSError:
            self._steady.close()
            raise
        self.steady = self._steady.fileno()
        self.news = self._news.fileno()
        self.aim({})

    def aim(self, size_of: dict[str, int]) -> None:
        """Prepare the batch that :meth:`send` sends: bytes of a heartbeat by the peers' addresses."""
        remotes = list(size_of)
        count = len(remotes)
        data = ctypes.create_string_buffer(count * _DATAGRAM_BYTES)
        names = ctypes.create_string_buffer(count * _NAME_BYTES)
        vectors = ctypes.create_string_buffer(count * _IOVEC.size)
        headers = ctypes.create_string_buffer(count * _MMSGHDR.size)
        for place, remote in enumerate(remotes):
            name = self._sockaddr(remote, self._port)
            ctypes.memmove(ctypes.addressof(names) + place * _NAME_BYTES, name, len(name))
            _IOVEC.pack_into(
                vectors,
                place * _IOVEC.size,
                ctypes.addressof(data) + place * _DATAGRAM_BYTES,
                size_of[remote],
            )
            _MMSGHDR.pack_into(
                headers,
                place * _MMSGHDR.size,
                ctypes.addressof(names) + place * _NAME_BYTES,
                len(name),
                ctypes.addressof(vectors) + place * _IOVEC.size,
                1,
                0,
                0,
                0,
                0,
            )
        # The kernel is given their addresses, so they must stay where they are.
        self._keep = [data, names, vectors, headers]
        self._headers = ctypes.addressof(headers)
        self._count = count
        self._out = memoryview(data).cast("B")
        self._slots = {remote: place * _DATAGRAM_BYTES for place, remote in enumerate(remotes)}

    def put(self, remote: str, datagram: bytes) -> None:
        """Lay a heartbeat into the batch."""
        at = self._slots[remote]
        self._out[at : at + len(datagram)] = datagram

    def send(self) -> None:
        """Send the batch, without waiting. What cannot leave is missed at the other end, and that is
        what tells of it."""
        done = 0
        while done < self._count:
            sent = _libc.sendmmsg(
                self.steady,
                ctypes.c_void_p(self._headers + done * _MMSGHDR.size),
                self._count - done,
                socket.MSG_DONTWAIT,
            )
            # A peer that is out of reach does not keep the others from theirs.
            done += sent if sent > 0 else 1

    def tell(self, remote: str, datagram: bytes) -> None:
        """Send one heartbeat as news, without waiting."""
        try:
            self._news.sendto(datagram, self._address(remote, self._port + 1))
        except OSError:
            # As above: it is missed at the other end.
            return

    def take_dropped(self) -> int:
        """Datagrams that the kernel threw away since it was last asked."""
        new = 0
        for place, opened in enumerate((self._steady, self._news)):
            memory = opened.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size)
            dropped = _MEMINFO.unpack(memory)[_MEMINFO_DROPS]
            new += (dropped - self._dropped[place]) & 0xFFFFFFFF
            self._dropped[place] = dropped
        return new

    def close(self) -> None:
        """Close them."""
        self._steady.close()
        self._news.close()

    def _open(
        self, interface: str, local: str, port: int, buffer_bytes: int, routed: bool
    ) -> socket.socket:
        six = self._family == socket.AF_INET6
        opened = socket.socket(
            self._family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        )
        try:
            opened.setsockopt(socket.SOL_SOCKET, _SO_BINDTODEVICE, interface.encode())
            opened.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            try:
                opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, buffer_bytes)
            except PermissionError:
                # Without CAP_NET_ADMIN the kernel's limit (net.core.rmem_max) holds.
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
            if six:
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, _DSCP_CS6)
            else:
                opened.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, _DSCP_CS6)
            if not routed:
                # It has no business behind a router.
                if six:
                    opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, 1)
                else:
                    opened.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 1)
            # After the type of service, which sets it as well.
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, _PRIORITY)
            opened.bind(self._address(local, port))
        except OSError:
            opened.close()
            raise
        return opened

    def _address(self, address: str, port: int) -> tuple[str, int] | tuple[str, int, int, int]:
        parsed = ip_address(address)
        if parsed.version == 4:
            return address, port
        return address, port, 0, self.index if parsed.is_link_local else 0

    def _sockaddr(self, address: str, port: int) -> bytes:
        """A ``sockaddr_in`` or ``sockaddr_in6``."""
        parsed = ip_address(address)
        family = struct.pack("=H", self._family) + struct.pack("!H", port)
        if parsed.version == 4:
            return family + parsed.packed + bytes(8)
        scope = self.index if parsed.is_link_local else 0
        return family + bytes(4) + parsed.packed + struct.pack("=I", scope)


def _attach(opened: socket.socket, session: int) -> None:
    """Let a socket take only heartbeats that name a session; the kernel counts the others as drops."""
    at = _UDP_HEADER_BYTES + wire.ECHO_SESSION_AT
    wanted = [
        (_UDP_HEADER_BYTES, int.from_bytes(wire.MAGIC, "big")),
        (at, session >> 32),
        (at + 4, session & 0xFFFFFFFF),
    ]
    program = b""
    for left, (offset, value) in zip(range(len(wanted), 0, -1), wanted, strict=True):
        program += _FILTER.pack(_LOAD_WORD, 0, 0, offset)
        # If it is another, jump over what is left and the return that takes it.
        program += _FILTER.pack(_JUMP_IF_EQUAL, 0, 2 * (left - 1) + 1, value)
    program += _FILTER.pack(_RETURN, 0, 0, 0xFFFF) + _FILTER.pack(_RETURN, 0, 0, 0)
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // _FILTER.size, ctypes.addressof(code))
    opened.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, header)
