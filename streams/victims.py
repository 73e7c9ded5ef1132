"""Whom a fault hurts: the inventory as a fold, and the way from a subject to jobs and ranks.

A rank is hurt by a NIC or GPU that it uses; where a job does not say which devices its ranks use, by
any on its node.
"""

from __future__ import annotations

from collections.abc import Iterable

from schemas import identity
from schemas.incident import Victims
from schemas.inventory import InventoryItem, InventoryJob, InventoryNic, RankPlace
from streams.topology import Topology


class Inventory:
    """The fleet as the messages on ``inventory`` have it."""

    def __init__(self) -> None:
        self.revision = 0
        """Grows with every change."""
        self.topology = Topology()
        self._items: dict[str, InventoryItem] = {}
        self._nics: dict[tuple[str, str], str] = {}
        self._ranks: dict[str, dict[str, list[RankPlace]]] = {}
        """Node, then job subject: the job's ranks on that node."""
        self._gpus: dict[str, int] = {}

    def put(self, item: InventoryItem) -> None:
        """Take in the newest message about a subject."""
        self.forget(item.subject)
        self._items[item.subject] = item
        self.topology.put(item)
        if isinstance(item, InventoryNic):
            for address in item.addresses:
                self._nics[item.node, address.partition("/")[0]] = item.subject
        elif isinstance(item, InventoryJob):
            for place in item.ranks:
                jobs = self._ranks.setdefault(place.node, {})
                jobs.setdefault(item.subject, []).append(place)
            named = {gpu for place in item.ranks for gpu in place.gpus}
            # One process a GPU is the rule, so a rank that names none stands for one.
            self._gpus[item.subject] = len(named) + sum(not place.gpus for place in item.ranks)

    def forget(self, subject: str) -> None:
        """A subject is gone."""
        self.revision += 1
        item = self._items.pop(subject, None)
        if item is not None:
            self.topology.forget(item)
        if isinstance(item, InventoryNic):
            for address in item.addresses:
                place = item.node, address.partition("/")[0]
                if self._nics.get(place) == subject:
                    del self._nics[place]
        elif isinstance(item, InventoryJob):
            for node in {place.node for place in item.ranks}:
                jobs = self._ranks[node]
                del jobs[subject]
                if not jobs:
                    del self._ranks[node]
            del self._gpus[subject]

    def nic_of(self, node: str, address: str) -> str | None:
        """The NIC of a node that has this address, None where unknown."""
        return self._nics.get((node, address))

    def gpus_of(self, jobs: Iterable[str]) -> int:
        """GPUs that these jobs hold, of those that still run."""
        return sum(self._gpus.get(job, 0) for job in jobs)

    def victims(self, subjects: Iterable[str], before: Victims | None = None) -> Victims:
        """Who is touched by faults on these subjects, besides those touched ``before``: a job that
        ended meanwhile was hurt all the same."""
        before = before or Victims()
        nodes, nics, gpus = set(before.nodes), set(before.nics), set(before.gpus)
        jobs, ranks = set(before.jobs), set(before.ranks)
        for subject in subjects:
            kind, node, name = identity.parts(subject)
            if kind == "job":
                jobs.add(subject)
                continue
            if kind == "rank":
                if job_name := name.rpartition("/")[0]:
                    jobs.add(identity.job(job_name))
                ranks.add(subject)
                continue
            for node_name, device in self._devices(kind, node, name, subject):
                nodes.add(identity.node(node_name))
                if device.startswith("nic:"):
                    nics.add(device)
                elif device.startswith("gpu:"):
                    gpus.add(device)
                for job, places in self._ranks.get(node_name, {}).items():
                    hurt = [place.rank for place in places if _uses(place, device)]
                    if hurt:
                        jobs.add(job)
                        job_name = job.removeprefix("job:")
                        ranks.update(identity.rank(job_name, rank) for rank in hurt)
        return Victims(
            nodes=sorted(nodes),
            nics=sorted(nics),
            gpus=sorted(gpus),
            jobs=sorted(jobs),
            ranks=sorted(ranks, key=_rank_order),
            flows=before.flows,
        )

    def _devices(self, kind: str, node: str, name: str, subject: str) -> list[tuple[str, str]]:
        """Node and device that a subject names; the device is empty for a whole node."""
        if kind == "link":
            ends = [end for end in name.split("--") if end.find("/") > 0]
            return [(end.partition("/")[0], f"nic:{end}") for end in ends]
        if kind == "path":
            return [(node, self.nic_of(node, name.partition("->")[0]) or "")]
        return [(node, "" if kind == "node" else subject)]


def _uses(place: RankPlace, device: str) -> bool:
    used = place.nics if device.startswith("nic:") else place.gpus
    return not device or not used or device in used


def _rank_order(rank: str) -> tuple[str, int, str]:
    """By number; a signal may be on a rank that has none, since a subject is only a string."""
    job, _, index = rank.rpartition("/")
    return job, int(index) if index.isascii() and index.isdigit() else -1, index
