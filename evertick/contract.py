"""The contract as others read it: a JSON Schema for each model, one AsyncAPI document for all topics.

Both are made from the models in :mod:`schemas`, which stay the only definition. Copies are published
in ``schemas/published``; a subscriber codes against those. :mod:`evertick.compatibility` tells
whether a new copy breaks who coded against the old one.

Schemas describe what a reader accepts: a field with a default may be missing in what others write.
What Evertick itself writes has every field except those that are null.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema
from pydantic_core import CoreSchema

from bus.topics import storage
from schemas.event import Batch, Event
from schemas.registry import models
from schemas.topics import TOPICS, TopicSpec

VERSION = "1.0.0"
"""Of the AsyncAPI document: raised with every change of the contract (major where it breaks)."""
DIALECT = "https://json-schema.org/draft/2020-12/schema"
ASYNCAPI_FILE = "asyncapi.json"

_UINT64_MAX = (1 << 64) - 1
_KAFKA_BINDING = "0.5.0"

Json = dict[str, Any]


class _Untitled(GenerateJsonSchema):
    """Without a title for each field that only repeats its name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def generate(self, schema: CoreSchema, mode: Any = "validation") -> JsonSchemaValue:
        made = super().generate(schema, mode)
        made.pop("title", None)
        return made


def file_name(schema: str, version: int) -> str:
    """The name of the file that holds a model's JSON Schema: ``link.transition.1.json``."""
    return f"{schema}.{version}.json"


def json_schemas() -> dict[str, Json]:
    """The JSON Schema (draft 2020-12) of every model, by file name."""
    return {
        file_name(name, version): json_schema(model, name, version, topic)
        for name, version, topic, model in models()
    }


def json_schema(model: type[Event], name: str, version: int, topic: str) -> Json:
    """The JSON Schema of one model.

    ``x-topic`` and ``x-max-bytes`` are annotations: where its messages travel (without the prefix)
    and how large one may be.
    """
    made = model.model_json_schema(by_alias=True, schema_generator=_Untitled)
    for part in [made, *made.get("$defs", {}).values()]:
        _finish(part)
    _bound_columns(model, made.get("$defs", {}))
    return {
        "$schema": DIALECT,
        "$id": f"urn:evertick:schema:{name}:{version}",
        "title": f"{name} version {version}",
        "x-topic": topic,
        "x-max-bytes": model.MAX_BYTES,
        **made,
    }


def asyncapi() -> Json:
    """The AsyncAPI 3.0 document, from the viewpoint of a subscriber; it stands alone."""
    known = list(models())
    names, together = models_json_schema(
        [(model, "validation") for *_, model in known],
        by_alias=True,
        schema_generator=_Untitled,
        ref_template="#/components/schemas/{model}",
    )
    parts = together["$defs"]
    for part in parts.values():
        _finish(part)
    for *_, model in known:
        _bound_columns(model, parts)
    messages = {
        f"{name}.{version}": _message(name, version, topic, model, names[model, "validation"])
        for name, version, topic, model in known
    }
    return {
        "asyncapi": "3.0.0",
        "id": "urn:evertick:contract",
        "info": {
            "title": "Evertick",
            "version": VERSION,
            "description": (
                "What Evertick says on Kafka. Values are JSON objects that name their schema and "
                "version; ignore fields you do not know, and set aside versions you do not know. "
                "A message may arrive twice, under the same id. Times are nanoseconds UTC, right "
                "within clock_error_ns. Topic names may carry a prefix (setting kafka.prefix)."
            ),
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "kafka": {
                "host": "{bootstrap}",
                "protocol": "kafka",
                "variables": {
                    "bootstrap": {
                        "default": "127.0.0.1:9092",
                        "description": "Setting kafka.bootstrap.",
                    }
                },
            }
        },
        "channels": {
            _channel_id(spec.name): _channel(
                spec,
                [f"{name}.{version}" for name, version, topic, _ in known if topic == spec.name],
            )
            for spec in TOPICS.values()
        },
        "operations": {
            f"receive_{_channel_id(spec.name)}": {
                "action": "receive",
                "channel": {"$ref": f"#/channels/{_channel_id(spec.name)}"},
                "summary": f"Read {spec.about}.",
            }
            for spec in TOPICS.values()
        },
        "components": {"messages": messages, "schemas": parts},
    }


def documents() -> dict[str, str]:
    """All published files: their names and their text."""
    found = {**json_schemas(), ASYNCAPI_FILE: asyncapi()}
    return {
        name: json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        for name, document in found.items()
    }


def _message(name: str, version: int, topic: str, model: type[Event], payload: Json) -> Json:
    return {
        "name": name,
        "title": f"{name} version {version}",
        "summary": _one_line(model.__doc__),
        "contentType": "application/json",
        "payload": payload,
        "bindings": {
            "kafka": {
                "key": {"type": "string", "description": f"The {TOPICS[topic].key}."},
                "bindingVersion": _KAFKA_BINDING,
            }
        },
    }


def _channel(spec: TopicSpec, messages: list[str]) -> Json:
    config = storage(spec, None)
    described = f"Keyed by {spec.key}: what has one key stays in order."
    if spec.compacted:
        described += " Compacted: the newest message of a key holds, a null value deletes it."
    return {
        "address": spec.name,
        "title": spec.name,
        "x-key": spec.key,
        "summary": spec.about,
        "description": described,
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
        "bindings": {
            "kafka": {
                "topic": spec.name,
                "partitions": spec.partitions,
                "topicConfiguration": {
                    name: [value] if name == "cleanup.policy" else int(value)
                    for name, value in config.items()
                },
                "bindingVersion": _KAFKA_BINDING,
            }
        },
    }


def _channel_id(topic: str) -> str:
    """Dots would read as steps of a path in some tools."""
    return topic.replace(".", "_")


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def _finish(part: Json) -> None:
    """Say what pydantic leaves out: a message must name its schema and version."""
    properties = part.get("properties", {})
    if "schema" in properties and "version" in properties:
        part["required"] = ["schema", "version", *part.get("required", [])]
    for described in [part, *properties.values()]:
        if "description" in described:
            described["description"] = _one_line(described["description"])


def _bound_columns(model: type[Event], parts: Json) -> None:
    """The bounds of a batch's columns, which the models check a whole column at a time."""
    if not issubclass(model, Batch):
        return
    columns: FieldInfo = model.model_fields["columns"]
    assert isinstance(columns.annotation, type) and issubclass(columns.annotation, BaseModel)
    part = parts[columns.annotation.__name__]
    part["description"] = f"{_one_line(columns.annotation.__doc__)} All columns are of one length."
    for column in part["properties"].values():
        column["maxItems"] = model.ROWS_MAX
        if column["items"] == {"type": "integer"}:
            column["items"] = {"type": "integer", "minimum": 0, "maximum": _UINT64_MAX}
