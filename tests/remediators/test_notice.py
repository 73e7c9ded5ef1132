"""What a notice says."""

from __future__ import annotations

import json

from remediators import notice
from schemas.incident import Incident, Victims
from schemas.registry import decode
from tests.remediators.samples import T0_NS, incident, resolved


def test_alertmanager_firing() -> None:
    of = incident(3)
    body = json.loads(notice.alertmanager(of, "firing", "pager", "https://evertick.example.com"))
    labels = {
        "alertname": "link.down",
        "severity": "critical",
        "zone": "default",
        "subject": "nic:node-3/eth1",
        "node": "node-3",
        "incident": of.incident,
    }
    annotations = {
        "summary": "eth1 of node-3 lost its carrier",
        "advice": "Look at the cable.",
        "command": f"evertick show {of.incident}",
    }
    assert body == {
        "version": "4",
        "groupKey": f'{{}}:{{incident="{of.incident}"}}',
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "pager",
        "groupLabels": {"incident": of.incident},
        "commonLabels": labels,
        "commonAnnotations": annotations,
        "externalURL": "https://evertick.example.com",
        "alerts": [
            {
                "status": "firing",
                "labels": labels,
                "annotations": annotations,
                "startsAt": "2026-09-21T14:13:20.000000000Z",
                "endsAt": "0001-01-01T00:00:00Z",
                "generatorURL": f"https://evertick.example.com/incidents/{of.incident}",
                "fingerprint": of.incident[:16],
            }
        ],
    }


def test_alertmanager_resolved_is_about_the_same_alert() -> None:
    firing = json.loads(notice.alertmanager(incident(), "firing", "pager", ""))
    body = json.loads(notice.alertmanager(resolved(), "resolved", "pager", ""))
    assert body["status"] == body["alerts"][0]["status"] == "resolved"
    assert body["alerts"][0]["endsAt"] == "2026-09-21T14:16:32.000000000Z"
    assert body["alerts"][0]["generatorURL"] == ""
    assert body["groupKey"] == firing["groupKey"]
    assert body["alerts"][0]["fingerprint"] == firing["alerts"][0]["fingerprint"]


def test_our_own_format_carries_the_whole_incident() -> None:
    body = json.loads(notice.whole(resolved(), "resolved", "the-key"))
    assert (body["event"], body["idempotency_key"]) == ("incident.resolved", "the-key")
    carried = decode(json.dumps(body["incident"]).encode())
    assert isinstance(carried, Incident)
    assert carried == resolved()


def test_the_words_of_a_page() -> None:
    victims = Victims(
        jobs=[f"job:llm-{n}" for n in range(5)],
        ranks=["rank:llm-0/17"],
        gpus=["gpu:node-0/0000:9b:00.0", "gpu:node-0/0000:9c:00.0"],
    )
    of = incident(victims=victims, cost_gpu_s=7200.0)
    assert notice.title(of, "firing") == "Critical: link.down on nic:node-0/eth1"
    assert notice.text(of, "firing").splitlines() == [
        "eth1 of node-0 lost its carrier",
        "Since 2026-09-21 14:13:20 UTC",
        "Hurts jobs llm-0, llm-1, llm-2 and 2 more, 1 rank, 2 GPUs",
        "Cost so far 2.0 GPU-hours",
        "Do: Look at the cable.",
        f"evertick show {of.incident}",
    ]
    assert notice.title(of, "resolved") == "Resolved: link.down on nic:node-0/eth1"
    assert "From 2026-09-21 14:13:20 UTC to 2026-09-21 14:16:32 UTC (3 min 12 s)" in notice.text(
        resolved(victims=victims), "resolved"
    )


def test_times_are_exact_to_the_nanosecond() -> None:
    assert notice.rfc3339(T0_NS + 1) == "2026-09-21T14:13:20.000000001Z"
    assert notice.rfc3339(0) == "1970-01-01T00:00:00.000000000Z"
