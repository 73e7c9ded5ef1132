"""A link that loses everything and says nothing: carrier stays, no error is counted."""

from __future__ import annotations

from typing import Any, Literal

from lab.faults.base import Filtered


class Blackhole(Filtered):
    """Both directions."""

    name = "blackhole"
    about = "the link drops everything, silently"

    def rules(self) -> list[tuple[str, str]]:
        return [("ingress", "drop"), ("egress", "drop")]


class OneWay(Filtered):
    """One direction only."""

    name = "one_way"
    about = "the link drops everything in one direction, silently"

    def __init__(
        self, *arguments: Any, direction: Literal["from_host", "to_host"] = "to_host"
    ) -> None:
        super().__init__(*arguments)
        self._direction = direction

    def rules(self) -> list[tuple[str, str]]:
        return [("ingress" if self._direction == "from_host" else "egress", "drop")]
