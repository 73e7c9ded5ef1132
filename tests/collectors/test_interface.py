"""Collector ``interface`` against real interfaces."""

from __future__ import annotations

import socket
from typing import Any

from collectors.base import Host
from collectors.interface import InterfaceCollector, InterfaceSettings
from schemas.packet import InterfaceCounters
from schemas.registry import decode, encode


def opened(namespaces: Any, host: Host, *include: str) -> InterfaceCollector:
    collector: InterfaceCollector = namespaces.inside(
        namespaces.a, lambda: InterfaceCollector(host, InterfaceSettings(include=list(include)))
    )
    return collector


def test_counters_follow_the_traffic(namespaces: Any, host: Host) -> None:
    namespaces.address()
    collector = opened(namespaces, host, "va")
    (before,) = collector.collect()
    sender = namespaces.inside(
        namespaces.a, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    )
    with sender:
        # The broadcast address needs no neighbour, so every datagram leaves.
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        for _ in range(50):
            sender.sendto(bytes(1000), ("10.99.0.255", 9))
    (after,) = collector.collect()
    collector.close()
    assert isinstance(before, InterfaceCounters) and isinstance(after, InterfaceCounters)
    assert after.columns.interface == ["va"]
    assert after.columns.carrier == [True]
    assert after.columns.speed_mbps == [10000]
    assert after.columns.tx_packets[0] - before.columns.tx_packets[0] >= 50
    assert after.columns.tx_bytes[0] - before.columns.tx_bytes[0] >= 50 * 1000
    assert (after.columns.rx_pause, after.columns.tx_pause) == ([0], [0])
    assert (before.from_ns, after.from_ns) == (before.at_ns, before.at_ns)
    assert decode(encode(after), "telemetry.packet") == after


def test_a_host_with_virtual_interfaces_only_says_nothing(namespaces: Any, host: Host) -> None:
    collector = opened(namespaces, host)
    assert list(collector.collect()) == []
    collector.close()


def test_an_interface_without_carrier_and_one_that_vanishes(namespaces: Any, host: Host) -> None:
    collector = opened(namespaces, host, "va", "lo")
    list(collector.collect())
    namespaces.peer("down")
    (down,) = collector.collect()
    namespaces.ip("-n", namespaces.a, "link", "del", "va")
    (gone,) = collector.collect()
    collector.close()
    assert isinstance(down, InterfaceCounters) and isinstance(gone, InterfaceCounters)
    row = down.columns.interface.index("va")
    assert (down.columns.carrier[row], down.columns.speed_mbps[row]) == (False, 0)
    assert gone.columns.interface == ["lo"]


def test_a_clock_that_steps_back_gives_an_interval_of_no_length(
    host: Host, monkeypatch: Any
) -> None:
    collector = InterfaceCollector(host, InterfaceSettings(include=["lo"]))
    list(collector.collect())
    monkeypatch.setattr("bus.clock.time.time_ns", lambda: 1_000_000_000)
    (batch,) = collector.collect()
    collector.close()
    assert isinstance(batch, InterfaceCounters)
    assert batch.from_ns == batch.at_ns == 1_000_000_000
