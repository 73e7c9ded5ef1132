"""What happened around a fault, in the order of time: truth, Evertick's answer, what the job felt.

Everything is read from what each of them said itself: the faults from the lab's truth, the answer from
Evertick's topics, what the job felt from the times of its iterations. Of a fault on which many hosts
answer at once, one line tells for all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from lab.topology import Topology
from lab.truth import Span
from lab.workloads.runner import Iteration
from schemas import identity
from schemas.event import Event
from schemas.path import FlowStall, PathTransition, RouteMove, RouteMoveReason

TRUTH, EVERTICK, JOB = "truth", "Evertick", "job"
NOTICED_MS = 10.0
"""A standstill shorter than this is the machine's own unrest."""
_BEFORE_NS = 500_000_000
_AFTER_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class View:
    """A run as it stands now. Times are nanoseconds UTC."""

    topology: Topology
    with_evertick: bool
    began_ns: int
    now_ns: int
    acts: int = 0
    """How many faults there will be."""
    note: str = ""
    """What is being done."""
    spans: Sequence[Span] = ()
    events: Sequence[Event] = ()
    """From Evertick's topics, in the order in which they came."""
    iterations: Sequence[Iteration] = ()
    """Of the job; the last is the one under way, up to when it was looked at."""
    standing_ms: float = 0.0
    """How long the iteration under way has lasted already."""
    about: dict[str, str] = field(default_factory=dict)
    """What each kind of fault is, in a line."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line."""

    at_ns: int
    who: str
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What was done and felt of one fault."""

    failovers: int
    """Peers that were moved to another path, counted at each end."""
    failbacks: int
    failover_ms: float | None
    """From the last sign of life on the path to the new route in the kernel; the slowest of all."""
    flow_stall_ms: float | None
    """The longest standstill of a TCP flow, by its own acknowledgements."""
    job_stall_ms: float
    """The job's longest iteration, over the usual one."""


def standing(iterations: Sequence[Iteration], until_ns: int) -> list[Iteration]:
    """The iterations and, as the last, the one that has not ended until then."""
    if not iterations or until_ns <= iterations[-1].at_ns:
        return list(iterations)
    return [*iterations, Iteration(until_ns, until_ns - iterations[-1].at_ns)]


def usual_ms(iterations: Sequence[Iteration]) -> float:
    """What an iteration takes as a rule; 0 where there is none."""
    return median(one.took_ns for one in iterations) / 1e6 if iterations else 0.0


def answer(view: View, index: int, usual: float | None = None) -> Answer:
    """What was done about a fault, and what the job felt of it.

    Args:
        view: the run.
        index: of the fault in ``view.spans``.
        usual: :func:`usual_ms`, where it is known already.
    """
    span, events = view.spans[index], _around(view, index)
    moves = [one for one in events if isinstance(one, RouteMove) and not one.dry_run]
    away = [one for one in moves if one.reason is RouteMoveReason.FAILOVER]
    back = [one for one in moves if one.reason is RouteMoveReason.FAILBACK]
    took = [one.at_ns - one.failed_ns for one in away if one.failed_ns]
    stalls = [one.stall_ns for one in events if isinstance(one, FlowStall)]
    ended_ns = view.now_ns if span.ended_ns is None else span.ended_ns
    longest_ns = _longest(view.iterations, span.began_ns, ended_ns + _AFTER_NS)
    over_ms = longest_ns / 1e6 - (usual_ms(view.iterations) if usual is None else usual)
    return Answer(
        failovers=len(_distinct(away)),
        failbacks=len(_distinct(back)),
        failover_ms=max(took) / 1e6 if took else None,
        flow_stall_ms=max(stalls) / 1e6 if stalls else None,
        job_stall_ms=max(0.0, over_ms),
    )


