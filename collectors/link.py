"""Collector ``link``: every loss and return of carrier, at the moment the kernel tells.

It listens to rtnetlink and needs no root. The kernel's table of interfaces is asked for on the very
socket that hears of changes, so that table and changes come in their true order; when the kernel had
to drop messages (``ENOBUFS``) it is asked for again. What the messages mean is decided in
:mod:`collectors.carrier`.

State and the events that follow from it are written to a small file before the events are sent, so
a crash between the two makes the next start send the same events, under the same ids, and none is
lost or told in two versions.
"""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import time
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, ClassVar

from prometheus_client import Counter
from pydantic import Field

from bus import log
from collectors.base import Collector, Host, Unavailable
from collectors.carrier import Carriers, Transition
from collectors.ethtool import Ethtool
from collectors.netlink import (
    NLM_F_DUMP_INTR,
    NLMSG_DONE,
    NLMSG_ERROR,
    Message,
    NetlinkSocket,
    error_of,
)
from collectors.nics import (
    RTM_DELADDR,
    RTM_DELLINK,
    RTM_GETADDR,
    RTM_GETLINK,
    RTM_NEWADDR,
    RTM_NEWLINK,
    Link,
    NicSettings,
    address_request,
    link_request,
    parse_address,
    parse_link,
    physical,
    watched,
)
from schemas import identity
from schemas.event import Event
from schemas.identity import content_id
from schemas.inventory import InventoryNic
from schemas.packet import LinkTransition
from schemas.registry import Unreadable, decode, encode

_RTMGRP_LINK = 0x1
_RTMGRP_IPV4_IFADDR = 0x10
_RTMGRP_IPV6_IFADDR = 0x100
_RECEIVE_BUFFER_BYTES = 8 << 20
_DATAGRAMS_AT_ONCE = 500
_WAIT_S = 1.0
_HEARTBEAT_S = 10.0
_INVENTORY_PAUSE_S = 1.0
_SECOND_NS = 1_000_000_000

_overruns = Counter(
    "evertick_link_overruns", "Times that the kernel dropped messages about links for want of space"
)

_log = log.get(__name__)


class LinkSettings(NicSettings):
    """Settings of collector ``link``."""

    bring_up_s: Annotated[float, Field(ge=0, le=3600)] = 30.0
    """How long an interface that was set up may negotiate before missing carrier is a loss."""


