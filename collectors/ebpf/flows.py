"""From the kernel's records to ``TcpFlowStats``: what every flow did since the last call.

Counts are totals in the kernel and differences here, by socket cookie, so a failed run loses nothing.
A flow that was there before the watch began has its first record as its base; one that began later
counts from nothing, though it be seen for the first time at its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bus import log
from collectors.base import Host
from collectors.ebpf.cgroup import Cgroups, NoCgroups, mount
from collectors.ebpf.record import Change, Record, change, ends
from collectors.ebpf.watch import FlowWatch, NoEbpf, load, refused
from collectors.endpoints import Ends
from schemas.event import Event
from schemas.identity import content_id
from schemas.packet import TcpFlowStats, TcpFlowStatsColumns

# A row is at most about 4.3 KB of JSON, a message at most 1 MiB.
ROWS_MAX = 240
# A flow may be missed where its namespace cannot be entered for once.
_FORGET_RUNS = 20

Row = tuple[str | int | bool | list[int], ...]

_log = log.get(__name__)


class Flows:
    """What was known of each flow at the last call, and the watch that tells of them."""

    def __init__(
        self, host: Host, patterns: Sequence[str], all_namespaces: bool, include_loopback: bool
    ) -> None:
        """Begin to watch.

        Args:
            host: the host.
            patterns: how cgroups of jobs are named, see :func:`collectors.ebpf.cgroup.job`.
            all_namespaces: all network namespaces of the host, not only that of this thread.
            include_loopback: also flows that do not leave the host.

        Raises:
            NoEbpf: it cannot be done here.
        """
        self._host = host
        self._include_loopback = include_loopback
        self._cgroups = _cgroups(patterns)
        try:
            self._watch = FlowWatch(self._cgroups.descriptor, all_namespaces)
        except NoEbpf:
            self._cgroups.close()
            raise
        self._known: dict[int, tuple[Record, Ends, int]] = {}
        self._run = 0
        self._ends_lost = 0
        self._before_ns = host.clock.read().ns
        try:
            self._rows()
        except OSError as error:
            self.close()
            raise refused(error) from None

    def collect(self, rows_max: int) -> Iterator[Event]:
        """``TcpFlowStats`` since the last call, in parts of so many rows."""
        rows = self._rows()
        now = self._host.clock.read()
        from_ns, self._before_ns = min(self._before_ns, now.ns), now.ns
        size = min(rows_max, ROWS_MAX)
        for part, start in enumerate(range(0, len(rows), size)):
            columns = zip(*rows[start : start + size], strict=True)
            yield TcpFlowStats(
                id=content_id("tcp.flow_stats", self._host.node, from_ns, now.ns, part),
                zone=self._host.zone,
                at_ns=now.ns,
                clock_error_ns=now.error_ns,
                node=self._host.node,
                from_ns=from_ns,
                columns=TcpFlowStatsColumns(
                    **dict(zip(TcpFlowStatsColumns.model_fields, map(list, columns), strict=True))
                ),
            )

    def close(self) -> None:
        """End the watch."""
        self._watch.close()
        self._cgroups.close()

    def _rows(self) -> list[Row]:
        self._run += 1
        rows = []
        for record in self._watch.read():
            known = self._known.get(record.cookie)
            if known is None:
                before, between = record if record.adopted else None, ends(record)
            else:
                before, between, _ = known
            if record.closed:
                self._known.pop(record.cookie, None)
            else:
                self._known[record.cookie] = record, between, self._run
            if self._include_loopback or not between.loopback:
                rows.append(
                    row(record, between, change(before, record), *self._cgroups.find(record.cgroup))
                )
        self._forget()
        return rows

    def _forget(self) -> None:
        """Let go of flows whose end nobody told."""
        old = self._run - _FORGET_RUNS
        for cookie in [cookie for cookie, (*_, run) in self._known.items() if run < old]:
            del self._known[cookie]
        lost = self._watch.ends_lost()
        if lost > self._ends_lost:
            _log.warning(
                "ends of TCP flows not told, too many at once", flows=lost - self._ends_lost
            )
            self._ends_lost = lost


def possible() -> str:
    """What can be had here, found out by loading the programs.

    Raises:
        NoEbpf: nothing.
    """
    cgroups = _cgroups(())
    cgroups.close()
    load().close()
    return "round trips, losses and ends of all flows, and the jobs that they belong to"


def row(record: Record, between: Ends, did: Change, cgroup: str, job: str) -> Row:
    """A row in the order of ``TcpFlowStatsColumns``."""
    return (
        between.local,
        between.remote,
        cgroup,
        job,
        bool(record.callbacks),
        bool(record.closed),
        record.rtt_us,
        did.rtt.min_us,
        did.rtt.p50_us,
        did.rtt.p99_us,
        did.rtt.max_us,
        did.rtt.from_us,
        did.rtt.samples,
        record.cwnd_segments,
        did.segments_sent,
        did.segments_retransmitted,
        did.loss_episodes,
        did.timeouts,
        did.bytes_sent,
        did.bytes_received,
        record.delivery_rate_bytes_per_s,
    )


def _cgroups(patterns: Sequence[str]) -> Cgroups:
    try:
        return Cgroups(mount(), patterns)
    except NoCgroups as error:
        raise NoEbpf(
            f"{error}; programs are attached there",
            "mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 none /sys/fs/cgroup/unified",
        ) from None
    except OSError as error:
        raise NoEbpf(f"{error.filename}: {error.strerror}") from None
