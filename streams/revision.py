"""The next revision of an incident: what it is, where it stands and what it has cost, by all that is
known of it now. Everything here follows from the incident, its symptoms, the inventory and one signal.
"""

from __future__ import annotations

from schemas.incident import FLOWS_MAX, Incident, IncidentState, Recommendation, Symptom, Victims
from schemas.signal import Severity, Signal
from streams import explain, symptoms
from streams.live import Live
from streams.price import restart_gpu_s
from streams.victims import Inventory

_SECOND_NS = 1_000_000_000
_GRAVITY = list(Severity)
_TOGETHER_NS = 2 * _SECOND_NS


def revised(
    live: Live,
    signal: Signal | None,
    diagnosis: explain.Diagnosis | None,
    inventory: Inventory,
    restart_min: float,
) -> Incident:
    """The newest revision but for its number and id.

    Args:
        live: the incident, the signal already taken in. Roles of its symptoms are set.
        signal: what it has taken in; None where something else changed it.
        diagnosis: what the symptoms amount to, for kinds that have one.
        inventory: the fleet.
        restart_min: minutes that the restart of a job takes.
    """
    before = live.incident
    if diagnosis is not None:
        _set_roles(live, diagnosis.lead)
    held = list(live.symptoms.values())
    cause = explain.cause_of(held)
    if diagnosis is not None:
        kind, subject = diagnosis.kind, diagnosis.subject
    else:
        kind = cause.kind if cause else before.kind
        subject = cause.subject if cause else before.subject
    at_ns = before.at_ns if signal is None else max(before.at_ns, signal.at_ns)
    state, mitigated_ns, reopened = _stands(live, kind, held, at_ns)
    told = explain.description(kind, held, signal, before.recommendation)
    summary, advice = told.summary, told.recommendation
    if diagnosis is not None:
        summary = diagnosis.summary or summary
        if diagnosis.advice:
            advice = Recommendation(remedy="", advice=diagnosis.advice)
    victims = _victims(live, signal, cause, diagnosis, inventory)
    opened_ns = _opened_ns(before, signal, diagnosis)
    gpus = inventory.gpus_of(victims.jobs)
    open_s = max(0, (mitigated_ns or at_ns) - opened_ns) / _SECOND_NS
    restart_s = restart_gpu_s(gpus, restart_min) if diagnosis and diagnosis.breaks else 0.0
    reliefs = [(key, one) for key, one in live.symptoms.items() if explain.is_relief(one.kind)]
    failovers = sum(one.episodes for _, one in reliefs)
    return before.model_copy(
        update={
            "at_ns": at_ns,
            "clock_error_ns": before.clock_error_ns if signal is None else signal.clock_error_ns,
            "state": state,
            "kind": kind,
            "subject": subject,
            "severity": told.severity or _severity(before, held, signal, diagnosis),
            "summary": summary[:512],
            "confidence": before.confidence if diagnosis is None else diagnosis.confidence,
            "opened_ns": opened_ns,
            "mitigated_ns": mitigated_ns,
            "reopened": reopened,
            "symptoms": held,
            "victims": victims,
            "recommendation": advice,
            # Never less than before: a job that ended meanwhile has cost what it cost.
            "cost_gpu_s": max(before.cost_gpu_s, gpus * open_s),
            "restart_cost_gpu_s": max(before.restart_cost_gpu_s, restart_s),
            "stall_ns": max(before.stall_ns, 0 if signal is None else stall_ns(signal)),
            "failovers": failovers,
            "failbacks": failovers - sum(key in live.active for key, _ in reliefs),
        }
    )


def _set_roles(live: Live, lead: int) -> None:
    """One symptom stands for all."""
    for index, (key, symptom) in enumerate(live.symptoms.items()):
        role: explain.Role = "cause" if index == lead else "effect"
        if symptom.role != role:
            live.symptoms[key] = symptoms.in_role(symptom, role)


def _stands(
    live: Live, kind: str, held: list[Symptom], at_ns: int
) -> tuple[IncidentState, int | None, int]:
    """State, when it was mitigated, and how often it has reopened."""
    before = live.incident
    lasting = [one for key, one in live.symptoms.items() if key in live.active]
    ailing = [one for one in lasting if not explain.is_relief(one.kind)]
    helped = len(ailing) < len(lasting)
    state = IncidentState.OPEN
    if not ailing:
        state = IncidentState.MITIGATED
    elif helped:
        state = explain.relieved(kind, ailing)
    if state is before.state:
        return state, before.mitigated_ns, before.reopened
    if state is IncidentState.MITIGATED:
        cleared_ns = 0 if ailing else max(one.cleared_ns or 0 for one in held)
        return state, cleared_ns or at_ns, before.reopened
    reopens = before.state is IncidentState.MITIGATED
    return state, None, before.reopened + reopens


def _severity(
    before: Incident,
    held: list[Symptom],
    signal: Signal | None,
    diagnosis: explain.Diagnosis | None,
) -> Severity:
    """The highest that was said; of a diagnosis only the present one counts, not guesses before it."""
    if diagnosis is not None:
        said = [one.severity for one in held]
        said += [] if diagnosis.severity is None else [diagnosis.severity]
    else:
        said = [before.severity] if signal is None else [before.severity, signal.severity]
    return max(said, key=_GRAVITY.index)


def _opened_ns(before: Incident, signal: Signal | None, diagnosis: explain.Diagnosis | None) -> int:
    """When the first symptom began; of several that began together, the one read first need not be
    the first."""
    if signal is None or diagnosis is None or before.opened_ns - signal.raised_ns > _TOGETHER_NS:
        return before.opened_ns
    return min(before.opened_ns, signal.raised_ns)


def stall_ns(signal: Signal) -> int:
    """How long flows stood still, as the signal tells; 0 where it tells nothing of that."""
    told = signal.attributes.get("stall_ns", 0) if explain.is_relief(signal.kind) else 0
    return told if isinstance(told, int) else 0


def _victims(
    live: Live,
    signal: Signal | None,
    cause: Symptom | None,
    diagnosis: explain.Diagnosis | None,
    inventory: Inventory,
) -> Victims:
    """Those of what broke. Where that proves to be another thing, those of the first guess go."""
    victims = live.incident.victims
    if signal is not None and explain.is_relief(signal.kind):
        flows = {*victims.flows, *str(signal.attributes.get("sample", "")).split()}
        victims = victims.model_copy(update={"flows": sorted(flows)[:FLOWS_MAX]})
    if live.inventory_revision != inventory.revision:
        live.inventory_revision = inventory.revision
        live.touched.clear()
    if diagnosis is None:
        found = {one.subject for one in (signal, cause) if one is not None}
    else:
        found = set(diagnosis.hurt)
        if live.diagnosis is not None and not live.diagnosis.hurt <= diagnosis.hurt:
            live.touched.clear()
            victims = Victims(flows=victims.flows)
    fresh = found - live.touched
    if not fresh:
        return victims
    live.touched |= fresh
    return inventory.victims(fresh, victims)
