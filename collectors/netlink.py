"""Netlink, as far as the agent speaks it: framing, attributes, a socket.

Messages are decoded here with ``struct`` rather than by pyroute2: the agent looks at a few fields of
messages that it gets by the thousand, and building an object of every attribute costs it twenty
times more than all the rest. The framing is that of RFC 3549 and ``linux/netlink.h``: all integers in
the host's byte order, everything padded to four bytes.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from typing import NamedTuple

NLMSG_ERROR = 2
NLMSG_DONE = 3
NLM_F_REQUEST = 0x1
NLM_F_DUMP_INTR = 0x10
NLM_F_DUMP = 0x300

_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_ERRNO = struct.Struct("=i")
_TYPE_MASK = 0x3FFF
_SO_RCVBUFFORCE = 33
_RECEIVE_BYTES = 64 << 10
_TIMEOUT_S = 5.0
_DUMP_ATTEMPTS = 5


class NetlinkError(Exception):
    """A message that is not what the protocol allows, or no answer."""


class Message(NamedTuple):
    """One message; ``body`` is what follows the header."""

    type: int
    flags: int
    sequence: int
    body: bytes


def messages(data: bytes) -> Iterator[Message]:
    """The messages of one datagram.

    Raises:
        NetlinkError: it is cut short or a length does not fit.
    """
    offset, end = 0, len(data)
    while offset < end:
        if end - offset < _HEADER.size:
            raise NetlinkError(f"{end - offset} bytes are no netlink header")
        length, kind, flags, sequence, _ = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size or offset + length > end:
            raise NetlinkError(f"message of {length} bytes in {end - offset}")
        yield Message(kind, flags, sequence, data[offset + _HEADER.size : offset + length])
        offset += (length + 3) & ~3


def attributes(body: bytes, offset: int = 0) -> dict[int, bytes]:
    """The attributes behind a fixed part of ``offset`` bytes; of several of one type, the last.

    Raises:
        NetlinkError: cut short or a length does not fit.
    """
    found: dict[int, bytes] = {}
    end = len(body)
    if offset > end:
        raise NetlinkError(f"body of {end} bytes; at least {offset} are needed")
    while offset < end:
        if end - offset < _ATTRIBUTE.size:
            raise NetlinkError(f"{end - offset} bytes are no attribute")
        length, kind = _ATTRIBUTE.unpack_from(body, offset)
        if length < _ATTRIBUTE.size or offset + length > end:
            raise NetlinkError(f"attribute of {length} bytes in {end - offset}")
        found[kind & _TYPE_MASK] = body[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3
    return found


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute, padded."""
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + b"\0" * (-length % 4)


def integer(value: bytes | None, default: int = 0) -> int:
    """An unsigned integer of whatever width an attribute has; ``default`` where it is absent."""
    return default if value is None else int.from_bytes(value, sys.byteorder)


def text(value: bytes | None) -> str:
    """A string up to its NUL; empty where it is absent."""
    return "" if value is None else value.partition(b"\0")[0].decode(errors="replace")


def error_of(message: Message) -> OSError | None:
    """The error that an ``NLMSG_ERROR`` carries; None for an acknowledgement.

    Raises:
        NetlinkError: it is cut short.
    """
    if len(message.body) < _ERRNO.size:
        raise NetlinkError(f"error message of {len(message.body)} bytes")
    (number,) = _ERRNO.unpack_from(message.body)
    return OSError(-number, os.strerror(abs(number))) if number else None


class NetlinkSocket:
    """A socket to the kernel, in the network namespace of the thread that makes it."""

    def __init__(self, protocol: int, groups: int = 0, receive_buffer_bytes: int = 0) -> None:
        """Open and bind it.

        Args:
            protocol: ``NETLINK_ROUTE``, ``NETLINK_SOCK_DIAG``, …
            groups: multicast groups to hear, as a mask.
            receive_buffer_bytes: how much the kernel may queue; its default where 0.
        """
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol
        )
        self._sequence = 0
        try:
            if receive_buffer_bytes:
                self._enlarge(receive_buffer_bytes)
            self._socket.settimeout(_TIMEOUT_S)
            self._socket.bind((0, groups))
        except OSError:
            self._socket.close()
            raise

    def _enlarge(self, size: int) -> None:
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, size)
        except PermissionError:
            # Without CAP_NET_ADMIN the kernel's limit (net.core.rmem_max) holds.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)

    def fileno(self) -> int:
        """For ``select``."""
        return self._socket.fileno()

    def request(self, kind: int, body: bytes, flags: int = NLM_F_DUMP) -> int:
        """Send a request; returns the sequence number that its answers carry."""
        self._sequence += 1
        header = _HEADER.pack(
            _HEADER.size + len(body), kind, NLM_F_REQUEST | flags, self._sequence, 0
        )
        self._socket.send(header + body)
        return self._sequence

    def receive(self) -> list[Message]:
        """The messages of the next datagram; waits for one.

        Raises:
            OSError: ``ENOBUFS`` where the kernel had to drop messages.
            NetlinkError: nothing came in time, or it is malformed.
        """
        try:
            data, _, flags, sender = self._socket.recvmsg(_RECEIVE_BYTES)
        except TimeoutError:
            raise NetlinkError(f"the kernel did not answer in {_TIMEOUT_S:.0f} s") from None
        if flags & socket.MSG_TRUNC:
            raise NetlinkError(f"datagram of more than {_RECEIVE_BYTES} bytes")
        # Only the kernel has port 0; other processes may write to us as well.
        return list(messages(data)) if sender[0] == 0 else []

    def dump(self, kind: int, body: bytes) -> list[Message]:
        """Everything that the kernel answers to a dump request.

        Raises:
            OSError: the kernel refused.
            NetlinkError: no answer, a malformed one, or a table that never held still.
        """
        for _ in range(_DUMP_ATTEMPTS):
            answers = self._dump_once(kind, body)
            if answers is not None:
                return answers
        raise NetlinkError(f"the table changed during each of {_DUMP_ATTEMPTS} dumps")

    def _dump_once(self, kind: int, body: bytes) -> list[Message] | None:
        sequence = self.request(kind, body)
        answers: list[Message] = []
        interrupted = False
        while True:
            for message in self.receive():
                if message.sequence != sequence:
                    continue
                interrupted = interrupted or bool(message.flags & NLM_F_DUMP_INTR)
                if message.type == NLMSG_DONE:
                    return None if interrupted else answers
                if message.type == NLMSG_ERROR:
                    error = error_of(message)
                    if error is not None:
                        raise error
                    continue
                answers.append(message)

    def close(self) -> None:
        """Close it."""
        self._socket.close()
