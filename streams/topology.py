"""How the fleet is cabled: which link a NIC is on, and which switch stands behind it.

A cable has two ends, each a NIC. A switch is told from a host by what nobody else can know of it: no
agent runs there, so the inventory has no node message of it. Where that tells nothing (an agent on
both ends, or not yet heard of either), the end with the more neighbours is the switch.
"""

from __future__ import annotations

from collections.abc import Iterable

from schemas.inventory import InventoryItem, InventoryLink, InventoryNode


class Topology:
    """Cables, by either end."""

    def __init__(self) -> None:
        self._hosts: set[str] = set()
        self._links: dict[str, tuple[str, str]] = {}
        self._link_of: dict[str, str] = {}
        self._ports: dict[str, dict[str, str]] = {}
        """Node, then its NIC: the NIC at the other end."""
        self._switches: dict[str, str | None] = {}
        """Answers of ``switch_of``, until something changes."""

    def put(self, item: InventoryItem) -> None:
        """Take in a node or a cable; what else there is tells nothing here."""
        self._switches.clear()
        if isinstance(item, InventoryNode):
            self._hosts.add(item.node)
        elif isinstance(item, InventoryLink):
            self._links[item.subject] = item.end_a, item.end_b
            for end, other in ((item.end_a, item.end_b), (item.end_b, item.end_a)):
                self._link_of[end] = item.subject
                self._ports.setdefault(_node(end), {})[end] = other

    def forget(self, item: InventoryItem) -> None:
        """It is gone."""
        self._switches.clear()
        if isinstance(item, InventoryNode):
            self._hosts.discard(item.node)
        elif isinstance(item, InventoryLink):
            for end in self._links.pop(item.subject, ()):
                if self._link_of.get(end) == item.subject:
                    del self._link_of[end]
                    ports = self._ports[_node(end)]
                    del ports[end]
                    if not ports:
                        del self._ports[_node(end)]

    def are_all(self, nodes: Iterable[str]) -> bool:
        """These are all the hosts that there are."""
        return self._hosts == set(nodes)

    def link_of(self, nic: str) -> str | None:
        """The cable that a NIC is on, None where unknown."""
        return self._link_of.get(nic)

    def ends(self, link: str) -> tuple[str, ...]:
        """The NICs at the ends of a cable; none where it is unknown."""
        return self._links.get(link, ())

    def switch_of(self, nic: str) -> str | None:
        """The switch (a node's name) that a NIC is cabled to or a port of."""
        if nic not in self._switches:
            self._switches[nic] = self._find_switch(nic)
        return self._switches[nic]

    def _find_switch(self, nic: str) -> str | None:
        link = self._link_of.get(nic)
        if link is None:
            return None
        a, b = (_node(end) for end in self._links[link])
        if (a in self._hosts) is not (b in self._hosts):
            return b if a in self._hosts else a
        more = len(self._neighbours(a)) - len(self._neighbours(b))
        return None if more == 0 else a if more > 0 else b

    def behind(self, switch: str) -> list[str]:
        """The NICs of hosts that are cabled to a switch."""
        ports = self._ports.get(switch, {})
        return [other for other in ports.values() if self.switch_of(other) == switch]

    def ports(self, switch: str) -> list[str]:
        """Both ends of every cable to a host: the switch's ports and the NICs behind them."""
        return [end for nic in self.behind(switch) for end in self._links[self._link_of[nic]]]

    def _neighbours(self, node: str) -> set[str]:
        return {_node(other) for other in self._ports[node].values()}


def _node(nic: str) -> str:
    return nic.removeprefix("nic:").partition("/")[0]
