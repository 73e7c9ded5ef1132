"""Things that go away and come back again and again: when that is flapping, and when it is over.

A pure core that detectors of links and paths share. Each thing's newest changes are kept; they are at
once what is counted, what is shown as evidence, and how a change that is read a second time is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from schemas.signal import EVIDENCE_MAX, Evidence, Phase
from streams.base import DetectorSettings

_SECOND_NS = 1_000_000_000
_CHANGES_MAX = 128
_THINGS_MAX = 512
_UPDATE_NS = _SECOND_NS


class FlappingSettings(DetectorSettings):
    """When losses are flapping. A window raises with *more* than ``losses`` or with ``burst_losses``
    and more."""

    losses: Annotated[int, Field(ge=1, le=60)] = 8
    """More losses than this within ``window_s`` are flapping."""
    window_s: Annotated[float, Field(gt=0, le=86_400)] = 3600.0
    burst_losses: Annotated[int, Field(ge=2, le=60)] = 3
    """This many losses within ``burst_s`` are flapping too."""
    burst_s: Annotated[float, Field(gt=0, le=3600)] = 10.0
    quiet_s: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    """Flapping has ended after this long up and without a change."""


@dataclass(slots=True)
class Change:
    """A thing went away or came back."""

    at_ns: int
    up: bool
    losses: int
    """Losses that it stands for; 0 for a return or an end that is no fault."""
    what: str
    """In words."""
    clock_error_ns: int
    since_ns: int

    def row(self) -> list[Any]:
        return [
            self.at_ns,
            self.up,
            self.losses,
            self.what,
            self.clock_error_ns,
            self.since_ns,
        ]


@dataclass(slots=True)
class Verdict:
    """What is to be said of an episode of flapping."""

    phase: Phase
    subject: str
    physical: bool
    raised_ns: int
    at_ns: int
    clock_error_ns: int
    losses: int
    lasted_ns: int
    """From its beginning to its newest change."""
    why: str
    """Why it ended, in words to append."""
    evidence: list[Evidence]
    evidence_dropped: int


@dataclass(slots=True)
class _Episode:
    raised_ns: int
    losses: int
    changes: int
    told_ns: int
    """Time of the newest change that a verdict has told of."""


@dataclass(slots=True)
class _Thing:
    physical: bool
    up: bool = True
    counted_from_ns: int = 0
    """Losses before it belong to an episode that is over."""
    newest: list[Change] = field(default_factory=list)
    episode: _Episode | None = None

    def knows(self, change: Change) -> bool:
        """This change was read before (or is older than all that a full memory holds)."""
        if len(self.newest) == _CHANGES_MAX and change.at_ns < self.newest[0].at_ns:
            return True
        # Several changes that the kernel announced as one have one time.
        said = (change.at_ns, change.since_ns, change.up)
        return any(
            (known.at_ns, known.since_ns, known.up) == said for known in reversed(self.newest)
        )


class Flapping:
    """The things of one node, by subject."""

    def __init__(self, settings: FlappingSettings) -> None:
        self._settings = settings
        self._things: dict[str, _Thing] = {}
        self.changed = False
        """``state`` differs from what it was when this was last set False."""

    def observe(
        self, subject: str, change: Change, *, physical: bool = True, gone: str = ""
    ) -> Iterator[Verdict]:
        """Verdicts that follow from a change, also those that end other things' episodes by now.

        Args:
            subject: what changed.
            change: how.
            physical: told again in the verdicts.
            gone: in words, for a thing that was taken away on purpose: whatever it did is over.
        """
        yield from self.ended(change.at_ns)
        thing = self._things.get(subject)
        if thing is None:
            thing = self._things[subject] = _Thing(physical)
            self._bound()
        if thing.knows(change):
            return
        self.changed = True
        thing.physical, thing.up = physical, change.up
        if gone and thing.episode is not None:
            yield self._clear(subject, thing, change.at_ns, gone)
        thing.newest.append(change)
        del thing.newest[:-_CHANGES_MAX]
        if thing.episode is not None:
            thing.episode.losses += change.losses
            thing.episode.changes += 1
            if change.at_ns - thing.episode.told_ns >= _UPDATE_NS:
                yield self._tell(subject, thing, thing.episode, Phase.UPDATED)
        elif change.losses and (began_ns := self._flaps_since(thing, change.at_ns)) is not None:
            inside = [one for one in thing.newest if one.at_ns >= began_ns]
            thing.episode = _Episode(
                began_ns, sum(one.losses for one in inside), len(inside), change.at_ns
            )
            yield self._tell(subject, thing, thing.episode, Phase.RAISED)

    def tick(self, now_ns: int) -> Iterator[Verdict]:
        """Tell what the limit of one update a second held back, end what has been quiet."""
        for subject, thing in self._things.items():
            episode = thing.episode
            if (
                episode is not None
                and thing.newest[-1].at_ns != episode.told_ns
                and now_ns - episode.told_ns >= _UPDATE_NS
            ):
                yield self._tell(subject, thing, episode, Phase.UPDATED)
        yield from self.ended(now_ns)
        oldest_ns = now_ns - int(self._settings.window_s * _SECOND_NS)
        for subject in [
            subject
            for subject, thing in self._things.items()
            if thing.episode is None and (not thing.newest or thing.newest[-1].at_ns < oldest_ns)
        ]:
            del self._things[subject]
            self.changed = True

    def state(self) -> dict[str, Any]:
        """The newest changes of each thing and the episode it is in."""
        return {
            subject: {
                "physical": thing.physical,
                "up": thing.up,
                "counted_from_ns": thing.counted_from_ns,
                "newest": [one.row() for one in thing.newest],
                "episode": None
                if (episode := thing.episode) is None
                else [episode.raised_ns, episode.losses, episode.changes, episode.told_ns],
            }
            for subject, thing in self._things.items()
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what ``state`` returned."""
        self._things = {
            subject: _Thing(
                stored["physical"],
                stored["up"],
                stored["counted_from_ns"],
                [Change(*row) for row in stored["newest"]],
                None if stored["episode"] is None else _Episode(*stored["episode"]),
            )
            for subject, stored in state.items()
        }

    def ended(self, now_ns: int) -> Iterator[Verdict]:
        """End what has been quiet until now."""
        quiet_ns = int(self._settings.quiet_s * _SECOND_NS)
        for subject, thing in self._things.items():
            if thing.episode is None or not thing.up:
                continue
            ended_ns = thing.newest[-1].at_ns + quiet_ns
            if ended_ns <= now_ns:
                yield self._clear(
                    subject, thing, ended_ns, f", quiet for {self._settings.quiet_s:g} s"
                )

    def _flaps_since(self, thing: _Thing, now_ns: int) -> int | None:
        """When the flapping began that the losses up to now amount to; None where they do not."""
        for needed, window_s in (
            (self._settings.burst_losses, self._settings.burst_s),
            (self._settings.losses + 1, self._settings.window_s),
        ):
            from_ns = max(now_ns - int(window_s * _SECOND_NS), thing.counted_from_ns)
            inside = [one for one in thing.newest if one.losses and from_ns <= one.at_ns <= now_ns]
            if sum(one.losses for one in inside) >= needed:
                return inside[0].at_ns
        return None

    def _clear(self, subject: str, thing: _Thing, at_ns: int, why: str) -> Verdict:
        assert thing.episode is not None
        verdict = self._tell(subject, thing, thing.episode, Phase.CLEARED, at_ns, why)
        thing.episode = None
        thing.counted_from_ns = at_ns
        return verdict

    def _tell(
        self,
        subject: str,
        thing: _Thing,
        episode: _Episode,
        phase: Phase,
        at_ns: int | None = None,
        why: str = "",
    ) -> Verdict:
        self.changed = True
        last = thing.newest[-1]
        episode.told_ns = last.at_ns
        shown = [one for one in thing.newest if one.at_ns >= episode.raised_ns]
        shown = shown[-min(EVIDENCE_MAX, episode.changes) :]
        return Verdict(
            phase=phase,
            subject=subject,
            physical=thing.physical,
            raised_ns=episode.raised_ns,
            at_ns=last.at_ns if at_ns is None else at_ns,
            clock_error_ns=last.clock_error_ns,
            losses=episode.losses,
            lasted_ns=last.at_ns - episode.raised_ns,
            why=why,
            evidence=[Evidence(at_ns=one.at_ns, what=one.what) for one in shown],
            evidence_dropped=episode.changes - len(shown),
        )

    def _bound(self) -> None:
        """Container hosts make interfaces without end; those that do nothing now go first."""
        while len(self._things) > _THINGS_MAX:
            idle = (name for name, one in self._things.items() if one.episode is None)
            del self._things[next(idle, next(iter(self._things)))]
