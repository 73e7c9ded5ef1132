"""The benchmark ``pipeline``: what the path from telemetry to incident, notice and history can do."""

from __future__ import annotations

from lab import footprint, latency, standing, throughput
from lab.bench import Findings, Options, benchmark, registered, wanted
from lab.sandbox import Sandbox

_FROM_A_TOPIC = {throughput.STREAM, throughput.HISTORY}
_OF_THE_AGENT = {footprint.CPU, footprint.RSS}


@benchmark(
    "pipeline",
    "telemetry to incident, notice and history: rates, latencies, memory, CPU",
    (
        throughput.STREAM,
        latency.P50,
        latency.P99,
        latency.WEBHOOK,
        throughput.HISTORY,
        footprint.CPU,
        footprint.RSS,
        standing.RSS,
        standing.CPU,
    ),
)
def pipeline(options: Options) -> Findings:
    """Measure one part after another, so that none disturbs another."""
    keys = set(wanted(registered()["pipeline"], options.only))
    found = Findings()
    if keys & (_FROM_A_TOPIC | _OF_THE_AGENT):
        with Sandbox(options.flags) as sandbox:
            options.say("starting Kafka")
            sandbox.kafka()
            _make_topics(sandbox)
            if keys & _FROM_A_TOPIC:
                rows = throughput.fill_topic(sandbox, options)
                if throughput.STREAM in keys:
                    found.add(throughput.stream(sandbox, rows, options))
                if throughput.HISTORY in keys:
                    found.add(throughput.history(sandbox, rows, options))
            # Last: what it sends would mingle with what the topic was filled with.
            if keys & _OF_THE_AGENT:
                found.add(footprint.agent(sandbox, options))
    if keys - _FROM_A_TOPIC - _OF_THE_AGENT:
        found.add(standing.embedded(keys, options))
    return found


def _make_topics(sandbox: Sandbox) -> None:
    from bus.topics import ensure

    ensure(sandbox.settings.kafka)
