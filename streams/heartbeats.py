"""Heartbeats that are not the peer's: detector ``heartbeats_refused``.

They move no route; somebody who sends them may still want to, or a key is wrong on one end. A few
late ones of an earlier run are usual after a restart and are no signal. One that lasts is one episode.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import Field

from schemas import identity
from schemas.path import HeartbeatsRefused
from schemas.signal import Evidence, Phase, Severity, Signal
from streams.base import Detector, DetectorSettings

_SECOND_NS = 1_000_000_000
_SOURCES_MAX = 8
_CAUSES = ("malformed", "forged", "replayed", "unprocessed")


class HeartbeatsRefusedSettings(DetectorSettings):
    """How many refused heartbeats are worth a signal."""

    refused_min: Annotated[int, Field(ge=1)] = 20
    """Fewer than these within ``window_s`` are no signal."""
    window_s: Annotated[float, Field(gt=0, le=3600)] = 10.0
    """Also how long none may have come for an episode to end."""
    update_s: Annotated[float, Field(gt=0)] = 10.0
    """At most one update in this time while an episode lasts."""


@dataclass(slots=True)
class _Port:
    from_ns: int
    at_ns: int
    clock_error_ns: int
    told_ns: int = 0
    """When a signal last told of it; 0 before there are enough."""
    refused: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_CAUSES, 0))
    peak_per_s: float = 0.0
    sources: list[str] = field(default_factory=list)


class RefusedHeartbeats(Detector):
    """Ports at which forged, replayed or meaningless heartbeats arrive."""

    name: ClassVar[str] = "heartbeats_refused"
    version: ClassVar[int] = 1
    about: ClassVar[str] = "heartbeats that are forged, replayed or nobody's"
    consumes = (HeartbeatsRefused,)
    Settings = HeartbeatsRefusedSettings
    settings: HeartbeatsRefusedSettings

    def __init__(self, node: str, zone: str, settings: Any) -> None:
        super().__init__(node, zone, settings)
        self._ports: dict[str, _Port] = {}

    def observe(self, event: HeartbeatsRefused) -> Iterator[Signal]:
        """Signals that follow, also the end of an episode that this report is too late to belong to."""
        port = self._ports.get(event.interface)
        if port is not None and event.at_ns <= port.at_ns:
            return
        self.changed = True
        if port is not None and event.from_ns > port.at_ns + self._window_ns():
            yield from self._over(event.interface)
            port = None
        if port is None:
            port = self._ports[event.interface] = _Port(event.from_ns, 0, event.clock_error_ns)
        port.at_ns, port.clock_error_ns = event.at_ns, event.clock_error_ns
        for cause in _CAUSES:
            port.refused[cause] += getattr(event, cause)
        refused = sum(getattr(event, cause) for cause in _CAUSES)
        seconds = max(1.0, (event.at_ns - event.from_ns) / _SECOND_NS)
        port.peak_per_s = max(port.peak_per_s, refused / seconds)
        port.sources = [*dict.fromkeys([*port.sources, *event.sources])][:_SOURCES_MAX]
        if not port.told_ns:
            if sum(port.refused.values()) >= self.settings.refused_min:
                yield self._tell(event.interface, port, Phase.RAISED, event.at_ns)
        elif event.at_ns - port.told_ns >= self.settings.update_s * _SECOND_NS:
            yield self._tell(event.interface, port, Phase.UPDATED, event.at_ns)

    def tick(self, now_ns: int) -> Iterator[Signal]:
        """End what has been quiet for the window."""
        for interface, port in list(self._ports.items()):
            if port.at_ns + self._window_ns() <= now_ns:
                self.changed = True
                yield from self._over(interface)

    def state(self) -> dict[str, Any]:
        """The ports at which something is refused now."""
        return {interface: asdict(port) for interface, port in self._ports.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what ``state`` returned."""
        self._ports = {interface: _Port(**stored) for interface, stored in state.items()}

    def _window_ns(self) -> int:
        return int(self.settings.window_s * _SECOND_NS)

    def _over(self, interface: str) -> Iterator[Signal]:
        port = self._ports.pop(interface)
        if port.told_ns:
            yield self._tell(interface, port, Phase.CLEARED, port.at_ns + self._window_ns())

    def _tell(self, interface: str, port: _Port, phase: Phase, at_ns: int) -> Signal:
        port.told_ns = at_ns
        counts = ", ".join(f"{count:,} {cause}" for cause, count in port.refused.items() if count)
        total = sum(port.refused.values())
        whence = f" from {', '.join(port.sources)}" if port.sources else ""
        place = f"{self.node}/{interface}" if interface else self.node
        what = f"{total:,} heartbeats refused ({counts}), up to {port.peak_per_s:,.0f}/s{whence}"
        return self.signal(
            phase,
            kind="heartbeats.refused",
            subject=identity.nic(self.node, interface) if interface else identity.node(self.node),
            raised_ns=port.from_ns,
            at_ns=at_ns,
            clock_error_ns=port.clock_error_ns,
            severity=Severity.WARNING,
            summary=f"{place}: {what}; no route moved"[:512],
            evidence=[
                Evidence(at_ns=port.at_ns, what=what, value=float(total), unit="heartbeats"),
            ],
            advice="Find who sends them: a host that should not be on this network, or a peer whose "
            "key differs.",
            attributes={**port.refused, "peak_per_s": round(port.peak_per_s, 1)},
        )
