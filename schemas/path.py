"""Paths between nodes and the routes that LinkPass moves over them (topic ``telemetry.packet``).

A path leads from an address of one node to an address of another, over one interface at each end.
Its subject is ``path:node/source->destination`` and names the node that looks at it; the other end
looks at the same path under a subject of its own. Both ends exchange heartbeats, and a path lives
only while both are heard: of a one-way loss both sides know.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from schemas.action import OutcomeStatus
from schemas.event import Batch, Columns, Count, Event, Nanoseconds, Occurrence
from schemas.identity import NodeName, Subject
from schemas.registry import event


class PathFault(StrEnum):
    """Why a path is held dead."""

    CARRIER = "carrier"
    """This end's interface has no carrier, is down or gone."""
    SILENT = "silent"
    """Nothing is heard, and the other end hears nothing or cannot say."""
    DEAF = "deaf"
    """Nothing is heard, but the other end says that it hears us: one way only, towards us."""
    UNHEARD = "unheard"
    """We hear the other end, and it says that it does not hear us: one way only, away from us."""


@event(topic="telemetry.packet")
class PathTransition(Occurrence):
    """A path to a peer died or came back. The subject is the path.

    As with a link, it carries when the state before it began, so that a return names the loss that it
    ends even to a reader that missed the loss.
    """

    schema_name: Literal["path.transition"] = Field(default="path.transition", alias="schema")
    version: Literal[1] = 1

    peer: NodeName
    interface: str
    """This end's."""
    peer_interface: str = ""
    """The other end's; empty where it has not told."""
    alive: bool
    fault: PathFault | None = None
    """Why it died; of a return, why it had died."""
    since_ns: Nanoseconds
    """Of a death: when the last sign of life came. Of a return: ``since_ns`` of the death it ends."""
    paths_alive: Count
    """Paths to this peer that live after this transition; at 0 the peer cannot be reached."""
    heartbeats_missed: Count = 0
    """Heartbeats that other paths proved to have been sent and that did not arrive on this one."""


class RouteMoveReason(StrEnum):
    """Why a peer's route was moved."""

    START = "start"
    """The watchdog took the route up."""
    FAILOVER = "failover"
    """The path in use died."""
    FAILBACK = "failback"
    """A better path has been clean for its hold-down."""
    RESTORE = "restore"
    """An earlier run left a route that was wrong now."""
    RELEASE = "release"
    """The watchdog ends and takes its routes away."""


@event(topic="telemetry.packet")
class RouteMove(Occurrence):
    """LinkPass moved a peer's route to another path. The subject is the path left, where there was one,
    else the path taken."""

    schema_name: Literal["path.route_move"] = Field(default="path.route_move", alias="schema")
    version: Literal[1] = 1

    peer: NodeName
    destination: str
    """The peer's service address that the route leads to."""
    reason: RouteMoveReason
    from_path: Subject | None = None
    to_path: Subject | None = None
    """None where the route was taken away."""
    dry_run: bool = False
    """Nothing was changed; this is what would have been."""
    failed_ns: Nanoseconds = 0
    """Of a failover: the last sign of life on the path left."""
    decided_ns: Nanoseconds
    """When it was decided; ``at_ns`` is when the kernel had the route."""


@event(topic="telemetry.packet")
class FlowStall(Occurrence):
    """How long the TCP flows to a peer stood still around a failover. The subject is the path left.

    Measured from the flows' own acknowledgements (``tcpi_last_ack_recv``), so it is what the
    application felt, retransmission timers included.
    """

    schema_name: Literal["path.flow_stall"] = Field(default="path.flow_stall", alias="schema")
    version: Literal[1] = 1

    peer: NodeName
    failed_ns: Nanoseconds
    """``failed_ns`` of the failover that it belongs to."""
    flows: Count
    """Flows that were in use when the path died."""
    flows_recovered: Count
    """Those of them that made progress again until ``at_ns``."""
    stall_ns: Nanoseconds
    """The longest time that one of those stood still; of the unrecovered, up to ``at_ns``."""
    sample: Annotated[list[str], Field(max_length=16)] = []
    """Some of the flows, ``local->remote``."""


@event(topic="telemetry.packet")
class HeartbeatsRefused(Occurrence):
    """Heartbeats came that are not the peer's: forged, replayed, or nobody's. They moved nothing. Sent
    at most once a second and port; the subject is the node."""

    schema_name: Literal["path.heartbeats_refused"] = Field(
        default="path.heartbeats_refused", alias="schema"
    )
    version: Literal[1] = 1

    interface: str
    from_ns: Nanoseconds
    malformed: Count
    forged: Count
    """The code that proves who sent it does not fit."""
    replayed: Count
    """Genuine once, but seen before or of an earlier run."""
    unprocessed: Count
    """Not looked at, so that a flood cannot take the time that the peers' heartbeats need."""
    sources: Annotated[list[str], Field(max_length=8)] = []
    """Addresses that they claimed to come from."""


class PathHealthColumns(Columns):
    """One row a path."""

    path: list[str]
    peer: list[str]
    interface: list[str]
    alive: list[bool]
    in_use: list[bool]
    """The peer's route leads over it."""
    heartbeats_expected: list[int]
    """Those that the peer sent in the interval, by their numbers."""
    heartbeats_heard: list[int]
    rtt_p50_us: list[int]
    """Round-trip time of heartbeats, the peer's waiting taken off; 0 where none came."""
    rtt_max_us: list[int]
    jitter_us: list[int]
    """Smoothed deviation of the time between arrivals (RFC 3550)."""
    timeout_us: list[int]
    """Silence that now counts as death: the configured one, or more where the path's jitter asks."""


@event(topic="telemetry.packet")
class PathHealth(Batch):
    """How the paths to a node's peers fared in an interval."""

    schema_name: Literal["path.health"] = Field(default="path.health", alias="schema")
    version: Literal[1] = 1
    columns: PathHealthColumns


@event(topic="outcomes")
class ReflexOutcome(Event):
    """What a node did by itself in milliseconds, before any incident could tell it to.

    Same topic and key as :class:`schemas.action.Outcome`, but it names no action and no incident:
    the incident is found by its subject and time.
    """

    schema_name: Literal["outcome.reflex"] = Field(default="outcome.reflex", alias="schema")
    version: Literal[1] = 1

    remedy: str
    """``linkpass``."""
    purpose: str
    """``failover``, ``failback``."""
    target: NodeName
    subject: Subject
    """What it was done about."""
    status: OutcomeStatus
    detail: Annotated[str, Field(max_length=2048)]
    started_ns: Nanoseconds
    """When the fault began; ``at_ns`` is when the remedy had taken hold."""

    def key(self) -> str:
        return self.target
