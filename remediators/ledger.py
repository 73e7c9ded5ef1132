"""What was told to be done and what came of it: a fold over the topics ``actions`` and ``outcomes``.

Three kinds of action stand in the ledger. A *permitted* one (mode ``act``, no dry run) is executed,
once, under an id made from incident, remedy, purpose and receiver; until its outcome is there it is
pending, also after a restart. A *refused* one records why policy kept a step from being done; it has
an id of its own for each reason, so that the step can still be permitted later. A *rehearsed* one is
a dry run: recorded as if permitted, never executed.

The fold does not depend on how the two topics interleave, and adding a message twice changes nothing.
Memory is bounded: of an incident that was closed (each step that began something has its end, with
an outcome) only the id is kept, of the last 20,000.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from schemas.action import Action, ActionMode, Outcome, OutcomeStatus
from schemas.identity import content_id

_CLOSED_MAX = 20_000
_OPEN_MAX = 20_000


class Place(NamedTuple):
    """Which step of which remedy for which receiver."""

    remedy: str
    purpose: str
    receiver: str


def action_id(incident: str, place: Place, rule: str = "") -> str:
    """The id of the action for a step; ``rule`` names the rule that refused it, if one did."""
    return content_id("action", incident, *place, *([rule] if rule else []))


def outcome_id(action: str) -> str:
    """The id of an action's outcome: it has one."""
    return content_id("outcome", action)


def place_of(action: Action) -> Place:
    """Which step an action is."""
    return Place(action.remedy, action.purpose, str(action.parameters.get("receiver", "")))


def follows(action: Action) -> str:
    """The purpose of the step that an action ends; empty where it begins something."""
    return str(action.parameters.get("follows", ""))


def executable(action: Action) -> bool:
    """It is to be done, not only recorded."""
    return action.mode is ActionMode.ACT and not action.dry_run


@dataclass(slots=True)
class _Entry:
    """What is known of one step for one incident."""

    follows: str
    permitted: str = ""
    """Id of the permitted action."""
    status: OutcomeStatus | None = None
    """What came of the permitted action."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Ids of refused and rehearsed actions, with the reason."""
    recorded: set[str] = field(default_factory=set)
    """Those of them whose outcome is there too."""
    rehearsed: bool = False

    def concluded(self) -> bool:
        return self.status is not None if self.permitted else bool(self.recorded)


