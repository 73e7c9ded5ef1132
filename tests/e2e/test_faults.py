"""Real faults on this host become incidents, notices and rows: each once, whatever dies meanwhile."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest

from schemas.incident import IncidentState
from tests.conftest import eventually
from tests.e2e.conftest import NEAR, Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def test_fifty_cables_and_one_that_flaps(stack: Stack) -> None:
    names = [f"{NEAR}{number}" for number in range(51)]
    subjects = stack.cables(names)
    flapping = names.pop()
    began_ns = time.time_ns()
    for name in names:
        stack.far.set_down(name)
        time.sleep(0.15)
        stack.far.set_up(name)
    expected = {subjects[name] for name in names}
    eventually(lambda: stack.resolved(expected), 90, "50 incidents to resolve")
    found = stack.incidents()
    assert set(found) == expected
    for revisions in found.values():
        assert len({revision.incident for revision in revisions}) == 1
        assert [r.revision for r in revisions] == list(range(1, len(revisions) + 1))
        assert revisions[0].kind == "link.down"
        assert revisions[0].state is IncidentState.OPEN
    ids = {revisions[0].incident for revisions in found.values()}
    eventually(lambda: len(stack.receiver.got) >= 100, 60, "100 notices")
    assert stack.notices() == Counter(
        {(incident, status): 1 for incident in ids for status in ("firing", "resolved")}
    )
    eventually(
        lambda: stack.ask("SELECT count() FROM incidents WHERE state = 'resolved'") == [(50,)],
        60,
        "50 resolved rows",
    )
    rows = stack.ask(
        "SELECT subject, carrier, toUnixTimestamp64Nano(at) FROM link_transitions"
        f" WHERE at >= fromUnixTimestamp64Nano({began_ns}) ORDER BY at"
    )
    wanted = [(subjects[name], carrier) for name in names for carrier in (False, True)]
    assert [row[:2] for row in rows] == wanted

    began_ns = time.time_ns()
    subject = subjects[flapping]
    for _ in range(20):
        stack.far.set_down(flapping)
        time.sleep(0.25)
        stack.far.set_up(flapping)
        time.sleep(0.25)
    eventually(lambda: subject in stack.incidents(), 30, "the incident")
    time.sleep(2)
    revisions = stack.incidents()[subject]
    assert len({revision.incident for revision in revisions}) == 1
    incident = revisions[-1]
    assert incident.kind == "link.flapping"
    cause = next(s for s in incident.symptoms if s.kind == "link.flapping")
    assert cause.role == "cause"
    assert len(cause.evidence) + cause.evidence_dropped >= 40, cause
    assert all(piece.at_ns >= began_ns for piece in cause.evidence)
    notices = stack.notices()
    assert [count for (name, _), count in notices.items() if name == incident.incident] == [1]


@pytest.mark.parametrize("seed", [1])
def test_two_hundred_faults_while_everything_is_killed(stack: Stack, seed: int) -> None:
    """Kafka, the worker, the writer, the remediator and the agent die in turn, by kill -9."""
    chance = random.Random(seed)
    names = [f"{NEAR}{number}" for number in range(200)]
    subjects = stack.cables(names)
    victims = ["kafka", "stream", "history", "remediate", "agent"] * 2
    kills_of_remediate = victims.count("remediate")
    due = {(index + 1) * 200 // (len(victims) + 1): victim for index, victim in enumerate(victims)}
    for index, name in enumerate(names):
        if index in due:
            stack.kill(due[index])
        stack.far.set_down(name)
        time.sleep(chance.uniform(0.02, 0.4))
        stack.far.set_up(name)
        time.sleep(chance.uniform(0, 0.1))
    expected = set(subjects.values())
    eventually(lambda: stack.resolved(expected), 240, "200 incidents to resolve")
    found = stack.incidents()
    assert set(found) == expected
    doubled = {
        subject: [(r.incident[:8], r.revision, r.state) for r in revisions]
        for subject, revisions in found.items()
        if len({revision.incident for revision in revisions}) != 1
    }
    assert not doubled
    for revisions in found.values():
        # A revision may be on the topic twice after a kill, but then it is the same to the letter.
        assert len({r.id: r for r in revisions}) == len(
            {(r.incident, r.revision) for r in revisions}
        )
    ids = {revisions[0].incident for revisions in found.values()}
    wanted = {(incident, status) for incident in ids for status in ("firing", "resolved")}
    eventually(lambda: set(stack.notices()) == wanted, 120, "all notices")
    assert len(stack.by_key()) == len(wanted)
    again = sum(len(got) - 1 for got in stack.by_key().values())
    assert again <= kills_of_remediate, "at most the one in flight at a kill"
    eventually(
        lambda: stack.ask("SELECT count() FROM incidents WHERE state = 'resolved'") == [(200,)],
        120,
        "200 resolved rows",
    )
    assert (
        stack.ask("SELECT count(), uniqExact(incident, revision) FROM incident_revisions FINAL")[0]
        == (len({(r.incident, r.revision) for rs in found.values() for r in rs}),) * 2
    )
