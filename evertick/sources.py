"""Where commands read incidents: the history, or the topics themselves where it cannot be reached.

Both hold the same messages, so both give the same models. The history answers from tables; the
topics are read from their beginning and folded, which takes seconds on a large cluster and reaches
back only as far as the topics' retention.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from bus.settings import Settings, SettingsError
from evertick import reach, wording
from schemas.action import Action, Outcome
from schemas.event import Event
from schemas.incident import Incident, IncidentState
from schemas.registry import decode
from schemas.signal import Signal

_INCIDENTS_MAX = 10_000


class NoSuchIncident(Exception):
    """An id, or the beginning of one, that names no incident or several; the text lists those."""


class HistoryAway(Exception):
    """The history cannot be asked; the text says why."""


@dataclass(slots=True)
class Told:
    """All that was said about one incident."""

    revisions: list[Incident] = field(default_factory=list)
    signals: list[Signal] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    def add(self, event: Event) -> None:
        """Put an event where it belongs."""
        match event:
            case Incident():
                self.revisions.append(event)
            case Signal():
                self.signals.append(event)
            case Action():
                self.actions.append(event)
            case Outcome():
                self.outcomes.append(event)


class Source(Protocol):
    """Where incidents can be read."""

    note: str
    """What a person should know of this source; empty for the usual one."""

    def newest(self, open_only: bool, since_ns: int) -> list[Incident]:
        """The newest revision of the incidents that are open, or began at ``since_ns`` or later
        where not only open ones are wanted."""

    def starting_with(self, prefix: str) -> list[Incident]:
        """The newest revision of the incidents whose id begins so."""

    def told(self, incident: Incident) -> Told:
        """All that was said about an incident."""


class FromHistory:
    """Asks ClickHouse. Its rows keep each message whole, which is what is read here."""

    def __init__(self, settings: Settings) -> None:
        """Raises:
        HistoryAway: no answer, no tables there, or the packages for it are not installed.
        """
        # Its client logs what it also raises.
        logging.getLogger("clickhouse_connect").addHandler(logging.NullHandler())
        try:
            from history.client import Unreachable, connect
        except ModuleNotFoundError as error:
            raise HistoryAway(
                f"package {error.name} is not installed (pip install -e '.[history]')"
            ) from None
        self.note = ""
        self._where = settings.clickhouse.url
        try:
            self._client = connect(settings.clickhouse)
        except Unreachable as error:
            raise HistoryAway(str(error)) from None
        # A database that no writer has made yet holds nothing; the topics may.
        self._documents("incidents", open_only=True, since_ns=0, kind="", limit=1)

    def newest(self, open_only: bool, since_ns: int) -> list[Incident]:
        """See :class:`Source`."""
        found = self._documents(
            "incidents", open_only=open_only, since_ns=since_ns, kind="", limit=_INCIDENTS_MAX
        )
        if len(found) == _INCIDENTS_MAX:
            self.note = f"only the newest {_INCIDENTS_MAX} incidents were read; narrow with --since"
        return [one for one in found if isinstance(one, Incident)]

    def starting_with(self, prefix: str) -> list[Incident]:
        """The newest revision of the incidents whose id begins so (of the first 20)."""
        found = []
        for row in self._ask("incidents_by_prefix", prefix=prefix):
            revisions = self._documents("revisions", incident=_text(row["incident"]))
            found += list(fold(revisions).values())
        return found

    def told(self, incident: Incident) -> Told:
        """All that was said about an incident."""
        which = incident.incident
        told = Told()
        for event in (
            *self._documents("revisions", incident=which),
            *self._documents("actions_of", incident=which),
            *self._documents("outcomes_of", incident=which),
        ):
            told.add(event)
        episodes = {s.episode for r in [*told.revisions, incident] for s in r.symptoms}
        for event in self._documents("signals_of", episodes=sorted(episodes)):
            told.add(event)
        return told

    def _documents(self, query: str, **parameters: Any) -> list[Event]:
        return [decode(_text(row["document"]).encode()) for row in self._ask(query, **parameters)]

    def _ask(self, query: str, **parameters: Any) -> list[dict[str, Any]]:
        from clickhouse_connect.driver.exceptions import ClickHouseError

        from history.client import first_line
        from history.queries import ask

        try:
            return ask(self._client, query, **parameters)
        except (ClickHouseError, OSError) as error:
            raise HistoryAway(
                f"ClickHouse at {self._where} did not answer: {first_line(error)}"
            ) from None


class FromTopics:
    """Reads and folds the topics."""

    def __init__(self, settings: Settings, note: str = "") -> None:
        """Raises:
        SettingsError: Kafka cannot be reached.
        """
        reach.kafka(settings.kafka)
        self.note = note
        self._settings = settings

    def newest(self, open_only: bool, since_ns: int) -> list[Incident]:
        """See :class:`Source`."""
        return [
            one
            for one in fold(self._events("incidents")).values()
            if one.state is not IncidentState.RESOLVED
            or (not open_only and one.opened_ns >= since_ns)
        ]

    def starting_with(self, prefix: str) -> list[Incident]:
        """The newest revision of the incidents whose id begins so."""
        found = fold(self._events("incidents")).values()
        return [one for one in found if one.incident.startswith(prefix)]

    def told(self, incident: Incident) -> Told:
        """All that was said about an incident."""
        found = Told()
        for event in self._events("incidents", "signals", "actions", "outcomes"):
            if isinstance(event, Signal) or getattr(event, "incident", "") == incident.incident:
                found.add(event)
        return found

    def _events(self, *topics: str) -> Iterable[Event]:
        from bus.consumer import read_all

        for record in read_all(self._settings.kafka, topics, "evertick-show"):
            if record.event is not None:
                yield record.event


def open_source(settings: Settings) -> Source:
    """The history, or the topics where it is not reachable.

    Raises:
        SettingsError: neither is.
    """
    try:
        reach.clickhouse(settings.clickhouse)
        return FromHistory(settings)
    except (SettingsError, HistoryAway) as error:
        reason = str(error)
    try:
        return FromTopics(settings, f"read from the topics: {reason}")
    except SettingsError as error:
        raise SettingsError(f"{reason}\n{error}") from None


def _text(value: str | bytes) -> str:
    """ClickHouse's fixed strings come as bytes."""
    return value.decode() if isinstance(value, bytes) else value


