"""One fault of the network, one incident: which, on what, whoever tells it in whatever order."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from itertools import permutations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas.event import Telemetry
from schemas.incident import Incident, IncidentState
from schemas.path import PathFault, RouteMoveReason
from schemas.registry import decode, encode
from schemas.signal import Phase as SignalPhase
from schemas.signal import Severity, Signal
from streams.correlator import Correlator
from streams.path_health import PathDegraded, PathDegradedSettings
from tests.streams.fleet import MS, T0, Detectors, Fleet, S

# An order by its seed: a shuffle itself is too long to be shrunk.
SEEDS = st.integers(0, 1 << 32)


def zone(fleet: Fleet) -> Correlator:
    correlator = Correlator("default")
    for item in fleet.inventory():
        correlator.inventory(item)
    return correlator


class Shell:
    """What a worker does: publish, keep the newest revisions, start again from them."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.stored: dict[str, bytes] = {}
        self.published: list[Incident] = []
        self.start()

    def start(self) -> None:
        self.correlator = zone(self.fleet)
        for value in self.stored.values():
            incident = decode(value)
            assert isinstance(incident, Incident)
            self.correlator.restore(incident)

    def take(self, incidents: Iterable[Incident]) -> None:
        for incident in incidents:
            self.published.append(incident)
            self.stored[incident.incident] = encode(incident)

    def read(self, *signals: Signal) -> Shell:
        for one in signals:
            self.take(self.correlator.observe(one))
        return self

    def live(self) -> list[Incident]:
        return self.correlator.incidents()


def one(shell: Shell) -> Incident:
    (incident,) = shell.live()
    return incident


def told(fleet: Fleet, events: Iterable[Telemetry]) -> list[Signal]:
    return Detectors().signals(events)


def star(fleet: Fleet, host: str, rail: int = 0, at_ns: int = T0) -> list[Telemetry]:
    """Every path of one NIC dies, seen from both ends; nobody loses carrier."""
    pairs = [pair for pair in fleet.pairs() if host in pair]
    return list(fleet.deaths(pairs, rail, at_ns))


def unplugged(fleet: Fleet, host: str = "host-3") -> list[Telemetry]:
    return [fleet.carrier(host, 0, False, T0 + 2 * MS), *star(fleet, host)]


def silent(fleet: Fleet, host: str = "host-1") -> list[Telemetry]:
    return star(fleet, host)


def one_path(fleet: Fleet) -> list[Telemetry]:
    pairs = [("host-1", "host-2"), ("host-2", "host-1")]
    return list(fleet.deaths(pairs, 0, T0))


def dead_switch(fleet: Fleet) -> list[Telemetry]:
    """All links of leaf-1 at both ends, and all paths across it."""
    hosts = [fleet.carrier(host, 0, False, T0 + i * MS) for i, host in enumerate(fleet.hosts)]
    ports = []
    for i, host in enumerate(fleet.hosts):
        event = fleet.carrier(host, 0, False, T0 + (i + 3) * MS)
        port = f"nic:leaf-1/swp{i + 1}"
        ports.append(event.model_copy(update={"subject": port, "node": "leaf-1"}))
    paths = fleet.deaths(fleet.pairs(), 0, T0, fault=PathFault.CARRIER)
    return [*hosts, *ports, *paths]


def silent_switch(fleet: Fleet) -> list[Telemetry]:
    return list(fleet.deaths(fleet.pairs(), 0, T0))


def dead_host(fleet: Fleet, host: str = "host-3") -> list[Telemetry]:
    """Its peers lose every path to it; it says nothing."""
    pairs = [(peer, host) for peer in fleet.hosts if peer != host]
    return [
        *fleet.deaths(pairs, 0, T0, paths_alive=1),
        *fleet.deaths(pairs, 1, T0 + 20 * MS, paths_alive=0),
    ]


