"""A bounded queue on disk for events that Kafka has not acknowledged yet.

SQLite in one file: it survives ``kill -9``, needs no repair, and is in every Python. Two kinds of
rows: *durable* ones (occurrences) are written before they are sent and deleted when Kafka has them;
samples come here only while Kafka is away. When the bound is reached the oldest samples go first,
durable rows only when no sample is left; all that is dropped is counted.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bus.settings import SettingsError

_DROP_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class Spooled:
    """One row: a message with its place in the queue."""

    seq: int
    topic: str
    key: bytes
    value: bytes
    at_ns: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """What was dropped since it was last asked."""

    messages: int
    message_bytes: int
    from_ns: int
    to_ns: int


class Spool:
    """The queue. Safe for use from several threads."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        """Open or create it.

        Raises:
            SettingsError: the file cannot be opened, or another process holds it.
        """
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._dropped: Dropped | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(
                path, check_same_thread=False, isolation_level=None, timeout=2
            )
            # One owner: two agents on one spool would send everything twice.
            self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode=WAL")
            # Survives the death of the process; a power cut may lose the last rows, as it loses
            # the node's other unsent samples.
            self._db.execute("PRAGMA synchronous=OFF")
            self._db.execute("PRAGMA auto_vacuum=INCREMENTAL")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS spool (seq INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT,"
                " key BLOB, value BLOB, at_ns INTEGER, durable INTEGER)"
            )
            self._db.execute("CREATE INDEX IF NOT EXISTS samples ON spool (seq) WHERE durable = 0")
            self._bytes = int(
                self._db.execute("SELECT coalesce(sum(length(value)), 0) FROM spool").fetchone()[0]
            )
        except (OSError, sqlite3.Error) as error:
            raise SettingsError(
                f"cannot use spool {path}: {error}; is another agent running on this data folder?"
            ) from None

    def __len__(self) -> int:
        with self._lock:
            return int(self._db.execute("SELECT count(*) FROM spool").fetchone()[0])

    @property
    def message_bytes(self) -> int:
        """Bytes of the messages held."""
        return self._bytes

    def append(self, topic: str, key: bytes, value: bytes, at_ns: int, durable: bool) -> int:
        """Put a message at the end; returns its place."""
        with self._lock:
            cursor = self._db.execute(
                "INSERT INTO spool (topic, key, value, at_ns, durable) VALUES (?, ?, ?, ?, ?)",
                (topic, key, value, at_ns, durable),
            )
            self._bytes += len(value)
            if self._bytes > self._max_bytes:
                self._make_room()
            assert cursor.lastrowid is not None
            return cursor.lastrowid

    def last(self) -> int:
        """The place of the newest message, 0 where there is none."""
        with self._lock:
            return int(self._db.execute("SELECT coalesce(max(seq), 0) FROM spool").fetchone()[0])

    def after(self, seq: int, limit: int) -> list[Spooled]:
        """The next messages behind a place, oldest first."""
        with self._lock:
            rows = self._db.execute(
                "SELECT seq, topic, key, value, at_ns FROM spool WHERE seq > ? ORDER BY seq LIMIT ?",
                (seq, limit),
            ).fetchall()
        return [Spooled(*row) for row in rows]

    def delete(self, seqs: Iterable[int]) -> None:
        """Forget messages that have arrived."""
        places = [(seq,) for seq in seqs]
        if not places:
            return
        with self._lock:
            self._db.execute("BEGIN")
            for place in places:
                row = self._db.execute(
                    "DELETE FROM spool WHERE seq = ? RETURNING length(value)", place
                ).fetchone()
                if row is not None:
                    self._bytes -= row[0]
            self._db.execute("COMMIT")

    def take_dropped(self) -> Dropped | None:
        """What was dropped since the last call."""
        with self._lock:
            dropped, self._dropped = self._dropped, None
            return dropped

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.execute("PRAGMA incremental_vacuum")
            self._db.close()

    def _make_room(self) -> None:
        for where in ("durable = 0", "1 = 1"):
            while self._bytes > self._max_bytes:
                rows = self._db.execute(
                    f"SELECT seq, length(value), at_ns FROM spool WHERE {where} ORDER BY seq LIMIT ?",
                    (_DROP_AT_ONCE,),
                ).fetchall()
                if not rows:
                    break
                gone = []
                for row in rows:
                    if self._bytes <= self._max_bytes:
                        break
                    gone.append(row)
                    self._bytes -= row[1]
                self._db.execute(f"DELETE FROM spool WHERE {where} AND seq <= ?", (gone[-1][0],))
                self._count_dropped(gone)

    def _count_dropped(self, rows: list[tuple[int, int, int]]) -> None:
        before = self._dropped or Dropped(0, 0, rows[0][2], rows[0][2])
        times = [row[2] for row in rows]
        self._dropped = Dropped(
            before.messages + len(rows),
            before.message_bytes + sum(row[1] for row in rows),
            min(before.from_ns, *times),
            max(before.to_ns, *times),
        )
