"""Which event becomes which row of which table. Pure.

Batches are appended column by column, as they came. An event becomes one row of the columns that
queries filter by: each takes the event's field of its name, or for a time that of its name with
``_ns``; where events are told as a story, ``document`` is the whole as JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from schemas.action import Action, Outcome
from schemas.agent import TelemetryDropped
from schemas.deadletter import DeadLetter
from schemas.event import Batch, Event
from schemas.incident import Incident
from schemas.inventory import InventoryItem
from schemas.kernel import KernelReport
from schemas.packet import InterfaceCounters, LinkTransition, TcpFlows
from schemas.registry import encode
from schemas.signal import Signal

Row = dict[str, Any]

_HEAD_BYTES = 512

_batches: dict[type[Batch], str] = {
    TcpFlows: "tcp_flows",
    InterfaceCounters: "interface_counters",
}


class Block:
    """Rows for one table, column by column."""

    def __init__(self) -> None:
        self.columns: dict[str, list[Any]] = {}
        self.rows = 0

    def add_row(self, row: Row) -> None:
        """Append one row."""
        if not self.columns:
            self.columns = {name: [] for name in row}
        for name, value in row.items():
            self.columns[name].append(value)
        self.rows += 1

    def add_batch(self, batch: Batch, with_interval: bool) -> None:
        """Append a batch's table; what is the batch's own is repeated in every row."""
        rows = len(batch.columns)
        table = batch.columns.__dict__
        common: Row = {
            "at": batch.at_ns,
            "node": batch.node,
            "zone": batch.zone,
            "clock_error_ns": batch.clock_error_ns,
        }
        if with_interval:
            common["interval_ns"] = batch.at_ns - batch.from_ns
        if not self.columns:
            self.columns = {name: [] for name in (*common, *table)}
        for name, value in common.items():
            self.columns[name].extend([value] * rows)
        for name, values in table.items():
            self.columns[name].extend(values)
        self.rows += rows


class Blocks:
    """Rows for all tables."""

    def __init__(self) -> None:
        self.by_table: dict[str, Block] = {}
        self.rows = 0

    def add(self, event: Event) -> None:
        """Take in one event; one that no table keeps is passed over."""
        if isinstance(event, Batch):
            table = _batches.get(type(event))
            if table is not None and len(event.columns):
                block = self.by_table.setdefault(table, Block())
                block.add_batch(event, with_interval=table == "tcp_flows")
                self.rows += len(event.columns)
            return
        kept = _INVENTORY if isinstance(event, InventoryItem) else _TABLES.get(type(event))
        if kept is not None:
            table, columns = kept
            row = {column: _value(event, column) for column in columns}
            self.by_table.setdefault(table, Block()).add_row(row)
            self.rows += 1

    def forget_subject(self, subject: str, at_ns: int) -> None:
        """Record that an inventory subject is gone."""
        row = {"at": at_ns, "subject": subject, "schema": "", "gone": True, "document": ""}
        self.by_table.setdefault("inventory", Block()).add_row(row)
        self.rows += 1


_TABLES: dict[type[Event], tuple[str, tuple[str, ...]]] = {
    LinkTransition: (
        "link_transitions",
        (
            *("at", "id", "node", "zone", "subject", "carrier", "admin_up", "present", "physical"),
            *("since", "carrier_losses", "unseen", "speed_mbps", "mtu_bytes", "clock_error_ns"),
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
