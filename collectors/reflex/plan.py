"""What the watchdog is told to do: its settings, checked by the collector, as JSON.

Plain tuples, because the process must not load a validator to read what was validated already.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any, NamedTuple

from collectors.reflex.choice import HoldDown
from collectors.reflex.liveness import Timing


class PathPlan(NamedTuple):
    """One path to a peer."""

    interface: str
    local: str
    remote: str
    gateways: tuple[str, ...]
    """Next hops of the peer's route over this path, one per address family."""
    routed: bool
    """The remote address lies behind a gateway, not on the interface's own network."""

    def gateway(self, destination: str) -> str | None:
        """The next hop to a destination: of its own family, else IPv6 for IPv4 (RFC 5549)."""
        version = ip_address(destination).version
        of = {ip_address(gateway).version: gateway for gateway in self.gateways}
        return of.get(version) or (of.get(6) if version == 4 else None)


class PeerPlan(NamedTuple):
    """One peer."""

    name: str
    addresses: tuple[str, ...]
    """Its service addresses, to which routes are moved."""
    paths: tuple[PathPlan, ...]


class Plan(NamedTuple):
    """Everything the watchdog needs to know."""

    node: str
    key: bytes
    port: int
    addresses: tuple[str, ...]
    """This node's service addresses: the source that its routes prefer."""
    metric: int
    rto_min_ms: int
    dry_run: bool
    priority: int
    """``SCHED_FIFO`` priority."""
    health_ns: int
    timing: Timing
    hold: HoldDown
    peers: tuple[PeerPlan, ...]

    def source(self, destination: str) -> str | None:
        """Our own service address of a destination's family."""
        version = ip_address(destination).version
        return next((own for own in self.addresses if ip_address(own).version == version), None)


def plan_of(settings: Mapping[str, Any]) -> Plan:
    """Build a plan from what :func:`settings_of` wrote."""
    return Plan(
        node=settings["node"],
        key=bytes.fromhex(settings["key"]),
        port=settings["port"],
        addresses=tuple(settings["addresses"]),
        metric=settings["metric"],
        rto_min_ms=settings["rto_min_ms"],
        dry_run=settings["dry_run"],
        priority=settings["priority"],
        health_ns=settings["health_ns"],
        timing=Timing(*settings["timing"]),
        hold=HoldDown(*settings["hold"]),
        peers=tuple(
            PeerPlan(
                name,
                tuple(addresses),
                tuple(
                    PathPlan(interface, local, remote, tuple(gateways), routed)
                    for interface, local, remote, gateways, routed in paths
                ),
            )
            for name, addresses, paths in settings["peers"]
        ),
    )


def settings_of(plan: Plan) -> dict[str, Any]:
    """A plan as JSON can carry it."""
    return {**plan._asdict(), "key": plan.key.hex()}
