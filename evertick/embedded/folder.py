"""The data folder of the embedded stack: whose it is, who holds it, and how its bytes are divided.

A marker file says that the folder is ours and in which format. A lock, which the kernel drops with
its holder, says that an ``up`` runs on it. A record of the processes that were started lets the next
``up`` end what a killed one may have left: by process id and start time, never by name.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from bus.settings import SettingsError
from bus.topics import storage
from schemas.topics import TOPICS

FORMAT = 1
MARKER = "evertick.json"
LOCK = "lock"
RECORD = "processes.json"
KAFKA = "kafka"
HISTORY = "history"
LOGS = "logs"
# What the parts keep here also without ``up``: a folder of these alone is no stranger's.
_OURS = {MARKER, LOCK, RECORD, KAFKA, HISTORY, LOGS, "agent", "remediate", "faust"}

_MIB = 1 << 20
DATA_MIN_BYTES = 2 << 30
LOG_FILE_MAX_BYTES = 8 * _MIB
LOG_FILES = 2 * 7
"""Two for each of the six parts and for the supervisor."""
# __consumer_offsets: 4 partitions of an open and two closed segments of 16 MiB before compaction;
# __cluster_metadata: 64 MiB, an open segment and a snapshot.
_KAFKA_OWN_BYTES = 4 * 3 * 16 * _MIB + 96 * _MIB
# Inventory and what the stream worker remembers: compacted, so bounded by the number of keys.
_COMPACTED_BYTES = 128 * _MIB
_SMALL_BYTES = 32 * _MIB
_TOPICS_PART, _HISTORY_PART, _SPOOL_PART = 0.50, 0.35, 0.05
# The rest, 10 %, is for what comes in between two looks of the retentions.
_HISTORY_FILL = 0.75
"""Merges hold old and new parts for a while: the tables' bound is lower than their share."""
_SPOOL_FILL = 0.66
"""Messages are two thirds of the spool's file at the worst."""
_END_ORPHANS_S = 5.0


@dataclass(frozen=True, slots=True)
class Split:
    """What each tenant of the data folder may take, in bytes; the sum is below the bound."""

    kafka_topics: int
    kafka_own: int
    kafka_compacted: int
    history: int
    spool: int
    logs: int
    small: int

    @property
    def history_max_bytes(self) -> int:
        """``history.max_bytes`` for the writer."""
        return int(self.history * _HISTORY_FILL)

    @property
    def spool_max_bytes(self) -> int:
        """``agent.spool_max_bytes`` for the agent."""
        return int(self.spool * _SPOOL_FILL)

    @property
    def topics_budget_bytes(self) -> int:
        """The budget for ``bus.topics.ensure`` with which the topics stay within their share.

        Small topics hold two of their longest messages at least, so the budget is less than the
        share where the folder is small.
        """
        budget = self.kafka_topics
        while topics_worst_bytes(budget) > self.kafka_topics:
            budget = int(budget * 0.95)
        return budget

    def sum(self) -> int:
        """All together."""
        return sum(asdict(self).values())


def split(data_max_bytes: int) -> Split:
    """Divide the bound.

    Raises:
        SettingsError: it is too small to be divided.
    """
    if data_max_bytes < DATA_MIN_BYTES:
        raise SettingsError(
            f"setting embedded.data_max_bytes: {data_max_bytes} is too small; "
            f"it must be at least {DATA_MIN_BYTES} (2 GiB)"
        )
    logs = LOG_FILES * LOG_FILE_MAX_BYTES
    rest = data_max_bytes - logs - _KAFKA_OWN_BYTES - _COMPACTED_BYTES - _SMALL_BYTES
    return Split(
        kafka_topics=int(rest * _TOPICS_PART),
        kafka_own=_KAFKA_OWN_BYTES,
        kafka_compacted=_COMPACTED_BYTES,
        history=int(rest * _HISTORY_PART),
        spool=int(rest * _SPOOL_PART),
        logs=logs,
        small=_SMALL_BYTES,
    )


def topics_worst_bytes(budget_bytes: int) -> int:
    """What all topics of limited size may take on disk under a budget: bounds and open segments."""
    total = 0
    for spec in TOPICS.values():
        if not spec.compacted:
            config = storage(spec, budget_bytes)
            partition = int(config["retention.bytes"]) + int(config["segment.bytes"])
            total += spec.partitions * partition
    return total


def used_bytes(path: Path) -> int:
    """Disk that a folder takes: blocks, not lengths, since Kafka's index files are sparse."""
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except FileNotFoundError:
                continue  # deleted by its owner meanwhile
    return total


@dataclass(frozen=True, slots=True)
class Known:
    """A process, told from later ones with the same number by when it started."""

    pid: int
    start_ticks: int


