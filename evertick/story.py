"""The story of an incident: what was seen, understood and done, in the order of cause and effect.

It is put together from what the topics hold: the incident's revisions, the signals of its symptoms,
the actions and their outcomes. Where signals are no longer kept, the symptoms inside the revisions
stand in for them.

Lines are ordered by time, except that an effect never stands before its cause: clocks of two hosts
may disagree by less than their error bound, and a story whose outcome comes before its action helps
nobody. The time shown is always the one that was stated.

A fault of the network is told by many at once. Symptoms of one kind that came together are one line,
and of revisions that followed one another at once, the last is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from evertick import wording
from schemas.action import Action, ActionMode, Outcome
from schemas.incident import Incident, IncidentState, Symptom
from schemas.signal import Evidence, Phase, Signal

_TOGETHER_NS = 1_000_000_000
_AT_ONCE_NS = 250_000_000
_TOGETHER_MIN = 4
_MANY = ("path.", "link.")
"""Kinds that come in crowds."""


class What(IntEnum):
    """What a line tells of; of one moment, the smaller comes first."""

    EVIDENCE = 0
    SYMPTOM = 1
    INCIDENT = 2
    ACTION = 3
    OUTCOME = 4


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the story."""

    at_ns: int
    """When, as stated by who saw it."""
    offset_ns: int
    """Behind the incident's beginning; negative for what was seen before."""
    what: What
    text: str
    subject: str = ""
    severity: str = ""
    id: str = ""
    """Of the message that tells it; empty for evidence."""


@dataclass(slots=True)
class _Draft:
    at_ns: int
    what: What
    text: str
    subject: str = ""
    severity: str = ""
    id: str = ""
    after: list[_Draft] = field(default_factory=list)
    """Lines that must stand before this one."""
    place_ns: int | None = None

    def place(self) -> int:
        """The time by which it is ordered: its own, or that of its causes where they are later."""
        if self.place_ns is None:
            self.place_ns = max(self.at_ns, *(cause.place() for cause in self.after), 0)
        return self.place_ns


def story(
    revisions: Iterable[Incident],
    signals: Iterable[Signal] = (),
    actions: Iterable[Action] = (),
    outcomes: Iterable[Outcome] = (),
) -> list[Line]:
    """Tell an incident.

    Args:
        revisions: messages of one incident, in any order, doubles allowed.
        signals, actions, outcomes: those of the incident; others among them are passed over.

    Returns:
        The lines in order; empty without a revision.
    """
    told = sorted({r.revision: r for r in revisions}.values(), key=lambda r: r.revision)
    if not told:
        return []
    incident, start_ns = told[-1].incident, told[-1].opened_ns
    ours = {s.id: s for s in signals if belongs(s, told)}
    drafts = _seen(list(ours.values()), told)
    of_revision = _understood(told)
    drafts += of_revision.values()
    of_action: dict[str, _Draft] = {}
    done_about_it = {a.id: a for a in actions if a.incident == incident}
    for action in done_about_it.values():
        cause = of_revision.get(action.incident_revision)
        of_action[action.id] = _of_action(action, [cause] if cause else [])
    drafts += of_action.values()
    for outcome in {o.id: o for o in outcomes if o.incident == incident}.values():
        done = of_action.get(outcome.action)
        action_of = done_about_it.get(outcome.action)
        drafts.append(_of_outcome(outcome, action_of, [done] if done else []))
    # Stable: of one place and kind, causes were put in before their effects.
    drafts.sort(key=lambda d: (d.place(), d.what))
    return [
        Line(d.at_ns, d.at_ns - start_ns, d.what, d.text, d.subject, d.severity, d.id)
        for d in drafts
        if d.text
    ]


def belongs(signal: Signal, revisions: Sequence[Incident]) -> bool:
    """Whether a signal is of a symptom of this incident: of an episode that a revision names, or of
    the same kind and subject in its time."""
    last = revisions[-1]
    end_ns = last.resolved_ns if last.resolved_ns is not None else 1 << 63
    for revision in revisions:
        for symptom in revision.symptoms:
            if symptom.episode == signal.episode:
                return True
            if (symptom.kind, symptom.subject) == (signal.kind, signal.subject) and (
                last.opened_ns <= signal.raised_ns <= end_ns
            ):
                return True
    return False


