"""What each XID means and what one should do about it.

The facts are NVIDIA's published XID catalogue, kept as tables of our own in ``streams/data`` with
their source beside them. ``lookup`` goes as far as the line goes: XID 144 to 150 are read by unit,
interrupt and status word, XID 154 by the recovery action that it asks for. A code that the catalogue
does not know is told as such.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from io import StringIO
from typing import NamedTuple

from schemas.signal import Severity

RECOVERY_CHANGED = 154
_NVLINK5 = range(144, 151)
_WORDS = re.compile(r"\S+ \S+ Link -?\d+ (0x[0-9a-fA-F]{1,8})(?: (0x[0-9a-fA-F]{1,8}))?")
_INTERRUPT_BITS = 32

_RECOVERY: dict[str, tuple[str, Severity, str]] = {
    "none": ("", Severity.INFO, "The driver asks for no recovery any more."),
    "gpu reset required": ("reset_gpu", Severity.CRITICAL, "The driver asks for a GPU reset."),
    "node reboot required": ("restart_node", Severity.CRITICAL, "The driver asks for a reboot."),
    "drain p2p": (
        "drain_p2p",
        Severity.CRITICAL,
        "The driver asks that work which uses peer-to-peer traffic leave this GPU.",
    ),
    "drain and reset": (
        "drain_and_reset",
        Severity.CRITICAL,
        "The driver asks that the GPU be drained, then reset.",
    ),
}


@dataclass(frozen=True, slots=True)
class XidEntry:
    """An XID, with what the line adds to it taken into account."""

    code: int
    mnemonic: str
    description: str
    immediate: str
    """The catalogue's name for what to do at once: ``RESET_GPU``; empty where it names nothing."""
    investigatory: str
    """The catalogue's name for what to do if it comes back."""
    advice: str
    """What to do, for a person."""
    remedy: str
    """What to do, as a remedy's name: ``restart_app``, ``reset_gpu``, ``drain_and_reset``,
    ``restart_node``, ``contact_support``, …; empty where nothing is to be done."""
    severity: Severity
    sympathetic: bool
    """A consequence of something else, never a cause."""
    known: bool = True
    """It is in the catalogue."""

    @property
    def ends_when_quiet(self) -> bool:
        """It is over once it no longer comes; otherwise only when the GPU has started afresh."""
        return self.remedy in ("", "restart_app")


class _Action(NamedTuple):
    remedy: str
    severity: str
    advice: str


class _Nvlink5(NamedTuple):
    """One row of the decode table for XID 144 to 150."""

    units: tuple[str, ...]
    """The unit's names, before and from driver R575."""
    interrupts: tuple[str, ...]
    """Bits of the interrupt word, before and from R575; ``-`` for any."""
    statuses: tuple[int, ...]
    """Status words that it holds for; empty for any."""
    immediate: str
    immediate_if: str
    """What to do instead where the interrupt word fits ``interrupts_if``."""
    interrupts_if: tuple[str, ...]
    investigatory: str


def lookup(code: int, subcode: str | None = None) -> XidEntry:
    """What an XID means.

    Args:
        code: the XID.
        subcode: what the line adds to it, as in :class:`schemas.kernel.KernelReport`.
    """
    entry = _catalog().get(code)
    if entry is None:
        known = _catalog()
        return XidEntry(
            code=code,
            mnemonic="",
            description=f"XID {code}",
            immediate="",
            investigatory="",
            advice=f"XID {code} is not in the catalogue, which knows {min(known)} to {max(known)}: "
            "look it up in NVIDIA's present list, or contact support.",
            remedy="",
            severity=Severity.WARNING,
            sympathetic=False,
            known=False,
        )
    if code in _NVLINK5 and subcode:
        return _decode_nvlink5(entry, subcode)
    if code == RECOVERY_CHANGED and subcode:
        return _decode_recovery(entry, subcode)
    return entry


def with_row_remap(entry: XidEntry) -> XidEntry:
    """XID 48 on a GPU that also has XID 63 or 64: drained first, then reset."""
    return replace(
        entry,
        remedy="drain_and_reset",
        advice=f"{entry.advice} XID 63 or 64 was logged on it as well: drain it, then reset it.",
    )


def _decode_recovery(entry: XidEntry, asked: str) -> XidEntry:
    known = _RECOVERY.get(asked.lower())
    if known is None:
        return replace(
            entry,
            description=f"{entry.description}: {asked}",
            severity=Severity.WARNING,
            advice=f'The driver asks for "{asked}".',
        )
    remedy, severity, advice = known
    return replace(
        entry,
        description=f"{entry.description}: {asked}",
        remedy=remedy,
        severity=severity,
        advice=advice,
    )


