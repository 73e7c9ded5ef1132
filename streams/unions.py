"""Two incidents that prove to be one: the earlier takes in the later, which ends.

Both are told in this order: first the one that goes on, with the symptoms of both, then the end of
the other, which names it. Where a worker died and only one of the two was stored, the next finds it
by what it restores (two live incidents that hold one symptom; an end whose symptoms the one named
lacks) and does the other half.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from schemas.identity import content_id
from schemas.incident import FLOWS_MAX, Incident, IncidentState
from schemas.signal import Severity
from streams import explain, symptoms
from streams.live import Live, LiveIncidents
from streams.memory import Memory
from streams.symptoms import key_of
from streams.victims import Inventory

_GRAVITY = list(Severity)


class Unions:
    """Makes incidents of one zone one."""

    def __init__(
        self, live: LiveIncidents, memory: Memory, inventory: Inventory, symptoms_max: int
    ) -> None:
        self._live = live
        self._memory = memory
        self._inventory = inventory
        self._symptoms_max = symptoms_max
        self._torn: list[tuple[str, str]] = []
        self._gone: list[Incident] = []

    def unite(
        self, live: Live, names: Iterable[str], at_ns: int, clock_error_ns: int
    ) -> tuple[Live, list[Live]]:
        """Make an incident one with others.

        Returns:
            The one that goes on, which is to be revised, and those that have ended, each with its
            last revision.
        """
        others = [self._live.get(name) for name in names if name != live.name]
        found = [live, *(one for one in others if one is not None)]
        into = min(found, key=lambda one: (one.incident.opened_ns, one.name))
        ended = []
        for one in found:
            if one is not into:
                self._absorb(into, one.incident, one)
                one.incident = _end(one.incident, into.name, at_ns, clock_error_ns)
                # Its episodes are the other's from now on.
                one.episodes, one.symptoms = {}, {}
                ended.append(one)
        return into, ended

    def restored(self, live: Live) -> None:
        """A live incident is about to be added; note those that hold a symptom of it already."""
        others = {other for key in live.symptoms if (other := self._live.holder(key)) is not None}
        self._torn += [(live.name, other) for other in sorted(others)]

    def restored_end(self, incident: Incident) -> None:
        """An incident that has gone on in another was restored."""
        self._gone.append(incident)

    def mend(self) -> Iterator[tuple[Live, list[Live]]]:
        """Do what was left half done; yields as ``unite`` returns."""
        torn, self._torn = self._torn, []
        for one, other in torn:
            live = self._live.get(one)
            if live is not None and self._live.get(other) is not None:
                yield self.unite(live, [other], live.incident.at_ns, live.incident.clock_error_ns)
        gone, self._gone = self._gone, []
        for incident in gone:
            into = self._live.get(incident.merged_into)
            if into is None and not self._memory.is_resolved(str(incident.merged_into)):
                # Not even its beginning was stored; what it began with is about to be read again.
                self._gone.append(incident)
                continue
            # One that is full has dropped some and cannot be told from one that never had them.
            if into is None or into.incident.symptoms_dropped:
                continue
            if not {key_of(symptom) for symptom in incident.symptoms} <= into.symptoms.keys():
                self._absorb(into, incident, None)
                yield into, []

    def _absorb(self, into: Live, taken: Incident, other: Live | None) -> None:
        """Give an incident what another holds; ``other`` is that where it is live."""
        if other is not None:
            self._live.drop(other)
            for episode, (key, raised_ns) in other.episodes.items():
                into.episodes[episode] = (key, raised_ns)
                self._memory.own(episode, into.name)
        dropped = taken.symptoms_dropped
        for symptom in taken.symptoms:
            key = key_of(symptom)
            mine = into.symptoms.get(key)
            if mine is None and len(into.symptoms) >= self._symptoms_max:
                dropped += 1
                continue
            if other is None and symptom.episode not in into.episodes:
                into.episodes[symptom.episode] = (key, symptom.raised_ns)
                self._memory.own(symptom.episode, into.name)
                self._memory.set_floor(key, symptom.raised_ns)
            if mine is not None and mine.updated_ns >= symptom.updated_ns:
                self._live.hold(into, key, mine)
                continue
            kept = symptoms.in_role(symptom, "effect" if mine is None else mine.role)
            self._live.hold(into, key, kept, explain.touched(symptom, self._inventory))
            into.said.pop(key, None)
            if other is not None and key in other.said:
                into.said[key] = other.said[key]
            if symptom.cleared_ns is None:
                into.active.add(key)
            else:
                into.active.discard(key)
        into.incident = _with(into.incident, taken, dropped)


def _with(before: Incident, taken: Incident, dropped: int) -> Incident:
    """What does not follow from the symptoms alone."""
    flows = sorted({*before.victims.flows, *taken.victims.flows})[:FLOWS_MAX]
    return before.model_copy(
        update={
            "opened_ns": min(before.opened_ns, taken.opened_ns),
            "reopened": max(before.reopened, taken.reopened),
            "severity": max(before.severity, taken.severity, key=_GRAVITY.index),
            "symptoms_dropped": before.symptoms_dropped + dropped,
            "victims": before.victims.model_copy(update={"flows": flows}),
            "cost_gpu_s": max(before.cost_gpu_s, taken.cost_gpu_s),
            "restart_cost_gpu_s": max(before.restart_cost_gpu_s, taken.restart_cost_gpu_s),
            "stall_ns": max(before.stall_ns, taken.stall_ns),
        }
    )


def _end(before: Incident, into: str, at_ns: int, clock_error_ns: int) -> Incident:
    """The last revision of an incident that goes on in another."""
    at_ns = max(before.at_ns, at_ns)
    return before.model_copy(
        update={
            "id": content_id("revision", before.incident, before.revision + 1),
            "revision": before.revision + 1,
            "at_ns": at_ns,
            "clock_error_ns": clock_error_ns,
            "state": IncidentState.RESOLVED,
            "mitigated_ns": before.mitigated_ns or at_ns,
            "resolved_ns": at_ns,
            "merged_into": into,
        }
    )