def dark_host(fleet: Fleet, host: str = "host-3") -> list[Telemetry]:
    """All cables of a host go dark; it runs on and says so, as its peers do."""
    pairs = [pair for pair in fleet.pairs() if host in pair]
    return [
        *(fleet.carrier(host, rail, False, T0 + (rail + 2) * MS) for rail in range(fleet.rails)),
        *fleet.deaths(pairs, 0, T0, paths_alive=1),
        *fleet.deaths(pairs, 1, T0 + 3 * MS, paths_alive=0),
    ]


FAULTS: dict[str, tuple[Callable[[Fleet], list[Telemetry]], str, str]] = {
    "unplugged": (unplugged, "link.down", "link:host-3/rail0--leaf-1/swp3"),
    "silent link": (silent, "link.down", "link:host-1/rail0--leaf-1/swp1"),
    "dead switch": (dead_switch, "switch.down", "node:leaf-1"),
    "silent switch": (silent_switch, "switch.down", "node:leaf-1"),
    "dead host": (dead_host, "node.unreachable", "node:host-3"),
    "dark host": (dark_host, "node.unreachable", "node:host-3"),
    "one path": (one_path, "path.down", "path:host-1/10.0.0.1->10.0.0.2"),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("hosts", [3, 4, 8])
@settings(max_examples=10, deadline=None)
@given(seed=SEEDS)
def test_one_fault_is_one_incident_in_any_order(name: str, hosts: int, seed: int) -> None:
    fleet = Fleet(hosts)
    fault, kind, subject = FAULTS[name]
    detectors = Detectors()
    events = fault(fleet)
    raised = detectors.signals(events)
    order = random.Random(seed)
    mixed = list(raised)
    order.shuffle(mixed)
    shell = Shell(fleet).read(*mixed)
    incident = one(shell)
    assert (incident.kind, incident.subject) == (kind, subject)
    assert incident.state is IncidentState.OPEN
    assert incident.opened_ns == min(signal.raised_ns for signal in raised)
    keys = {(signal.kind, signal.subject) for signal in raised}
    assert len(incident.symptoms) == len(keys)
    assert sum(symptom.role == "cause" for symptom in incident.symptoms) == 1
    # Whatever else was opened on the way has gone on in this one.
    for name_, value in shell.stored.items():
        stored = decode(value)
        assert isinstance(stored, Incident)
        if name_ != incident.incident:
            assert stored.state is IncidentState.RESOLVED and stored.merged_into is not None
    plain = one(Shell(fleet).read(*raised))
    assert incident.victims == plain.victims and incident.confidence == plain.confidence
    assert (incident.summary, incident.severity) == (plain.summary, plain.severity)
    # Reading it again, in any order, says nothing new.
    order.shuffle(mixed)
    assert all(not shell.correlator.observe(signal) for signal in mixed)


@pytest.mark.parametrize("name", FAULTS)
@settings(max_examples=12, deadline=None)
@given(seed=SEEDS)
def test_replays_and_restarts_change_nothing(name: str, seed: int) -> None:
    fleet = Fleet(4)
    signals = told(fleet, FAULTS[name][0](fleet))
    order = random.Random(seed)
    order.shuffle(signals)
    plain, troubled = Shell(fleet).read(*signals), Shell(fleet)
    for index, signal in enumerate(signals):
        troubled.read(signal)
        if order.random() < 0.2:
            troubled.start()
        if order.random() < 0.2:
            troubled.read(*signals[order.randint(0, index) : index + 1])
    assert troubled.published == plain.published
    assert troubled.stored == plain.stored


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS)
@example(seed=392)
def test_a_worker_that_dies_between_two_writes_leaves_one_incident(seed: int) -> None:
    """Of what one step published, only a part was stored."""
    fleet = Fleet(4)
    signals = told(fleet, dead_host(fleet))
    order = random.Random(seed)
    order.shuffle(signals)
    shell = Shell(fleet)
    for signal in signals:
        incidents = shell.correlator.observe(signal)
        if len(incidents) > 1:
            torn = order.sample(incidents, order.randint(0, len(incidents) - 1))
            shell.take(one for one in incidents if one in torn)
            shell.start()
            incidents = shell.correlator.observe(signal)
        shell.take(incidents)
    shell.take(shell.correlator.tick(signals[-1].at_ns))
    incident = one(shell)
    assert (incident.kind, incident.subject) == ("node.unreachable", "node:host-3")
    assert len(incident.symptoms) == len({(one.kind, one.subject) for one in signals})


