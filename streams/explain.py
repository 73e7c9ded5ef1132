"""How one cause explains several symptoms: the frame for rules.

A rule is a function that gets a new symptom and what is open, and says which open incident explains
it, if any. Rules live in modules named ``explain_*`` and register themselves by decorator, as
detectors do; they are asked in the order of their names, the first that answers holds.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Literal, Protocol, TypeVar

import streams
from schemas.incident import Incident, Recommendation, Symptom
from schemas.signal import Severity, Signal

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

    def nic_of(self, node: str, address: str) -> str | None:
        """The NIC of a node that has this address, None where unknown."""


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


@dataclass(frozen=True, slots=True)
class Description:
    """What an incident says of itself. ``severity`` None: the highest of its symptoms."""

    summary: str
    recommendation: Recommendation | None
    severity: Severity | None = None


Rule = Callable[[Signal, Known], Verdict | None]
Describer = Callable[[Sequence[Symptom], Signal | None, Recommendation | None], Description]
_R = TypeVar("_R", bound=Rule)
_D = TypeVar("_D", bound=Describer)

_rules: dict[str, dict[str, Rule]] = {}
_describers: dict[str, Describer] = {}
_strengths: dict[tuple[str, str], int] = {}


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
