"""Collector of the kernel log: GPU, NVSwitch, PCIe, memory and NIC faults, and OOM kills.

Lines come from ``/dev/kmsg``, from a file or from the journal; what they tell is read by
:mod:`collectors.kernel_lines`, and repeats are told as counts (:mod:`collectors.kernel_storm`).
What was read and what is still being counted is kept on disk together, after the messages that
follow from it have been handed over: a crash loses no line, and lines that are read again after one
make the same messages under the same ids.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from bus import log
from collectors.base import Collector, CollectorSettings, Host
from collectors.kernel_lines import GpuIdentity, Report, parse
from collectors.kernel_sources import Journal, Kmsg, LogFile, LogLine, Place, Source
from collectors.kernel_storm import Collapse, Key, Run
from schemas import identity
from schemas.event import Event
from schemas.inventory import InventoryGpu
from schemas.kernel import KernelCategory, KernelReport

_WAIT_S = 1.0
_SAVE_EVERY_S = 5.0
_WINDOW_MAX_NS = 30_000_000_000
_MESSAGE_MAX = 2048

_log = log.get(__name__)


class KernelLogSettings(CollectorSettings):
    """Settings of the collector."""

    source: Literal["kmsg", "file", "journal"] = "kmsg"
    path: Path | None = None
    """For ``file`` the log, read from its beginning and then followed; for ``journal`` a file in
    journal export format in place of the journal itself; for ``kmsg`` another device."""
    window_s: Annotated[float, Field(gt=0, le=30)] = 1.0
    """How long repeats of a line are first gathered; doubles up to 30 s while they come."""

    @model_validator(mode="after")
    def _file_has_path(self) -> Self:
        if self.source == "file" and self.path is None:
            raise ValueError("source file needs path, the log to read")
        return self


class KernelLog(Collector):
    """The kernel log."""

    name = "kernel_log"
    about = "faults that the kernel log tells of: XID, SXid, PCIe, memory, NIC drivers, OOM kills"
    interval_s = 0.0
    Settings = KernelLogSettings

    def __init__(self, host: Host, settings: KernelLogSettings) -> None:
        super().__init__(host, settings)
        self._state_path = host.data_dir / "kernel_log.json"
        self._what = f"{settings.source}:{settings.path or ''}"
        self._line_ns = 0
        self._line_read_s = time.monotonic()
        self._saved_s = 0.0
        self._in_step: bool | None = None
        """All that was read has been handed over; None before the first run."""
        self._begin()

    def _begin(self) -> None:
        """Take up what was kept on disk, or start anew."""
        settings: KernelLogSettings = self.settings
        self._collapse = Collapse(int(settings.window_s * 1e9), _WINDOW_MAX_NS)
        self._uuids: dict[str, str] = {}
        """PCI address of each GPU that the log has named, to its UUID."""
        saved = self._load()
        self._source = self._open(saved["position"] if saved else None)
        self._of_old_boot = saved is not None and saved["boot_id"] != self.host.boot_id

    def collect(self) -> Iterator[Event]:
        if self._in_step is None:
            self._save()
        elif not self._in_step:
            # The last run broke off between reading and handing over: what it read comes again.
            self._source.close()
            self._begin()
        self._in_step = False
        if self._of_old_boot:
            yield from map(self._event, self._collapse.drain())
            self._of_old_boot = False
        lines = self._source.read(_WAIT_S)
        if lines:
            self._line_ns, self._line_read_s = lines[-1].at_ns, time.monotonic()
        told = False
        for line in lines:
            for event in self._take(line):
                told = True
                yield event
        for run in self._collapse.advance(self._line_time()):
            told = True
            yield self._event(run)
        if told or lines or time.monotonic() - self._saved_s > _SAVE_EVERY_S:
            self._save()
        self._in_step = True

    def close(self) -> None:
        if self._in_step:
            self._save()
        self._source.close()

    def _take(self, line: LogLine) -> Iterable[Event]:
        said = parse(line.message)
        if said is None:
            return ()
        if isinstance(said, GpuIdentity):
            if self._uuids.get(said.pci_address) == said.uuid:
                return ()
            self._uuids[said.pci_address] = said.uuid
            return [self._gpu(said, line)]
        runs = self._collapse.add(
            _key(said, line.boot_id),
            line.at_ns,
            line.error_ns,
            line.place,
            lambda: self._fields(said, line.boot_id),
        )
        return [self._event(run) for run in runs] if runs else ()

    def _line_time(self) -> int:
        """The time now on the clock of the lines: a log of last week is read as it was written,
        and a wall clock that is set does not cut a window short."""
        return self._line_ns + int((time.monotonic() - self._line_read_s) * 1e9)

    def _fields(self, said: Report, boot_id: str) -> dict[str, Any]:
        node, pci = self.host.node, said.pci_address
        if pci is None and said.gpu_uuid is not None:
            pci = next((at for at, uuid in self._uuids.items() if uuid == said.gpu_uuid), None)
        subject = identity.node(node)
        if pci is not None and (said.on_gpu or said.gpu_uuid is not None):
            subject = identity.gpu(node, pci)
        elif said.interface is not None:
            subject = identity.nic(node, said.interface)
        return {
            "subject": subject,
            "category": said.category.value,
            "code": said.code,
            "subcode": said.subcode,
            "pci_address": pci,
            "pid": said.pid,
            "process": said.process,
            "correctable": said.correctable,
            "message": said.message[:_MESSAGE_MAX],
            "boot_id": boot_id,
        }

    def _event(self, run: Run) -> KernelReport:
        fields = run.fields
        said = [str(fields[name]) for name in ("subject", "category", "code", "subcode")]
        return KernelReport(
            id=identity.content_id(
                "kernel.report", self.host.node, fields["boot_id"], *said, run.place, run.count
            ),
            zone=self.host.zone,
            at_ns=run.last_ns,
            clock_error_ns=run.error_ns,
            node=self.host.node,
            first_ns=run.first_ns,
            count=run.count,
            **{**fields, "category": KernelCategory(fields["category"])},
        )

    def _gpu(self, said: GpuIdentity, line: LogLine) -> InventoryGpu:
        subject = identity.gpu(self.host.node, said.pci_address)
        return InventoryGpu(
            id=identity.content_id("inventory.gpu", subject, said.uuid, line.boot_id, line.place),
            zone=self.host.zone,
            at_ns=line.at_ns,
            clock_error_ns=line.error_ns,
            subject=subject,
            node=self.host.node,
            pci_address=said.pci_address,
            uuid=said.uuid,
        )

    def _open(self, position: Place | None) -> Source:
        settings: KernelLogSettings = self.settings
        if settings.source == "kmsg":
            return Kmsg(self.host, settings.path or Path("/dev/kmsg"), position)
        if settings.path is not None:
            return LogFile(self.host, settings.path, position, settings.source == "journal")
        return Journal(self.host, position)

    def _load(self) -> dict[str, Any] | None:
        try:
            saved = json.loads(self._state_path.read_text())
            if saved["source"] != self._what:
                return None
            self._collapse.restore(saved["runs"])
            self._uuids = saved["gpus"]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            _log.warning(
                "state of the kernel log is unreadable; starting anew",
                path=str(self._state_path),
                reason=str(error),
            )
            return None
        return dict(saved)

    def _save(self) -> None:
        state = {
            "source": self._what,
            "boot_id": self.host.boot_id,
            "position": self._source.position(),
            "runs": self._collapse.state(),
            "gpus": self._uuids,
        }
        self._state_path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._state_path.with_suffix(".new")
        fresh.write_text(json.dumps(state))
        os.replace(fresh, self._state_path)
        self._saved_s = time.monotonic()


def _key(said: Report, boot_id: str) -> Key:
    """Lines of one key are repeats of each other. OOM kills of different programs are not, and
    devices that have no subject of their own are told apart by their address."""
    return (
        boot_id,
        said.category,
        said.code,
        said.subcode,
        said.pci_address or said.gpu_uuid,
        said.interface,
        said.process if said.category is KernelCategory.OOM_KILL else None,
    )
