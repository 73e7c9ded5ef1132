"""Logs on disk in bounded space: one file a part, and the supervisor's own events."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path


class RotatingFile:
    """A file that starts anew at a size; the one before is kept as ``NAME.1``."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._file = path.open("ab", buffering=0)
        self._size = self._file.tell()

    def write(self, data: bytes) -> None:
        """Append; the file never exceeds its size by more than nothing."""
        while data:
            room = self._max_bytes - self._size
            if room <= 0:
                self._file.close()
                self.path.rename(self.path.with_name(self.path.name + ".1"))
                self._file = self.path.open("ab", buffering=0)
                self._size = 0
                continue
            piece, data = data[:room], data[room:]
            self._file.write(piece)
            self._size += len(piece)

    def close(self) -> None:
        """Close it."""
        self._file.close()


class Events:
    """What the supervisor does, one line each, to ``up.log`` and, unless ``quiet``, to stderr.

    A line is ``TIME LEVEL PART: TEXT``, or a JSON object of these where ``as_json``.
    """

    def __init__(self, file: RotatingFile, as_json: bool = False) -> None:
        self._file = file
        self._as_json = as_json
        self.quiet = False

    def say(self, part: str, text: str, level: str = "info") -> None:
        """Write one line."""
        at = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds")
        at = at.replace("+00:00", "Z")
        line = (
            json.dumps({"at": at, "level": level, "part": part, "event": text})
            if self._as_json
            else f"{at} {level} {part}: {text}"
        )
        self._file.write(line.encode(errors="replace") + b"\n")
        if not self.quiet:
            print(line, file=sys.stderr, flush=True)
