"""Rule for retransmits: what TCP suffers from a broken or degraded network is an effect of that."""

from __future__ import annotations

from schemas.identity import parts
from schemas.incident import Incident
from schemas.signal import Signal
from streams import fabric
from streams.explain import KNOWN_TIE, PLACE_AND_TIME, Known, Verdict, explains

_NEAR_NS = 30_000_000_000


@explains("tcp.retransmits")
def path_from_nic(signal: Signal, known: Known) -> Verdict | None:
    """A NIC's trouble explains retransmits on paths from its addresses, and so does that of the path
    itself; where nobody knows whose the address is, trouble of any NIC of the node within 30 s does."""
    _, node, name = parts(signal.subject)
    nic = known.inventory.nic_of(node, name.partition("->")[0])
    for incident in known.touching(signal.subject):
        if _distance_ns(incident, signal) <= _NEAR_NS:
            return Verdict(incident.incident, "effect", KNOWN_TIE)
    if nic is not None:
        for incident in known.blaming(nic):
            return Verdict(incident.incident, "effect", KNOWN_TIE)
        return None
    near = [
        one
        for one in known.on_node(node, fabric.NIC_KINDS)
        if _distance_ns(one, signal) <= _NEAR_NS
    ]
    if not near:
        return None
    nearest = min(near, key=lambda one: _distance_ns(one, signal))
    return Verdict(nearest.incident, "effect", PLACE_AND_TIME)


def _distance_ns(incident: Incident, signal: Signal) -> int:
    """Time between a symptom and the incident's newest trouble in the network itself."""
    times = [one.raised_ns for one in incident.symptoms if one.kind in fabric.KINDS]
    times += [one.cleared_ns for one in incident.symptoms if one.cleared_ns and one.role == "cause"]
    return min(abs(signal.raised_ns - time_ns) for time_ns in times)
