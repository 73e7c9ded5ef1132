"""What a node agent says about itself (topic ``telemetry.packet``)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schemas.event import Count, Nanoseconds, Occurrence, Positive
from schemas.registry import event


@event(topic="telemetry.packet")
class TelemetryDropped(Occurrence):
    """Samples that the agent had to drop, oldest first, because Kafka was away for too long and the
    spool on disk was full. The subject is the node."""

    schema_name: Literal["telemetry.dropped"] = Field(default="telemetry.dropped", alias="schema")
    version: Literal[1] = 1

    messages: Positive
    message_bytes: Count
    from_ns: Nanoseconds
    """When the oldest of them was taken; the newest was taken at ``at_ns``."""
