"""The incidents that are not resolved, found by name, by symptom, by subject and by node."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from schemas.identity import parts
from schemas.incident import Incident, Symptom
from streams.explain import Diagnosis
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
    diagnosis: Diagnosis | None = None
    places: set[str] = field(default_factory=set)
    """NICs and nodes that its symptoms touch."""

    @property
    def name(self) -> str:
        """The incident's name through all revisions."""
        return self.incident.incident


_P = TypeVar("_P", bound=Hashable)
Place = tuple[str, str]
"""A subject and nothing, or a node and a kind."""


class LiveIncidents:
    """All of them, so indexed that no signal needs a look at all."""

    def __init__(self) -> None:
        self._all: dict[str, Live] = {}
        self._holder: dict[Key, str] = {}
        self._at: dict[Place, dict[str, None]] = {}
        self._touching: dict[str, dict[str, None]] = {}
        self._blaming: dict[str, dict[str, None]] = {}

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

    def touching(self, place: str) -> list[str]:
        """Those with a symptom that touches this NIC or node."""
        return list(self._touching.get(place, ()))

    def blaming(self, nic: str) -> list[str]:
        """Those whose diagnosis blames this NIC."""
        return list(self._blaming.get(nic, ()))

    def add(self, live: Live) -> None:
        """Take one in."""
        self._all[live.name] = live
        for key in live.symptoms:
            self._holder[key] = live.name
        for at in _places(live.incident):
            self._at.setdefault(at, {})[live.name] = None
        for place in live.places:
            self._touching.setdefault(place, {})[live.name] = None
        if live.diagnosis is not None:
            for nic in live.diagnosis.blamed:
                self._blaming.setdefault(nic, {})[live.name] = None

    def drop(self, live: Live) -> None:
        """Take one out."""
        del self._all[live.name]
        for key in live.symptoms:
            if self._holder.get(key) == live.name:
                del self._holder[key]
        for at in _places(live.incident):
            _take_out(self._at, at, live.name)
        for place in live.places:
            _take_out(self._touching, place, live.name)
        if live.diagnosis is not None:
            for nic in live.diagnosis.blamed:
                _take_out(self._blaming, nic, live.name)

    def hold(self, live: Live, key: Key, symptom: Symptom, places: Iterable[str] = ()) -> None:
        """Give one a symptom, which touches some places."""
        live.symptoms[key] = symptom
        self._holder[key] = live.name
        for place in places:
            live.places.add(place)
            self._touching.setdefault(place, {})[live.name] = None

    def revise(self, live: Live, incident: Incident, diagnosis: Diagnosis | None = None) -> None:
        """Put the next revision in the place of the last."""
        moved = (incident.kind, incident.subject) != (live.incident.kind, live.incident.subject)
        moved |= _blamed(diagnosis) != _blamed(live.diagnosis)
        if moved:
            self.drop(live)
        live.incident, live.diagnosis = incident, diagnosis
        if moved:
            self.add(live)


def _blamed(diagnosis: Diagnosis | None) -> frozenset[str]:
    return frozenset() if diagnosis is None else diagnosis.blamed


def _take_out(index: dict[_P, dict[str, None]], place: _P, name: str) -> None:
    names = index[place]
    del names[name]
    if not names:
        del index[place]


def _places(incident: Incident) -> list[Place]:
    kind, node, name = parts(incident.subject)
    nodes = {end.partition("/")[0] for end in name.split("--")} if kind == "link" else {node}
    return [(incident.subject, ""), *((one, incident.kind) for one in sorted(nodes))]
