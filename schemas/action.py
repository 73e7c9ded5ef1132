"""Remedies and what came of them (topics ``actions`` and ``outcomes``): together, the ledger.

An action is a remedy told to happen, an outcome is what came of it. An action without an outcome is
still to be done, also after a restart, and is then done under the same id, which receivers can use
as an idempotency key.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from schemas.event import Count, Event, Identifier, Nanoseconds, Revision
from schemas.identity import Subject
from schemas.registry import event

CONTROL = "control"
"""Key of actions that no node executes: notices, orchestrators."""


class ActionMode(StrEnum):
    """How far policy lets a remedy go: only say what it would do, wait for a person, or act."""

    OBSERVE = "observe"
    ASK = "ask"
    ACT = "act"


class OutcomeStatus(StrEnum):
    """What came of an action."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"
    """Policy or dry run kept it from being done; the detail says which."""


@event(topic="actions")
class Action(Event):
    """A remedy told to happen."""

    schema_name: Literal["action"] = Field(default="action", alias="schema")
    version: Literal[1] = 1

    incident: Identifier
    incident_revision: Revision
    remedy: str
    """Name of the remedy: ``notify``."""
    purpose: str
    """Which step of the remedy: ``firing``, ``resolved``."""
    mode: ActionMode
    dry_run: bool
    target: str
    """The node that executes it, or ``control``."""
    subject: Subject
    """What it is done to."""
    parameters: dict[str, str | int | float | bool] = {}
    reason: Annotated[str, Field(max_length=1024)]
    """Why policy allowed it in this mode."""

    def key(self) -> str:
        return self.target


@event(topic="outcomes")
class Outcome(Event):
    """What came of an action."""

    schema_name: Literal["outcome"] = Field(default="outcome", alias="schema")
    version: Literal[1] = 1

    action: Identifier
    incident: Identifier
    remedy: str
    purpose: str
    target: str
    status: OutcomeStatus
    detail: Annotated[str, Field(max_length=2048)]
    attempts: Count
    started_ns: Nanoseconds
    """When the first attempt began; ``at_ns`` is when the outcome was known."""

    def key(self) -> str:
        return self.target