def _decode_nvlink5(entry: XidEntry, subcode: str) -> XidEntry:
    """The gravest of the rows that fit; the line does not say which driver wrote it, so the bit
    patterns of both generations count, and rows that fit by unit alone where none fits by bits."""
    found = _WORDS.match(subcode)
    unit, fatal = [*subcode.split(), "", ""][:2]
    description = f"{entry.description} ({subcode})"
    rows: list[tuple[str, str]] = []
    if found is not None:
        interrupt = f"{int(found[1], 16):0{_INTERRUPT_BITS}b}"
        status = int(found[2], 16) if found[2] else None
        rows = _fitting(entry.code, unit, interrupt, status)
    if not rows and fatal not in ("Fatal", "Nonfatal"):
        return replace(entry, description=description)
    if not rows:
        words = "RESET_GPU" if fatal == "Fatal" else "IGNORE"
        action = _actions()[words]
        return replace(
            entry,
            description=description,
            immediate=words,
            investigatory="CONTACT_SUPPORT",
            remedy=action.remedy,
            severity=Severity.CRITICAL if fatal == "Fatal" else Severity.WARNING,
            advice="The line says too little for the catalogue's table, so by the driver's word "
            f"{fatal}: {action.advice} {_again('CONTACT_SUPPORT')}",
        )
    immediate, investigatory = max(rows, key=lambda row: _gravity(row[0]))
    action = _actions()[immediate]
    return replace(
        entry,
        description=description,
        immediate=immediate,
        investigatory=investigatory,
        remedy=action.remedy,
        severity=Severity(action.severity),
        advice=f"{action.advice} {_again(investigatory)}".strip(),
    )


def _fitting(code: int, unit: str, interrupt: str, status: int | None) -> list[tuple[str, str]]:
    """Immediate and investigatory action of the rows that fit a line."""
    by_unit = [
        row
        for row in _nvlink5().get(code, ())
        if unit in row.units and (not row.statuses or status in row.statuses)
    ]
    by_bits = [
        row
        for row in by_unit
        if any(_fits(bits, interrupt) for bits in (*row.interrupts, *row.interrupts_if))
    ]
    return [
        (
            row.immediate_if
            if any(_fits(bits, interrupt) for bits in row.interrupts_if)
            else row.immediate,
            row.investigatory,
        )
        for row in by_bits or by_unit
    ]


def _fits(pattern: str, bits: str) -> bool:
    return all(want in ("-", bit) for want, bit in zip(pattern, bits, strict=True))


def _gravity(action: str) -> int:
    return ["IGNORE", "XID_154_EVAL", "RESET_GPU"].index(action)


def _again(investigatory: str) -> str:
    """Advice for when it comes back."""
    if investigatory in ("", "IGNORE", "WORKFLOW_XID_48", "WORKFLOW_NVLINK5_ERR"):
        return ""
    return f"If it comes back: {_actions()[investigatory].advice}"


def _table(name: str) -> Iterator[dict[str, str]]:
    text = (files("streams") / "data" / name).read_text(encoding="utf-8")
    yield from csv.DictReader(StringIO(text, newline=""))


@cache
def _actions() -> dict[str, _Action]:
    return {
        row["action"]: _Action(row["remedy"], row["severity"], row["advice"])
        for row in _table("xid_actions.csv")
    }


@cache
def _catalog() -> dict[int, XidEntry]:
    entries = {}
    for row in _table("xid_catalog.csv"):
        code, immediate, investigatory = int(row["code"]), row["immediate"], row["investigatory"]
        what = _actions()[immediate].advice if immediate else "The catalogue names no action."
        entries[code] = XidEntry(
            code=code,
            mnemonic=row["mnemonic"],
            description=row["description"],
            immediate=immediate,
            investigatory=investigatory,
            advice=row["advice"] or f"{what} {_again(investigatory)}".strip(),
            remedy=row["remedy"],
            severity=Severity(row["severity"]),
            sympathetic=row["sympathetic"] == "yes",
        )
    return entries


@cache
def _nvlink5() -> dict[int, list[_Nvlink5]]:
    rows: dict[int, list[_Nvlink5]] = {}
    for row in _table("xid_nvlink5.csv"):
        rows.setdefault(int(row["code"]), []).append(
            _Nvlink5(
                units=tuple(row["units"].split("/")),
                interrupts=(row["interrupt_before_r575"], row["interrupt_from_r575"]),
                statuses=tuple(int(word, 16) for word in row["status"].split("/") if word),
                immediate=row["immediate"],
                immediate_if=row["immediate_if"],
                interrupts_if=tuple(
                    row[name]
                    for name in ("interrupt_if_before_r575", "interrupt_if_from_r575")
                    if row[name]
                ),
                investigatory=row["investigatory"],
            )
        )
    return rows
