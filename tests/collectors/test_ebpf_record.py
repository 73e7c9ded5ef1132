"""The kernel's records of flows: layout, histogram, quantiles, differences. Pure."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.ebpf.record import (
    BUCKETS,
    NO_SAMPLES,
    RECORD_BYTES,
    Record,
    RecordError,
    change,
    ends,
    lower_us,
    records,
    rtt,
)

_EMPTY = (0,) * BUCKETS
_COUNT = st.integers(0, 0xFFFFFFFF)


def packed(histogram: Sequence[int] = _EMPTY, family: int = socket.AF_INET, **fields: int) -> bytes:
    """A record as the kernel lays it out, by the offsets of ``struct record``."""
    data = bytearray(RECORD_BYTES)
    places = {"cookie": ("Q", 0), "cgroup": ("Q", 8), "acked": ("Q", 16), "received": ("Q", 24)}
    places |= {"rate": ("Q", 32), "sent": ("I", 40), "again": ("I", 44), "rtt": ("I", 48)}
    places |= {"cwnd": ("I", 52), "least": ("I", 56), "greatest": ("I", 60)}
    places |= {"episodes": ("I", 64), "timeouts": ("I", 68), "closed": ("B", 109)}
    for name, value in fields.items():
        struct.pack_into(f"={places[name][0]}", data, places[name][1], value)
    data[72:76] = socket.inet_aton("10.0.0.1")
    data[88:92] = socket.inet_aton("10.0.0.2")
    struct.pack_into("=H", data, 104, 40000)
    struct.pack_into("!H", data, 106, 443)
    struct.pack_into("=BBBB", data, 108, family, fields.get("closed", 0), 0, 1)
    struct.pack_into(f"={BUCKETS}I", data, 120, *histogram)
    return bytes(data)


def record(histogram: Sequence[int] = _EMPTY, **fields: int) -> Record:
    (found,) = records(packed(histogram, **fields))
    return found


def filled(samples: Sequence[int]) -> tuple[int, ...]:
    """The histogram of samples, by the definition of its buckets."""
    counts = [0] * BUCKETS
    for us in samples:
        counts[max(b for b in range(BUCKETS) if lower_us(b) <= us)] += 1
    return tuple(counts)


def test_a_record_is_read() -> None:
    found = record(
        cookie=7, cgroup=9, acked=1, received=2, rate=3, sent=4, again=5, rtt=6, cwnd=10,
        least=11, greatest=12, episodes=13, timeouts=14, closed=1,
    )  # fmt: skip
    assert found[:13] == (7, 9, 1, 2, 3, 4, 5, 6, 10, 11, 12, 13, 14)
    assert (found.closed, found.adopted, found.callbacks) == (1, 0, 1)
    assert ends(found) == ("10.0.0.1:40000", "10.0.0.2:443", False)


def test_several_records_follow_one_another() -> None:
    data = packed(cookie=1) + packed(cookie=2)
    assert [one.cookie for one in records(data)] == [1, 2]


@given(st.binary(max_size=RECORD_BYTES * 2))
def test_what_is_cut_short_is_refused(data: bytes) -> None:
    if len(data) % RECORD_BYTES:
        with pytest.raises(RecordError, match="whole records"):
            list(records(data))
    else:
        assert len(list(records(data))) == len(data) // RECORD_BYTES


def test_buckets_follow_without_a_gap_and_are_an_eighth_wide_at_most() -> None:
    bounds = [lower_us(bucket) for bucket in range(BUCKETS + 1)]
    assert bounds[:25] == [*range(16), 16, 18, 20, 22, 24, 26, 28, 30, 32]
    assert bounds[-1] == 1 << 24
    for low, high in pairwise(bounds[8:]):
        assert low < high <= low * 1.125


@settings(max_examples=200)
@given(st.lists(st.integers(0, (1 << 24) - 1), min_size=1, max_size=60))
def test_quantiles_are_within_a_bucket_of_the_truth(samples: list[int]) -> None:
    found = rtt(filled(samples), min(samples), max(samples))
    ordered = sorted(samples)
    assert (found.min_us, found.max_us) == (ordered[0], ordered[-1])
    for told, q in ((found.p50_us, 0.50), (found.p99_us, 0.99)):
        # The least sample that at least this share does not exceed.
        truth = ordered[max(0, -int(-q * len(ordered) // 1) - 1)]
        assert abs(told - truth) <= truth * 0.125 + 1
        assert ordered[0] <= told <= ordered[-1]
    assert sum(found.samples) == len(samples)
    assert found.from_us == sorted(found.from_us)


def test_without_samples_all_is_zero() -> None:
    assert rtt(_EMPTY, 0xFFFFFFFF, 0) == NO_SAMPLES


@given(
    st.lists(st.integers(0, 1 << 20), max_size=20), st.lists(st.integers(0, 1 << 20), max_size=20)
)
def test_an_interval_has_its_own_samples_alone(before: list[int], since: list[int]) -> None:
    earlier = record(filled(before))
    later = record(
        filled(before + since),
        least=min(since, default=0xFFFFFFFF),
        greatest=max(since, default=0),
    )
    did = change(earlier, later)
    assert sum(did.rtt.samples) == len(since)
    assert (did.rtt.min_us, did.rtt.max_us) == (min(since, default=0), max(since, default=0))


@given(_COUNT, _COUNT)
def test_counts_may_wrap(before: int, more: int) -> None:
    now = (before + more) & 0xFFFFFFFF
    did = change(
        record(sent=before, again=before, episodes=before, timeouts=before, acked=5),
        record(sent=now, again=now, episodes=now, timeouts=now, acked=9),
    )
    assert did[:4] == (more,) * 4
    assert did.bytes_sent == 4


def test_without_an_earlier_record_all_counts() -> None:
    did = change(None, record(filled([5, 5]), sent=3, acked=4, received=6, least=5, greatest=5))
    assert (did.segments_sent, did.bytes_sent, did.bytes_received) == (3, 4, 6)
    assert (did.rtt.from_us, did.rtt.samples, did.rtt.p50_us) == ([5], [2], 5)
