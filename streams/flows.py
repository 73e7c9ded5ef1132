"""Paths on which TCP sends again too much: detector ``tcp_retransmits``.

All flows between two addresses are one path. This runs over every flow of the fleet, so a batch
costs a look at one column and at the few rows that retransmit; all rows are read only where a path
may be above the ratio or is under watch.

An interval of a node may come in several batches with one ``at_ns``; it is judged once the next one
begins or, so that nothing waits for it, at the next tick.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import compress
from typing import Annotated, Any, ClassVar

from pydantic import Field

from schemas import identity
from schemas.packet import TcpFlowColumns, TcpFlows, TcpFlowStats, TcpFlowStatsColumns
from schemas.signal import EVIDENCE_MAX, Evidence, Phase, Severity, Signal
from streams.base import Detector, DetectorSettings

_SECOND_NS = 1_000_000_000
_STALE_NS = 120 * _SECOND_NS
_MAPPED = "::ffff:"

Path = tuple[str, str]
"""Local and remote address, without ports."""


class TcpRetransmitsSettings(DetectorSettings):
    """Above which share of retransmitted segments a path is at fault."""

    ratio: Annotated[float, Field(gt=0, lt=1)] = 0.02
    """Retransmitted segments for each sent one."""
    segments_min: Annotated[int, Field(ge=1)] = 50
    """Fewer segments than these on a path in an interval say nothing."""
    for_intervals: Annotated[int, Field(ge=1, le=100)] = 2
    """Intervals in a row above the ratio that raise."""
    clear_intervals: Annotated[int, Field(ge=1, le=1000)] = 3
    """Intervals in a row below half of the ratio, or without traffic, that clear."""
    update_s: Annotated[float, Field(gt=0)] = 10.0
    """At most one update in this time while an episode lasts."""
    paths_max: Annotated[int, Field(ge=1, le=65_536)] = 1024
    """Paths of one node that are watched at once; more are counted and left alone."""


def address(endpoint: str) -> str:
    """The address of ``address:port``, without brackets; IPv4 in IPv6 as plain IPv4."""
    host = endpoint.rpartition(":")[0]
    if host.startswith("["):
        host = host[1:-1].removeprefix(_MAPPED)
    return host


def _heads(remote: str) -> tuple[str, str, str]:
    """How an endpoint at this address may begin; the inverse of :func:`address`."""
    return f"{remote}:", f"[{remote}]:", f"[{_MAPPED}{remote}]:"


@dataclass(slots=True)
class _Watch:
    """A path above the ratio lately."""

    above: list[Evidence] = field(default_factory=list)
    """Evidence of the intervals above the ratio, newest ``EVIDENCE_MAX``."""
    above_from_ns: int = 0
    intervals: int = 0
    below: int = 0
    raised: bool = False
    told_ns: int = 0


@dataclass(slots=True)
class _Interval:
    from_ns: int
    at_ns: int
    clock_error_ns: int
    sums: dict[Path, list[int]] = field(default_factory=dict)
    """Segments sent and retransmitted on the paths that matter."""
    batches: set[str] = field(default_factory=set)
    """Ids of the batches in the sums, so that none counts twice."""
    judged: bool = False


class TcpRetransmits(Detector):
    """Paths whose share of retransmitted segments is above a threshold."""

    name: ClassVar[str] = "tcp_retransmits"
    version: ClassVar[int] = 2
    about: ClassVar[str] = "paths on which TCP has to send too many segments again"
    consumes = (TcpFlows, TcpFlowStats)
    Settings = TcpRetransmitsSettings
    settings: TcpRetransmitsSettings

    def __init__(self, node: str, zone: str, settings: Any) -> None:
        super().__init__(node, zone, settings)
        self._watched: dict[Path, _Watch] = {}
        self._interval: _Interval | None = None
        self.paths_ignored = 0
        """Paths above the ratio that were not taken under watch because ``paths_max`` were."""

    def observe(self, event: TcpFlows | TcpFlowStats) -> Iterable[Signal]:
        """Signals that follow; they are about the interval before this one."""
        interval = self._interval
        suspects = self._suspects(event.columns)
        if not suspects and not self._watched and (interval is None or not interval.sums):
            self._interval = None
            return ()
        signals: list[Signal] = []
        if interval is None or interval.at_ns != event.at_ns:
            if interval is not None and not interval.judged:
                signals.extend(self._judge_all(interval))
            if interval is not None and event.at_ns < interval.at_ns:
                self._start_over()
            interval = self._interval = _Interval(event.from_ns, event.at_ns, event.clock_error_ns)
        if not interval.judged and event.id not in interval.batches:
            interval.batches.add(event.id)
            self._add(event.columns, suspects, interval.sums)
        return signals

    def tick(self, now_ns: int) -> Iterator[Signal]:
        """Judge an interval that is surely whole; end episodes of a node that fell silent."""
        interval = self._interval
        if interval is None:
            return
        if interval.at_ns == 0:
            interval.at_ns = now_ns
        if not interval.judged and interval.at_ns + _SECOND_NS <= now_ns:
            yield from self._judge_all(interval)
        if interval.judged and not self._watched:
            self._interval = None
        elif interval.judged and interval.at_ns + _STALE_NS <= now_ns:
            interval.at_ns += _STALE_NS
            for path, watch in self._watched.items():
                if watch.raised:
                    yield self._tell(path, watch, Phase.CLEARED, interval, "; no flows any more")
            self._watched, self._interval = {}, None

    def state(self) -> dict[str, Any]:
        """The episodes."""
        return {
            identity.path(self.node, *path): {
                "path": list(path),
                "from_ns": watch.above_from_ns,
                "intervals": watch.intervals,
                "told_ns": watch.told_ns,
                "above": [one.model_dump() for one in watch.above],
            }
            for path, watch in self._watched.items()
            if watch.raised
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what ``state`` returned."""
        self._watched = {}
        for stored in state.values():
            local, remote = stored["path"]
            self._watched[local, remote] = _Watch(
                above=[Evidence.model_validate(one) for one in stored["above"]],
                above_from_ns=stored["from_ns"],
                intervals=stored["intervals"],
                raised=True,
                told_ns=stored["told_ns"],
            )
        # Should the node never speak again, silence is measured from the first tick on.
        self._interval = _Interval(0, 0, 0, judged=True) if self._watched else None

    def _suspects(self, columns: TcpFlowColumns | TcpFlowStatsColumns) -> list[int]:
        """The rows that are above the ratio by themselves: a path above it has at least one."""
        sent, retransmitted = columns.segments_sent, columns.segments_retransmitted
        ratio = self.settings.ratio
        return [
            row
            for row in compress(range(len(sent)), retransmitted)
            if retransmitted[row] > ratio * sent[row]
        ]

    def _add(
        self,
        columns: TcpFlowColumns | TcpFlowStatsColumns,
        suspects: list[int],
        sums: dict[Path, list[int]],
    ) -> None:
        """Add the rows of the paths that matter to an interval's sums."""
        sent, retransmitted = columns.segments_sent, columns.segments_retransmitted
        wanted = {(address(columns.local[row]), address(columns.remote[row])) for row in suspects}
        wanted.update(self._watched, sums)
        if not wanted:
            return
        # Of a hundred rows few go to such a remote: a prefix is looked at before an address is cut out.
        heads = tuple({head for _, remote in wanted for head in _heads(remote)})
        for row, remote in enumerate(columns.remote):
            if (
                remote.startswith(heads)
                and (path := (address(columns.local[row]), address(remote))) in wanted
            ):
                share = sums.setdefault(path, [0, 0])
                share[0] += sent[row]
                share[1] += retransmitted[row]

    def _start_over(self) -> None:
        """Time went back: a clock was set, or batches are read again. No streak goes on."""
        self._watched = {path: watch for path, watch in self._watched.items() if watch.raised}
        for watch in self._watched.values():
            watch.below = 0

    def _judge_all(self, interval: _Interval) -> Iterator[Signal]:
        interval.judged = True
        for path, watch in list(self._watched.items()):
            segments, again = interval.sums.pop(path, (0, 0))
            yield from self._judge(path, watch, interval, segments, again)
        for path, (segments, again) in interval.sums.items():
            if segments < self.settings.segments_min or again <= self.settings.ratio * segments:
                continue
            if len(self._watched) >= self.settings.paths_max:
                self.paths_ignored += 1
                continue
            watch = self._watched[path] = _Watch(above_from_ns=interval.from_ns)
            yield from self._judge(path, watch, interval, segments, again)

    def _judge(
        self, path: Path, watch: _Watch, interval: _Interval, segments: int, again: int
    ) -> Iterator[Signal]:
        enough = segments >= self.settings.segments_min
        ratio = again / segments if segments else float(again > 0)
        if enough and ratio > self.settings.ratio:
            what = f"{ratio:.1%} of {segments:,} segments sent again"
            evidence = Evidence(
                at_ns=interval.at_ns, what=what, value=round(ratio, 6), unit="retransmits/segment"
            )
            watch.above = [*watch.above, evidence][-EVIDENCE_MAX:]
            watch.intervals += 1
            watch.below = 0
            if not watch.raised and watch.intervals >= self.settings.for_intervals:
                watch.raised = True
                yield self._tell(path, watch, Phase.RAISED, interval)
            elif (
                watch.raised
                and interval.at_ns - watch.told_ns >= self.settings.update_s * _SECOND_NS
            ):
                yield self._tell(path, watch, Phase.UPDATED, interval)
        elif not watch.raised:
            del self._watched[path]
        else:
            # Few segments, all of them repeats, are a path that is still broken.
            watch.below = watch.below + 1 if ratio < self.settings.ratio / 2 else 0
            if watch.below >= self.settings.clear_intervals:
                del self._watched[path]
                yield self._tell(path, watch, Phase.CLEARED, interval, f"; now {ratio:.1%}")

    def _tell(
        self, path: Path, watch: _Watch, phase: Phase, interval: _Interval, why: str = ""
    ) -> Signal:
        self.changed = True
        watch.told_ns = interval.at_ns
        worst = max(watch.above, key=lambda one: one.value or 0.0)
        return self.signal(
            phase,
            kind="tcp.retransmits",
            subject=identity.path(self.node, *path),
            raised_ns=watch.above_from_ns,
            at_ns=interval.at_ns,
            clock_error_ns=interval.clock_error_ns,
            severity=Severity.WARNING,
            summary=f"{self.node} {path[0]} → {path[1]}: up to {worst.what}{why}",
            evidence=watch.above,
            evidence_dropped=watch.intervals - len(watch.above),
            advice="Segments are lost on this path: look for errors, drops and congestion along it.",
            attributes={"source": path[0], "destination": path[1]},
        )
