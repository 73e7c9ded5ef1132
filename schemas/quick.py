"""A quick way to read batches, which are nearly all of the traffic.

pydantic takes about twice as long over a table of 100 rows as msgspec, which checks types while it
parses. So a batch is first read by a msgspec decoder made from the model's own fields: the columns by
it alone, the envelope by the model as ever. It only ever says yes. Whatever it does not take (a wrong
type, a value over 63 bits, columns of unequal length, unknown fields, text beyond ASCII) is read by the model, which
decides and gives the reason; a property test holds that both read the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError, create_model

if TYPE_CHECKING:
    from schemas.event import Columns, Event

_T = TypeVar("_T", bound=BaseModel)
_UNSIGNED = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_TYPES: dict[Any, Any] = {
    list[int]: list[_UNSIGNED],
    list[float]: list[float],
    list[bool]: list[bool],
    list[str]: list[str],
}


def reader(model: type[Event], columns: type[Columns]) -> Callable[[bytes], Event | None]:
    """A function that reads a batch of this model, or returns None where the model must decide."""
    table = msgspec.defstruct(
        "Table",
        [(name, _TYPES[field.annotation]) for name, field in columns.model_fields.items()],
        gc=False,
        forbid_unknown_fields=True,
    )
    message = msgspec.defstruct(
        "Message",
        [
            (
                field.alias or name,
                table if name == "columns" else Any,
                msgspec.NODEFAULT if field.is_required() else field.default,
            )
            for name, field in model.model_fields.items()
        ],
        gc=False,
        kw_only=True,
        forbid_unknown_fields=True,
    )
    parse = msgspec.json.Decoder(message).decode
    # The model, but that its columns are taken as they are.
    envelope = create_model(model.__name__, __base__=model, columns=(Any, ...))
    validate = envelope.__pydantic_validator__.validate_python
    fields_of = msgspec.structs.asdict

    def read(data: bytes) -> Event | None:
        if not data.isascii():
            return None
        try:
            found = fields_of(parse(data))
        except (msgspec.DecodeError, RecursionError):
            return None
        lists = fields_of(found["columns"])
        if len(set(map(len, lists.values()))) > 1:
            return None
        found["columns"] = _built(columns, lists)
        try:
            checked = validate(found)
        except ValidationError:
            return None
        return _built(model, checked.__dict__)

    return read


def _built(model: type[_T], fields: dict[str, Any]) -> _T:
    """An instance of fields that were checked: ``model_construct`` without its search for aliases
    and defaults, which costs ten times as much."""
    instance = model.__new__(model)
    object.__setattr__(instance, "__dict__", fields)
    object.__setattr__(instance, "__pydantic_fields_set__", set(fields))
    object.__setattr__(instance, "__pydantic_extra__", None)
    object.__setattr__(instance, "__pydantic_private__", None)
    return instance
