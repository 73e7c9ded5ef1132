"""Percentiles of a few hundred measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least ``percent`` of all do not exceed (nearest rank, no
    interpolation): of 100 values the 99th percentile is the second largest.

    Raises:
        ValueError: no values, or ``percent`` is not above 0 and at most 100.
    """
    if not values:
        raise ValueError("no values have no percentile")
    if not 0 < percent <= 100:
        raise ValueError(f"a percentile lies above 0 and at most at 100, not at {percent}")
    return sorted(values)[max(1, math.ceil(len(values) * percent / 100)) - 1]
