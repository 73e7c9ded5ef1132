"""Links that are down or flap: detectors ``link_down`` and ``link_flapping``.

``link_down`` keeps no state at all: a return carries when carrier was lost, which names the episode
that it ends. ``link_flapping`` counts losses of carrier by the core of :mod:`streams.flapping`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from schemas.packet import LinkTransition
from schemas.signal import Evidence, Phase, Severity, Signal
from streams.base import Detector
from streams.flapping import Change, Flapping, FlappingSettings, Verdict

_SECOND_NS = 1_000_000_000


def _severity(physical: bool) -> Severity:
    """A cable is a person's errand; a virtual interface most often a container's end."""
    return Severity.CRITICAL if physical else Severity.WARNING


def _is_loss(transition: LinkTransition) -> bool:
    """A fault: an interface that should have carrier has none. Set down or unmade is no fault."""
    if transition.carrier:
        return False
    if not transition.present:
        return transition.physical
    return transition.admin_up


def _place(subject: str) -> str:
    return subject.removeprefix("nic:")


def _seconds(duration_ns: int) -> str:
    return f"{max(0, duration_ns) / _SECOND_NS:,.1f} s"


def _lost(transition: LinkTransition) -> str:
    what = "carrier lost" if transition.present else "interface removed"
    return f"{what}{_unseen(transition.unseen)}"


def _unseen(losses: int) -> str:
    if losses == 0:
        return ""
    counted = "1 more loss" if losses == 1 else f"{losses:,} more losses"
    return f", and {counted} that only the kernel's counter shows"


class LinkDown(Detector):
    """A loss of carrier raises, its return clears."""

    name: ClassVar[str] = "link_down"
    version: ClassVar[int] = 1
    about: ClassVar[str] = "network interfaces that lost carrier while they should have it"
    consumes = (LinkTransition,)

    def observe(self, event: LinkTransition) -> Iterable[Signal]:
        """One signal at most. A clearing of an episode that never was (an interface set down while
        it had carrier) says nothing to a reader and is simply passed over there."""
        if _is_loss(event):
            yield self._raised(event)
        elif event.since_ns > 0:
            yield self._cleared(event)

    def _raised(self, event: LinkTransition) -> Signal:
        what = _lost(event)
        return self.signal(
            Phase.RAISED,
            kind="link.down",
            subject=event.subject,
            raised_ns=event.at_ns,
            at_ns=event.at_ns,
            clock_error_ns=event.clock_error_ns,
            severity=_severity(event.physical),
            summary=f"{_place(event.subject)}: {what}",
            evidence=[Evidence(at_ns=event.at_ns, what=what)],
            advice="Check cable, transceiver and the port at the other end.",
            attributes={"losses": 1 + event.unseen, "physical": int(event.physical)},
        )

    def _cleared(self, event: LinkTransition) -> Signal:
        lasted = _seconds(event.at_ns - event.since_ns)
        if event.carrier:
            what, summary = f"carrier back after {lasted}", f"had no carrier for {lasted}"
        elif event.present:
            what = summary = "set down"
        else:
            what = summary = "interface removed"
        return self.signal(
            Phase.CLEARED,
            kind="link.down",
            subject=event.subject,
            raised_ns=event.since_ns,
            at_ns=event.at_ns,
            clock_error_ns=event.clock_error_ns,
            severity=_severity(event.physical),
            summary=f"{_place(event.subject)}: {summary}",
            evidence=[
                Evidence(at_ns=event.since_ns, what="carrier lost"),
                Evidence(at_ns=event.at_ns, what=f"{what}{_unseen(event.unseen)}"),
            ],
            attributes={"losses": 1 + event.unseen, "physical": int(event.physical)},
        )


class LinkFlapping(Detector):
    """Interfaces that lose carrier again and again."""

    name: ClassVar[str] = "link_flapping"
    version: ClassVar[int] = 1
    about: ClassVar[str] = "network interfaces that lose carrier again and again"
    consumes = (LinkTransition,)
    Settings = FlappingSettings

    def __init__(self, node: str, zone: str, settings: Any) -> None:
        super().__init__(node, zone, settings)
        self._flapping = Flapping(settings)

    def observe(self, event: LinkTransition) -> Iterator[Signal]:
        """Signals that follow, also those that end other interfaces' episodes by now."""
        loss = _is_loss(event)
        gone = ""
        if loss:
            what = _lost(event)
        else:
            what = f"carrier back{_unseen(event.unseen)}" if event.carrier else "set down"
            if not event.carrier:
                gone = ", then set down" if event.present else ", then removed"
        # Losses that the kernel counted behind our back happened, whatever the state is now.
        losses = int(loss) + event.unseen
        change = Change(
            event.at_ns, event.carrier, losses, what, event.clock_error_ns, event.since_ns
        )
        yield from self._told(
            self._flapping.observe(event.subject, change, physical=event.physical, gone=gone)
        )

    def tick(self, now_ns: int) -> Iterator[Signal]:
        """Tell what the limit of one update a second held back, end what has been quiet."""
        yield from self._told(self._flapping.tick(now_ns))

    def state(self) -> dict[str, Any]:
        """The newest transitions of each interface and the episode it is in."""
        return self._flapping.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what ``state`` returned."""
        self._flapping.restore(state)

    def _told(self, verdicts: Iterable[Verdict]) -> Iterator[Signal]:
        for one in verdicts:
            verb = "flapped" if one.phase is Phase.CLEARED else "flaps"
            yield self.signal(
                one.phase,
                kind="link.flapping",
                subject=one.subject,
                raised_ns=one.raised_ns,
                at_ns=one.at_ns,
                clock_error_ns=one.clock_error_ns,
                severity=_severity(one.physical),
                summary=f"{_place(one.subject)} {verb}: {one.losses:,} carrier losses in "
                f"{_seconds(one.lasted_ns)}{one.why}",
                evidence=one.evidence,
                evidence_dropped=one.evidence_dropped,
                advice="Reseat or replace cable and transceiver; keep jobs off this link until then.",
                attributes={"losses": one.losses, "physical": int(one.physical)},
            )
        self.changed |= self._flapping.changed
        self._flapping.changed = False
