"""What is open, as rules see it while a signal is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from schemas.incident import Incident
from streams.live import Live, LiveIncidents
from streams.victims import Inventory


class Known:
    """See :class:`streams.explain.Known`."""

    def __init__(
        self,
        live: LiveIncidents,
        inventory: Inventory,
        current: Callable[[str], Live | None],
    ) -> None:
        """
        Args:
            live: the incidents that are not resolved.
            inventory: the fleet.
            current: the incident of a name as of the signal's time, None where it is over by then.
        """
        self.inventory = inventory
        self._live = live
        self._current = current

    def on(self, subject: str) -> Sequence[Incident]:
        """Those whose cause is on this subject."""
        return self._newest(self._live.at([(subject, "")]))

    def on_node(self, node: str, kinds: Sequence[str]) -> Sequence[Incident]:
        """Those of these kinds whose cause is somewhere on this node."""
        return self._newest(self._live.at([(node, kind) for kind in kinds]))

    def touching(self, place: str) -> Sequence[Incident]:
        """Those with a symptom of the network that touches this NIC or node."""
        return self._newest(self._live.touching(place))

    def blaming(self, nic: str) -> Sequence[Incident]:
        """Those whose diagnosis blames this NIC, or what it is a part of."""
        return self._newest(self._live.blaming(nic))

    def _newest(self, names: Iterable[str]) -> Sequence[Incident]:
        found = [self._current(name) for name in names]
        incidents = [live.incident for live in found if live is not None]
        return sorted(incidents, key=lambda one: (-one.opened_ns, one.incident))
