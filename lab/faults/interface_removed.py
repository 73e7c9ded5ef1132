"""A NIC that vanishes from its host, as one does that falls off its bus, and comes back."""

from __future__ import annotations

from lab.faults.base import Fault


class InterfaceRemoved(Fault):
    """The pair is deleted, and made anew with its addresses and routes."""

    name = "interface_removed"
    about = "the NIC vanishes from the host"

    def _break(self) -> None:
        self.fabric.hosts[self.host].ip(f"link del {self.interface}\n")

    def _mend(self) -> None:
        fabric = self.fabric
        self.leaf.ip(
            fabric.cable(self.host, self.rail) + "".join(fabric.plug(self.host, self.rail))
        )
        host = fabric.hosts[self.host]
        host.ip("".join(fabric.setup_nic(self.host, self.rail)))
        if fabric.topology.rate_mbps:
            self.leaf.tc(fabric.bounds(self.port))
            host.tc(fabric.bounds(self.interface))
