"""The registry of benchmarks, the shape of a report, and the command."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from evertick.cli import app
from lab import bench
from lab.bench import BenchError, Findings, Options, benchmark, registered, report, wanted

KEYS = ("speed_per_s", "speed_p99_ms", "size_mb")
PIPELINE_KEYS = [
    "stream_samples_per_s_per_core",
    "fault_to_incident_p50_ms",
    "fault_to_incident_p99_ms",
    "incident_to_webhook_p99_ms",
    "history_rows_per_s",
    "agent_cpu_percent_of_core",
    "agent_rss_mb",
    "embedded_rss_mb",
    "embedded_idle_cpu_percent_of_core",
]


@pytest.fixture
def toy() -> Iterator[bench.Benchmark]:
    """A benchmark that takes no time."""

    @benchmark("toy", "a toy", KEYS)
    def measure(options: Options) -> Findings:
        options.say("playing")
        found = Findings()
        if "speed" in options.only or not options.only:
            found.add(Findings({"speed_per_s": 12.5, "speed_p99_ms": None}, ["no stop-watch"]))
        if not options.only:
            found.add(Findings({"size_mb": 3}))
        return found

    yield registered()["toy"]
    bench._registered.pop("toy")


def test_the_pipeline_is_registered_with_its_keys() -> None:
    assert list(registered()["pipeline"].keys) == PIPELINE_KEYS


def test_a_name_is_registered_once(toy: bench.Benchmark) -> None:
    with pytest.raises(TypeError, match="toy"):
        benchmark("toy", "another", KEYS)(lambda options: Findings())


def test_a_report_has_one_shape(toy: bench.Benchmark) -> None:
    said: list[str] = []
    result = report(toy, Options(say=said.append))
    assert list(result) == ["name", "figures", "machine", "started", "seconds", "notes"]
    assert result["figures"] == {"speed_per_s": 12.5, "speed_p99_ms": None, "size_mb": 3}
    assert list(result["machine"]) == ["cpu_model", "cores", "memory_gib", "kernel", "python"]
    assert all(result["machine"].values())
    assert "no stop-watch" in result["notes"]
    assert said == ["playing"]
    json.dumps(result)


def test_only_some_figures(toy: bench.Benchmark) -> None:
    result = report(toy, Options(only="speed", quick=True))
    assert list(result["figures"]) == ["speed_per_s", "speed_p99_ms"]
    assert "quick" in result["notes"][0]


def test_no_figure_begins_so(toy: bench.Benchmark) -> None:
    with pytest.raises(BenchError, match="size_mb"):
        wanted(toy, "colour")


def test_the_command_lists_benchmarks(toy: bench.Benchmark) -> None:
    listed = CliRunner().invoke(app, ["bench"])
    assert listed.exit_code == 0
    assert "pipeline" in listed.stdout and "a toy" in listed.stdout
    as_json = json.loads(CliRunner().invoke(app, ["bench", "--json"]).stdout)
    assert {"name": "toy", "about": "a toy", "figures": list(KEYS)} in as_json


def test_the_command_prints_for_programs_and_for_people(toy: bench.Benchmark) -> None:
    for_programs = CliRunner().invoke(app, ["bench", "toy", "--json"])
    assert json.loads(for_programs.stdout)["figures"]["speed_per_s"] == 12.5
    assert "playing" in for_programs.stderr
    for_people = CliRunner().invoke(app, ["bench", "toy"])
    assert "12.5" in for_people.stdout and "not measured here" in for_people.stdout


def test_the_command_refuses_what_it_does_not_know(toy: bench.Benchmark) -> None:
    unknown = CliRunner().invoke(app, ["bench", "warp"])
    assert unknown.exit_code == 2 and "pipeline" in unknown.stderr
    no_figure = CliRunner().invoke(app, ["bench", "toy", "--only", "colour"])
    assert no_figure.exit_code == 1 and "size_mb" in no_figure.stderr
    with_file = CliRunner().invoke(app, ["bench", "toy", "--config", "some.toml"])
    assert with_file.exit_code == 2 and "--set" in with_file.stderr
