"""Detector of GPU and NVSwitch faults: XID and SXid reports become signals, by the catalogue.

There is one episode for each code on each GPU (or switch) while it lasts, however many lines a storm
writes: raised at the first report, updated with the count at most every few seconds, cleared when it
is over. What needs no more than a new application is over after a quiet time; what needs a reset, a
restart or support is over when the GPU has started afresh: the driver was loaded, or the node booted.
Codes that only follow from others are flagged sympathetic, for nobody to act on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from pydantic import Field

from schemas import identity
from schemas.identity import content_id
from schemas.kernel import KernelCategory, KernelReport
from schemas.signal import Evidence, Phase, Severity, Signal
from streams import xid_catalog
from streams.base import Detector, DetectorSettings

XID_KIND = "gpu.xid"
SXID_KIND = "gpu.sxid"

_UPDATE_EVERY_NS = 5_000_000_000
_EVIDENCE_KEPT = 8
_EVIDENCE_MAX_CHARS = 400
_REMEMBERED_IDS = 256
_DOUBLE_BIT = 48
_ROW_REMAP = (63, 64)
_SMOOTHING_BACK, _SMOOTHING_LOST = 162, 163
_GRAVITY = [Severity.INFO, Severity.WARNING, Severity.CRITICAL]


class GpuXidSettings(DetectorSettings):
    """Settings of the detector."""

    quiet_s: Annotated[float, Field(gt=0)] = 600.0
    """How long a code that needs no reset must stay away to be over."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What is thought of an episode."""

    severity: Severity
    what: str
    advice: str
    remedy: str
    sympathetic: bool
    ends_when_quiet: bool


@dataclass(slots=True)
class _Episode:
    """A code that a GPU or a switch keeps reporting."""

    kind: str
    subject: str
    code: int
    pci_address: str
    began: str
    """Id of the report that began it."""
    raised_ns: int
    last_ns: int
    clock_error_ns: int
    verdict: _Verdict
    heard_ns: int
    """When the last report came, by event time and ticks: a report that comes late is still news."""
    told_ns: int
    """When it was last told, on the same clock."""
    count: int = 0
    told_count: int = 0
    subcode: str = ""
    pid: int | None = None
    process: str | None = None
    evidence: list[tuple[int, str, int]] = field(default_factory=list)
    evidence_dropped: int = 0

    def take(self, report: KernelReport, now_ns: int) -> None:
        """Count a report in."""
        self.count += report.count
        self.heard_ns = now_ns
        self.last_ns = max(self.last_ns, report.at_ns)
        self.clock_error_ns = report.clock_error_ns
        self.subcode = report.subcode or self.subcode
        self.pid = report.pid if report.pid is not None else self.pid
        self.process = report.process or self.process
        what = report.message[:_EVIDENCE_MAX_CHARS]
        self.evidence.append((report.at_ns, what, report.count))
        if len(self.evidence) > _EVIDENCE_KEPT:
            del self.evidence[0]
            self.evidence_dropped += 1