def entries(view: View, index: int, usual: float | None = None) -> list[Entry]:
    """What happened around a fault, line by line."""
    span, events = view.spans[index], _around(view, index)
    about = view.about.get(span.fault, "")
    told = [Entry(span.began_ns, TRUTH, f"{span.fault} on {span.subject}: {about}".rstrip(": "))]
    told += _deaths([one for one in events if isinstance(one, PathTransition) and not one.alive])
    moves = [one for one in events if isinstance(one, RouteMove) and not one.dry_run]
    told += _moves(view.topology, moves, RouteMoveReason.FAILOVER, span)
    found = answer(view, index, usual)
    flows = [one for one in events if isinstance(one, FlowStall)]
    if found.flow_stall_ms is not None:
        stuck = sum(one.flows - one.flows_recovered for one in flows)
        rest = f"; {stuck} had not gone on yet" if stuck else ""
        text = f"measured: flows stood still for up to {found.flow_stall_ms:.0f} ms{rest}"
        told.append(Entry(max(one.at_ns for one in flows), EVERTICK, text))
    if found.job_stall_ms >= NOTICED_MS:
        ended_ns = view.now_ns if span.ended_ns is None else span.ended_ns
        longest = _overlapping(view.iterations, span.began_ns, ended_ns + _AFTER_NS)
        at_ns = max(longest, key=lambda one: one.took_ns).at_ns
        told.append(Entry(at_ns, JOB, f"stood still for {_length(found.job_stall_ms)}"))
    if span.ended_ns is not None:
        lasted_s = (span.ended_ns - span.began_ns) / 1e9
        told.append(Entry(span.ended_ns, TRUTH, f"mended after {lasted_s:.1f} s"))
    told += _moves(view.topology, moves, RouteMoveReason.FAILBACK, span)
    # The truth is told once the breaking is done; what it did at once is a few milliseconds older.
    return [told[0], *sorted(told[1:], key=lambda entry: entry.at_ns)]


def rail_of(topology: Topology, path: str | None) -> int | None:
    """The rail of a path's subject; None where there is none."""
    if path is None:
        return None
    source = identity.parts(path).name.partition("->")[0]
    for host in topology.host_names:
        for rail in range(topology.rails):
            if source == topology.rail_address(host, rail):
                return rail
    return None


def _around(view: View, index: int) -> list[Event]:
    """Events that belong to a fault: from it on until the next one."""
    spans = view.spans
    began_ns = spans[index].began_ns
    next_ns = spans[index + 1].began_ns if index + 1 < len(spans) else 1 << 63
    return [one for one in view.events if began_ns <= one.at_ns + _early_ns(one) < next_ns]


def _early_ns(event: Event) -> int:
    """How long before the truth an event may come: that is told once the breaking is done. A return
    is no consequence of a fault to come."""
    back = isinstance(event, RouteMove) and event.reason is RouteMoveReason.FAILBACK
    return 0 if back else _BEFORE_NS


def _deaths(deaths: Sequence[PathTransition]) -> list[Entry]:
    if not deaths:
        return []
    first = min(deaths, key=lambda one: one.at_ns)
    nodes = len({one.node for one in deaths})
    why = ", ".join(sorted({str(one.fault) for one in deaths if one.fault is not None}))
    after_ms = (first.at_ns - first.since_ns) / 1e6
    text = (
        f"path dead ({why or 'silent'}), seen at {_count(nodes, 'host')}, first "
        f"{after_ms:.0f} ms after its last sign of life"
    )
    return [Entry(first.at_ns, EVERTICK, text)]


def _moves(
    topology: Topology, moves: Sequence[RouteMove], reason: RouteMoveReason, span: Span
) -> list[Entry]:
    found = [one for one in moves if one.reason is reason]
    if not found:
        return []
    rails = {rail for one in found if (rail := rail_of(topology, one.to_path)) is not None}
    where = ", ".join(topology.rail_names[rail] for rail in sorted(rails)) or "the routes before"
    hosts = _count(len({one.node for one in found}), "host")
    times = len(_distinct(found))
    if reason is RouteMoveReason.FAILBACK:
        text = f"failback: {hosts} back to {where}"
        if span.ended_ns is not None and found[0].at_ns > span.ended_ns:
            text += f", {(found[0].at_ns - span.ended_ns) / 1e9:.1f} s after the mending"
        return [Entry(found[0].at_ns, EVERTICK, text)]
    took_ms = sorted((one.at_ns - one.failed_ns) / 1e6 for one in found if one.failed_ns)
    after = f", {took_ms[0]:.0f} to {took_ms[-1]:.0f} ms after the last sign of life"
    again = f" ({_count(times, 'move')})" if times > len({one.node for one in found}) else ""
    text = f"failover: {hosts} to {where}{again}{after if took_ms else ''}"
    return [Entry(min(one.at_ns for one in found), EVERTICK, text)]


def _distinct(moves: Sequence[RouteMove]) -> set[tuple[str, str, int]]:
    """Decisions: of one peer the routes to all its addresses move together."""
    return {(one.node, one.peer, one.decided_ns) for one in moves}


def _overlapping(iterations: Sequence[Iteration], from_ns: int, to_ns: int) -> Sequence[Iteration]:
    first = bisect_left(iterations, from_ns, key=lambda one: one.at_ns)
    last = bisect_left(iterations, to_ns, lo=first, key=lambda one: one.at_ns - one.took_ns)
    return iterations[first:last]


def _longest(iterations: Sequence[Iteration], from_ns: int, to_ns: int) -> int:
    return max((one.took_ns for one in _overlapping(iterations, from_ns, to_ns)), default=0)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _length(milliseconds: float) -> str:
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"
