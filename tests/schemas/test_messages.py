"""Every model, by property: what is written can be read again and fits its published JSON Schema."""

from __future__ import annotations

import json
import math
import types
import typing
from enum import Enum
from typing import Annotated, Any, Literal, get_args, get_origin

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel
from pydantic.fields import FieldInfo

from evertick import contract
from schemas import identity
from schemas.event import Batch, Columns, Event
from schemas.registry import decode, encode, models, topic_of
from schemas.topics import TOPICS

MODELS = [pytest.param(model, id=f"{name}.{version}") for name, version, _, model in models()]
_WORD = st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,15}", fullmatch=True)
_SUBJECT = st.one_of(
    _WORD.map(identity.node),
    st.builds(identity.nic, _WORD, _WORD),
    st.builds(identity.gpu, _WORD, st.just("9b:00")),
    st.builds(identity.rank, _WORD, st.integers(0, 20_000)),
)
_TEXT = st.text(max_size=40)


def values_of(annotation: Any, metadata: list[Any]) -> st.SearchStrategy[Any]:
    """Values of a field's type within its constraints."""
    if get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        return values_of(annotation, [*more, *metadata])
    metadata = [
        part
        for item in metadata
        for part in (item.metadata if isinstance(item, FieldInfo) else [item])
    ]
    checks = [m.func for m in metadata if isinstance(m, AfterValidator)]
    if identity.check_subject in checks:
        return _SUBJECT
    if identity.check_node in checks:
        return _WORD
    bound = {
        name: value
        for item in metadata
        for name in ("ge", "gt", "le", "lt", "max_length", "pattern")
        if (value := getattr(item, name, None)) is not None
    }
    origin = get_origin(annotation)
    if origin is Literal:
        return st.sampled_from(get_args(annotation))
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*(values_of(option, []) for option in get_args(annotation)))
    if origin is list:
        return st.lists(values_of(get_args(annotation)[0], []), max_size=3)
    if origin is dict:
        return st.dictionaries(_WORD, values_of(get_args(annotation)[1], []), max_size=3)
    if annotation is type(None):
        return st.none()
    if annotation is bool:
        return st.booleans()
    if annotation is int:
        upper = bound["lt"] - 1 if "lt" in bound else bound.get("le", 2**63 - 1)
        return st.integers(bound.get("ge", -(2**63)), upper)
    if annotation is float:
        return st.floats(
            bound.get("ge"), bound.get("le"), allow_nan=False, allow_infinity=False
        ).filter(math.isfinite)
    if annotation is str:
        if "pattern" in bound:
            return st.from_regex(bound["pattern"].rstrip("$") + r"\Z", fullmatch=True)
        return _TEXT
    if issubclass(annotation, Enum):
        return st.sampled_from(list(annotation))
    assert issubclass(annotation, BaseModel), annotation
    return messages(annotation)


@st.composite
def messages(draw: st.DrawFn, model: type[BaseModel]) -> Any:
    """Instances of a model, with some of the fields that have a default left out."""
    if issubclass(model, Columns):
        rows = draw(st.integers(0, 3))
        counts = st.integers(0, 2**64 - 1)
        kinds = {
            list[int]: counts,
            list[bool]: st.booleans(),
            list[list[int]]: st.lists(counts, max_size=3),
        }
        return model(
            **{
                name: draw(
                    st.lists(kinds.get(field.annotation, _TEXT), min_size=rows, max_size=rows)
                )
                for name, field in model.model_fields.items()
            }
        )
    drawn = {
        name: draw(values_of(field.annotation, field.metadata))
        for name, field in model.model_fields.items()
        if field.is_required() or draw(st.booleans())
    }
    if issubclass(model, Batch):
        drawn["from_ns"], drawn["at_ns"] = sorted((drawn["from_ns"], drawn["at_ns"]))
    return model(**drawn)


_SLOW = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("model", MODELS)
def test_what_is_written_reads_back_as_the_same(model: type[Event]) -> None:
    @_SLOW
    @given(messages(model))
    def check(message: Event) -> None:
        data = encode(message)
        assert data.startswith(b'{"schema":')
        assert decode(data) == message
        assert decode(data, topic_of(message)) == message
        assert encode(decode(data)) == data

    check()


@pytest.mark.parametrize("model", MODELS)
def test_the_order_of_keys_and_unknown_fields_do_not_matter(model: type[Event]) -> None:
    @settings(_SLOW, max_examples=10)
    @given(messages(model))
    def check(message: Event) -> None:
        fields = json.loads(encode(message))
        turned = {"unheard_of": {"deep": [1]}, **dict(reversed(fields.items()))}
        assert decode(json.dumps(turned).encode()) == message

    check()


@pytest.mark.parametrize("model", MODELS)
def test_what_is_written_fits_the_json_schema(model: type[Event]) -> None:
    name = model.model_fields["schema_name"].default
    version = model.model_fields["version"].default
    schema = contract.json_schemas()[contract.file_name(name, version)]
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)

    @_SLOW
    @given(messages(model))
    def check(message: Event) -> None:
        validator.validate(json.loads(encode(message)))

    check()


@pytest.mark.parametrize("model", MODELS)
def test_every_message_has_a_key(model: type[Event]) -> None:
    @settings(_SLOW, max_examples=10)
    @given(messages(model))
    def check(message: Event) -> None:
        assert isinstance(message.key(), str)

    check()


def test_every_model_travels_on_a_topic_of_the_contract() -> None:
    assert {topic for _, _, topic, _ in models()} <= set(TOPICS)
