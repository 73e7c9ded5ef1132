"""A cable pulled: both ends lose their carrier."""

from __future__ import annotations

from lab.faults.base import Fault


class CarrierLost(Fault):
    """The leaf's port goes down, so the host's NIC loses its carrier."""

    name = "carrier_lost"
    about = "the cable is pulled"

    def _break(self) -> None:
        self.leaf.set_up(self.port, False)

    def _mend(self) -> None:
        self.leaf.set_up(self.port, True)
