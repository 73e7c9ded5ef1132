"""LinkPass's settings, and the plan for the watchdog that follows from them.

Everything is checked here, in the agent, where a mistake can be told by the setting's name; the
watchdog takes its plan as it comes.
"""

from __future__ import annotations

import time
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from bus.settings import Section, Words
from collectors.base import CollectorSettings
from collectors.reflex.choice import HoldDown
from collectors.reflex.liveness import Timing
from collectors.reflex.plan import PathPlan, PeerPlan, Plan
from collectors.reflex.wire import PATHS_MAX
from schemas.identity import NodeName

_MILLISECOND_NS = 1_000_000
_SECOND_NS = 1_000_000_000
_KEY_BYTES_MIN = 16
_CLOCK_MONOTONIC_COARSE = 6
_THIRD_TRY = 7
_MOVED_MS = 6.0


def _address(text: str) -> str:
    """An IP address in its usual spelling, so that equal ones compare equal."""
    try:
        return str(ip_address(text.strip()))
    except ValueError:
        raise ValueError(f"{text[:60]!r} is no IP address") from None


def _addresses(texts: list[str]) -> list[str]:
    return [_address(text) for text in texts]


Address = Annotated[str, AfterValidator(_address)]
Addresses = Annotated[Words, AfterValidator(_addresses)]


