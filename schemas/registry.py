"""Which model a message is: from bytes to a model and back.

``encode`` puts ``schema`` and ``version`` first, so that ``decode`` can find the model by looking at
the first bytes and parse the message once; a writer in another language may order its keys as it
likes and pays with a second parse.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, cast

from pydantic import ValidationError
from pydantic_core import from_json

from schemas import quick

if TYPE_CHECKING:
    from schemas.event import Batch, Columns, Event

_HEAD = re.compile(rb'\{"schema":"([a-z0-9_.]{1,64})","version":(\d{1,9})[,}]')
_LOOK_MAX_BYTES = 1024 * 1024
_M = TypeVar("_M", bound="Event")


@dataclass(frozen=True, slots=True)
class _Kind:
    """A registered model, with what a reader asks of it for every message."""

    name: str
    version: int
    topic: str
    max_bytes: int
    model: type[Event]
    quick: Callable[[bytes], Event | None] | None
    """Where there is one."""


_kinds: dict[tuple[str, int], _Kind] = {}
_heads: dict[bytes, _Kind] = {}


class Unreadable(Exception):
    """A message that is none of the contract's; the text says why, for the dead letters."""


def event(*, topic: str) -> Callable[[type[_M]], type[_M]]:
    """Register a model, under the topic that it travels on (without prefix)."""

    def register(model: type[_M]) -> type[_M]:
        fields = model.model_fields
        name, version = str(fields["schema_name"].default), int(fields["version"].default)
        if (name, version) in _kinds:
            raise ValueError(f"schema {name} version {version} is registered twice")
        reader: Callable[[bytes], Event | None] | None = None
        if "columns" in fields:
            with suppress(quick.NoQuickWay):  # The model alone reads it, at twice the price.
                reader = quick.reader(
                    cast("type[Batch]", model), cast("type[Columns]", fields["columns"].annotation)
                )
        _kinds[name, version] = _Kind(name, version, topic, model.MAX_BYTES, model, reader)
        return model

    return register


def models() -> Iterator[tuple[str, int, str, type[Event]]]:
    """All models, sorted: schema name, version, topic, model."""
    for name, version in sorted(_kinds):
        kind = _kinds[name, version]
        yield name, version, kind.topic, kind.model


def topic_of(message: Event) -> str:
    """The topic that a message travels on, without prefix."""
    return _kinds[message.schema_name, message.version].topic


def encode(message: Event) -> bytes:
    """The message as JSON, ``schema`` and ``version`` first."""
    return message.__pydantic_serializer__.to_json(message, by_alias=True, exclude_none=True)


def decode(data: bytes | None, topic: str | None = None) -> Event:
    """Read a message.

    Args:
        data: the Kafka value.
        topic: where it was found, without prefix; a model that does not belong there is refused.

    Raises:
        Unreadable: empty, too large, not JSON, unknown schema or version, wrong topic, or fields
            that do not fit.
    """
    if data is None:
        raise Unreadable("empty message")
    kind = _kind(data)
    if len(data) > kind.max_bytes:
        raise Unreadable(f"{kind.name} of {len(data)} bytes; at most {kind.max_bytes} are read")
    if topic is not None and kind.topic != topic:
        raise Unreadable(f"schema {kind.name} belongs on topic {kind.topic}, not on {topic}")
    if kind.quick is not None and (batch := kind.quick(data)) is not None:
        return batch
    try:
        return kind.model.__pydantic_validator__.validate_json(data)  # type: ignore[no-any-return]
    except ValidationError as error:
        raise Unreadable(f"{kind.name} version {kind.version}: {_reasons(error)}") from None


def _kind(data: bytes) -> _Kind:
    head = _HEAD.match(data)
    if head is None:
        return _known(*_name_anywhere(data))
    kind = _heads.get(head[0])
    if kind is None:
        kind = _heads[head[0]] = _known(head[1].decode(), int(head[2]))
    return kind


def _known(name: str, version: int) -> _Kind:
    kind = _kinds.get((name, version))
    if kind is None:
        versions = [other for schema, other in _kinds if schema == name]
        if versions:
            raise Unreadable(f"schema {name} has no version {version} here (known: {versions})")
        raise Unreadable(f"unknown schema {name!r}")
    return kind


def _name_anywhere(data: bytes) -> tuple[str, int]:
    if len(data) > _LOOK_MAX_BYTES:
        raise Unreadable(f"{len(data)} bytes without a schema at their head")
    try:
        message = from_json(data)
    except ValueError as error:
        raise Unreadable(f"not JSON: {error}") from None
    if not isinstance(message, dict):
        raise Unreadable(f"a JSON {type(message).__name__}, not an object")
    schema, version = message.get("schema"), message.get("version")
    if not isinstance(schema, str):
        raise Unreadable("no schema named")
    if type(version) is not int:
        raise Unreadable(f"schema {schema[:64]!r} without a version number")
    return schema[:64], version


def _reasons(error: ValidationError) -> str:
    """The first few faults, each with the field that it is in."""
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    shown = [
        f"{'.'.join(str(step) for step in fault['loc']) or 'message'}: {fault['msg']}"
        for fault in faults[:3]
    ]
    if len(faults) > len(shown):
        shown.append(f"and {len(faults) - len(shown)} more")
    return "; ".join(shown)
