"""One child process of the supervisor.

It leads a session of its own, so that it can be ended with all that it started, and is killed by the
kernel when the supervisor ends in whatever way (``PR_SET_PDEATHSIG``). That signal goes by the
*thread* that forked: start processes from the main thread only. What it prints goes through a pipe
into a file of bounded size.

A process may start behind a *gate*: it loads its modules and waits until it is let in.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress

from evertick.embedded.logs import RotatingFile

_PR_SET_PDEATHSIG = 1
_READ_BYTES = 1 << 16
_TAIL_LINES = 20
_LINE_MAX_CHARS = 500
_libc = ctypes.CDLL(None)  # loaded before any fork: the child must not allocate much


class Process:
    """A started process. Its exit is noticed by :meth:`reap`, to be called on SIGCHLD."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        log: RotatingFile,
        gated: bool = False,
        nice: int = 0,
    ) -> None:
        """Start it.

        Raises:
            OSError: the program cannot be run.
        """
        parent = os.getpid()

        def prepare() -> None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it died before the line above
                os._exit(1)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the data folder is bounded
            if nice:
                os.nice(nice)

        self._popen = subprocess.Popen(
            argv,
            env=env,
            stdin=subprocess.PIPE if gated else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=prepare,  # noqa: PLW1509 - the supervisor forks in its only busy thread
        )
        self.pid = self._popen.pid
        self.started_s = time.monotonic()
        self.exited = asyncio.Event()
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        """The last lines that it printed."""
        self._log = log
        self._partial = b""
        assert self._popen.stdout is not None
        self._out = self._popen.stdout.fileno()
        os.set_blocking(self._out, False)
        asyncio.get_running_loop().add_reader(self._out, self._pump)

    @property
    def status(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        return self._popen.returncode

    def let_in(self) -> None:
        """Open the gate."""
        if self._popen.stdin is not None:
            with suppress(BrokenPipeError):  # it has ended, which its exit tells
                self._popen.stdin.write(b"go\n")
                self._popen.stdin.close()
            self._popen.stdin = None

    def reap(self) -> None:
        """Notice the exit."""
        if not self.exited.is_set() and self._popen.poll() is not None:
            self._pump()
            self.exited.set()

    def terminate(self) -> None:
        """Ask it to end (SIGTERM, to it alone: it ends what it started)."""
        if self._popen.returncode is None:
            self._popen.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it with all that it started."""
        if self._popen.stdout is not None:  # else closed: the number may be another's by now
            with suppress(ProcessLookupError):  # nobody of the group is left
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """End what it may have left behind, and the pipe."""
        self.kill()
        if self._popen.stdout is not None:
            asyncio.get_running_loop().remove_reader(self._out)
            self._popen.stdout.close()
            self._popen.stdout = None
        if self._popen.stdin is not None:
            self._popen.stdin.close()

    def last_words(self) -> str:
        """What it said last, for a person: its complaints, or else its last line."""
        told = [line[len("evertick: ") :] for line in self.tail if line.startswith("evertick: ")]
        return "\n".join(told) if told else (self.tail[-1] if self.tail else "it said nothing")

    def _pump(self) -> None:
        while True:
            try:
                data = os.read(self._out, _READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                asyncio.get_running_loop().remove_reader(self._out)
                return
            self._log.write(data)
            *lines, self._partial = (self._partial + data).split(b"\n")
            self._partial = self._partial[-_LINE_MAX_CHARS:]
            for line in lines[-_TAIL_LINES:]:
                if line.strip():
                    self.tail.append(line[:_LINE_MAX_CHARS].decode(errors="replace").rstrip())
            if len(data) < _READ_BYTES:
                return