def fold(events: Iterable[Event]) -> dict[str, Incident]:
    """The newest revision of each incident among events, by the incident's id."""
    newest: dict[str, Incident] = {}
    for event in events:
        if isinstance(event, Incident):
            known = newest.get(event.incident)
            if known is None or known.revision <= event.revision:
                newest[event.incident] = event
    return newest


def check_prefix(words: str) -> str:
    """The beginning of an incident's id, as it is written in one.

    Raises:
        NoSuchIncident: it cannot be one.
    """
    prefix = words.strip().lower()
    if re.fullmatch("[0-9a-f]{1,32}", prefix) is None:
        raise NoSuchIncident(
            f"{words[:64]!r} is no incident's id: that has 32 hex digits; see: evertick incidents"
        )
    return prefix


def find(source: Source, prefix: str) -> Incident:
    """The one incident whose id begins with ``prefix``, as ``check_prefix`` returned it.

    Raises:
        NoSuchIncident: none does, or more than one.
    """
    found = sorted(source.starting_with(prefix), key=lambda one: -one.opened_ns)
    if not found:
        raise NoSuchIncident(f"no incident {prefix}; see: evertick incidents --all")
    if len(found) > 1:
        shown = [
            f"  {one.incident}  {wording.utc(one.opened_ns, 0)}  {one.kind} {one.subject}"
            for one in found[:20]
        ]
        more = [f"  and {len(found) - 20} more"] if len(found) > 20 else []
        raise NoSuchIncident(
            "\n".join([f"{prefix} begins {len(found)} incidents; add digits:", *shown, *more])
        )
    return found[0]
