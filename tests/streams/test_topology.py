"""Which cable, which switch."""

from __future__ import annotations

from schemas.identity import content_id
from schemas.inventory import InventoryLink
from streams.topology import Topology
from tests.streams.fleet import T0, Fleet


def test_the_end_without_an_agent_is_the_switch() -> None:
    topology = Topology()
    for item in Fleet(2).inventory():
        topology.put(item)
    assert topology.link_of("nic:host-1/rail0") == "link:host-1/rail0--leaf-1/swp1"
    assert topology.switch_of("nic:host-1/rail0") == "leaf-1"
    assert topology.switch_of("nic:leaf-1/swp2") == "leaf-1"
    assert topology.behind("leaf-2") == ["nic:host-1/rail1", "nic:host-2/rail1"]
    assert len(topology.ports("leaf-2")) == 4
    assert topology.switch_of("nic:host-9/rail0") is None


def test_where_agents_run_everywhere_it_is_the_end_with_more_neighbours() -> None:
    topology = Topology()
    for item in Fleet(4).inventory():
        if isinstance(item, InventoryLink):
            topology.put(item)
    assert topology.switch_of("nic:host-1/rail0") == "leaf-1"


def test_a_cable_between_two_hosts_has_no_switch_and_can_go() -> None:
    topology = Topology()
    cable = InventoryLink(
        id=content_id("cable"),
        at_ns=T0,
        clock_error_ns=0,
        subject="link:a/eth0--b/eth0",
        end_a="nic:a/eth0",
        end_b="nic:b/eth0",
    )
    topology.put(cable)
    assert topology.switch_of("nic:a/eth0") is None
    assert topology.ends("link:a/eth0--b/eth0") == ("nic:a/eth0", "nic:b/eth0")
    topology.forget(cable)
    assert topology.link_of("nic:a/eth0") is None and topology.ends("link:a/eth0--b/eth0") == ()