def test_a_switch_names_all_whom_it_hurts_and_what_a_restart_would_cost() -> None:
    fleet = Fleet(8)
    incident = one(Shell(fleet).read(*told(fleet, dead_switch(fleet))))
    assert incident.severity is Severity.CRITICAL and incident.confidence == 0.9
    assert incident.victims.jobs == ["job:llm"] and len(incident.victims.ranks) == 8
    assert set(incident.victims.nics) == {fleet.nic(host, 0) for host in fleet.hosts}
    assert incident.restart_cost_gpu_s == 8 * 90 * 60
    assert incident.summary == (
        "leaf-1: 8 of its 8 links have no carrier; that is one fault, not 8"
    )


def test_a_link_names_both_ends_and_only_those_it_hurts() -> None:
    fleet = Fleet(8)
    incident = one(Shell(fleet).read(*told(fleet, unplugged(fleet))))
    assert incident.victims.nics == ["nic:host-3/rail0", "nic:leaf-1/swp3"]
    assert incident.victims.ranks == ["rank:llm/2"]
    assert incident.summary == "host-3/rail0: carrier lost"


def test_without_cables_the_nic_is_named() -> None:
    fleet = Fleet(4, cabled=False)
    assert one(Shell(fleet).read(*told(fleet, silent(fleet)))).subject == "nic:host-1/rail0"
    # Whoever tells of a switch that nobody knows: one incident all the same.
    incident = one(Shell(fleet).read(*told(fleet, dead_switch(fleet)[:4] + dead_switch(fleet)[8:])))
    assert incident.kind == "link.down" and incident.confidence == 0.6


def test_links_without_a_tie_that_a_path_then_ties_become_one() -> None:
    fleet = Fleet(4, cabled=False)
    shell = Shell(fleet).read(
        *told(fleet, [fleet.carrier(host, 0, False, T0) for host in ("host-1", "host-2")])
    )
    assert len(shell.live()) == 2
    shell.read(*told(fleet, fleet.deaths([("host-1", "host-2")], 0, T0)))
    incident = one(shell)
    ended = [one for one in shell.published if one.merged_into]
    assert [one.merged_into for one in ended] == [incident.incident]
    assert shell.published.index(ended[0]) > 0
    assert ended[0].state is IncidentState.RESOLVED


def test_two_links_of_two_rails_are_two_incidents() -> None:
    fleet = Fleet(8)
    events = [*unplugged(fleet, "host-3"), *star(fleet, "host-5", rail=1, at_ns=T0 + 300 * MS)]
    found = Shell(fleet).read(*told(fleet, events)).live()
    assert {incident.subject for incident in found} == {
        fleet.link("host-3", 0),
        fleet.link("host-5", 1),
    }


def test_a_later_fault_behind_the_same_switch_is_another_incident() -> None:
    fleet = Fleet(8)
    events = [*silent(fleet, "host-1")]
    dead = {(one.node, one.peer) for one in events if hasattr(one, "peer")}
    pairs = [pair for pair in fleet.pairs() if "host-2" in pair and pair not in dead]
    events += fleet.deaths(pairs, 0, T0 + 60 * S)
    found = Shell(fleet).read(*told(fleet, events)).live()
    assert [incident.subject for incident in found] == [
        fleet.link("host-1", 0),
        fleet.link("host-2", 0),
    ]


def test_everybody_cut_off_is_two_switches_and_no_host() -> None:
    fleet = Fleet(4)
    events = [
        *fleet.deaths(fleet.pairs(), 0, T0, paths_alive=1),
        *fleet.deaths(fleet.pairs(), 1, T0 + 20 * MS, paths_alive=0),
    ]
    found = Shell(fleet).read(*told(fleet, events)).live()
    assert [(one.kind, one.subject) for one in found] == [
        ("switch.down", "node:leaf-1"),
        ("switch.down", "node:leaf-2"),
    ]


