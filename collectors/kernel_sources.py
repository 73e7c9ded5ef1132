"""Where kernel lines come from: ``/dev/kmsg``, a file, the journal.

Each source yields the lines that may tell of a fault, with their times, and says where it stands, so
that it can go on from there after a restart. Nothing is read twice in the ordinary course, and what a
source had to pass over (a ring buffer that was overwritten) is counted.
"""

from __future__ import annotations

import errno
import os
import select
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from prometheus_client import Counter

from bus import log
from collectors.base import Host, Unavailable
from collectors.kernel_lines import telling
from collectors.kernel_stamps import SECOND_NS, export_entries, unstamp

Place = dict[str, Any]

_RECORD_MAX_BYTES = 16 * 1024
_RECORDS_AT_ONCE = 4096
_CHUNK_BYTES = 1 << 20
_LOOK_S = 0.1

_lost = Counter("evertick_kernel_log_lost", "Kernel lines overwritten before they were read")
_log = log.get(__name__)


class LogLine(NamedTuple):
    """A line that may tell of a fault, without its stamp."""

    message: str
    at_ns: int
    error_ns: int
    boot_id: str
    """Empty where the source does not say which boot it is of."""
    place: str
    """Names the line within its boot and source."""


class Source(Protocol):
    """A kernel log."""

    def read(self, wait_s: float) -> list[LogLine]:
        """The next lines; waits so long for the first."""

    def position(self) -> Place:
        """Where to go on after a restart, as JSON data."""

    def close(self) -> None:
        """Let go of it."""


class Kmsg:
    """The kernel's own ring buffer (``Documentation/ABI/testing/dev-kmsg``)."""

    def __init__(self, host: Host, path: Path, saved: Place | None) -> None:
        self._host = host
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise Unavailable(
                f"cannot read {path}: {error.strerror}; run the agent as root, or with CAP_SYSLOG "
                "and read access to it, or set collectors.kernel_log.source to journal or file"
            ) from None
        self._seq = -1
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        if saved is not None and saved["boot_id"] == host.boot_id:
            self._seq = saved["seq"]
        elif saved is None:
            # On its first start it begins with what comes; on a boot it has not seen, with all.
            while (record := self._record()) is not None:
                self._seq = record[0]

    def read(self, wait_s: float) -> list[LogLine]:
        if not self._poll.poll(wait_s * 1000):
            return []
        lines = []
        now = self._host.clock.read()
        booted_ns = now.ns - time.monotonic_ns()
        for _ in range(_RECORDS_AT_ONCE):
            record = self._record()
            if record is None:
                break
            seq, since_boot_ns, message = record
            if seq <= self._seq:
                continue
            if self._seq >= 0 and seq > self._seq + 1:
                _lost.inc(seq - self._seq - 1)
                _log.warning("kernel lines were overwritten unread", lines=seq - self._seq - 1)
            self._seq = seq
            if telling(message):
                at_ns = min(max(0, booted_ns + since_boot_ns), now.ns)
                lines.append(LogLine(message, at_ns, now.error_ns, self._host.boot_id, str(seq)))
        return lines

    def position(self) -> Place:
        return {"boot_id": self._host.boot_id, "seq": self._seq}

    def close(self) -> None:
        os.close(self._fd)

    def _record(self) -> tuple[int, int, str] | None:
        """The next record: sequence number, nanoseconds since boot, message."""
        while True:
            try:
                data = os.read(self._fd, _RECORD_MAX_BYTES)
            except BlockingIOError:
                return None
            except OSError as error:
                if error.errno != errno.EPIPE:
                    raise
                continue  # overwritten: the next read is at the oldest record that is left
            head, separator, text = data.partition(b";")
            if not separator:
                return None
            _, seq, since_boot_us, *_ = head.split(b",")
            message = text.partition(b"\n")[0].decode("utf-8", "replace")
            return int(seq), int(since_boot_us) * 1000, message


