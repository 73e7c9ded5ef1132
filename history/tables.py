"""Which event becomes which row of which table. Pure.

A batch goes to its table as the message that it came as (:mod:`history.insert`). An event becomes one
row of the columns that queries filter by: each takes the event's field of its name, or for a time that
of its name with ``_ns``; where events are told as a story, ``document`` is the whole as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any

from schemas.action import Action, Outcome
from schemas.agent import TelemetryDropped
from schemas.deadletter import DeadLetter
from schemas.event import Batch, Event
from schemas.incident import Incident
from schemas.inventory import InventoryItem
from schemas.kernel import KernelReport
from schemas.packet import InterfaceCounters, LinkTransition, TcpFlows, TcpFlowStats
from schemas.path import (
    FlowStall,
    HeartbeatsRefused,
    PathHealth,
    PathTransition,
    ReflexOutcome,
    RouteMove,
)
from schemas.registry import encode
from schemas.signal import Signal

Row = dict[str, Any]

_HEAD_BYTES = 512

_BATCHES: dict[type[Batch], str] = {
    TcpFlows: "tcp_flows",
    TcpFlowStats: "tcp_flow_stats",
    InterfaceCounters: "interface_counters",
    PathHealth: "path_health",
}


class RowBlock:
    """Rows for one table made from events, column by column."""

    def __init__(self) -> None:
        self.columns: dict[str, list[Any]] = {}
        self.rows = 0

    def add(self, row: Row) -> None:
        """Append one row."""
        if not self.columns:
            self.columns = {name: [] for name in row}
        for name, value in row.items():
            self.columns[name].append(value)
        self.rows += 1


class BatchBlock:
    """Rows for one table of samples: the messages themselves, which ClickHouse takes apart.

    They have been read and found right before; turning their tables into rows in Python as well would
    cost several times what reading them does.
    """

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.rows = 0

    def add(self, message: bytes, rows: int) -> None:
        """Append a message and the number of rows in its table."""
        self.messages.append(message)
        self.rows += rows


Block = RowBlock | BatchBlock


class Blocks:
    """Rows for all tables."""

    def __init__(self) -> None:
        self.samples: dict[str, BatchBlock] = {}
        self.events: dict[str, RowBlock] = {}
        self.rows = 0

    def add(self, event: Event, message: bytes) -> None:
        """Take in one event and the message that it came as; one that no table keeps is passed over."""
        if isinstance(event, Batch):
            table = _BATCHES.get(type(event))
            if table is not None and (rows := len(event.columns)):
                self.samples.setdefault(table, BatchBlock()).add(message, rows)
                self.rows += rows
            return
        kept = _INVENTORY if isinstance(event, InventoryItem) else _TABLES.get(type(event))
        if kept is not None:
            table, columns = kept
            self._add_row(table, {column: _value(event, column) for column in columns})

    def forget_subject(self, subject: str, at_ns: int) -> None:
        """Record that an inventory subject is gone."""
        row = {"at": at_ns, "subject": subject, "schema": "", "gone": True, "document": ""}
        self._add_row("inventory", row)

    def by_table(self) -> Iterator[tuple[str, Block]]:
        """Each table's block."""
        yield from self.samples.items()
        yield from self.events.items()

    def _add_row(self, table: str, row: Row) -> None:
        self.events.setdefault(table, RowBlock()).add(row)
        self.rows += 1


_TABLES: dict[type[Event], tuple[str, tuple[str, ...]]] = {
    LinkTransition: (
        "link_transitions",
        (
            *("at", "id", "node", "zone", "subject", "carrier", "admin_up", "present", "physical"),
            *("since", "carrier_losses", "unseen", "speed_mbps", "mtu_bytes", "clock_error_ns"),
        ),
    ),
    PathTransition: (
        "path_transitions",
        (
            *("at", "id", "node", "zone", "subject", "peer", "interface", "peer_interface"),
            *("alive", "fault", "since", "paths_alive", "heartbeats_missed", "clock_error_ns"),
        ),
    ),
    RouteMove: (
        "route_moves",
        (
            *("at", "id", "node", "zone", "subject", "peer", "destination", "reason"),
            *("from_path", "to_path", "dry_run", "failed", "decided", "clock_error_ns"),
        ),
    ),
    FlowStall: (
        "flow_stalls",
        (
            *("at", "id", "node", "zone", "subject", "peer", "failed", "flows"),
            *("flows_recovered", "stall_ns", "sample", "clock_error_ns"),
        ),
    ),
    HeartbeatsRefused: (
        "heartbeats_refused",
        (
            *("at", "id", "node", "zone", "subject", "interface", "from", "malformed", "forged"),
            *("replayed", "unprocessed", "sources", "clock_error_ns"),
        ),
    ),
    ReflexOutcome: (
        "reflex_outcomes",
        (
            *("at", "id", "zone", "remedy", "purpose", "target", "subject", "status", "detail"),
            *("started", "clock_error_ns"),
        ),
    ),
    KernelReport: (
        "kernel_reports",
        (
            *("at", "id", "node", "zone", "subject", "category", "code", "subcode", "pci_address"),
            *("pid", "process", "correctable", "message", "count", "first", "boot_id"),
            "clock_error_ns",
        ),
    ),
    TelemetryDropped: (
        "telemetry_dropped",
        ("at", "id", "node", "zone", "messages", "message_bytes", "from"),
    ),
    Signal: (
        "signals",
        (
            *("at", "id", "zone", "episode", "kind", "subject", "phase", "raised", "detector"),
            *("detector_version", "severity", "summary", "document"),
        ),
    ),
    Incident: (
        "incident_revisions",
        (
            *("at", "id", "zone", "incident", "revision", "state", "kind", "subject", "severity"),
            *("summary", "confidence", "opened", "mitigated", "resolved", "reopened", "jobs"),
            *("gpus", "cost_gpu_s", "document"),
        ),
    ),
    Action: (
        "actions",
        (
            *("at", "id", "zone", "incident", "incident_revision", "remedy", "purpose", "mode"),
            *("dry_run", "target", "subject", "reason", "document"),
        ),
    ),
    Outcome: (
        "outcomes",
        (
            *("at", "id", "zone", "action", "incident", "remedy", "purpose", "target", "status"),
            *("detail", "attempts", "started", "document"),
        ),
    ),
    DeadLetter: (
        "deadletters",
        (
            *("at", "id", "topic", "partition", "offset", "reader", "reason", "original_bytes"),
            "head",
        ),
    ),
}
_INVENTORY = ("inventory", ("at", "subject", "schema", "gone", "document"))

_DERIVED: dict[str, Callable[[Any], Any]] = {
    "document": lambda event: encode(event).decode(),
    "schema": lambda event: event.schema_name,
    "gone": lambda event: False,
    "head": lambda event: event.original_base64[:_HEAD_BYTES],
    "jobs": lambda event: event.victims.jobs,
    "gpus": lambda event: event.victims.gpus,
}


def _value(event: Event, column: str) -> Any:
    if column in _DERIVED:
        return _DERIVED[column](event)
    fields = event.__dict__
    value = fields[column] if column in fields else fields[f"{column}_ns"]
    return str(value) if isinstance(value, StrEnum) else value
