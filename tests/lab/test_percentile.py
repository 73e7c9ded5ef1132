"""Percentiles by nearest rank."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.percentile import percentile

values = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=300)


def test_of_a_hundred() -> None:
    hundred = [float(value) for value in range(100, 0, -1)]
    assert percentile(hundred, 50) == 50
    assert percentile(hundred, 99) == 99
    assert percentile(hundred, 100) == 100
    assert percentile(hundred, 0.1) == 1


def test_of_one() -> None:
    assert percentile([7.0], 1) == percentile([7.0], 99) == 7.0


@pytest.mark.parametrize(("some", "percent"), [([], 50), ([1.0], 0), ([1.0], 101)])
def test_what_has_none(some: list[float], percent: float) -> None:
    with pytest.raises(ValueError, match="percentile"):
        percentile(some, percent)


@given(values, st.floats(0.1, 100))
def test_enough_lie_at_or_below_and_no_smaller_value_would_do(
    some: list[float], percent: float
) -> None:
    found = percentile(some, percent)
    needed = len(some) * percent / 100
    assert found in some
    assert sum(value <= found for value in some) >= needed * (1 - 1e-12)
    assert sum(value < found for value in some) < max(1, needed * (1 + 1e-12))
