"""The demonstration: what it says of a run, its arithmetic, its screen, and a short run for real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from evertick.cli import app
from evertick.story import Line, What
from lab import chronicle, fabric, scene, script
from lab.chronicle import EVERTICK, JOB, TRUTH, View
from lab.faults.base import known
from lab.score import GPUS_PER_HOST, rows, score
from lab.topology import Topology
from lab.truth import Span
from lab.workloads.runner import Iteration
from schemas import identity
from schemas.event import Event
from schemas.path import FlowStall, PathFault, PathTransition, RouteMove, RouteMoveReason
from tests.conftest import eventually

_ROOT = Path(__file__).resolve().parents[2]
MS, S = 1_000_000, 1_000_000_000
T0 = 1_000 * S
TOPOLOGY = Topology(2, 2)
PATH = [identity.path("host-1", f"10.10{rail}.0.1", f"10.10{rail}.0.2") for rail in (0, 1)]
RIGHT = [{"rank": rank, "errors": 0, "right": True} for rank in (0, 1)]
needs_lab = pytest.mark.skipif(bool(fabric.missing()), reason=fabric.missing() or "-")


def occurrence(at_ns: int, node: str = "host-1") -> dict[str, Any]:
    return {
        "id": identity.content_id("test", at_ns, node),
        "at_ns": at_ns,
        "clock_error_ns": 0,
        "node": node,
        "subject": PATH[0],
    }


def moved(at_ns: int, reason: RouteMoveReason, to_rail: int, destination: str = "a") -> RouteMove:
    return RouteMove(
        **occurrence(at_ns),
        peer="host-2",
        destination=destination,
        reason=reason,
        from_path=PATH[1 - to_rail],
        to_path=PATH[to_rail],
        failed_ns=at_ns - 31 * MS if reason is RouteMoveReason.FAILOVER else 0,
        decided_ns=T0,
    )


def run_of(stall_ms: int, events: list[Event], ended: bool = True) -> View:
    """Iterations of 5 ms from T0 on; a blackhole a second later; one iteration that takes longer."""
    times = [T0 + number * 5 * MS for number in range(1, 201)]
    iterations = [Iteration(at_ns, 5 * MS) for at_ns in times]
    iterations.append(Iteration(times[-1] + (5 + stall_ms) * MS, (5 + stall_ms) * MS))
    after = iterations[-1].at_ns
    iterations += [Iteration(after + number * 5 * MS, 5 * MS) for number in range(1, 801)]
    span = Span("blackhole", TOPOLOGY.link("host-1", 0), T0 + S, T0 + 2 * S if ended else None)
    return View(
        TOPOLOGY,
        True,
        T0,
        iterations[-1].at_ns,
        acts=1,
        spans=[span],
        events=events,
        iterations=iterations,
        about={"blackhole": "silently"},
    )


BRIDGED: list[Event] = [
    PathTransition(
        **occurrence(T0 + S + 30 * MS),
        peer="host-2",
        interface="rail0",
        alive=False,
        fault=PathFault.SILENT,
        since_ns=T0 + S,
        paths_alive=1,
    ),
    moved(T0 + S + 31 * MS, RouteMoveReason.FAILOVER, 1),
    moved(T0 + S + 32 * MS, RouteMoveReason.FAILOVER, 1, destination="b"),
    FlowStall(
        **occurrence(T0 + S + 80 * MS),
        peer="host-2",
        failed_ns=T0 + S,
        flows=2,
        flows_recovered=2,
        stall_ns=44 * MS,
    ),
    moved(T0 + 3 * S, RouteMoveReason.FAILBACK, 0),
]


def test_a_bridged_fault_is_told_from_its_breaking_to_the_failback() -> None:
    told = chronicle.entries(run_of(40, BRIDGED), 0)
    assert [entry.who for entry in told].count(TRUTH) == 2
    assert told[0].text == f"blackhole on {TOPOLOGY.link('host-1', 0)}: silently"
    text = "\n".join(f"{entry.who}: {entry.text}" for entry in told)
    assert f"{EVERTICK}: path dead (silent), seen at 1 host, first 30 ms after" in text
    # Both addresses of the peer moved by one decision: one failover.
    assert f"{EVERTICK}: failover: 1 host to rail1, 31 to 31 ms after" in text
    assert f"{EVERTICK}: measured: flows stood still for up to 44 ms" in text
    assert f"{JOB}: stood still for 40 ms" in text
    assert f"{TRUTH}: mended after 1.0 s" in text
    assert told[-1].text == "failback: 1 host back to rail0, 1.0 s after the mending"


def test_what_belongs_to_the_next_fault_is_not_told_of_this_one() -> None:
    view = run_of(40, BRIDGED)
    later = Span("carrier_lost", TOPOLOGY.link("host-2", 0), T0 + 2900 * MS, None)
    both = View(**{**_fields(view), "spans": [*view.spans, later]})
    assert not any("failback" in entry.text for entry in chronicle.entries(both, 0))
    assert chronicle.answer(both, 1).failbacks == 1


def test_the_price_counts_what_was_bridged_and_what_was_not() -> None:
    saved = score(run_of(40, BRIDGED), RIGHT)
    gpus = 2 * GPUS_PER_HOST
    assert (saved.failovers, saved.failbacks, saved.bridged, saved.job_errors) == (1, 1, 1, 0)
    assert saved.faults[0].failover_ms == pytest.approx(31)
    assert saved.stall_max_ms == pytest.approx(40)
    assert (saved.restart_gpu_h, saved.avoided_gpu_h) == (0, gpus * 1.5)
    lost = score(run_of(3000, []), [RIGHT[0], {"rank": 1, "errors": 1, "error": "nothing moved"}])
    assert (lost.failovers, lost.hurt, lost.job_errors) == (0, 1, 1)
    assert (lost.restart_gpu_h, lost.avoided_gpu_h) == (gpus * 1.5, 0)
    figures = dict(rows([saved, lost]))
    assert figures["the job's result"] == ["right", "nothing moved"]
    assert json.loads(json.dumps(saved.document()))["stall_p50_ms"] == pytest.approx(40)


def test_a_fault_that_nobody_felt_and_nobody_answered_saves_nothing() -> None:
    quiet = score(run_of(0, []), RIGHT)
    assert (quiet.hurt, quiet.restart_gpu_h, quiet.avoided_gpu_h) == (0, 0, 0)


def test_a_job_that_stands_still_is_felt_before_it_goes_on() -> None:
    done = [Iteration(T0 + number * 5 * MS, 5 * MS) for number in range(1, 11)]
    assert chronicle.standing(done, done[-1].at_ns) == done
    assert chronicle.standing([], T0) == []
    last = chronicle.standing(done, done[-1].at_ns + 2 * S)[-1]
    assert last.took_ns == 2 * S


def test_the_screen_shows_the_broken_link_and_where_the_traffic_goes() -> None:
    view = run_of(40, BRIDGED[:-1], ended=False)
    assert scene.broken(view, "host-1", 0) == "blackhole"
    assert not scene.broken(view, "host-1", 1)
    assert not scene.broken(view, "host-2", 0)
    assert scene.in_use(view) == {"host-1": 1, "host-2": 0}
    dead = Span("switch_dead", identity.node("leaf-2"), T0, None)
    all_of_it = View(**{**_fields(view), "spans": [dead]})
    assert [scene.broken(all_of_it, host, 1) for host in TOPOLOGY.host_names] == ["switch_dead"] * 2
    console = Console(width=120, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(scene.screen(view, 40))
    shown = console.export_text()
    assert "with Evertick  fault 1 of 1" in shown
    assert "━━━✕━━━ blackhole" in shown
    assert "failover: 1 host to rail1" in shown


@given(
    st.lists(st.integers(1, 20_000), max_size=200),
    st.integers(1, 80),
    st.integers(0, 60_000),
)
def test_a_sparkline_is_as_wide_as_asked(took_ms: list[int], width: int, later_ms: int) -> None:
    iterations, at_ns = [], T0
    for one in took_ms:
        at_ns += one * MS
        iterations.append(Iteration(at_ns, one * MS))
    line = scene.sparkline(iterations, at_ns + later_ms * MS, width)
    assert len(line) == width
    assert set(line) <= set(" ▁▂▃▄▅▆▇█")


def test_a_standstill_stands_out_of_the_sparkline() -> None:
    view = run_of(3000, [])
    line = scene.sparkline(view.iterations, view.now_ns)
    assert line.strip().strip("▁") == line.strip("▁ ") != ""
    assert "▁" in line


@pytest.mark.parametrize("hosts", [2, 4])
def test_the_script_ends_with_a_fault_that_outlasts_the_job(hosts: int) -> None:
    acts = script.acts(Topology(hosts, 2))
    assert {act.fault for act in acts} <= set(known())
    assert ("switch_dead" in {act.fault for act in acts}) == (hosts > 2)
    assert acts[-1].hold_s > script.PATIENCE_S
    assert script.acts(Topology(hosts, 2), 2) == acts[-2:]
    assert 2 * script.length_s(acts) < 120


def test_help_and_bad_options() -> None:
    found = CliRunner().invoke(app, ["lab", "--help"])
    assert found.exit_code == 0
    assert "Example: evertick lab" in found.output
    for words in (["--hosts", "1"], ["--rails", "1"], ["--with", "--without"]):
        assert CliRunner().invoke(app, ["lab", *words]).exit_code == 2


def test_where_no_lab_can_be_made_one_line_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabric, "missing", lambda: "the lab needs the command tc")
    found = CliRunner().invoke(app, ["lab", "--plain"])
    assert found.exit_code == 2
    assert "evertick: the lab needs the command tc\n" in found.stderr


@needs_lab
def test_a_job_outlives_with_evertick_what_kills_it_without() -> None:
    done = _lab("--faults", "2", "--json")
    said, complaint = done.communicate(timeout=200)
    assert done.returncode == 0, complaint
    found = json.loads(said)
    saved, lost = found["runs"]["with"], found["runs"]["without"]
    assert [one["fault"] for one in saved["faults"]] == ["flap_train", "blackhole"]
    assert saved["job_errors"] == 0
    assert saved["failovers"] >= 4
    assert saved["bridged"] == 2
    assert {one["kind"] for one in saved["incidents"]}
    assert lost["job_errors"] == 2
    assert "nothing moved" in lost["job_error"]
    assert saved["stall_max_ms"] < lost["stall_max_ms"]
    assert "fault 1 of 2: flap_train" in complaint


@needs_lab
def test_ctrl_c_takes_everything_away(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w+") as out:
        done = _lab("--without", "--plain", stdout=out)
        eventually(lambda: "fault 1 of" in (tmp_path / "out").read_text(), 60, "the first fault")
        made = _namespaces_of(done.pid)
        assert len(made) == 4
        done.send_signal(signal.SIGINT)
        done.communicate(timeout=60)
    assert done.returncode == 130
    assert not [name for name in made if Path("/run/netns", name).exists()]


def test_on_a_narrow_screen_the_times_stay() -> None:
    console = Console(width=40, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(scene._story([Line(T0, 12_345 * MS, What.SYMPTOM, "a long story " * 9)]))
    assert console.export_text().startswith(" +12.345 s ")


def _lab(*words: str, stdout: Any = subprocess.PIPE) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "evertick", "lab", *words],
        cwd=_ROOT,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


def _namespaces_of(pid: int) -> list[str]:
    """Those of the lab that a process owns; other labs may run beside it."""
    owners = Path("/run/evertick-lab").iterdir()
    [tag] = [one.name for one in owners if one.read_text().split()[0] == str(pid)]
    return [one.name for one in Path("/run/netns").iterdir() if f"-{tag}-" in one.name]


def _fields(view: View) -> dict[str, Any]:
    return {name: getattr(view, name) for name in View.__slots__}