class Ledger:
    """The fold. Not for use from several threads at once."""

    def __init__(self, remember_s: float = 0.0) -> None:
        """``remember_s``: the longest period that budgets and cool-downs look back over. A clock
        that steps back by less than that does not widen them."""
        self._remember_ns = int(2 * remember_s * 1e9)
        self._open: dict[str, dict[Place, _Entry]] = {}
        self._closed: dict[str, None] = {}
        self._pending: dict[str, Action] = {}
        self._strays: dict[str, OutcomeStatus] = {}
        self._spent: dict[tuple[str, str], dict[str, tuple[int, str]]] = {}

    def add(self, event: Action | Outcome) -> None:
        """Take in one message of either topic."""
        if event.incident in self._closed:
            return
        if isinstance(event, Action):
            self._add_action(event)
        else:
            self._add_outcome(event)
        self._close(event.incident)

    def pending(self) -> list[Action]:
        """Permitted actions without an outcome, in the order in which they were decided."""
        return list(self._pending.values())

    def waiting(self) -> set[str]:
        """Incidents that are not closed and have a refused beginning: it may still come."""
        return {
            incident
            for incident, entries in self._open.items()
            if any(e.reasons and not e.permitted and not e.follows for e in entries.values())
        }

    def closed(self, incident: str) -> bool:
        """Nothing more is to be done about the incident."""
        return incident in self._closed

    def permitted(self, incident: str, place: Place) -> bool:
        """The step was permitted, whatever came of it."""
        entry = self._entry(incident, place)
        return entry is not None and bool(entry.permitted)

    def rehearsed(self, incident: str, place: Place) -> bool:
        """The step was taken as a dry run."""
        entry = self._entry(incident, place)
        return entry is not None and entry.rehearsed

    def refusal(self, incident: str, place: Place) -> str | None:
        """Why the step was refused, last; None where it was not."""
        entry = self._entry(incident, place)
        return next(reversed(entry.reasons.values()), None) if entry is not None else None

    def status(self, incident: str, place: Place) -> OutcomeStatus | None:
        """What came of the permitted step; None while that is open."""
        entry = self._entry(incident, place)
        return entry.status if entry is not None else None

    def recorded(self, incident: str, place: Place, action: str) -> bool:
        """The refused or rehearsed action of this id stands in the ledger with its outcome."""
        entry = self._entry(incident, place)
        return entry is not None and action in entry.recorded

    def spent(
        self, remedy: str, receiver: str, since_ns: int, subject: str | None = None
    ) -> list[int]:
        """Times of the beginnings, permitted or rehearsed, after ``since_ns``."""
        return [
            at_ns
            for at_ns, on in self._spent.get((remedy, receiver), {}).values()
            if at_ns > since_ns and (subject is None or on == subject)
        ]

    def forget_strays(self) -> None:
        """After a replay to the end of both topics: outcomes whose action is no longer there."""
        self._strays.clear()

    def _entry(self, incident: str, place: Place) -> _Entry | None:
        return self._open.get(incident, {}).get(place)

    def _add_action(self, action: Action) -> None:
        place = place_of(action)
        entries = self._open.setdefault(action.incident, {})
        entry = entries.setdefault(place, _Entry(follows(action)))
        status = self._strays.pop(action.id, None)
        if action.mode is ActionMode.ACT and not entry.follows:
            self._spend(place, action)
        if not executable(action):
            entry.reasons[action.id] = action.reason
            entry.rehearsed |= action.mode is ActionMode.ACT
            if status is not None:
                entry.recorded.add(action.id)
        elif not entry.permitted:
            entry.permitted, entry.status = action.id, status
            if status is None:
                self._pending[action.id] = action

    def _add_outcome(self, outcome: Outcome) -> None:
        for entry in self._open.get(outcome.incident, {}).values():
            if entry.permitted == outcome.action:
                entry.status = entry.status or outcome.status
                self._pending.pop(outcome.action, None)
                return
            if outcome.action in entry.reasons:
                entry.recorded.add(outcome.action)
                return
        self._strays[outcome.action] = outcome.status

    def _spend(self, place: Place, action: Action) -> None:
        if not self._remember_ns:
            return
        spent = self._spent.setdefault((place.remedy, place.receiver), {})
        spent.setdefault(action.id, (action.at_ns, action.subject))
        # Nearly in order of time: dropping from the old end is enough.
        while (first := next(iter(spent))) and spent[first][0] < action.at_ns - self._remember_ns:
            del spent[first]

    def _close(self, incident: str) -> None:
        entries = self._open.get(incident, {})
        ends = {
            (place.remedy, place.receiver, entry.follows): entry
            for place, entry in entries.items()
            if entry.follows and entry.concluded()
        }
        closed = bool(ends) and all(
            entry.concluded()
            if entry.follows
            else (place.remedy, place.receiver, place.purpose) in ends
            and (entry.status is not None or not entry.permitted)
            for place, entry in entries.items()
        )
        if closed:
            del self._open[incident]
            self._closed[incident] = None
            if len(self._closed) > _CLOSED_MAX:
                del self._closed[next(iter(self._closed))]
        elif len(self._open) > _OPEN_MAX:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Drop the oldest open incident of which nothing is pending: its end never came."""
        busy = {action.incident for action in self._pending.values()}
        oldest = next((incident for incident in self._open if incident not in busy), None)
        if oldest is not None:
            del self._open[oldest]
