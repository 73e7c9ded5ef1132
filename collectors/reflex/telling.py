"""The watchdog's reports as events.

Remembers which paths were told dead, across runs of the watchdog and of the agent: a path that came
back while nobody watched is still told, under the time of the death that it ends, and a death that
was told is not told again by the next watchdog.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bus.clock import Reading
from collectors.reflex.plan import Plan
from collectors.reflex.stall import Stall
from schemas import identity
from schemas.action import OutcomeStatus
from schemas.event import Event
from schemas.identity import content_id
from schemas.path import (
    FlowStall,
    HeartbeatsRefused,
    PathFault,
    PathHealth,
    PathHealthColumns,
    PathTransition,
    ReflexOutcome,
    RouteMove,
    RouteMoveReason,
)

_ACTS = {RouteMoveReason.FAILOVER, RouteMoveReason.FAILBACK}


class Teller:
    """Makes events of reports, for one node."""

    def __init__(self, plan: Plan, zone: str, now: Callable[[], Reading]) -> None:
        """
        Args:
            plan: what the watchdog was told.
            zone: of the node.
            now: the clock, for the bound on its error.
        """
        self._node = plan.node
        self._zone = zone
        self._now = now
        self._peers = {peer.name: peer for peer in plan.peers}
        self._order = [peer.name for peer in plan.peers]
        self._paths = sum(len(peer.paths) for peer in plan.peers)
        self._rows: list[list[Any]] = []
        self._told_move: dict[str, int] = {}
        self.dead: dict[str, tuple[str, int]] = {}
        """Paths told dead: why, and since when."""

    def path(self, peer: str, place: int) -> str:
        """The subject of a path."""
        plan = self._peers[peer].paths[place]
        return identity.path(self._node, plan.local, plan.remote)

    def events(self, report: Mapping[str, Any]) -> Iterator[Event]:
        """The events that a report makes.

        Raises:
            KeyError, ValueError: it is not one of the watchdog's.
        """
        make = {
            "transition": self._transition,
            "move": self._move,
            "refused": self._refused,
            "health": self._health,
        }[report["kind"]]
        yield from make(report)

    def stall(self, peer: str, left: int, failed_ns: int, at_ns: int, stall: Stall) -> FlowStall:
        """What a failover meant for the flows."""
        subject = self.path(peer, left)
        return FlowStall(
            **self._occurrence("path.flow_stall", subject, at_ns, failed_ns),
            peer=peer,
            failed_ns=failed_ns,
            flows=stall.flows,
            flows_recovered=stall.recovered,
            stall_ns=stall.stall_ns,
            sample=list(stall.sample),
        )

    def _transition(self, report: Mapping[str, Any]) -> Iterator[Event]:
        subject = self.path(report["peer"], report["path"])
        alive, fault, since_ns = report["alive"], report["fault"], report["since_ns"]
        if alive:
            fault, since_ns = self.dead.pop(subject, (fault, since_ns))
        elif subject in self.dead:
            return
        else:
            self.dead[subject] = fault, since_ns
        yield self._turn(subject, report, fault, since_ns)

    def _turn(
        self, subject: str, report: Mapping[str, Any], fault: str, since_ns: int
    ) -> PathTransition:
        plan = self._peers[report["peer"]].paths[report["path"]]
        return PathTransition(
            **self._occurrence(
                "path.transition", subject, report["at_ns"], report["alive"], since_ns
            ),
            peer=report["peer"],
            interface=plan.interface,
            peer_interface=report["peer_interface"],
            alive=report["alive"],
            fault=PathFault(fault),
            since_ns=since_ns,
            paths_alive=report["paths_alive"],
            heartbeats_missed=report["missed"],
        )

    def _move(self, report: Mapping[str, Any]) -> Iterator[Event]:
        peer, destination = report["peer"], report["destination"]
        left, taken = (
            None if report[end] is None else self.path(peer, report[end])
            for end in ("left", "taken")
        )
        subject = left or taken or identity.node(self._node)
        reason = RouteMoveReason(report["reason"])
        decided_ns, dry_run = report["decided_ns"], report["dry_run"]
        yield RouteMove(
            **self._occurrence(
                "path.route_move", subject, report["at_ns"], destination, reason, decided_ns
            ),
            peer=peer,
            destination=destination,
            reason=reason,
            from_path=left,
            to_path=taken,
            dry_run=dry_run,
            failed_ns=report["failed_ns"],
            decided_ns=decided_ns,
        )
        # A peer of several addresses moves once.
        if reason in _ACTS and self._told_move.get(peer) != decided_ns:
            self._told_move[peer] = decided_ns
            yield ReflexOutcome(
                id=content_id("outcome.reflex", subject, reason, peer, decided_ns),
                zone=self._zone,
                at_ns=report["at_ns"],
                clock_error_ns=self._now().error_ns,
                remedy="linkpass",
                purpose=reason,
                target=self._node,
                subject=subject,
                status=OutcomeStatus.SKIPPED if dry_run else OutcomeStatus.SUCCEEDED,
                detail=f"route to {peer} {'would move' if dry_run else 'moved'} to {taken}"
                + (" (dry run)" if dry_run else ""),
                started_ns=report["failed_ns"] or decided_ns,
            )

    def _refused(self, report: Mapping[str, Any]) -> Iterator[Event]:
        interface = report["interface"]
        yield HeartbeatsRefused(
            **self._occurrence(
                "path.heartbeats_refused", identity.node(self._node), report["at_ns"], interface
            ),
            interface=interface,
            **{
                name: report[name]
                for name in (
                    "from_ns",
                    "malformed",
                    "forged",
                    "replayed",
                    "unprocessed",
                    "sources",
                )
            },
        )

    def _health(self, report: Mapping[str, Any]) -> Iterator[Event]:
        """One batch an interval, however many reports it took."""
        for peer_number, place, *values in report["rows"]:
            peer = self._order[peer_number]
            plan = self._peers[peer].paths[place]
            subject = self.path(peer, place)
            self._rows.append([subject, peer, plan.interface, *values])
            if values[0] and subject in self.dead:
                # It came back while no watchdog was there to see.
                fault, since_ns = self.dead.pop(subject)
                alive = {
                    "peer": peer,
                    "path": place,
                    "peer_interface": "",
                    "alive": True,
                    "at_ns": report["at_ns"],
                    "paths_alive": sum(
                        1 for row in report["rows"] if row[0] == peer_number and row[2]
                    ),
                    "missed": 0,
                }
                yield self._turn(subject, alive, fault, since_ns)
        if len(self._rows) < self._paths:
            return
        rows, self._rows = self._rows, []
        columns = zip(*rows, strict=True)
        # Two clocks, and either may have been set: an interval never runs backwards.
        at_ns = report["at_ns"]
        from_ns = min(report["from_ns"], at_ns)
        yield PathHealth(
            id=content_id("path.health", self._node, from_ns, at_ns),
            zone=self._zone,
            at_ns=at_ns,
            clock_error_ns=self._now().error_ns,
            node=self._node,
            from_ns=from_ns,
            columns=PathHealthColumns(
                **dict(zip(PathHealthColumns.model_fields, map(list, columns), strict=True))
            ),
        )

    def restart(self) -> None:
        """Another watchdog runs now: what the last one had half told is void."""
        self._rows.clear()

    def _occurrence(
        self, name: str, subject: str, at_ns: int, *content: str | int
    ) -> dict[str, Any]:
        return {
            "id": content_id(name, subject, at_ns, *content),
            "zone": self._zone,
            "at_ns": at_ns,
            "clock_error_ns": self._now().error_ns,
            "node": self._node,
            "subject": subject,
        }