class LinkCollector(Collector):
    """See the module."""

    name: ClassVar[str] = "link"
    about: ClassVar[str] = "carrier of NICs, bonds and RDMA ports, each loss and return"
    interval_s: ClassVar[float] = 0.0
    Settings = LinkSettings

    settings: LinkSettings

    def __init__(self, host: Host, settings: LinkSettings) -> None:
        super().__init__(host, settings)
        self._file = host.data_dir / "link.json"
        self._carriers = Carriers(int(settings.bring_up_s * _SECOND_NS))
        self._links: dict[str, Link] = {}
        self._unwatched: dict[int, str] = {}
        self._facts: dict[str, dict[str, Any]] = {}
        self._told: list[Transition] = []
        self._unsent: list[Event] = []
        self._restore()
        self._dump: int | None = None
        self._dump_interrupted = False
        self._dump_again = False
        self._saved_at_s = 0.0
        self._saved = True
        self._inventory_due = False
        self._inventory_at_s = 0.0
        try:
            self._ethtool = Ethtool()
            self._asking = NetlinkSocket(socket.NETLINK_ROUTE)
            self._socket = NetlinkSocket(
                socket.NETLINK_ROUTE,
                _RTMGRP_LINK | _RTMGRP_IPV4_IFADDR | _RTMGRP_IPV6_IFADDR,
                _RECEIVE_BUFFER_BYTES,
            )
        except OSError as error:
            raise Unavailable(f"no rtnetlink socket: {error.strerror}") from None
        self._request_dump()

    def collect(self) -> Iterator[Event]:
        """Wait up to a second for changes; yields ``LinkTransition`` and ``InventoryNic``."""
        yield from self._send()
        readable, _, _ = select.select([self._socket], [], [], _WAIT_S)
        if readable:
            self._read()
        now_ns = self.host.clock.read().ns
        if self._dump is None:
            self._told += self._carriers.tick(now_ns)
        while self._told:
            self._unsent.append(self._event(self._told.pop(0)))
        if self._unsent or time.monotonic() - self._saved_at_s > _HEARTBEAT_S:
            self._save(now_ns)
        yield from self._send()
        # A crash from here on need not send them again.
        if not self._saved and self._dump is None:
            self._save(now_ns)
        yield from self._inventory()

    def close(self) -> None:
        """Note when the links were last seen well, and close the sockets."""
        if self._dump is None:
            self._save(self.host.clock.read().ns)
        for opened in (self._socket, self._asking, self._ethtool):
            opened.close()

    def _send(self) -> Iterator[Event]:
        while self._unsent:
            yield self._unsent[0]
            # The caller came back for more, so it has that one.
            del self._unsent[0]
            self._saved = False

    def _read(self) -> None:
        """Take in what the kernel has to say, without waiting."""
        for _ in range(_DATAGRAMS_AT_ONCE):
            try:
                messages = self._socket.receive()
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                _overruns.inc()
                self._request_dump()
                continue
            now_ns = self.host.clock.read().ns
            for message in messages:
                self._told += self._take(message, now_ns)
            if not select.select([self._socket], [], [], 0)[0]:
                break

    def _take(self, message: Message, now_ns: int) -> Iterable[Transition]:
        if message.sequence and message.sequence == self._dump:
            self._dump_interrupted |= bool(message.flags & NLM_F_DUMP_INTR)
        if message.type == NLMSG_DONE and message.sequence == self._dump:
            return self._dumped(now_ns)
        if message.type == NLMSG_ERROR:
            error = error_of(message)
            if error is not None:
                raise error
        elif message.type in (RTM_NEWADDR, RTM_DELADDR):
            self._inventory_due = True
        elif message.type in (RTM_NEWLINK, RTM_DELLINK):
            link = parse_link(message.body)
            if link is not None:
                return self._take_link(link, message.type == RTM_NEWLINK, now_ns)
        return ()

    def _take_link(self, link: Link, present: bool, now_ns: int) -> Iterable[Transition]:
        renamed = [
            name
            for name, known in self._links.items()
            if known.ifindex == link.ifindex and (name != link.name or not present)
        ]
        for name in renamed:
            del self._links[name]
        if not present:
            self._unwatched.pop(link.ifindex, None)
            return self._carriers.remove(link, now_ns)
        if not watched(link, self.settings):
            self._unwatched[link.ifindex] = link.name
            return self._carriers.remove(link, now_ns) if renamed else ()
        self._unwatched.pop(link.ifindex, None)
        if self._links.get(link.name) != link:
            self._links[link.name] = link
            self._inventory_due = True
        return self._carriers.observe(link, now_ns)

    def _request_dump(self) -> None:
        """Ask for the table of all interfaces; the answer comes among the changes."""
        if self._dump is not None:
            self._dump_again = True
            return
        self._links.clear()
        self._unwatched.clear()
        self._dump_interrupted = self._dump_again = False
        self._dump = self._socket.request(RTM_GETLINK, link_request(statistics=False))

    def _dumped(self, now_ns: int) -> list[Transition]:
        self._dump = None
        if self._dump_interrupted or self._dump_again:
            self._request_dump()
            return []
        self._inventory_due = True
        return self._carriers.complete(
            {link.ifindex for link in self._links.values()}, set(self._unwatched.values()), now_ns
        )

    def _event(self, transition: Transition) -> LinkTransition:
        subject = identity.nic(self.host.node, transition.interface)
        speed = self._ethtool.speed_mbps(transition.interface) if transition.carrier else None
        return LinkTransition(
            id=content_id(
                "link.transition",
                subject,
                transition.at_ns,
                transition.carrier,
                transition.admin_up,
                transition.present,
                transition.since_ns,
                transition.carrier_losses,
            ),
            zone=self.host.zone,
            at_ns=transition.at_ns,
            clock_error_ns=self.host.clock.read().error_ns,
            node=self.host.node,
            subject=subject,
            carrier=transition.carrier,
            admin_up=transition.admin_up,
            present=transition.present,
            physical=transition.physical,
            since_ns=transition.since_ns,
            carrier_losses=transition.carrier_losses,
            unseen=transition.unseen,
            speed_mbps=speed,
            mtu_bytes=transition.mtu_bytes,
        )

    def _inventory(self) -> Iterator[InventoryNic]:
        """The watched interfaces of which something new is known, at most once a second."""
        now_s = time.monotonic()
        if (
            not self._inventory_due
            or self._dump is not None
            or now_s - self._inventory_at_s < _INVENTORY_PAUSE_S
        ):
            return
        self._inventory_at_s = now_s
        addresses: dict[int, list[str]] = {}
        for message in self._asking.dump(RTM_GETADDR, address_request()):
            address = parse_address(message.body) if message.type == RTM_NEWADDR else None
            if address is not None:
                addresses.setdefault(address[0], []).append(address[1])
        self._inventory_due = False
        self._facts = {name: facts for name, facts in self._facts.items() if name in self._links}
        for name, link in list(self._links.items()):
            facts = self._facts_of(link, sorted(addresses.get(link.ifindex, [])))
            if facts == self._facts.get(name):
                continue
            now = self.host.clock.read()
            subject = identity.nic(self.host.node, name)
            yield InventoryNic(
                id=content_id("inventory.nic", subject, now.ns),
                zone=self.host.zone,
                at_ns=now.ns,
                clock_error_ns=now.error_ns,
                subject=subject,
                node=self.host.node,
                **facts,
            )
            self._facts[name] = facts

    def _facts_of(self, link: Link, addresses: list[str]) -> dict[str, Any]:
        driver = self._ethtool.driver(link.name)
        speed = self._ethtool.speed_mbps(link.name) if link.admin_up and link.carrier else None
        try:
            pci_address = identity.pci(driver.bus_address)
        except ValueError:
            pci_address = None
        return {
            "interface": link.name,
            "mac": link.mac,
            "physical": physical(link),
            "driver": driver.name,
            "pci_address": pci_address,
            # A link that is down has no speed, but the interface is still the same.
            "speed_mbps": speed or self._facts.get(link.name, {}).get("speed_mbps"),
            "mtu_bytes": link.mtu_bytes,
            "addresses": addresses,
        }

    def _restore(self) -> None:
        try:
            saved = json.loads(self._file.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            _log.warning("cannot read the state of links, starting afresh", reason=str(error))
            return
        try:
            same_boot = saved["boot_id"] == self.host.boot_id
            unsent = [decode(item.encode(), "telemetry.packet") for item in saved["unsent"]]
            self._carriers.restore(saved["ports"], int(saved["seen_ns"]), same_boot)
            self._unsent += unsent
        except (KeyError, TypeError, ValueError, AttributeError, Unreadable) as error:
            _log.warning("the state of links is not ours, starting afresh", reason=repr(error))
            self._carriers = Carriers(int(self.settings.bring_up_s * _SECOND_NS))

    def _save(self, now_ns: int) -> None:
        """Write the state in one step: whoever reads it sees the old or the new, whole."""
        state = {
            "boot_id": self.host.boot_id,
            "seen_ns": now_ns,
            "ports": self._carriers.state(),
            "unsent": [encode(event).decode() for event in self._unsent],
        }
        self._file.parent.mkdir(parents=True, exist_ok=True)
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(state))
        os.replace(new, self._file)
        self._saved_at_s, self._saved = time.monotonic(), True
