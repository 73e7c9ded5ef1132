"""How long rows are kept, and how much disk they may take.

Age is ClickHouse's own TTL, set from the settings at start. Size is ours: where a bound is given (the
embedded stack always gives one) the oldest hours of samples are dropped until the tables fit.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from clickhouse_connect.driver.exceptions import ClickHouseError

from bus import log
from history.client import first_line

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

SAMPLES = ("tcp_flows", "tcp_flow_stats", "interface_counters", "path_health")
EVENTS = (
    "link_transitions",
    "path_transitions",
    "route_moves",
    "flow_stalls",
    "heartbeats_refused",
    "reflex_outcomes",
    "kernel_reports",
    "telemetry_dropped",
    "signals",
    "incident_revisions",
    "actions",
    "outcomes",
    "deadletters",
)
_CHECK_S = 30.0
_DROP_AT_ONCE = 10

_log = log.get(__name__)


class Retention:
    """Keeps the tables within their bounds."""

    def __init__(self, client: Client, samples_days: int, events_days: int, max_bytes: int) -> None:
        self._client = client
        self._max_bytes = max_bytes
        self._next_s = time.monotonic() + _CHECK_S
        for table in SAMPLES:
            self._set_ttl(table, samples_days)
        for table in EVENTS:
            self._set_ttl(table, events_days)

    def step(self) -> None:
        """Look after the size, at most twice a minute."""
        if self._max_bytes and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _CHECK_S
            try:
                self.fit()
            except (ClickHouseError, OSError) as error:
                _log.warning("size of the history not checked", reason=first_line(error))

    def fit(self) -> int:
        """Drop the oldest hours of samples until the tables fit; returns how many were dropped."""
        total = self._client.query(
            "SELECT sum(bytes_on_disk) FROM system.parts WHERE database = currentDatabase()"
        ).result_rows[0][0]
        dropped = 0
        if total > self._max_bytes:
            oldest = self._client.query(
                "SELECT table, partition_id, sum(bytes_on_disk) FROM system.parts"
                " WHERE active AND database = currentDatabase() AND table IN {tables:Array(String)}"
                " GROUP BY table, partition_id ORDER BY partition_id LIMIT {limit:UInt32}",
                parameters={"tables": list(SAMPLES), "limit": _DROP_AT_ONCE},
            ).result_rows
            for table, partition, size in oldest:
                if total <= self._max_bytes:
                    break
                self._client.command(f"ALTER TABLE {table} DROP PARTITION ID '{partition}'")
                _log.warning(
                    "dropped the oldest samples to stay within history.max_bytes",
                    table=table,
                    partition=partition,
                    dropped_bytes=size,
                )
                total -= size
                dropped += 1
        return dropped

    def _set_ttl(self, table: str, days: int) -> None:
        ttl = f"toDateTime(at) + toIntervalDay({days})"
        created = self._client.command(f"SHOW CREATE TABLE {table}")
        if ttl not in str(created):
            self._client.command(
                f"ALTER TABLE {table} MODIFY TTL {ttl}",
                settings={"materialize_ttl_after_modify": 0},
            )