def between_two(fleet: Fleet, *ends: tuple[str, str]) -> list[Telemetry]:
    """All paths of a fleet of two die, told by some of its hosts."""
    return [
        fleet.transition(a, b, rail, False, T0 + rail * MS, T0 + 30 * MS, paths_alive=1 - rail)
        for a, b in ends
        for rail in range(2)
    ]


def test_in_a_fleet_of_two_the_one_that_is_silent_or_dark_is_cut_off() -> None:
    fleet = Fleet(2)
    there, back = ("host-1", "host-2"), ("host-2", "host-1")
    dark = [fleet.carrier("host-2", rail, False, T0 + MS) for rail in range(2)]
    for events, kind, subject in (
        (between_two(fleet, there), "node.unreachable", "node:host-2"),
        ([*between_two(fleet, there, back), *dark], "node.unreachable", "node:host-2"),
        # Nobody can say which: four cables, two of them dead.
        (between_two(fleet, there, back), "link.down", fleet.link("host-1", 0)),
    ):
        for signals in permutations(told(fleet, events)):
            incident = one(Shell(fleet).read(*signals))
            assert (incident.kind, incident.subject) == (kind, subject)
    assert incident.confidence == 0.6
    assert incident.summary.startswith("2 of these links down together: ")


def failover(fleet: Fleet, deaths: list[Telemetry]) -> list[Telemetry]:
    """Every node moves its traffic to rail 1, and its flows stood still for a while."""
    events: list[Telemetry] = []
    for index, death in enumerate(deaths):
        since_ns = death.since_ns  # type: ignore[attr-defined]
        peer = death.peer  # type: ignore[attr-defined]
        at_ns = since_ns + 34 * MS
        events.append(fleet.move(death.node, peer, 0, 1, at_ns, since_ns))
        events.append(fleet.stall(death.node, peer, 0, at_ns + 20 * MS, since_ns, 50 + index))
    return events


def test_a_failover_mitigates_and_the_way_back_resolves() -> None:
    fleet = Fleet(4)
    detectors = Detectors()
    deaths = silent(fleet)
    moves = failover(fleet, deaths)
    shell = Shell(fleet).read(*detectors.signals(deaths))
    assert one(shell).state is IncidentState.OPEN
    shell.read(*detectors.signals(moves))
    incident = one(shell)
    assert incident.state is IncidentState.MITIGATED and incident.reopened == 0
    assert incident.failovers == 6 and incident.failbacks == 0
    assert incident.stall_ns == (50 + len(deaths) - 1) * MS
    assert "host-1:1->host-2:2" in incident.victims.flows
    assert incident.mitigated_ns is not None and incident.mitigated_ns < T0 + S
    # The link stays dead for an hour: it is mitigated, not over.
    assert shell.correlator.tick(T0 + 3600 * S) == []
    shell.read(*detectors.signals(fleet.returns(deaths, T0 + 3600 * S)))  # type: ignore[arg-type]
    assert shell.correlator.tick(T0 + 3650 * S) == []
    back = [
        fleet.move(one.node, one.peer, 1, 0, T0 + 3660 * S, reason=RouteMoveReason.FAILBACK)
        for one in deaths
        if hasattr(one, "peer")
    ]
    shell.read(*detectors.signals(back))
    incident = one(shell)
    assert incident.failbacks == 6 and incident.state is IncidentState.MITIGATED
    (resolved,) = shell.correlator.tick(T0 + 3700 * S)
    assert resolved.state is IncidentState.RESOLVED
    assert resolved.resolved_ns == T0 + 3665 * S
    assert resolved.cost_gpu_s < 1 and resolved.restart_cost_gpu_s == 4 * 5400


