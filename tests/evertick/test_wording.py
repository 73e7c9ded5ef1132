"""Times, lengths and events in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evertick import wording
from schemas.event import Batch
from schemas.packet import TcpFlowColumns, TcpFlows
from schemas.registry import models

S = 1_000_000_000


@pytest.mark.parametrize(
    ("length_ns", "words"),
    [
        (0, "0 ms"),
        (12_300_000, "12.3 ms"),
        (59 * S, "59 s"),
        (60 * S, "1 min"),
        (3599 * S, "59 min"),
        (86_399 * S, "23 h"),
        (9 * 86_400 * S, "9 d"),
    ],
)
def test_a_length_of_time(length_ns: int, words: str) -> None:
    assert wording.span(length_ns) == words


def test_how_long_ago() -> None:
    now_ns = 1_700_000_000 * S
    assert wording.ago(now_ns - 185 * S, now_ns) == "3 min ago"
    assert wording.ago(now_ns, now_ns) == "just now"
    assert wording.ago(now_ns + 90 * S, now_ns) == "in 1 min"


def test_a_time_is_exact_to_the_nanosecond() -> None:
    at_ns = 1_700_000_000_123_456_789
    assert wording.utc(at_ns) == "2023-11-14T22:13:20.123456789Z"
    assert wording.utc(at_ns, 3) == "2023-11-14T22:13:20.123Z"
    assert wording.utc(at_ns, 0) == "2023-11-14T22:13:20Z"


@given(st.integers(0, 2**63 - 1))
def test_any_time_of_the_contract_can_be_told(at_ns: int) -> None:
    assert wording.utc(at_ns)
    assert wording.ago(at_ns, 1_700_000_000 * S)


def test_a_place_on_a_time_line() -> None:
    assert wording.offset(12_000_000) == "+0.012 s"
    assert wording.offset(-1_500_000_000) == "-1.500 s"


def test_a_cost() -> None:
    assert wording.gpu_time(90.4) == "90 GPU-seconds"
    assert wording.gpu_time(9000) == "2.5 GPU-hours"


def test_a_batch_is_told_by_its_size() -> None:
    columns = {name: [] for name in TcpFlowColumns.model_fields}
    batch = TcpFlows(
        id="0" * 32,
        at_ns=1,
        from_ns=0,
        clock_error_ns=0,
        node="node-1",
        columns=TcpFlowColumns(**columns),
    )
    assert wording.line(batch) == "tcp.flows node-1 0 rows"


@pytest.mark.parametrize("model", [pytest.param(model, id=name) for name, _, _, model in models()])
def test_every_model_has_words_of_its_own(model: type) -> None:
    assert issubclass(model, Batch) or wording.line.dispatch(model) is not wording.line.dispatch(
        object
    )
