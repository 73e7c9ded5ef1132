"""The core of the processor ``detectors``: routing, state, faults. No Kafka."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from bus.settings import SettingsError
from schemas.identity import content_id, nic
from schemas.packet import LinkTransition
from schemas.signal import Phase, Severity, Signal
from streams.base import Detector, DetectorSettings
from streams.detecting import Fleet


class _Counting(Detector):
    name = "test_counting"
    version = 1
    about = "raises at the third transition of its node"
    consumes = (LinkTransition,)

    def __init__(self, node: str, zone: str, settings: Any) -> None:
        super().__init__(node, zone, settings)
        self.seen = 0

    def observe(self, event: LinkTransition) -> Iterable[Signal]:
        self.seen += 1
        self.changed = True
        if self.seen == 3:
            yield self._raised(event.subject, event.at_ns)

    def tick(self, now_ns: int) -> Iterable[Signal]:
        if self.seen >= 3:
            self.seen = 0
            self.changed = True
            yield self._raised(nic(self.node, "ticked"), now_ns)

    def state(self) -> dict[str, Any]:
        return {"seen": self.seen} if self.seen else {}

    def restore(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]

    def _raised(self, subject: str, at_ns: int) -> Signal:
        return self.signal(
            Phase.RAISED,
            kind="test.third",
            subject=subject,
            raised_ns=at_ns,
            at_ns=at_ns,
            clock_error_ns=0,
            severity=Severity.INFO,
            summary="third",
        )


class _Failing(Detector):
    name = "test_failing"
    version = 1
    about = "fails"
    consumes = (LinkTransition,)

    def observe(self, event: LinkTransition) -> Iterable[Signal]:
        raise RuntimeError("no such luck")


_CLASSES: dict[str, type[Detector]] = {"test_counting": _Counting, "test_failing": _Failing}


def _transition(node: str, at_ns: int = 1, zone: str = "default") -> LinkTransition:
    subject = nic(node, "eth0")
    return LinkTransition(
        id=content_id(subject, at_ns),
        zone=zone,
        at_ns=at_ns,
        clock_error_ns=0,
        node=node,
        subject=subject,
        carrier=False,
        admin_up=True,
        present=True,
        physical=True,
        since_ns=0,
        carrier_losses=1,
    )


def _fleet(*names: str) -> Fleet:
    return Fleet({name: _CLASSES[name] for name in names}, {})


def test_each_node_of_each_zone_has_detectors_of_its_own() -> None:
    fleet = _fleet("test_counting")
    for event in (
        _transition("a"),
        _transition("a"),
        _transition("b"),
        _transition("a", zone="other"),
    ):
        assert fleet.observe(0, event) == []
    (signal,) = fleet.observe(0, _transition("a"))
    assert signal.key() == "default"
    assert fleet.topics() == ["telemetry.packet"]


def test_state_goes_out_once_and_comes_back() -> None:
    fleet = _fleet("test_counting")
    fleet.observe(2, _transition("a"))
    fleet.observe(2, _transition("a"))
    (change,) = fleet.changes()
    assert (change.partition, change.key) == (2, "default/a/test_counting")
    assert change.value == b'{"seen":2}'
    assert fleet.changes() == []

    taken_over = _fleet("test_counting")
    taken_over.restore(2, {change.key: change.value})
    assert len(taken_over.observe(2, _transition("a"))) == 1
    # Nodes that were only restored tick too, and state that is empty is deleted.
    assert len(taken_over.tick(2, 10)) == 1
    assert [one.value for one in taken_over.changes()] == [None]
    assert taken_over.tick(1, 10) == []


def test_a_revoked_partition_is_forgotten_with_its_changes() -> None:
    fleet = _fleet("test_counting")
    fleet.observe(2, _transition("a"))
    fleet.observe(3, _transition("b"))
    fleet.evict(2)
    assert [one.partition for one in fleet.changes()] == [3]
    fleet.observe(2, _transition("a"))
    assert fleet.observe(2, _transition("a")) == []


def test_a_detector_that_fails_is_named_and_others_go_on() -> None:
    fleet = _fleet("test_failing", "test_counting")
    for _ in range(2):
        fleet.observe(0, _transition("a"))
    assert len(fleet.observe(0, _transition("a"))) == 1
    assert fleet.faults == ["detector test_failing: RuntimeError: no such luck"] * 3


def test_state_that_cannot_be_taken_up_is_told_and_the_detector_starts_anew() -> None:
    fleet = _fleet("test_counting")
    fleet.restore(0, {"default/a/test_counting": b'{"other":1}', "default/a/gone": b"{}"})
    assert fleet.faults == ["detector test_counting: KeyError: 'seen'"]
    assert fleet.observe(0, _transition("a")) == []


def test_state_beyond_64_bits_is_kept() -> None:
    """A sum of counts may be longer than a count."""
    fleet = _fleet("test_counting")
    fleet.restore(0, {"default/a/test_counting": b'{"seen":%d}' % 2**70})
    fleet.observe(0, _transition("a"))
    (change,) = fleet.changes()
    assert change.value == b'{"seen":%d}' % (2**70 + 1)
    assert fleet.faults == []


def test_state_that_cannot_be_stored_is_told_and_the_rest_is_stored() -> None:
    fleet = _fleet("test_counting")
    for node in ("a", "b"):
        fleet.observe(0, _transition(node))
    next(iter(fleet._changed.values()))[1].seen = object()  # type: ignore[attr-defined]
    assert [change.key for change in fleet.changes()] == ["default/b/test_counting"]
    assert len(fleet.faults) == 1


def test_settings_of_a_detector_that_is_not_there_are_refused() -> None:
    with pytest.raises(SettingsError, match="did you mean test_counting"):
        Fleet(_CLASSES, {"test_countng": {}})


def test_a_disabled_detector_sees_nothing() -> None:
    assert DetectorSettings().enabled
    fleet = Fleet({"test_counting": _Counting}, {"test_counting": {"enabled": "false"}})
    assert fleet.topics() == []
    fleet.observe(0, _transition("a"))
    assert fleet.changes() == []
