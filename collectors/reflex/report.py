"""What the watchdog tells the agent: one JSON object a line, through a pipe, never waiting.

A report that does not fit into the pipe is dropped and counted, and the count goes with the next that
does. Times leave as UTC: the monotonic clock's offset is taken when a report is made.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

_PIPE_BUF_BYTES = 4096


class Reports:
    """The writing end."""

    def __init__(self, descriptor: int) -> None:
        """Takes a pipe and makes it non-blocking."""
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._lost = 0

    def send(self, kind: str, **fields: Any) -> None:
        """Send one report.

        Raises:
            BrokenPipeError: nobody reads any more.
        """
        if self._lost and self._write({"kind": "lost", "reports": self._lost}):
            self._lost = 0
        if not self._write({"kind": kind, **fields}):
            self._lost += 1

    def _write(self, report: dict[str, Any]) -> bool:
        line = json.dumps(report, separators=(",", ":")).encode() + b"\n"
        if len(line) > _PIPE_BUF_BYTES:
            # Longer ones could be torn.
            return False
        try:
            os.write(self._descriptor, line)
        except BlockingIOError:
            return False
        return True


def utc(monotonic_ns: int) -> int:
    """A time of the monotonic clock as UTC, by the clocks as they stand now."""
    return time.time_ns() - time.monotonic_ns() + monotonic_ns if monotonic_ns else 0
