"""Collector ``tcp`` without eBPF: decoding by example and by any bytes, and flows that are really there."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.base import Host
from collectors.netlink import attribute
from collectors.tcp import (
    Counts,
    Gauges,
    TcpCollector,
    TcpError,
    TcpSettings,
    parse_ends,
    parse_flow,
    row,
)
from schemas.event import Event
from schemas.packet import TcpFlows
from schemas.registry import decode, encode


def diag(family: int, local: bytes, remote: bytes, info: bytes = b"") -> bytes:
    head = struct.pack("!BBBB", family, 1, 0, 0) + struct.pack("!HH", 40000, 443)
    head += local.ljust(16, b"\0") + remote.ljust(16, b"\0")
    head += struct.pack("=IQ", 0, 0xABCDEF0123) + struct.pack("=IIIII", 0, 0, 0, 0, 0)
    return head + attribute(2, info)


def tcp_info(size: int = 248) -> bytes:
    info = bytearray(248)
    struct.pack_into("=I", info, 68, 1234)
    struct.pack_into("=I", info, 80, 10)
    struct.pack_into("=I", info, 100, 3)
    struct.pack_into("=QQ", info, 120, 5000, 6000)
    struct.pack_into("=I", info, 136, 77)
    struct.pack_into("=Q", info, 160, 125_000_000)
    return bytes(info[:size])


FOUR = socket.inet_pton(socket.AF_INET, "10.0.0.1"), socket.inet_pton(socket.AF_INET, "10.0.0.2")


def test_a_flow_is_read() -> None:
    body = diag(socket.AF_INET, *FOUR, tcp_info())
    assert parse_flow(body) == (
        0xABCDEF0123,
        Counts(77, 3, 5000, 6000),
        Gauges(1234, 10, 125_000_000),
    )
    assert parse_ends(body) == ("10.0.0.1:40000", "10.0.0.2:443", False)


def test_an_older_kernel_has_a_shorter_tcp_info() -> None:
    _, counts, gauges = parse_flow(diag(socket.AF_INET, *FOUR, tcp_info(104)))
    assert (counts, gauges) == (Counts(0, 3, 0, 0), Gauges(1234, 10, 0))
    _, counts, gauges = parse_flow(diag(socket.AF_INET, *FOUR))
    assert (counts, gauges) == (Counts(0, 0, 0, 0), Gauges(0, 0, 0))


@pytest.mark.parametrize(
    ("local", "remote", "shown", "loopback"),
    [
        ("2001:db8::1", "2001:db8::2", "[2001:db8::1]:40000", False),
        ("::1", "::1", "[::1]:40000", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", "10.0.0.1:40000", False),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", "127.0.0.1:40000", True),
        ("2001:db8::1", "2001:db8::1", "[2001:db8::1]:40000", True),
    ],
)
def test_ends_as_people_write_them(local: str, remote: str, shown: str, loopback: bool) -> None:
    ends = parse_ends(
        diag(
            socket.AF_INET6,
            socket.inet_pton(socket.AF_INET6, local),
            socket.inet_pton(socket.AF_INET6, remote),
        )
    )
    assert (ends.local, ends.loopback) == (shown, loopback)


@settings(max_examples=300)
@given(
    st.binary(max_size=300)
    | st.integers(0, 330).map(lambda cut: diag(socket.AF_INET, *FOUR, tcp_info())[:cut])
)
def test_no_bytes_do_harm(data: bytes) -> None:
    for read in (parse_flow, parse_ends):
        try:
            read(data)
        except TcpError:
            continue


@given(st.integers(0, 0xFFFFFFFF), st.integers(0, 0xFFFFFFFF))
def test_segment_counts_may_wrap(before: int, more: int) -> None:
    ends = parse_ends(diag(socket.AF_INET, *FOUR))
    counts = Counts((before + more) & 0xFFFFFFFF, 0, 9, 9)
    told = row(ends, Counts(before, 0, 5, 10), counts, Gauges(1, 2, 3))
    assert told[4:8] == (more, 0, 4, 0)


@contextmanager
def connected(
    listen: Callable[[], socket.socket], dial: Callable[[Any], socket.socket]
) -> Iterator[tuple[socket.socket, socket.socket]]:
    with listen() as listener, dial(listener.getsockname()) as near:
        far, _ = listener.accept()
        with far:
            yield near, far


def listener(address: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    opened.bind((address, 0))
    opened.listen(300)
    return opened


def push(near: socket.socket, far: socket.socket, size: int) -> None:
    """Send and receive so many bytes, and see them acknowledged."""

    def drain() -> None:
        left = size
        while left and (read := len(far.recv(min(left, 1 << 16)))):
            left -= read
        far.sendall(b"done")

    thread = threading.Thread(target=drain)
    thread.start()
    near.sendall(bytes(size))
    assert near.recv(4, socket.MSG_WAITALL) == b"done"
    thread.join(60)


def batches(events: Iterator[Event]) -> list[TcpFlows]:
    return [event for event in events if isinstance(event, TcpFlows)]


def rows_of(batch: TcpFlows) -> dict[tuple[str, str], dict[str, int]]:
    columns = batch.columns.model_dump()
    return {
        (columns["local"][place], columns["remote"][place]): {
            name: column[place] for name, column in columns.items()
        }
        for place in range(len(batch.columns))
    }


def at(end: tuple[Any, ...]) -> str:
    return f"[{end[0]}]:{end[1]}" if ":" in end[0] else f"{end[0]}:{end[1]}"


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_counts_are_those_of_the_interval(host: Host, address: str) -> None:
    try:
        listener(address).close()
    except OSError:
        pytest.skip(f"this machine has no address {address}")
    collector = TcpCollector(host, TcpSettings(ebpf=False, include_loopback=True))
    with connected(lambda: listener(address), lambda end: socket.create_connection(end[:2])) as (
        old,
        old_far,
    ):
        push(old, old_far, 300_000)
        assert list(collector.collect()) == []
        push(old, old_far, 50_000)
        with connected(
            lambda: listener(address), lambda end: socket.create_connection(end[:2])
        ) as (new, new_far):
            push(new, new_far, 70_000)
            (batch,) = batches(collector.collect())  # type: ignore[arg-type]
            (later,) = batches(collector.collect())  # type: ignore[arg-type]
            rows, idle = rows_of(batch), rows_of(later)
            for near, size in ((old, 50_000), (new, 70_000)):
                key = (at(near.getsockname()), at(near.getpeername()))
                # The kernel counts the SYN as a byte.
                assert size <= rows[key]["bytes_sent"] <= size + 1
                assert rows[key]["bytes_received"] == 4
                assert rows[key]["segments_sent"] > 0
                assert rows[key]["rtt_us"] > 0 and rows[key]["cwnd_segments"] > 0
                assert rows[key[::-1]]["bytes_received"] == size
                assert (idle[key]["bytes_sent"], idle[key]["bytes_received"]) == (0, 0)
                # A delayed acknowledgement may still have left.
                assert idle[key]["segments_sent"] <= 1
    collector.close()
    assert later.from_ns == batch.at_ns
    assert decode(encode(batch), "telemetry.packet") == batch


def test_flows_that_do_not_leave_the_host_are_left_out(host: Host) -> None:
    collector = TcpCollector(host, TcpSettings(ebpf=False))
    with connected(lambda: listener("127.0.0.1"), socket.create_connection):
        list(collector.collect())
        events = batches(collector.collect())  # type: ignore[arg-type]
    collector.close()
    assert not any(
        end.startswith("127.")
        for batch in events
        for end in batch.columns.local + batch.columns.remote
    )


def test_many_flows_are_split_into_batches_of_their_own_ids(namespaces: Any, host: Host) -> None:
    namespaces.address()
    far = namespaces.inside(namespaces.b, lambda: listener("10.99.0.2"))
    flows = namespaces.inside(
        namespaces.a, lambda: [socket.create_connection(far.getsockname()) for _ in range(25)]
    )
    collector = namespaces.inside(
        namespaces.a, lambda: TcpCollector(host, TcpSettings(ebpf=False, rows_max=10))
    )
    list(collector.collect())
    events = batches(collector.collect())
    collector.close()
    for opened in (*flows, far):
        opened.close()
    assert [len(batch.columns) for batch in events] == [10, 10, 5]
    assert len({batch.id for batch in events}) == 3
    seen = {end for batch in events for end in batch.columns.local}
    assert len(seen) == 25 and all(end.startswith("10.99.0.1:") for end in seen)


def test_lost_segments_are_seen_as_retransmitted(namespaces: Any, host: Host) -> None:
    namespaces.address()
    far_listener = namespaces.inside(namespaces.b, lambda: listener("10.99.0.2"))
    collector = namespaces.inside(namespaces.a, lambda: TcpCollector(host, TcpSettings(ebpf=False)))
    list(collector.collect())
    with connected(
        lambda: far_listener,
        lambda end: namespaces.inside(namespaces.a, lambda: socket.create_connection(end)),
    ) as (near, far):
        push(near, far, 100_000)
        (well,) = batches(collector.collect())
        # Data arrives but every acknowledgement is lost.
        namespaces.ip("-n", namespaces.b, "route", "add", "blackhole", "10.99.0.1/32")
        near.sendall(bytes(1000))
        retransmitted = 0
        deadline = time.monotonic() + 20
        while not retransmitted and time.monotonic() < deadline:
            (batch,) = batches(collector.collect())
            retransmitted += sum(batch.columns.segments_retransmitted)
            time.sleep(0.05)
        namespaces.ip("-n", namespaces.b, "route", "del", "blackhole", "10.99.0.1/32")
    collector.close()
    assert sum(well.columns.segments_retransmitted) == 0
    assert 100_000 <= well.columns.bytes_sent[0] <= 100_001
    assert retransmitted > 0


def test_without_root_it_sees_its_host(host: Host) -> None:
    (capability,) = TcpCollector.capabilities(host, TcpSettings(ebpf=False))
    assert capability.works