class GpuXid(Detector):
    """XID and SXid reports of one node."""

    name = "gpu_xid"
    version = 1
    about = "GPU and NVSwitch faults that the driver reports, with NVIDIA's advice"
    consumes = (KernelReport,)
    Settings = GpuXidSettings

    def __init__(self, node: str, zone: str, settings: GpuXidSettings) -> None:
        super().__init__(node, zone, settings)
        self._episodes: dict[str, _Episode] = {}
        self._boot_id = ""
        self._now_ns = 0
        self._seen: deque[str] = deque(maxlen=_REMEMBERED_IDS)

    def observe(self, event: KernelReport) -> Iterable[Signal]:
        if event.id in self._seen:
            return []
        self._seen.append(event.id)
        self.changed = True
        self._now_ns = max(self._now_ns, event.at_ns)
        signals: list[Signal] = []
        rebooted = bool(event.boot_id and self._boot_id and event.boot_id != self._boot_id)
        self._boot_id = event.boot_id or self._boot_id
        if rebooted or event.category == KernelCategory.DRIVER_LOAD:
            why = "the node was restarted" if rebooted else "the NVIDIA driver was loaded anew"
            for key, episode in list(self._episodes.items()):
                signals.append(self._clear(key, max(episode.last_ns, _began_ns(event)), why))
        if event.category == KernelCategory.XID and event.code is not None:
            signals.extend(self._xid(event, event.code))
        elif event.category == KernelCategory.SXID and event.code is not None:
            verdict = _sxid_verdict(event.code, event.subcode or "")
            signals.extend(self._report(event, SXID_KIND, event.code, verdict))
        return signals

    def tick(self, now_ns: int) -> Iterable[Signal]:
        self._now_ns = max(self._now_ns, now_ns)
        signals = []
        quiet_ns = int(self.settings.quiet_s * 1e9)
        for key, episode in list(self._episodes.items()):
            if episode.verdict.ends_when_quiet and now_ns >= episode.heard_ns + quiet_ns:
                why = f"not seen for {self.settings.quiet_s:g} s"
                signals.append(self._clear(key, episode.last_ns + quiet_ns, why))
            elif (
                episode.count > episode.told_count and now_ns >= episode.told_ns + _UPDATE_EVERY_NS
            ):
                signals.append(self._tell(Phase.UPDATED, episode, episode.last_ns))
        self.changed = self.changed or bool(signals)
        return signals

    def state(self) -> dict[str, Any]:
        return {
            "boot_id": self._boot_id,
            "seen": list(self._seen),
            "episodes": {key: asdict(episode) for key, episode in self._episodes.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._boot_id = state.get("boot_id", "")
        self._seen = deque(state.get("seen", ()), maxlen=_REMEMBERED_IDS)
        self._episodes = {}
        for key, kept in state.get("episodes", {}).items():
            verdict = _Verdict(
                **{**kept["verdict"], "severity": Severity(kept["verdict"]["severity"])}
            )
            evidence = [(at_ns, what, count) for at_ns, what, count in kept["evidence"]]
            self._episodes[key] = _Episode(**{**kept, "verdict": verdict, "evidence": evidence})

    def _xid(self, event: KernelReport, code: int) -> Iterator[Signal]:
        if code == _SMOOTHING_BACK:
            lost = _key(XID_KIND, event.subject, _SMOOTHING_LOST, event.pci_address)
            if lost in self._episodes:
                yield self._clear(lost, event.at_ns, "XID 162: power smoothing is on again")
            return
        key = _key(XID_KIND, event.subject, code, event.pci_address)
        if code == xid_catalog.RECOVERY_CHANGED and (event.subcode or "").lower() == "none":
            if key in self._episodes:
                yield self._clear(key, event.at_ns, "the driver asks for no recovery any more")
            return
        entry = xid_catalog.lookup(code, event.subcode)
        if code == _DOUBLE_BIT and self._remapped(event):
            entry = xid_catalog.with_row_remap(entry)
        yield from self._report(event, XID_KIND, code, _xid_verdict(entry))
        double_bit = self._episodes.get(
            _key(XID_KIND, event.subject, _DOUBLE_BIT, event.pci_address)
        )
        if code in _ROW_REMAP and double_bit is not None:
            verdict = _xid_verdict(xid_catalog.with_row_remap(xid_catalog.lookup(_DOUBLE_BIT)))
            if double_bit.verdict != verdict:
                double_bit.verdict = verdict
                yield self._tell(Phase.UPDATED, double_bit, event.at_ns)

    def _remapped(self, event: KernelReport) -> bool:
        return any(
            _key(XID_KIND, event.subject, code, event.pci_address) in self._episodes
            for code in _ROW_REMAP
        )

    def _report(
        self, event: KernelReport, kind: str, code: int, verdict: _Verdict
    ) -> Iterator[Signal]:
        key = _key(kind, event.subject, code, event.pci_address)
        episode = self._episodes.get(key)
        if episode is None:
            episode = self._episodes[key] = _Episode(
                kind=kind,
                subject=event.subject,
                code=code,
                pci_address=event.pci_address or "",
                began=event.id,
                raised_ns=_began_ns(event),
                last_ns=event.at_ns,
                clock_error_ns=event.clock_error_ns,
                verdict=verdict,
                heard_ns=self._now_ns,
                told_ns=self._now_ns,
            )
            episode.take(event, self._now_ns)
            yield self._tell(Phase.RAISED, episode, event.at_ns)
            return
        episode.take(event, self._now_ns)
        # The gravest verdict stands; only for XID 154 does the newest, which replaces the last.
        newest_holds = kind == XID_KIND and code == xid_catalog.RECOVERY_CHANGED
        graver = _gravity(verdict) > _gravity(episode.verdict)
        worse = verdict != episode.verdict and (newest_holds or graver)
        if worse:
            episode.verdict = verdict
        if worse or self._now_ns >= episode.told_ns + _UPDATE_EVERY_NS:
            yield self._tell(Phase.UPDATED, episode, episode.last_ns)

    def _clear(self, key: str, at_ns: int, why: str) -> Signal:
        episode = self._episodes.pop(key)
        episode.evidence.append((at_ns, why, 0))
        return self._tell(Phase.CLEARED, episode, at_ns)

    def _tell(self, phase: Phase, episode: _Episode, at_ns: int) -> Signal:
        episode.told_ns, episode.told_count = self._now_ns, episode.count
        name = "XID" if episode.kind == XID_KIND else "SXid"
        device = episode.pci_address or identity.parts(episode.subject).node
        owner = " ".join(
            part
            for part in (
                f"pid {episode.pid}" if episode.pid is not None else "",
                episode.process or "",
            )
            if part
        )
        attributes: dict[str, str | int | float] = {
            name.lower(): episode.code,
            "count": episode.count,
        }
        for key in ("pci_address", "subcode", "pid", "process"):
            value = getattr(episode, key)
            if value not in ("", None):
                attributes[key] = value
        verdict = episode.verdict
        times = f", {episode.count} times" if episode.count > 1 else ""
        signal = self.signal(
            phase,
            kind=episode.kind,
            subject=episode.subject,
            raised_ns=episode.raised_ns,
            at_ns=at_ns,
            clock_error_ns=episode.clock_error_ns,
            severity=verdict.severity,
            summary=(
                f"{name} {episode.code} on {device}: {verdict.what}"
                f"{f' ({owner})' if owner else ''}{times}"
            )[:512],
            evidence=[
                Evidence(at_ns=at_ns, what=what, value=count or None, unit="lines" if count else "")
                for at_ns, what, count in episode.evidence
            ],
            evidence_dropped=episode.evidence_dropped,
            advice=verdict.advice[:1024],
            remedy=verdict.remedy,
            sympathetic=verdict.sympathetic,
            attributes=attributes,
        )
        # Where a log has stamps of whole seconds, much may begin in one nanosecond: the episode is
        # named by the report that began it.
        named = content_id(signal.episode, episode.began)
        return signal.model_copy(
            update={
                "episode": named,
                "id": content_id(named, phase, at_ns, episode.count, verdict.remedy),
            }
        )


def _began_ns(report: KernelReport) -> int:
    """When the first of its lines was written; none is from after the last."""
    return min(report.first_ns, report.at_ns)


def _key(kind: str, subject: str, code: int, pci_address: str | None) -> str:
    return f"{kind} {subject} {code} {pci_address or ''}"


def _gravity(verdict: _Verdict) -> tuple[int, bool]:
    return _GRAVITY.index(verdict.severity), bool(verdict.remedy)


def _xid_verdict(entry: xid_catalog.XidEntry) -> _Verdict:
    return _Verdict(
        severity=entry.severity,
        what=entry.description,
        advice=entry.advice,
        remedy=entry.remedy,
        sympathetic=entry.sympathetic,
        ends_when_quiet=entry.ends_when_quiet,
    )


def _sxid_verdict(code: int, subcode: str) -> _Verdict:
    """SXids by the driver's own word, Fatal or Non-fatal (Fabric Manager User Guide, appendix D)."""
    fatal = subcode.startswith("Fatal")
    return _Verdict(
        severity=Severity.CRITICAL if fatal else Severity.WARNING,
        what=f"NVSwitch error, {subcode}" if subcode else "NVSwitch error",
        advice=(
            "Fatal NVSwitch error: jobs on its GPUs have failed. Drain the node, reset all its GPUs "
            f"and NVSwitches or restart it, and contact support with SXid {code} if it comes back."
            if fatal
            else "The NVSwitch goes on. No action is needed; watch whether jobs on its GPUs fail, and "
            f"look SXid {code} up in NVIDIA's Fabric Manager guide if it comes back."
        ),
        remedy="restart_node" if fatal else "",
        sympathetic=False,
        ends_when_quiet=not fatal,
    )
