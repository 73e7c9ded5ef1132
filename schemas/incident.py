"""An incident: one cause with its effects (topic ``incidents``, keyed by incident).

Each message is the whole incident as of its ``revision``; the newest is all a reader needs, and all
of them in order are its story. Life::

    open ──► mitigating ──► mitigated ──► resolved
      ▲                         │
      └──────── reopens ────────┘

``mitigated`` means that every symptom has cleared, or that a remedy took hold while the cause lasts
(traffic rides on other paths). Once every symptom has cleared and every such remedy is undone, the
incident waits out its quiet time; a symptom that comes back in that time reopens it. ``resolved`` is
final. Two incidents that prove to have one cause become one: the later is resolved and names the
earlier in ``merged_into``, which goes on with the symptoms of both.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas.event import Count, Event, Identifier, Nanoseconds, Positive, Revision
from schemas.identity import Subject
from schemas.registry import event
from schemas.signal import EVIDENCE_MAX, Evidence, Severity

FLOWS_MAX = 32


class IncidentState(StrEnum):
    """Where an incident stands in its life."""

    OPEN = "open"
    MITIGATING = "mitigating"
    MITIGATED = "mitigated"
    RESOLVED = "resolved"


class Symptom(BaseModel):
    """One kind of signal on one subject as part of an incident; its newest episode stands for all."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="ignore",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    episode: Identifier
    """The newest episode."""
    episodes: Positive = 1
    """How often it was raised while this incident lasted."""
    kind: str
    subject: Subject
    role: Literal["cause", "effect"]
    severity: Severity
    summary: str
    raised_ns: Nanoseconds
    updated_ns: Nanoseconds
    cleared_ns: Nanoseconds | None = None
    evidence: Annotated[list[Evidence], Field(max_length=EVIDENCE_MAX)] = []
    evidence_dropped: Count = 0
    detector: str
    detector_version: Revision
    attributes: dict[str, str | int | float] = {}


class Victims(BaseModel):
    """Whom an incident hurts."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="ignore", use_attribute_docstrings=True
    )

    nodes: list[Subject] = []
    nics: list[Subject] = []
    gpus: list[Subject] = []
    jobs: list[Subject] = []
    ranks: list[Subject] = []
    flows: Annotated[list[str], Field(max_length=FLOWS_MAX)] = []
    """Some of the TCP flows that stood still, ``local->remote``."""


class Recommendation(BaseModel):
    """What should be done: the name of a remedy and the reason in words."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    remedy: str
    advice: str


@event(topic="incidents")
class Incident(Event):
    """The whole of an incident as of ``at_ns``."""

    schema_name: Literal["incident"] = Field(default="incident", alias="schema")
    version: Literal[1] = 1

    incident: Identifier
    """Names the incident through all its revisions (``id`` names this revision)."""
    revision: Revision
    state: IncidentState
    kind: str
    """The kind of its cause; may be refined (``link.down`` becomes ``link.flapping``)."""
    subject: Subject
    """What its cause is on."""
    severity: Severity
    summary: Annotated[str, Field(max_length=512)]
    confidence: Annotated[float, Field(ge=0, le=1)]
    """How sure the correlator is that this one cause explains all the symptoms."""
    opened_ns: Nanoseconds
    """When the first symptom began."""
    mitigated_ns: Nanoseconds | None = None
    resolved_ns: Nanoseconds | None = None
    reopened: Annotated[int, Field(ge=0, lt=1 << 31)] = 0
    symptoms: list[Symptom]
    symptoms_dropped: Count = 0
    victims: Victims = Victims()
    recommendation: Recommendation | None = None
    cost_gpu_s: Annotated[float, Field(ge=0)] = 0.0
    """GPU-seconds of the victims' jobs that passed while it was open."""
    stall_ns: Count = 0
    """The longest that a TCP flow stood still around a failover, as the flows themselves tell."""
    failovers: Count = 0
    """Times that traffic was moved off a path for it by a node's own reflex; not of those symptoms
    that are only counted in ``symptoms_dropped``."""
    failbacks: Count = 0
    """Failovers that have ended: the traffic is back, or the reflex let go of it."""
    restart_cost_gpu_s: Annotated[float, Field(ge=0)] = 0.0
    """GPU-seconds that it would have cost to restart the victims' jobs from their checkpoints."""
    merged_into: Identifier | None = None
    """The incident that goes on in its place."""

    def key(self) -> str:
        return self.incident
