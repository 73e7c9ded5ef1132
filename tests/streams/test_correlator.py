"""The correlator: rules by example, and what must hold whatever comes in whatever order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas.identity import content_id
from schemas.incident import Incident, IncidentState
from schemas.inventory import InventoryJob, InventoryNic, RankPlace
from schemas.registry import decode, encode
from schemas.signal import Evidence, Phase, Severity, Signal
from streams.correlator import Correlator, CorrelatorSettings

S = 1_000_000_000
T0 = 1_700_000_000 * S
NIC = "nic:node-3/eth1"
GPU = "gpu:node-3/0000:9b:00.0"
PATH = "path:node-3/10.0.0.3->10.0.0.9"
ARROWS = {
    (IncidentState.OPEN, IncidentState.OPEN),
    (IncidentState.OPEN, IncidentState.MITIGATED),
    (IncidentState.MITIGATED, IncidentState.OPEN),
    (IncidentState.MITIGATED, IncidentState.MITIGATED),
    (IncidentState.MITIGATED, IncidentState.RESOLVED),
}


def signal(
    phase: Phase,
    at_s: float,
    *,
    raised_s: float | None = None,
    kind: str = "link.down",
    subject: str = NIC,
    evidence: Sequence[str] = (),
    **more: Any,
) -> Signal:
    at_ns = T0 + int(at_s * S)
    raised_ns = at_ns if raised_s is None else T0 + int(raised_s * S)
    episode = content_id(kind, subject, raised_ns, str(more.get("attributes")))
    return Signal(
        id=content_id(episode, phase, at_ns),
        at_ns=at_ns,
        clock_error_ns=1000,
        episode=episode,
        kind=kind,
        subject=subject,
        phase=phase,
        raised_ns=raised_ns,
        detector=kind.replace(".", "_"),
        detector_version=1,
        severity=more.pop("severity", Severity.CRITICAL),
        summary=more.pop("summary", f"{kind} on {subject}"),
        evidence=[Evidence(at_ns=at_ns + i, what=what) for i, what in enumerate(evidence)],
        **more,
    )


def raised(at_s: float, **more: Any) -> Signal:
    return signal(Phase.RAISED, at_s, **more)


def cleared(raised_s: float, at_s: float, **more: Any) -> Signal:
    return signal(Phase.CLEARED, at_s, raised_s=raised_s, **more)


def xid(at_s: float, code: int, *, gpu: str = GPU, count: int = 1, **more: Any) -> Signal:
    return raised(
        at_s, kind="gpu.xid", subject=gpu, attributes={"xid": code, "count": count}, **more
    )


def zone(**changes: Any) -> Correlator:
    return Correlator("default", CorrelatorSettings(**changes))


def feed(correlator: Correlator, *signals: Signal) -> list[Incident]:
    return [incident for one in signals for incident in correlator.observe(one)]


def nic_item(interface: str = "eth1", *addresses: str) -> InventoryNic:
    return InventoryNic(
        id=content_id(interface),
        at_ns=T0,
        clock_error_ns=0,
        subject=f"nic:node-3/{interface}",
        node="node-3",
        interface=interface,
        mac="",
        physical=True,
        addresses=list(addresses),
    )


def test_the_life_of_an_incident() -> None:
    correlator = zone()
    (opened,) = feed(correlator, raised(0, evidence=["carrier lost"], advice="Check the cable."))
    assert opened.state is IncidentState.OPEN and opened.revision == 1
    assert (opened.kind, opened.subject, opened.confidence) == ("link.down", NIC, 1.0)
    assert opened.recommendation is not None and opened.recommendation.advice == "Check the cable."
    assert correlator.tick(T0 + 100 * S) == []
    (mitigated,) = feed(correlator, cleared(0, 2, evidence=["carrier back"]))
    assert mitigated.state is IncidentState.MITIGATED and mitigated.mitigated_ns == T0 + 2 * S
    assert [one.what for one in mitigated.symptoms[0].evidence] == ["carrier lost", "carrier back"]
    assert correlator.tick(T0 + 6 * S) == []
    (resolved,) = correlator.tick(T0 + 60 * S)
    assert resolved.state is IncidentState.RESOLVED
    assert resolved.resolved_ns == resolved.at_ns == T0 + 7 * S
    assert [one.revision for one in (opened, mitigated, resolved)] == [1, 2, 3]
    assert len({one.incident for one in (opened, mitigated, resolved)}) == 1
    assert correlator.incidents() == []
    assert decode(encode(resolved), "incidents") == resolved


def test_it_reopens_while_mitigated_and_is_another_one_after() -> None:
    correlator = zone()
    first = feed(correlator, raised(0), cleared(0, 1), raised(3), cleared(3, 4))
    assert len({one.incident for one in first}) == 1
    assert [one.state for one in first] == ["open", "mitigated", "open", "mitigated"]
    assert first[-1].reopened == 1 and first[-1].symptoms[0].episodes == 2
    # No tick came in between: the signal's own time shows that the first one was over.
    resolved, second = feed(correlator, raised(20))
    assert resolved.state is IncidentState.RESOLVED and resolved.resolved_ns == T0 + 9 * S
    assert second.incident != first[0].incident and second.revision == 1


def test_flapping_refines_link_down_and_absorbs_the_next() -> None:
    correlator = zone()
    told = feed(
        correlator,
        raised(0),
        cleared(0, 0.2),
        raised(0.5),
        cleared(0.5, 0.7),
        raised(1),
        raised(1, kind="link.flapping", raised_s=0, summary="node-3/eth1 flaps: 3 carrier losses"),
        cleared(1, 1.2),
        raised(1.5),
        cleared(1.5, 1.7),
    )
    assert len({one.incident for one in told}) == 1
    last = told[-1]
    assert last.kind == "link.flapping" and last.state is IncidentState.OPEN
    assert last.summary == "node-3/eth1 flaps: 3 carrier losses"
    assert [(one.kind, one.role) for one in last.symptoms] == [
        ("link.down", "effect"),
        ("link.flapping", "cause"),
    ]
    ended = feed(correlator, cleared(0, 61.7, kind="link.flapping"))
    assert ended[-1].state is IncidentState.MITIGATED
    assert [one.state for one in correlator.tick(T0 + 62 * S)] == [IncidentState.RESOLVED]


def test_errors_do_not_take_the_place_of_a_loss() -> None:
    correlator = zone()
    told = feed(
        correlator,
        raised(0, kind="interface.errors", severity=Severity.WARNING),
        raised(1),
        raised(2, kind="interface.errors", subject="nic:node-3/eth0"),
    )
    assert told[1].incident == told[0].incident and told[1].kind == "link.down"
    assert told[1].severity is Severity.CRITICAL
    assert told[2].incident != told[0].incident


def test_retransmits_follow_from_the_nic_that_has_the_address() -> None:
    correlator = zone()
    correlator.inventory(nic_item("eth1", "10.0.0.3/24"))
    correlator.inventory(nic_item("eth0", "10.0.1.3/24"))
    down, joined, alone = feed(
        correlator,
        raised(0),
        raised(200, kind="tcp.retransmits", subject=PATH),
        raised(1, kind="tcp.retransmits", subject="path:node-3/10.0.1.3->10.0.1.9"),
    )
    assert joined.incident == down.incident and joined.confidence == 0.9
    assert joined.symptoms[1].role == "effect"
    assert alone.incident != down.incident and alone.kind == "tcp.retransmits"


def test_retransmits_from_an_unknown_address_follow_within_30_s() -> None:
    near, far = zone(), zone()
    told = feed(near, raised(0), raised(20, kind="tcp.retransmits", subject=PATH))
    assert told[0].incident == told[1].incident and told[1].confidence == 0.6
    told = feed(far, raised(0), raised(40, kind="tcp.retransmits", subject=PATH))
    assert told[0].incident != told[1].incident


def test_a_storm_is_one_incident_a_node() -> None:
    correlator = zone()
    gpus = [f"gpu:node-3/0000:{bus:02x}:00.0" for bus in range(8)]
    told = feed(
        correlator,
        *(xid(i, 45, gpu=gpu, count=1000, sympathetic=True) for i, gpu in enumerate(gpus)),
    )
    last = told[-1]
    assert len({one.incident for one in told}) == 1
    assert last.subject == "node:node-3" and last.severity is Severity.INFO
    assert last.summary == "XID 45 storm: 8,000 reports on 8 GPUs"
    assert last.recommendation is None and last.confidence == 0.5
    assert {one.role for one in last.symptoms} == {"effect"}
    other = feed(correlator, xid(9, 45, gpu="gpu:node-4/0000:9b:00.0", sympathetic=True))
    assert other[0].incident != last.incident


def test_a_sympathetic_report_follows_from_the_open_trouble_of_its_gpu() -> None:
    correlator = zone()
    fell, follows = feed(
        correlator, xid(0, 79, remedy="restart_node"), xid(1, 45, sympathetic=True, remedy="kill")
    )
    assert follows.incident == fell.incident and follows.kind == "gpu.xid"
    assert follows.recommendation is not None and follows.recommendation.remedy == "restart_node"


def test_a_late_cause_leaves_the_storm_alone() -> None:
    storm, fell, again = feed(
        zone(),
        xid(0, 45, sympathetic=True),
        xid(1, 79),
        xid(2, 45, gpu="gpu:node-3/0000:01:00.0", sympathetic=True),
    )
    assert fell.incident != storm.incident and again.incident == storm.incident


def test_codes_are_told_apart_but_memory_errors_join_their_remap() -> None:
    told = feed(zone(), xid(0, 79), xid(1, 31), xid(2, 63), xid(3, 48, remedy="drain_and_reset"))
    assert len({one.incident for one in told}) == 3
    assert told[3].incident == told[2].incident
    assert [one.role for one in told[3].symptoms] == ["effect", "cause"]
    assert told[3].recommendation is not None
    assert told[3].recommendation.remedy == "drain_and_reset"
    late = feed(zone(), xid(0, 48), xid(61, 63))
    assert late[0].incident != late[1].incident


def test_154_says_what_its_gpu_needs() -> None:
    correlator = zone()
    cause = xid(0, 119, remedy="reset_gpu", advice="Reset.")
    told = feed(
        correlator,
        cause,
        xid(1, 154, remedy="restart_node", advice="Node Reboot Required"),
        cause.model_copy(
            update={"phase": Phase.UPDATED, "at_ns": T0 + 2 * S, "id": content_id("update")}
        ),
    )
    assert len({one.incident for one in told}) == 1
    assert told[-1].recommendation is not None
    assert told[-1].recommendation.remedy == "restart_node"
    (alone,) = feed(zone(), xid(0, 154, remedy="drain"))
    assert alone.recommendation is not None and alone.recommendation.remedy == "drain"


def test_victims_and_cost() -> None:
    correlator = zone()
    correlator.inventory(
        InventoryJob(
            id=content_id("job"),
            at_ns=T0,
            clock_error_ns=0,
            subject="job:llm",
            name="llm",
            ranks=[
                RankPlace(rank=0, node="node-3", gpus=[GPU], nics=[NIC]),
                RankPlace(rank=1, node="node-4", gpus=["gpu:node-4/0000:01:00.0"]),
            ],
        )
    )
    told = feed(correlator, raised(0), cleared(0, 10))
    told += correlator.tick(T0 + 100 * S)
    assert told[0].victims.jobs == ["job:llm"] and told[0].victims.ranks == ["rank:llm/0"]
    assert told[0].victims.nodes == ["node:node-3"] and told[0].victims.nics == [NIC]
    assert [one.cost_gpu_s for one in told] == [0.0, 20.0, 20.0]


def test_signals_with_one_time_are_told_apart() -> None:
    correlator = zone()
    first = raised(0, kind="gpu.xid", subject=GPU, attributes={"xid": 48}, remedy="reset_gpu")
    more = first.model_copy(
        update={"id": content_id("more"), "phase": Phase.UPDATED, "remedy": "drain_and_reset"}
    )
    told = feed(correlator, first, more, first, more)
    assert len(told) == 2 and told[1].recommendation is not None
    assert told[1].recommendation.remedy == "drain_and_reset"


def test_an_end_without_a_beginning_says_nothing() -> None:
    assert feed(zone(), cleared(0, 1)) == []


def test_an_end_of_an_older_episode_ends_the_newest() -> None:
    # The device lost carrier and was then removed; its return tells of the first loss alone.
    told = feed(zone(), raised(0), raised(5), cleared(0, 9))
    assert told[-1].state is IncidentState.MITIGATED


def test_a_clock_that_steps_back_hides_no_fault() -> None:
    correlator = zone()
    told = feed(correlator, raised(100), cleared(100, 101), raised(50), cleared(50, 51))
    assert [one.state for one in told] == ["open", "mitigated", "open", "mitigated"]
    assert [one.at_ns for one in told] == sorted(one.at_ns for one in told)


def test_bounds_are_counted() -> None:
    correlator = zone(incidents_max=10, symptoms_max=10)
    correlator.inventory(nic_item("eth1", "10.0.0.3"))
    paths = [f"path:node-3/10.0.0.3->10.0.1.{i}" for i in range(20)]
    told = feed(
        correlator,
        raised(0),
        *(raised(i + 1, kind="tcp.retransmits", subject=path) for i, path in enumerate(paths)),
    )
    assert len(told[-1].symptoms) == 10 and told[-1].symptoms_dropped == 8
    assert correlator.incidents()[0].symptoms_dropped == 11
    again = feed(
        correlator, *(raised(i + 1, kind="tcp.retransmits", subject=p) for i, p in enumerate(paths))
    )
    assert again == []
    feed(correlator, *(raised(100, subject=f"nic:node-5/eth{i}") for i in range(20)))
    assert len(correlator.incidents()) == 10 and correlator.refused == 11


def test_a_link_that_flaps_for_days_stays_small() -> None:
    correlator = zone(symptoms_max=10)
    feed(correlator, raised(0, kind="link.flapping"))
    signals = [one for i in range(1, 3000) for one in (raised(i), cleared(i, i + 0.5))]
    last = feed(correlator, *signals)[-1]
    assert last.symptoms[1].episodes == 2999
    assert len(encode(last)) < 4000
    assert feed(correlator, *signals) == []


def test_resolved_incidents_are_forgotten_in_time() -> None:
    correlator = zone(remember_s=60)
    incident = feed(correlator, raised(0), cleared(0, 1))[0].incident
    correlator.tick(T0 + 6 * S)
    assert correlator.expired() == []
    assert feed(correlator, raised(0), cleared(0, 1)) == []
    correlator.tick(T0 + 66 * S)
    assert correlator.expired() == [incident]
    assert correlator.expired() == []


# --- Whatever comes -------------------------------------------------------------------------------

SUBJECTS = [
    ("link.down", NIC, None),
    ("link.flapping", NIC, None),
    ("interface.errors", NIC, None),
    ("link.down", "nic:node-3/eth0", None),
    ("tcp.retransmits", PATH, None),
    ("tcp.retransmits", "path:node-3/10.7.0.3->10.0.0.9", None),
    ("gpu.xid", GPU, 45),
    ("gpu.xid", GPU, 48),
    ("gpu.xid", GPU, 63),
    ("gpu.xid", GPU, 79),
    ("gpu.xid", GPU, 154),
    ("gpu.xid", "gpu:node-3/0000:01:00.0", 45),
]


def make_signals(steps: Iterable[tuple[int, int, int]]) -> list[Signal]:
    """Raise what is clear, update or clear what is raised, each step at a later time."""
    at_ms = 0
    open_: dict[int, tuple[float, int]] = {}
    signals = []
    for which, gap_ms, choice in steps:
        at_ms += gap_ms
        kind, subject, code = SUBJECTS[which]
        more: dict[str, Any] = {"kind": kind, "subject": subject}
        if code is not None:
            more |= {
                "attributes": {"xid": code},
                "sympathetic": code == 45,
                "remedy": f"remedy_{code}",
            }
        at_s = at_ms / 1000
        if which not in open_:
            open_[which] = (at_s, 1)
            phase, raised_s, told = Phase.RAISED, at_s, 1
        else:
            raised_s, told = open_[which]
            told += 1
            phase = Phase.UPDATED if choice == 0 else Phase.CLEARED
            open_[which] = (raised_s, told)
            if phase is Phase.CLEARED:
                del open_[which]
        signals.append(
            signal(phase, at_s, raised_s=raised_s, evidence=[f"{i}" for i in range(told)], **more)
        )
    return signals


STEPS = st.lists(
    st.tuples(st.integers(0, len(SUBJECTS) - 1), st.integers(1, 8000), st.integers(0, 2)),
    min_size=1,
    max_size=60,
)


class Shell:
    """What a worker does: publish, keep the newest revisions, start again from them."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}
        self.published: list[Incident] = []
        self.start()

    def start(self) -> None:
        self.correlator = zone()
        self.correlator.inventory(nic_item("eth1", "10.0.0.3"))
        for value in self.stored.values():
            incident = decode(value)
            assert isinstance(incident, Incident)
            self.correlator.restore(incident)

    def read(self, one: Signal, ticks: bool = True) -> None:
        if ticks:
            self.take(self.correlator.tick(one.at_ns))
        self.take(self.correlator.observe(one))

    def take(self, incidents: list[Incident]) -> None:
        for incident in incidents:
            self.published.append(incident)
            self.stored[incident.incident] = encode(incident)

    def final(self, now_ns: int) -> dict[str, bytes]:
        self.take(self.correlator.tick(now_ns))
        return self.stored


