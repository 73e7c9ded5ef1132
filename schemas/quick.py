"""A quick way to read batches, which are nearly all of the traffic.

pydantic takes two to three times as long over a table of 100 rows as msgspec, which checks types and
bounds while it parses. So a batch is first read by a msgspec decoder made from the model's own fields.
It only ever says yes. Whatever it does not take (a wrong type, a value over 63 bits, columns of unequal
length, unknown fields, text beyond ASCII) is read by the model, which decides and gives the reason; a
property test holds that both read the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from schemas import identity

if TYPE_CHECKING:
    from schemas.event import Batch, Columns

_T = TypeVar("_T", bound=BaseModel)
_BITS_63 = (1 << 63) - 1
_UNSIGNED = Annotated[int, msgspec.Meta(ge=0, le=_BITS_63)]
_COLUMNS: dict[Any, Any] = {
    list[int]: list[_UNSIGNED],
    list[float]: list[float],
    list[bool]: list[bool],
    list[str]: list[str],
    list[list[int]]: list[list[_UNSIGNED]],
}


class NoQuickWay(TypeError):
    """A field of the model is of a kind that is not known here."""


def reader(model: type[Batch], columns: type[Columns]) -> Callable[[bytes], Batch | None]:
    """A function that reads a batch of this model, or returns None where the model must decide.

    Raises:
        NoQuickWay: there is none for this model.
    """
    table = msgspec.defstruct(
        "Table",
        [(name, _column(name, field)) for name, field in columns.model_fields.items()],
        gc=False,
        forbid_unknown_fields=True,
    )
    message = msgspec.defstruct(
        "Message",
        [
            (
                name,
                table if name == "columns" else _field(name, field),
                msgspec.NODEFAULT if field.is_required() else field.default,
            )
            for name, field in model.model_fields.items()
        ],
        gc=False,
        kw_only=True,
        rename=lambda name: model.model_fields[name].alias,
        forbid_unknown_fields=True,
    )
    parse = msgspec.json.Decoder(message).decode
    fields_of = msgspec.structs.asdict
    rows_max = model.ROWS_MAX
    new_table, new_batch = _constructor(columns), _constructor(model)

    def read(data: bytes) -> Batch | None:
        if not data.isascii():
            return None
        try:
            found = fields_of(parse(data))
        except (msgspec.DecodeError, RecursionError):
            return None
        lists = fields_of(found["columns"])
        if len(lengths := set(map(len, lists.values()))) != 1 or lengths.pop() > rows_max:
            return None
        if found["from_ns"] > found["at_ns"]:
            return None
        found["columns"] = new_table(lists)
        return new_batch(found)

    return read


def _column(name: str, field: FieldInfo) -> Any:
    try:
        return _COLUMNS[field.annotation]
    except KeyError:
        raise NoQuickWay(f"column {name}: {field.annotation}") from None


def _field(name: str, field: FieldInfo) -> Any:
    """The msgspec type of a field of the envelope: what pydantic holds of it, neither more nor less."""
    kind = field.annotation
    if get_origin(kind) is Literal and len(get_args(kind)) == 1:
        return kind
    bounds: dict[str, Any] = {}
    for rule in field.metadata:
        if getattr(rule, "func", None) is identity.check_node:
            bounds["pattern"] = _whole(f"^(?:{identity.NODE.pattern})$")
            continue
        if hasattr(rule, "func"):
            raise NoQuickWay(f"field {name}: {rule}")
        for bound in ("ge", "gt", "le", "lt"):
            if getattr(rule, bound, None) is not None:
                bounds[bound] = getattr(rule, bound)
        if (pattern := getattr(rule, "pattern", None)) is not None:
            bounds["pattern"] = _whole(pattern)
    if kind is int and "lt" in bounds and bounds["lt"] > _BITS_63:
        bounds["le"] = bounds.pop("lt") - 1
    if kind in (int, str):
        return Annotated[kind, msgspec.Meta(**bounds)]
    raise NoQuickWay(f"field {name}: {kind}")


def _whole(pattern: str) -> str:
    """For Python a ``$`` also stands before a line end; for pydantic it does not."""
    return pattern.removesuffix("$") + r"\Z"


def _constructor(model: type[_T]) -> Callable[[dict[str, Any]], _T]:
    """A function that makes an instance of fields that were checked: ``model_construct`` without its
    search for aliases and defaults, which costs ten times as much."""
    new, put = object.__new__, object.__setattr__
    # One set for all: the models are frozen, and a copy copies it.
    given = set(model.model_fields)

    def construct(fields: dict[str, Any]) -> _T:
        instance = new(model)
        put(instance, "__dict__", fields)
        put(instance, "__pydantic_fields_set__", given)
        put(instance, "__pydantic_extra__", None)
        put(instance, "__pydantic_private__", None)
        return instance

    return construct