def test_a_stall_that_is_told_late_counts_all_the_same() -> None:
    """Long stalls end after the way back, or after the next failover of a path that flaps."""
    fleet = Fleet(4)
    detectors = Detectors()
    deaths = one_path(fleet)
    shell = Shell(fleet).read(*detectors.signals(deaths))
    shell.read(*detectors.signals([fleet.move("host-1", "host-2", 0, 1, T0 + 34 * MS, T0)]))
    back = fleet.move("host-1", "host-2", 1, 0, T0 + 2 * S, reason=RouteMoveReason.FAILBACK)
    shell.read(*detectors.signals([*fleet.returns(deaths, T0 + S), back]))  # type: ignore[arg-type]
    late = detectors.signals([fleet.stall("host-1", "host-2", 0, T0 + 3 * S, T0, 1700)])
    shell.read(*late)
    incident = one(shell)
    assert incident.stall_ns == 1700 * MS and incident.victims.flows == ["host-1:1->host-2:2"]
    # Mitigated since the traffic left the path; that it is back changes nothing in that.
    assert incident.state is IncidentState.MITIGATED and incident.mitigated_ns == T0 + 34 * MS
    assert shell.correlator.observe(late[0]) == []
    (resolved,) = shell.correlator.tick(T0 + 60 * S)
    assert resolved.resolved_ns == T0 + 7 * S


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS)
def test_failovers_in_any_order_mitigate(seed: int) -> None:
    fleet = Fleet(4)
    deaths = silent(fleet)
    signals = told(fleet, [*deaths, *failover(fleet, deaths)])
    random.Random(seed).shuffle(signals)
    incident = one(Shell(fleet).read(*signals))
    assert (incident.kind, incident.subject) == ("link.down", fleet.link("host-1", 0))
    assert incident.state is IncidentState.MITIGATED and incident.failovers == 6
    assert incident.reopened == 0
    assert incident.stall_ns == (50 + len(deaths) - 1) * MS


def test_a_route_let_go_while_the_link_is_dead_reopens() -> None:
    fleet = Fleet(4)
    detectors = Detectors()
    deaths = silent(fleet)
    shell = Shell(fleet).read(*detectors.signals([*deaths, *failover(fleet, deaths)]))
    for death in deaths:
        move = fleet.move(death.node, death.peer, 1, 0, T0 + 5 * S)  # type: ignore[attr-defined]
        gone = move.model_copy(update={"reason": RouteMoveReason.RELEASE, "to_path": None})
        shell.read(*detectors.signals([gone]))
    assert one(shell).state is IncidentState.OPEN and one(shell).reopened == 1


def test_a_train_of_silent_flaps_is_one_flapping_link() -> None:
    fleet = Fleet(4)
    detectors = Detectors()
    shell = Shell(fleet)
    for flap in range(6):
        deaths = star(fleet, "host-1", at_ns=T0 + flap * 500 * MS)
        back = fleet.returns(deaths, T0 + flap * 500 * MS + 90 * MS)  # type: ignore[arg-type]
        shell.read(*detectors.signals([*deaths, *back]))
    incident = one(shell)
    assert (incident.kind, incident.subject) == ("link.flapping", fleet.link("host-1", 0))
    counts = {one.episodes for one in incident.symptoms if one.kind == "path.down"}
    assert counts == {6}


def test_a_node_with_no_path_left_is_not_helped_by_failovers_elsewhere() -> None:
    fleet = Fleet(4)
    detectors = Detectors()
    first = [
        fleet.transition(h, "host-3", 0, False, T0, T0 + 30 * MS) for h in ("host-1", "host-2")
    ]
    moves = [fleet.move(one.node, "host-3", 0, 1, T0 + 34 * MS, T0) for one in first]
    second = dead_host(fleet)
    shell = Shell(fleet).read(*detectors.signals([*first, *moves, *second]))
    incident = one(shell)
    assert incident.kind == "node.unreachable" and incident.state is IncidentState.OPEN


def test_what_an_incident_says_can_be_read_again() -> None:
    fleet = Fleet(3)
    deaths = silent(fleet)
    for incident in Shell(fleet).read(*told(fleet, [*deaths, *failover(fleet, deaths)])).published:
        assert decode(encode(incident), "incidents") == incident
        assert json.loads(encode(incident))["schema"] == "incident"


