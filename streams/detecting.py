"""The processor ``detectors``: telemetry in, signals out; one detector of each kind a node.

:class:`Fleet` is its core: it finds the detectors of the node that an event comes from, by the type
of the event, and collects what is to be remembered. Detectors of a node live with the partition that
the node's telemetry arrives on; all telemetry topics have the same number of partitions and the same
key, so one worker sees all of a node.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

from prometheus_client import Counter

from bus.settings import SettingsError, section
from schemas.event import Event, Telemetry
from schemas.registry import models
from schemas.signal import Signal
from streams.base import Detector
from streams.processor import Change

NAME = "detectors"

_signals = Counter("evertick_stream_signals", "Signals", ["detector", "phase"])
_failures = Counter("evertick_stream_detector_failures", "Exceptions of detectors", ["detector"])

_Route = dict[type[Event], tuple[Detector, ...]]


class Fleet:
    """The detectors of all nodes whose telemetry this worker reads."""

    def __init__(
        self, classes: Mapping[str, type[Detector]], tables: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """
        Args:
            classes: the detectors, by name.
            tables: their settings, by name.

        Raises:
            SettingsError: settings of an unknown detector, or that do not fit.
        """
        for name in tables:
            if name not in classes:
                near = difflib.get_close_matches(name, classes, n=1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(classes)}"
                raise SettingsError(f"setting detectors.{name}: no such detector; {hint}")
        self.faults: list[str] = []
        self._kinds: list[tuple[type[Detector], Any]] = []
        for name, kind in classes.items():
            settings = section(kind.Settings, tables.get(name, {}), f"detectors.{name}")
            if settings.enabled:
                self._kinds.append((kind, settings))
        self._nodes: dict[int, dict[tuple[str, str], _Route]] = {}
        self._ticking: dict[int, list[Detector]] = {}
        self._changed: dict[int, tuple[int, Detector]] = {}

    def topics(self) -> list[str]:
        """The telemetry topics that have a detector."""
        consumed = {model for kind, _ in self._kinds for model in kind.consumes}
        return sorted({topic for _, _, topic, model in models() if model in consumed})

    def observe(self, partition: int, event: Event) -> list[Event]:
        """Show an event to the detectors of its node."""
        assert isinstance(event, Telemetry)
        nodes = self._nodes.setdefault(partition, {})
        route = nodes.get((event.zone, event.node))
        if route is None:
            route = self._settle(partition, event.zone, event.node)
        found: list[Event] = []
        for detector in route.get(type(event), ()):
            try:
                if told := list(detector.observe(event)):
                    found += self._told(detector, told)
            except Exception as error:  # noqa: BLE001 - one detector's fault must not stop the others
                self._failed(detector, error)
            if detector.changed:
                self._changed[id(detector)] = (partition, detector)
        return found

    def tick(self, partition: int, now_ns: int) -> list[Event]:
        """Let time pass for the nodes of a partition."""
        found: list[Event] = []
        for detector in self._ticking.get(partition, ()):
            try:
                if told := list(detector.tick(now_ns)):
                    found += self._told(detector, told)
            except Exception as error:  # noqa: BLE001 - as above
                self._failed(detector, error)
            if detector.changed:
                self._changed[id(detector)] = (partition, detector)
        return found

    def changes(self) -> list[Change]:
        """The state of detectors that changed, under ``zone/node/detector``."""
        changes = []
        for partition, detector in self._changed.values():
            detector.changed = False
            try:
                state = detector.state()
                # The standard library's: sums of 64-bit counts are longer than faster ones can write.
                value = json.dumps(state, separators=(",", ":")).encode() if state else None
            except Exception as error:  # noqa: BLE001 - it goes on with what it stored last
                self._failed(detector, error)
                continue
            key = f"{detector.zone}/{detector.node}/{detector.name}"
            changes.append(Change(partition, key, value))
        self._changed.clear()
        return changes

    def restore(self, partition: int, remembered: Mapping[str, bytes]) -> None:
        """Set up the nodes of which something is remembered."""
        self._nodes.setdefault(partition, {})
        for key, value in remembered.items():
            zone, _, rest = key.partition("/")
            node, _, name = rest.rpartition("/")
            if (zone, node) not in self._nodes[partition]:
                self._settle(partition, zone, node)
            route = self._nodes[partition][zone, node]
            for detector in {id(one): one for many in route.values() for one in many}.values():
                if detector.name == name:
                    try:
                        detector.restore(json.loads(value))
                    except Exception as error:  # noqa: BLE001 - state of an older version: start anew
                        self._failed(detector, error)

    def evict(self, partition: int) -> None:
        """Drop the detectors of a partition."""
        self._nodes.pop(partition, None)
        self._ticking.pop(partition, None)
        self._changed = {k: v for k, v in self._changed.items() if v[0] != partition}

    def _settle(self, partition: int, zone: str, node: str) -> _Route:
        route: _Route = {}
        for kind, settings in self._kinds:
            detector = kind(node, zone, settings)
            for model in kind.consumes:
                route[model] = (*route.get(model, ()), detector)
            if kind.tick is not Detector.tick:
                self._ticking.setdefault(partition, []).append(detector)
        self._nodes.setdefault(partition, {})[zone, node] = route
        return route

    def _told(self, detector: Detector, signals: list[Signal]) -> list[Signal]:
        for signal in signals:
            _signals.labels(detector.name, signal.phase).inc()
        return signals

    def _failed(self, detector: Detector, error: Exception) -> None:
        _failures.labels(detector.name).inc()
        self.faults.append(f"detector {detector.name}: {type(error).__name__}: {error}")