class DataFolder:
    """A data folder that this process holds."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock
        self._processes: dict[str, Known] = {}

    def started(self, name: str, pid: int) -> None:
        """Record a process, so that it is found if we are killed."""
        ticks = start_ticks(pid)
        if ticks is not None:
            self._processes[name] = Known(pid, ticks)
            self._write_record()

    def ended(self, name: str) -> None:
        """Forget a process."""
        if self._processes.pop(name, None) is not None:
            self._write_record()

    def end_orphans(self) -> int:
        """Kill what a killed predecessor left; returns how many processes.

        Raises:
            SettingsError: one does not die.
        """
        deadline = time.monotonic() + _END_ORPHANS_S
        found: set[int] = set()
        while orphans := self._orphans():
            if time.monotonic() > deadline:
                raise SettingsError(
                    f"process {orphans[0]} of an earlier evertick up does not end; "
                    f"end it with: kill -9 {orphans[0]}"
                )
            for pid in orphans:
                found.add(pid)
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue  # it was ending already
                except PermissionError:
                    raise SettingsError(
                        f"process {pid} of an earlier evertick up belongs to another user; "
                        "end it as that user"
                    ) from None
            time.sleep(0.02)
        return len(found)

    def make(self) -> None:
        """Make the marker and the folders."""
        marker = self.path / MARKER
        if not marker.exists():
            marker.write_text(json.dumps({"format": FORMAT}) + "\n")
        (self.path / LOGS).mkdir(exist_ok=True)

    def close(self) -> None:
        """Let go of the folder."""
        os.close(self._lock)

    def _write_record(self) -> None:
        record = {
            "boot_id": _boot_id(),
            "processes": {name: asdict(known) for name, known in self._processes.items()},
        }
        fresh = self.path / f"{RECORD}.new"
        fresh.write_text(json.dumps(record) + "\n")
        fresh.rename(self.path / RECORD)

    def _orphans(self) -> list[int]:
        try:
            record = json.loads((self.path / RECORD).read_text())
            if record["boot_id"] != _boot_id():
                return []
            known = [Known(**process) for process in record["processes"].values()]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return []  # nothing was started, or the record was never finished
        return orphans_of(known)


def orphans_of(known: Iterable[Known]) -> list[int]:
    """Those processes that live, and the members of the sessions that they led.

    A session's number is not given to another process as long as the session has members, so
    members without a leader are the dead leader's.
    """
    leaders = {process.pid: process.start_ticks for process in known}
    sessions = {pid for pid, ticks in leaders.items() if start_ticks(pid) in (ticks, None)}
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (stat := _stat(int(entry))) is not None:
            state, session = stat[0], int(stat[3])
            if session in sessions and state != "Z" and int(entry) != os.getpid():
                found.append(int(entry))
    return found


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is none."""
    stat = _stat(pid)
    return None if stat is None else int(stat[19])


def _stat(pid: int) -> list[str] | None:
    """The fields of ``/proc/PID/stat`` from the state on (``man 5 proc``: field 3)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def check(path: Path) -> None:
    """Refuse a folder that is not ours; changes nothing.

    Raises:
        SettingsError: it is a stranger's, of a newer format, or cannot be written.
    """
    standing = path
    while not standing.exists():
        standing = standing.parent
    if not standing.is_dir():
        raise SettingsError(f"data folder {path}: {standing} is not a folder; set data_dir")
    if not os.access(standing, os.W_OK | os.X_OK):
        raise SettingsError(
            f"data folder {path}: {standing} is not writable for this user; "
            "make it so, or set data_dir to another folder"
        )
    if standing != path:
        return
    try:
        written = json.loads((path / MARKER).read_text())["format"]
    except FileNotFoundError:
        foreign = sorted(set(os.listdir(path)) - _OURS)
        if foreign:
            raise SettingsError(
                f"data folder {path} holds files that are not Evertick's ({foreign[0]}); "
                "set data_dir to an empty or new folder"
            ) from None
        return
    except (ValueError, KeyError, TypeError):
        raise SettingsError(
            f"data folder {path}: {MARKER} cannot be read; set data_dir to another folder, "
            f'or write {{"format": {FORMAT}}} into it if the folder is Evertick\'s'
        ) from None
    if written != FORMAT:
        raise SettingsError(
            f"data folder {path} has format {written}, this Evertick reads {FORMAT}; "
            "use the Evertick that wrote it, or set data_dir to another folder"
        )


def hold(path: Path) -> DataFolder:
    """Take the folder, making it where it is missing.

    Raises:
        SettingsError: another ``up`` runs on it, or it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SettingsError(
            f"data folder {path} cannot be used: {error.strerror}; set data_dir to another folder"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 32).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise SettingsError(
            f"data folder {path} is in use by another evertick up (process {holder}); "
            "stop that, or set data_dir to another folder"
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return DataFolder(path, lock)
