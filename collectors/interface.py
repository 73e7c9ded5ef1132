"""Collector ``interface``: counters, errors, drops and pause frames of the watched interfaces.

All counters of all interfaces come with one rtnetlink dump (``IFLA_STATS64``); pause frames only the
driver knows. Values are the kernel's totals: whoever reads them takes differences.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import ClassVar

from collectors.base import Collector, Host, Unavailable
from collectors.ethtool import Ethtool, Pauses
from collectors.netlink import NetlinkSocket
from collectors.nics import (
    RTM_GETLINK,
    Link,
    NicSettings,
    link_request,
    links,
    physical,
    watched,
)
from schemas.event import Event
from schemas.identity import content_id
from schemas.packet import InterfaceColumns, InterfaceCounters

_RECEIVE_BUFFER_BYTES = 1 << 20


class InterfaceSettings(NicSettings):
    """Settings of collector ``interface``."""


class InterfaceCollector(Collector):
    """See the module."""

    name: ClassVar[str] = "interface"
    about: ClassVar[str] = "counters, errors, drops and pause frames of NICs and bonds"
    interval_s: ClassVar[float] = 5.0
    Settings = InterfaceSettings

    settings: InterfaceSettings

    def __init__(self, host: Host, settings: InterfaceSettings) -> None:
        super().__init__(host, settings)
        try:
            self._ethtool = Ethtool()
            self._socket = NetlinkSocket(
                socket.NETLINK_ROUTE, receive_buffer_bytes=_RECEIVE_BUFFER_BYTES
            )
        except OSError as error:
            raise Unavailable(f"no rtnetlink socket: {error.strerror}") from None
        self._before_ns: int | None = None
        # Asking a driver for its speed may take a round trip to the card, and the answer changes
        # only with the carrier.
        self._speeds: dict[int, tuple[int, int]] = {}

    def collect(self) -> Iterator[Event]:
        """One ``InterfaceCounters``; nothing where no interface is watched."""
        answers = self._socket.dump(RTM_GETLINK, link_request(statistics=True))
        now = self.host.clock.read()
        from_ns = now.ns if self._before_ns is None else min(self._before_ns, now.ns)
        self._before_ns = now.ns
        chosen = [
            link
            for link in links(answers)
            if link.statistics is not None and watched(link, self.settings)
        ]
        if not chosen:
            return
        yield InterfaceCounters(
            id=content_id("interface.counters", self.host.node, from_ns, now.ns),
            zone=self.host.zone,
            at_ns=now.ns,
            clock_error_ns=now.error_ns,
            node=self.host.node,
            from_ns=from_ns,
            columns=self._columns(chosen),
        )

    def close(self) -> None:
        """Close the sockets."""
        self._socket.close()
        self._ethtool.close()

    def _columns(self, chosen: list[Link]) -> InterfaceColumns:
        statistics = [link.statistics for link in chosen if link.statistics is not None]
        pauses = [
            self._ethtool.pauses(link.name) if physical(link) else Pauses(0, 0) for link in chosen
        ]
        speeds = {link.ifindex: self._speed(link) for link in chosen}
        self._speeds = speeds
        return InterfaceColumns(
            interface=[link.name for link in chosen],
            carrier=[link.admin_up and link.carrier for link in chosen],
            speed_mbps=[speed for _, speed in speeds.values()],
            rx_bytes=[row.rx_bytes for row in statistics],
            tx_bytes=[row.tx_bytes for row in statistics],
            rx_packets=[row.rx_packets for row in statistics],
            tx_packets=[row.tx_packets for row in statistics],
            rx_errors=[row.rx_errors for row in statistics],
            tx_errors=[row.tx_errors for row in statistics],
            rx_crc_errors=[row.rx_crc_errors for row in statistics],
            rx_dropped=[row.rx_dropped for row in statistics],
            tx_dropped=[row.tx_dropped for row in statistics],
            rx_missed=[row.rx_missed_errors for row in statistics],
            rx_pause=[pause.received for pause in pauses],
            tx_pause=[pause.sent for pause in pauses],
        )

    def _speed(self, link: Link) -> tuple[int, int]:
        """The count of carrier changes at which the speed was read, and the speed; 0: unknown."""
        changes = link.up_count + link.down_count
        known = self._speeds.get(link.ifindex)
        if known is not None and known[0] == changes and known[1]:
            return known
        up = link.admin_up and link.carrier
        return changes, (self._ethtool.speed_mbps(link.name) or 0) if up else 0
