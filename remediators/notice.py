"""What a notice says: pure functions from an incident to the bytes or the words of a notice.

Three forms: the webhook of Prometheus Alertmanager (version 4), which most tools that take alerts
understand; our own, which carries the whole incident; and a few lines for a chat or a pager.

In Alertmanager's form, group key and fingerprint name the incident and are the same in its firing and
its resolved notice; the labels say what it is now, so ``alertname`` may have been refined meanwhile.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pydantic_core import to_json

from schemas.identity import parts
from schemas.incident import Incident
from schemas.registry import encode

FIRING = "firing"
RESOLVED = "resolved"
_NEVER = "0001-01-01T00:00:00Z"


def alertmanager(incident: Incident, purpose: str, receiver: str, external_url: str) -> bytes:
    """The JSON body in Alertmanager's webhook format, version 4, with one alert.

    Args:
        incident: what it is about.
        purpose: ``firing`` or ``resolved``.
        receiver: the receiver's name in the settings.
        external_url: where people find Evertick; may be empty.
    """
    labels = {
        "alertname": incident.kind,
        "severity": str(incident.severity),
        "zone": incident.zone,
        "subject": incident.subject,
        "node": parts(incident.subject).node,
        "incident": incident.incident,
    }
    annotations = {
        "summary": incident.summary,
        "advice": incident.recommendation.advice if incident.recommendation else "",
        "command": f"evertick show {incident.incident}",
    }
    ended = purpose == RESOLVED
    alert = {
        "status": purpose,
        "labels": labels,
        "annotations": annotations,
        "startsAt": rfc3339(incident.opened_ns),
        "endsAt": rfc3339(incident.resolved_ns or incident.at_ns) if ended else _NEVER,
        "generatorURL": f"{external_url}/incidents/{incident.incident}" if external_url else "",
        "fingerprint": incident.incident[:16],
    }
    body: dict[str, Any] = {
        "version": "4",
        "groupKey": f'{{}}:{{incident="{incident.incident}"}}',
        "truncatedAlerts": 0,
        "status": purpose,
        "receiver": receiver,
        "groupLabels": {"incident": incident.incident},
        "commonLabels": labels,
        "commonAnnotations": annotations,
        "externalURL": external_url,
        "alerts": [alert],
    }
    return to_json(body)


def whole(incident: Incident, purpose: str, key: str) -> bytes:
    """The JSON body in our own format: event, idempotency key and the whole incident, as on the
    topic ``incidents``."""
    head = to_json({"event": f"incident.{purpose}", "idempotency_key": key})
    return head[:-1] + b',"incident":' + encode(incident) + b"}"


def title(incident: Incident, purpose: str) -> str:
    """One line: what and where."""
    if purpose == RESOLVED:
        return f"Resolved: {incident.kind} on {incident.subject}"
    return f"{str(incident.severity).capitalize()}: {incident.kind} on {incident.subject}"


def text(incident: Incident, purpose: str) -> str:
    """A few lines for somebody who was just woken: what, since when, whom it hurts, what to do."""
    since = _clock(incident.opened_ns)
    lines = [incident.summary]
    if purpose == RESOLVED:
        end_ns = incident.resolved_ns or incident.at_ns
        lasted = _duration((end_ns - incident.opened_ns) / 1e9)
        lines.append(f"From {since} to {_clock(end_ns)} ({lasted})")
    else:
        lines.append(f"Since {since}")
    hurt = _victims(incident)
    if hurt:
        lines.append(f"{'Hurt' if purpose == RESOLVED else 'Hurts'} {hurt}")
    if incident.cost_gpu_s:
        lines.append(f"Cost so far {incident.cost_gpu_s / 3600:,.1f} GPU-hours")
    if purpose == FIRING and incident.recommendation and incident.recommendation.advice:
        lines.append(f"Do: {incident.recommendation.advice}")
    lines.append(f"evertick show {incident.incident}")
    return "\n".join(lines)


def rfc3339(ns: int) -> str:
    """Nanoseconds UTC as RFC 3339, to the nanosecond."""
    seconds, rest = divmod(ns, 1_000_000_000)
    stamp = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{stamp}.{rest:09d}Z"


def _clock(ns: int) -> str:
    return datetime.fromtimestamp(ns // 1_000_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _duration(seconds: float) -> str:
    """A length of time in its two largest units: ``3 min 12 s``."""
    whole_s = max(0, round(seconds))
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    shown: list[str] = []
    for unit, size in units:
        count, whole_s = divmod(whole_s, size)
        if count or (unit == "s" and not shown):
            shown.append(f"{count} {unit}")
    return " ".join(shown[:2])


def _victims(incident: Incident) -> str:
    """``job llm-70b, 16 ranks, 8 GPUs``: jobs by name, as far as they are few, the rest by number."""
    victims = incident.victims
    names = [parts(job).name for job in victims.jobs]
    told: list[str] = []
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        told.append(f"{'jobs' if len(names) > 1 else 'job'} {', '.join(names[:3])}{more}")
    for things, one, many in (
        (victims.ranks, "rank", "ranks"),
        (victims.gpus, "GPU", "GPUs"),
        (victims.nodes, "node", "nodes"),
    ):
        if things:
            told.append(f"{len(things)} {one if len(things) == 1 else many}")
    return ", ".join(told)
