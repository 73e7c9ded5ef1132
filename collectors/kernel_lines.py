"""What one line of the kernel log tells: a report of a fault, a GPU's identity, or nothing.

Pure text in, plain data out. A cheap search for telling words comes first, so that ordinary chatter
costs one pass of one regular expression; only then is the line taken apart by the family it belongs
to. Lines that merely continue a report (register dumps, RPC histories, ``[ 0] RxErr``) are no
reports of their own. The shapes are those of the NVIDIA driver (r450 to r58x) and of Linux 4.x to
6.x (``drivers/pci/pcie/aer.c``, ``drivers/edac``, ``mm/memory-failure.c``, ``mm/oom_kill.c``,
``net/sched/sch_generic.c``).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from schemas import identity
from schemas.kernel import KernelCategory

_NIC_DRIVERS = (
    "mlx5_core|mlx5_ib|mlx4_core|mlx4_en|bnxt_en|bnxt_re|ice|iavf|i40e|ixgbe|ixgbevf|igb|igc|e1000e"
    "|irdma|ena|efa|gve|mana|tg3|qede|qed|cxgb4|nfp|sfc|be2net|enic|ionic|hns3|r8169|atlantic"
)
_PCI = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"

_TELLING = re.compile(
    r"SXid \(|AER: |PCIe Bus Error|DPC: containment"
    r"|EDAC |\[Hardware Error\]|emory failure: |hardware memory error|ut of memory: Kill"
    rf"|NETDEV WATCHDOG|\b(?:{_NIC_DRIVERS})[ :]|\bbond\S*: "
)

_XID = re.compile(
    r"NVRM: Xid \(([^)]*)\): (\d{1,9})(?:, pid='?(\d{1,10}|<unknown>)'?(?:, name=([^,]*))?)?"
    r"(?:,\s*(.*))?",
    re.DOTALL,
)
_XID_PCI = re.compile(rf"(?:{_PCI})|(?<![0-9a-fA-F-])[0-9a-fA-F]{{2}}:[0-9a-fA-F]{{2}}(?:\.[0-7])?")
_GPU_UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_RECOVERY = re.compile(r".*action changed from .* to 0x[0-9a-fA-F]+ \(([^)]*)\)|([^,(]+)")
_NVLINK5 = re.compile(
    r"^(\S+)\s+(\S+)\s+XC\d+\s+i\d+\s+Link (-?\d+)"
    r"(?:\s*\((0x[0-9a-fA-F]{1,8})(?: (0x[0-9a-fA-F]{1,8}))?)?"
)
_NVLINK = re.compile(r"on link (\d+)")
_SXID = re.compile(
    rf"SXid \(PCI:({_PCI})\): (\d{{1,9}}), (?:(Non-fatal|Fatal), )?(?:(Link \d+) )?(.*)"
)
_SXID_DETAIL = ("Severity ", "Data {")
_GPU_AT = re.compile(rf"NVRM: GPU at PCI:({_PCI}): (GPU-[0-9a-fA-F-]{{36}})")
_DRIVER = re.compile(r"NVRM: loading NVIDIA UNIX(?:.*?\s(\d+\.\d+(?:\.\d+)*)(?:\s|$))?")

_AER_BUS = re.compile(
    rf"(?:^|\s)(\S+) ({_PCI}): (?:AER: )?PCIe Bus Error: severity=([^,]+), (?:type=)?([^,]+)"
)
_AER_RECEIVED = re.compile(
    r"AER: (?:Multiple )?(Correct(?:ed|able)|Uncorrect(?:ed|able)(?: \([A-Za-z-]+\))?) error"
    rf"(?: message)? received(?:\D*?({_PCI}))?"
)
_DPC = re.compile(rf"pcieport ({_PCI}): DPC: containment event")

_EDAC = re.compile(r"EDAC \S*? ?MC\d+: (?:\d+ )?(CE|UE)\b")
_MCE = re.compile(
    r"mce: \[Hardware Error\]: (?:CPU \d+: Machine Check(?: Exception)?: \S+ Bank \d+: ([0-9a-f]{16})"
    r"|Machine check events logged)"
)
_MCE_UNCORRECTED_BIT = 61
_APEI = re.compile(r"\[Hardware Error\]:\s+section_type: memory error")
_MCE_ACCESS = re.compile(r"mce: Uncorrected hardware memory error")
_MEMORY_FAILURE = re.compile(r"Memory failure: 0x[0-9a-f]+: (.*)")
_MEMORY_VICTIM = re.compile(r"(?:Killing|killing|Sending SIGBUS to) (.+):(\d+) (?:due|because)")

_OOM = re.compile(
    r"(Out of memory|Memory cgroup out of memory): Kill(?:ed)? process (\d+) \((.*?)\)(?:,| total-vm| score|$)"
)

_NIC = re.compile(
    rf"(?:^|\s)(?:{_NIC_DRIVERS})(?:: (?P<old>[^\s:/()]{{1,15}})(?= (?:NIC |Link))"
    rf"| (?P<pci>{_PCI})(?: (?P<name>[^\s:/()]{{1,15}}))?(?: \([^)]*\))*:) ?(?P<text>.*)"
)
_LINK = re.compile(r"\blink(?: is)? (up|down)\b", re.IGNORECASE)
_NIC_TIMEOUT = re.compile(r"\btx[ _]timeout|transmit (?:queue|timed out)", re.IGNORECASE)
_NIC_TROUBLE = re.compile(
    r"error|\bfail|time[d ]? ?out|\bhung\b|\bhang\b|\bfatal|compromised|insufficient|\babort"
    r"|unrecoverable|miss count|\bdead\b|unplugged|over ?heat|high temperature",
    re.IGNORECASE,
)
_NIC_PID = re.compile(r"\(pid (\d+)\)")
_WATCHDOG = re.compile(
    r"NETDEV WATCHDOG: (?:(?:CPU: \d+: )?)([^\s:/()]{1,15})(?: \([^)]*\))?: (.*)"
)
_BOND = re.compile(
    r"(?:^|\s)(?:bonding: )?(bond[^\s:/]*): (?:\(slave ([^\s:/()]{1,15})\): )?"
    r"link status (?:definitely|up|down)[^,;]*?\b(up|down)\b(?: for interface ([^\s:/,]{1,15}))?"
)


class Report(NamedTuple):
    """A line that tells of a fault; the fields are those of :class:`schemas.kernel.KernelReport`."""

    category: KernelCategory
    message: str
    code: int | None = None
    subcode: str | None = None
    pci_address: str | None = None
    gpu_uuid: str | None = None
    """For an XID that names the GPU by UUID in place of its PCI address."""
    on_gpu: bool = False
    """The device at ``pci_address`` is a GPU."""
    interface: str | None = None
    pid: int | None = None
    process: str | None = None
    correctable: bool | None = None


class GpuIdentity(NamedTuple):
    """A line by which the NVIDIA driver names a GPU before it speaks of its faults."""

    pci_address: str
    uuid: str


def telling(text: str) -> bool:
    """Whether a line, with or without its time stamp, may be worth :func:`parse`."""
    return "NVRM: " in text or _TELLING.search(text) is not None


def parse(message: str) -> Report | GpuIdentity | None:
    """Read one line without its time stamp; None for one that tells of no fault."""
    if "NVRM: " in message:
        return _nvrm(message)
    if not telling(message):
        return None
    for family in (_sxid, _pcie, _memory, _oom, _nic):
        report = family(message)
        if report is not None:
            return report
    return None


def _nvrm(message: str) -> Report | GpuIdentity | None:
    found = _XID.search(message)
    if found is not None:
        return _xid(message, found)
    named = _GPU_AT.search(message)
    if named is not None:
        return GpuIdentity(identity.pci(named[1]), named[2])
    loaded = _DRIVER.search(message)
    if loaded is not None:
        return Report(KernelCategory.DRIVER_LOAD, message, subcode=loaded[1])
    return None


def _xid(message: str, found: re.Match[str]) -> Report:
    device, code_text, pid, name, text = found.groups()
    pci_address, gpu_uuid = _device(device)
    code = int(code_text)
    return Report(
        KernelCategory.XID,
        message,
        code=code,
        subcode=_xid_subcode(code, (text or "").strip()),
        pci_address=pci_address,
        gpu_uuid=gpu_uuid,
        on_gpu=pci_address is not None,
        pid=int(pid) if pid and pid[0] != "<" else None,
        process=name if name and name != "<unknown>" else None,
    )


@lru_cache(maxsize=256)
def _device(text: str) -> tuple[str | None, str | None]:
    """PCI address and UUID of the GPU that an XID names."""
    place, uuid = _XID_PCI.search(text), _GPU_UUID.search(text)
    return identity.pci(place[0]) if place else None, uuid[0] if uuid else None


def _xid_subcode(code: int, text: str) -> str | None:
    """What the line adds to the code: for XID 154 the action asked for, for XID 144 to 150 unit,
    severity, link, interrupt word and status word, for XID 74 the link."""
    if code == 154:
        asked = _RECOVERY.match(text)
        return (asked[1] or asked[2]).strip() if asked else None
    if 144 <= code <= 150:
        unit = _NVLINK5.match(text)
        if unit is not None:
            words = (unit[1], unit[2], "Link", unit[3], unit[4], unit[5])
            return " ".join(word for word in words if word)
        return " ".join(text.split()[:2]) or None
    if code == 74:
        link = _NVLINK.search(text)
        return f"Link {link[1]}" if link else None
    return None


def _sxid(message: str) -> Report | None:
    found = _SXID.search(message)
    if found is None or found[5].startswith(_SXID_DETAIL):
        return None
    return Report(
        KernelCategory.SXID,
        message,
        code=int(found[2]),
        subcode=" ".join(part for part in (found[3], found[4]) if part) or None,
        pci_address=identity.pci(found[1]),
    )


def _pcie(message: str) -> Report | None:
    bus = _AER_BUS.search(message)
    if bus is not None:
        driver, place, severity, layer = bus.groups()
    elif (received := _AER_RECEIVED.search(message)) is not None:
        driver, severity, place, layer = "", received[1], received[2], "message received"
    elif (contained := _DPC.search(message)) is not None:
        driver, severity, place, layer = "", "Uncorrected", contained[1], "DPC containment"
    else:
        return None
    corrected = severity.startswith("Correct")
    return Report(
        KernelCategory.PCIE_AER,
        message,
        subcode=layer if corrected else f"{layer}, {severity}",
        pci_address=identity.pci(place) if place else None,
        on_gpu=driver == "nvidia",
        correctable=corrected,
    )


def _memory(message: str) -> Report | None:
    pid = process = None
    if (edac := _EDAC.search(message)) is not None:
        subcode, correctable = edac[1], edac[1] == "CE"
    elif (check := _MCE.search(message)) is not None:
        subcode = "machine check"
        # MCi_STATUS.UC, Intel SDM volume 3B, 17.3.2.2.
        correctable = not int(check[1], 16) >> _MCE_UNCORRECTED_BIT & 1 if check[1] else None
    elif (failure := _MEMORY_FAILURE.search(message)) is not None:
        subcode, correctable = "memory failure", False
        victim = _MEMORY_VICTIM.search(failure[1])
        if victim is not None and len(victim[2]) < 11:
            process, pid = victim[1], int(victim[2])
    elif _MCE_ACCESS.search(message) is not None:
        subcode, correctable = "machine check", False
    elif _APEI.search(message) is not None:
        subcode, correctable = "APEI", None
    else:
        return None
    return Report(
        KernelCategory.MEMORY,
        message,
        subcode=subcode,
        pid=pid,
        process=process,
        correctable=correctable,
    )


def _oom(message: str) -> Report | None:
    found = _OOM.search(message)
    if found is None or len(found[2]) > 10:
        return None
    return Report(
        KernelCategory.OOM_KILL,
        message,
        subcode="node" if found[1].startswith("Out") else "cgroup",
        pid=int(found[2]),
        process=found[3],
    )


def _nic(message: str) -> Report | None:
    watchdog = _WATCHDOG.search(message)
    if watchdog is not None:
        return Report(KernelCategory.NIC, message, subcode="tx timeout", interface=watchdog[1])
    bond = _BOND.search(message)
    if bond is not None:
        return Report(
            KernelCategory.NIC,
            message,
            subcode=f"link {bond[3]}",
            interface=bond[2] or bond[4] or bond[1],
        )
    found = _NIC.search(message)
    if found is None:
        return None
    text = found["text"]
    if (link := _LINK.search(text)) is not None:
        subcode = f"link {link[1].lower()}"
    elif _NIC_TIMEOUT.search(text):
        subcode = "tx timeout"
    elif _NIC_TROUBLE.search(text):
        subcode = "error"
    else:
        return None
    pid = _NIC_PID.search(text)
    return Report(
        KernelCategory.NIC,
        message,
        subcode=subcode,
        pci_address=identity.pci(found["pci"]) if found["pci"] else None,
        interface=found["name"] or found["old"],
        pid=int(pid[1]) if pid and len(pid[1]) < 11 else None,
    )
