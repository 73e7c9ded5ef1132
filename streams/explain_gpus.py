"""Rules for GPUs: which XIDs belong together, and storms of XIDs that mean nothing on their own."""

from __future__ import annotations

from collections.abc import Sequence

from schemas import identity
from schemas.incident import Incident, Recommendation, Symptom
from schemas.signal import Severity, Signal
from streams.explain import (
    KNOWN_TIE,
    NO_CAUSE_SEEN,
    SAME_DEVICE,
    Description,
    Known,
    Verdict,
    cause_of,
    describe,
    describes,
    explains,
    stronger,
    variant,
)

_NEAR_NS = 60_000_000_000
_DOUBLE_BIT, _ROW_REMAP, _ACTION = "48", ("63", "64"), "154"

stronger(("gpu.xid", 48), ("gpu.xid", 64), ("gpu.xid", 63))


@explains("gpu.xid")
def consequence(signal: Signal, known: Known) -> Verdict | None:
    """A sympathetic XID follows from the open trouble of its GPU. Where there is none, all of them
    on a node are one storm, which has no cause."""
    if not signal.sympathetic:
        return None
    for incident in known.on(signal.subject):
        if cause_of(incident.symptoms) is not None:
            return Verdict(incident.incident, "effect", KNOWN_TIE)
    node = identity.node(identity.parts(signal.subject).node)
    for incident in known.on(node):
        if is_storm(incident):
            return Verdict(incident.incident, "effect", NO_CAUSE_SEEN)
    return Verdict(None, "effect", NO_CAUSE_SEEN, subject=node)


@explains("gpu.xid")
def memory_and_remap(signal: Signal, known: Known) -> Verdict | None:
    """XID 48 and the row remap events 63 and 64 within 60 s are one trouble of the GPU's memory;
    the detector's word on 48, the cause, says what both together need."""
    code = variant(signal.attributes)
    if code != _DOUBLE_BIT and code not in _ROW_REMAP:
        return None
    partners = _ROW_REMAP if code == _DOUBLE_BIT else (_DOUBLE_BIT,)
    for incident in known.on(signal.subject):
        for symptom in incident.symptoms:
            if (
                variant(symptom.attributes) in partners
                and symptom.subject == signal.subject
                and abs(symptom.raised_ns - signal.raised_ns) <= _NEAR_NS
            ):
                return Verdict(incident.incident, "cause", SAME_DEVICE)
    return None


@explains("gpu.xid")
def recovery_action(signal: Signal, known: Known) -> Verdict | None:
    """XID 154 says what the open trouble of its GPU needs."""
    if variant(signal.attributes) == _ACTION:
        for incident in known.on(signal.subject):
            if cause_of(incident.symptoms) is not None:
                return Verdict(incident.incident, "effect", KNOWN_TIE)
    return None


def is_storm(incident: Incident) -> bool:
    """Sympathetic XIDs of a node without a cause."""
    return incident.kind == "gpu.xid" and cause_of(incident.symptoms) is None


@describes("gpu.xid")
def describe_xid(
    symptoms: Sequence[Symptom], signal: Signal | None, before: Recommendation | None
) -> Description:
    """A storm by its numbers; otherwise the cause, with the action that the driver itself asks for."""
    if cause_of(symptoms) is None:
        return Description(_storm(symptoms), None, Severity.INFO)
    usual = describe(symptoms, signal, before)
    if any(variant(symptom.attributes) == _ACTION for symptom in symptoms):
        if (
            signal is not None
            and variant(signal.attributes) == _ACTION
            and (signal.remedy or signal.advice)
        ):
            asked = Recommendation(remedy=signal.remedy, advice=signal.advice)
            return Description(usual.summary, asked)
        return Description(usual.summary, before or usual.recommendation)
    return usual


def _storm(symptoms: Sequence[Symptom]) -> str:
    codes = sorted({variant(symptom.attributes) for symptom in symptoms}, key=lambda c: (len(c), c))
    reports = sum(_reports(symptom) for symptom in symptoms)
    gpus = len({symptom.subject for symptom in symptoms})
    return (
        f"XID {', '.join(codes)}{' storm' if reports > 1 else ''}: "
        f"{reports:,} report{'s' * (reports != 1)} on {gpus} GPU{'s' * (gpus != 1)}"
    )


def _reports(symptom: Symptom) -> int:
    counted = symptom.attributes.get("count")
    if isinstance(counted, int):
        return counted
    return max(1, len(symptom.evidence) + symptom.evidence_dropped)
