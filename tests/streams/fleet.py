"""A small fleet for tests: hosts on rails, each rail a leaf switch, and what its faults look like.

Faults are told as telemetry and go through the real detectors, so that what reaches the correlator in
a test is what reaches it live.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from schemas import identity
from schemas.event import Telemetry
from schemas.identity import content_id
from schemas.inventory import (
    InventoryItem,
    InventoryJob,
    InventoryLink,
    InventoryNic,
    InventoryNode,
    RankPlace,
)
from schemas.packet import LinkTransition
from schemas.path import FlowStall, PathFault, PathTransition, RouteMove, RouteMoveReason
from schemas.signal import Signal
from streams.base import Detector
from streams.failovers import PathFailover
from streams.links import LinkDown, LinkFlapping
from streams.paths import PathDown, PathFlapping

S = 1_000_000_000
MS = 1_000_000
T0 = 1_700_000_000 * S
DETECTORS = (LinkDown, LinkFlapping, PathDown, PathFlapping, PathFailover)


class Fleet:
    """Hosts 1…n, each with one NIC a rail; rail k is the switch leaf-k+1."""

    def __init__(self, hosts: int = 8, rails: int = 2, cabled: bool = True) -> None:
        self.hosts = [f"host-{i + 1}" for i in range(hosts)]
        self.rails = rails
        self.cabled = cabled

    def inventory(self) -> Iterator[InventoryItem]:
        head = {"at_ns": T0, "clock_error_ns": 0}
        for index, host in enumerate(self.hosts):
            yield InventoryNode(
                **head,
                id=content_id(host),
                subject=identity.node(host),
                node=host,
                boot_id="b",
                kernel="6.1",
                agent_version="1",
                collectors=[],
            )
            for rail in range(self.rails):
                nic = self.nic(host, rail)
                yield InventoryNic(
                    **head,
                    id=content_id(nic),
                    subject=nic,
                    node=host,
                    interface=f"rail{rail}",
                    mac="",
                    physical=False,
                    addresses=[f"{self.address(host, rail)}/24"],
                )
                if self.cabled:
                    port = identity.nic(f"leaf-{rail + 1}", f"swp{index + 1}")
                    yield InventoryLink(
                        **head,
                        id=content_id(port),
                        subject=identity.link(nic, port),
                        end_a=port,
                        end_b=nic,
                    )
        yield InventoryJob(
            **head,
            id=content_id("job"),
            subject="job:llm",
            name="llm",
            ranks=[RankPlace(rank=i, node=host) for i, host in enumerate(self.hosts)],
        )

    def nic(self, host: str, rail: int) -> str:
        return identity.nic(host, f"rail{rail}")

    def link(self, host: str, rail: int) -> str:
        if not self.cabled:
            return self.nic(host, rail)
        port = f"leaf-{rail + 1}/swp{self.hosts.index(host) + 1}"
        return identity.link(self.nic(host, rail), port)

    def address(self, host: str, rail: int) -> str:
        return f"10.0.{rail}.{self.hosts.index(host) + 1}"

    def path(self, host: str, peer: str, rail: int) -> str:
        return identity.path(host, self.address(host, rail), self.address(peer, rail))

    def transition(
        self,
        host: str,
        peer: str,
        rail: int,
        alive: bool,
        since_ns: int,
        at_ns: int,
        paths_alive: int | None = None,
        fault: PathFault = PathFault.SILENT,
    ) -> PathTransition:
        return PathTransition(
            id=content_id(host, peer, rail, at_ns),
            at_ns=at_ns,
            clock_error_ns=1000,
            node=host,
            subject=self.path(host, peer, rail),
            peer=peer,
            interface=f"rail{rail}",
            peer_interface=f"rail{rail}",
            alive=alive,
            fault=fault,
            since_ns=since_ns,
            paths_alive=self.rails - 1 if paths_alive is None else paths_alive,
        )

    def carrier(
        self, host: str, rail: int, up: bool, at_ns: int, since_ns: int = 0
    ) -> LinkTransition:
        return LinkTransition(
            id=content_id(host, rail, at_ns, up),
            at_ns=at_ns,
            clock_error_ns=1000,
            node=host,
            subject=self.nic(host, rail),
            carrier=up,
            admin_up=True,
            present=True,
            physical=False,
            since_ns=since_ns,
            carrier_losses=1,
        )

    def move(
        self,
        host: str,
        peer: str,
        from_rail: int,
        to_rail: int,
        at_ns: int,
        failed_ns: int = 0,
        reason: RouteMoveReason = RouteMoveReason.FAILOVER,
    ) -> RouteMove:
        return RouteMove(
            id=content_id("move", host, peer, at_ns),
            at_ns=at_ns,
            clock_error_ns=1000,
            node=host,
            subject=self.path(host, peer, from_rail),
            peer=peer,
            destination=f"10.9.9.{self.hosts.index(peer) + 1}",
            reason=reason,
            from_path=self.path(host, peer, from_rail),
            to_path=self.path(host, peer, to_rail),
            failed_ns=failed_ns,
            decided_ns=at_ns - MS,
        )

    def stall(
        self, host: str, peer: str, rail: int, at_ns: int, failed_ns: int, ms: int
    ) -> FlowStall:
        return FlowStall(
            id=content_id("stall", host, peer, at_ns),
            at_ns=at_ns,
            clock_error_ns=1000,
            node=host,
            subject=self.path(host, peer, rail),
            peer=peer,
            failed_ns=failed_ns,
            flows=2,
            flows_recovered=2,
            stall_ns=ms * MS,
            sample=[f"{host}:1->{peer}:2"],
        )

    def pairs(self) -> Iterator[tuple[str, str]]:
        yield from ((a, b) for a in self.hosts for b in self.hosts if a != b)

    def deaths(
        self,
        pairs: Iterable[tuple[str, str]],
        rail: int,
        at_ns: int,
        jitter_ms: int = 7,
        **more: Any,
    ) -> Iterator[PathTransition]:
        """The paths of these pairs die, each a little later than the last."""
        for index, (host, peer) in enumerate(pairs):
            since_ns = at_ns + (index * jitter_ms % 23) * MS // 2
            yield self.transition(host, peer, rail, False, since_ns, since_ns + 30 * MS, **more)

    def returns(self, deaths: Iterable[PathTransition], at_ns: int) -> Iterator[PathTransition]:
        """They come back."""
        for index, one in enumerate(deaths):
            rail = int(one.interface.removeprefix("rail"))
            yield self.transition(one.node, one.peer, rail, True, one.since_ns, at_ns + index * MS)


class Detectors:
    """The detectors of all nodes."""

    def __init__(self) -> None:
        self._all: dict[str, list[Detector]] = {}

    def signals(self, events: Iterable[Telemetry]) -> list[Signal]:
        """What they make of telemetry, in this order."""
        found: list[Signal] = []
        for event in events:
            if event.node not in self._all:
                self._all[event.node] = [
                    kind(event.node, "default", kind.Settings()) for kind in DETECTORS
                ]
            for detector in self._all[event.node]:
                if isinstance(event, detector.consumes):
                    found += detector.observe(event)
        return found
