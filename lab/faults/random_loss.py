"""A link that loses some of what it carries, as a dirty connector does."""

from __future__ import annotations

from typing import Any

from lab.faults.base import Filtered


class RandomLoss(Filtered):
    """A share of packets, in both directions."""

    name = "random_loss"
    about = "the link loses a part of what it carries"

    def __init__(self, *arguments: Any, percent: int = 5) -> None:
        super().__init__(*arguments)
        self._percent = percent

    def rules(self) -> list[tuple[str, str]]:
        rule = f"numgen random mod 100 < {self._percent} drop"
        return [("ingress", rule), ("egress", rule)]
