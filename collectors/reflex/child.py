"""The watchdog process as the agent holds it: started, told, heard, ended.

Its plan and commands go through its stdin, its reports come through its stdout. It has an interpreter
of its own, so nothing that another collector does can hold it up, and it sees from the end of its
stdin that the agent is gone, however the agent died.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import collectors
from collectors.reflex.plan import Plan, settings_of

_READ_BYTES = 1 << 16
_COMPLAINT_BYTES = 4096
_KILLED_S = 5.0


class Child:
    """One run of the watchdog, in the network namespace of the thread that makes it."""

    def __init__(self, plan: Plan) -> None:
        """Start it.

        Raises:
            OSError: it cannot be started.
        """
        home = str(Path(collectors.__file__).parents[1])
        self._process = subprocess.Popen(
            # No site-packages: it needs none, and starts in half the time.
            [sys.executable, "-SP", "-m", "collectors.reflex.watchdog"],
            env={**os.environ, "PYTHONPATH": home},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            # Ctrl-C in a terminal is for the agent, which then ends it in good order.
            start_new_session=True,
        )
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._stdin, self._stdout, self._stderr = (
            self._process.stdin,
            self._process.stdout,
            self._process.stderr,
        )
        self._partial = b""
        self.ended = False
        """Everything that it said has been read, and it is gone or about to be."""
        # One that died at once tells why on stderr.
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(json.dumps(settings_of(plan)).encode() + b"\n")

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def read(self, timeout_s: float) -> list[dict[str, Any]]:
        """Its next reports; waits for one, none where none came in time or it ended."""
        readable, _, _ = select.select([self._stdout], [], [], timeout_s)
        if not readable:
            return []
        data = os.read(self._stdout.fileno(), _READ_BYTES)
        if not data:
            self.ended = True
            return []
        *lines, self._partial = (self._partial + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def stop(self, timeout_s: float) -> list[dict[str, Any]]:
        """Tell it to end in good order; returns its last reports."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(b"stop\n")
        told: list[dict[str, Any]] = []
        deadline_s = time.monotonic() + timeout_s
        while not self.ended and (left_s := deadline_s - time.monotonic()) > 0:
            told += self.read(left_s)
        return told

    def reap(self) -> str:
        """Make sure that it is gone; returns what became of it, for people."""
        self._process.kill()
        code = self._process.wait(_KILLED_S)
        complaint = b""
        if select.select([self._stderr], [], [], 0)[0]:
            complaint = os.read(self._stderr.fileno(), _COMPLAINT_BYTES)
        for pipe in (self._stdin, self._stdout, self._stderr):
            pipe.close()
        last = complaint.decode(errors="replace").strip().splitlines()[-1:]
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        return f"{how}: {last[0]}" if last else how
