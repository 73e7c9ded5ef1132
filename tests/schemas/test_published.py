"""The published copies of the contract: in step with the models, and no change that breaks readers."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertick import contract
from evertick.commands.schema import published
from evertick.compatibility import breaking, breaking_changes
from schemas.topics import TOPICS

ROOT = Path(__file__).parents[2]
COPIES = ROOT / "schemas" / "published"
HINT = "the models changed: run `evertick schema export schemas/published`"


def test_the_published_copies_are_those_of_the_models() -> None:
    there = {file.name: file.read_text(encoding="utf-8") for file in COPIES.glob("*.json")}
    now = contract.documents()
    assert sorted(there) == sorted(now), HINT
    assert [name for name in now if there[name] != now[name]] == [], HINT


def test_no_change_breaks_who_codes_against_the_published_copies() -> None:
    now = {name: json.loads(text) for name, text in contract.documents().items()}
    assert breaking(published(COPIES), now) == [], "give the model a new version instead"


def test_the_asyncapi_document_is_one() -> None:
    official = json.loads(
        (Path(__file__).parent / "data" / "asyncapi-3.0.0.json").read_text(encoding="utf-8")
    )
    jsonschema.Draft7Validator(official).validate(contract.asyncapi())
    for spoilt in ({"asyncapi": "2.6.0"}, {"channels": []}, {"operations": {"a": {"action": "x"}}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft7Validator(official).validate({**contract.asyncapi(), **spoilt})


def test_the_asyncapi_document_names_every_topic_and_message_and_nothing_that_is_not_there() -> (
    None
):
    document = contract.asyncapi()
    assert {channel["address"] for channel in document["channels"].values()} == set(TOPICS)
    carried = [name for c in document["channels"].values() for name in c["messages"]]
    assert sorted(carried) == sorted(document["components"]["messages"])
    assert {f"{name}.json" for name in carried} | {contract.ASYNCAPI_FILE} == set(
        contract.documents()
    )
    for reference in references(document):
        target: Any = document
        for step in reference.removeprefix("#/").split("/"):
            target = target[step]


def references(part: Any) -> Iterator[str]:
    """All references in a document."""
    if isinstance(part, dict):
        for key, value in part.items():
            if key == "$ref":
                yield value
            else:
                yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


def test_ids_claim_no_host() -> None:
    for name, schema in contract.json_schemas().items():
        assert schema["$id"] == f"urn:evertick:schema:{name[:-7]}:{name[-6]}"


SIGNAL = contract.json_schemas()["signal.1.json"]


def _set(path: str, value: Any) -> dict[str, Any]:
    """A copy of the schema of signals with one thing changed; None takes it away."""
    made = copy.deepcopy(SIGNAL)
    *steps, last = path.split("/")
    place: Any = made
    for step in steps:
        place = place[step]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return made


def test_the_same_breaks_nothing() -> None:
    for schema in contract.json_schemas().values():
        assert breaking_changes(schema, copy.deepcopy(schema)) == []


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("properties/summary", None, "field summary was removed"),
        ("properties/detector_version/type", "string", "detector_version was integer, is string"),
        ("properties/detector_version/type", ["integer", "null"], "is integer or null"),
        ("properties/summary/maxLength", 10, "field summary: maxLength is now 10, was 512"),
        ("properties/kind/pattern", "^a$", r"field kind: pattern is now \^a\$"),
        ("properties/subject/maxLength", 10, "subject: maxLength is now 10, was 512"),
        ("properties/detector/maxLength", 9, "detector: maxLength is now 9, was unbounded"),
        ("properties/evidence/maxItems", 3, "field evidence: maxItems is now 3, was 64"),
        ("properties/at_ns/minimum", 5, "field at_ns: minimum is now 5, was 0"),
        ("properties/evidence/items", {"type": "string"}, r"field evidence\[\] was object, is str"),
        ("$defs/Evidence/properties/unit", None, r"field evidence\[\].unit was removed"),
        ("$defs/Evidence/required", ["at_ns", "what", "unit"], "unit became required"),
        ("$defs/Severity/enum", ["info", "critical"], "field severity: no longer warning"),
        ("$defs/Severity/enum", None, "field severity: any value may now stand"),
        ("properties/detector/enum", ["a"], "field detector: now only one of"),
        ("properties/attributes/additionalProperties", None, "attributes: .* no longer bound"),
        ("properties/extra", {"type": "string"}, None),
        ("required", [*SIGNAL["required"], "advice"], "field advice became required"),
        ("required", [*SIGNAL["required"], "more"], "field more is new and required"),
        ("required", SIGNAL["required"][:-1], "may now be missing"),
        ("x-topic", "incidents", "moved from topic signals to incidents"),
        ("x-max-bytes", 10, "the message: x-max-bytes is now 10"),
        ("$defs/Severity/enum", ["info", "warning", "critical", "fatal"], None),
        ("properties/summary/maxLength", 1024, None),
        ("properties/kind/pattern", None, None),
        ("properties/summary/description", "Other words.", None),
        ("$defs/Evidence/properties/more", {"type": "integer"}, None),
    ],
)
def test_what_breaks_and_what_does_not(path: str, value: Any, told: str | None) -> None:
    changes = breaking_changes(SIGNAL, _set(path, value))
    if told is None:
        assert changes == []
    else:
        assert len(changes) == 1
        assert re.search(told, changes[0]), changes[0]


def test_a_removed_model_and_a_changed_channel_break() -> None:
    old = {"a.1.json": {"x-topic": "signals"}, contract.ASYNCAPI_FILE: contract.asyncapi()}
    changed = contract.asyncapi()
    del changed["channels"]["actions"]
    changed["channels"]["signals"]["x-key"] = "node"
    changed["channels"]["signals"]["messages"] = {}
    changed["channels"]["incidents"]["bindings"]["kafka"]["partitions"] = 8
    assert breaking(old, {contract.ASYNCAPI_FILE: changed}) == [
        "a.1.json: removed",
        "asyncapi.json: channel signals: x-key was zone, is node",
        "asyncapi.json: channel signals no longer carries signal.1",
        "asyncapi.json: channel incidents: 4 partitions became 8",
        "asyncapi.json: channel actions was removed",
    ]
    assert breaking({}, old) == []


_LEAF = st.one_of(
    st.builds(
        lambda low, span: {"type": "integer", "minimum": low, "maximum": low + span},
        st.integers(-5, 5),
        st.integers(0, 5),
    ),
    st.builds(lambda most: {"type": "string", "maxLength": most}, st.integers(0, 4)),
    st.just({"type": "boolean"}),
    st.sets(st.sampled_from("abcd"), min_size=1).map(
        lambda values: {"type": "string", "enum": sorted(values)}
    ),
)


@st.composite
def schemas_of(draw: st.DrawFn, depth: int = 2) -> dict[str, Any]:
    """Small schemas of objects."""
    inner = _LEAF if depth == 0 else st.one_of(_LEAF, schemas_of(depth - 1), lists_of(depth - 1))
    properties = draw(st.dictionaries(st.sampled_from("pqrs"), inner, max_size=3))
    required = draw(st.sets(st.sampled_from(sorted(properties)))) if properties else set()
    return {"type": "object", "properties": properties, "required": sorted(required)}


def lists_of(depth: int) -> st.SearchStrategy[dict[str, Any]]:
    """Lists of objects."""
    return schemas_of(depth).map(lambda items: {"type": "array", "items": items})


def values_of(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """What fits a small schema."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema["type"]:
        case "integer":
            return st.integers(schema["minimum"], schema["maximum"])
        case "string":
            return st.text(max_size=schema["maxLength"])
        case "boolean":
            return st.booleans()
        case "array":
            return st.lists(values_of(schema["items"]), max_size=2)
    fields = {name: values_of(field) for name, field in schema["properties"].items()}
    needed = set(schema["required"])
    return st.fixed_dictionaries(
        {name: field for name, field in fields.items() if name in needed},
        optional={name: field for name, field in fields.items() if name not in needed},
    )


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_where_nothing_breaks_old_messages_still_fit(data: st.DataObject) -> None:
    """The promise to writers and to last week's messages; and the promise to readers: no field that
    was always there is gone."""
    old, new = data.draw(schemas_of()), data.draw(schemas_of())
    if data.draw(st.booleans()):
        new = {**old, "properties": {**new["properties"], **old["properties"]}}
    if breaking_changes(old, new):
        return
    jsonschema.Draft202012Validator(new).validate(data.draw(values_of(old)))
    assert set(old["required"]) <= set(new["required"])
    assert set(old["properties"]) <= set(new["properties"])


@settings(max_examples=100, deadline=None)
@given(schemas_of())
def test_a_schema_does_not_break_itself(schema: dict[str, Any]) -> None:
    assert breaking_changes(schema, copy.deepcopy(schema)) == []
