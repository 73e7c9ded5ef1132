"""Paths that live but have become worse: detector ``path_degraded`` (loss, delay, rate).

Everything is measured against the path itself. *Loss* is heartbeats that were sent and not heard.
*Delay* is a median round trip above the path's own baseline: the median of its healthy intervals and
their median absolute deviation, which a few odd intervals do not move. *Rate* is a delay that comes
with traffic standing at a plateau well below what the interface has carried before, and that sways as
a queue does; a constant addition is delay.

What is no fault of the path is left out: an interface that carries about as much as it ever has is
loaded, not degraded; and what all interfaces of a node suffer alike (a busy host) is the host's. One
interval says nothing: some of the newest few must agree.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Annotated, Any, ClassVar

from pydantic import Field

from schemas.packet import InterfaceCounters
from schemas.path import PathHealth, PathHealthColumns
from schemas.signal import EVIDENCE_MAX, Evidence, Phase, Severity, Signal
from streams.base import Detector, DetectorSettings
from streams.interfaces import increase

_SECOND_NS = 1_000_000_000
_STALE_NS = 120 * _SECOND_NS
_BASELINE_MAX = 60
_REFIT = 20
"""The baseline is computed anew after this many healthy intervals."""
_MAD_TO_SIGMA = 1.4826
_PEAK_DECAY = 0.999
_RATE_MIN_BYTES_PER_S = 100_000


class PathDegradedSettings(DetectorSettings):
    """How much worse than itself a path must be, and for how long."""

    loss_ratio: Annotated[float, Field(gt=0, lt=1)] = 0.01
    """Heartbeats lost of those sent."""
    lost_min: Annotated[int, Field(ge=1)] = 2
    """Fewer lost heartbeats than these in an interval say nothing."""
    delay_us: Annotated[float, Field(gt=0)] = 500.0
    """A median round trip that is above the baseline by less than this is no fault."""
    delay_ratio: Annotated[float, Field(gt=0)] = 1.0
    """Nor is one above it by less than this share of the baseline."""
    sigmas: Annotated[float, Field(gt=0)] = 8.0
    """Nor one within this many robust standard deviations of the baseline."""
    baseline_intervals: Annotated[int, Field(ge=3, le=_BASELINE_MAX)] = 10
    """Healthy intervals that make a baseline; before, delay is not judged."""
    window: Annotated[int, Field(ge=1, le=60)] = 5
    """The newest intervals that are looked at."""
    raise_intervals: Annotated[int, Field(ge=1, le=60)] = 3
    """So many of them must be bad."""
    clear_intervals: Annotated[int, Field(ge=1, le=1000)] = 5
    """Good intervals in a row that clear."""
    loaded: Annotated[float, Field(gt=0, le=1)] = 0.8
    """An interface that carries this share of its highest rate is loaded, not degraded."""
    update_s: Annotated[float, Field(gt=0)] = 10.0
    """At most one update in this time while an episode lasts."""


@dataclass(slots=True)
class _Bad:
    """A bad interval."""

    from_ns: int
    evidence: Evidence
    lost: float
    excess_us: float
    sways: bool
    bytes_per_s: float


@dataclass(slots=True)
class _Path:
    peer: str
    interface: str
    healthy: deque[int] = field(default_factory=lambda: deque(maxlen=_BASELINE_MAX))
    since_fit: int = 0
    baseline_us: float = 0.0
    """0 where there is none yet."""
    limit_us: float = float("inf")
    """A round trip above it is a delay."""
    window: deque[_Bad | None] = field(default_factory=deque)
    good: int = 0
    episode: _Episode | None = None


@dataclass(slots=True)
class _Episode:
    raised_ns: int
    fault: str
    intervals: int
    worst: str
    told_ns: int
    at_ns: int
    clock_error_ns: int
    evidence: list[Evidence] = field(default_factory=list)


@dataclass(slots=True)
class _Interface:
    at_ns: int
    totals: tuple[int, int]
    bytes_per_s: tuple[float, float] = (0.0, 0.0)
    peak: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def load(self) -> float:
        """The present rate as a share of the highest, of the direction that is nearer to it."""
        return max(
            (now / peak for now, peak in zip(self.bytes_per_s, self.peak, strict=True) if peak),
            default=0.0,
        )


class PathDegraded(Detector):
    """Paths that lose heartbeats or have become slow."""

    name: ClassVar[str] = "path_degraded"
    version: ClassVar[int] = 1
    about: ClassVar[str] = "paths to peers that lose packets, became slow or lost their rate"
    consumes = (PathHealth, InterfaceCounters)
    Settings = PathDegradedSettings
    settings: PathDegradedSettings

    def __init__(self, node: str, zone: str, settings: Any) -> None:
        super().__init__(node, zone, settings)
        self._paths: dict[str, _Path] = {}
        self._interfaces: dict[str, _Interface] = {}
        self._at_ns = 0

    def observe(self, event: PathHealth | InterfaceCounters) -> Iterable[Signal]:
        """Signals that follow from this interval; counters only tell how loaded interfaces are."""
        if isinstance(event, InterfaceCounters):
            if self._interfaces or self._paths:
                self._count(event)
            return ()
        if event.at_ns <= self._at_ns:
            # Read again, or a clock was set back: what it says is known.
            self._at_ns = event.at_ns if event.at_ns + _STALE_NS < self._at_ns else self._at_ns
            return ()
        self._at_ns = event.at_ns
        return self._judge_all(event)

    def tick(self, now_ns: int) -> Iterator[Signal]:
        """End episodes of which nothing is heard any more: no health for two minutes."""
        for subject, path in self._paths.items():
            episode = path.episode
            if episode is None:
                continue
            # Just restored: silence is measured from now on.
            episode.at_ns = episode.at_ns or now_ns
            if episode.at_ns + _STALE_NS <= now_ns:
                yield self._clear(
                    subject, path, episode.at_ns + _STALE_NS, "no word of it any more"
                )

    def state(self) -> dict[str, Any]:
        """The episodes, each with the baseline that it is measured against."""
        return {
            subject: {
                "peer": path.peer,
                "interface": path.interface,
                "baseline_us": path.baseline_us,
                "limit_us": path.limit_us if path.baseline_us else 0.0,
                "raised_ns": episode.raised_ns,
                "fault": episode.fault,
                "intervals": episode.intervals,
                "worst": episode.worst,
                "told_ns": episode.told_ns,
                "clock_error_ns": episode.clock_error_ns,
                "evidence": [one.model_dump() for one in episode.evidence],
            }
            for subject, path in self._paths.items()
            if (episode := path.episode) is not None
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what ``state`` returned."""
        self._paths = {}
        for subject, stored in state.items():
            path = self._new(subject, stored["peer"], stored["interface"])
            if stored["baseline_us"]:
                path.baseline_us, path.limit_us = stored["baseline_us"], stored["limit_us"]
            path.episode = _Episode(
                stored["raised_ns"],
                stored["fault"],
                stored["intervals"],
                stored["worst"],
                stored["told_ns"],
                0,
                stored["clock_error_ns"],
                [Evidence.model_validate(one) for one in stored["evidence"]],
            )

    def _count(self, event: InterfaceCounters) -> None:
        """How much the interfaces that have paths carried."""
        columns = event.columns
        for row, name in enumerate(columns.interface):
            interface = self._interfaces.get(name)
            if interface is None or event.at_ns <= interface.at_ns:
                continue
            totals = columns.rx_bytes[row], columns.tx_bytes[row]
            if interface.at_ns:
                seconds = (event.at_ns - interface.at_ns) / _SECOND_NS
                rates = [
                    increase(a, b) / seconds for a, b in zip(interface.totals, totals, strict=True)
                ]
                interface.bytes_per_s = rates[0], rates[1]
                interface.peak = [
                    max(peak * _PEAK_DECAY, rate)
                    for peak, rate in zip(interface.peak, rates, strict=True)
                ]
            interface.at_ns, interface.totals = event.at_ns, totals

    def _judge_all(self, event: PathHealth) -> Iterator[Signal]:
        columns = event.columns
        excess = [0.0] * len(columns)
        suspects = []
        for row, subject in enumerate(columns.path):
            path = self._paths.get(subject)
            if path is None:
                path = self._new(subject, columns.peer[row], columns.interface[row])
            if not columns.alive[row]:
                # That it is dead is said elsewhere, and its last interval was cut short.
                self._slide(path, None)
                continue
            rtt_us = columns.rtt_p50_us[row]
            if rtt_us and path.baseline_us:
                excess[row] = rtt_us - path.baseline_us
            lost = columns.heartbeats_expected[row] - columns.heartbeats_heard[row]
            if lost >= self.settings.lost_min or rtt_us > path.limit_us:
                suspects.append(row)
            else:
                self._good(path, rtt_us)
                if path.episode is not None:
                    yield from self._recovering(subject, path, event)
        if suspects:
            common_us = self._common(columns, excess) if len(suspects) > 1 else 0.0
            for row in suspects:
                yield from self._judge(event, row, excess[row] - common_us)
        if len(self._paths) > len(columns):
            self._forget(set(columns.path))

    def _judge(self, event: PathHealth, row: int, excess_us: float) -> Iterator[Signal]:
        columns, settings = event.columns, self.settings
        subject = columns.path[row]
        path = self._paths[subject]
        expected = columns.heartbeats_expected[row]
        lost = max(0, expected - columns.heartbeats_heard[row])
        loss = lost / expected if expected else 0.0
        lossy = loss > settings.loss_ratio and lost >= settings.lost_min
        slow = excess_us > path.limit_us - path.baseline_us
        interface = self._interfaces[path.interface]
        if not (lossy or slow) or (interface.load() >= settings.loaded and interface.at_ns):
            self._good(path, 0 if slow else columns.rtt_p50_us[row])
            if path.episode is not None:
                yield from self._recovering(subject, path, event)
            return
        path.good = 0
        rtt_us = columns.rtt_p50_us[row]
        if lossy:
            what = f"{loss:.1%} of {expected:,} heartbeats lost"
            evidence = Evidence(at_ns=event.at_ns, what=what, value=round(loss, 6), unit="loss")
        else:
            what = f"round trip {rtt_us / 1e3:,.2f} ms, was {path.baseline_us / 1e3:,.2f} ms"
            evidence = Evidence(at_ns=event.at_ns, what=what, value=float(rtt_us), unit="us")
        swing_us = max(columns.rtt_max_us[row] - rtt_us, 3 * columns.jitter_us[row])
        sways = slow and swing_us > 0.3 * excess_us
        bytes_per_s = max(interface.bytes_per_s)
        bad = _Bad(event.from_ns, evidence, loss if lossy else 0.0, excess_us, sways, bytes_per_s)
        self._slide(path, bad)
        episode = path.episode
        inside = [one for one in path.window if one is not None]
        if episode is None:
            if len(inside) >= settings.raise_intervals:
                path.episode = _Episode(
                    inside[0].from_ns,
                    self._fault(path, inside),
                    len(inside),
                    _worst(inside),
                    event.at_ns,
                    event.at_ns,
                    event.clock_error_ns,
                    [one.evidence for one in inside],
                )
                yield self._tell(subject, path, Phase.RAISED, event.at_ns)
            return
        episode.at_ns, episode.clock_error_ns = event.at_ns, event.clock_error_ns
        episode.intervals += 1
        episode.evidence = [*episode.evidence, evidence][-EVIDENCE_MAX:]
        fault = self._fault(path, inside)
        refined = len(inside) >= settings.raise_intervals and fault != episode.fault
        if refined or event.at_ns - episode.told_ns >= settings.update_s * _SECOND_NS:
            episode.fault, episode.worst, episode.told_ns = fault, _worst(inside), event.at_ns
            yield self._tell(subject, path, Phase.UPDATED, event.at_ns)

    def _good(self, path: _Path, rtt_us: int) -> None:
        """An interval that says nothing against a path; its round trip (0: none) makes the baseline."""
        path.good += 1
        if path.window:
            self._slide(path, None)
        if not rtt_us or path.episode is not None:
            return
        path.healthy.append(rtt_us)
        path.since_fit += 1
        first = path.baseline_us == 0.0 and len(path.healthy) >= self.settings.baseline_intervals
        if first or (path.baseline_us and path.since_fit >= _REFIT):
            path.since_fit = 0
            middle = median(path.healthy)
            spread = _MAD_TO_SIGMA * median([abs(one - middle) for one in path.healthy])
            path.baseline_us = max(1.0, float(middle))
            path.limit_us = path.baseline_us + max(
                self.settings.delay_us,
                self.settings.delay_ratio * path.baseline_us,
                self.settings.sigmas * spread,
            )

    def _slide(self, path: _Path, bad: _Bad | None) -> None:
        """Move the window on by an interval; one without anything bad is none."""
        path.window.append(bad)
        while len(path.window) > self.settings.window or (path.window and path.window[0] is None):
            path.window.popleft()

    def _recovering(self, subject: str, path: _Path, event: PathHealth) -> Iterator[Signal]:
        assert path.episode is not None
        path.episode.at_ns, path.episode.clock_error_ns = event.at_ns, event.clock_error_ns
        if path.good >= self.settings.clear_intervals:
            yield self._clear(subject, path, event.at_ns, "well again")

    def _common(self, columns: PathHealthColumns, excess: list[float]) -> float:
        """The delay that every interface of the node suffers; 0 where it has but one."""
        by_interface: dict[str, list[float]] = {}
        for row, name in enumerate(columns.interface):
            if columns.alive[row]:
                by_interface.setdefault(name, []).append(excess[row])
        if len(by_interface) < 2:
            return 0.0
        return max(0.0, min(median(some) for some in by_interface.values()))

    def _fault(self, path: _Path, inside: list[_Bad]) -> str:
        """Which it is, by the bad intervals of the window."""
        interface = self._interfaces[path.interface]
        slow = [one for one in inside if one.excess_us > path.limit_us - path.baseline_us]
        rates = [one.bytes_per_s for one in slow]
        most = max(rates, default=0.0)
        plateau = (
            most >= _RATE_MIN_BYTES_PER_S
            and most < 0.7 * max(interface.peak)
            and min(rates) >= 0.6 * most
            and 2 * sum(one.sways for one in slow) > len(slow)
        )
        if plateau and 2 * len(slow) > len(inside):
            return "rate"
        return "loss" if 2 * sum(one.lost > 0 for one in inside) >= len(inside) else "delay"

    def _clear(self, subject: str, path: _Path, at_ns: int, why: str) -> Signal:
        signal = self._tell(subject, path, Phase.CLEARED, at_ns, f"; {why}")
        path.episode = None
        path.window.clear()
        return signal

    def _tell(self, subject: str, path: _Path, phase: Phase, at_ns: int, why: str = "") -> Signal:
        self.changed = True
        episode = path.episode
        assert episode is not None
        route = subject.partition("/")[2]
        return self.signal(
            phase,
            kind="path.degraded",
            subject=subject,
            raised_ns=episode.raised_ns,
            at_ns=at_ns,
            clock_error_ns=episode.clock_error_ns,
            severity=Severity.WARNING,
            summary=f"{self.node}/{path.interface} → {path.peer}, {route}: "
            f"{episode.fault}, up to {episode.worst}{why}",
            evidence=episode.evidence,
            evidence_dropped=episode.intervals - len(episode.evidence),
            advice="Look at cable, transceiver and queues between these two ends: errors, drops, "
            "the negotiated speed, a shaper.",
            attributes={
                "peer": path.peer,
                "interface": path.interface,
                "degraded": episode.fault,
                "baseline_us": round(path.baseline_us, 1),
            },
        )

    def _new(self, subject: str, peer: str, interface: str) -> _Path:
        self._interfaces.setdefault(interface, _Interface(0, (0, 0)))
        path = self._paths[subject] = _Path(peer, interface)
        return path

    def _forget(self, there: set[str]) -> None:
        """Paths that are no longer configured go; one with an episode when that ends."""
        self._paths = {
            subject: path
            for subject, path in self._paths.items()
            if subject in there or path.episode is not None
        }


def _worst(inside: list[_Bad]) -> str:
    lossy = [one for one in inside if one.lost]
    some = lossy or inside
    return max(some, key=lambda one: one.lost if lossy else one.excess_us).evidence.what