def worse(
    fleet: Fleet, host: str, peer: str, at_ns: int, degraded: str = "loss", rail: int = 0
) -> Signal:
    """What ``path_degraded`` says of a path, without its end's interface: addresses must do."""
    detector = PathDegraded(host, "default", PathDegradedSettings())
    return detector.signal(
        SignalPhase.RAISED,
        kind="path.degraded",
        subject=fleet.path(host, peer, rail),
        raised_ns=at_ns,
        at_ns=at_ns + 3 * S,
        clock_error_ns=0,
        severity=Severity.WARNING,
        summary=f"{host} → {peer}: {degraded}",
        attributes={"peer": peer, "interface": f"rail{rail}", "degraded": degraded},
    )


@pytest.mark.parametrize("degraded", ["loss", "delay", "rate"])
@pytest.mark.parametrize("hosts", [4, 8])
def test_a_degraded_link_is_named_with_what_ails_it(degraded: str, hosts: int) -> None:
    fleet = Fleet(hosts)
    signals = [
        worse(fleet, a, b, T0 + i * 600 * MS % (4 * S), degraded)
        for i, (a, b) in enumerate(fleet.pairs())
        if "host-2" in (a, b)
    ]
    for seed in range(10):
        random.Random(seed).shuffle(signals)
        incident = one(Shell(fleet).read(*signals))
        assert (incident.kind, incident.subject) == ("link.degraded", fleet.link("host-2", 0))
        assert degraded in incident.summary and incident.severity is Severity.WARNING
        assert incident.restart_cost_gpu_s == 0


def test_single_deaths_of_a_lossy_link_follow_from_its_loss() -> None:
    fleet = Fleet(8)
    pairs = [pair for pair in fleet.pairs() if "host-2" in pair]
    deaths = [
        fleet.transition(a, b, 0, False, T0 + (1 + i) * 700 * MS, T0 + (1 + i) * 700 * MS + 30 * MS)
        for i, (a, b) in enumerate(pairs[:6])
    ]
    signals = [*(worse(fleet, a, b, T0) for a, b in pairs), *told(fleet, deaths)]
    incident = one(Shell(fleet).read(*signals))
    assert (incident.kind, incident.subject) == ("link.degraded", fleet.link("host-2", 0))
    # Then it dies for good, and all its paths at once.
    at_ns = T0 + 60 * S
    dead = list(fleet.deaths(pairs, 0, at_ns))
    incident = one(Shell(fleet).read(*signals, *told(fleet, dead)))
    assert (incident.kind, incident.subject) == ("link.down", fleet.link("host-2", 0))


def test_a_slow_switch_and_a_slow_path() -> None:
    fleet = Fleet(4)
    incident = one(Shell(fleet).read(*(worse(fleet, a, b, T0, "delay") for a, b in fleet.pairs())))
    assert (incident.kind, incident.subject) == ("switch.degraded", "node:leaf-1")
    assert "delay" in incident.summary
    incident = one(Shell(fleet).read(worse(fleet, "host-1", "host-2", T0)))
    assert (incident.kind, incident.subject) == (
        "path.degraded",
        "path:host-1/10.0.0.1->10.0.0.2",
    )


@settings(max_examples=60, deadline=None)
@given(
    st.sets(
        st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(lambda pair: pair[0] != pair[1]),
        min_size=1,
    ),
    st.sets(st.integers(0, 5)),
    SEEDS,
)
def test_any_deaths_of_one_moment_end_the_same_in_any_order(
    pairs: set[tuple[int, int]], unplugged_hosts: set[int], seed: int
) -> None:
    fleet = Fleet(6)
    events: list[Telemetry] = [
        *fleet.deaths([(fleet.hosts[a], fleet.hosts[b]) for a, b in sorted(pairs)], 0, T0),
        *(fleet.carrier(fleet.hosts[i], 0, False, T0 + MS) for i in sorted(unplugged_hosts)),
    ]
    signals = told(fleet, events)
    plain = one(Shell(fleet).read(*signals))
    random.Random(seed).shuffle(signals)
    mixed = one(Shell(fleet).read(*signals))
    said = ("kind", "subject", "summary", "severity", "confidence", "victims", "opened_ns", "state")
    assert [getattr(mixed, name) for name in said] == [getattr(plain, name) for name in said]
