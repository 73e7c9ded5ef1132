"""A leaf switch that dies: all its ports go down at once."""

from __future__ import annotations

from lab.faults.base import Fault


class SwitchDead(Fault):
    """Every host's cable to it loses its carrier."""

    name = "switch_dead"
    about = "the leaf switch dies"

    @property
    def subject(self) -> str:
        return self.leaf_subject

    def _break(self) -> None:
        self._set(False)

    def _mend(self) -> None:
        self._set(True)

    def _set(self, up: bool) -> None:
        for host in self.fabric.topology.host_names:
            self.leaf.set_up(self.fabric.topology.port(host), up)
