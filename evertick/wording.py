"""Events and times in words, one line each, for a person at a terminal."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import singledispatch

from schemas.action import Action, Outcome
from schemas.agent import TelemetryDropped
from schemas.deadletter import DeadLetter
from schemas.event import Batch, Event, Occurrence
from schemas.incident import Incident, Recommendation
from schemas.inventory import InventoryItem, InventoryJob, InventoryLink, InventoryNode
from schemas.kernel import KernelReport
from schemas.packet import LinkTransition
from schemas.path import (
    FlowStall,
    HeartbeatsRefused,
    PathTransition,
    ReflexOutcome,
    RouteMove,
)
from schemas.signal import Signal

SHORT_ID = 8
"""Hex digits of an id that are shown; commands take any prefix that is unique."""

_S = 1_000_000_000


def ago(at_ns: int, now_ns: int) -> str:
    """How long before ``now_ns`` something was: ``3 min ago``."""
    seconds = (now_ns - at_ns) // _S
    if seconds < 0:
        return f"in {span(at_ns - now_ns)}"
    return "just now" if seconds == 0 else f"{span(now_ns - at_ns)} ago"


def span(length_ns: int) -> str:
    """A length of time, rounded down to its largest unit."""
    seconds = length_ns / _S
    for unit, unit_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= unit_s:
            return f"{int(seconds // unit_s)} {unit}"
    return f"{int(seconds)} s" if seconds >= 1 else f"{length_ns / 1e6:.3g} ms"


def utc(at_ns: int, digits: int = 9) -> str:
    """A time in ISO 8601, UTC, with ``digits`` digits behind the second, cut and not rounded."""
    seconds, rest = divmod(at_ns, _S)
    fraction = f".{rest:09d}"[: digits + 1] if digits else ""
    try:
        day = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{at_ns} ns"  # A time beyond the calendar's end is shown as it is.
    return f"{day}{fraction}Z"


def offset(length_ns: int) -> str:
    """A place on a time line, to the millisecond: ``+0.012 s``."""
    return f"{length_ns / _S:+.3f} s"


def gpu_time(seconds: float) -> str:
    """A cost in GPU time: ``90 GPU-seconds``, ``2.5 GPU-hours``."""
    return f"{seconds:.0f} GPU-seconds" if seconds < 3600 else f"{seconds / 3600:.1f} GPU-hours"


def times(count: int, what: str) -> str:
    """``1 failover``, ``12 failovers``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def short(identifier: str) -> str:
    """An id as it is shown."""
    return identifier[:SHORT_ID]


@singledispatch
def line(event: Event) -> str:
    """What an event says."""
    return event.schema_name


@line.register
def _(event: Batch) -> str:
    rows = len(event.columns)
    return f"{event.schema_name} {event.node} {rows} {'row' if rows == 1 else 'rows'}"


@line.register
def _(event: Occurrence) -> str:
    return f"{event.schema_name} {event.subject}"


@line.register
def _(event: LinkTransition) -> str:
    if not event.present:
        state = "went away"
    elif not event.admin_up:
        state = "set down"
    else:
        state = "carrier" if event.carrier else "no carrier"
    unseen = f", {event.unseen} losses unseen" if event.unseen else ""
    return f"{event.schema_name} {event.subject} {state}{unseen}"


@line.register
def _(event: PathTransition) -> str:
    left = f", {event.paths_alive} left to {event.peer}"
    if event.alive:
        lasted = span(max(0, event.at_ns - event.since_ns))
        return f"{event.schema_name} {event.subject} alive again after {lasted}{left}"
    return f"{event.schema_name} {event.subject} dead, {event.fault or 'silent'}{left}"


@line.register
def _(event: RouteMove) -> str:
    to_path = event.to_path or "no path of ours"
    came = f"from {event.from_path} " if event.from_path else ""
    took = (
        f" {span(max(0, event.at_ns - event.failed_ns))} after its last sign of life"
        if event.failed_ns
        else ""
    )
    dry = ", dry run" if event.dry_run else ""
    return f"{event.reason} of {event.peer} on {event.node} {came}to {to_path}{took}{dry}"


@line.register
def _(event: FlowStall) -> str:
    return (
        f"{event.schema_name} {event.subject} {event.flows} flows to {event.peer} stood still for "
        f"up to {span(event.stall_ns)}, {event.flows_recovered} went on"
    )


@line.register
def _(event: HeartbeatsRefused) -> str:
    counts = ((name, getattr(event, name)) for name in ("forged", "replayed", "malformed"))
    told = ", ".join(f"{count} {name}" for name, count in counts if count)
    more = f", {event.unprocessed} not looked at" if event.unprocessed else ""
    return f"{event.schema_name} {event.node}/{event.interface} {told or 'none read'}{more}"


@line.register
def _(event: ReflexOutcome) -> str:
    return (
        f"{event.remedy} ({event.purpose}) on {event.target} {event.status} for {event.subject}: "
        f"{event.detail}"
    )


@line.register
def _(event: KernelReport) -> str:
    times = f" ({event.count} times)" if event.count > 1 else ""
    code = "" if event.code is None else f" {event.code}"
    return f"{event.category}{code} {event.subject} {event.message}{times}"


@line.register
def _(event: TelemetryDropped) -> str:
    return (
        f"{event.schema_name} {event.node} {event.messages} messages, {event.message_bytes} bytes"
    )


@line.register
def _(event: InventoryItem) -> str:
    return f"{event.schema_name} {event.subject}"


@line.register
def _(event: InventoryNode) -> str:
    return f"{event.schema_name} {event.subject} runs {', '.join(event.collectors)}"


@line.register
def _(event: InventoryLink) -> str:
    return f"{event.schema_name} {event.end_a} to {event.end_b}"


@line.register
def _(event: InventoryJob) -> str:
    return f"{event.schema_name} {event.subject} {len(event.ranks)} ranks"


@line.register
def _(event: Signal) -> str:
    return f"{event.phase} {event.kind} {event.subject} {event.severity}: {event.summary}"


@line.register
def _(event: Incident) -> str:
    into = f", goes on in {short(event.merged_into)}" if event.merged_into else ""
    return (
        f"{short(event.incident)} revision {event.revision} {event.state}{into} {event.kind} "
        f"{event.subject} {event.severity}: {event.summary}"
    )


@line.register
def _(event: Action) -> str:
    dry = ", dry run" if event.dry_run else ""
    return (
        f"{short(event.incident)} {event.remedy} ({event.purpose}) on {event.target}, "
        f"{event.mode}{dry}: {event.reason}"
    )


@line.register
def _(event: Outcome) -> str:
    return (
        f"{short(event.incident)} {event.remedy} ({event.purpose}) {event.status} "
        f"after {event.attempts} attempts: {event.detail}"
    )


@line.register
def _(event: DeadLetter) -> str:
    place = f"{event.topic}[{event.partition}]@{event.offset}"
    return f"{place} {event.original_bytes} bytes, {event.reader}: {event.reason}"


def recommended(recommendation: Recommendation) -> str:
    """The remedy by name, where one is named, and the advice."""
    return ": ".join(part for part in (recommendation.remedy, recommendation.advice) if part)
