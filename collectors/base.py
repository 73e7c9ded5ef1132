"""What a collector is.

A collector is one module with one class. It names itself, says how often it wants to run, and has
one method, :meth:`Collector.collect`, that yields what it saw: batches of samples and occurrences.
Defining the class registers it; no other file changes. "Nothing here to observe" is a normal answer
(:class:`Unavailable`), not an error.

A collector with interval 0 is driven by events: its ``collect`` waits up to a second for news and is
called again at once. Every collector runs in a thread of its own, so a slow one holds up nobody.
"""

from __future__ import annotations

import pkgutil
import platform
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

import collectors
from bus.clock import Clock
from bus.settings import Section
from schemas.event import Event

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_registered: dict[str, type[Collector]] = {}


class Unavailable(Exception):
    """This host has not what the collector needs; the text says what and how to have it."""


@dataclass(frozen=True, slots=True)
class Host:
    """What a collector knows of the host it runs on."""

    node: str
    zone: str
    data_dir: Path
    """Where a collector may keep small state of its own, in ``<data_dir>/<collector name>*``."""
    clock: Clock = field(default_factory=Clock)
    boot_id: str = field(default_factory=lambda: _BOOT_ID.read_text().strip())
    kernel: str = field(default_factory=platform.release)


@dataclass(frozen=True, slots=True)
class Capability:
    """One thing that a collector can or cannot do on this host, for ``evertick doctor``."""

    name: str
    works: bool
    detail: str
    """What was found, or why it does not work."""
    fix: str = ""
    """The command that would enable it; empty where it works or nothing can be done."""
    optional: bool = False
    """The collector does without it, less well."""


class CollectorSettings(Section):
    """Settings that every collector has."""

    enabled: bool | None = None
    """Run it; None leaves it to the collector's default."""
    interval_s: Annotated[float, Field(ge=0, le=3600)] | None = None
    """Seconds between runs; None leaves it to the collector's default."""


class Collector(ABC):
    """Base of all collectors."""

    name: ClassVar[str]
    about: ClassVar[str]
    """One line: what it observes."""
    enabled: ClassVar[bool] = True
    """Whether it runs unless told otherwise."""
    interval_s: ClassVar[float]
    """Default seconds between runs; 0 for one that waits for events in ``collect``."""
    Settings: ClassVar[type[CollectorSettings]] = CollectorSettings

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.name in _registered:
            raise TypeError(f"two collectors are named {cls.name}")
        _registered[cls.name] = cls

    def __init__(self, host: Host, settings: Any) -> None:
        """Open what is needed.

        Args:
            host: the host it runs on.
            settings: an instance of the class's ``Settings``.

        Raises:
            Unavailable: this host has nothing to observe, or not the means.
        """
        self.host = host
        self.settings = settings

    @abstractmethod
    def collect(self) -> Iterable[Event]:
        """What was seen since the last call. An exception counts as a failed run and is shown as a
        metric; the next run comes as usual."""

    def close(self) -> None:
        """Release what was opened."""

    @classmethod
    def capabilities(cls, host: Host, settings: Any) -> list[Capability]:
        """What of it works on this host; must be quick and change nothing."""
        try:
            cls(host, settings).close()
        except Unavailable as reason:
            return [Capability(cls.name, False, str(reason))]
        return [Capability(cls.name, True, cls.about)]


def registered() -> dict[str, type[Collector]]:
    """All collectors, by name; importing the package's modules is what registers them."""
    for module in pkgutil.iter_modules(collectors.__path__):
        import_module(f"collectors.{module.name}")
    return dict(sorted(_registered.items()))
