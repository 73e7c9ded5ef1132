"""What every message has in common: its name and version, who says it, when it was, how sure.

Two kinds of telemetry stand on it. An :class:`Occurrence` is one thing that happened and leaves at
once, on its own. A :class:`Batch` is what was measured on one node in one interval: a small table,
one list per column. Kafka and Faust cost per message and almost nothing per sample, and columns go
to ClickHouse as they are, so samples never travel one by one.

Times are integer nanoseconds UTC. ``clock_error_ns`` is the bound on their error in force when they
were taken, in the manner of ClockBound: the true time lies within ``at_ns ± clock_error_ns``.
"""

from __future__ import annotations

from array import array
from itertools import chain
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from schemas.identity import NodeName, Subject

Nanoseconds = Annotated[int, Field(ge=0, lt=1 << 63)]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Integer = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
Positive = Annotated[int, Field(ge=1, lt=1 << 63)]
Revision = Annotated[int, Field(ge=1, lt=1 << 31)]
Identifier = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Zone = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class Event(BaseModel):
    """Base of every message. A subclass states ``schema_name`` and ``version`` as literals.

    Unknown fields are ignored, so that a newer producer may add some without breaking a reader;
    removing a field or changing its type needs a new version.
    """

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="ignore",
        # JSON has no such numbers: what was read with one could not be written again.
        allow_inf_nan=False,
        populate_by_name=True,
        use_attribute_docstrings=True,
        # Addresses and ids hardly repeat: looking each up in a cache costs a quarter of a decode.
        cache_strings="none",
    )

    MAX_BYTES: ClassVar[int] = 1024 * 1024

    schema_name: str = Field(alias="schema")
    """Which model this is, for example ``link.transition``."""
    version: int
    """Version of that model; a reader that does not know it sends the message to the dead letters."""
    id: Identifier
    """Made from the content, so that the same thing said twice has the same id."""
    zone: Zone = "default"
    """The part of the fleet that one correlator sees whole."""
    at_ns: Nanoseconds
    """When it happened, nanoseconds UTC."""
    clock_error_ns: Count
    """Bound on the error of the times in this message."""

    def key(self) -> str:
        """The Kafka key; messages of one key stay in order."""
        raise NotImplementedError(f"{type(self).__name__} has no key")


class Telemetry(Event):
    """A message from a node agent."""

    node: NodeName
    """The node that saw it."""

    def key(self) -> str:
        return self.node


class Occurrence(Telemetry):
    """One thing that happened on a node."""

    subject: Subject
    """What it happened to."""


class Columns(BaseModel):
    """A small table, one list per field, all of one length. Integers are unsigned 64-bit."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="ignore", use_attribute_docstrings=True
    )

    _integers: ClassVar[tuple[str, ...]] = ()
    _lists: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        cls._integers = tuple(
            name for name, field in cls.model_fields.items() if field.annotation == list[int]
        )
        cls._lists = tuple(
            name for name, field in cls.model_fields.items() if field.annotation == list[list[int]]
        )

    @model_validator(mode="after")
    def _a_table(self) -> Self:
        columns = self.__dict__
        if len(set(map(len, columns.values()))) > 1:
            lengths = ", ".join(f"{name} {len(column)}" for name, column in columns.items())
            raise ValueError(f"columns of unequal length: {lengths}")
        for name in self._integers:
            try:
                # The range of a whole column in one C call: five times cheaper than a bound an item.
                array("Q", columns[name])
            except OverflowError:
                raise ValueError(f"{name}: a value is negative or over 64 bits") from None
        for name in self._lists:
            try:
                array("Q", chain.from_iterable(columns[name]))
            except OverflowError:
                raise ValueError(f"{name}: a value is negative or over 64 bits") from None
        return self

    def __len__(self) -> int:
        return len(next(iter(self.__dict__.values()), ()))


class Batch(Telemetry):
    """What one source on one node measured in one interval. ``at_ns`` is the interval's end."""

    ROWS_MAX: ClassVar[int] = 10_000

    from_ns: Nanoseconds
    """Start of the interval; its end is ``at_ns``."""
    columns: Any

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.from_ns > self.at_ns:
            raise ValueError(f"from_ns {self.from_ns} is after at_ns {self.at_ns}")
        if len(self.columns) > self.ROWS_MAX:
            raise ValueError(f"{len(self.columns)} rows; at most {self.ROWS_MAX} in a batch")
        return self
