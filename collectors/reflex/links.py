"""Carrier of this host's interfaces, at the moment the kernel tells (rtnetlink, ``RTM_NEWLINK``)."""

from __future__ import annotations

import errno
import select
import socket
import struct
from typing import NamedTuple

from collectors.netlink import NLMSG_DONE, NetlinkSocket, attributes, text

_RTM_NEWLINK, _RTM_DELLINK, _RTM_GETLINK = 16, 17, 18
_RTMGRP_LINK = 0x1
_IFLA_IFNAME = 3
_IFF_UP = 0x1
_IFF_LOWER_UP = 0x10000
_IFINFO = struct.Struct("=BxHiII")
_RECEIVE_BUFFER_BYTES = 1 << 20
_DATAGRAMS_AT_ONCE = 64


class LinkState(NamedTuple):
    """An interface as far as a path cares."""

    ifindex: int
    """0 where it is not there."""
    carrier: bool
    """It is up and has carrier."""


ABSENT = LinkState(0, False)


def parse(body: bytes) -> tuple[str, LinkState]:
    """Read the body of an ``RTM_NEWLINK``.

    Raises:
        NetlinkError: it is malformed.
        struct.error: it is cut short.
    """
    _, _, index, flags, _ = _IFINFO.unpack_from(body)
    name = text(attributes(body, _IFINFO.size).get(_IFLA_IFNAME))
    return name, LinkState(index, bool(flags & _IFF_UP and flags & _IFF_LOWER_UP))


class Links:
    """The interfaces of this network namespace."""

    def __init__(self) -> None:
        """Listen, and ask for all of them.

        Raises:
            OSError: no netlink here.
        """
        self._socket = NetlinkSocket(socket.NETLINK_ROUTE, _RTMGRP_LINK, _RECEIVE_BUFFER_BYTES)
        self._names: dict[int, str] = {}
        self._states: dict[str, LinkState] = {}
        self._seen: set[int] = set()
        self._again = False
        self._dump = self._ask()

    def fileno(self) -> int:
        """For ``epoll``."""
        return self._socket.fileno()

    def state(self, name: str) -> LinkState:
        """An interface as last heard of."""
        return self._states.get(name, ABSENT)

    def read(self) -> bool:
        """Take in what the kernel has to say, without waiting.

        Returns:
            Whether anything may have changed.
        """
        heard = False
        for _ in range(_DATAGRAMS_AT_ONCE):
            if not select.select([self._socket], [], [], 0)[0]:
                break
            heard = True
            try:
                messages = self._socket.receive()
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                # The kernel had to drop news: ask for the whole table again.
                self._again = True
                continue
            for message in messages:
                if message.type == _RTM_NEWLINK:
                    self._take(message.body)
                elif message.type == _RTM_DELLINK:
                    self._remove(message.body)
                elif message.type == NLMSG_DONE and message.sequence == self._dump:
                    self._dumped()
        if self._again and not self._dump:
            self._again = False
            self._dump = self._ask()
        return heard

    @property
    def complete(self) -> bool:
        """Whether the whole table has been heard."""
        return not self._dump

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _ask(self) -> int:
        self._seen.clear()
        return self._socket.request(_RTM_GETLINK, _IFINFO.pack(socket.AF_UNSPEC, 0, 0, 0, 0))

    def _dumped(self) -> None:
        self._dump = 0
        for index in set(self._names) - self._seen:
            self._forget(index)

    def _take(self, body: bytes) -> None:
        if len(body) < _IFINFO.size or body[0] != socket.AF_UNSPEC:
            # A bridge tells of its ports under a family of its own.
            return
        name, state = parse(body)
        before = self._names.get(state.ifindex)
        if before is not None and before != name:
            self._states.pop(before, None)
        self._seen.add(state.ifindex)
        self._names[state.ifindex] = name
        self._states[name] = state

    def _remove(self, body: bytes) -> None:
        if len(body) < _IFINFO.size or body[0] != socket.AF_UNSPEC:
            return
        _, state = parse(body)
        self._seen.discard(state.ifindex)
        self._forget(state.ifindex)

    def _forget(self, index: int) -> None:
        name = self._names.pop(index, None)
        if name is not None and self._states.get(name, ABSENT).ifindex == index:
            del self._states[name]
