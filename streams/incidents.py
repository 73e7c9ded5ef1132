"""The processor ``incidents``: signals and the inventory in, incidents out; one correlator a zone.

:class:`Zones` is its core. What it remembers of an incident is the incident itself, as last told,
until the correlator needs it no more; a correlator is restored from these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from prometheus_client import Counter

from schemas.event import Event
from schemas.incident import Incident
from schemas.inventory import InventoryItem
from schemas.registry import Unreadable, decode, encode
from schemas.signal import Signal
from streams.processor import Change

NAME = "incidents"
SOURCES = ("signals",)

_incidents = Counter("evertick_stream_incidents", "Revisions of incidents", ["state"])


class ZoneCorrelator(Protocol):
    """What a correlator is to us; see :mod:`streams.correlator`."""

    def observe(self, signal: Signal) -> list[Incident]: ...
    def tick(self, now_ns: int) -> list[Incident]: ...
    def inventory(self, item: InventoryItem) -> object: ...
    def forget(self, subject: str) -> object: ...
    def restore(self, incident: Incident) -> None: ...
    def expired(self) -> list[str]: ...


class Zones:
    """The correlators of all zones whose signals this worker reads."""

    def __init__(self, correlator: Callable[[str], ZoneCorrelator]) -> None:
        """
        Args:
            correlator: makes the correlator of a zone.
        """
        self.faults: list[str] = []
        self._make = correlator
        self._zones: dict[int, dict[str, ZoneCorrelator]] = {}
        self._items: dict[str, InventoryItem] = {}
        self._changed: dict[tuple[int, str], Incident | None] = {}

    def inventory(self, subject: str, item: InventoryItem | None) -> None:
        """Take in a change of the inventory; None where the subject is gone."""
        if item is None:
            self._items.pop(subject, None)
        else:
            self._items[subject] = item
        for zones in self._zones.values():
            for zone, correlator in zones.items():
                if item is not None and item.zone == zone:
                    correlator.inventory(item)
                else:
                    correlator.forget(subject)

    def observe(self, partition: int, event: Event) -> list[Event]:
        """Show a signal to the correlator of its zone."""
        assert isinstance(event, Signal)
        correlator = self._correlator(partition, event.zone)
        return self._told(partition, correlator, partial(correlator.observe, event))

    def tick(self, partition: int, now_ns: int) -> list[Event]:
        """Let time pass for the zones of a partition."""
        found: list[Event] = []
        for correlator in self._zones.get(partition, {}).values():
            found += self._told(partition, correlator, partial(correlator.tick, now_ns))
        return found

    def changes(self) -> list[Change]:
        """The newest revision of each incident that changed, under its name."""
        changes = [
            Change(partition, name, None if incident is None else encode(incident))
            for (partition, name), incident in self._changed.items()
        ]
        self._changed.clear()
        return changes

    def restore(self, partition: int, remembered: Mapping[str, bytes]) -> None:
        """Take up the incidents that were not resolved."""
        self._zones.setdefault(partition, {})
        for name, value in remembered.items():
            try:
                incident = decode(value, "incidents")
            except Unreadable as reason:
                self.faults.append(f"incident {name} cannot be restored: {reason}")
                continue
            assert isinstance(incident, Incident)
            try:
                self._correlator(partition, incident.zone).restore(incident)
            except Exception as error:  # noqa: BLE001 - one incident must not keep the rest away
                self.faults.append(
                    f"incident {name} cannot be restored: {type(error).__name__}: {error}"
                )

    def evict(self, partition: int) -> None:
        """Drop the correlators of a partition."""
        self._zones.pop(partition, None)
        self._changed = {k: v for k, v in self._changed.items() if k[0] != partition}

    def _correlator(self, partition: int, zone: str) -> ZoneCorrelator:
        zones = self._zones.setdefault(partition, {})
        if zone not in zones:
            zones[zone] = self._make(zone)
            for item in self._items.values():
                if item.zone == zone:
                    zones[zone].inventory(item)
        return zones[zone]

    def _told(
        self, partition: int, correlator: ZoneCorrelator, tell: Callable[[], list[Incident]]
    ) -> list[Event]:
        try:
            incidents = tell()
            expired = correlator.expired()
        except Exception as error:  # noqa: BLE001 - put aside with its reason; others go on
            self.faults.append(f"correlator: {type(error).__name__}: {error}")
            return []
        for incident in incidents:
            _incidents.labels(incident.state).inc()
            # Stored in the order of the newest change: of two that became one, first the one that goes on.
            self._changed.pop((partition, incident.incident), None)
            self._changed[partition, incident.incident] = incident
        for name in expired:
            self._changed[partition, name] = None
        return list(incidents)
