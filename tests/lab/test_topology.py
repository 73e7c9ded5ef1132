"""A topology is plain data: addresses, names, settings of every part of it."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.topology import HOSTS_MAX, RAILS_MAX, Topology
from schemas import identity
from schemas.registry import decode, encode

topologies = st.builds(
    Topology,
    hosts=st.integers(2, HOSTS_MAX),
    rails=st.integers(1, RAILS_MAX),
    rate_mbps=st.one_of(st.just(0), st.integers(10, 100_000)),
)


@settings(max_examples=15, deadline=None)
@given(topologies)
def test_no_address_is_given_twice_and_a_rail_is_one_network(topology: Topology) -> None:
    seen = []
    for rail in range(topology.rails):
        for version, prefix in ((4, 24), (6, 64)):
            there = [topology.rail_address(host, rail, version) for host in topology.host_names]
            networks = {ip_network(f"{one}/{prefix}", strict=False) for one in there}
            assert len(networks) == 1
            seen += there
    for host in topology.host_names:
        seen += topology.service_addresses(host)
    assert len({ip_address(one) for one in seen}) == len(seen)


@settings(max_examples=15, deadline=None)
@given(topologies)
def test_names_fit_the_kernel_and_the_contract(topology: Topology) -> None:
    for name in (*topology.rail_names, *map(topology.port, topology.host_names)):
        assert len(name) <= 15
    for name in (*topology.host_names, *topology.leaf_names):
        assert identity.check_node(name) == name
    for item in (*topology.inventory(1), topology.job("llm", 1)):
        assert decode(encode(item), "inventory") == item


@settings(max_examples=15, deadline=None)
@given(topologies)
def test_both_ends_of_a_path_are_set_up_alike(topology: Topology) -> None:
    tables = {host: topology.linkpass(host, "k" * 16) for host in topology.host_names}
    for host, table in tables.items():
        assert set(table["peers"]) == set(topology.host_names) - {host}
        for peer, there in table["peers"].items():
            assert there["address"] == tables[peer]["address"]
            back = tables[peer]["peers"][host]["paths"]
            assert [(path["local"], path["remote"]) for path in there["paths"]] == [
                (path["remote"], path["local"]) for path in back
            ]


@settings(max_examples=15, deadline=None)
@given(topologies)
def test_every_cable_joins_a_nic_and_a_port_of_a_leaf(topology: Topology) -> None:
    cables = topology.inventory(1)
    ends = [end for cable in cables for end in (cable.end_a, cable.end_b)]
    assert len(cables) == topology.hosts * topology.rails
    assert len(set(ends)) == len(ends)
    assert {identity.parts(cable.end_b).node for cable in cables} == set(topology.leaf_names)


def test_a_file_names_what_differs() -> None:
    assert Topology.from_toml("hosts = 8\nrate_mbps = 1000") == Topology(hosts=8, rate_mbps=1000)
    assert Topology.from_toml("") == Topology()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("host = 8", r"no setting 'host'; there are hosts, rails, rate_mbps"),
        ("rails = '2'", "rails = '2'; write a whole number"),
        ("rails = true", "rails = True; write a whole number"),
        ("hosts = 1", "1 hosts; a lab has 2 to"),
        ("hosts =", "Invalid value"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Topology.from_toml(text)


@pytest.mark.parametrize("wrong", [{"hosts": 1}, {"rails": 0}, {"hosts": 65}, {"rate_mbps": 1}])
def test_a_topology_that_cannot_be_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"hosts|rails|rate"):
        Topology(**wrong)


@pytest.mark.parametrize("name", ["host-0", "host-3", "host-", "1", "leaf-1", "host-x"])
def test_an_unknown_host_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"no host '{name}'; there are host-1 to host-2"):
        Topology().number(name)
