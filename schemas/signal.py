"""A signal: one symptom on one subject, with its evidence (topic ``signals``, keyed by zone).

A symptom is an *episode*: it is raised, may be updated while it lasts, and is cleared. All messages
of an episode share its ``episode`` id, which is made from what began it, so that a detector that
reads its input twice speaks of the same episode, and a return can be told without memory of the loss.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas.event import Count, Event, Identifier, Nanoseconds, Revision
from schemas.identity import Subject
from schemas.registry import event

EVIDENCE_MAX = 64


class Severity(StrEnum):
    """How urgent: ``info`` is worth a record, ``warning`` a look in hours, ``critical`` one now."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Phase(StrEnum):
    """Where an episode stands."""

    RAISED = "raised"
    UPDATED = "updated"
    CLEARED = "cleared"


class Evidence(BaseModel):
    """One observation that a verdict rests on."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="ignore",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    at_ns: Nanoseconds
    what: Annotated[str, Field(max_length=2048)]
    """In words, for a person: ``carrier lost``."""
    value: float | None = None
    unit: str = ""


@event(topic="signals")
class Signal(Event):
    """A symptom was raised, updated or cleared at ``at_ns``."""

    schema_name: Literal["signal"] = Field(default="signal", alias="schema")
    version: Literal[1] = 1

    episode: Identifier
    """The same for all messages about one stretch of this symptom on this subject."""
    kind: Annotated[str, Field(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)+$")]
    """What symptom: ``link.down``, ``gpu.xid``."""
    subject: Subject
    phase: Phase
    raised_ns: Nanoseconds
    """When the episode began."""
    detector: str
    detector_version: Revision
    severity: Severity
    summary: Annotated[str, Field(max_length=512)]
    """One line for a person."""
    evidence: Annotated[list[Evidence], Field(max_length=EVIDENCE_MAX)] = []
    """The newest observations of the episode; older ones are only counted."""
    evidence_dropped: Count = 0
    advice: Annotated[str, Field(max_length=1024)] = ""
    """What the vendor or the detector's author says one should do."""
    remedy: str = ""
    """The remedy that the detector recommends, by name; empty for none beyond the notice."""
    sympathetic: bool = False
    """A consequence by nature (such as XID 45): never a cause on its own."""
    attributes: dict[str, str | int | float] = {}
    """What rules and dashboards may need besides: ``{"xid": 79}``."""

    def key(self) -> str:
        return self.zone
