"""The correlator: signals that one cause explains become one incident.

Pure: no Kafka, no wall clock; live, in a replay and in a simulation it is the same object. All that
it must remember is in the incidents that it returns, so the newest revision of each, stored until
``expired`` names it, is its whole memory. What makes it safe to read a signal twice:

- An episode that an incident took in is known by its id; only what is newer than the symptom's last
  word counts, and a cleared episode is over.
- After a restart older episodes of a symptom are known by their time: one that began no later than
  the episode that a restored incident carries was read before.
- Resolved incidents are remembered for ``remember_s``, so that old signals open no new ones.
- When an incident resolves follows from when its symptoms ended, not from when somebody looked.
- Two incidents that prove to be one are told in this order: first the one that goes on, with the
  symptoms of both, then the end of the other. Where only one of the two was stored, the next worker
  finds the other half undone and does it.

What explains what is told by rules in modules named ``explain_*`` (see :mod:`streams.explain`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from functools import partial
from typing import Annotated

from pydantic import Field

from bus.settings import Section
from schemas.identity import content_id
from schemas.incident import Incident, IncidentState, Symptom
from schemas.inventory import InventoryItem
from schemas.signal import Phase, Signal
from streams import explain, symptoms
from streams.known import Known
from streams.live import Live, LiveIncidents
from streams.memory import Memory
from streams.price import RESTART_MIN
from streams.revision import revised, stall_ns
from streams.room import has_room
from streams.symptoms import Key, key_of
from streams.unions import Unions
from streams.victims import Inventory

_SECOND_NS = 1_000_000_000
_UNITE_ROUNDS_MAX = 8
_EPISODES_REPLACED_MAX = 500

_NotNegative = Annotated[float, Field(ge=0)]


class CorrelatorSettings(Section):
    """When an incident is over, and how much is kept."""

    resolve_after_s: _NotNegative = 5.0
    """Quiet time from the last symptom's end until an incident is resolved."""
    resolve_after_s_by_kind: dict[str, _NotNegative] = {"link.flapping": 0.0}
    """The same for kinds that need another; flapping ends only after a quiet time of its own."""
    remember_s: Annotated[float, Field(ge=1)] = 600.0
    """How long a resolved incident is remembered, so that signals read again find it."""
    symptoms_max: Annotated[int, Field(ge=10, le=500)] = 200
    """Symptoms that one incident holds; more are counted in ``symptoms_dropped``."""
    incidents_max: Annotated[int, Field(ge=10)] = 10_000
    """Unresolved incidents of a zone; symptoms that would open more are refused and counted."""
    remembered_max: Annotated[int, Field(ge=10)] = 100_000
    """Resolved incidents that are remembered; the oldest go first."""
    restart_min: _NotNegative = RESTART_MIN
    """Minutes that the restart of a job from its checkpoint takes, for what one would have cost."""


