"""How one cause explains several symptoms: the frame for rules.

A rule is a function that gets a new symptom and what is open, and says which open incident explains
it, if any. Rules live in modules named ``explain_*`` and register themselves by decorator, as
detectors do; they are asked in the order of their names, the first that answers holds.

Where a cause is not one of its symptoms (a dead switch says nothing itself), a *diagnosis* names it
from all of them together, each time that one is added; being a function of the symptoms and of what
is known of the fleet, it comes out the same in whatever order they came.

Confidence says how sure it is that one cause explains all; an incident has that of its weakest tie:

====  ==========================================================================
1.0   one symptom, or several reports of one device on the same trouble
0.9   tied by the inventory, or by what the vendor says of the device
0.6   tied by place and time alone
0.5   consequences whose cause nobody has seen
====  ==========================================================================
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Literal, NamedTuple, Protocol, TypeVar

import streams
from schemas.incident import Incident, IncidentState, Recommendation, Symptom
from schemas.signal import Severity, Signal
from streams.victims import Inventory

SAME_DEVICE = 1.0
KNOWN_TIE = 0.9
PLACE_AND_TIME = 0.6
NO_CAUSE_SEEN = 0.5

_VARIANTS = ("xid", "sxid")

Role = Literal["cause", "effect"]


class Known(Protocol):
    """What a rule may look at. Only live incidents, the one opened last first."""

    def on(self, subject: str) -> Sequence[Incident]:
        """Those whose cause is on this subject."""

    def on_node(self, node: str, kinds: Sequence[str]) -> Sequence[Incident]:
        """Those of these kinds whose cause is somewhere on this node."""

    def touching(self, place: str) -> Sequence[Incident]:
        """Those with a symptom of the network that touches this NIC or node."""

    def blaming(self, nic: str) -> Sequence[Incident]:
        """Those whose diagnosis blames this NIC, or what it is a part of."""

    @property
    def inventory(self) -> Inventory:
        """What the fleet consists of."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where a symptom belongs."""

    incident: str | None
    """The incident that it joins; None opens one."""
    role: Role
    """``cause``: it takes the cause's place if it is the stronger; ``effect``: it never does."""
    confidence: float
    subject: str | None = None
    """What a new incident is on, where that is not the symptom's subject."""
    merges: tuple[str, ...] = ()
    """Other open incidents that the symptom proves to be the same as that which it joins."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the symptoms of an incident amount to."""

    kind: str
    subject: str
    confidence: float
    lead: int
    """Which symptom stands for all: its index."""
    summary: str
    """Empty: what the lead says does for all."""
    advice: str
    """Empty: what the lead's detector advises does."""
    blamed: frozenset[str]
    """NICs whose later symptoms belong here; none where only a path is known."""
    hurt: frozenset[str]
    """Subjects whose users are the victims."""
    breaks: bool
    """Connections die of it where nobody helps, and the jobs with them."""
    severity: Severity | None = None
    """At least this."""


@dataclass(frozen=True, slots=True)
class Description:
    """What an incident says of itself. ``severity`` None: the highest of its symptoms."""

    summary: str
    recommendation: Recommendation | None
    severity: Severity | None = None


class _Practice(NamedTuple):
    fits: Fit
    doctor: Doctor
    touches: Touch
    ties: Tie
    relief: Relief


Rule = Callable[[Signal, Known], Verdict | None]
Doctor = Callable[[Sequence[Symptom], Inventory], Diagnosis | None]
Fit = Callable[[Signal | Symptom], bool]
Touch = Callable[[Signal | Symptom, Inventory], set[str]]
Tie = Callable[[Incident, Signal, Known], Sequence[str]]
Relief = Callable[[str, Iterable[Symptom]], IncidentState]
Describer = Callable[[Sequence[Symptom], Signal | None, Recommendation | None], Description]
_R = TypeVar("_R", bound=Rule)
_D = TypeVar("_D", bound=Describer)

_rules: dict[str, dict[str, Rule]] = {}
_describers: dict[str, Describer] = {}
_strengths: dict[tuple[str, str], int] = {}
_practices: dict[str, _Practice] = {}
_reliefs: set[str] = set()


def explains(*kinds: str) -> Callable[[_R], _R]:
    """Register a rule for symptoms of these kinds."""

    def register(rule: _R) -> _R:
        for kind in kinds:
            _rules.setdefault(kind, {})[f"{rule.__module__}.{rule.__name__}"] = rule
        return rule

    return register


def describes(kind: str) -> Callable[[_D], _D]:
    """Register how incidents of a kind are described, where ``describe`` does not do.

    The function gets the symptoms (never none), the signal that changed the incident (None when
    only time passed) and the recommendation so far.
    """

    def register(describer: _D) -> _D:
        if kind in _describers:
            raise TypeError(f"incidents of kind {kind} are described twice")
        _describers[kind] = describer
        return describer

    return register


