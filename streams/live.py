"""The incidents that are not resolved, found by name, by symptom, by subject and by node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from schemas.identity import parts
from schemas.incident import Incident, Symptom
from streams.symptoms import Key


@dataclass(slots=True)
class Live:
    """An incident that is not resolved."""

    incident: Incident
    symptoms: dict[Key, Symptom]
    episodes: dict[str, tuple[Key, int]]
    """The newest episodes that it took in, also those that newer ones replaced: of which symptom,
    and when they began."""
    active: set[Key]
    said: dict[Key, set[str]] = field(default_factory=dict)
    """Ids of the signals with a symptom's newest time: several may share one."""
    touched: set[str] = field(default_factory=set)
    """Subjects whose victims the incident names, as of this revision of the inventory."""
    inventory_revision: int = -1

    @property
    def name(self) -> str:
        """The incident's name through all revisions."""
        return self.incident.incident


Place = tuple[str, str]
"""A subject and nothing, or a node and a kind."""


class LiveIncidents:
    """All of them, so indexed that no signal needs a look at all."""

    def __init__(self) -> None:
        self._all: dict[str, Live] = {}
        self._holder: dict[Key, str] = {}
        self._at: dict[Place, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Live]:
        return iter(self._all.values())

    def get(self, name: str | None) -> Live | None:
        """The incident of this name, if it is live."""
        return self._all.get(name) if name is not None else None

    def holder(self, key: Key) -> str | None:
        """The live incident that has this symptom."""
        return self._holder.get(key)

    def at(self, places: Iterable[Place]) -> list[str]:
        """Those whose cause is at one of these places."""
        return [name for place in places for name in self._at.get(place, ())]

    def add(self, live: Live) -> None:
        """Take one in."""
        self._all[live.name] = live
        for key in live.symptoms:
            self._holder[key] = live.name
        for place in _places(live.incident):
            self._at.setdefault(place, {})[live.name] = None

    def drop(self, live: Live) -> None:
        """Take one out."""
        del self._all[live.name]
        for key in live.symptoms:
            if self._holder.get(key) == live.name:
                del self._holder[key]
        for place in _places(live.incident):
            names = self._at[place]
            del names[live.name]
            if not names:
                del self._at[place]

    def hold(self, live: Live, key: Key, symptom: Symptom) -> None:
        """Give one a symptom."""
        live.symptoms[key] = symptom
        self._holder[key] = live.name

    def revise(self, live: Live, incident: Incident) -> None:
        """Put the next revision in the place of the last."""
        moved = (incident.kind, incident.subject) != (live.incident.kind, live.incident.subject)
        if moved:
            self.drop(live)
        live.incident = incident
        if moved:
            self.add(live)


def _places(incident: Incident) -> tuple[Place, Place]:
    return (incident.subject, ""), (parts(incident.subject).node, incident.kind)
