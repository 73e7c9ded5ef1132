"""What was really broken, and when: the truth that Evertick's words are measured against.

Faults say it when they begin and end. It travels on a topic of the lab's own, so that a recording of a
run holds both, and is no part of the contract.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from schemas.event import Event, Nanoseconds
from schemas.identity import Subject, content_id
from schemas.registry import encode

TOPIC = "lab.truth"


class FaultTruth(Event):
    """A fault of the lab began or ended."""

    schema_name: Literal["lab.fault"] = Field(default="lab.fault", alias="schema")
    version: Literal[1] = 1

    fault: str
    """Its kind: ``blackhole``."""
    subject: Subject
    """What is broken: a cable or a switch or a host."""
    phase: Literal["begin", "end"]
    began_ns: Nanoseconds

    def key(self) -> str:
        return self.subject


@dataclass(frozen=True, slots=True)
class Span:
    """One fault from its beginning to its end, nanoseconds UTC."""

    fault: str
    subject: str
    began_ns: int
    ended_ns: int | None


class Truth:
    """Remembers faults, and hands each on as an event."""

    def __init__(self, tell: Callable[[bytes, bytes], None] = lambda key, value: None) -> None:
        """
        Args:
            tell: sends key and value to :data:`TOPIC`.
        """
        self.spans: list[Span] = []
        self._tell = tell

    def began(self, fault: str, subject: str) -> int:
        """A fault began now; returns the time, which names it."""
        now_ns = time.time_ns()
        self.spans.append(Span(fault, subject, now_ns, None))
        self._say(fault, subject, "begin", now_ns, now_ns)
        return now_ns

    def ended(self, fault: str, subject: str, began_ns: int) -> None:
        """The fault that began then ended now."""
        now_ns = time.time_ns()
        open_ = Span(fault, subject, began_ns, None)
        self.spans[self.spans.index(open_)] = Span(fault, subject, began_ns, now_ns)
        self._say(fault, subject, "end", began_ns, now_ns)

    def _say(
        self, fault: str, subject: str, phase: Literal["begin", "end"], began_ns: int, at_ns: int
    ) -> None:
        event = FaultTruth(
            id=content_id("lab", fault, subject, phase, began_ns),
            at_ns=at_ns,
            clock_error_ns=0,
            fault=fault,
            subject=subject,
            phase=phase,
            began_ns=began_ns,
        )
        self._tell(event.key().encode(), encode(event))
