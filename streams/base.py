"""What a detector is.

A detector turns telemetry into signals. It is a small class on plain data: no Kafka, no wall clock,
no socket; time comes with the events and with ``tick``. So the same code runs live, in a replay of
last week and in a simulation. One instance serves one node, so that a node's state can move to
another worker; defining the class registers it.

Rules that keep a crash harmless: the id of an episode is made from what began it (``episode``), so
reading an event twice says the same thing twice; ``state`` holds what must outlive the process and
is stored when ``changed`` is set, which a detector does for occurrences and verdicts, never for every
sample.
"""

from __future__ import annotations

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterable
from importlib import import_module
from typing import Any, ClassVar

import streams
from bus.settings import Section
from schemas.event import Telemetry
from schemas.identity import content_id
from schemas.signal import EVIDENCE_MAX, Evidence, Phase, Severity, Signal

_registered: dict[str, type[Detector]] = {}


class DetectorSettings(Section):
    """Settings that every detector has."""

    enabled: bool = True


class Detector(ABC):
    """Base of all detectors."""

    name: ClassVar[str]
    """Name in the settings and in signals: ``link_down``."""
    version: ClassVar[int]
    """Raised whenever its verdicts change."""
    about: ClassVar[str]
    consumes: ClassVar[tuple[type[Telemetry], ...]]
    """The telemetry it wants to see."""
    Settings: ClassVar[type[DetectorSettings]] = DetectorSettings

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.name in _registered:
            raise TypeError(f"two detectors are named {cls.name}")
        _registered[cls.name] = cls

    def __init__(self, node: str, zone: str, settings: Any) -> None:
        self.node = node
        self.zone = zone
        self.settings = settings
        self.changed = False
        """``state`` differs from what was last stored; the caller stores it and sets this False."""

    @abstractmethod
    def observe(self, event: Any) -> Iterable[Signal]:
        """Take in one event of a type in ``consumes``, in the order of the topic."""

    def tick(self, now_ns: int) -> Iterable[Signal]:
        """What follows from time alone; called about once a second with the time now."""
        return ()

    def state(self) -> dict[str, Any]:
        """What must outlive the process, as JSON data; empty where there is nothing."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what ``state`` returned."""

    def signal(
        self,
        phase: Phase,
        *,
        kind: str,
        subject: str,
        raised_ns: int,
        at_ns: int,
        clock_error_ns: int,
        severity: Severity,
        summary: str,
        evidence: list[Evidence] | None = None,
        evidence_dropped: int = 0,
        advice: str = "",
        remedy: str = "",
        sympathetic: bool = False,
        attributes: dict[str, str | int | float] | None = None,
    ) -> Signal:
        """A signal of this detector, with ids made from its content.

        ``clock_error_ns`` is that of the event it follows from; ``evidence`` beyond the newest ``EVIDENCE_MAX`` is counted, not carried.
        """
        episode = self.episode(kind, subject, raised_ns)
        shown = (evidence or [])[-EVIDENCE_MAX:]
        return Signal(
            id=content_id(episode, phase, at_ns, len(shown) + evidence_dropped),
            zone=self.zone,
            at_ns=at_ns,
            clock_error_ns=clock_error_ns,
            episode=episode,
            kind=kind,
            subject=subject,
            phase=phase,
            raised_ns=raised_ns,
            detector=self.name,
            detector_version=self.version,
            severity=severity,
            summary=summary,
            evidence=shown,
            evidence_dropped=evidence_dropped + len(evidence or ()) - len(shown),
            advice=advice,
            remedy=remedy,
            sympathetic=sympathetic,
            attributes=attributes or {},
        )

    def episode(self, kind: str, subject: str, raised_ns: int) -> str:
        """The id of the episode of this symptom that began at ``raised_ns``."""
        return content_id("episode", self.name, kind, subject, raised_ns)


def registered() -> dict[str, type[Detector]]:
    """All detectors, by name; importing the package's modules is what registers them."""
    for module in pkgutil.iter_modules(streams.__path__):
        import_module(f"streams.{module.name}")
    return dict(sorted(_registered.items()))
