"""A receiver's queue and the threads that empty it.

Actions of one incident are done in order; the next only after the outcome of the one before it is
recorded. An action that failed waits out its backoff without holding up other incidents. While the
receiver answers promptly there is one action at a time, so that a kill of this process leaves one in
doubt, not several; once an answer takes longer than half a second, up to ``concurrency`` are under
way, so that a request that hangs does not hold up the rest.
"""

from __future__ import annotations

import heapq
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from prometheus_client import Counter, Gauge, Histogram

from bus import log
from remediators.base import Limits, Result
from schemas.action import Action
from schemas.incident import Incident

_SLOW_S = 0.5
_BACKOFF_FIRST_S = 0.5
_BACKOFF_MAX_S = 30.0

_attempts = Counter(
    "evertick_remedy_attempts",
    "Attempts to execute an action, by what came of them: succeeded, retried, failed",
    ["remedy", "receiver", "result"],
)
_queue = Gauge("evertick_remedy_queue", "Actions decided and not yet done", ["remedy", "receiver"])
_seconds = Histogram(
    "evertick_remedy_attempt_seconds",
    "Time that an attempt took",
    ["remedy", "receiver"],
    buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30),
)

_log = log.get(__name__)


@dataclass(slots=True)
class Task:
    """An action to be done, with the incident's revision that it is about."""

    action: Action
    incident: Incident
    attempts: int = 0
    started_ns: int = 0
    """When the first attempt began; 0 before."""


@dataclass(order=True, slots=True)
class _Due:
    """When the first action of an incident's queue may be tried."""

    due_s: float
    number: int
    incident: str = field(compare=False)


def backoff_s(attempts: int, jitter: float) -> float:
    """Seconds to wait after so many attempts, at least one; ``jitter`` in [0, 1) spreads them over
    the upper half of a bound that doubles from 0.5 s to 30 s."""
    bound_s = min(_BACKOFF_MAX_S, _BACKOFF_FIRST_S * 2.0 ** min(attempts - 1, 16))
    return bound_s * (0.5 + 0.5 * jitter)


class Executor:
    """Serves one receiver of one remedy."""

    def __init__(
        self,
        remedy: str,
        receiver: str,
        limits: Limits,
        perform: Callable[[Task], Result],
        conclude: Callable[[Task, Result], None],
    ) -> None:
        """
        Args:
            remedy, receiver: names, for metrics and the log.
            limits: how the receiver is served.
            perform: one attempt.
            conclude: record the outcome; returns when it cannot be lost any more.
        """
        self._limits = limits
        self._perform = perform
        self._conclude = conclude
        self._names = (remedy, receiver)
        self._changed = threading.Condition()
        self._queues: dict[str, deque[Task]] = {}
        self._due: list[_Due] = []
        self._numbers = count()
        # Threads at work, with the time at which the attempt began; inf while its outcome is written.
        self._active: dict[int, float] = {}
        self._stopped = False
        _queue.labels(*self._names).set(0)
        for number in range(limits.concurrency):
            name = f"{remedy}:{receiver}:{number}"
            threading.Thread(target=self._run, args=(number,), name=name, daemon=True).start()

    def submit(self, *tasks: Task) -> None:
        """Have actions done, each after those of its incident that are already here."""
        with self._changed:
            for task in tasks:
                name = task.action.incident
                queue = self._queues.setdefault(name, deque())
                queue.append(task)
                if len(queue) == 1:
                    self._schedule(name, 0.0)
            _queue.labels(*self._names).inc(len(tasks))
            self._changed.notify_all()

    def stop(self) -> None:
        """Begin nothing more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def wait_idle(self, deadline_s: float) -> bool:
        """Wait until nothing is under way, at most to this time of the monotonic clock."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._active, max(0.0, deadline_s - time.monotonic())
            )

    def _schedule(self, incident: str, wait_s: float) -> None:
        heapq.heappush(self._due, _Due(time.monotonic() + wait_s, next(self._numbers), incident))

    def _run(self, thread: int) -> None:
        while (task := self._take(thread)) is not None:
            wait_s = self._attempt(task, thread)
            with self._changed:
                del self._active[thread]
                name = task.action.incident
                queue = self._queues[name]
                if wait_s is None:
                    queue.popleft()
                    _queue.labels(*self._names).dec()
                if queue:
                    self._schedule(name, wait_s or 0.0)
                else:
                    del self._queues[name]
                self._changed.notify_all()

    def _take(self, thread: int) -> Task | None:
        """Wait for the next action that may be tried; None once stopped."""
        with self._changed:
            while not self._stopped:
                now_s = time.monotonic()
                wait_s = self._wait_s(now_s)
                if wait_s is not None and wait_s <= 0:
                    self._active[thread] = now_s
                    return self._queues[heapq.heappop(self._due).incident][0]
                self._changed.wait(wait_s)
        return None

    def _wait_s(self, now_s: float) -> float | None:
        """Seconds until something may be tried if nothing changes; None where nothing waits."""
        if not self._due:
            return None
        wait_s = self._due[0].due_s - now_s
        if self._active:
            # Another beside those under way only once the last of them has proved slow.
            wait_s = max(wait_s, max(self._active.values()) + _SLOW_S - now_s)
        return wait_s if wait_s < math.inf else None

    def _attempt(self, task: Task, thread: int) -> float | None:
        """Try once; returns the seconds to wait before the next try, None when it is concluded."""
        task.attempts += 1
        task.started_ns = task.started_ns or time.time_ns()
        began_s = time.monotonic()
        try:
            result = self._perform(task)
        except Exception as error:  # noqa: BLE001 - a fault in a remedy must not end its queue
            _log.exception("a remedy failed unexpectedly", action=task.action.id)
            result = Result(False, f"{type(error).__name__}: {error}", again=True)
        _seconds.labels(*self._names).observe(time.monotonic() - began_s)
        if result.again:
            wait_s = max(result.retry_after_s, backoff_s(task.attempts, random.random()))
            age_s = (time.time_ns() - task.action.at_ns) / 1e9
            if age_s + wait_s < self._limits.give_up_s:
                self._complain(task, result, wait_s)
                return wait_s
            result = Result(
                False, f"given up after {self._limits.give_up_s:g} s, last error: {result.detail}"
            )
        _attempts.labels(*self._names, "succeeded" if result.done else "failed").inc()
        with self._changed:
            self._active[thread] = math.inf
        self._conclude(task, result)
        return None

    def _complain(self, task: Task, result: Result, wait_s: float) -> None:
        _attempts.labels(*self._names, "retried").inc()
        # Each of many attempts is a metric; the first few are worth a line.
        complain = _log.warning if task.attempts <= 3 else _log.debug
        complain(
            "not done, will try again",
            receiver=self._names[1],
            action=task.action.id,
            purpose=task.action.purpose,
            attempt=task.attempts,
            again_in_s=round(wait_s, 1),
            reason=result.detail,
        )
