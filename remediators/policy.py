"""Whether a remedy may do a step now, and why: pure functions of step, incident, ledger, settings, time.

Each rule is one small function that answers with a refusal in words, or nothing. The rules of a step
that begins something: mode, silence, cool-down, budget. A step that ends something (``follows``)
shares the fate of its beginning and asks for the mode alone: a notice that something is over comes
also in a silence, if the notice that it began was given before it, and never without it.

A refusal by silence, cool-down or budget passes: while the incident is open, the step is decided anew
at every revision and every second, so the firing comes when a silence ends over an incident that is
still open. Once its symptoms have cleared, a refusal stands, and nothing comes at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from zoneinfo import ZoneInfo

from remediators.base import RemedySettings, Silence, Step
from remediators.ledger import Ledger, Place
from schemas.action import ActionMode
from schemas.incident import Incident, IncidentState
from schemas.signal import Severity

_SEVERITIES = list(Severity)
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What policy says about a step."""

    mode: ActionMode
    dry_run: bool
    rule: str
    """The rule that kept it from being done; empty where it is done."""
    reason: str
    passing: bool = False
    """The refusal ends by itself: ask again while the incident is open."""

    @property
    def do(self) -> bool:
        """Execute it."""
        return self.mode is ActionMode.ACT and not self.dry_run


@dataclass(frozen=True, slots=True)
class _Case:
    """All that a rule may look at."""

    step: Step
    incident: Incident
    ledger: Ledger
    settings: RemedySettings
    now_ns: int


def place(step: Step) -> Place:
    """The step's place in the ledger."""
    return Place(step.remedy, step.purpose, step.receiver)


def beginning(step: Step) -> Place:
    """The place of the step that ``step`` ends."""
    return Place(step.remedy, step.follows, step.receiver)


def in_scope(
    incident: Incident, kinds: Iterable[str] = ("*",), severity_min: Severity = Severity.INFO
) -> bool:
    """The incident is of one of these kinds (patterns) and at least this severe."""
    severe = _SEVERITIES.index(incident.severity) >= _SEVERITIES.index(severity_min)
    return severe and any(fnmatchcase(incident.kind, pattern) for pattern in kinds)


def undecided(
    steps: Iterable[Step], incident: Incident, ledger: Ledger, settings: RemedySettings
) -> list[Step]:
    """Of the steps that a remedy proposes, those to decide about now; beginnings come first.

    Left out are those already permitted or, in a dry run, rehearsed, beginnings outside the remedy's scope, beginnings that
    were refused while the incident was open and now come too late, and ends of what never began.
    """
    name = incident.incident
    if ledger.closed(name):
        return []
    fresh = [
        step
        for step in steps
        if not ledger.permitted(name, place(step))
        and not (settings.dry_run and ledger.rehearsed(name, place(step)))
    ]
    lasts = incident.state in (IncidentState.OPEN, IncidentState.MITIGATING)
    begins = [
        step
        for step in fresh
        if not step.follows
        and in_scope(incident, settings.kinds, settings.severity_min)
        and (lasts or ledger.refusal(name, place(step)) is None)
    ]
    begun = {place(step) for step in begins}
    ends = [
        step
        for step in fresh
        if step.follows
        and (
            beginning(step) in begun
            or ledger.permitted(name, beginning(step))
            or ledger.refusal(name, beginning(step)) is not None
        )
    ]
    return begins + ends


def decide(
    step: Step, incident: Incident, ledger: Ledger, settings: RemedySettings, now_ns: int
) -> Verdict:
    """Whether the step may be done at ``now_ns``, how far, and why."""
    case = _Case(step, incident, ledger, settings, now_ns)
    for rule in _RULES_END if step.follows else _RULES_BEGINNING:
        refused = rule(case)
        if refused is not None:
            return refused
    return Verdict(
        ActionMode.ACT, False, "", "mode is act, and no silence, cool-down or budget forbids"
    )


