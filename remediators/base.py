"""What a remedy is.

A remedy is one module with one class. ``steps`` says, as a pure function of an incident's revision,
what it would do about it; policy (:mod:`remediators.policy`) decides whether it may; ``execute``
does it. Defining the class registers it; no other file changes.

A step names its ``purpose`` (``firing``), and is taken once for an incident and receiver, however
often it is proposed. A step that ends an earlier one names it in ``follows``: it shares its fate, and
is executed only after it. A remedy with several independent doers (receivers of notices, nodes) names
one in ``receiver``: each has its own queue, so that one that is away holds up no other.
"""

from __future__ import annotations

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, time
from importlib import import_module
from typing import Annotated, Any, ClassVar, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import Field, field_validator, model_validator

import remediators
from bus.settings import Section, Words
from schemas.action import CONTROL, Action, ActionMode
from schemas.incident import Incident
from schemas.signal import Severity

_registered: dict[str, type[Remedy]] = {}

Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]


class Silence(Section):
    """A time in which a remedy begins nothing: once from ``start`` to ``end``, or daily."""

    start: datetime | None = None
    end: datetime | None = None
    """Times without an offset are in ``timezone``."""
    daily_from: time | None = None
    daily_to: time | None = None
    """A window that ends before it begins, such as 22:00 to 06:00, goes over midnight."""
    days: list[Weekday] = []
    """Days on which the daily window begins; empty for all."""
    timezone: str = "UTC"
    kinds: Words = ["*"]
    """Patterns (``fnmatch``) of the kinds of incident it holds for."""
    subjects: Words = ["*"]
    """Patterns (``fnmatch``) of the subjects it holds for."""
    why: str = ""
    """Said in the ledger: ``maintenance of rail 2``."""

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (KeyError, ValueError, OSError):
            raise ValueError(f"no time zone is named {name!r}; write it as Europe/Berlin") from None
        return name

    @model_validator(mode="after")
    def _one_window(self) -> Self:
        once = self.start is not None and self.end is not None
        daily = self.daily_from is not None and self.daily_to is not None
        some_once = self.start is not None or self.end is not None
        some_daily = self.daily_from is not None or self.daily_to is not None
        if once == daily or (some_once and some_daily):
            raise ValueError("give either start and end, or daily_from and daily_to")
        if once and self.at(self.start) >= self.at(self.end):
            raise ValueError("its end is not after its start")
        if daily and self.daily_from == self.daily_to:
            raise ValueError(
                "daily_from and daily_to are the same; for always, set mode = 'observe'"
            )
        return self

    def at(self, moment: datetime | None) -> datetime:
        """``start`` or ``end`` with its offset."""
        assert moment is not None
        return moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(self.timezone))


class Budget(Section):
    """The blast radius: at most so many beginnings in any ``period_s``, for each receiver."""

    fleet: Annotated[int, Field(ge=0)] | None = None
    """Over the whole fleet; None for no bound."""
    subject: Annotated[int, Field(ge=0)] | None = None
    """On one and the same subject; None for no bound."""
    period_s: Annotated[float, Field(gt=0, le=31 * 86400)] = 3600.0


class RemedySettings(Section):
    """Settings that every remedy has."""

    mode: ActionMode = ActionMode.OBSERVE
    """``observe`` only records what it would do, ``ask`` waits for a person, ``act`` does it."""
    dry_run: bool = False
    """Decide and record as in earnest, but execute nothing."""
    cooldown_s: Annotated[float, Field(ge=0, le=31 * 86400)] = 0.0
    """Seconds after a beginning before the next on the same subject."""
    budget: Budget = Budget()
    silences: list[Silence] = []
    kinds: Words = ["*"]
    """Patterns (``fnmatch``) of the kinds of incident it deals with."""
    severity_min: Severity = Severity.INFO
    """It deals with incidents of this severity and above."""

    def looks_back_s(self) -> float:
        """How far back the budget and the cool-down have to know what was begun, in seconds."""
        bounded = self.budget.fleet is not None or self.budget.subject is not None
        return max(self.cooldown_s, self.budget.period_s if bounded else 0.0)


@dataclass(frozen=True, slots=True)
class Step:
    """Something that a remedy would do about an incident."""

    remedy: str
    purpose: str
    subject: str
    target: str = CONTROL
    """The node that executes it, or ``control``."""
    receiver: str = ""
    """Which of the remedy's independent doers; empty where it has one."""
    follows: str = ""
    """Purpose of the step that this one ends; empty for one that begins something."""
    parameters: Mapping[str, str | int | float | bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one attempt."""

    done: bool
    detail: str
    again: bool = False
    """Not done, but worth another attempt."""
    retry_after_s: float = 0.0
    """The earliest time for it, where the other side named one."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How one receiver is served."""

    concurrency: int = 1
    """Actions at a time, of different incidents, once the receiver is slow to answer."""
    give_up_s: float = 86400.0
    """An action that was not done this long after it was decided has failed."""


class Remedy(ABC):
    """Base of all remedies."""

    name: ClassVar[str]
    about: ClassVar[str]
    """One line: what it does."""
    Settings: ClassVar[type[RemedySettings]] = RemedySettings

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.name in _registered:
            raise TypeError(f"two remedies are named {cls.name}")
        _registered[cls.name] = cls

    def __init__(self, settings: Any) -> None:
        """Open what is needed.

        Args:
            settings: an instance of the class's ``Settings``.

        Raises:
            SettingsError: a setting cannot work.
        """
        self.settings = settings

    @staticmethod
    @abstractmethod
    def steps(incident: Incident, settings: Any) -> list[Step]:
        """What it would do about this revision of an incident; a pure function.

        It may propose the same step at each revision, and a step that ends another without knowing
        whether that was taken: the ledger and policy know.
        """

    @abstractmethod
    def execute(self, action: Action, incident: Incident, attempt: int) -> Result:
        """Do it once. Called from several threads; ``attempt`` counts from 1 since the last start.

        The same action may be executed twice when this process was killed in the middle of it.
        """

    def limits(self, receiver: str) -> Limits | None:
        """How a receiver is served; None where there is none of that name (any more)."""
        return Limits() if not receiver else None

    def idle_reason(self) -> str:
        """Why it can do nothing as it is set up; empty where it can."""
        return ""

    def close(self) -> None:
        """Release what was opened."""


def registered() -> dict[str, type[Remedy]]:
    """All remedies, by name; importing the package's modules is what registers them."""
    for module in pkgutil.iter_modules(remediators.__path__):
        import_module(f"remediators.{module.name}")
    return dict(sorted(_registered.items()))
