"""The record that the kernel keeps of a flow, and what became of it in an interval. Pure.

The layout is that of ``struct record`` in ``flows.bpf.c``. Its histogram of round-trip times has eight
buckets an octave, so that a bucket is at most an eighth as wide as the times in it are long:
0, 1, 2 … 15, 16, 18, 20 … 30, 32, 36 … µs up to 16.7 s.
"""

from __future__ import annotations

import socket
import struct
from array import array
from collections.abc import Iterator, Sequence
from operator import sub
from typing import NamedTuple

from collectors import endpoints
from collectors.endpoints import Ends

BUCKETS = 176
_RECORD = struct.Struct(f"=5Q8I16s16sHHBBBBII{4 * BUCKETS}s")
RECORD_BYTES = _RECORD.size
_WRAP = 0xFFFFFFFF


class RecordError(Exception):
    """Bytes that are no records."""


class Record(NamedTuple):
    """A flow as the kernel has it; counts are totals. Those of 32 bits wrap."""

    cookie: int
    cgroup: int
    bytes_acked: int
    bytes_received: int
    delivery_rate_bytes_per_s: int
    segments_sent: int
    segments_retransmitted: int
    rtt_us: int
    cwnd_segments: int
    rtt_min_us: int
    """Of the samples since the last reading; more than the greatest where there is none."""
    rtt_max_us: int
    loss_episodes: int
    timeouts: int
    local_address: bytes
    remote_address: bytes
    local_port: int
    remote_port: int
    """In network order."""
    family: int
    closed: int
    adopted: int
    """It was there before it was watched."""
    callbacks: int
    """It was heard of at every event, not only read."""
    histogram: bytes
    """Counts by bucket, 32 bits each; read only where a flow has new samples."""


class Rtt(NamedTuple):
    """The round-trip times of an interval, µs; all 0 and empty where there was no sample."""

    min_us: int
    p50_us: int
    p99_us: int
    max_us: int
    from_us: list[int]
    """Lower bounds of the buckets that have samples."""
    samples: list[int]


NO_SAMPLES = Rtt(0, 0, 0, 0, [], [])


class Change(NamedTuple):
    """What a flow did in an interval."""

    segments_sent: int
    segments_retransmitted: int
    loss_episodes: int
    timeouts: int
    bytes_sent: int
    bytes_received: int
    rtt: Rtt


def records(data: bytes) -> Iterator[Record]:
    """Read what the kernel wrote.

    Raises:
        RecordError: it is cut short.
    """
    if len(data) % RECORD_BYTES:
        raise RecordError(f"{len(data)} bytes are not whole records of {RECORD_BYTES}")
    for fields in _RECORD.iter_unpack(data):
        # Between the two lies what only the kernel's side needs.
        yield Record._make((*fields[:21], fields[23]))


def lower_us(bucket: int) -> int:
    """The least time that falls into a bucket; of the one behind the last, its open end."""
    return bucket if bucket < 8 else (8 + bucket % 8) << (bucket // 8 - 1)


def change(before: Record | None, now: Record) -> Change:
    """What a flow did since an earlier record of it; without one, since it began."""
    if before is None:
        histogram: Sequence[int] = array("I", now.histogram)
        counts = (now.segments_sent, now.segments_retransmitted, now.loss_episodes, now.timeouts)
        sent, received = now.bytes_acked, now.bytes_received
    else:
        histogram = ()
        if now.histogram != before.histogram:
            histogram = tuple(map(sub, array("I", now.histogram), array("I", before.histogram)))
        counts = (
            (now.segments_sent - before.segments_sent) & _WRAP,
            (now.segments_retransmitted - before.segments_retransmitted) & _WRAP,
            (now.loss_episodes - before.loss_episodes) & _WRAP,
            (now.timeouts - before.timeouts) & _WRAP,
        )
        sent = max(0, now.bytes_acked - before.bytes_acked)
        received = max(0, now.bytes_received - before.bytes_received)
    return Change(*counts, sent, received, rtt(histogram, now.rtt_min_us, now.rtt_max_us))


def rtt(histogram: Sequence[int], min_us: int, max_us: int) -> Rtt:
    """The times of an interval from its counts by bucket and its extremes."""
    filled = [(bucket, count & _WRAP) for bucket, count in enumerate(histogram) if count]
    if not filled:
        return NO_SAMPLES
    # Extremes begin afresh with every reading, counts do not: behind one that failed they may lack some.
    least = min(max(min_us, lower_us(filled[0][0])), lower_us(filled[0][0] + 1) - 1)
    greatest = max(max_us, lower_us(filled[-1][0]), least)
    return Rtt(
        least,
        quantile_us(filled, 0.50, least, greatest),
        quantile_us(filled, 0.99, least, greatest),
        greatest,
        [lower_us(bucket) for bucket, _ in filled],
        [count for _, count in filled],
    )


def quantile_us(filled: list[tuple[int, int]], q: float, least_us: int, greatest_us: int) -> int:
    """A quantile of samples of which only the bucket is known, by linear interpolation within it.

    Args:
        filled: buckets with their counts, none of them 0, in order.
        q: which quantile, 0 to 1.
        least_us: the least sample.
        greatest_us: the greatest sample.
    """
    wanted = q * sum(count for _, count in filled)
    for bucket, count in filled:
        if wanted <= count:
            low = max(least_us, lower_us(bucket))
            high = max(low, min(greatest_us, lower_us(bucket + 1)))
            return round(low + (high - low) * wanted / count)
        wanted -= count
    return greatest_us


def ends(record: Record) -> Ends:
    """Who speaks with whom."""
    size = 4 if record.family == socket.AF_INET else 16
    return endpoints.ends(
        record.local_address[:size],
        record.local_port,
        record.remote_address[:size],
        socket.ntohs(record.remote_port),
    )
