"""A link that came up at a lower rate."""

from __future__ import annotations

from typing import Any

from lab.fabric import bound
from lab.faults.base import Fault


class RateCut(Fault):
    """A token bucket at both ends; afterwards the topology's rate again, or none."""

    name = "rate_cut"
    about = "the link runs at a fraction of its rate"

    def __init__(self, *arguments: Any, rate_mbps: int = 100) -> None:
        super().__init__(*arguments)
        self._rate_mbps = rate_mbps

    def _break(self) -> None:
        self._set(self._rate_mbps)

    def _mend(self) -> None:
        self._set(self.fabric.topology.rate_mbps)

    def _set(self, rate_mbps: int) -> None:
        ends = ((self.leaf, self.port), (self.fabric.hosts[self.host], self.interface))
        for namespace, interface in ends:
            gone = f"qdisc del dev {interface} root\n"
            namespace.tc(bound(interface, rate_mbps) if rate_mbps else gone)
