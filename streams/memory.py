"""What a correlator has read before: episodes and resolved incidents, in bounded space."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from streams.symptoms import Key


@dataclass(slots=True)
class _Resolved:
    episodes: list[str]
    floors: dict[Key, int]
    """The floors that are forgotten with it."""


class Memory:
    """Which incident an episode belongs to, for as long as it may be read again."""

    def __init__(self) -> None:
        self._owner: dict[str, str] = {}
        self._floor: dict[Key, int] = {}
        """Symptoms of which episodes that began no later were read before, though their ids are
        not known any more."""
        self._resolved: dict[str, _Resolved] = {}
        self._expiry: list[tuple[int, str]] = []

    def owner(self, episode: str) -> str | None:
        """The incident, live or resolved, that took an episode in."""
        return self._owner.get(episode)

    def own(self, episode: str, incident: str) -> None:
        """An incident took an episode in."""
        self._owner[episode] = incident

    def blur(self, episode: str) -> None:
        """Forget an episode's id."""
        self._owner.pop(episode, None)

    def set_floor(self, key: Key, raised_ns: int) -> None:
        """Episodes of this symptom that began no later than ``raised_ns`` were read before."""
        self._floor[key] = max(raised_ns, self._floor.get(key, -1))

    def below_floor(self, key: Key, raised_ns: int) -> bool:
        """An episode of this symptom, of unknown id, was read before."""
        return raised_ns <= self._floor.get(key, -1)

    def is_resolved(self, incident: str) -> bool:
        """The incident is resolved and not yet forgotten."""
        return incident in self._resolved

    def resolve(
        self, incident: str, until_ns: int, episodes: Iterable[str], keys: Iterable[Key]
    ) -> None:
        """An incident with these symptoms was resolved; remember it until a time."""
        floors = {key: self._floor[key] for key in keys if key in self._floor}
        self._resolved[incident] = _Resolved(list(episodes), floors)
        heapq.heappush(self._expiry, (until_ns, incident))

    def expire(self, now_ns: int, remembered_max: int) -> list[str]:
        """Forget resolved incidents whose time has come, or that are too many, the oldest first."""
        gone: list[str] = []
        while self._expiry and (
            self._expiry[0][0] <= now_ns or len(self._resolved) > remembered_max
        ):
            _, incident = heapq.heappop(self._expiry)
            resolved = self._resolved.pop(incident)
            for episode in resolved.episodes:
                self._owner.pop(episode, None)
            for key, raised_ns in resolved.floors.items():
                if self._floor.get(key) == raised_ns:
                    del self._floor[key]
            gone.append(incident)
        return gone
