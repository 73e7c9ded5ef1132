"""Paths to peers that are dead or flap: detectors ``path_down`` and ``path_flapping``.

A transition carries when the path last gave a sign of life, and a return carries that of the death
that it ends, so an episode can be named without memory. ``path_down`` remembers which paths are dead
only to end what nobody else ends: a return whose message was lost (the path's health shows it alive),
and a watchdog that says nothing any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from schemas.identity import parts
from schemas.path import PathFault, PathHealth, PathTransition
from schemas.signal import Evidence, Phase, Severity, Signal
from streams.base import Detector
from streams.flapping import Change, Flapping, FlappingSettings, Verdict

_SECOND_NS = 1_000_000_000
_STALE_NS = 120 * _SECOND_NS
_DEAD_MAX = 4096

_FAULTS = {
    PathFault.CARRIER: "no carrier at this end",
    PathFault.SILENT: "nothing is heard",
    PathFault.DEAF: "dead towards us, the peer hears us",
    PathFault.UNHEARD: "dead away from us, we hear the peer",
}


def between(event: PathTransition) -> str:
    """The two ends in words: ``node-1/eth1 → node-3/eth1``."""
    far = f"{event.peer}/{event.peer_interface}" if event.peer_interface else event.peer
    return f"{event.node}/{event.interface} → {far}"


@dataclass(slots=True)
class _Dead:
    since_ns: int
    at_ns: int
    """When the newest word of it came: its death, or a batch that shows it dead."""
    clock_error_ns: int
    ends: str
    attributes: dict[str, str | int | float]


class PathDown(Detector):
    """A path's death raises, its return clears."""

    name: ClassVar[str] = "path_down"
    version: ClassVar[int] = 1
    about: ClassVar[str] = "paths to peers on which no heartbeats come through"
    consumes = (PathTransition, PathHealth)

    def __init__(self, node: str, zone: str, settings: Any) -> None:
        super().__init__(node, zone, settings)
        self._dead: dict[str, _Dead] = {}

    def observe(self, event: PathTransition | PathHealth) -> Iterable[Signal]:
        """One signal at most for a transition; those of returns that went unheard for a batch."""
        if isinstance(event, PathHealth):
            return self._healed(event) if self._dead else ()
        return (self._raised(event),) if not event.alive else (self._cleared(event),)

    def tick(self, now_ns: int) -> Iterator[Signal]:
        """End the deaths of which nothing is heard any more: no health for two minutes."""
        for subject, dead in list(self._dead.items()):
            if dead.at_ns + _STALE_NS <= now_ns:
                yield self._end(subject, dead.at_ns + _STALE_NS, "no word of it any more")

    def state(self) -> dict[str, Any]:
        """The dead paths."""
        return {subject: asdict(dead) for subject, dead in self._dead.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what ``state`` returned."""
        self._dead = {subject: _Dead(**stored) for subject, stored in state.items()}

    def _raised(self, event: PathTransition) -> Signal:
        fault = event.fault or PathFault.SILENT
        known = self._dead.get(event.subject)
        dead = _Dead(
            event.since_ns,
            event.at_ns,
            event.clock_error_ns,
            between(event),
            _attributes(event),
        )
        if known is None or known.since_ns < event.since_ns:
            self._dead[event.subject] = dead
            self.changed = True
            while len(self._dead) > _DEAD_MAX:
                del self._dead[next(iter(self._dead))]
        missed = f", {event.heartbeats_missed} heartbeats missed" if event.heartbeats_missed else ""
        last = "" if event.paths_alive else "; no path to this peer is left"
        return self.signal(
            Phase.RAISED,
            kind="path.down",
            subject=event.subject,
            raised_ns=event.since_ns,
            at_ns=event.at_ns,
            clock_error_ns=event.clock_error_ns,
            severity=_severity(dead.attributes),
            summary=f"{dead.ends}: {_FAULTS[fault]}{missed}{last}",
            evidence=[Evidence(at_ns=event.at_ns, what=f"dead: {_FAULTS[fault]}{missed}")],
            advice="Look at the cables, the switch and the routing between these two ends.",
            attributes=dead.attributes,
        )

    def _cleared(self, event: PathTransition) -> Signal:
        known = self._dead.get(event.subject)
        if known is not None and known.since_ns <= event.since_ns:
            del self._dead[event.subject]
            self.changed = True
        # What the death was like is what it is judged by, also once it is over.
        attributes = (
            known.attributes
            if known is not None and known.since_ns == event.since_ns
            else _attributes(event)
        )
        return self._alive(
            event.subject,
            event.since_ns,
            event.at_ns,
            event.clock_error_ns,
            between(event),
            f"alive again after {_lasted(event.since_ns, event.at_ns)}",
            attributes,
        )

    def _healed(self, event: PathHealth) -> Iterator[Signal]:
        """Clear what has been alive for a whole interval though no return was heard of."""
        columns = event.columns
        for row, subject in enumerate(columns.path):
            dead = self._dead.get(subject)
            if dead is None:
                continue
            if not columns.alive[row]:
                dead.at_ns = max(dead.at_ns, event.at_ns)
            elif event.from_ns >= dead.at_ns:
                yield self._end(subject, event.at_ns, "alive")

    def _end(self, subject: str, at_ns: int, why: str) -> Signal:
        dead = self._dead.pop(subject)
        self.changed = True
        return self._alive(
            subject, dead.since_ns, at_ns, dead.clock_error_ns, dead.ends, why, dead.attributes
        )

    def _alive(
        self,
        subject: str,
        since_ns: int,
        at_ns: int,
        clock_error_ns: int,
        ends: str,
        what: str,
        attributes: dict[str, str | int | float],
    ) -> Signal:
        return self.signal(
            Phase.CLEARED,
            kind="path.down",
            subject=subject,
            raised_ns=since_ns,
            at_ns=at_ns,
            clock_error_ns=clock_error_ns,
            severity=_severity(attributes),
            summary=f"{ends}: {what}",
            evidence=[Evidence(at_ns=at_ns, what=what)],
            attributes=attributes,
        )


class PathFlapping(Detector):
    """Paths that die again and again, also in faults that take nobody's carrier."""

    name: ClassVar[str] = "path_flapping"
    version: ClassVar[int] = 1
    about: ClassVar[str] = "paths to peers that die and come back again and again"
    consumes = (PathTransition,)
    Settings = FlappingSettings

    def __init__(self, node: str, zone: str, settings: Any) -> None:
        super().__init__(node, zone, settings)
        self._flapping = Flapping(settings)
        self._ends: dict[str, list[str]] = {}

    def observe(self, event: PathTransition) -> Iterator[Signal]:
        """Signals that follow, also those that end other paths' episodes by now."""
        fault = _FAULTS[event.fault or PathFault.SILENT]
        change = Change(
            event.at_ns,
            event.alive,
            int(not event.alive),
            "alive again" if event.alive else f"dead: {fault}",
            event.clock_error_ns,
            event.since_ns,
        )
        self._ends[event.subject] = [event.peer, event.interface, event.peer_interface]
        yield from self._told(self._flapping.observe(event.subject, change))

    def tick(self, now_ns: int) -> Iterator[Signal]:
        """Tell what the limit of one update a second held back, end what has been quiet."""
        yield from self._told(self._flapping.tick(now_ns))

    def state(self) -> dict[str, Any]:
        """The newest transitions of each path, its episode, and its ends."""
        paths = self._flapping.state()
        # Ends of paths that are not watched any more go here, too.
        self._ends = {subject: ends for subject, ends in self._ends.items() if subject in paths}
        return {"paths": paths, "ends": self._ends} if paths else {}

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what ``state`` returned."""
        self._flapping.restore(state.get("paths", {}))
        self._ends = state.get("ends", {})

    def _told(self, verdicts: Iterable[Verdict]) -> Iterator[Signal]:
        for one in verdicts:
            verb = "flapped" if one.phase is Phase.CLEARED else "flaps"
            peer, interface, peer_interface = self._ends[one.subject]
            yield self.signal(
                one.phase,
                kind="path.flapping",
                subject=one.subject,
                raised_ns=one.raised_ns,
                at_ns=one.at_ns,
                clock_error_ns=one.clock_error_ns,
                severity=Severity.WARNING,
                summary=f"{self.node}/{interface} → {peer}, {parts(one.subject).name} {verb}: dead "
                f"{one.losses:,} times in {_lasted(0, one.lasted_ns)}{one.why}",
                evidence=one.evidence,
                evidence_dropped=one.evidence_dropped,
                advice="Look at the cables, the switch and the routing between these two ends.",
                attributes={
                    "peer": peer,
                    "interface": interface,
                    "peer_interface": peer_interface,
                    "losses": one.losses,
                },
            )
        self.changed |= self._flapping.changed
        self._flapping.changed = False


def _attributes(event: PathTransition) -> dict[str, str | int | float]:
    return {
        "peer": event.peer,
        "interface": event.interface,
        "peer_interface": event.peer_interface,
        "fault": str(event.fault or PathFault.SILENT),
        "paths_alive": event.paths_alive,
    }


def _severity(attributes: dict[str, str | int | float]) -> Severity:
    """A peer that cannot be reached is urgent, a path that others stand in for is not."""
    return Severity.WARNING if attributes["paths_alive"] else Severity.CRITICAL


def _lasted(from_ns: int, to_ns: int) -> str:
    length_ns = max(0, to_ns - from_ns)
    if length_ns < _SECOND_NS:
        return f"{length_ns / 1e6:.0f} ms"
    return f"{length_ns / _SECOND_NS:,.1f} s"
