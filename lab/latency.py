"""How long a fault takes to become an incident, and the incident a webhook.

The whole embedded stack runs. The carrier of a veth is cut by setting its far end down; from the
call that does it, the time runs until a waiting consumer has read the incident from the topic, and
from there until a receiver on loopback has read the notice. Each fault is on a pair of its own; once
its incident is there the far end is set up again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, TopicPartition

from bus.consumer import client_config
from bus.settings import KafkaSettings
from bus.topics import name_on_broker
from lab.bench import BenchError, Findings
from lab.percentile import percentile
from lab.receiver import Receiver
from lab.sandbox import Part
from lab.veth import FarSide
from schemas import identity
from schemas.event import Event
from schemas.incident import Incident, IncidentState
from schemas.inventory import InventoryNic
from schemas.registry import Unreadable, decode

P50 = "fault_to_incident_p50_ms"
P99 = "fault_to_incident_p99_ms"
WEBHOOK = "incident_to_webhook_p99_ms"
PATTERN = "evb[0-9]*"
"""The pairs that the agent has to watch."""
_WARM_UP = 3
_INCIDENT_S = 20.0
_WEBHOOK_S = 20.0
_KNOWN_S = 60.0
_METADATA_S = 20.0
_PAUSE_S = (0.15, 0.45)


class Reader:
    """A consumer of one topic, from its end on, in no group."""

    def __init__(self, kafka: KafkaSettings, topic: str, from_start: bool = False) -> None:
        self._topic = topic
        self._client = Consumer(client_config(kafka, "bench-reader", "latest"))
        name = name_on_broker(kafka, topic)
        partitions = self._client.list_topics(name, timeout=_METADATA_S).topics[name].partitions
        places = []
        for number in partitions:
            place = TopicPartition(name, number)
            low, high = self._client.get_watermark_offsets(place, timeout=_METADATA_S)
            places.append(TopicPartition(name, number, low if from_start else high))
        self._client.assign(places)

    def events(self, within_s: float) -> Iterator[tuple[int, Event]]:
        """What arrives within a time, each with when it was read on the monotonic clock."""
        deadline = time.monotonic() + within_s
        while (left_s := deadline - time.monotonic()) > 0:
            message = self._client.poll(left_s)
            at_ns = time.monotonic_ns()
            if message is None or message.error() is not None:
                continue
            try:
                yield at_ns, decode(message.value(), self._topic)
            except Unreadable as reason:
                raise BenchError(f"unreadable message on {self._topic}: {reason}") from None

    def close(self) -> None:
        """Leave."""
        self._client.close()


@contextmanager
def reading(kafka: KafkaSettings, topic: str, from_start: bool = False) -> Iterator[Reader]:
    """A reader that is closed in the end."""
    reader = Reader(kafka, topic, from_start)
    try:
        yield reader
    finally:
        reader.close()


def faults(
    kafka: KafkaSettings, node: str, receiver: Receiver, stack: Part, count: int
) -> Findings:
    """Cut ``count`` cables and take the times.

    Raises:
        BenchError: a fault brought no incident, or an incident no webhook.
        NoNamespaces: there are no cables to cut here.
    """
    names = [f"evb{number}" for number in range(count + _WARM_UP)]
    subjects = {name: identity.nic(node, name) for name in names}
    seen_ns: dict[str, int] = {}
    incident_ms: list[float] = []
    cut_ms: list[float] = []
    chance = random.Random(1)
    with FarSide() as far, reading(kafka, "incidents") as incidents:
        far.pairs(names)
        with reading(kafka, "inventory", from_start=True) as inventory:
            _wait_known(inventory, set(subjects.values()))
        for number, name in enumerate(names):
            # No fault keeps step with a timer of the stack.
            time.sleep(chance.uniform(*_PAUSE_S))
            began_ns = time.monotonic_ns()
            far.set_down(name)
            cut_ns = time.monotonic_ns()
            at_ns, incident = _opened(incidents, subjects[name], stack)
            far.set_up(name)
            if number >= _WARM_UP:
                seen_ns[incident.incident] = at_ns
                incident_ms.append((at_ns - began_ns) / 1e6)
                cut_ms.append((cut_ns - began_ns) / 1e6)
        webhook_ms = [
            (_notified(receiver, incident) - at_ns) / 1e6 for incident, at_ns in seen_ns.items()
        ]
    return Findings(
        {
            P50: round(percentile(incident_ms, 50), 1),
            P99: round(percentile(incident_ms, 99), 1),
            WEBHOOK: round(percentile(webhook_ms, 99), 1),
        },
        [
            f"faults: {count}, of which the slowest took {max(incident_ms):.0f} ms; the kernel "
            f"itself took {percentile(cut_ms, 50):.1f} ms (p50) to set an end down; incident to "
            f"webhook {percentile(webhook_ms, 50):.1f} ms (p50)"
        ],
    )


def _wait_known(inventory: Reader, subjects: set[str]) -> None:
    """Wait until the agent has told of all interfaces: then it watches them."""
    missing = set(subjects)
    for _, event in inventory.events(_KNOWN_S):
        if isinstance(event, InventoryNic):
            missing.discard(event.subject)
            if not missing:
                return
    raise BenchError(f"the agent does not see {len(missing)} of {len(subjects)} new interfaces")


def _opened(incidents: Reader, subject: str, stack: Part) -> tuple[int, Incident]:
    """When the first revision of an incident on a subject was read, and the incident."""
    for at_ns, event in incidents.events(_INCIDENT_S):
        if (
            isinstance(event, Incident)
            and event.subject == subject
            and event.revision == 1
            and event.state is IncidentState.OPEN
        ):
            return at_ns, event
    stack.check()
    raise BenchError(f"no incident on {subject} within {_INCIDENT_S:.0f} s of its fault")


def _notified(receiver: Receiver, incident: str) -> int:
    """When the notice of an incident arrived."""
    deadline = time.monotonic() + _WEBHOOK_S
    while (at_ns := receiver.arrived_ns.get((incident, "firing"))) is None:
        if time.monotonic() > deadline:
            raise BenchError(f"no webhook of incident {incident} within {_WEBHOOK_S:.0f} s")
        time.sleep(0.05)
    return at_ns
