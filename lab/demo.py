"""The demonstration: a job runs, its links break, and one sees what becomes of it.

Two runs, each in a lab of its own: with Evertick (a node agent with LinkPass in every host, Kafka, the
stream worker), and without it, with the same faults. Each fault strikes the rail that the job's
traffic takes at that moment.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from lab import cycles, faults, script
from lab.bench import BenchError
from lab.chronicle import View, standing
from lab.fabric import Fabric
from lab.faults.base import known
from lab.sandbox import metric, wait_for
from lab.scene import Audience
from lab.score import GPUS_PER_HOST, Score, newest, score
from lab.script import Act
from lab.stage import Stage
from lab.topology import Topology
from lab.truth import Truth
from lab.watch import Watch
from lab.workloads.runner import RingJob
from schemas.incident import IncidentState

_VECTOR_BYTES = 128 * 1024
_COMPUTE_MS = 5.0
_SETTLE_S = 60.0
_ITERATIONS = 50
_SPARE_S = 4.0
# Breaking and mending take their time, the more of it the more hosts load the machine.
_SPARE_S_PER_HOST_AND_ACT = 0.15
_LOOK_S = 0.1
_RESOLVED_S = 12.0
_HEARD_S = 1.0


@dataclass(frozen=True, slots=True)
class Played:
    """A run that is over."""

    view: View
    score: Score


class Run:
    """One run of the script; see :func:`play`."""

    def __init__(
        self, topology: Topology, acts: Sequence[Act], audience: Audience, with_evertick: bool
    ) -> None:
        self._topology = topology
        self._acts = list(acts)
        self._audience = audience
        self._with = with_evertick
        self._began_ns = time.time_ns()
        self._note = ""
        self._truth = Truth()
        self._watch = Watch(None)
        self._ended_ns: int | None = None
        """When the job's last iteration ended or, if it died, when that was seen."""
        self._due_s = 0.0
        """When the job is to end, on the monotonic clock."""
        self._about = {name: kind.about for name, kind in known().items()}
        self._check: Callable[[], None] = lambda: None

    def play(self, flags: Sequence[str]) -> Played:
        """Set the scene, break one thing after another, take all away."""
        with ExitStack() as stack:
            self._say("the lab is being made")
            fabric = self._set_up(stack, flags)
            spare_s = _SPARE_S_PER_HOST_AND_ACT * len(self._acts) * self._topology.hosts + _SPARE_S
            seconds = script.length_s(self._acts) + spare_s
            self._due_s = time.monotonic() + seconds
            job = stack.enter_context(
                RingJob(fabric, seconds, _VECTOR_BYTES, _COMPUTE_MS, patience_s=script.PATIENCE_S)
            )
            # Ends before the job does, whose files it reads.
            stack.enter_context(self._watch)
            self._watch.job = job
            if not cycles.settled(job, _ITERATIONS, _SETTLE_S):
                raise BenchError("the job does not get going")
            self._began_ns = time.time_ns()
            with self._audience.showing(self.view):
                for number, act in enumerate(self._acts):
                    if not job.running:
                        break
                    self._strike(fabric, job, number, act)
                self._say("the job comes to its end")
                ranks = self._await_job(job)
                if self._with:
                    self._say("the incidents come to rest")
                    self._await_incidents()
            # What it has read of the job until its very end.
            self._pause(_HEARD_S)
            view = self.view()
            self._say("everything is taken away")
        return Played(view, score(view, ranks))

    def view(self) -> View:
        """The run as it stands."""
        read_ns, iterations = self._watch.iterations
        until_ns = read_ns if self._ended_ns is None else self._ended_ns
        now_ns = time.time_ns()
        under_way_ns = until_ns - iterations[-1].at_ns if iterations else 0
        return View(
            topology=self._topology,
            with_evertick=self._with,
            began_ns=self._began_ns,
            now_ns=now_ns,
            acts=len(self._acts),
            note=self._note,
            spans=self._truth.spans[:],
            events=self._watch.events,
            iterations=standing(iterations, until_ns),
            standing_ms=max(0, under_way_ns) / 1e6,
            about=self._about,
        )

    def _set_up(self, stack: ExitStack, flags: Sequence[str]) -> Fabric:
        if not self._with:
            return stack.enter_context(Fabric(self._topology))
        stage = stack.enter_context(Stage(self._topology, flags, {}))
        self._truth = stage.truth
        self._watch = Watch(stage.kafka)
        self._say("Kafka, the stream worker and an agent in every host start")
        worker = stage.sandbox.start("stream")
        now_ns = time.time_ns()
        stage.tell(
            *self._topology.inventory(now_ns), self._topology.job("demo", now_ns, GPUS_PER_HOST)
        )
        stage.start_agents()
        parts = [worker, *stage.agents.values()]

        def check() -> None:
            for part in parts:
                part.check()

        self._check = check
        self._await_routes(stage.fabric)
        port = stage.sandbox.settings.metrics.stream_port
        wait_for(
            lambda: metric(port, "evertick_stream_messages_total", topic="telemetry.packet"),
            "the stream worker reads what the agents tell",
            parts,
            _SETTLE_S,
        )
        return stage.fabric

    def _await_routes(self, fabric: Fabric) -> None:
        deadline_s = time.monotonic() + _SETTLE_S
        for host in self._topology.host_names:
            while cycles.own_routes(fabric, host) < self._topology.hosts - 1:
                self._check()
                if time.monotonic() > deadline_s:
                    raise BenchError(f"LinkPass on {host} has no routes after {_SETTLE_S:.0f} s")
                time.sleep(_LOOK_S)

    def _strike(self, fabric: Fabric, job: RingJob, number: int, act: Act) -> None:
        """One act, until its pause is over or the job is dead."""
        names = self._topology.host_names
        behind = names[(names.index(act.host) + 1) % len(names)]
        rail = cycles.rail_in_use(fabric, act.host, behind)
        fault = faults.make(act.fault, fabric, self._truth, act.host, rail, **act.options)
        self._say(f"fault {number + 1} of {len(self._acts)}: {act.fault} on {fault.subject}")
        with fault:
            self._pause(act.hold_s, job)
        self._pause(act.pause_s, job)
        if not job.running:
            self._note_end(job)
        self._audience.told(self.view(), number)

    def _pause(self, seconds: float, job: RingJob | None = None) -> None:
        deadline_s = time.monotonic() + seconds
        while (left_s := deadline_s - time.monotonic()) > 0:
            self._check()
            self._watch.check()
            if job is not None and not job.running:
                self._note_end(job)
                return
            time.sleep(min(_LOOK_S, left_s))

    def _note_end(self, job: RingJob) -> None:
        """The rest of the run is no standstill of a job that is over."""
        if self._ended_ns is not None:
            return
        if time.monotonic() < self._due_s:
            self._ended_ns = time.time_ns()
            self._say("the job is dead")
        else:
            finished = job.iterations()
            self._ended_ns = finished[-1].at_ns if finished else time.time_ns()

    def _await_job(self, job: RingJob) -> list[dict[str, Any]]:
        deadline_s = time.monotonic() + _SETTLE_S
        while job.running:
            self._check()
            if time.monotonic() > deadline_s:
                raise BenchError(f"the job has not ended {_SETTLE_S:.0f} s after its time")
            time.sleep(_LOOK_S)
        self._note_end(job)
        try:
            return job.wait(_LOOK_S)
        except subprocess.TimeoutExpired:
            raise BenchError("the job has ended, but keeps its output open") from None

    def _await_incidents(self) -> None:
        """Until all are resolved, or the wait is too long for an audience."""
        deadline_s = time.monotonic() + _RESOLVED_S
        while time.monotonic() < deadline_s:
            self._pause(_LOOK_S)
            states = {one.state for one in newest(self._watch.events)}
            if states == {IncidentState.RESOLVED}:
                return

    def _say(self, words: str) -> None:
        self._note = words
        self._audience.say(words)


def play(
    topology: Topology,
    audience: Audience,
    with_evertick: bool,
    flags: Sequence[str] = (),
    most: int | None = None,
) -> Played:
    """Play the script once.

    Args:
        topology: of the lab.
        audience: who watches.
        with_evertick: with it or without.
        flags: settings of Evertick's, ``name=value``.
        most: only so many faults, the last of the script.

    Raises:
        NoLab: no lab can be made here.
        BenchError: something that the run needs does not start or ends.
    """
    return Run(topology, script.acts(topology, most), audience, with_evertick).play(flags)
