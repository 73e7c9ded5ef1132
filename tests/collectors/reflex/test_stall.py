"""How long flows stood still."""

from __future__ import annotations

import socket
import time

from collectors.reflex.stall import Flow, Flows, StallWatch

MS = 1_000_000


def flow(cookie: int, unacknowledged: int, acknowledged_ms: int) -> Flow:
    return Flow(cookie, f"flow-{cookie}", unacknowledged, acknowledged_ms * MS)


def test_the_longest_flow_counts_from_its_last_acknowledgement_to_its_next() -> None:
    watch = StallWatch(1000 * MS, 1035 * MS)
    assert not watch.observe([flow(1, 5, 1001), flow(2, 5, 998), flow(3, 0, 200)])
    assert not watch.observe([flow(1, 0, 1040), flow(2, 9, 998)])
    assert watch.observe([flow(1, 0, 1060), flow(2, 1, 1052)])
    stall = watch.result(1060 * MS)
    assert (stall.flows, stall.recovered, stall.stall_ns) == (2, 2, 54 * MS)
    assert stall.sample == ("flow-1", "flow-2")


def test_one_that_moved_before_it_was_looked_at_counts_from_the_fault() -> None:
    watch = StallWatch(1000 * MS, 1035 * MS)
    assert watch.observe([flow(1, 0, 1041)])
    assert watch.result(1042 * MS).stall_ns == 41 * MS


def test_one_that_never_moves_again_counts_until_now() -> None:
    watch = StallWatch(1000 * MS, 1035 * MS)
    watch.observe([flow(1, 5, 1000)])
    stall = watch.result(9000 * MS)
    assert (stall.flows, stall.recovered, stall.stall_ns) == (1, 0, 8000 * MS)


def test_idle_flows_are_not_concerned() -> None:
    watch = StallWatch(1000 * MS, 1035 * MS)
    assert watch.observe([flow(1, 0, 500)])
    assert watch.result(2000 * MS).flows == 0


def test_the_kernel_names_the_flows_to_an_address_and_no_others() -> None:
    with socket.create_server(("127.0.0.7", 0)) as server:
        name = f"127.0.0.7:{server.getsockname()[1]}"
        with socket.create_connection(server.getsockname()) as client, server.accept()[0]:
            client.send(b"x")
            flows = Flows()
            now_ns = time.time_ns()
            found = flows.to(["127.0.0.7"], now_ns)
            other = flows.to(["127.0.0.9"], now_ns)
            flows.close()
            assert [each.name.partition("->")[2] for each in found].count(name) == 1
            assert all(0 <= now_ns - each.acknowledged_ns < 60_000 * MS for each in found)
    assert other == []
