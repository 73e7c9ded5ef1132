"""Runs of equal kernel reports, told as few messages without losing a line.

The first line of a run leaves at once. Repeats are counted and leave together when the run's window
ends; each window is twice as long as the one before, up to a bound, for as long as repeats come, and
a window without any ends the run. Windows go by the times of the lines, not by the wall clock, so
that reading the same lines again after a crash cuts them into the same messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """One line that tells of a fault, ready to be sent."""

    at_ns: int
    error_ns: int
    """Bound on the error of ``at_ns``."""
    place: str
    """Where the line stands in its source; with the boot it names the line once and for all."""
    fields: dict[str, Any]
    """Fields of the report besides times and count."""


@dataclass(frozen=True, slots=True)
class Run:
    """Lines that leave as one message: ``count`` of them, from ``first_ns`` on; ``line`` is the
    first, with the time of the last."""

    line: Line
    first_ns: int
    count: int


@dataclass(slots=True)
class _Window:
    until_ns: int
    length_ns: int
    pending: Run | None = None


class Collapse:
    """The runs that last."""

    def __init__(self, window_ns: int, window_max_ns: int) -> None:
        self._window_ns = window_ns
        self._window_max_ns = max(window_ns, window_max_ns)
        self._open: dict[Key, _Window] = {}

    def add(self, key: Key, line: Line) -> Iterator[Run]:
        """Take in one line; yields what leaves now."""
        window = self._open.get(key)
        if window is not None and line.at_ns >= window.until_ns:
            yield from self._pass(key, window, line.at_ns)
            window = self._open.get(key)
        if window is None:
            self._open[key] = _Window(line.at_ns + self._window_ns, self._window_ns)
            yield Run(line, line.at_ns, 1)
            return
        if window.pending is None:
            window.pending = Run(line, line.at_ns, 1)
            return
        run = window.pending
        at_ns = max(run.line.at_ns, line.at_ns)
        window.pending = Run(
            replace(run.line, at_ns=at_ns, error_ns=max(run.line.error_ns, line.error_ns)),
            min(run.first_ns, line.at_ns),
            run.count + 1,
        )

    def advance(self, now_ns: int) -> Iterator[Run]:
        """Close the windows that have ended by ``now_ns``, in the time of the lines."""
        for key, window in list(self._open.items()):
            if now_ns >= window.until_ns:
                yield from self._pass(key, window, now_ns)

    def drain(self) -> Iterator[Run]:
        """End all runs."""
        for window in self._open.values():
            if window.pending is not None:
                yield window.pending
        self._open.clear()

    def _pass(self, key: Key, window: _Window, now_ns: int) -> Iterator[Run]:
        while now_ns >= window.until_ns:
            if window.pending is None:
                del self._open[key]
                return
            yield window.pending
            window.pending = None
            window.length_ns = min(2 * window.length_ns, self._window_max_ns)
            window.until_ns += window.length_ns

    def state(self) -> list[dict[str, Any]]:
        """The runs as JSON data."""
        return [{"key": list(key), **asdict(window)} for key, window in self._open.items()]

    def restore(self, state: list[dict[str, Any]]) -> None:
        """Take up what ``state`` returned."""
        for kept in state:
            pending = kept["pending"]
            self._open[tuple(kept["key"])] = _Window(
                kept["until_ns"],
                kept["length_ns"],
                Run(Line(**pending["line"]), pending["first_ns"], pending["count"])
                if pending
                else None,
            )
