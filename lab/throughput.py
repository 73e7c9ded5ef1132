"""How many rows a second the stream worker and the history writer take from a filled topic.

Each runs as its own process, as its command starts it, and tells by its ``/metrics`` how far it is.
What is measured lies between the first look at which it had done something and the first at which it
had done all: start-up does not count.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from bus.settings import Settings
from lab.bench import BenchError, Findings, Options
from lab.loadgen import fill, tcp_flows
from lab.processes import cpu_seconds
from lab.sandbox import Part, Sandbox, metric, wait_for

STREAM = "stream_samples_per_s_per_core"
HISTORY = "history_rows_per_s"
_NODES = 50
_ROWS = 100
_INTERVALS, _INTERVALS_QUICK = 640, 40
_RUNS, _RUNS_QUICK = 3, 1
_TOPIC = "telemetry.packet"
_TABLE = "tcp_flows"
_START_S = 90.0
_RUN_S = 180.0
_LOOK_S = 0.2
_ADMIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Pace:
    """What a process did between two looks."""

    rows: float
    wall_s: float
    cpu_s: float


def fill_topic(sandbox: Sandbox, options: Options) -> int:
    """Fill the topic; returns the number of rows."""
    intervals = _INTERVALS_QUICK if options.quick else _INTERVALS
    options.say(f"filling {_TOPIC}: {_NODES * intervals * _ROWS:,} rows in batches of {_ROWS}")
    batches = tcp_flows(_NODES, intervals, _ROWS, time.time_ns())
    return fill(sandbox.settings.kafka, batches) * _ROWS


def stream(sandbox: Sandbox, rows: int, options: Options) -> Findings:
    """Rows per CPU-second of the stream worker; median of several runs from the beginning."""
    paces: list[Pace] = []
    runs = _RUNS_QUICK if options.quick else _RUNS
    port = sandbox.settings.metrics.stream_port
    signals = 0.0
    for number in range(1, runs + 1):
        _forget(sandbox.settings)
        options.say(f"stream worker, run {number} of {runs}")
        worker = sandbox.start("stream")
        paces.append(_pace(worker, port, "evertick_stream_rows_total", {"topic": _TOPIC}, rows))
        for name in (
            "evertick_stream_deadletters_total",
            "evertick_stream_detector_failures_total",
        ):
            if failed := metric(port, name):
                raise BenchError(f"{failed:.0f} messages failed in the stream worker ({name})")
        signals = metric(port, "evertick_stream_signals_total")
        worker.stop()
    rates = [pace.rows / pace.cpu_s for pace in paces]
    walls = [pace.rows / pace.wall_s for pace in paces]
    return Findings(
        {STREAM: round(median(rates))},
        [
            f"stream: {rows:,} rows a run, {signals:.0f} signals; rows per CPU-second of each run "
            f"{_list(rates)}, per wall second {_list(walls)}"
        ],
    )


def history(sandbox: Sandbox, rows: int, options: Options) -> Findings:
    """Rows per wall second of the writer into the embedded engine, one long run."""
    from history.client import connect

    settings = sandbox.settings
    port = settings.metrics.history_port
    options.say(f"history writer, {rows:,} rows")
    engine = sandbox.start("history", "serve")
    writer = sandbox.start("history", "write")
    pace = _pace(writer, port, "evertick_history_rows_total", {"table": _TABLE}, rows)
    writer.check()
    writer.stop()
    client = connect(settings.clickhouse)
    found = int(client.query(f"SELECT count() FROM {_TABLE}").result_rows[0][0])
    client.close()
    engine.stop()
    if found != rows:
        raise BenchError(f"the history has {found:,} rows, not {rows:,}")
    return Findings(
        {HISTORY: round(pace.rows / pace.wall_s)},
        [
            f"history: {pace.rows:,.0f} rows in {pace.wall_s:.1f} s after the first insert; the "
            f"writer used {pace.cpu_s / pace.wall_s:.0%} of a core; all {found:,} rows are there"
        ],
    )


def _pace(part: Part, port: int, name: str, labels: dict[str, str], rows: int) -> Pace:
    """Watch a process from its first rows to its last."""
    looks: list[tuple[float, float, float]] = []

    def look() -> float:
        done = metric(port, name, **labels)
        looks.append((done, time.monotonic(), cpu_seconds(part.pid)))
        return done

    wait_for(look, f"first rows of {part.name}", [part], _START_S, _LOOK_S / 4)
    wait_for(lambda: look() >= rows, f"the last of {rows:,} rows", [part], _RUN_S, _LOOK_S)
    began = next(one for one in looks if one[0])
    ended = looks[-1]
    if ended[0] > rows:
        raise BenchError(f"{part.name} did {ended[0]:,.0f} rows where there are {rows:,}")
    if ended is began:
        raise BenchError(f"{part.name} did all {rows:,} rows before it could be watched")
    return Pace(ended[0] - began[0], ended[1] - began[1], ended[2] - began[2])


def _forget(settings: Settings) -> None:
    """Make the stream worker start anew: no offsets, no state, no outputs of an earlier run."""
    from streams.app import GROUP

    prefix = settings.kafka.prefix
    admin = AdminClient(settings.kafka.client("bench"))
    there = admin.list_topics(timeout=_ADMIN_S).topics
    outputs = [
        name
        for name in there
        if name.startswith(f"{prefix}state.") or name in (f"{prefix}signals", f"{prefix}incidents")
    ]
    try:
        if outputs:
            for future in admin.delete_topics(outputs, operation_timeout=_ADMIN_S).values():
                future.result(_ADMIN_S)
        groups = {one.group_id for one in admin.list_consumer_groups().result(_ADMIN_S).valid}
        if prefix + GROUP in groups:
            for future in admin.delete_consumer_groups([prefix + GROUP]).values():
                future.result(_ADMIN_S)
    except KafkaException as error:
        raise BenchError(f"cannot set the stream worker back: {error.args[0].str()}") from None


def _list(values: list[float]) -> str:
    return ", ".join(f"{value:,.0f}" for value in values)