def signals_now(signals: list[Signal]) -> int:
    return signals[-1].at_ns + 3 * S


@settings(max_examples=120, deadline=None)
@given(STEPS, st.data())
def test_reading_twice_and_restarting_change_nothing(
    steps: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    signals = make_signals(steps)
    plain, troubled = Shell(), Shell()
    for one in signals:
        plain.read(one)
    for index, one in enumerate(signals):
        troubled.read(one)
        if data.draw(st.integers(0, 3)) == 0:
            troubled.start()
        if data.draw(st.integers(0, 3)) == 0:
            for old in signals[data.draw(st.integers(0, index)) : index + 1]:
                troubled.read(old, ticks=False)
    assert troubled.final(signals_now(signals)) == plain.final(signals_now(signals))
    assert troubled.published == plain.published


@settings(max_examples=120, deadline=None)
@given(STEPS, st.booleans())
def test_what_always_holds(steps: list[tuple[int, int, int]], ticks: bool) -> None:
    signals = make_signals(steps)
    shell = Shell()
    newest: dict[str, Incident] = {}
    owner: dict[str, set[str]] = {}
    for one in signals:
        seen = len(shell.published)
        shell.read(one, ticks)
        for incident in shell.published[seen:]:
            before = newest.get(incident.incident)
            if before is None:
                assert incident.revision == 1 and incident.state is IncidentState.OPEN
            else:
                assert incident.revision == before.revision + 1
                assert (before.state, incident.state) in ARROWS
                assert incident.at_ns >= before.at_ns
                assert incident.cost_gpu_s >= before.cost_gpu_s
            newest[incident.incident] = incident
            for symptom in incident.symptoms:
                owner.setdefault(symptom.episode, set()).add(incident.incident)
            assert sum(symptom.role == "cause" for symptom in incident.symptoms) <= 1
            assert Incident.model_validate(incident.model_dump(by_alias=True)) == incident
        live = [
            (one.kind, one.subject, one.symptoms[0].attributes.get("xid"))
            for one in shell.correlator.incidents()
        ]
        assert len(live) == len(set(live))
        held = [
            (symptom.kind, symptom.subject, symptom.attributes.get("xid"))
            for incident in shell.correlator.incidents()
            for symptom in incident.symptoms
        ]
        assert len(held) == len(set(held))
        stored = {incident.incident for incident in shell.correlator.incidents()}
        assert stored == {
            name for name, one in newest.items() if one.state is not IncidentState.RESOLVED
        }
    for one in signals:
        if one.phase is Phase.RAISED:
            assert len(owner[one.episode]) == 1


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_the_same_signals_give_the_same_bytes_with_or_without_ticks(
    steps: list[tuple[int, int, int]],
) -> None:
    signals = make_signals(steps)
    ticking, still = Shell(), Shell()
    for one in signals:
        ticking.read(one)
        still.read(one, ticks=False)
    end_ns = signals[-1].at_ns + 1000 * S
    assert ticking.final(end_ns) == still.final(end_ns)


@settings(max_examples=1000, deadline=None)
@given(
    told=st.lists(
        st.builds(
            lambda kind, subject, attributes: signal(
                Phase.RAISED, 0, kind=kind, subject=subject, attributes=attributes
            ),
            st.sampled_from(
                [
                    *("path.down", "path.flapping", "path.degraded", "path.failover"),
                    *("link.down", "link.flapping", "interface.errors", "tcp.retransmits"),
                    "rank.slow",
                ]
            ),
            st.sampled_from(
                [
                    "node:n1",
                    NIC,
                    GPU,
                    PATH,
                    "path:n1/x",
                    "link:a/1--b/2",
                    "job:j",
                    "rank:j/0",
                    "rank:j/176e",
                    "rank:j",
                ]
            ),
            st.dictionaries(
                st.sampled_from(
                    ["peer", "interface", "peer_interface", "paths_alive", "to_path", "stall_ns"]
                ),
                st.sampled_from(["", "n2", "node-3", "a b", "../../etc", "x/y", "eth1", 0, -1, 7]),
            ),
        ),
        min_size=1,
        max_size=6,
    )
)
@example(
    told=[
        signal(Phase.RAISED, 0, kind="path.down", subject=PATH),
        signal(Phase.RAISED, 0, kind="path.flapping", subject=PATH, attributes={"peer": "n2"}),
    ]
)
@example(told=[signal(Phase.RAISED, 0, kind="path.down", subject="node:n1")])
@example(told=[signal(Phase.RAISED, 0, kind="rank.slow", subject="rank:j/176e")])
@example(told=[signal(Phase.RAISED, 0, kind="interface.errors", subject="node:n1")])
def test_signals_that_fit_together_badly_are_still_taken(told: list[Signal]) -> None:
    """The contract leaves subjects and attributes to the detector, whoever wrote it."""
    correlator = Correlator("default", CorrelatorSettings())
    for one in told:
        for incident in correlator.observe(one):
            decode(encode(incident), "incidents")
