"""The remediation worker: incidents in, actions and outcomes out, remedies executed in between.

For each revision of an incident: the remedies' steps, policy's verdict on each, the actions published
and acknowledged, then handed to the receivers' queues (:mod:`remediators.executor`), then the offsets
committed. When an action is done, its outcome is published. So whenever this process is killed, the
topics tell what is left to do: at its start it reads the ledger and executes what has no outcome,
under the same ids. A kill between a delivery and its outcome makes that one notice come twice, under
the same idempotency key; nothing is lost.

The ledger lives in one process: run one worker for a fleet. A second of the same group would share
the incidents, and hand over what the first had decided only after a restart.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterable

from confluent_kafka import Message
from prometheus_client import Counter, Gauge

from bus import health as bus_health
from bus import log, topics
from bus.clock import Clock
from bus.consumer import Consumer, Record, next_offsets
from bus.settings import Settings, SettingsError, section
from remediators import base, policy
from remediators.base import Remedy, Result, Step
from remediators.executor import Executor, Task
from remediators.journal import Journal
from remediators.ledger import Ledger, Place, action_id, executable, follows, place_of
from schemas.action import CONTROL, Action, Outcome, OutcomeStatus
from schemas.incident import Incident

GROUP = "remediate"
_POLL_S = 0.2
_POLL_MAX_MESSAGES = 500
_REVIEW_S = 1.0
_STALLED_S = 90.0
_IN_FLIGHT_S = 1.0
_STOP_S = 1.3

_decided = Counter(
    "evertick_remedy_decided",
    "Steps decided, by the rule that refused them; 'none' for those permitted",
    ["remedy", "rule"],
)
_deferred = Gauge("evertick_remedy_deferred", "Incidents with a step that policy refuses for now")

_log = log.get(__name__)


def configured(settings: Settings) -> dict[str, Remedy]:
    """The remedies, set up.

    Raises:
        SettingsError: an unknown remedy or setting, or one that cannot work.
    """
    known = base.registered()
    for name in settings.remedies:
        if name not in known:
            raise SettingsError(
                f"setting remedies.{name}: no such remedy (known: {', '.join(known)})"
            )
    return {
        name: remedy(section(remedy.Settings, settings.remedies.get(name, {}), f"remedies.{name}"))
        for name, remedy in known.items()
    }


def run(settings: Settings) -> None:
    """Work until SIGTERM or SIGINT, then end within two seconds.

    Raises:
        SettingsError: a setting does not fit.
    """
    remedies = configured(settings)
    health = bus_health.Health()
    server = bus_health.serve(
        health, settings.metrics.host, settings.metrics.remediate_port, "remediate"
    )
    worker = Worker(settings, remedies, health)
    ended = threading.Event()
    failures: list[BaseException] = []

    def fail(args: threading.ExceptHookArgs) -> None:
        """A thread that dies takes the process along: a supervisor starts it anew, and nothing is
        worse than a worker that lives and does not work."""
        failures.append(args.exc_value or RuntimeError(f"{args.thread} died"))
        ended.set()

    threading.excepthook = fail

    def end(*_: object) -> None:
        worker.stop()
        ended.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    # librdkafka's calls wait without looking at signals: they are made in a thread of their own.
    thread = threading.Thread(target=worker.work, name="incidents", daemon=True)
    thread.start()
    ended.wait()
    deadline_s = time.monotonic() + _STOP_S
    worker.stop()
    worker.drain(time.monotonic() + _IN_FLIGHT_S)
    thread.join(max(0.0, deadline_s - time.monotonic()))
    if server is not None:
        server.shutdown()
    if failures:
        raise failures[0]


class Worker:
    """The parts of the worker, wired together."""

    def __init__(
        self, settings: Settings, remedies: dict[str, Remedy], health: bus_health.Health
    ) -> None:
        self._kafka = settings.kafka
        self._remedies = remedies
        self._health = health
        self._clock = Clock()
        looks_back_s = [remedy.settings.looks_back_s() for remedy in remedies.values()]
        self._stopped = threading.Event()
        self._journal = Journal(
            settings.kafka, Ledger(max(looks_back_s, default=0.0)), self._stopped, self._alive
        )
        self._executors: dict[tuple[str, str], Executor] = {}
        self._deferred: dict[str, Incident] = {}

    def stop(self) -> None:
        """Begin nothing more; ``work`` returns soon."""
        self._stopped.set()

    def drain(self, deadline_s: float) -> None:
        """Stop the receivers' queues; what is under way may end until ``deadline_s`` (monotonic)."""
        executors = list(self._executors.values())
        for executor in executors:
            executor.stop()
        for executor in executors:
            executor.wait_idle(deadline_s)
        for remedy in self._remedies.values():
            remedy.close()

    def work(self) -> None:
        """Read the ledger, finish what is open, then follow the incidents until stopped."""
        for remedy in self._remedies.values():
            if reason := remedy.idle_reason():
                _log.warning(reason, remedy=remedy.name)
        if not self._journal.persist(self._recover, "cannot read the ledger"):
            return
        consumer = Consumer(self._kafka, GROUP, ["incidents"])
        try:
            review_at_s = 0.0
            while not self._stopped.is_set():
                self._alive()
                # One message is waited for, more are taken only if they are there: ``consume`` alone
                # would wait for its full number.
                first = consumer.client.poll(_POLL_S)
                if first is not None:
                    messages = [first, *consumer.client.consume(_POLL_MAX_MESSAGES - 1, 0.0)]
                    if not self._take(consumer, messages):
                        break
                    consumer.commit(next_offsets(self._kafka, messages))
                if self._deferred and time.monotonic() >= review_at_s:
                    review_at_s = time.monotonic() + _REVIEW_S
                    self._decide(list(self._deferred.values()))
        finally:
            consumer.close()
            self._health.forget("incidents")

    def _alive(self) -> None:
        self._health.progress("incidents", _STALLED_S)

    def _take(self, consumer: Consumer, messages: list[Message]) -> bool:
        """Decide about what was read; True once all that follows is in Kafka."""
        records: list[Record] = []

        def read() -> None:
            records[:] = consumer.read(messages)

        return self._journal.persist(read, "Kafka does not take dead letters") and self._decide(
            [record.event for record in records if isinstance(record.event, Incident)]
        )

    def _decide(self, incidents: list[Incident]) -> bool:
        """Decide about some revisions; True once all that follows is in Kafka."""
        events: list[Action | Outcome] = []
        tasks: dict[tuple[str, str], list[Task]] = defaultdict(list)
        with self._journal.locked() as ledger:
            for incident in incidents:
                for event in self._verdicts(incident, ledger):
                    ledger.add(event)
                    events.append(event)
                    if isinstance(event, Action) and executable(event):
                        place = place_of(event)
                        tasks[place.remedy, place.receiver].append(Task(event, incident))
        _deferred.set(len(self._deferred))
        # In the ledger before they are in Kafka: no harm, for nothing is executed until they are.
        if not self._journal.publish(*events):
            return False
        for (remedy, receiver), some in tasks.items():
            self._submit(remedy, receiver, some)
        return True

    def _verdicts(self, incident: Incident, ledger: Ledger) -> Iterable[Action | Outcome]:
        """Actions on a revision, with the outcomes of those that are only recorded. Each is to be
        added to the ledger before the next is asked for: it counts against budgets."""
        passing = False
        for remedy in self._remedies.values():
            settings = remedy.settings
            steps = remedy.steps(incident, settings)
            for step in policy.undecided(steps, incident, ledger, settings):
                now = self._clock.read()
                verdict = policy.decide(step, incident, ledger, settings, now.ns)
                passing |= verdict.passing
                place = policy.place(step)
                name = action_id(incident.incident, place, verdict.rule)
                if ledger.recorded(incident.incident, place, name):
                    continue
                _decided.labels(remedy.name, verdict.rule or "none").inc()
                action = _action(name, step, incident, verdict, now.ns, now.error_ns)
                yield action
                if not verdict.do:
                    yield self._journal.outcome(
                        action, OutcomeStatus.SKIPPED, verdict.reason, 0, now.ns
                    )
        if passing:
            self._deferred[incident.incident] = incident
        else:
            self._deferred.pop(incident.incident, None)

    def _submit(self, remedy_name: str, receiver: str, tasks: list[Task]) -> None:
        remedy = self._remedies[remedy_name]
        executor = self._executors.get((remedy_name, receiver))
        if executor is None:
            limits = remedy.limits(receiver)
            if limits is None:
                for task in tasks:
                    self._fail(task.action, f"receiver {receiver!r} is no longer configured")
                return
            executor = Executor(remedy_name, receiver, limits, self._perform, self._conclude)
            self._executors[remedy_name, receiver] = executor
        executor.submit(*tasks)

    def _perform(self, task: Task) -> Result:
        """One attempt, in a receiver's thread."""
        action = task.action
        if self._unbegun(action):
            return Result(False, f"its {follows(action)} was not done")
        return self._remedies[action.remedy].execute(action, task.incident, task.attempts)

    def _conclude(self, task: Task, result: Result) -> None:
        """Record what came of an action; returns when Kafka has it, or this process ends."""
        if result.done:
            status = OutcomeStatus.SUCCEEDED
        elif self._unbegun(task.action):
            status = OutcomeStatus.SKIPPED
        else:
            self._fail(task.action, result.detail, task.attempts, task.started_ns)
            return
        self._journal.record(task.action, status, result.detail, task.attempts, task.started_ns)

    def _fail(self, action: Action, detail: str, attempts: int = 0, started_ns: int = 0) -> None:
        _log.error(
            "failed for good",
            remedy=action.remedy,
            receiver=place_of(action).receiver,
            purpose=action.purpose,
            incident=action.incident,
            reason=detail,
        )
        self._journal.record(action, OutcomeStatus.FAILED, detail, attempts, started_ns)

    def _unbegun(self, action: Action) -> bool:
        """The action ends another that was not done."""
        if not follows(action):
            return False
        begun = Place(action.remedy, follows(action), place_of(action).receiver)
        with self._journal.locked() as ledger:
            return ledger.status(action.incident, begun) is not OutcomeStatus.SUCCEEDED

    def _recover(self) -> None:
        """Rebuild the ledger, and queue what has no outcome yet."""
        topics.ensure(self._kafka)
        self._journal.replay(self._remedies)
        pending = [action for action in self._journal.pending() if action.target == CONTROL]
        revisions, self._deferred = self._journal.revisions(pending)
        for action in pending:
            incident = revisions.get((action.incident, action.incident_revision))
            if incident is None:
                self._fail(action, "its incident is no longer on the topic")
                continue
            place = place_of(action)
            self._submit(place.remedy, place.receiver, [Task(action, incident)])
        if pending:
            _log.info("finishing what the last run left", actions=len(pending))


def _action(
    name: str,
    step: Step,
    incident: Incident,
    verdict: policy.Verdict,
    now_ns: int,
    clock_error_ns: int,
) -> Action:
    parameters = dict(step.parameters)
    if step.receiver:
        parameters["receiver"] = step.receiver
    if step.follows:
        parameters["follows"] = step.follows
    return Action(
        id=name,
        zone=incident.zone,
        at_ns=now_ns,
        clock_error_ns=clock_error_ns,
        incident=incident.incident,
        incident_revision=incident.revision,
        remedy=step.remedy,
        purpose=step.purpose,
        mode=verdict.mode,
        dry_run=verdict.dry_run,
        target=step.target,
        subject=step.subject,
        parameters=parameters,
        reason=verdict.reason,
    )