class Correlator:
    """The incidents of one zone."""

    def __init__(self, zone: str, settings: CorrelatorSettings | None = None) -> None:
        explain.load()
        self.zone = zone
        self.settings = settings or CorrelatorSettings()
        self.refused = 0
        """Signals that would have opened an incident beyond ``incidents_max``."""
        self._inventory = Inventory()
        self._live = LiveIncidents()
        self._memory = Memory()
        self._quiet: list[tuple[int, str]] = []
        self._now_ns = 0
        self._unions = Unions(self._live, self._memory, self._inventory, self.settings.symptoms_max)

    def inventory(self, item: InventoryItem) -> None:
        """Take in what is known about a thing of the fleet; it counts from the next revisions on."""
        self._inventory.put(item)

    def forget(self, subject: str) -> None:
        """A thing of the fleet is gone."""
        self._inventory.forget(subject)

    def incidents(self) -> list[Incident]:
        """The newest revision of every incident that is not resolved."""
        return [live.incident for live in self._live]

    def observe(self, signal: Signal) -> list[Incident]:
        """Take in a signal.

        Returns:
            New revisions to publish, in order; empty where the signal says nothing new.
        """
        told = self._mend()
        key = key_of(signal)
        owner = self._memory.owner(signal.episode)
        if owner is not None:
            live = self._live.get(owner)
            return told if live is None else told + self._again(live, key, signal)

        holder = self._current(self._live.holder(key), signal.at_ns, told)
        if signal.phase is Phase.CLEARED:
            # Of an episode that nobody raised here: an interface that was set down, say.
            return told + ([] if holder is None else self._again(holder, key, signal))
        if self._memory.below_floor(key, signal.raised_ns):
            return told
        if holder is not None:
            self._join(holder, key, signal, None)
            return told + self._settle(holder, signal)
        verdict = explain.explain(signal, self._known(signal.at_ns, told))
        joined = self._live.get(verdict.incident)
        if joined is not None:
            if not self._join(joined, key, signal, verdict) and not verdict.merges:
                return told + self._counted(joined, signal)
            return told + self._settle(joined, signal, verdict.merges)
        if len(self._live) >= self.settings.incidents_max:
            self.refused += 1
            return told
        return told + self._open(key, signal, verdict)

    def tick(self, now_ns: int) -> list[Incident]:
        """Resolve what has been quiet for long enough."""
        self._now_ns = max(self._now_ns, now_ns)
        told = self._mend()
        while self._quiet and self._quiet[0][0] <= now_ns:
            _, name = heapq.heappop(self._quiet)
            self._current(name, now_ns, told)
        return told

    def expired(self) -> list[str]:
        """Names of resolved incidents that are forgotten from now on, as of the last tick; what was
        stored of them can go."""
        return self._memory.expire(self._now_ns, self.settings.remembered_max)

    def restore(self, incident: Incident) -> None:
        """Take up an incident from its stored revision, unless a newer one is known.

        Raises:
            ValueError: it belongs to another zone.
        """
        if incident.zone != self.zone:
            raise ValueError(f"incident {incident.incident} is of zone {incident.zone}")
        known = self._live.get(incident.incident)
        if self._memory.is_resolved(incident.incident) or (
            known is not None and known.incident.revision >= incident.revision
        ):
            return
        if known is not None:
            self._live.drop(known)
        held = {key_of(symptom): symptom for symptom in incident.symptoms}
        active = {key for key, symptom in held.items() if symptom.cleared_ns is None}
        live = Live(incident, held, {}, active)
        if incident.merged_into is not None:
            self._unions.restored_end(incident)
            live.symptoms = {}
            self._remember(live)
            return
        live.episodes = {one.episode: (key, one.raised_ns) for key, one in held.items()}
        for episode, (key, raised_ns) in live.episodes.items():
            self._memory.own(episode, incident.incident)
            self._memory.set_floor(key, raised_ns)
        if incident.state is IncidentState.RESOLVED:
            self._remember(live)
            return
        self._unions.restored(live)
        for symptom in incident.symptoms:
            live.places |= explain.touched(symptom, self._inventory)
        live.diagnosis = explain.diagnose(incident.symptoms, self._inventory)
        self._live.add(live)
        self._await_quiet(live)

    def _again(self, live: Live, key: Key, signal: Signal) -> list[Incident]:
        """A signal of an episode, or at least of a symptom, that an incident holds."""
        symptom = live.symptoms.get(key)
        if symptom is None:
            return self._felt(live, signal)
        said = live.said.get(key)
        if symptom.episode == signal.episode:
            # Of two signals with one time and one amount of evidence, the one not yet heard is news.
            unheard = said is not None and signal.id not in said
            same_time = signal.at_ns == symptom.updated_ns and symptom.cleared_ns is None
            if not symptoms.newer(signal, symptom) and not (unheard and same_time):
                return self._felt(live, signal)
        # A symptom has one episode at a time, so an end of any after this one began ends this one.
        elif signal.phase is not Phase.CLEARED or not (
            key in live.active and signal.at_ns > symptom.raised_ns
        ):
            return self._felt(live, signal)
        live.symptoms[key] = symptoms.take_in(symptom, signal)
        same_time = live.symptoms[key].updated_ns == symptom.updated_ns
        live.said[key] = {signal.id, *(said or ())} if said and same_time else {signal.id}
        if signal.phase is Phase.CLEARED:
            live.active.discard(key)
        if signal.phase is Phase.CLEARED:
            return [self._revise(live, signal)]
        return self._settle(live, signal)

    def _open(self, key: Key, signal: Signal, verdict: explain.Verdict) -> list[Incident]:
        name = content_id("incident", self.zone, signal.episode)
        symptom = symptoms.new(signal, verdict.role)
        incident = Incident(
            id=content_id("revision", name, 0),
            zone=self.zone,
            at_ns=signal.at_ns,
            clock_error_ns=signal.clock_error_ns,
            incident=name,
            revision=1,
            state=IncidentState.OPEN,
            kind=signal.kind,
            subject=verdict.subject or signal.subject,
            severity=signal.severity,
            summary=signal.summary,
            confidence=verdict.confidence,
            opened_ns=signal.raised_ns,
            symptoms=[symptom],
        )
        # Its first revision has yet to be told.
        live = Live(incident.model_copy(update={"revision": 0}), {}, {}, set())
        self._live.add(live)
        self._hold(live, key, symptom, signal)
        return self._settle(live, signal)

    def _felt(self, live: Live, signal: Signal) -> list[Incident]:
        """A stall is measured when flows move again, which may be long after the traffic is back and
        its failover over; of one that is only counted it is told, too."""
        if stall_ns(signal) <= live.incident.stall_ns:
            return []
        return [self._revise(live, signal)]

    def _counted(self, live: Live, signal: Signal) -> list[Incident]:
        """A symptom was only counted. That is told each time the count has doubled, else with the
        next change: an incident with hundreds of symptoms is no small message."""
        if live.incident.symptoms_dropped.bit_count() == 1:
            return [self._revise(live, signal)]
        return self._felt(live, signal)

    def _join(self, live: Live, key: Key, signal: Signal, verdict: explain.Verdict | None) -> bool:
        """Take a new episode into an incident; without a verdict, of a symptom that it has. False: it
        was only counted."""
        before = live.symptoms.get(key)
        may_be_cause = verdict is not None and verdict.role == "cause"
        if (
            before is None
            and not may_be_cause
            and not has_room(live, signal, self._inventory, self.settings.symptoms_max)
        ):
            self._own(live, key, signal)
            live.incident = live.incident.model_copy(
                update={"symptoms_dropped": live.incident.symptoms_dropped + 1}
            )
            return False
        role: explain.Role = before.role if before is not None else "effect"
        if verdict is not None:
            live.incident = live.incident.model_copy(
                update={"confidence": min(live.incident.confidence, verdict.confidence)}
            )
            if may_be_cause:
                role = self._contest(live, signal)
        self._hold(live, key, symptoms.new(signal, role, before), signal)
        return True

    def _contest(self, live: Live, signal: Signal) -> explain.Role:
        """The role of a symptom that may be the cause; the weaker one is an effect from now on."""
        cause_key = next((k for k, one in live.symptoms.items() if one.role == "cause"), None)
        if cause_key is None:
            return "cause"
        cause = live.symptoms[cause_key]
        if explain.strength(symptoms.new(signal, "cause")) <= explain.strength(cause):
            return "effect"
        live.symptoms[cause_key] = symptoms.in_role(cause, "effect")
        return "cause"

    def _hold(self, live: Live, key: Key, symptom: Symptom, signal: Signal) -> None:
        self._live.hold(live, key, symptom, explain.touched(signal, self._inventory))
        live.said[key] = {signal.id}
        live.active.add(key)
        self._own(live, key, signal)

    def _own(self, live: Live, key: Key, signal: Signal) -> None:
        """Know an episode as this incident's. A link that flaps for days has them without end, so
        in time the oldest are known by when they began, as after a restart."""
        live.episodes[signal.episode] = (key, signal.raised_ns)
        self._memory.own(signal.episode, live.name)
        while len(live.episodes) > self.settings.symptoms_max + _EPISODES_REPLACED_MAX:
            oldest = next(iter(live.episodes))
            old_key, raised_ns = live.episodes.pop(oldest)
            symptom = live.symptoms.get(old_key)
            if symptom is not None and symptom.episode == oldest:
                live.episodes[oldest] = (old_key, raised_ns)
                continue
            self._memory.blur(oldest)
            if symptom is not None:
                self._memory.set_floor(old_key, raised_ns)

    def _settle(self, live: Live, signal: Signal, merges: Iterable[str] = ()) -> list[Incident]:
        """Revise an incident after it took a symptom in, and make those one that this shows to be.

        Each is told once, as it is in the end: were a revision on the way stored and no more, the
        signal would be known, and what ties the incident to others would not be looked at again.
        """
        told: list[Incident] = []
        live, ended = self._unions.unite(live, merges, signal.at_ns, signal.clock_error_ns)
        ends = ended
        for _ in range(_UNITE_ROUNDS_MAX):
            self._review(live, signal)
            known = self._known(signal.at_ns, told)
            same = explain.tied(live.incident, signal, known)
            live, ended = self._unions.unite(live, same, signal.at_ns, signal.clock_error_ns)
            if not ended:
                break
            ends = [*ends, *ended]
        else:
            self._review(live, signal)
        return [*told, self._tell(live), *self._forget_ended(ends)]

    def _mend(self) -> list[Incident]:
        """Do what a worker left half done that died while it made two incidents one."""
        told: list[Incident] = []
        for live, ended in self._unions.mend():
            told += [self._revise(live, None), *self._forget_ended(ended)]
        return told

    def _forget_ended(self, ended: list[Live]) -> list[Incident]:
        for one in ended:
            self._remember(one)
        # One that was never told of ends without a word.
        return [one.incident for one in ended if one.incident.revision > 1]

    def _revise(self, live: Live, signal: Signal | None) -> Incident:
        """The next revision, after a signal was taken in."""
        self._review(live, signal)
        return self._tell(live)

    def _review(self, live: Live, signal: Signal | None) -> None:
        """Bring an incident up to date with its symptoms; its number stays."""
        diagnosis = explain.diagnose(list(live.symptoms.values()), self._inventory)
        incident = revised(live, signal, diagnosis, self._inventory, self.settings.restart_min)
        self._live.revise(live, incident, diagnosis)

    def _tell(self, live: Live) -> Incident:
        number = live.incident.revision + 1
        live.incident = live.incident.model_copy(
            update={"id": content_id("revision", live.name, number), "revision": number}
        )
        self._await_quiet(live)
        return live.incident

    def _current(self, name: str | None, at_ns: int, told: list[Incident]) -> Live | None:
        """A live incident as of a time; where its quiet time was over by then, it is resolved first
        (and that revision added to ``told``)."""
        live = self._live.get(name)
        if live is None:
            return None
        before = live.incident
        resolved_ns = self._quiet_until_ns(live)
        if resolved_ns is None or resolved_ns > at_ns:
            return live
        incident = before.model_copy(
            update={
                "id": content_id("revision", before.incident, before.revision + 1),
                "revision": before.revision + 1,
                "at_ns": max(before.at_ns, resolved_ns),
                "state": IncidentState.RESOLVED,
                "resolved_ns": resolved_ns,
            }
        )
        self._live.drop(live)
        live.incident = incident
        self._remember(live)
        told.append(incident)
        return None

    def _quiet_until_ns(self, live: Live) -> int | None:
        """When it is over, None while anything of it lasts."""
        incident = live.incident
        if incident.state is not IncidentState.MITIGATED or live.active:
            return None
        quiet_s = self.settings.resolve_after_s_by_kind.get(
            incident.kind, self.settings.resolve_after_s
        )
        ended_ns = max((one.cleared_ns or 0 for one in live.symptoms.values()), default=0)
        return max(incident.mitigated_ns or 0, ended_ns) + int(quiet_s * _SECOND_NS)

    def _await_quiet(self, live: Live) -> None:
        until_ns = self._quiet_until_ns(live)
        if until_ns is not None:
            heapq.heappush(self._quiet, (until_ns, live.name))

    def _known(self, at_ns: int, told: list[Incident]) -> Known:
        return Known(self._live, self._inventory, partial(self._current, at_ns=at_ns, told=told))

    def _remember(self, live: Live) -> None:
        resolved_ns = live.incident.resolved_ns or live.incident.at_ns
        until_ns = resolved_ns + int(self.settings.remember_s * _SECOND_NS)
        self._memory.resolve(live.name, until_ns, live.episodes, live.symptoms)
