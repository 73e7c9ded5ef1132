"""Runs of equal kernel reports, told as few messages without losing a line.

The first line of a run leaves at once. Repeats are counted and leave together when the run's window
ends; each window is twice as long as the one before, up to a bound, for as long as repeats come, and
a window without any ends the run. Windows go by the times of the lines, not by the wall clock, so
that reading the same lines again after a crash cuts them into the same messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

Key = tuple[str | int | None, ...]


@dataclass(slots=True)
class Run:
    """Equal lines that leave as one message."""

    first_ns: int
    last_ns: int
    error_ns: int
    """Bound on the error of the times."""
    place: str
    """Where the first line stands in its source; with the boot it names it once and for all."""
    fields: dict[str, Any]
    """What the first line tells, besides times and count."""
    count: int = 1


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

    def add(
        self, key: Key, at_ns: int, error_ns: int, place: str, fields: Callable[[], dict[str, Any]]
    ) -> Iterable[Run]:
        """Take in one line; returns what leaves now. ``fields`` is asked for only where the line
        begins a message, so that a repeat costs next to nothing."""
        leaving: Iterable[Run] = ()
        window = self._open.get(key)
        if window is not None and at_ns >= window.until_ns:
            leaving = list(self._pass(key, window, at_ns))
            window = self._open.get(key)
        if window is None:
            self._open[key] = _Window(at_ns + self._window_ns, self._window_ns)
            return [*leaving, Run(at_ns, at_ns, error_ns, place, fields())]
        run = window.pending
        if run is None:
            window.pending = Run(at_ns, at_ns, error_ns, place, fields())
        else:
            run.count += 1
            run.first_ns = min(run.first_ns, at_ns)
            run.last_ns = max(run.last_ns, at_ns)
            run.error_ns = max(run.error_ns, error_ns)
        return leaving

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
            pending = Run(**kept["pending"]) if kept["pending"] else None
            window = _Window(kept["until_ns"], kept["length_ns"], pending)
            self._open[tuple(kept["key"])] = window
