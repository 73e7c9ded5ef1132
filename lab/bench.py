"""What a benchmark is, and the list of them.

A benchmark is one module of this package with one function, registered by :func:`benchmark` under a
name; no other file changes. It prints nothing: it returns figures, with their units in their names,
and says on the way what it does. What surrounds the figures, the machine and the time above all, is
added here, so that every report has one shape.
"""

from __future__ import annotations

import pkgutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

import lab
from lab import machine


class BenchError(Exception):
    """A benchmark could not be carried out; the text says why."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a benchmark is run."""

    flags: Sequence[str] = ()
    """Settings for the parts that are measured, ``name=value``."""
    only: str = ""
    """Only figures whose names begin so."""
    quick: bool = False
    """Smaller counts: to see whether it works, not for figures."""
    say: Callable[[str], None] = lambda line: None
    """Takes a line about what is being done now."""


@dataclass(slots=True)
class Findings:
    """What a benchmark found."""

    figures: dict[str, float | None] = field(default_factory=dict)
    """None for what this machine cannot measure; a note says why."""
    notes: list[str] = field(default_factory=list)

    def add(self, other: Findings) -> None:
        """Take in what a part of the benchmark found."""
        self.figures |= other.figures
        self.notes += other.notes


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A registered benchmark."""

    name: str
    about: str
    """One line: what it measures."""
    keys: tuple[str, ...]
    """Its figures, in the order in which they are shown."""
    measure: Callable[[Options], Findings]


_registered: dict[str, Benchmark] = {}


def benchmark(
    name: str, about: str, keys: Sequence[str]
) -> Callable[[Callable[[Options], Findings]], Callable[[Options], Findings]]:
    """Register a function as a benchmark."""

    def register(measure: Callable[[Options], Findings]) -> Callable[[Options], Findings]:
        if name in _registered:
            raise TypeError(f"two benchmarks are named {name}")
        _registered[name] = Benchmark(name, about, tuple(keys), measure)
        return measure

    return register


def registered() -> Mapping[str, Benchmark]:
    """All benchmarks, by name; importing the package's modules is what registers them."""
    for module in pkgutil.iter_modules(lab.__path__):
        import_module(f"lab.{module.name}")
    return dict(sorted(_registered.items()))


def wanted(chosen: Benchmark, only: str) -> list[str]:
    """The keys that ``only`` asks for.

    Raises:
        BenchError: there is none.
    """
    keys = [key for key in chosen.keys if key.startswith(only)]
    if not keys:
        raise BenchError(
            f"no figure of {chosen.name} begins with {only!r}; there are: {', '.join(chosen.keys)}"
        )
    return keys


def report(chosen: Benchmark, options: Options) -> dict[str, Any]:
    """Run a benchmark; returns ``{name, figures, machine, started, seconds, notes}``.

    Raises:
        BenchError: it could not be carried out.
    """
    keys = wanted(chosen, options.only)
    started, began_s = datetime.now(UTC), time.monotonic()
    load_before = machine.load()
    found = chosen.measure(options)
    notes = [
        f"load average of the machine: {load_before:.1f} before, {machine.load():.1f} after",
        *found.notes,
    ]
    if options.quick:
        notes.insert(0, "quick run: counts too small for figures to rely on")
    return {
        "name": chosen.name,
        "figures": {key: found.figures[key] for key in keys},
        "machine": machine.description(),
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began_s, 1),
        "notes": notes,
    }