def _seen(signals: list[Signal], revisions: list[Incident]) -> list[_Draft]:
    """Symptoms with their evidence, each piece of evidence once."""
    drafts: list[_Draft] = []
    evidence: dict[tuple[str, int, str], _Draft] = {}

    def observe(subject: str, seen: Iterable[Evidence]) -> None:
        for one in seen:
            evidence.setdefault(
                (subject, one.at_ns, one.what),
                _Draft(one.at_ns, What.EVIDENCE, _of_evidence(one), subject),
            )

    raised: dict[str, _Draft] = {}
    phases = list(Phase)
    crowds = _crowds(signals)
    told_of: dict[str, _Draft] = {}
    for signal in sorted(signals, key=lambda s: (phases.index(s.phase), s.at_ns)):
        crowd = crowds.get(signal.id)
        if crowd is not None:
            if crowd[0].id not in told_of:
                told_of[crowd[0].id] = _of_crowd(crowd)
                drafts.append(told_of[crowd[0].id])
            draft = told_of[crowd[0].id]
            if signal.phase is Phase.RAISED:
                raised.setdefault(signal.episode, draft)
            elif (begun := raised.get(signal.episode)) is not None and begun not in draft.after:
                draft.after.append(begun)
            continue
        observe(signal.subject, signal.evidence)
        text = f"{signal.kind} {signal.phase}"
        if signal.phase is not Phase.CLEARED:
            text += f": {signal.summary}"
        before = raised.get(signal.episode)
        draft = _Draft(
            signal.at_ns,
            What.SYMPTOM,
            text,
            signal.subject,
            signal.severity,
            signal.id,
            [before] if before and signal.phase is not Phase.RAISED else [],
        )
        if signal.phase is Phase.RAISED:
            raised.setdefault(signal.episode, draft)
        drafts.append(draft)
    known = {signal.episode for signal in signals}
    newest = {s.episode: s for r in revisions for s in r.symptoms if s.episode not in known}
    for symptom in newest.values():
        observe(symptom.subject, symptom.evidence)
        drafts += _of_symptom(symptom)
    return [*evidence.values(), *drafts]


def _crowds(signals: list[Signal]) -> dict[str, list[Signal]]:
    """Signals of one kind and phase that came together on many subjects, by the id of each."""
    found: dict[str, list[Signal]] = {}
    alike: dict[tuple[str, Phase], list[Signal]] = {}
    for signal in sorted(signals, key=lambda s: (s.at_ns, s.id)):
        if not signal.kind.startswith(_MANY):
            continue
        crowd = alike.setdefault((signal.kind, signal.phase), [])
        if crowd and signal.at_ns - crowd[0].at_ns > _TOGETHER_NS:
            crowd = alike[signal.kind, signal.phase] = []
        crowd.append(signal)
        found[signal.id] = crowd
    return {
        name: crowd
        for name, crowd in found.items()
        if len({signal.subject for signal in crowd}) >= _TOGETHER_MIN
    }


def _of_crowd(crowd: list[Signal]) -> _Draft:
    """A crowd in one line: how many, how long it took them, and what the first says."""
    first, last = crowd[0], crowd[-1]
    subjects = {signal.subject for signal in crowd}
    within = wording.span(last.at_ns - first.at_ns)
    stalls = [one for signal in crowd if isinstance(one := signal.attributes.get("stall_ns"), int)]
    stalled = f", flows stood still for up to {wording.span(max(stalls))}" if any(stalls) else ""
    text = f"{first.kind} {first.phase} on {len(subjects)} within {within}{stalled}"
    text += f"; the first: {first.summary}"
    return _Draft(first.at_ns, What.SYMPTOM, text, first.subject, first.severity, first.id)


def _understood(revisions: list[Incident]) -> dict[int, _Draft]:
    """The revisions, each with what it changed; one that changed nothing worth a line, or that was
    followed at once by the next, has no text and only holds its place."""
    drafts: dict[int, _Draft] = {}
    before: Incident | None = None
    told: Incident | None = None
    for index, revision in enumerate(revisions):
        passing = index + 1 < len(revisions) and _passes(told, revision, revisions[index + 1])
        drafts[revision.revision] = _Draft(
            revision.at_ns,
            What.INCIDENT,
            "" if passing else "; ".join(_changes(told, revision)),
            revision.subject,
            revision.severity,
            revision.id,
            [drafts[before.revision]] if before else [],
        )
        before = revision
        if not passing:
            told = revision
    return drafts


def _passes(told: Incident | None, now: Incident, following: Incident) -> bool:
    """Only a guess on the way: the next revision came at once, by one more symptom, and where it
    stands is unchanged."""
    return (
        told is not None
        and len(following.symptoms) > len(now.symptoms)
        and following.at_ns - now.at_ns <= _AT_ONCE_NS
        and (told.state, told.reopened) == (now.state, now.reopened)
    )


