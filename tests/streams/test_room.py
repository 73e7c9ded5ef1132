"""Faults that more tell of than an incident holds: named rightly all the same, and in few words."""

from __future__ import annotations

import random

import pytest

from schemas.incident import IncidentState
from schemas.registry import encode
from tests.streams.fleet import Fleet
from tests.streams.test_fabric import (
    Shell,
    dead_switch,
    failover,
    one,
    silent_switch,
    told,
)


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("hosts", [16, 32])
def test_a_switch_of_which_more_paths_tell_than_an_incident_holds(
    hosts: int, shuffled: bool
) -> None:
    """Read host by host, the first two hundred deaths have but a few hosts in common."""
    fleet = Fleet(hosts)
    deaths = silent_switch(fleet)
    signals = told(fleet, [*deaths, *failover(fleet, deaths)])
    if shuffled:
        random.Random(hosts).shuffle(signals)
    shell = Shell(fleet).read(*signals)
    incident = one(shell)
    assert (incident.kind, incident.subject) == ("switch.down", "node:leaf-1")
    assert incident.state is IncidentState.MITIGATED and incident.failovers > 0
    symptoms = {(signal.kind, signal.subject) for signal in signals}
    assert len(incident.symptoms) <= 200
    # Of thousands, one that was forgotten meanwhile may be counted once more.
    assert len(incident.symptoms) + incident.symptoms_dropped >= len(symptoms)
    assert incident.stall_ns == max(
        stall for signal in signals if isinstance(stall := signal.attributes.get("stall_ns"), int)
    )
    assert len(encode(incident)) < 200_000
    assert all(not shell.correlator.observe(signal) for signal in signals[-500:])


def test_what_is_only_counted_is_told_each_time_the_count_has_doubled() -> None:
    fleet = Fleet(32)
    signals = told(fleet, dead_switch(fleet))
    shell = Shell(fleet).read(*signals)
    incident = one(shell)
    assert (incident.kind, incident.subject) == ("switch.down", "node:leaf-1")
    assert incident.symptoms_dropped > 800
    assert shell.published[-1].symptoms_dropped >= incident.symptoms_dropped / 2
    assert len(shell.published) <= len(incident.symptoms) + 11
