"""Victims: who is hurt by a fault on a subject, and how many GPUs a job holds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.identity import content_id
from schemas.incident import Victims
from schemas.inventory import InventoryJob, InventoryNic, RankPlace
from streams.victims import Inventory


def job(name: str, *places: RankPlace) -> InventoryJob:
    return InventoryJob(
        id=content_id(name),
        at_ns=1,
        clock_error_ns=0,
        subject=f"job:{name}",
        name=name,
        ranks=list(places),
    )


def nic(interface: str, *addresses: str) -> InventoryNic:
    return InventoryNic(
        id=content_id(interface),
        at_ns=1,
        clock_error_ns=0,
        subject=f"nic:n1/{interface}",
        node="n1",
        interface=interface,
        mac="",
        physical=True,
        addresses=list(addresses),
    )


def fleet() -> Inventory:
    inventory = Inventory()
    inventory.put(
        job(
            "a",
            *(
                RankPlace(
                    rank=rank,
                    node="n1",
                    gpus=[f"gpu:n1/0000:0{rank}:00.0"],
                    nics=[f"nic:n1/eth{rank % 2}"],
                )
                for rank in range(4)
            ),
        )
    )
    inventory.put(job("b", RankPlace(rank=10, node="n1"), RankPlace(rank=2, node="n2")))
    inventory.put(nic("eth0", "10.0.0.1/24", "fe80::1/64"))
    return inventory


def test_a_nic_hurts_ranks_that_use_it_and_those_that_do_not_say() -> None:
    victims = fleet().victims(["nic:n1/eth0"])
    assert victims.nodes == ["node:n1"] and victims.nics == ["nic:n1/eth0"]
    assert victims.jobs == ["job:a", "job:b"]
    assert victims.ranks == ["rank:a/0", "rank:a/2", "rank:b/10"]


def test_a_gpu_a_node_and_a_cable() -> None:
    inventory = fleet()
    assert inventory.victims(["gpu:n1/0000:03:00.0"]).ranks == ["rank:a/3", "rank:b/10"]
    assert inventory.victims(["gpu:n1/0000:03:00.0"]).gpus == ["gpu:n1/0000:03:00.0"]
    assert len(inventory.victims(["node:n1"]).ranks) == 5
    cable = inventory.victims(["link:leaf-1/swp3--n1/eth1"])
    assert cable.nics == ["nic:leaf-1/swp3", "nic:n1/eth1"]
    assert cable.ranks == ["rank:a/1", "rank:a/3", "rank:b/10"]


def test_a_path_goes_by_the_nic_that_has_its_address() -> None:
    inventory = fleet()
    assert inventory.victims(["path:n1/10.0.0.1->10.0.0.2"]).nics == ["nic:n1/eth0"]
    assert inventory.victims(["path:n1/fe80::1->fe80::2"]).ranks[:2] == ["rank:a/0", "rank:a/2"]
    unknown = inventory.victims(["path:n1/10.9.9.9->10.0.0.2"])
    assert unknown.nics == [] and len(unknown.ranks) == 5


def test_jobs_and_ranks_themselves() -> None:
    victims = fleet().victims(["job:x", "rank:y/7"])
    assert victims.jobs == ["job:x", "job:y"] and victims.ranks == ["rank:y/7"]


def test_who_was_hurt_stays_hurt() -> None:
    inventory = fleet()
    before = inventory.victims(["nic:n1/eth0"])
    inventory.forget("job:a")
    assert inventory.victims(["nic:n1/eth0"], before) == before
    assert inventory.victims(["nic:n1/eth0"]).jobs == ["job:b"]


def test_gpus_of_a_job() -> None:
    inventory = fleet()
    assert inventory.gpus_of(["job:a"]) == 4
    assert inventory.gpus_of(["job:b"]) == 2
    assert inventory.gpus_of(["job:a", "job:gone"]) == 4


def test_an_address_moves() -> None:
    inventory = fleet()
    inventory.put(nic("eth1", "10.0.0.1/24"))
    inventory.put(nic("eth0"))
    assert inventory.nic_of("n1", "10.0.0.1") == "nic:n1/eth1"
    inventory.forget("nic:n1/eth1")
    assert inventory.nic_of("n1", "10.0.0.1") is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.booleans()), max_size=30))
def test_the_fold_forgets_what_it_took_in(changes: list[tuple[str, int, bool]]) -> None:
    inventory, there = Inventory(), {}
    for name, ranks, gone in changes:
        if gone:
            inventory.forget(f"job:{name}")
            there.pop(name, None)
        else:
            inventory.put(job(name, *(RankPlace(rank=i, node="n1") for i in range(ranks))))
            there[name] = ranks
    victims = inventory.victims(["node:n1"])
    assert victims.jobs == sorted(f"job:{name}" for name, ranks in there.items() if ranks)
    assert inventory.gpus_of(f"job:{name}" for name in "abc") == sum(there.values())
    for name in there:
        inventory.forget(f"job:{name}")
    assert inventory.victims(["node:n1"]) == Victims(nodes=["node:n1"])
