"""Every model of the contract has its place in the history, and its columns are the table's."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from history.insert import _OWN
from history.migrate import migrations
from history.tables import BatchBlock, Blocks
from schemas.event import Batch, Event
from schemas.registry import encode
from tests.schemas.test_messages import MODELS, messages


def table_columns() -> dict[str, set[str]]:
    """Columns of each table, read from the migrations."""
    found: dict[str, set[str]] = {}
    for migration in migrations():
        for statement in migration.statements:
            if created := re.match(
                r"CREATE TABLE IF NOT EXISTS (\w+)\s*\((.*?)\n\)", statement, re.S
            ):
                found[created[1]] = set(re.findall(r"^\s+(\w+) ", created[2], re.M))
    return found


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_message_fills_the_columns_of_its_table(model: type[Event], data: st.DataObject) -> None:
    event = data.draw(messages(model))
    blocks = Blocks()
    blocks.add(event, encode(event))
    blocks.add(event, encode(event))
    rows = len(event.columns) if isinstance(event, Batch) else 1
    assert blocks.rows == 2 * rows
    for table, block in blocks.by_table():
        if isinstance(block, BatchBlock):
            assert (
                table_columns()[table]
                == set(event.columns.__dict__) | set(_OWN) & table_columns()[table]
            )
            assert block.messages == [encode(event)] * 2
        else:
            assert set(block.columns) == table_columns()[table]
            assert {len(column) for column in block.columns.values()} == {2 * rows}
