"""What a run of the demonstration comes to: faults, failovers, standstills, and their price."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lab.chronicle import View, answer, usual_ms
from lab.percentile import percentile
from schemas.incident import Incident
from streams import price

HURT_MS = 1000.0
"""A fault with a longer standstill of the job counts as one that was not bridged."""
GPUS_PER_HOST = 8


def assumptions() -> list[str]:
    """What the price stands on."""
    return [
        *price.ASSUMPTIONS,
        f"a fault is bridged where the job stands still for {HURT_MS / 1000:g} s at most",
        f"the lab has no GPUs; each host counts for {GPUS_PER_HOST}",
    ]


@dataclass(frozen=True, slots=True)
class Felt:
    """One fault and what came of it."""

    fault: str
    subject: str
    lasted_ms: float
    stall_ms: float
    failover_ms: float | None

    @property
    def hurt(self) -> bool:
        """The job stood still for too long."""
        return self.stall_ms > HURT_MS


@dataclass(frozen=True, slots=True)
class Score:
    """One run."""

    with_evertick: bool
    gpus: int
    faults: Sequence[Felt]
    failovers: int
    failbacks: int
    job_errors: int
    """Ranks that failed or reduced wrongly."""
    job_error: str
    """What the first of them said."""
    iterations: int
    iteration_p50_ms: float
    standstill_ms: float
    """The longest time in which the job finished no iteration, whatever the reason."""
    incidents: Sequence[Incident] = ()
    """The newest revision of each that was not merged into another."""

    @property
    def stall_p50_ms(self) -> float:
        """Over all faults; 0 without any."""
        return percentile([one.stall_ms for one in self.faults], 50) if self.faults else 0.0

    @property
    def stall_max_ms(self) -> float:
        """Over all faults."""
        return max((one.stall_ms for one in self.faults), default=0.0)

    @property
    def hurt(self) -> int:
        """Faults that were not bridged."""
        return sum(one.hurt for one in self.faults)

    @property
    def bridged(self) -> int:
        """Faults that the job did not notice, or hardly."""
        return len(self.faults) - self.hurt

    @property
    def restart_gpu_h(self) -> float:
        """What the restarts for the faults that hurt cost, GPU-hours."""
        return self.hurt * price.restart_gpu_s(self.gpus) / 3600

    @property
    def avoided_gpu_h(self) -> float:
        """What restarts for the faults that were moved around would have cost, GPU-hours."""
        moved = sum(not one.hurt and one.failover_ms is not None for one in self.faults)
        return moved * price.restart_gpu_s(self.gpus) / 3600

    def document(self) -> dict[str, Any]:
        """For a program."""
        return {
            "faults": [
                {
                    "fault": one.fault,
                    "subject": one.subject,
                    "lasted_ms": round(one.lasted_ms),
                    "stall_ms": round(one.stall_ms, 1),
                    "failover_ms": None if one.failover_ms is None else round(one.failover_ms, 1),
                }
                for one in self.faults
            ],
            "failovers": self.failovers,
            "failbacks": self.failbacks,
            "bridged": self.bridged,
            "stall_p50_ms": round(self.stall_p50_ms, 1),
            "stall_max_ms": round(self.stall_max_ms, 1),
            "standstill_max_ms": round(self.standstill_ms, 1),
            "iterations": self.iterations,
            "iteration_p50_ms": round(self.iteration_p50_ms, 2),
            "job_errors": self.job_errors,
            "job_error": self.job_error,
            "restart_gpu_h": round(self.restart_gpu_h, 1),
            "restart_gpu_h_avoided": round(self.avoided_gpu_h, 1),
            "incidents": [
                {
                    "incident": one.incident,
                    "kind": one.kind,
                    "subject": one.subject,
                    "state": str(one.state),
                    "summary": one.summary,
                }
                for one in self.incidents
            ],
        }


def score(view: View, ranks: Sequence[dict[str, Any]]) -> Score:
    """A run that is over.

    Args:
        view: how it went.
        ranks: what the job's ranks said in the end.
    """
    usual = usual_ms(view.iterations)
    answers = [answer(view, index, usual) for index in range(len(view.spans))]
    bad = [one for one in ranks if one.get("errors") or not one.get("right", False)]
    return Score(
        with_evertick=view.with_evertick,
        gpus=view.topology.hosts * GPUS_PER_HOST,
        faults=[
            Felt(
                span.fault,
                span.subject,
                ((span.ended_ns or view.now_ns) - span.began_ns) / 1e6,
                found.job_stall_ms,
                found.failover_ms,
            )
            for span, found in zip(view.spans, answers, strict=True)
        ],
        failovers=sum(one.failovers for one in answers),
        failbacks=sum(one.failbacks for one in answers),
        job_errors=len(bad),
        job_error=str(bad[0].get("error", "the sums are wrong")) if bad else "",
        iterations=len(view.iterations),
        iteration_p50_ms=usual,
        standstill_ms=max((one.took_ns for one in view.iterations), default=0) / 1e6,
        incidents=newest(view.events),
    )


def newest(events: Sequence[Any]) -> list[Incident]:
    """Of every incident among events its newest revision, by when it opened; without those that go
    on in another."""
    found: dict[str, Incident] = {}
    for event in events:
        if isinstance(event, Incident):
            known = found.get(event.incident)
            if known is None or event.revision > known.revision:
                found[event.incident] = event
    alive = [one for one in found.values() if one.merged_into is None]
    return sorted(alive, key=lambda one: (one.opened_ns, one.incident))


def rows(scores: Sequence[Score]) -> list[tuple[str, list[str]]]:
    """The summary for a person: what, and for each run its figure."""

    def row(name: str, told: Callable[[Score], str]) -> tuple[str, list[str]]:
        return name, [told(one) for one in scores]

    return [
        row("faults", lambda one: f"{len(one.faults)}"),
        row("bridged", lambda one: f"{one.bridged}"),
        row("failovers", lambda one: f"{one.failovers}" if one.with_evertick else "-"),
        row("slowest failover", _slowest),
        row("stall of the job, p50", lambda one: f"{one.stall_p50_ms:,.0f} ms"),
        row("stall of the job, longest", lambda one: f"{one.stall_max_ms:,.0f} ms"),
        row("longest standstill at all", lambda one: f"{one.standstill_ms:,.0f} ms"),
        row("iterations", lambda one: f"{one.iterations:,} of {one.iteration_p50_ms:.1f} ms"),
        row("job errors", lambda one: f"{one.job_errors}"),
        row("the job's result", lambda one: one.job_error if one.job_errors else "right"),
        row("incidents", lambda one: f"{len(one.incidents)}" if one.with_evertick else "-"),
        row("restarts would cost", lambda one: f"{one.restart_gpu_h:,.0f} GPU-hours"),
        row(
            "restarts avoided",
            lambda one: f"{one.avoided_gpu_h:,.0f} GPU-hours" if one.with_evertick else "-",
        ),
    ]


def _slowest(one: Score) -> str:
    took = [felt.failover_ms for felt in one.faults if felt.failover_ms is not None]
    return f"{max(took):.0f} ms after the last sign of life" if took else "-"