def _changes(before: Incident | None, now: Incident) -> list[str]:
    if before is None:
        beginning = "opened" if now.revision == 1 else f"known from revision {now.revision}"
        told = [f"{beginning}: {now.kind}, {now.summary}"]
        if now.state is not IncidentState.OPEN:
            told.append(str(now.state))
    else:
        told = []
        if now.reopened > before.reopened:
            told.append("reopened")
        elif now.state is not before.state:
            told.append(_of_state(now))
        if (now.kind, now.subject) != (before.kind, before.subject):
            told.append(f"refined: {before.kind} is {now.kind}, {now.summary}")
        elif now.summary != before.summary:
            told.append(f"now: {now.summary}")
        if now.severity is not before.severity:
            told.append(f"severity {before.severity} is {now.severity}")
    told += _new_victims(before, now)
    advice = now.recommendation
    if advice is not None and (before is None or advice != before.recommendation):
        told.append(f"recommended: {wording.recommended(advice)}")
    return told


def _of_state(now: Incident) -> str:
    if now.merged_into is not None:
        return f"has one cause with incident {wording.short(now.merged_into)} and goes on in it"
    if now.state is not IncidentState.RESOLVED:
        return f"{now.state}{_helped(now)}"
    end_ns = now.resolved_ns if now.resolved_ns is not None else now.at_ns
    told = f"resolved after {wording.span(max(0, end_ns - now.opened_ns))}"
    if now.cost_gpu_s:
        told += f", cost {wording.gpu_time(now.cost_gpu_s)}"
    if now.failovers:
        told += f", {_bridged(now)}"
    return told


def _helped(now: Incident) -> str:
    """What holds the trouble off while it lasts."""
    lasts = any(one.cleared_ns is None and one.severity != "info" for one in now.symptoms)
    if now.state is IncidentState.OPEN or now.failovers <= now.failbacks or not lasts:
        return ""
    where = "in part on other paths" if now.state is IncidentState.MITIGATING else "on other paths"
    return f": the traffic is {where} ({wording.times(now.failovers, 'failover')})"


def _bridged(now: Incident) -> str:
    told = wording.times(now.failovers, "failover")
    if now.stall_ns:
        told += f", flows stood still for {wording.span(now.stall_ns)} at most"
    if now.restart_cost_gpu_s:
        told += f", a restart would have cost {wording.gpu_time(now.restart_cost_gpu_s)}"
    return told


def _new_victims(before: Incident | None, now: Incident) -> list[str]:
    told = []
    for kind in ("jobs", "ranks", "gpus", "nics", "nodes"):
        known = set(getattr(before.victims, kind)) if before else set()
        new = [subject for subject in getattr(now.victims, kind) if subject not in known]
        if new:
            more = f" and {len(new) - 8} more" if len(new) > 8 else ""
            told.append(f"hurts {kind} {', '.join(new[:8])}{more}")
    return told


def _of_evidence(evidence: Evidence) -> str:
    if evidence.value is None:
        return evidence.what
    return f"{evidence.what}: {evidence.value:g}{f' {evidence.unit}' if evidence.unit else ''}"


def _of_symptom(symptom: Symptom) -> list[_Draft]:
    def draft(at_ns: int, text: str, after: list[_Draft]) -> _Draft:
        return _Draft(
            at_ns, What.SYMPTOM, text, symptom.subject, symptom.severity, symptom.episode, after
        )

    raised = draft(symptom.raised_ns, f"{symptom.kind} raised: {symptom.summary}", [])
    if symptom.cleared_ns is None:
        return [raised]
    return [raised, draft(symptom.cleared_ns, f"{symptom.kind} cleared", [raised])]


def _of_action(action: Action, after: list[_Draft]) -> _Draft:
    text = f"{_step(action)} on {action.target}"
    if action.dry_run or action.mode is not ActionMode.ACT:
        # That nothing forbade it is no news; what kept it from being done is.
        text += f", {'dry run' if action.dry_run else action.mode}: {action.reason}"
    return _Draft(action.at_ns, What.ACTION, text, action.subject, "", action.id, after)


def _step(action: Action) -> str:
    receiver = action.parameters.get("receiver")
    return f"{action.remedy} ({action.purpose})" + (f" to {receiver}" if receiver else "")


def _of_outcome(outcome: Outcome, of: Action | None, after: list[_Draft]) -> _Draft:
    step = _step(of) if of is not None else f"{outcome.remedy} ({outcome.purpose})"
    tries = "" if outcome.attempts == 1 else f" after {outcome.attempts} attempts"
    text = f"{step} {outcome.status}{tries}: {outcome.detail}"
    return _Draft(outcome.at_ns, What.OUTCOME, text, "", "", outcome.id, after)
