"""A message that could not be read, kept whole with the reason (topic ``deadletter``)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from schemas.event import Count, Event
from schemas.registry import event

ORIGINAL_MAX_BYTES = 8 * 1024 * 1024


@event(topic="deadletter")
class DeadLetter(Event):
    """One unreadable message, under the place where it was found."""

    MAX_BYTES: ClassVar[int] = 12 * 1024 * 1024

    schema_name: Literal["deadletter"] = Field(default="deadletter", alias="schema")
    version: Literal[1] = 1

    topic: str
    """The topic it was read from, without the prefix."""
    partition: Count
    offset: Count
    reader: str
    """Which part of Evertick could not read it."""
    reason: str
    key_base64: str
    original_base64: str
    """The message as it was; only its first 8 MiB where it was larger."""
    original_bytes: Count
    """Its true size."""

    def key(self) -> str:
        return self.topic
