"""Telemetry of a fleet that does not exist: TCP flows as agents of many nodes would send them.

Each node has the same flows in every interval, as long-lived connections are, with new values each
time; about one row in a hundred has retransmits. A seed makes it the same each time.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from confluent_kafka import Producer

from bus.producer import client_config
from bus.settings import KafkaSettings
from bus.topics import name_on_broker
from lab.bench import BenchError
from schemas.event import Event
from schemas.identity import content_id
from schemas.packet import TcpFlowColumns, TcpFlows
from schemas.registry import encode, topic_of

_INTERVAL_NS = 5_000_000_000
_CLOCK_ERROR_NS = 1_000_000
_POOL = 8192
_RETRANSMITS = [0] * 495 + [1, 1, 1, 2, 4]
_FLUSH_S = 120.0
_QUEUED_MAX = 5000
_REQUESTS_IN_FLIGHT = 200


def tcp_flows(
    nodes: int, intervals: int, rows: int, end_ns: int, seed: int = 1
) -> Iterator[TcpFlows]:
    """Batches of ``rows`` flows for each node and interval of 5 s; the last interval ends at
    ``end_ns``."""
    chance = random.Random(seed)
    ends = [_ends(chance, node, nodes, rows) for node in range(nodes)]

    def pool(median: float, spread: float) -> list[int]:
        return [int(median * chance.lognormvariate(0, spread)) for _ in range(_POOL)]

    def some(values: list[int]) -> list[int]:
        """Neighbours of a pool of random values: as random, and twenty times quicker to take."""
        start = chance.randrange(_POOL - rows)
        return values[start : start + rows]

    again_pool = chance.choices(_RETRANSMITS, k=_POOL)
    rtt_us, cwnd, segments = pool(120, 0.6), pool(40, 0.7), pool(2000, 1.2)
    sent, received, rate = pool(4e6, 1.5), pool(3e6, 1.5), pool(9e8, 0.8)
    for interval in range(intervals):
        at_ns = end_ns - (intervals - 1 - interval) * _INTERVAL_NS
        for node in range(nodes):
            name = f"bench-{node:03d}"
            again = some(again_pool)
            yield TcpFlows(
                id=content_id("tcp.flows", name, at_ns),
                at_ns=at_ns,
                clock_error_ns=_CLOCK_ERROR_NS,
                node=name,
                from_ns=at_ns - _INTERVAL_NS,
                columns=TcpFlowColumns(
                    local=ends[node][0],
                    remote=ends[node][1],
                    rtt_us=some(rtt_us),
                    cwnd_segments=some(cwnd),
                    segments_sent=list(map(max, some(segments), again)),
                    segments_retransmitted=again,
                    bytes_sent=some(sent),
                    bytes_received=some(received),
                    delivery_rate_bytes_per_s=some(rate),
                ),
            )


def fill(kafka: KafkaSettings, events: Iterable[Event]) -> int:
    """Put events on their topics; returns how many.

    Each is a record batch of its own, since each would come from another node's agent: readers pay
    for that.

    Raises:
        BenchError: Kafka does not take them.
    """
    refused: list[str] = []
    client = Producer(
        {
            **client_config(kafka, "bench-fill"),
            "batch.num.messages": 1,
            # One client in place of many: it may have as many requests on their way as they would.
            "enable.idempotence": False,
            "max.in.flight.requests.per.connection": _REQUESTS_IN_FLIGHT,
        }
    )

    def arrived(error: object, _: object) -> None:
        if error is not None:
            refused.append(str(error))

    count = 0
    for event in events:
        topic = name_on_broker(kafka, topic_of(event))
        client.produce(topic, encode(event), event.key().encode(), on_delivery=arrived)
        count += 1
        while len(client) > _QUEUED_MAX:
            client.poll(0.05)
        client.poll(0)
    if client.flush(_FLUSH_S) or refused:
        raise BenchError(
            f"Kafka did not take all: {refused[0] if refused else 'no answer in time'}"
        )
    return count


def _ends(chance: random.Random, node: int, nodes: int, rows: int) -> tuple[list[str], list[str]]:
    address = f"10.20.{node // 250}.{node % 250 + 1}"
    locals_: list[str] = []
    remotes: list[str] = []
    for row in range(rows):
        peer = (node + 1 + chance.randrange(max(1, nodes - 1))) % max(2, nodes)
        locals_.append(f"{address}:{32768 + row}")
        remotes.append(f"10.20.{peer // 250}.{peer % 250 + 1}:{chance.randrange(1024, 65536)}")
    return locals_, remotes