class LogFile:
    """A file that grows, through rotation and truncation: lines of text, or a journal export."""

    def __init__(self, host: Host, path: Path, saved: Place | None, export: bool) -> None:
        self._host = host
        self._path = path
        self._export = export
        self._buffer = b""
        self._offset = 0
        self._generation = 0
        self._file = self._open(path)
        if saved is not None:
            self._resume(saved)

    def read(self, wait_s: float) -> list[LogLine]:
        deadline = time.monotonic() + wait_s
        while not (data := self._file.read(_CHUNK_BYTES)):
            if not self._turn_over():
                if time.monotonic() >= deadline:
                    return []
                time.sleep(min(_LOOK_S, wait_s))
        self._buffer += data
        frame = self._entries if self._export else self._lines
        lines, used = frame(self._buffer)
        self._buffer = self._buffer[used:]
        self._offset += used
        return lines

    def position(self) -> Place:
        return {
            "inode": os.fstat(self._file.fileno()).st_ino,
            "offset": self._offset,
            "generation": self._generation,
        }

    def close(self) -> None:
        self._file.close()

    def _open(self, path: Path) -> Any:
        try:
            return open(path, "rb", buffering=0)
        except OSError as error:
            raise Unavailable(
                f"cannot read {path}: {error.strerror}; set collectors.kernel_log.path to a "
                "kernel log that the agent may read"
            ) from None

    def _resume(self, saved: Place) -> None:
        self._generation = saved["generation"]
        if os.fstat(self._file.fileno()).st_ino != saved["inode"]:
            # Rotated while nobody read: the rest of the old file comes first, if it is still there.
            for sibling in self._path.parent.glob(f"{self._path.name}*"):
                if sibling.is_file() and sibling.stat().st_ino == saved["inode"]:
                    self._file.close()
                    self._file = self._open(sibling)
                    break
            else:
                self._generation += 1
                return
        if os.fstat(self._file.fileno()).st_size >= saved["offset"]:
            self._offset = saved["offset"]
            self._file.seek(self._offset)
        else:
            self._generation += 1

    def _turn_over(self) -> bool:
        """At the end of the file: begin anew if it was cut short or another has its name."""
        opened = os.fstat(self._file.fileno())
        if opened.st_size < self._offset + len(self._buffer):
            self._file.seek(0)
        else:
            try:
                named = self._path.stat()
            except FileNotFoundError:
                return False  # between the two steps of a rotation
            if (named.st_ino, named.st_dev) == (opened.st_ino, opened.st_dev):
                return False
            if opened.st_size > self._offset + len(self._buffer):
                return True  # written to since it was read
            successor = self._open(self._path)
            self._file.close()
            self._file = successor
        self._offset, self._buffer = 0, b""
        self._generation += 1
        return True

    def _lines(self, data: bytes) -> tuple[list[LogLine], int]:
        lines = []
        used = data.rfind(b"\n") + 1
        if not used and len(data) >= _CHUNK_BYTES:
            used = len(data)  # no log has lines of a mebibyte: pass over what is none
        now = self._host.clock.read()
        booted_ns = now.ns - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        inode, at = os.fstat(self._file.fileno()).st_ino, self._offset
        for raw in data[:used].split(b"\n")[:-1]:
            text = raw.decode("utf-8", "replace").rstrip("\r")
            place = f"{inode}:{self._generation}:{at}"
            at += len(raw) + 1
            if not telling(text) or (stamped := unstamp(text, now.ns)) is None:
                continue
            at_ns, boot_id = stamped.at_ns, self._host.boot_id
            if at_ns is None:
                at_ns = now.ns
            elif stamped.since_boot:
                at_ns += now.ns - time.monotonic_ns()
            elif at_ns + SECOND_NS < booted_ns:
                boot_id = ""
            error_ns = now.error_ns + stamped.resolution_ns
            lines.append(LogLine(stamped.message, max(0, at_ns), error_ns, boot_id, place))
        return lines, used

    def _entries(self, data: bytes) -> tuple[list[LogLine], int]:
        entries, used = export_entries(data)
        return _from_journal(entries, self._host), used


class Journal:
    """systemd's journal, through ``journalctl``, which alone reads its files on every version."""

    _COMMAND = ("journalctl", "--output=export", "--quiet", "_TRANSPORT=kernel")

    def __init__(self, host: Host, saved: Place | None) -> None:
        self._host = host
        self._child: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        try:
            newest = subprocess.run(
                [*self._COMMAND, "--lines=1"], capture_output=True, timeout=10, check=True
            ).stdout
        except FileNotFoundError:
            raise Unavailable(
                "journalctl is not on this host; set collectors.kernel_log.source to kmsg or file"
            ) from None
        except subprocess.CalledProcessError as error:
            reason = error.stderr.decode("utf-8", "replace").strip()
            raise Unavailable(f"journalctl cannot read the journal: {reason}") from None
        except subprocess.TimeoutExpired:
            raise Unavailable("journalctl did not answer within 10 s") from None
        entries, _ = export_entries(newest)
        self._cursor = saved["cursor"] if saved else ""
        if saved is None and entries:
            self._cursor = entries[-1][1].get("__CURSOR", "")

    def read(self, wait_s: float) -> list[LogLine]:
        child = self._child or self._follow()
        assert child.stdout is not None
        if not select.select([child.stdout], [], [], wait_s)[0]:
            return []
        data = os.read(child.stdout.fileno(), _CHUNK_BYTES)
        if not data:
            self._end_child()
            raise RuntimeError(f"journalctl ended with status {child.returncode}")
        self._buffer += data
        entries, used = export_entries(self._buffer)
        self._buffer = self._buffer[used:]
        if entries:
            self._cursor = entries[-1][1].get("__CURSOR", self._cursor)
        return _from_journal(entries, self._host)

    def position(self) -> Place:
        return {"cursor": self._cursor}

    def close(self) -> None:
        self._end_child()

    def _follow(self) -> subprocess.Popen[bytes]:
        start = f"--after-cursor={self._cursor}" if self._cursor else "--lines=all"
        self._buffer = b""
        self._child = subprocess.Popen(
            [*self._COMMAND, "--follow", "--no-tail", start],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        return self._child

    def _end_child(self) -> None:
        if self._child is not None:
            self._child.terminate()
            try:
                self._child.wait(1)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
            if self._child.stdout is not None:
                self._child.stdout.close()
            self._child = None


def _from_journal(entries: list[tuple[int, dict[str, str]]], host: Host) -> list[LogLine]:
    now = host.clock.read()
    lines = []
    for _, fields in entries:
        message = fields.get("MESSAGE", "")
        if fields.get("_TRANSPORT", "kernel") != "kernel" or not telling(message):
            continue
        stamp = fields.get("__REALTIME_TIMESTAMP", "")
        at_ns = int(stamp) * 1000 if stamp.isdecimal() and len(stamp) < 17 else now.ns
        boot = fields.get("_BOOT_ID", "")
        if len(boot) == 32:
            boot = "-".join((boot[:8], boot[8:12], boot[12:16], boot[16:20], boot[20:]))
        place = fields.get("__CURSOR", "") or f"{stamp}:{fields.get('__MONOTONIC_TIMESTAMP', '')}"
        lines.append(LogLine(message, at_ns, now.error_ns, boot, place))
    return lines
