"""The ledger: the same whatever the order, bounded, and knowing what is left to do."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from remediators import ledger as ledger_module
from remediators.ledger import Ledger, Place, action_id, outcome_id
from schemas.action import CONTROL, Action, ActionMode, Outcome, OutcomeStatus
from schemas.identity import content_id
from tests.remediators.samples import SECOND_NS, T0_NS

FIRING, RESOLVED = Place("notify", "firing", "pager"), Place("notify", "resolved", "pager")


def name(number: int) -> str:
    return content_id("incident", number)


def action(
    number: int, place: Place = FIRING, rule: str = "", at_s: int = 0, dry_run: bool = False
) -> Action:
    parameters: dict[str, str | int | float | bool] = {"receiver": place.receiver}
    if place.purpose == "resolved":
        parameters["follows"] = "firing"
    return Action(
        id=action_id(name(number), place, rule),
        at_ns=T0_NS + at_s * SECOND_NS,
        clock_error_ns=0,
        incident=name(number),
        incident_revision=1,
        remedy=place.remedy,
        purpose=place.purpose,
        mode=ActionMode.OBSERVE if rule and not dry_run else ActionMode.ACT,
        dry_run=dry_run,
        target=CONTROL,
        subject=f"nic:node-{number}/eth1",
        parameters=parameters,
        reason=rule or "allowed",
    )


def outcome(of: Action, status: OutcomeStatus = OutcomeStatus.SUCCEEDED) -> Outcome:
    return Outcome(
        id=outcome_id(of.id),
        at_ns=of.at_ns,
        clock_error_ns=0,
        action=of.id,
        incident=of.incident,
        remedy=of.remedy,
        purpose=of.purpose,
        target=of.target,
        status=status,
        detail="",
        attempts=1,
        started_ns=of.at_ns,
    )


def test_an_action_is_pending_until_its_outcome() -> None:
    ledger = Ledger()
    ledger.add(action(1))
    assert [a.id for a in ledger.pending()] == [action(1).id]
    assert ledger.permitted(name(1), FIRING)
    assert ledger.status(name(1), FIRING) is None
    ledger.add(outcome(action(1), OutcomeStatus.FAILED))
    assert ledger.pending() == []
    assert ledger.status(name(1), FIRING) is OutcomeStatus.FAILED
    assert not ledger.closed(name(1))


def test_a_refused_action_is_never_pending_and_may_be_permitted_later() -> None:
    ledger = Ledger()
    refused = action(1, rule="silence")
    ledger.add(refused)
    assert not ledger.recorded(name(1), FIRING, refused.id)
    ledger.add(outcome(refused, OutcomeStatus.SKIPPED))
    assert ledger.recorded(name(1), FIRING, refused.id)
    assert ledger.pending() == []
    assert ledger.refusal(name(1), FIRING) == "silence"
    assert ledger.waiting() == {name(1)}
    ledger.add(action(1))
    assert len(ledger.pending()) == 1
    assert ledger.waiting() == set()


def test_an_incident_closes_only_when_each_receiver_that_began_has_ended() -> None:
    ledger = Ledger()
    others = [FIRING._replace(receiver="chat"), RESOLVED._replace(receiver="chat")]
    events = [action(1), action(1, others[0]), action(1, RESOLVED)]
    for event in events:
        ledger.add(event)
        ledger.add(outcome(event))
    assert not ledger.closed(name(1))
    ledger.add(action(1, others[1]))
    assert not ledger.closed(name(1))
    ledger.add(outcome(action(1, others[1])))
    assert ledger.closed(name(1))
    ledger.add(action(1))
    assert ledger.pending() == []


def test_memory_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(ledger_module, "_CLOSED_MAX", 10)
    monkeypatch.setattr(ledger_module, "_OPEN_MAX", 10)
    ledger = Ledger(remember_s=5)
    ledger.add(action(1000))
    for number in range(50):
        for event in (action(number, at_s=number), action(number, RESOLVED, at_s=number)):
            ledger.add(event)
            ledger.add(outcome(event))
    for number in range(100, 150):
        ledger.add(action(number))
        ledger.add(outcome(action(number)))
    assert [n for n in range(50) if ledger.closed(name(n))] == list(range(40, 50))
    assert len(ledger._open) == 10
    assert [a.incident for a in ledger.pending()] == [name(1000)], (
        "what is pending is never forgotten"
    )
    assert len(ledger._spent["notify", "pager"]) < 120


def _story(number: int, shape: str) -> tuple[list[Action], list[Outcome]]:
    """What one incident leaves on the two topics."""
    actions = {
        "plain": [action(number), action(number, RESOLVED)],
        "silenced": [action(number, rule="silence"), action(number, RESOLVED, "fate")],
        "late": [action(number, rule="silence"), action(number), action(number, RESOLVED)],
        "rehearsed": [action(number, rule="dry_run", dry_run=True)],
        "open": [action(number)],
    }[shape]
    return actions, [outcome(a) for a in actions]


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(["plain", "silenced", "late", "rehearsed", "open"]), max_size=8),
    st.randoms(use_true_random=False),
    st.floats(0, 1),
)
def test_the_fold_is_the_same_however_the_topics_interleave(
    shapes: list[str], rng: random.Random, known: float
) -> None:
    actions: list[Action | Outcome] = []
    outcomes: list[Action | Outcome] = []
    for number, shape in enumerate(shapes):
        acted, came = _story(number, shape)
        actions += acted
        outcomes += [one for one in came if rng.random() <= known]

    def fold(events: list[Action | Outcome]) -> tuple[object, ...]:
        ledger = Ledger(remember_s=60)
        for event in events:
            ledger.add(event)
        return (
            [a.id for a in ledger.pending()],
            ledger.waiting(),
            [ledger.closed(name(n)) for n in range(len(shapes))],
            [ledger.permitted(name(n), FIRING) for n in range(len(shapes))],
            [ledger.rehearsed(name(n), FIRING) for n in range(len(shapes))],
            sorted(ledger.spent("notify", "pager", 0)),
        )

    mixed: list[Action | Outcome] = []
    left = [list(actions), list(outcomes)]
    while any(left):
        source = rng.choice([part for part in left if part])
        mixed.append(source.pop(0))
    expected = fold(actions + outcomes)
    assert fold(mixed) == expected
    assert fold([event for event in mixed for _ in range(2)]) == expected
