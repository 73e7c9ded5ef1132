"""Which event becomes which row of which table. Pure.

Batches are appended column by column, as they came; events become one row with the columns that
queries filter by, and the whole as a JSON ``document`` where they are told as a story.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

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
_E = TypeVar("_E", bound=Event)

_HEAD_BYTES = 512

_tables: dict[type[Event], tuple[str, Callable[[Any], Row]]] = {}
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
        kept = _tables.get(type(event))
        if kept is None and isinstance(event, InventoryItem):
            kept = ("inventory", _inventory)
        if kept is not None:
            self.by_table.setdefault(kept[0], Block()).add_row(kept[1](event))
            self.rows += 1

    def forget_subject(self, subject: str, at_ns: int) -> None:
        """Record that an inventory subject is gone."""
        row = {"at": at_ns, "subject": subject, "schema": "", "gone": True, "document": ""}
        self.by_table.setdefault("inventory", Block()).add_row(row)
        self.rows += 1


def _row(model: type[_E], table: str) -> Callable[[Callable[[_E], Row]], Callable[[_E], Row]]:
    def register(make: Callable[[_E], Row]) -> Callable[[_E], Row]:
        _tables[model] = (table, make)
        return make

    return register


def _document(event: Event) -> str:
    return encode(event).decode()


@_row(LinkTransition, "link_transitions")
def _link_transition(event: LinkTransition) -> Row:
    return {
        "at": event.at_ns,
        "id": event.id,
        "node": event.node,
        "zone": event.zone,
        "subject": event.subject,
        "carrier": event.carrier,
        "admin_up": event.admin_up,
        "present": event.present,
        "physical": event.physical,
        "since": event.since_ns,
        "carrier_losses": event.carrier_losses,
        "unseen": event.unseen,
        "speed_mbps": event.speed_mbps,
        "mtu_bytes": event.mtu_bytes,
        "clock_error_ns": event.clock_error_ns,
    }


@_row(KernelReport, "kernel_reports")
def _kernel_report(event: KernelReport) -> Row:
    return {
        "at": event.at_ns,
        "id": event.id,
        "node": event.node,
        "zone": event.zone,
        "subject": event.subject,
        "category": str(event.category),
        "code": event.code,
        "subcode": event.subcode,
        "pci_address": event.pci_address,
        "pid": event.pid,
        "process": event.process,
        "correctable": event.correctable,
        "message": event.message,
        "count": event.count,
        "first": event.first_ns,
        "boot_id": event.boot_id,
        "clock_error_ns": event.clock_error_ns,
    }


@_row(TelemetryDropped, "telemetry_dropped")
def _telemetry_dropped(event: TelemetryDropped) -> Row:
    return {
        "at": event.at_ns,
        "id": event.id,
        "node": event.node,
        "zone": event.zone,
        "messages": event.messages,
        "message_bytes": event.message_bytes,
        "from": event.from_ns,
    }


@_row(Signal, "signals")
def _signal(event: Signal) -> Row:
    return {
        "at": event.at_ns,
        "id": event.id,
        "zone": event.zone,
        "episode": event.episode,
        "kind": event.kind,
        "subject": event.subject,
        "phase": str(event.phase),
        "raised": event.raised_ns,
        "detector": event.detector,
        "detector_version": event.detector_version,
        "severity": str(event.severity),
        "summary": event.summary,
        "document": _document(event),
    }


@_row(Incident, "incident_revisions")
def _incident(event: Incident) -> Row:
    return {
        "at": event.at_ns,
        "id": event.id,
        "zone": event.zone,
        "incident": event.incident,
        "revision": event.revision,
        "state": str(event.state),
        "kind": event.kind,
        "subject": event.subject,
        "severity": str(event.severity),
        "summary": event.summary,
        "confidence": event.confidence,
        "opened": event.opened_ns,
        "mitigated": event.mitigated_ns,
        "resolved": event.resolved_ns,
        "reopened": event.reopened,
        "jobs": event.victims.jobs,
        "gpus": event.victims.gpus,
        "cost_gpu_s": event.cost_gpu_s,
        "document": _document(event),
    }


@_row(Action, "actions")
def _action(event: Action) -> Row:
    return {
        "at": event.at_ns,
        "id": event.id,
        "zone": event.zone,
        "incident": event.incident,
        "incident_revision": event.incident_revision,
        "remedy": event.remedy,
        "purpose": event.purpose,
        "mode": str(event.mode),
        "dry_run": event.dry_run,
        "target": event.target,
        "subject": event.subject,
        "reason": event.reason,
        "document": _document(event),
    }


@_row(Outcome, "outcomes")
def _outcome(event: Outcome) -> Row:
    return {
        "at": event.at_ns,
        "id": event.id,
        "zone": event.zone,
        "action": event.action,
        "incident": event.incident,
        "remedy": event.remedy,
        "purpose": event.purpose,
        "target": event.target,
        "status": str(event.status),
        "detail": event.detail,
        "attempts": event.attempts,
        "started": event.started_ns,
        "document": _document(event),
    }


@_row(DeadLetter, "deadletters")
def _dead_letter(event: DeadLetter) -> Row:
    return {
        "at": event.at_ns,
        "id": event.id,
        "topic": event.topic,
        "partition": event.partition,
        "offset": event.offset,
        "reader": event.reader,
        "reason": event.reason,
        "original_bytes": event.original_bytes,
        "head": event.original_base64[:_HEAD_BYTES],
    }


def _inventory(event: InventoryItem) -> Row:
    return {
        "at": event.at_ns,
        "subject": event.subject,
        "schema": event.schema_name,
        "gone": False,
        "document": _document(event),
    }
