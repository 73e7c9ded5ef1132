"""Time stamps and framing of kernel logs as text: ``dmesg``, syslog and journal export.

Pure functions on text and bytes. Understood are the stamps of ``dmesg`` (``[12345.678901]``),
``dmesg -T`` (``[Sun Feb 23 16:24:18 2025]``, local time), classic syslog and ``journalctl -o short``
(``Feb 23 16:24:18 host kernel:``, local time, no year), ISO 8601 (rsyslog, ``short-iso``) and none.
"""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import NamedTuple

SECOND_NS = 1_000_000_000
_DAY_NS = 86_400 * SECOND_NS
_PLAUSIBLE_NS = 1 << 62

_PRIORITY = re.compile(r"<\d{1,3}>")
_MONOTONIC = re.compile(r"(?:kernel: )?\[\s*(\d{1,10})\.(\d{6})\](?:\s?\[\s*[TC]\d+\])? ?")
_DMESG = re.compile(r"\[([A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\] ?")
_SYSLOG = re.compile(r"([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) ")
_ISO = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)([.,]\d{1,9})?(Z|[+-]\d\d:?\d\d)? ")
_KERNEL_TAG = re.compile(r"[^\s:]+ kernel: ")
_OTHER_TAG = re.compile(r"[^\s:]+ [^\s:\[]+\[\d+\]: ")


class Stamped(NamedTuple):
    """A line taken apart."""

    message: str
    at_ns: int | None
    """None where the line has no stamp."""
    resolution_ns: int
    """The stamp says no more than that the time lies within ``at_ns`` and so much after."""
    since_boot: bool = False
    """``at_ns`` counts from the start of the kernel, not from 1970."""


def unstamp(line: str, now_ns: int) -> Stamped | None:
    """Take the stamp off a line.

    Args:
        line: the line, without its line feed.
        now_ns: the time now, from which a stamp without a year takes it.

    Returns:
        None for a line that syslog has from a program and not from the kernel.
    """
    line = _PRIORITY.sub("", line, count=1) if line.startswith("<") else line
    if (found := _MONOTONIC.match(line)) is not None:
        since_boot_ns = int(found[1]) * SECOND_NS + int(found[2]) * 1000
        return Stamped(line[found.end() :], since_boot_ns, 1000, since_boot=True)
    if (found := _DMESG.match(line)) is not None:
        return Stamped(line[found.end() :], _local_ns(found[1]), SECOND_NS)
    if (found := _SYSLOG.match(line)) is not None:
        year = datetime.fromtimestamp(now_ns / SECOND_NS).year
        at_ns = _local_ns(f"Mon {found[1]} {year}")
        if at_ns is not None and at_ns > now_ns + _DAY_NS:
            at_ns = _local_ns(f"Mon {found[1]} {year - 1}")
        return _from_kernel(line[found.end() :], at_ns, SECOND_NS)
    if (found := _ISO.match(line)) is not None:
        fraction = found[2][1:] if found[2] else ""
        at_ns = _iso_ns(found[1], fraction, found[3] or "")
        return _from_kernel(line[found.end() :], at_ns, 10 ** (9 - len(fraction)))
    return Stamped(line, None, 0)


def _from_kernel(rest: str, at_ns: int | None, resolution_ns: int) -> Stamped | None:
    """What follows the stamp of a syslog: the host and the tag, where there are any."""
    tag = _KERNEL_TAG.match(rest)
    if tag is None:
        return None if _OTHER_TAG.match(rest) else Stamped(rest, at_ns, resolution_ns)
    rest = rest[tag.end() :]
    monotonic = _MONOTONIC.match(rest)
    return Stamped(rest[monotonic.end() :] if monotonic else rest, at_ns, resolution_ns)


_last_local: tuple[str, int | None] = ("", None)


def _local_ns(stamp: str) -> int | None:
    """``Sun Feb 23 16:24:18 2025`` in this host's time zone. The lines of a storm share their
    second, so the last answer is kept: ``strptime`` would be half the cost of a storm."""
    global _last_local  # noqa: PLW0603
    if _last_local[0] != stamp:
        try:
            seconds = time.mktime(time.strptime(stamp, "%a %b %d %H:%M:%S %Y"))
        except (ValueError, OverflowError):
            seconds = -1.0
        _last_local = (stamp, int(seconds) * SECOND_NS if seconds >= 0 else None)
    return _last_local[1]


def _iso_ns(stamp: str, fraction: str, zone: str) -> int | None:
    try:
        seconds = int(datetime.fromisoformat(stamp + zone).timestamp())
    except (ValueError, OverflowError):
        return None
    at_ns = seconds * SECOND_NS + int(fraction.ljust(9, "0"))
    return at_ns if 0 <= at_ns < _PLAUSIBLE_NS else None


def export_entries(data: bytes) -> tuple[list[tuple[int, dict[str, str]]], int]:
    """Take the whole entries off the head of a journal in export format
    (https://systemd.io/JOURNAL_EXPORT_FORMATS).

    Returns:
        The entries, each with its place in ``data``, and how many bytes they took.
    """
    entries: list[tuple[int, dict[str, str]]] = []
    fields: dict[str, str] = {}
    start = at = 0
    while (line_end := data.find(b"\n", at)) >= 0:
        line = data[at:line_end]
        if not line:
            at = line_end + 1
            if fields:
                entries.append((start, fields))
            fields, start = {}, at
            continue
        name, equals, value = line.partition(b"=")
        at = line_end + 1
        if not equals:
            # A binary field: its size as 64 bits, little-endian, then so many bytes and a line feed.
            size = int.from_bytes(data[at : at + 8], "little")
            value = data[at + 8 : at + 8 + size]
            at += 8 + size + 1
            if at > len(data):
                break
        fields[name.decode("ascii", "replace")] = value.decode("utf-8", "replace")
    return entries, start
