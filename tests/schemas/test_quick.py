"""The quick way to read batches takes nothing that the model would not, and reads it the same."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from schemas import quick
from schemas.event import Batch, Columns
from schemas.packet import TcpFlows
from schemas.registry import encode, models
from tests.e2e.mutation import mutants
from tests.schemas.test_messages import messages

BATCHES = [model for *_, model in models() if issubclass(model, Batch)]
READERS = {
    model: quick.reader(model, model.model_fields["columns"].annotation) for model in BATCHES
}  # type: ignore[arg-type]


def by_model(model: type[Batch], data: bytes) -> Any:
    try:
        return model.model_validate_json(data)
    except ValidationError:
        return None


@pytest.mark.parametrize("model", BATCHES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_takes_what_is_valid(model: type[Batch], data: st.DataObject) -> None:
    event = data.draw(messages(model))
    written = encode(event)
    read = READERS[model](written)
    if read is not None:
        assert read == event
        assert type(read) is model
        assert encode(read) == written
        assert read.model_copy() == event
    else:
        assert not written.isascii() or any(
            value >= 1 << 63
            for column in event.columns.__dict__.values()
            for cell in column
            for value in (cell if isinstance(cell, list) else [cell])
            if isinstance(value, int)
        )


def test_reads_mutants_as_the_model_does() -> None:
    taken = 0
    for mutant in mutants(11, 20_000, time.time_ns()):
        if mutant.value is None or len(mutant.value) > 100_000:
            continue
        for model, read in READERS.items():
            found = read(mutant.value)
            if found is not None:
                taken += 1
                assert found == by_model(model, mutant.value), mutant
    assert taken > 100


@pytest.mark.parametrize(
    "value", ["-1", "1.0", "true", "null", '"1"', str(1 << 63), str(1 << 64), "1e3", "[]", "NaN"]
)
def test_leaves_what_does_not_fit_to_the_model(value: str) -> None:
    one = {name: [1] for name in TcpFlows.model_fields["columns"].annotation.model_fields}  # type: ignore[union-attr]
    one |= {"local": ["a"], "remote": ["b"]}
    message = {
        "schema": "tcp.flows",
        "version": 1,
        "id": "0" * 32,
        "node": "n",
        "at_ns": 2,
        "from_ns": 1,
        "clock_error_ns": 0,
        "columns": one,
    }
    good = json.dumps(message)
    assert READERS[TcpFlows](good.encode()) is not None
    assert READERS[TcpFlows](good.replace('"rtt_us": [1]', f'"rtt_us": [{value}]').encode()) is None


def test_every_column_type_has_a_quick_one() -> None:
    for model in BATCHES:
        columns = model.model_fields["columns"].annotation
        assert columns is not None
        assert issubclass(columns, Columns)
