"""What is broken in the demonstration, and in which order.

The last fault outlasts the job's patience: who does not get around it, loses the job.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lab.topology import Topology

PATIENCE_S = 8.0
"""Standstill after which the job gives up. The collective timeout of a training job is minutes; the
audience has not so long."""
_HOLD_S = 2.5
_PAUSE_S = 3.5
_OUTLAST_S = 3.0


@dataclass(frozen=True, slots=True)
class Act:
    """One fault on the rail that the traffic takes."""

    fault: str
    host: str
    """Whose cable it strikes."""
    hold_s: float = _HOLD_S
    pause_s: float = _PAUSE_S
    """From its end to whatever comes next."""
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def length_s(self) -> float:
        """How long it takes with its pause."""
        return self.hold_s + self.pause_s


def acts(topology: Topology, most: int | None = None) -> list[Act]:
    """The whole script, or its last ``most`` acts."""
    first, second = topology.host_names[:2]
    made = [
        Act("carrier_lost", first),
        Act("blackhole", second),
        Act("one_way", first, options={"direction": "to_host"}),
        Act("flap_train", second, 1.0, options={"count": 8, "down_s": 0.05, "up_s": 0.05}),
    ]
    if topology.hosts > 2:
        made.append(Act("switch_dead", first))
    made.append(Act("blackhole", first, PATIENCE_S + _OUTLAST_S))
    return made if most is None else made[-most:]


def length_s(script: list[Act]) -> float:
    """How long all of it takes."""
    return sum(act.length_s for act in script)
