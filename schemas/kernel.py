"""What a node's kernel log says about its hardware (topic ``telemetry.gpu``)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from schemas.event import Integer, Nanoseconds, Occurrence, Positive
from schemas.registry import event


class KernelCategory(StrEnum):
    """What kind of trouble a line of the kernel log tells of."""

    XID = "xid"
    """NVIDIA GPU error report."""
    SXID = "sxid"
    """NVSwitch error report."""
    DRIVER_LOAD = "driver_load"
    """The NVIDIA driver was loaded: GPUs start afresh."""
    PCIE_AER = "pcie_aer"
    MEMORY = "memory"
    """EDAC or machine-check report of system memory."""
    NIC = "nic"
    """Error or link report of a NIC driver."""
    OOM_KILL = "oom_kill"


@event(topic="telemetry.gpu")
class KernelReport(Occurrence):
    """One line of a kernel log that tells of a hardware or driver fault, or a run of equal ones.

    The first of a run leaves at once; repeats of the same report on the same subject are counted
    and leave together, so that a storm of 100,000 lines is a handful of messages and no line is lost.
    """

    schema_name: Literal["kernel.report"] = Field(default="kernel.report", alias="schema")
    version: Literal[1] = 1

    category: KernelCategory
    code: Integer | None = None
    """The XID or SXid number."""
    subcode: str | None = None
    """What the line adds to the code: an NVLink unit, the action XID 154 asks for, an AER type."""
    pci_address: str | None = None
    """``0000:9b:00.0``, where the line names a device."""
    pid: Integer | None = None
    process: str | None = None
    correctable: bool | None = None
    """For PCIe and memory reports: corrected by hardware."""
    message: Annotated[str, Field(max_length=2048)]
    """The line, without its time stamp."""
    count: Positive = 1
    """Lines that this message stands for."""
    first_ns: Nanoseconds
    """Time of the first of them; ``at_ns`` is that of the last."""
    boot_id: str = ""
    """The kernel's boot id: a new one means that the node was restarted."""
