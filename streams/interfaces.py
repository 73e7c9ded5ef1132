"""Interfaces whose errors or drops come too fast: detector ``interface_errors``.

Counters are totals, so rates are differences between one batch and the next over the time that
truly passed. A total below the last one is a 32-bit wrap where the driver's counter was near its
end, and otherwise a reset (driver reloaded), whose new value is only the next baseline: when those
errors came is not known. Time that does not advance (a clock set back, a batch read again) gives a
new baseline and no rate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import Field

from schemas import identity
from schemas.packet import InterfaceColumns, InterfaceCounters
from schemas.signal import EVIDENCE_MAX, Evidence, Phase, Severity, Signal
from streams.base import Detector, DetectorSettings

_SECOND_NS = 1_000_000_000
_WRAP = 1 << 32
_WRAP_STEP_MAX = 1 << 28
"""A wrap is believed only where it means fewer counts than this in one interval."""
_STALE_NS = 120 * _SECOND_NS


class InterfaceErrorsSettings(DetectorSettings):
    """Above which rates an interface is at fault, and how long it must last."""

    errors_per_s: Annotated[float, Field(gt=0)] = 10.0
    """Receive and transmit errors together; what NVSentinel warns of on RDMA ports."""
    dropped_per_s: Annotated[float, Field(ge=0)] = 0.0
    """Dropped and missed frames; 0 leaves them alone, as by default: kernels drop frames that
    nobody listens to, so only an operator knows which rate is a fault on his network."""
    for_intervals: Annotated[int, Field(ge=1, le=100)] = 2
    """Intervals in a row above a rate that raise."""
    clear_intervals: Annotated[int, Field(ge=1, le=1000)] = 3
    """Intervals in a row below half of the rates that clear."""
    update_s: Annotated[float, Field(gt=0)] = 10.0
    """At most one update in this time while an episode lasts."""


def increase(before: int, now: int) -> int:
    """What a counter counted between two readings; 0 after a reset."""
    if now >= before:
        return now - before
    wrapped = now + _WRAP - before
    return wrapped if before < _WRAP and wrapped < _WRAP_STEP_MAX else 0


@dataclass(slots=True)
class _Episode:
    raised_ns: int
    evidence: list[Evidence]
    intervals: int
    told_ns: int
    at_ns: int
    clock_error_ns: int


@dataclass(slots=True)
class _Interface:
    at_ns: int
    totals: tuple[int, ...]
    above: list[Evidence] = field(default_factory=list)
    """Evidence of the intervals above a rate, in a row, before they are enough."""
    above_from_ns: int = 0
    below: int = 0


class InterfaceErrors(Detector):
    """Interfaces whose error rate is above a threshold."""

    name: ClassVar[str] = "interface_errors"
    version: ClassVar[int] = 1
    about: ClassVar[str] = "network interfaces with too many errors (or, if asked, drops) a second"
    consumes = (InterfaceCounters,)
    Settings = InterfaceErrorsSettings
    settings: InterfaceErrorsSettings

    def __init__(self, node: str, zone: str, settings: Any) -> None:
        super().__init__(node, zone, settings)
        self._interfaces: dict[str, _Interface] = {}
        self._episodes: dict[str, _Episode] = {}

    def observe(self, event: InterfaceCounters) -> Iterator[Signal]:
        """Signals that follow from this interval."""
        columns = event.columns
        seen: dict[str, _Interface] = {}
        for name, totals in zip(columns.interface, _totals(columns), strict=True):
            before = self._interfaces.get(name)
            if before is None or event.at_ns <= before.at_ns:
                seen[name] = _Interface(event.at_ns, totals)
                continue
            seen[name] = before
            steps = [increase(a, b) for a, b in zip(before.totals, totals, strict=True)]
            from_ns, before.at_ns, before.totals = before.at_ns, event.at_ns, totals
            if any(steps) or before.above or name in self._episodes:
                yield from self._judge(event, name, before, steps, from_ns)
        self._interfaces = seen
        for name in [name for name in self._episodes if name not in seen]:
            yield self._clear(name, event.at_ns, "interface removed")

    def tick(self, now_ns: int) -> Iterator[Signal]:
        """End episodes of which nothing is heard any more: no counters for two minutes."""
        for name, episode in list(self._episodes.items()):
            # Just restored: silence is measured from now on.
            episode.at_ns = episode.at_ns or now_ns
            if episode.at_ns + _STALE_NS <= now_ns:
                self._interfaces.pop(name, None)
                yield self._clear(name, episode.at_ns + _STALE_NS, "no counters any more")

    def state(self) -> dict[str, Any]:
        """The episodes; totals are not worth storing, the next batch is a baseline."""
        return {
            name: {
                "raised_ns": episode.raised_ns,
                "evidence": [one.model_dump() for one in episode.evidence],
                "intervals": episode.intervals,
                "told_ns": episode.told_ns,
                "at_ns": 0,
                "clock_error_ns": episode.clock_error_ns,
            }
            for name, episode in self._episodes.items()
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what ``state`` returned."""
        self._episodes = {
            name: _Episode(
                **{**stored, "evidence": [Evidence.model_validate(e) for e in stored["evidence"]]}
            )
            for name, stored in state.items()
        }

    def _judge(
        self,
        event: InterfaceCounters,
        name: str,
        interface: _Interface,
        steps: list[int],
        from_ns: int,
    ) -> Iterator[Signal]:
        rx_errors, tx_errors, rx_crc_errors, *dropped = steps
        duration_s = (event.at_ns - from_ns) / _SECOND_NS
        # By the kernel's rule rx_errors includes CRC errors; some drivers count those apart.
        errors_per_s = (max(rx_errors, rx_crc_errors) + tx_errors) / duration_s
        dropped_per_s = sum(dropped) / duration_s
        errors_part = errors_per_s / self.settings.errors_per_s
        dropped_part = (
            dropped_per_s / self.settings.dropped_per_s if self.settings.dropped_per_s else 0.0
        )
        part = max(errors_part, dropped_part)
        rate, unit = (
            (errors_per_s, "errors/s")
            if errors_part >= dropped_part
            else (dropped_per_s, "drops/s")
        )
        above = part > 1
        what = f"{rate:,.1f} {unit}"
        if unit == "errors/s" and rx_crc_errors:
            what += f", {rx_crc_errors / duration_s:,.1f} CRC errors/s"
        evidence = Evidence(at_ns=event.at_ns, what=what, value=round(rate, 3), unit=unit)

        episode = self._episodes.get(name)
        if episode is None:
            if not above:
                interface.above = []
                return
            if not interface.above:
                interface.above_from_ns = from_ns
            interface.above.append(evidence)
            if len(interface.above) >= self.settings.for_intervals:
                episode = self._episodes[name] = _Episode(
                    interface.above_from_ns,
                    interface.above[-EVIDENCE_MAX:],
                    len(interface.above),
                    event.at_ns,
                    event.at_ns,
                    event.clock_error_ns,
                )
                interface.above, interface.below = [], 0
                yield self._tell(name, episode, Phase.RAISED, event.at_ns)
            return

        episode.at_ns, episode.clock_error_ns = event.at_ns, event.clock_error_ns
        if above:
            episode.evidence = [*episode.evidence, evidence][-EVIDENCE_MAX:]
            episode.intervals += 1
            if event.at_ns - episode.told_ns >= self.settings.update_s * _SECOND_NS:
                episode.told_ns = event.at_ns
                yield self._tell(name, episode, Phase.UPDATED, event.at_ns)
        interface.below = interface.below + 1 if part < 0.5 else 0
        if interface.below >= self.settings.clear_intervals:
            interface.below = 0
            yield self._clear(name, event.at_ns, f"now {what}")

    def _clear(self, name: str, at_ns: int, why: str) -> Signal:
        return self._tell(name, self._episodes.pop(name), Phase.CLEARED, at_ns, f"; {why}")

    def _tell(
        self, name: str, episode: _Episode, phase: Phase, at_ns: int, why: str = ""
    ) -> Signal:
        self.changed = True
        worst = max(episode.evidence, key=lambda one: one.value or 0.0)
        return self.signal(
            phase,
            kind="interface.errors",
            subject=identity.nic(self.node, name),
            raised_ns=episode.raised_ns,
            at_ns=at_ns,
            clock_error_ns=episode.clock_error_ns,
            severity=Severity.WARNING,
            summary=f"{self.node}/{name}: up to {worst.what}{why}",
            evidence=episode.evidence,
            evidence_dropped=episode.intervals - len(episode.evidence),
            advice="Errors on the wire: clean or replace cable and transceiver, check the peer port.",
        )


def _totals(columns: InterfaceColumns) -> Iterator[tuple[int, ...]]:
    return zip(
        columns.rx_errors,
        columns.tx_errors,
        columns.rx_crc_errors,
        columns.rx_dropped,
        columns.tx_dropped,
        columns.rx_missed,
        strict=True,
    )
