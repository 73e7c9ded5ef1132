"""Inserts blocks into ClickHouse, each under a token by which the server drops one it has had.

Rows made from events go in ClickHouse's native format. Samples go as the messages that they came as:
ClickHouse reads the JSON, takes the columns apart into rows and fills in what is the batch's own, in
one statement that follows from the table's description::

    INSERT INTO tcp_flows (at, node, …, local, …)
    SELECT fromUnixTimestamp64Nano(at_ns), node, …, local, …
    FROM input('at_ns Int64, node String, …, columns Tuple(local Array(String), …)')
    ARRAY JOIN columns.local AS local, …
    FORMAT JSONEachRow

The server must cut the same data into the same blocks each time, or it would not know them again; the
settings that could change this are fixed here.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from clickhouse_connect.datatypes.registry import get_from_name
from clickhouse_connect.driver.exceptions import ClickHouseError, DataError

from history.client import first_line
from history.tables import BatchBlock, Block, RowBlock

if TYPE_CHECKING:
    from clickhouse_connect.datatypes.base import ClickHouseType
    from clickhouse_connect.driver.client import Client

_LOW_CARDINALITY = re.compile(r"LowCardinality\((\w+)\)")
# What ClickHouse and its client say of a value that does not fit. All else passes with time or needs a
# person, and the messages are not at fault.
_DATA_CODES = {25, 26, 27, 53, 69, 70, 72, 117, 131, 190, 321, 349, 407, 469}
_DATA_ERRORS = (DataError, ValueError, TypeError, OverflowError, struct.error)
# What each column that is the batch's own is made from.
_OWN = {
    "at": "fromUnixTimestamp64Nano(at_ns)",
    "node": "node",
    "zone": "if(empty(zone), 'default', zone)",
    "clock_error_ns": "clock_error_ns",
    "interval_ns": "toUInt64(at_ns - from_ns)",
}
_HEAD = "at_ns Int64, from_ns Int64, node String, zone String, clock_error_ns UInt64"
_SAME_BLOCKS = {
    "max_threads": 1,
    "max_insert_threads": 1,
    "input_format_parallel_parsing": 0,
    "max_block_size": 65_409,
    "min_insert_block_size_rows": 1_048_449,
    "min_insert_block_size_bytes": 0,
    "input_format_skip_unknown_fields": 1,
}


class Refused(Exception):
    """ClickHouse cannot take a block for what is in it; the text is its reason."""


class Away(Exception):
    """ClickHouse cannot take anything now; the text is its reason."""


class Inserter:
    """One connection's inserts."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._types: dict[str, dict[str, str]] = {}

    def insert(self, table: str, block: Block, token: str) -> None:
        """Insert one block.

        Args:
            table: where to.
            block: what.
            token: names these data; a block under a token that was seen is dropped by the server.

        Raises:
            Refused: for what is in it.
            Away: for anything else; trying again later may do.
        """
        # What is kept bounds the partitions, see writer._outlived.
        settings: dict[str, Any] = {
            "insert_deduplication_token": token,
            "max_partitions_per_insert_block": 0,
        }
        try:
            types = self._types.get(table) or self._describe(table)
            if isinstance(block, BatchBlock):
                self._client.command(
                    batch_statement(table, types),
                    data=b"\n".join(block.messages),
                    settings=settings | _SAME_BLOCKS,
                )
            else:
                self._insert_rows(table, block, types, settings)
        except (ClickHouseError, OSError, *_DATA_ERRORS) as error:
            reason = first_line(error)
            if isinstance(error, _DATA_ERRORS) or getattr(error, "code", None) in _DATA_CODES:
                raise Refused(reason) from None
            raise Away(reason) from None

    def _insert_rows(
        self, table: str, block: RowBlock, types: Mapping[str, str], settings: dict[str, Any]
    ) -> None:
        self._client.insert(
            table,
            list(block.columns.values()),
            column_names=list(block.columns),
            column_types=[_type(types[name]) for name in block.columns],
            column_oriented=True,
            settings=settings,
        )

    def _describe(self, table: str) -> dict[str, str]:
        """Names and types of a table's columns.

        A dictionary-encoded column is sent plain and encoded by the server: the client builds its
        dictionaries in Python, at six times the price.
        """
        described = self._client.query(f"DESCRIBE TABLE {table}").result_rows
        self._types[table] = {
            name: _LOW_CARDINALITY.sub(r"\1", type_name)
            for name, type_name, default, *_ in described
            if default in ("", "DEFAULT")
        }
        return self._types[table]


def batch_statement(table: str, types: Mapping[str, str]) -> str:
    """The statement that inserts messages of batches into a table.

    Args:
        table: its name.
        types: the ClickHouse type of each of its columns.
    """
    own = [name for name in types if name in _OWN]
    columns = [name for name in types if name not in _OWN]
    arrays = ", ".join(f"{name} Array({types[name]})" for name in columns)
    joined = ", ".join(f"columns.{name} AS {name}" for name in columns)
    structure = f"{_HEAD}, columns Tuple({arrays})".replace("\\", "\\\\").replace("'", "\\'")
    return (
        f"INSERT INTO {table} ({', '.join(own + columns)})\n"
        f"SELECT {', '.join([_OWN[name] for name in own] + columns)}\n"
        f"FROM input('{structure}')\n"
        f"ARRAY JOIN {joined}\n"
        "FORMAT JSONEachRow"
    )


def _type(name: str) -> ClickHouseType:
    return get_from_name(name)
