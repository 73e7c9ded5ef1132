"""What a lab consists of: hosts, rails, leaf switches, addresses. Plain data, nothing is made here.

Every host has one NIC a rail; all NICs of a rail meet in one leaf switch. Jobs use the hosts' service
addresses, which belong to no NIC; which rail leads to one is a matter of routes::

    host-1 ── rail0 ── leaf-1 ── rail0 ── host-2       service address 10.99.0.1, fd0e:99::1
           └─ rail1 ── leaf-2 ── rail1 ─┘
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from typing import Any, Self

from schemas import identity
from schemas.identity import content_id
from schemas.inventory import InventoryJob, InventoryLink, RankPlace

HOSTS_MAX = 64
RAILS_MAX = 8
SERVICE = "svc0"
"""The port-less bridge that holds a host's service addresses."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Hosts ``host-1`` … on rails ``rail0`` …, each rail a leaf switch ``leaf-1`` …"""

    hosts: int = 2
    rails: int = 2
    rate_mbps: int = 0
    """Of every link, each direction; 0 for no bound."""

    def __post_init__(self) -> None:
        """
        Raises:
            ValueError: more or fewer of something than can be.
        """
        if not 2 <= self.hosts <= HOSTS_MAX:
            raise ValueError(f"{self.hosts} hosts; a lab has 2 to {HOSTS_MAX}")
        if not 1 <= self.rails <= RAILS_MAX:
            raise ValueError(f"{self.rails} rails; a lab has 1 to {RAILS_MAX}")
        if self.rate_mbps < 0 or 0 < self.rate_mbps < 10:
            raise ValueError(f"a rate of {self.rate_mbps} Mb/s; at least 10, or 0 for no bound")

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """A topology from a file that names what differs from the default: ``hosts = 8``.

        Raises:
            ValueError: no TOML, an unknown name, or a number that cannot be.
        """
        table = tomllib.loads(text)
        known = [field.name for field in fields(cls)]
        for name, value in table.items():
            if name not in known:
                raise ValueError(f"topology: no setting {name!r}; there are {', '.join(known)}")
            if type(value) is not int:
                raise ValueError(f"topology: {name} = {value!r}; write a whole number")
        return cls(**table)

    @property
    def host_names(self) -> list[str]:
        """``host-1`` …"""
        return [f"host-{number}" for number in range(1, self.hosts + 1)]

    @property
    def leaf_names(self) -> list[str]:
        """``leaf-1`` …: the switch of rail 0, of rail 1, …"""
        return [f"leaf-{number}" for number in range(1, self.rails + 1)]

    @property
    def rail_names(self) -> list[str]:
        """``rail0`` …: the NICs of every host."""
        return [f"rail{number}" for number in range(self.rails)]

    def rail_address(self, host: str, rail: int, version: int = 4) -> str:
        """The address of a host's NIC; its network is a /24 or a /64."""
        number = self.number(host)
        return f"10.10{rail}.0.{number}" if version == 4 else f"fd0e:{rail}::{number:x}"

    def service_addresses(self, host: str) -> list[str]:
        """The addresses that jobs use, IPv4 and IPv6."""
        number = self.number(host)
        return [f"10.99.0.{number}", f"fd0e:99::{number:x}"]

    def number(self, host: str) -> int:
        """The host's number, from 1.

        Raises:
            ValueError: there is no such host.
        """
        digits = host.removeprefix("host-")
        if not digits.isdecimal() or not 1 <= int(digits) <= self.hosts or host == digits:
            raise ValueError(f"no host {host!r}; there are host-1 to host-{self.hosts}")
        return int(digits)

    def port(self, host: str) -> str:
        """The leaf's port that a host is cabled to; the same name on every leaf."""
        return f"p{self.number(host)}"

    def nic(self, host: str, rail: int) -> str:
        """Subject of a host's NIC."""
        return identity.nic(host, self.rail_names[rail])

    def link(self, host: str, rail: int) -> str:
        """Subject of the cable between a host's NIC and its leaf."""
        port = identity.nic(self.leaf_names[rail], self.port(host))
        return identity.link(port, self.nic(host, rail))

    def inventory(self, at_ns: int) -> list[InventoryLink]:
        """The cables, as the inventory tells them."""
        found = []
        for rail, leaf in enumerate(self.leaf_names):
            for host in self.host_names:
                subject = self.link(host, rail)
                found.append(
                    InventoryLink(
                        id=content_id("lab", subject, at_ns),
                        at_ns=at_ns,
                        clock_error_ns=0,
                        subject=subject,
                        end_a=self.nic(host, rail),
                        end_b=identity.nic(leaf, self.port(host)),
                    )
                )
        return found

    def job(self, name: str, at_ns: int, gpus_per_host: int = 8) -> InventoryJob:
        """A job with one rank a host, as the inventory tells it. The GPUs are made up."""
        return InventoryJob(
            id=content_id("lab", name, at_ns),
            at_ns=at_ns,
            clock_error_ns=0,
            subject=identity.job(name),
            name=name,
            ranks=[
                RankPlace(
                    rank=rank,
                    node=host,
                    gpus=[
                        identity.gpu(host, f"0000:{16 + i:02x}:00.0") for i in range(gpus_per_host)
                    ],
                    nics=[self.nic(host, rail) for rail in range(self.rails)],
                )
                for rank, host in enumerate(self.host_names)
            ],
        )

    def linkpass(self, host: str, key: str) -> dict[str, Any]:
        """The settings table ``collectors.linkpass`` of a host's agent."""
        peers = {
            peer: {
                "address": self.service_addresses(peer),
                "paths": [
                    {
                        "interface": name,
                        "local": self.rail_address(host, rail),
                        "remote": self.rail_address(peer, rail),
                        "via": [self.rail_address(peer, rail, version) for version in (4, 6)],
                    }
                    for rail, name in enumerate(self.rail_names)
                ],
            }
            for peer in self.host_names
            if peer != host
        }
        return {"address": self.service_addresses(host), "key": key, "peers": peers}
