"""The story of an incident: complete, in time order, no effect before its cause."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from evertick.story import Line, What, story
from schemas.action import Action, ActionMode, Outcome, OutcomeStatus
from schemas.identity import content_id
from schemas.incident import Incident, IncidentState, Recommendation, Symptom, Victims
from schemas.signal import Evidence, Phase, Severity, Signal

S = 1_000_000_000
T = 1_700_000_000 * S
NIC = "nic:node-3/eth1"
INCIDENT = content_id("incident")
EPISODE = content_id("episode")
OTHER = content_id("another incident")


def signal(phase: Phase, at_ns: int, episode: str = EPISODE, **fields: Any) -> Signal:
    return Signal(
        **{
            "id": content_id(episode, phase, at_ns),
            "at_ns": at_ns,
            "clock_error_ns": 0,
            "episode": episode,
            "kind": "link.down",
            "subject": NIC,
            "phase": phase,
            "raised_ns": T,
            "detector": "link_down",
            "detector_version": 1,
            "severity": Severity.CRITICAL,
            "summary": "eth1 has no carrier",
            **fields,
        }
    )


def symptom(**fields: Any) -> Symptom:
    return Symptom(
        **{
            "episode": EPISODE,
            "kind": "link.down",
            "subject": NIC,
            "role": "cause",
            "severity": Severity.CRITICAL,
            "summary": "eth1 has no carrier",
            "raised_ns": T,
            "updated_ns": T,
            "detector": "link_down",
            "detector_version": 1,
            **fields,
        }
    )


def revision(number: int, at_ns: int, state: IncidentState, **fields: Any) -> Incident:
    return Incident(
        **{
            "id": content_id("revision", number),
            "at_ns": at_ns,
            "clock_error_ns": 0,
            "incident": INCIDENT,
            "revision": number,
            "state": state,
            "kind": "link.down",
            "subject": NIC,
            "severity": Severity.CRITICAL,
            "summary": "eth1 of node-3 has no carrier",
            "confidence": 0.9,
            "opened_ns": T,
            "symptoms": [symptom()],
            **fields,
        }
    )


def action(number: int, at_ns: int, of_revision: int, **fields: Any) -> Action:
    return Action(
        **{
            "id": content_id("action", number),
            "at_ns": at_ns,
            "clock_error_ns": 0,
            "incident": INCIDENT,
            "incident_revision": of_revision,
            "remedy": "notify",
            "purpose": "firing",
            "mode": ActionMode.ACT,
            "dry_run": False,
            "target": "control",
            "subject": NIC,
            "reason": "policy says act",
            **fields,
        }
    )


def outcome(of: Action, at_ns: int, **fields: Any) -> Outcome:
    return Outcome(
        **{
            "id": content_id("outcome", of.id),
            "at_ns": at_ns,
            "clock_error_ns": 0,
            "action": of.id,
            "incident": of.incident,
            "remedy": "notify",
            "purpose": "firing",
            "target": "control",
            "status": OutcomeStatus.SUCCEEDED,
            "detail": "HTTP 200",
            "attempts": 1,
            "started_ns": at_ns,
            **fields,
        }
    )


def told(lines: list[Line]) -> list[tuple[str, float, str]]:
    return [(line.what.name.lower(), line.offset_ns / S, line.text) for line in lines]


def test_the_whole_of_an_incident_is_told_in_order() -> None:
    fired = action(1, T + 2 * S, 1)
    lines = story(
        [
            revision(
                4,
                T + 40 * S,
                IncidentState.RESOLVED,
                kind="link.flapping",
                mitigated_ns=T + 30 * S,
                resolved_ns=T + 40 * S,
                cost_gpu_s=320.0,
                victims=Victims(jobs=["job:llm"]),
                recommendation=Recommendation(remedy="notify", advice="check the cable"),
            ),
            revision(1, T + S, IncidentState.OPEN),
            revision(
                2,
                T + 10 * S,
                IncidentState.OPEN,
                kind="link.flapping",
                summary="eth1 flaps",
                victims=Victims(jobs=["job:llm"]),
                recommendation=Recommendation(remedy="notify", advice="check the cable"),
            ),
            revision(
                3,
                T + 30 * S,
                IncidentState.MITIGATED,
                kind="link.flapping",
                summary="eth1 flaps",
                victims=Victims(jobs=["job:llm"]),
                recommendation=Recommendation(remedy="notify", advice="check the cable"),
            ),
        ],
        [
            signal(Phase.CLEARED, T + 29 * S),
            signal(
                Phase.RAISED,
                T + S // 2,
                evidence=[
                    Evidence(at_ns=T + 12_000_000, what="carrier lost"),
                    Evidence(at_ns=T + 13_000_000, what="losses", value=3.0, unit="in 10 s"),
                ],
            ),
        ],
        [fired, action(2, T + S, 1, incident=OTHER)],
        [outcome(fired, T + 3 * S, attempts=2)],
    )
    assert told(lines) == [
        ("evidence", 0.012, "carrier lost"),
        ("evidence", 0.013, "losses: 3 in 10 s"),
        ("symptom", 0.5, "link.down raised: eth1 has no carrier"),
        ("incident", 1.0, "opened: link.down, eth1 of node-3 has no carrier"),
        ("action", 2.0, "notify (firing) on control"),
        ("outcome", 3.0, "notify (firing) succeeded after 2 attempts: HTTP 200"),
        (
            "incident",
            10.0,
            "refined: link.down is link.flapping, eth1 flaps; hurts jobs job:llm; "
            "recommended: notify: check the cable",
        ),
        ("symptom", 29.0, "link.down cleared"),
        ("incident", 30.0, "mitigated"),
        (
            "incident",
            40.0,
            "resolved after 40 s, cost 320 GPU-seconds; now: eth1 of node-3 has no carrier",
        ),
    ]


def test_a_reopened_incident_says_so() -> None:
    lines = story(
        [
            revision(1, T, IncidentState.OPEN),
            revision(2, T + S, IncidentState.MITIGATED),
            revision(3, T + 2 * S, IncidentState.OPEN, reopened=1),
        ]
    )
    assert [line.text for line in lines if line.what is What.INCIDENT][1:] == [
        "mitigated",
        "reopened",
    ]


def test_symptoms_in_the_revisions_stand_in_for_signals_that_are_gone() -> None:
    evidence = [Evidence(at_ns=T, what="carrier lost")]
    lines = story(
        [
            revision(
                1,
                T + S,
                IncidentState.OPEN,
                symptoms=[symptom(cleared_ns=T + 2 * S, evidence=evidence)],
            )
        ]
    )
    assert [line.text for line in lines] == [
        "carrier lost",
        "link.down raised: eth1 has no carrier",
        "opened: link.down, eth1 of node-3 has no carrier",
        "link.down cleared",
    ]


def test_earlier_episodes_of_the_same_symptom_belong_to_it_and_others_do_not() -> None:
    earlier = content_id("earlier episode")
    lines = story(
        [revision(1, T, IncidentState.OPEN)],
        [
            signal(Phase.RAISED, T + S, earlier),
            signal(Phase.RAISED, T + S, content_id("x"), subject="nic:node-4/eth1"),
            signal(Phase.RAISED, T - 9 * S, content_id("y"), raised_ns=T - 9 * S),
        ],
    )
    assert [line.offset_ns for line in lines if line.id and line.what is What.SYMPTOM] == [0, S]


def test_a_message_that_was_read_twice_is_told_once() -> None:
    once = [signal(Phase.RAISED, T, evidence=[Evidence(at_ns=T, what="carrier lost")])]
    again = [signal(Phase.UPDATED, T + S, evidence=[Evidence(at_ns=T, what="carrier lost")])]
    opened = [revision(1, T, IncidentState.OPEN)]
    fired = [action(1, T, 1)]
    done = [outcome(fired[0], T)]
    lines = story(opened * 2, (once + again) * 2, fired * 2, done * 2)
    assert [line.what for line in lines] == [
        What.EVIDENCE,
        What.SYMPTOM,
        What.INCIDENT,
        What.ACTION,
        What.OUTCOME,
        What.SYMPTOM,
    ]


def test_nothing_is_told_of_no_incident() -> None:
    assert story([], [signal(Phase.RAISED, T)]) == []


_SKEW = st.integers(-20 * S, 20 * S)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_no_effect_stands_before_its_cause_however_far_the_clocks_are_off(
    data: st.DataObject,
) -> None:
    count = data.draw(st.integers(1, 5))
    states = st.sampled_from(list(IncidentState))
    revisions = [
        revision(n, T + data.draw(_SKEW), data.draw(states), summary=f"summary {n}")
        for n in range(1, count + 1)
    ]
    actions = [
        action(n, T + data.draw(_SKEW), data.draw(st.integers(1, count)))
        for n in range(data.draw(st.integers(0, 3)))
    ]
    outcomes = [outcome(of, T + data.draw(_SKEW)) for of in actions]
    signals = [signal(phase, T + data.draw(_SKEW)) for phase in Phase]
    everything: list[Any] = [*revisions, *actions, *outcomes, *signals]
    shuffled = data.draw(st.permutations(everything))
    lines = story(
        [m for m in shuffled if isinstance(m, Incident)],
        [m for m in shuffled if isinstance(m, Signal)],
        [m for m in shuffled if isinstance(m, Action)],
        [m for m in shuffled if isinstance(m, Outcome)],
    )
    places = {line.id: place for place, line in enumerate(lines)}
    assert sorted(places) == sorted(message.id for message in everything)
    numbered = [places[r.id] for r in revisions]
    assert numbered == sorted(numbered)
    for act, out in zip(actions, outcomes, strict=True):
        assert places[revisions[act.incident_revision - 1].id] < places[act.id] < places[out.id]
    raised, updated, cleared = (places[s.id] for s in signals)
    assert raised < updated
    assert raised < cleared
    for line in lines:
        assert line.offset_ns == line.at_ns - T


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 100), min_size=1, max_size=6, unique=True))
def test_with_one_clock_the_lines_are_in_the_order_of_time(seconds: list[int]) -> None:
    revisions = [
        revision(n, T + at * S, IncidentState.OPEN, summary=f"summary {n}")
        for n, at in enumerate(sorted(seconds), 1)
    ]
    times = [line.at_ns for line in story(revisions, [signal(Phase.RAISED, T)])]
    assert times == sorted(times)


def test_a_thousand_revisions_are_told() -> None:
    revisions = [
        revision(n, T + n, IncidentState.OPEN, summary=f"summary {n}") for n in range(1, 1500)
    ]
    assert len(story(reversed(revisions))) == 1 + len(revisions)


def test_a_crowd_of_symptoms_is_one_line_and_guesses_on_the_way_are_none() -> None:
    def path(number: int) -> str:
        return f"path:node-{number}/10.0.0.{number}->10.0.0.9"

    signals = [
        signal(
            Phase.RAISED,
            T + n * 1_000_000,
            content_id("path", n),
            kind="path.down",
            subject=path(n),
            summary=f"path {n} is dead",
            evidence=[Evidence(at_ns=T, what="dead")],
        )
        for n in range(6)
    ]
    symptoms = [
        symptom(kind="path.down", subject=path(n), episode=content_id("path", n)) for n in range(6)
    ]
    revisions = [
        revision(
            n + 1,
            T + n * 1_000_000,
            IncidentState.OPEN,
            kind="path.down" if n == 0 else "link.down" if n < 5 else "switch.down",
            symptoms=symptoms[: n + 1],
            summary=f"guess {n}",
        )
        for n in range(6)
    ]
    assert [(line.what, line.text) for line in story(revisions, signals)] == [
        (What.SYMPTOM, "path.down raised on 6 within 5 ms; the first: path 0 is dead"),
        (What.INCIDENT, "opened: path.down, guess 0"),
        (What.INCIDENT, "refined: path.down is switch.down, guess 5"),
    ]


def test_failover_stall_and_failback_in_words() -> None:
    path = "path:node-3/10.0.0.3->10.0.0.9"
    moved = symptom(
        kind="path.failover", subject=path, role="effect", severity=Severity.INFO, episode=OTHER
    )
    first = revision(1, T, IncidentState.OPEN)
    second = revision(
        2,
        T + S,
        IncidentState.MITIGATED,
        symptoms=[symptom(), moved],
        failovers=1,
        stall_ns=61_000_000,
        restart_cost_gpu_s=43_200.0,
    )
    third = revision(
        3,
        T + 60 * S,
        IncidentState.RESOLVED,
        symptoms=[symptom(cleared_ns=T + 50 * S), moved],
        failovers=1,
        failbacks=1,
        stall_ns=61_000_000,
        restart_cost_gpu_s=43_200.0,
        resolved_ns=T + 60 * S,
    )
    told = [line.text for line in story([first, second, third]) if line.what is What.INCIDENT]
    assert told[1] == "mitigated: the traffic is on other paths (1 failover)"
    assert told[2] == (
        "resolved after 1 min, 1 failover, flows stood still for 61 ms at most, "
        "a restart would have cost 12.0 GPU-hours"
    )
    merged = revision(2, T + S, IncidentState.RESOLVED, merged_into=OTHER, resolved_ns=T + S)
    (line,) = [one for one in story([first, merged]) if "goes on" in one.text]
    assert line.text == f"has one cause with incident {OTHER[:8]} and goes on in it"
