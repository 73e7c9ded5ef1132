"""The ledger and its topics kept in step, for use from several threads.

An event is published and acknowledged before anything follows from it. While Kafka is away this waits
and tries again; the ids of the events make it harmless that one may arrive twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaException

from bus import log
from bus.clock import Clock
from bus.consumer import read_all
from bus.producer import Publisher, Undelivered
from bus.settings import KafkaSettings, SettingsError
from remediators.ledger import Ledger, outcome_id
from schemas.action import Action, Outcome, OutcomeStatus
from schemas.incident import Incident

_NAME = "remediate"
_RETRY_S = 1.0
_REPLAY_TIMEOUT_S = 600.0

_log = log.get(__name__)


class Journal:
    """Writes actions and outcomes, and reads them back at a start."""

    def __init__(
        self,
        kafka: KafkaSettings,
        ledger: Ledger,
        stopped: threading.Event,
        alive: Callable[[], None],
    ) -> None:
        """
        Args:
            kafka: where the topics are.
            ledger: an empty one.
            stopped: once set, nothing is tried again.
            alive: called now and then while something takes long.
        """
        self._kafka = kafka
        self._ledger = ledger
        self._stopped = stopped
        self._alive = alive
        self._clock = Clock()
        self._lock = threading.Lock()
        self._publisher = Publisher(kafka, _NAME)
        self._publishing = threading.Lock()

    @contextmanager
    def locked(self) -> Iterator[Ledger]:
        """The ledger, for this thread alone; not to be held while waiting for anything."""
        with self._lock:
            yield self._ledger

    def persist(self, what: Callable[[], None], complaint: str) -> bool:
        """Do it, again and again while Kafka is away; False if this process ends first."""
        while True:
            try:
                what()
            except (Undelivered, KafkaException, SettingsError) as error:
                _log.warning(complaint, reason=str(error), again_in_s=_RETRY_S)
                self._alive()
                if self._stopped.wait(_RETRY_S):
                    return False
            else:
                return True

    def publish(self, *events: Action | Outcome) -> bool:
        """Publish in this order; True once Kafka has them all, False if this process ends first."""
        if not events:
            return True

        def publish() -> None:
            with self._publishing:
                self._publisher.publish(*events)

        return self.persist(publish, "Kafka does not take the ledger's events")

    def record(
        self, action: Action, status: OutcomeStatus, detail: str, attempts: int, started_ns: int
    ) -> None:
        """Write an action's outcome; returns when Kafka has it, or this process ends."""
        outcome = self.outcome(action, status, detail, attempts, started_ns)
        if self.publish(outcome):
            with self.locked() as ledger:
                ledger.add(outcome)

    def outcome(
        self, action: Action, status: OutcomeStatus, detail: str, attempts: int, started_ns: int
    ) -> Outcome:
        """The outcome of an action as of now; ``started_ns`` 0 where nothing was tried."""
        now = self._clock.read()
        return Outcome(
            id=outcome_id(action.id),
            zone=action.zone,
            at_ns=now.ns,
            clock_error_ns=now.error_ns,
            action=action.id,
            incident=action.incident,
            remedy=action.remedy,
            purpose=action.purpose,
            target=action.target,
            status=status,
            detail=detail[:2048],
            attempts=attempts,
            started_ns=started_ns or now.ns,
        )

    def replay(self, remedies: Collection[str]) -> None:
        """Rebuild the ledger from its topics, as far as it is about these remedies.

        Raises:
            Undelivered, KafkaException: Kafka is away; may be called again.
        """
        for record in read_all(self._kafka, ["actions", "outcomes"], _NAME, _REPLAY_TIMEOUT_S):
            self._alive()
            if isinstance(record.event, Action | Outcome) and record.event.remedy in remedies:
                with self.locked() as ledger:
                    ledger.add(record.event)
        with self.locked() as ledger:
            ledger.forget_strays()

    def pending(self) -> list[Action]:
        """Actions without an outcome, in the order in which they were decided."""
        with self.locked() as ledger:
            return ledger.pending()

    def revisions(
        self, pending: list[Action]
    ) -> tuple[dict[tuple[str, int], Incident], dict[str, Incident]]:
        """The revisions of incidents that pending actions are about, by incident and revision; and
        the newest revision of those whose beginning was refused, which are to be decided anew.

        Reads the topic of incidents to its end, and only where one of both is wanted.

        Raises:
            Undelivered, KafkaException: Kafka is away; may be called again.
        """
        wanted = {(action.incident, action.incident_revision) for action in pending}
        with self.locked() as ledger:
            waiting = ledger.waiting()
        found: dict[tuple[str, int], Incident] = {}
        newest: dict[str, Incident] = {}
        if not wanted and not waiting:
            return found, newest
        for record in read_all(self._kafka, ["incidents"], _NAME, _REPLAY_TIMEOUT_S):
            self._alive()
            incident = record.event
            if not isinstance(incident, Incident):
                continue
            if (incident.incident, incident.revision) in wanted:
                found[incident.incident, incident.revision] = incident
            if incident.incident in waiting:
                newest[incident.incident] = incident
        return found, newest
