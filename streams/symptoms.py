"""Symptoms of an incident: what a signal adds to what is known.

Evidence travels with every signal of an episode, so taking a newer one in mostly means replacing.
Causes keep all that a signal may carry, effects the newest few: an incident with hundreds of effects
must fit in one message.
"""

from __future__ import annotations

from typing import NamedTuple

from schemas.incident import Symptom
from schemas.signal import EVIDENCE_MAX, Evidence, Phase, Signal
from streams.explain import Role, variant

EFFECT_EVIDENCE_MAX = 4


class Key(NamedTuple):
    """Which symptom: a kind on a subject, for XIDs also the code and the device."""

    kind: str
    subject: str
    variant: str
    device: str


def key_of(one: Signal | Symptom) -> Key:
    """The key of a symptom or of the one that a signal speaks of."""
    device = str(one.attributes.get("pci_address", ""))
    return Key(one.kind, one.subject, variant(one.attributes), device)


def new(signal: Signal, role: Role, before: Symptom | None = None) -> Symptom:
    """The symptom of an episode that was not known; ``before`` is that of the episode before."""
    evidence, dropped = _trim(signal.evidence, signal.evidence_dropped, role)
    return Symptom(
        episode=signal.episode,
        episodes=before.episodes + 1 if before else 1,
        kind=signal.kind,
        subject=signal.subject,
        role=role,
        severity=signal.severity,
        summary=signal.summary,
        raised_ns=signal.raised_ns,
        updated_ns=max(signal.at_ns, signal.raised_ns),
        evidence=evidence,
        evidence_dropped=dropped,
        detector=signal.detector,
        detector_version=signal.detector_version,
        attributes=signal.attributes,
    )


def newer(signal: Signal, symptom: Symptom) -> bool:
    """The signal says more than the symptom's episode has said so far.

    Signals with one time are told apart by how much evidence they carry.
    """
    if symptom.cleared_ns is not None:
        return False
    if signal.phase is Phase.CLEARED:
        return True
    return (signal.at_ns, len(signal.evidence) + signal.evidence_dropped) > (
        symptom.updated_ns,
        len(symptom.evidence) + symptom.evidence_dropped,
    )


def take_in(symptom: Symptom, signal: Signal) -> Symptom:
    """The symptom after a newer signal."""
    cleared = signal.phase is Phase.CLEARED
    at_ns = max(signal.at_ns, symptom.updated_ns)
    evidence, dropped = _merge(symptom, signal)
    return symptom.model_copy(
        update={
            "severity": signal.severity,
            "summary": signal.summary,
            "updated_ns": at_ns,
            "cleared_ns": at_ns if cleared else None,
            "evidence": evidence,
            "evidence_dropped": dropped,
            "attributes": signal.attributes,
        }
    )


def in_role(symptom: Symptom, role: Role) -> Symptom:
    """The symptom as cause or effect."""
    evidence, dropped = _trim(symptom.evidence, symptom.evidence_dropped, role)
    return symptom.model_copy(
        update={"role": role, "evidence": evidence, "evidence_dropped": dropped}
    )


def _merge(symptom: Symptom, signal: Signal) -> tuple[list[Evidence], int]:
    old, new_ = symptom.evidence, signal.evidence
    if not new_:
        return old, symptom.evidence_dropped
    goes_on = not signal.evidence_dropped and bool(old) and new_[0].at_ns > old[-1].at_ns
    told = len(old) + symptom.evidence_dropped
    if not goes_on and len(new_) + signal.evidence_dropped >= told:
        return _trim(new_, signal.evidence_dropped, symptom.role)
    # It carries only what came since.
    added = [one for one in new_ if not old or one.at_ns > old[-1].at_ns]
    return _trim([*old, *added], symptom.evidence_dropped, symptom.role)


def _trim(evidence: list[Evidence], dropped: int, role: Role) -> tuple[list[Evidence], int]:
    limit = EVIDENCE_MAX if role == "cause" else EFFECT_EVIDENCE_MAX
    kept = evidence[-limit:]
    return kept, dropped + len(evidence) - len(kept)
