"""Traffic that LinkPass moved off a dead path, and how long its flows stood still: ``path_failover``.

The signal ``path.failover`` is on the path left and lasts until the traffic is back on it: it says
that the node has helped itself, which is what makes an incident mitigated while its cause lasts. An
episode is named by the path and its last sign of life, which a failover and the stall of its flows
both carry. What is remembered is, for each of the peers' addresses, the paths that its route has left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from schemas.identity import parts
from schemas.path import FlowStall, PathHealth, RouteMove, RouteMoveReason
from schemas.signal import Evidence, Phase, Severity, Signal
from streams.base import Detector

KIND = "path.failover"
_SECOND_NS = 1_000_000_000
_STALE_NS = 120 * _SECOND_NS
_ROUTES_MAX = 4096


@dataclass(slots=True)
class _Failover:
    """An episode: traffic left a path."""

    path: str
    failed_ns: int
    peer: str
    to_path: str
    moved_ns: int
    clock_error_ns: int
    stall_ns: int = 0
    flows: int = 0
    flows_recovered: int = 0
    sample: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Route:
    """Of one destination."""

    newest_ns: int
    """Time of its newest move; older ones were read before."""
    left: list[list[Any]] = field(default_factory=list)
    """Paths that it has left and not come back to, each with the time it failed, the oldest first."""


class PathFailover(Detector):
    """A failover raises, the way back clears."""

    name: ClassVar[str] = "path_failover"
    version: ClassVar[int] = 1
    about: ClassVar[str] = "traffic that was moved off a dead path"
    consumes = (RouteMove, FlowStall, PathHealth)

    def __init__(self, node: str, zone: str, settings: Any) -> None:
        super().__init__(node, zone, settings)
        self._routes: dict[str, _Route] = {}
        self._failovers: dict[tuple[str, int], _Failover] = {}
        self._heard_ns = 0
        """When the node's watchdog last gave a sign of life; 0 right after a restart."""

    def observe(self, event: RouteMove | FlowStall | PathHealth) -> Iterable[Signal]:
        """Signals that follow; a batch only shows that the watchdog lives."""
        self._heard_ns = max(self._heard_ns, event.at_ns)
        if isinstance(event, PathHealth):
            return ()
        return self._moved(event) if isinstance(event, RouteMove) else self._stalled(event)

    def tick(self, now_ns: int) -> Iterator[Signal]:
        """End the failovers of a watchdog that has said nothing for two minutes."""
        if not self._failovers:
            return
        self._heard_ns = self._heard_ns or now_ns
        if self._heard_ns + _STALE_NS <= now_ns:
            for route in self._routes.values():
                route.left.clear()
            yield from self._ended(self._heard_ns + _STALE_NS, 0, "no word of LinkPass any more")

    def state(self) -> dict[str, Any]:
        """Routes that are off a path, and the failovers that put them there."""
        routes = {name: asdict(route) for name, route in self._routes.items()}
        if not routes:
            return {}
        return {"routes": routes, "failovers": [asdict(one) for one in self._failovers.values()]}

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what ``state`` returned."""
        self._routes = {name: _Route(**one) for name, one in state.get("routes", {}).items()}
        episodes = [_Failover(**one) for one in state.get("failovers", ())]
        self._failovers = {(one.path, one.failed_ns): one for one in episodes}

    def _moved(self, move: RouteMove) -> Iterator[Signal]:
        if move.dry_run:
            return
        route = self._routes.get(move.destination)
        if route is None:
            if move.reason is not RouteMoveReason.FAILOVER:
                return
            route = self._routes[move.destination] = _Route(0)
        if move.at_ns <= route.newest_ns:
            return
        route.newest_ns = move.at_ns
        self.changed = True
        if move.to_path is None:
            route.left.clear()
        else:
            for index, (path, _) in enumerate(route.left):
                if path == move.to_path:
                    del route.left[index:]
                    break
        yield from self._ended(move.at_ns, move.clock_error_ns, _why(move))
        if move.reason is RouteMoveReason.FAILOVER and move.from_path is not None:
            failed_ns = move.failed_ns or move.decided_ns
            route.left.append([move.from_path, failed_ns])
            name = (move.from_path, failed_ns)
            known = self._failovers.get(name)
            if known is None:
                self._failovers[name] = _Failover(
                    move.from_path,
                    failed_ns,
                    move.peer,
                    move.to_path or "",
                    move.at_ns,
                    move.clock_error_ns,
                )
                yield self._tell(Phase.RAISED, self._failovers[name], move.at_ns)
        self._bound()

    def _stalled(self, stall: FlowStall) -> Iterator[Signal]:
        failover = self._failovers.get((stall.subject, stall.failed_ns))
        if failover is None:
            # Its traffic is back already; what it felt is told all the same.
            failover = _Failover(
                stall.subject, stall.failed_ns, stall.peer, "", stall.at_ns, stall.clock_error_ns
            )
        told = asdict(failover)
        failover.stall_ns = max(failover.stall_ns, stall.stall_ns)
        failover.flows = max(failover.flows, stall.flows)
        failover.flows_recovered = max(failover.flows_recovered, stall.flows_recovered)
        failover.sample = sorted({*failover.sample, *stall.sample})[:16]
        if asdict(failover) != told:
            self.changed = True
            yield self._tell(Phase.UPDATED, failover, stall.at_ns)

    def _ended(self, at_ns: int, clock_error_ns: int, why: str) -> Iterator[Signal]:
        """End the failovers that no route is subject to any more."""
        wanted = {
            (path, failed_ns) for one in self._routes.values() for path, failed_ns in one.left
        }
        for name in [name for name in self._failovers if name not in wanted]:
            failover = self._failovers.pop(name)
            failover.clock_error_ns = max(failover.clock_error_ns, clock_error_ns)
            self.changed = True
            yield self._tell(Phase.CLEARED, failover, at_ns, why)

    def _tell(self, phase: Phase, failover: _Failover, at_ns: int, why: str = "") -> Signal:
        to_path = f" to {_way(failover.to_path)}" if failover.to_path else ""
        took_ms = max(0, failover.moved_ns - failover.failed_ns) / 1e6
        moved = f"{self.node}: traffic for {failover.peer} left {_way(failover.path)}{to_path}"
        if failover.to_path:
            moved += f" {took_ms:.0f} ms after its last sign of life"
        evidence = [Evidence(at_ns=failover.moved_ns, what="route moved", value=took_ms, unit="ms")]
        if failover.flows:
            stall_ms = failover.stall_ns / 1e6
            stood = (
                f"{failover.flows} {'flow' if failover.flows == 1 else 'flows'} stood still for up to "
                f"{stall_ms:.0f} ms, {failover.flows_recovered} went on"
            )
            moved += f"; {stood}"
            evidence.append(Evidence(at_ns=at_ns, what=stood, value=stall_ms, unit="ms"))
        if phase is Phase.CLEARED:
            evidence.append(Evidence(at_ns=at_ns, what=why))
            moved = f"{self.node}: traffic for {failover.peer}, {_way(failover.path)}: {why}"
        return self.signal(
            phase,
            kind=KIND,
            subject=failover.path,
            raised_ns=failover.failed_ns,
            at_ns=at_ns,
            clock_error_ns=failover.clock_error_ns,
            severity=Severity.INFO,
            summary=moved[:512],
            evidence=evidence,
            attributes={
                "peer": failover.peer,
                "to_path": failover.to_path,
                "stall_ns": failover.stall_ns,
                "flows": failover.flows,
                "flows_recovered": failover.flows_recovered,
                "sample": " ".join(failover.sample),
            },
        )

    def _bound(self) -> None:
        while len(self._routes) > _ROUTES_MAX:
            idle = (name for name, route in self._routes.items() if not route.left)
            del self._routes[next(idle, next(iter(self._routes)))]


def _why(move: RouteMove) -> str:
    if move.reason is RouteMoveReason.FAILBACK:
        return "back on it"
    if move.to_path is None:
        return "LinkPass let go of the route"
    return f"route set anew ({move.reason})"


def _way(path: str) -> str:
    return parts(path).name
