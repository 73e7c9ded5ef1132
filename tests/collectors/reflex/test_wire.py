"""Heartbeats: what is packed is read again, and a proof fits one path and direction only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.reflex import wire
from collectors.reflex.wire import Heartbeat, Seal

_U64 = st.integers(0, (1 << 64) - 1)
_U32 = st.integers(0, (1 << 32) - 1)
_ENTRY = st.tuples(_U32, st.integers(0, 255), _U32, _U32)


@st.composite
def heartbeats(draw: st.DrawFn) -> Heartbeat:
    entries = draw(st.lists(_ENTRY, min_size=1, max_size=wire.PATHS_MAX))
    return Heartbeat(
        draw(_U64),
        draw(_U64),
        draw(_U64),
        draw(_U64),
        draw(_U32),
        draw(st.integers(0, 255)),
        tuple(field for entry in entries for field in entry),
        wire.pack_names([f"eth{place}" for place in range(len(entries))]),
    )


@given(heartbeats())
def test_what_is_packed_is_read(heartbeat: Heartbeat) -> None:
    body = wire.pack(heartbeat)
    assert wire.unpack(body) == heartbeat
    assert len(body) + wire.MAC_BYTES == wire.size(len(heartbeat.tags))
    assert wire.name_at(heartbeat.names, len(heartbeat.tags) - 1) == f"eth{len(heartbeat.tags) - 1}"


@given(st.binary(max_size=600))
def test_other_bytes_are_refused_or_read(data: bytes) -> None:
    found = wire.unpack(data)
    assert found is None or len(found.entries) % wire.ENTRY_FIELDS == 0


@given(heartbeats(), st.data())
def test_a_changed_byte_does_not_fit(heartbeat: Heartbeat, data: st.DataObject) -> None:
    seal = Seal(b"k" * 32, "a", "b", wire.PATHS_MAX)
    body = wire.pack(heartbeat)
    count = len(heartbeat.tags)
    at = data.draw(st.integers(0, len(body) - 1))
    other = bytes([*body[:at], body[at] ^ 1, *body[at + 1 :]])
    assert seal.macs(body, count) != seal.macs(other, count)


@pytest.mark.parametrize("count", [2, 6, 16])
def test_a_proof_fits_one_path_one_direction_one_key(count: int) -> None:
    body = b"x" * wire.size(count)
    macs = Seal(b"k" * 32, "a", "b", count).macs(body, count)
    each = {wire.mac_at(macs, slot) for slot in range(count)}
    assert len(each) == count and all(len(mac) == wire.MAC_BYTES for mac in each)
    for seal in (
        Seal(b"k" * 32, "b", "a", count),
        Seal(b"l" * 32, "a", "b", count),
        Seal(b"k" * 32, "a", "c", count),
        Seal(b"k" * 100, "a", "b", count),
    ):
        assert not each & {wire.mac_at(seal.macs(body, count), slot) for slot in range(count)}


def test_both_ends_name_a_path_alike() -> None:
    assert wire.tag("a", "10.0.0.1", "b", "10.0.0.2") == wire.tag("b", "10.0.0.2", "a", "10.0.0.1")
    assert wire.tag("a", "fd00::1", "b", "fd00::2") == wire.tag("b", "fd00:0::2", "a", "fd00:0::1")
    assert wire.tag("a", "10.0.0.1", "b", "10.0.0.2") != wire.tag("a", "10.0.0.2", "b", "10.0.0.1")


def test_hearing_is_told_apart_from_its_flags() -> None:
    assert wire.hearing(wire.HEARS | wire.LOSSY) is True
    assert wire.hearing(wire.DEAF | wire.NO_CARRIER) is False
    assert wire.hearing(wire.UNKNOWN | wire.LOSSY) is None
