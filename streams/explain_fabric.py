"""Rules for the network: which symptoms of NICs and paths are of one fault, and when two are the same.

A symptom belongs to an incident that blames its NIC, whenever it comes; and to one that began at about
the same time and touches the same NIC or another behind the same switch. What an incident amounts to
is :mod:`streams.fabric`'s to say. When two incidents come to blame one thing, or their symptoms
together show that a node is cut off on all its rails, they are one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from schemas import identity
from schemas.incident import Incident, IncidentState, Symptom
from schemas.signal import Phase, Signal
from streams import fabric
from streams.explain import (
    KNOWN_TIE,
    SAME_DEVICE,
    Known,
    Role,
    Verdict,
    diagnoses,
    explains,
    relieves,
    stronger,
)
from streams.victims import Inventory

INCIDENT_KINDS = frozenset(
    {
        *("link.down", "link.flapping", "link.degraded", "interface.errors", "node.unreachable"),
        *("path.down", "path.flapping", "path.degraded", "switch.down", "switch.degraded"),
    }
)
_TOGETHER_NS = 2_000_000_000
_WORSE_TOGETHER_NS = 10_000_000_000
"""Degraded paths are noticed after some intervals, each node's own."""
_WORSE = ("path.degraded", "interface.errors")

stronger(*fabric.NIC_KINDS)
relieves("path.failover")


@explains(*fabric.KINDS)
def one_fault(signal: Signal, known: Known) -> Verdict | None:
    """The incident that a symptom of a NIC or a path belongs to."""
    if not fabric.of_network(signal):
        return None
    ends = fabric.ends(signal, known.inventory)
    # Paths are many; only what can be the cause by itself may exceed an incident's bound.
    role: Role = "cause" if signal.kind in fabric.NIC_KINDS else "effect"
    together = sorted(_together(signal, ends, known), key=_age)
    if together:
        first, *others = together
        same = [one.incident for one in others if _near(one, first.opened_ns, signal.kind)]
        return Verdict(first.incident, role, KNOWN_TIE, merges=tuple(same))
    for nic in ends.nics():
        for incident in reversed(known.blaming(nic)):
            # Errors on a wire do not explain that nothing at all passes.
            if incident.kind != "interface.errors" or signal.kind in (
                *fabric.NIC_KINDS,
                *_WORSE,
            ):
                return Verdict(incident.incident, role, SAME_DEVICE)
    return Verdict(None, "cause", SAME_DEVICE)


def touches(one: Signal | Symptom, inventory: Inventory) -> set[str]:
    """NICs and nodes that a symptom touches, and the path that it is on."""
    places = fabric.ends(one, inventory).places()
    return places | {one.subject} if one.subject.startswith("path:") else places


def same_cause(incident: Incident, signal: Signal, known: Known) -> Sequence[str]:
    """Open incidents that are the same as this one: on one subject, or parts of a node's end."""
    same = [one.incident for one in known.on(incident.subject) if one.kind in INCIDENT_KINDS]
    if signal.kind == "path.down" and signal.phase is not Phase.CLEARED:
        same += _of_dead_node(signal, known)
    return [name for name in dict.fromkeys(same) if name != incident.incident]


def relief(kind: str, lasting: Iterable[Symptom]) -> IncidentState:
    """Where an incident stands whose traffic rides elsewhere: mitigated, unless some have no path
    left to ride on."""
    if kind == "node.unreachable":
        return IncidentState.OPEN
    if any(one.attributes.get("paths_alive") == 0 for one in lasting):
        return IncidentState.MITIGATING
    return IncidentState.MITIGATED


diagnoses(
    *fabric.KINDS,
    fits=fabric.of_network,
    doctor=fabric.diagnose,
    touches=touches,
    ties=same_cause,
    relief=relief,
)


def _together(signal: Signal, ends: fabric.Ends, known: Known) -> Iterator[Incident]:
    """Incidents that began with this symptom, in the same place."""
    found = {
        one.incident: one
        for nic in ends.nics()
        for one in known.touching(nic)
        if _near(one, signal.raised_ns, signal.kind)
    }
    if signal.subject.startswith("path:"):
        # Whatever befalls one path while it is in trouble is one story.
        found |= {one.incident: one for one in known.touching(signal.subject)}
    if signal.kind != "interface.errors":
        topology = known.inventory.topology
        for switch in {topology.switch_of(nic) for nic in ends.nics()} - {None}:
            for nic in topology.ports(str(switch)):
                for incident in known.touching(nic):
                    alike = incident.kind.endswith(".degraded") == (signal.kind in _WORSE)
                    if alike and _near(incident, signal.raised_ns, signal.kind):
                        found[incident.incident] = incident
    yield from found.values()


def _near(incident: Incident, at_ns: int, kind: str) -> bool:
    within_ns = _WORSE_TOGETHER_NS if kind in _WORSE else _TOGETHER_NS
    return incident.kind in INCIDENT_KINDS and abs(incident.opened_ns - at_ns) <= within_ns


def _age(incident: Incident) -> tuple[int, str]:
    return incident.opened_ns, incident.incident


def _of_dead_node(signal: Signal, known: Known) -> list[str]:
    """Incidents of rails that are one node's end, where their symptoms together show that."""
    same: list[str] = []
    for node in (identity.parts(signal.subject).node, str(signal.attributes.get("peer", ""))):
        pool = [
            one
            for one in known.touching(identity.node(node))
            if _near(one, signal.raised_ns, signal.kind)
        ]
        held = [symptom for one in pool for symptom in one.symptoms]
        cut_off = fabric.only_pair(held, known.inventory) or fabric.cut_off(held)
        if len(pool) > 1 and node in cut_off:
            same += [one.incident for one in pool if _may_be_of(one, node, known)]
    return same


def _may_be_of(incident: Incident, node: str, known: Known) -> bool:
    """What the incident is on so far is the node, a part of it, or a path to or from it."""
    kind, place, name = identity.parts(incident.subject)
    if kind == "link":
        return any(end.partition("/")[0] == node for end in name.split("--"))
    if kind == "path":
        return any(
            node in (one.node, one.peer)
            for symptom in incident.symptoms
            if fabric.of_network(symptom) and (one := fabric.ends(symptom, known.inventory)).peer
        )
    return place == node