def stronger(*kinds: str | tuple[str, int]) -> None:
    """Register symptoms that refine one another, the strongest first: of those that join one
    incident it is the cause. A pair names a variant: ``("gpu.xid", 48)``."""
    for strength, kind in enumerate(reversed(kinds), 1):
        name, variant = (kind, "") if isinstance(kind, str) else (kind[0], str(kind[1]))
        _strengths[name, variant] = strength


def diagnoses(
    *kinds: str, fits: Fit, doctor: Doctor, touches: Touch, ties: Tie, relief: Relief
) -> None:
    """Register how incidents with symptoms of these kinds are named.

    Args:
        kinds: of symptoms.
        fits: whether one of these kinds is on something that it can be on; one that does not fit
            is taken by itself.
        doctor: names the cause from all symptoms.
        touches: the places that a symptom touches, by which rules find its incident.
        ties: names of open incidents that an incident proves to be the same as, after a symptom.
        relief: where an incident of a kind stands whose trouble lasts while something helps, given
            the symptoms that last.
    """
    for kind in kinds:
        _practices[kind] = _Practice(fits, doctor, touches, ties, relief)


def relieves(*kinds: str) -> None:
    """Register kinds that are no trouble but a relief that lasts: traffic rides elsewhere. While
    one does, an incident whose cause lasts is mitigated."""
    _reliefs.update(kinds)


def load() -> None:
    """Import every module with rules; that is what registers them."""
    for module in pkgutil.iter_modules(streams.__path__):
        if module.name.startswith("explain_"):
            import_module(f"streams.{module.name}")


def variant(attributes: Mapping[str, str | int | float]) -> str:
    """What tells symptoms of one kind on one subject apart: the XID. Empty for most kinds."""
    return next((str(attributes[name]) for name in _VARIANTS if name in attributes), "")


def strength(symptom: Symptom) -> int:
    """How strong a cause it is; 0 for kinds that refine nothing."""
    return _strengths.get((symptom.kind, variant(symptom.attributes)), 0)


def explain(signal: Signal, known: Known) -> Verdict:
    """Where a new symptom belongs: in the incident that a rule names, or in one of its own."""
    for _, rule in sorted(_rules.get(signal.kind, {}).items()):
        verdict = rule(signal, known)
        if verdict is not None:
            return verdict
    return Verdict(None, "cause", SAME_DEVICE)


def diagnose(symptoms: Sequence[Symptom], inventory: Inventory) -> Diagnosis | None:
    """The cause by all symptoms together; None where no symptom has a diagnosis."""
    practice = next(filter(None, map(_practice_of, symptoms)), None)
    return None if practice is None else practice.doctor(symptoms, inventory)


def touched(one: Signal | Symptom, inventory: Inventory) -> set[str]:
    """Places that a symptom touches; none for those without a diagnosis."""
    practice = _practice_of(one)
    return set() if practice is None else practice.touches(one, inventory)


def tied(incident: Incident, signal: Signal, known: Known) -> Sequence[str]:
    """Names of open incidents that prove to be the same as this one, after a signal."""
    practice = _practice_of(signal)
    return () if practice is None else practice.ties(incident, signal, known)


def relieved(kind: str, lasting: Sequence[Symptom]) -> IncidentState:
    """Where an incident of this kind stands while some of its symptoms and a relief last."""
    practice = next(filter(None, map(_practice_of, lasting)), None)
    return IncidentState.MITIGATED if practice is None else practice.relief(kind, lasting)


def _practice_of(one: Signal | Symptom) -> _Practice | None:
    practice = _practices.get(one.kind)
    return practice if practice is not None and practice.fits(one) else None


def is_relief(kind: str) -> bool:
    """A symptom of this kind says that something helps."""
    return kind in _reliefs


def cause_of(symptoms: Sequence[Symptom]) -> Symptom | None:
    """The symptom that is the cause; None where only consequences were seen."""
    return next((symptom for symptom in symptoms if symptom.role == "cause"), None)


def describe(
    symptoms: Sequence[Symptom], signal: Signal | None, before: Recommendation | None
) -> Description:
    """The usual description: the cause speaks for all."""
    cause = cause_of(symptoms) or symptoms[0]
    if signal is not None and signal.episode == cause.episode and (signal.remedy or signal.advice):
        before = Recommendation(remedy=signal.remedy, advice=signal.advice)
    return Description(cause.summary, before)


def description(
    kind: str,
    symptoms: Sequence[Symptom],
    signal: Signal | None,
    before: Recommendation | None,
) -> Description:
    """The description of an incident of this kind."""
    return _describers.get(kind, describe)(symptoms, signal, before)
