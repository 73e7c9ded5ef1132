"""The topics: what travels where, under which key, for how long.

Names here are without the configurable prefix. Retention is a default for a real cluster; the
embedded stack lowers the bytes so that its data folder stays under its bound.
"""

from __future__ import annotations

from dataclasses import dataclass

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic's contract and its storage settings."""

    name: str
    key: str
    """What the Kafka key is."""
    about: str
    partitions: int = 4
    retention_ms: int = 7 * _DAY_MS
    retention_share: float = 0.0
    """Part of the disk budget of the embedded stack that this topic may take."""
    compacted: bool = False
    max_message_bytes: int = 8 * 1024 * 1024
    """Larger than what is read (1 MiB), so that an oversized message is a dead letter, not an error
    that only its producer sees."""


TOPICS: dict[str, TopicSpec] = {
    spec.name: spec
    for spec in (
        TopicSpec(
            "telemetry.packet",
            "node",
            "links, interfaces and TCP flows",
            retention_ms=2 * _DAY_MS,
            retention_share=0.30,
        ),
        TopicSpec(
            "telemetry.rdma",
            "node",
            "RDMA ports, counters and probes",
            retention_ms=2 * _DAY_MS,
            retention_share=0.05,
        ),
        TopicSpec(
            "telemetry.nccl",
            "node",
            "collectives, communicators and their ranks",
            retention_ms=2 * _DAY_MS,
            retention_share=0.05,
        ),
        TopicSpec(
            "telemetry.gpu",
            "node",
            "GPU and kernel reports",
            retention_ms=2 * _DAY_MS,
            retention_share=0.10,
        ),
        TopicSpec(
            "telemetry.clock",
            "node",
            "clock offsets, drifts and their error bounds",
            retention_ms=2 * _DAY_MS,
            retention_share=0.05,
        ),
        TopicSpec(
            "telemetry.training",
            "node",
            "iterations, phases and ranks of jobs",
            retention_ms=2 * _DAY_MS,
            retention_share=0.05,
        ),
        TopicSpec(
            "inventory",
            "subject",
            "nodes, NICs, links, GPUs, jobs and their ranks",
            partitions=1,
            retention_share=0.02,
            compacted=True,
        ),
        TopicSpec(
            "signals",
            "zone",
            "symptoms raised, updated and cleared",
            retention_ms=30 * _DAY_MS,
            retention_share=0.10,
        ),
        TopicSpec(
            "incidents",
            "incident",
            "causes with their effects, each message the whole",
            retention_ms=90 * _DAY_MS,
            retention_share=0.10,
        ),
        TopicSpec(
            "actions",
            "node or control",
            "remedies told to happen",
            retention_ms=90 * _DAY_MS,
            retention_share=0.04,
        ),
        TopicSpec(
            "outcomes",
            "node or control",
            "what came of the actions",
            retention_ms=90 * _DAY_MS,
            retention_share=0.04,
        ),
        TopicSpec(
            "deadletter",
            "topic",
            "messages that could not be read, with the reason",
            partitions=1,
            retention_ms=14 * _DAY_MS,
            retention_share=0.10,
            max_message_bytes=12 * 1024 * 1024,
        ),
    )
}
