"""A host that dies: all its cables go dark at once."""

from __future__ import annotations

from lab.faults.base import Fault
from schemas import identity


class HostDead(Fault):
    """Its cables lose their carrier; what runs on it is left to whoever began it."""

    name = "host_dead"
    about = "the host loses all its links"

    @property
    def subject(self) -> str:
        return identity.node(self.host)

    def _break(self) -> None:
        self._set(False)

    def _mend(self) -> None:
        self._set(True)

    def _set(self, up: bool) -> None:
        for leaf in self.fabric.leaves:
            leaf.set_up(self.port, up)