class PathSettings(Section):
    """One path to a peer."""

    interface: Annotated[str, Field(pattern=r"^[^\s/]{1,15}$")]
    """This node's."""
    local: Address
    """This node's address on it."""
    remote: Address
    """The peer's address on the path."""
    via: Addresses = []
    """Next hops of the peer's route over this path, at most one per address family; the remote
    address itself where empty."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if ip_address(self.local).version != ip_address(self.remote).version:
            raise ValueError(f"local {self.local} and remote {self.remote} are of two families")
        families = [ip_address(via).version for via in self.via]
        if len(families) != len(set(families)):
            raise ValueError("via: at most one next hop for each address family")
        return self

    def plan(self) -> PathPlan:
        """For the watchdog."""
        hops = tuple(self.via or [self.remote])
        return PathPlan(
            self.interface, self.local, self.remote, hops, routed=self.remote not in hops
        )


class PeerSettings(Section):
    """One peer."""

    address: Annotated[Addresses, Field(min_length=1)]
    """Its service addresses, IPv4 or IPv6: what jobs connect to, and whereto the route is moved."""
    paths: Annotated[list[PathSettings], Field(min_length=1, max_length=PATHS_MAX)]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        ends = [(path.local, path.remote) for path in self.paths]
        if len(ends) != len(set(ends)):
            raise ValueError("paths: two of them have the same local and remote address")
        for address in self.address:
            for path in self.paths:
                if path.plan().gateway(address) is None:
                    raise ValueError(
                        f"paths: the one over {path.interface} has no next hop for {address}; "
                        "name one of its family in via"
                    )
        return self


class LinkPassSettings(CollectorSettings):
    """Settings of collector ``linkpass``."""

    peers: dict[NodeName, PeerSettings] = {}
    """By their node names. Without any, nothing runs."""
    address: Addresses = []
    """This node's own service addresses: the source of connections to peers."""
    key: SecretStr = SecretStr("")
    """Secret that all nodes share, at least 16 characters."""
    key_file: Path | None = None
    """File with the secret, instead of ``key``."""
    port: Annotated[int, Field(ge=1, le=65534)] = 7701
    """UDP port of heartbeats; news of a lost path goes to the next one."""
    heartbeat_ms: Annotated[float, Field(ge=1, le=1000)] = 10.0
    timeout_ms: Annotated[float, Field(ge=2, le=10_000)] = 30.0
    """Silence that makes a quiet path dead; one with jitter or loss gets more."""
    failback_after_ms: Annotated[float, Field(ge=0, le=3_600_000)] = 1000.0
    """How long a path must have been clean before a route returns to it."""
    hold_down_max_s: Annotated[float, Field(ge=0, le=86_400)] = 60.0
    """Bound on that time for a path that keeps flapping; it doubles each time until there."""
    forget_after_s: Annotated[float, Field(gt=0, le=86_400)] = 120.0
    """Clean for so long, a path's flaps are forgotten."""
    metric: Annotated[int, Field(ge=1, le=(1 << 31) - 1)] = 5
    """Of our routes; must be less than that of the operator's routes to the same addresses."""
    rto_min_ms: Annotated[int, Field(ge=0, le=200)] | None = None
    """TCP's least retransmission timeout towards peers; 0 leaves the kernel's. Where none is set, what
    makes the stall of a silent loss least (see :func:`rto_min_for`)."""
    dry_run: bool = False
    """Watch and tell, but move no route."""
    priority: Annotated[int, Field(ge=1, le=99)] = 20
    """Of the watchdog under SCHED_FIFO, where the host allows it."""
    health_interval_s: Annotated[float, Field(ge=0.1, le=3600)] = 5.0
    """Seconds between reports on how the paths fare."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.timeout_ms < 2 * self.heartbeat_ms:
            raise ValueError("timeout_ms: must be at least twice heartbeat_ms")
        if self.hold_down_max_s * 1000 < self.failback_after_ms:
            raise ValueError("hold_down_max_s: must not be less than failback_after_ms")
        if not self.peers:
            return self
        if bool(self.key.get_secret_value()) == (self.key_file is not None):
            raise ValueError("set key or key_file, one of them, to a secret that all nodes share")
        if self.key_file is None and len(self.key.get_secret_value()) < _KEY_BYTES_MIN:
            raise ValueError(f"key: at least {_KEY_BYTES_MIN} characters")
        own = {ip_address(address).version for address in self.address}
        owner: dict[str, str] = {}
        for name, peer in self.peers.items():
            for address in peer.address:
                if owner.setdefault(address, name) != name:
                    raise ValueError(f"peers: {address} is that of {owner[address]} and of {name}")
                if address in self.address:
                    raise ValueError(f"peers.{name}.address: {address} is this node's own")
                if ip_address(address).version not in own:
                    raise ValueError(
                        f"address: name this node's own service address of the family of {address}"
                    )
        return self

    def secret(self) -> bytes:
        """The key.

        Raises:
            OSError: its file cannot be read.
            ValueError: the file holds less than a key.
        """
        if self.key_file is None:
            return self.key.get_secret_value().encode()
        secret = self.key_file.read_bytes().strip()
        if len(secret) < _KEY_BYTES_MIN:
            raise ValueError(f"{self.key_file} holds less than {_KEY_BYTES_MIN} bytes")
        return secret

    def plan(self, node: str) -> Plan:
        """What the watchdog of a node is to do; raises as :meth:`secret`."""
        return Plan(
            node=node,
            key=self.secret(),
            port=self.port,
            addresses=tuple(self.address),
            metric=self.metric,
            rto_min_ms=rto_min_for(self.timeout_ms, _jiffy_ms())
            if self.rto_min_ms is None
            else self.rto_min_ms,
            dry_run=self.dry_run,
            priority=self.priority,
            health_ns=int(self.health_interval_s * _SECOND_NS),
            timing=Timing(
                int(self.heartbeat_ms * _MILLISECOND_NS), int(self.timeout_ms * _MILLISECOND_NS)
            ),
            hold=HoldDown(
                int(self.failback_after_ms * _MILLISECOND_NS),
                int(self.hold_down_max_s * _SECOND_NS),
                int(self.forget_after_s * _SECOND_NS),
            ),
            peers=tuple(
                PeerPlan(name, tuple(peer.address), tuple(path.plan() for path in peer.paths))
                for name, peer in sorted(self.peers.items())
            ),
        )


def rto_min_for(timeout_ms: float, jiffy_ms: float) -> int:
    """The least retransmission timeout, in milliseconds, that makes the stall of a silent loss least.

    TCP tries again r, 3r and 7r after the last acknowledgement (RFC 6298, 5.5), and by some
    milliseconds after the timeout the route has moved at both ends. The third try must come after that,
    and soon after it: earlier it is lost as well, and the fourth comes at 15r. The kernel counts in
    jiffies and adds one for the round trip.

    Args:
        timeout_ms: silence after which a path is dead.
        jiffy_ms: the kernel's tick.
    """
    jiffies = 1
    while _THIRD_TRY * (jiffies + 1) * jiffy_ms < timeout_ms + _MOVED_MS:
        jiffies += 1
    return min(200, max(1, int(jiffies * jiffy_ms)))


def _jiffy_ms() -> float:
    """The kernel's tick: what its coarse clock advances by."""
    return time.clock_getres(_CLOCK_MONOTONIC_COARSE) * 1000
