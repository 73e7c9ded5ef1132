"""Policy: each rule by example, and what must hold for any course of events."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.settings import SettingsError, section
from remediators import policy
from remediators.base import Budget, RemedySettings, Silence, Step
from remediators.ledger import Ledger, action_id
from remediators.worker import _action
from schemas.action import ActionMode
from schemas.incident import Incident, IncidentState
from schemas.signal import Severity
from tests.remediators.samples import SECOND_NS, T0_NS, incident, resolved
from tests.remediators.test_ledger import outcome

T0 = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=T0_NS // SECOND_NS)


def ns(moment: datetime) -> int:
    return int(moment.timestamp()) * SECOND_NS


def steps(of: Incident) -> list[Step]:
    firing = Step("notify", "firing", of.subject, receiver="pager")
    if of.state is not IncidentState.RESOLVED:
        return [firing]
    return [firing, Step("notify", "resolved", of.subject, receiver="pager", follows="firing")]


def act(**more: Any) -> RemedySettings:
    return RemedySettings(mode=ActionMode.ACT, **more)


def course(
    ledger: Ledger, of: Incident, rules: RemedySettings, now_ns: int, done: bool = True
) -> list[tuple[str, policy.Verdict]]:
    """Decide about one revision as the worker does, and take the verdicts into the ledger."""
    decided = []
    for step in policy.undecided(steps(of), of, ledger, rules):
        verdict = policy.decide(step, of, ledger, rules, now_ns)
        name = action_id(of.incident, policy.place(step), verdict.rule)
        if not ledger.recorded(of.incident, policy.place(step), name):
            action = _action(name, step, of, verdict, now_ns, 0)
            ledger.add(action)
            if done or not verdict.do:
                ledger.add(outcome(action))
        decided.append((step.purpose, verdict))
    return decided


def test_one_firing_and_one_resolved_however_often_it_is_told() -> None:
    ledger = Ledger()
    revisions = [
        incident(revision=1),
        incident(revision=2, kind="link.flapping"),
        incident(revision=3, state=IncidentState.MITIGATED),
        incident(revision=4),
        resolved(revision=5),
        incident(revision=1),
        resolved(revision=5),
    ]
    told = [purpose for of in revisions for purpose, v in course(ledger, of, act(), T0_NS) if v.do]
    assert told == ["firing", "resolved"]


def test_the_first_that_is_seen_of_an_incident_may_be_its_end() -> None:
    told = course(Ledger(), resolved(), act(), T0_NS)
    assert [(purpose, v.do) for purpose, v in told] == [("firing", True), ("resolved", True)]


@pytest.mark.parametrize(
    ("rules", "mode", "rule"),
    [
        (RemedySettings(), ActionMode.OBSERVE, "observe"),
        (RemedySettings(mode=ActionMode.ASK), ActionMode.ASK, "ask"),
        (act(dry_run=True), ActionMode.ACT, "dry_run"),
        (act(budget=Budget(fleet=0)), ActionMode.OBSERVE, "budget"),
        (
            act(silences=[Silence(start=T0, end=T0 + timedelta(hours=1))]),
            ActionMode.OBSERVE,
            "silence",
        ),
    ],
)
def test_what_keeps_a_step_from_being_done(
    rules: RemedySettings, mode: ActionMode, rule: str
) -> None:
    ledger = Ledger(3600)
    [(_, verdict)] = course(ledger, incident(), rules, T0_NS)
    assert (verdict.mode, verdict.rule, verdict.do) == (mode, rule, False)
    assert verdict.reason
    told = course(ledger, resolved(), rules, T0_NS)
    assert [(purpose, v.do) for purpose, v in told] == [("resolved", False)]
    assert ledger.closed(incident().incident)


def test_the_end_of_a_silenced_incident_says_why_it_was_silent() -> None:
    ledger = Ledger()
    rules = act(silences=[Silence(start=T0, end=T0 + timedelta(hours=1), why="rail 2")])
    course(ledger, incident(), rules, T0_NS)
    [(_, verdict)] = course(ledger, resolved(), rules, T0_NS + 7200 * SECOND_NS)
    assert not verdict.do
    assert "silenced until" in verdict.reason and "rail 2" in verdict.reason


def test_a_silence_that_ends_over_an_open_incident_lets_the_firing_come() -> None:
    ledger = Ledger()
    rules = act(silences=[Silence(start=T0, end=T0 + timedelta(hours=1))])
    [(_, before)] = course(ledger, incident(), rules, T0_NS)
    assert before.passing
    assert ledger.waiting() == {incident().incident}
    cleared = incident(revision=2, state=IncidentState.MITIGATED)
    assert course(ledger, cleared, rules, T0_NS + 3600 * SECOND_NS) == [], (
        "not while it has cleared"
    )
    [(_, after)] = course(ledger, incident(revision=3), rules, T0_NS + 3600 * SECOND_NS)
    assert after.do
    assert [v.do for _, v in course(ledger, resolved(revision=4), rules, T0_NS)] == [True]


def test_a_notice_given_before_a_silence_is_ended_in_it() -> None:
    ledger = Ledger()
    rules = act(silences=[Silence(start=T0 + timedelta(hours=1), end=T0 + timedelta(hours=2))])
    course(ledger, incident(), rules, T0_NS)
    assert [v.do for _, v in course(ledger, resolved(), rules, T0_NS + 5400 * SECOND_NS)] == [True]


def test_a_dry_run_is_ended_dry_though_it_was_switched_off() -> None:
    ledger = Ledger()
    course(ledger, incident(), act(dry_run=True), T0_NS)
    told = course(ledger, resolved(), act(), T0_NS)
    assert [(purpose, v.dry_run) for purpose, v in told] == [("resolved", True)]


def test_scope() -> None:
    rules = act(kinds=["gpu.*"], severity_min=Severity.WARNING)
    ledger = Ledger()
    assert course(ledger, incident(), rules, T0_NS) == []
    assert course(ledger, resolved(), rules, T0_NS) == []
    assert course(ledger, incident(1, kind="gpu.xid", severity=Severity.INFO), rules, T0_NS) == []
    grown = incident(1, revision=2, kind="gpu.xid", severity=Severity.WARNING)
    assert [v.do for _, v in course(ledger, grown, rules, T0_NS)] == [True]
    # Whoever heard of the beginning hears of the end, though it is out of scope by now.
    ended = resolved(1, revision=3, kind="link.down", severity=Severity.INFO)
    assert [v.do for _, v in course(ledger, ended, rules, T0_NS)] == [True]


def test_cooldown_holds_for_the_same_subject_alone() -> None:
    ledger = Ledger(60)
    rules = act(cooldown_s=60)
    same = {"subject": "nic:node-0/eth1"}
    assert [v.do for _, v in course(ledger, incident(0), rules, T0_NS)] == [True]
    assert [v.do for _, v in course(ledger, resolved(0), rules, T0_NS)] == [True]
    soon, later = T0_NS + 59 * SECOND_NS, T0_NS + 60 * SECOND_NS
    assert [v.rule for _, v in course(ledger, incident(1, **same), rules, soon)] == ["cooldown"]
    assert [v.do for _, v in course(ledger, incident(2), rules, soon)] == [True]
    assert [v.do for _, v in course(ledger, incident(1, **same), rules, later)] == [True]


NIGHT = {"daily_from": "22:00", "daily_to": "06:00"}


@pytest.mark.parametrize(
    ("table", "moment", "silent"),
    [
        (NIGHT, "2026-03-02T23:00:00+00:00", True),
        (NIGHT, "2026-03-02T05:59:59+00:00", True),
        (NIGHT, "2026-03-02T06:00:00+00:00", False),
        (NIGHT | {"timezone": "Europe/Berlin"}, "2026-03-02T21:30:00+00:00", True),
        (NIGHT | {"timezone": "Europe/Berlin"}, "2026-03-02T05:30:00+00:00", False),
        # A night that began on Sunday is Sunday's, also on Monday morning (2026-03-02).
        (NIGHT | {"days": ["sun"]}, "2026-03-02T01:00:00+00:00", True),
        (NIGHT | {"days": ["mon"]}, "2026-03-02T01:00:00+00:00", False),
        (NIGHT | {"kinds": ["gpu.*"]}, "2026-03-02T23:00:00+00:00", False),
        (NIGHT | {"subjects": ["nic:node-0/*"]}, "2026-03-02T23:00:00+00:00", True),
        (
            {
                "start": "2026-03-02T10:00:00",
                "end": "2026-03-02T11:00:00",
                "timezone": "Asia/Tokyo",
            },
            "2026-03-02T01:30:00+00:00",
            True,
        ),
    ],
)
def test_silence_windows(table: dict[str, Any], moment: str, silent: bool) -> None:
    silence = section(Silence, table, "silence")
    at_ns = ns(datetime.fromisoformat(moment))
    assert policy.silenced(silence, "link.down", "nic:node-0/eth1", at_ns) is silent


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({}, "either start and end, or daily_from"),
        ({"start": "2026-01-01T00:00:00"}, "either start and end, or daily_from"),
        (NIGHT | {"start": "2026-01-01T00:00:00"}, "either start and end, or daily_from"),
        ({"start": "2026-01-01T00:00:00", "end": "2026-01-01T00:00:00"}, "not after its start"),
        ({"daily_from": "10:00", "daily_to": "10:00"}, "are the same"),
        (NIGHT | {"timezone": "Mars/Olympus"}, "Mars/Olympus"),
        (NIGHT | {"dayz": ["sun"]}, "did you mean days?"),
    ],
)
def test_a_silence_that_makes_no_sense_is_told(table: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=r"remedies\.notify") as told:
        section(Silence, table, "remedies.notify.silences.0")
    assert said in str(told.value)


events = st.lists(
    st.tuples(
        st.integers(0, 5),  # which incident
        st.sampled_from(["open", "mitigated", "resolved"]),
        st.integers(-40, 90),  # seconds since the last; a clock may step back
        st.booleans(),  # the action is done before the next event
    ),
    max_size=40,
)
SILENT = Silence(start=T0 + timedelta(seconds=100), end=T0 + timedelta(seconds=400))


@settings(max_examples=150)
@given(events, st.integers(0, 4), st.integers(0, 4), st.sampled_from([0, 60]), st.booleans())
def test_what_holds_for_any_course_of_events(
    course_of: list[tuple[int, str, int, bool]],
    fleet: int,
    subject: int,
    cooldown_s: int,
    dry_run: bool,
) -> None:
    rules = act(
        budget=Budget(fleet=fleet, subject=subject, period_s=200),
        cooldown_s=cooldown_s,
        silences=[SILENT],
        dry_run=dry_run,
    )
    ledger = Ledger(rules.looks_back_s())
    begun: list[tuple[int, str]] = []
    told: list[tuple[int, str]] = []
    now_ns = T0_NS
    for revision, (number, state, step_s, done) in enumerate(course_of, start=1):
        now_ns += step_s * SECOND_NS
        # Incidents share two subjects.
        on = f"nic:node-{number % 2}/eth1"
        of = incident(number, revision, state=IncidentState(state), subject=on)
        for purpose, verdict in course(ledger, of, rules, now_ns, done):
            if verdict.do:
                told.append((number, purpose))
            if purpose == "firing" and verdict.mode is ActionMode.ACT:
                assert not policy.silenced(SILENT, of.kind, of.subject, now_ns)
                begun.append((now_ns, on))
    assert not (dry_run and told)
    assert len(told) == len(set(told)), "each notice once"
    for number, purpose in told:
        if purpose == "resolved":
            assert told.index((number, "firing")) < told.index((number, purpose))
    for at_ns, on in begun:
        window = [(t, s) for t, s in begun if at_ns <= t < at_ns + 200 * SECOND_NS]
        assert len(window) <= fleet
        assert sum(s == on for _, s in window) <= subject
        if cooldown_s:
            near = [t for t, s in begun if s == on and at_ns <= t < at_ns + 60 * SECOND_NS]
            assert len(near) == 1
