"""Rules for NICs: one cable's troubles are one incident, and what TCP suffers from them with it."""

from __future__ import annotations

from schemas.identity import parts
from schemas.incident import Incident
from schemas.signal import Signal
from streams.explain import (
    KNOWN_TIE,
    PLACE_AND_TIME,
    SAME_DEVICE,
    Known,
    Verdict,
    explains,
    stronger,
)

NIC_KINDS = ("link.flapping", "link.down", "interface.errors")
_NEAR_NS = 30_000_000_000

stronger(*NIC_KINDS)


@explains(*NIC_KINDS)
def same_nic(signal: Signal, known: Known) -> Verdict | None:
    """Errors, losses and flapping of one NIC are one trouble, named after the strongest."""
    for incident in known.on(signal.subject):
        if incident.kind in NIC_KINDS:
            return Verdict(incident.incident, "cause", SAME_DEVICE)
    return None


@explains("tcp.retransmits")
def path_from_nic(signal: Signal, known: Known) -> Verdict | None:
    """A NIC's trouble explains retransmits on paths from its addresses; where nobody knows whose
    the address is, trouble of any NIC of the node within 30 s does."""
    _, node, name = parts(signal.subject)
    nic = known.nic_of(node, name.partition("->")[0])
    if nic is not None:
        for incident in known.on(nic):
            if incident.kind in NIC_KINDS:
                return Verdict(incident.incident, "effect", KNOWN_TIE)
        return None
    near = [one for one in known.on_node(node, NIC_KINDS) if _distance_ns(one, signal) <= _NEAR_NS]
    if not near:
        return None
    nearest = min(near, key=lambda one: _distance_ns(one, signal))
    return Verdict(nearest.incident, "effect", PLACE_AND_TIME)


def _distance_ns(incident: Incident, signal: Signal) -> int:
    """Time between a symptom and the incident's newest trouble on the NIC itself."""
    times = [one.raised_ns for one in incident.symptoms if one.kind in NIC_KINDS]
    times += [one.cleared_ns for one in incident.symptoms if one.cleared_ns and one.role == "cause"]
    return min(abs(signal.raised_ns - time_ns) for time_ns in times)