def silenced(silence: Silence, kind: str, subject: str, now_ns: int) -> bool:
    """A silence holds at ``now_ns`` for incidents of this kind on this subject."""
    if not any(fnmatchcase(kind, pattern) for pattern in silence.kinds):
        return False
    if not any(fnmatchcase(subject, pattern) for pattern in silence.subjects):
        return False
    # Whole microseconds by integers: a float of seconds would be off by some hundred nanoseconds.
    now = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=now_ns // 1000)
    if silence.start is not None:
        return silence.at(silence.start) <= now < silence.at(silence.end)
    assert silence.daily_from is not None and silence.daily_to is not None
    local = now.astimezone(ZoneInfo(silence.timezone))
    clock, weekday = local.time(), local.weekday()
    if silence.daily_from < silence.daily_to:
        inside = silence.daily_from <= clock < silence.daily_to
    elif clock < silence.daily_to:
        inside, weekday = True, (weekday - 1) % 7  # it began yesterday
    else:
        inside = clock >= silence.daily_from
    return inside and (not silence.days or _WEEKDAYS[weekday] in silence.days)


def _mode(case: _Case) -> Verdict | None:
    name = case.step.remedy
    if case.settings.mode is ActionMode.OBSERVE:
        return Verdict(ActionMode.OBSERVE, False, "observe", f"remedies.{name}.mode is observe")
    if case.settings.mode is ActionMode.ASK:
        return Verdict(
            ActionMode.ASK, False, "ask", f"remedies.{name}.mode is ask: a person decides"
        )
    return None


def _silence(case: _Case) -> Verdict | None:
    for silence in case.settings.silences:
        if silenced(silence, case.incident.kind, case.incident.subject, case.now_ns):
            if silence.start is not None:
                until = f"until {silence.at(silence.end).isoformat()}"
            else:
                until = f"daily {silence.daily_from}-{silence.daily_to} {silence.timezone}"
            why = f" ({silence.why})" if silence.why else ""
            return _refused("silence", f"silenced {until}{why}")
    return None


def _cooldown(case: _Case) -> Verdict | None:
    cooldown_s = case.settings.cooldown_s
    since_ns = case.now_ns - int(cooldown_s * 1e9)
    step = case.step
    if cooldown_s and case.ledger.spent(step.remedy, step.receiver, since_ns, step.subject):
        return _refused("cooldown", f"less than {cooldown_s:g} s after the last on {step.subject}")
    return None


def _budget(case: _Case) -> Verdict | None:
    budget, step = case.settings.budget, case.step
    since_ns = case.now_ns - int(budget.period_s * 1e9)
    for scope, bound, subject in (
        ("the fleet", budget.fleet, None),
        (step.subject, budget.subject, step.subject),
    ):
        if bound is None:
            continue
        if len(case.ledger.spent(step.remedy, step.receiver, since_ns, subject)) >= bound:
            return _refused(
                "budget", f"the budget of {bound} in {budget.period_s:g} s for {scope} is spent"
            )
    return None


def _dry_run(case: _Case) -> Verdict | None:
    if case.settings.dry_run:
        return Verdict(
            ActionMode.ACT, True, "dry_run", f"remedies.{case.step.remedy}.dry_run is set"
        )
    return None


def _fate(case: _Case) -> Verdict | None:
    """An end goes with its beginning."""
    name, begun = case.incident.incident, beginning(case.step)
    if case.ledger.permitted(name, begun):
        return None
    if case.ledger.rehearsed(name, begun):
        return Verdict(ActionMode.ACT, True, "dry_run", f"its {begun.purpose} was a dry run")
    reason = case.ledger.refusal(name, begun) or "it was never decided"
    return Verdict(
        ActionMode.OBSERVE, False, "fate", f"its {begun.purpose} was not done: {reason}"[:1024]
    )


def _refused(rule: str, reason: str) -> Verdict:
    return Verdict(ActionMode.OBSERVE, False, rule, reason[:1024], passing=True)


_Rule = Callable[[_Case], Verdict | None]
_RULES_BEGINNING: tuple[_Rule, ...] = (_mode, _silence, _cooldown, _budget, _dry_run)
_RULES_END: tuple[_Rule, ...] = (_fate, _mode, _dry_run)
