"""Whether a new copy of the contract breaks who codes against the old one.

Two kinds of people do. A *reader* breaks when a field goes away, may be missing all of a sudden, or
has another type. A *writer*, and our own reader of last week's messages, breaks when a field becomes
required, a bound is tightened or a value of an enumeration goes away. Either needs a new version of
the schema, under which the old one lives on. Free are: new optional fields, new values of an
enumeration, wider bounds, other words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from evertick.contract import ASYNCAPI_FILE

Json = Mapping[str, Any]

_UPPER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "x-max-bytes")
_LOWER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_EXACT = ("pattern", "format", "multipleOf", "uniqueItems")


def breaking(old: Mapping[str, Json], new: Mapping[str, Json]) -> list[str]:
    """What breaks between two sets of published files, each sentence beginning with the file.

    Args:
        old: documents by file name, as published.
        new: the same as they would be published now. A file that is new is free.
    """
    told = []
    for name, document in old.items():
        if name not in new:
            told.append(f"{name}: removed")
            continue
        compare = _channels if name == ASYNCAPI_FILE else breaking_changes
        told += [f"{name}: {change}" for change in compare(document, new[name])]
    return told


def breaking_changes(old: Json, new: Json) -> list[str]:
    """What breaks between two JSON Schemas of one version of one model."""
    moved = (
        [f"moved from topic {old['x-topic']} to {new.get('x-topic')}"]
        if "x-topic" in old and old["x-topic"] != new.get("x-topic")
        else []
    )
    return moved + list(_Comparison(old, new).changes(old, new, ""))


def _channels(old: Json, new: Json) -> list[str]:
    """What breaks between two AsyncAPI documents besides their messages' schemas: a channel that is
    gone, another key, another number of partitions (messages of one key would change places)."""
    told = []
    for name, channel in old["channels"].items():
        after = new["channels"].get(name)
        if after is None:
            told.append(f"channel {channel['address']} was removed")
            continue
        for what in ("address", "x-key"):
            if channel[what] != after[what]:
                told.append(f"channel {name}: {what} was {channel[what]}, is {after[what]}")
        before_n, after_n = (c["bindings"]["kafka"]["partitions"] for c in (channel, after))
        if before_n != after_n:
            told.append(f"channel {channel['address']}: {before_n} partitions became {after_n}")
        told += [
            f"channel {channel['address']} no longer carries {message}"
            for message in channel["messages"]
            if message not in after["messages"]
        ]
    return told


class _Comparison:
    """One walk through two schemas side by side."""

    def __init__(self, old: Json, new: Json) -> None:
        self._old_root = old
        self._new_root = new
        self._seen: set[tuple[str, str]] = set()

    def changes(self, old: Json, new: Json, where: str) -> Iterator[str]:
        """What breaks below one place; ``where`` is the path of the field, empty for the message."""
        refs = (str(old.get("$ref", "")), str(new.get("$ref", "")))
        if refs[0] and refs[1]:
            if refs in self._seen:
                return
            self._seen.add(refs)
        before = _alternatives(_resolved(old, self._old_root), self._old_root)
        after = _alternatives(_resolved(new, self._new_root), self._new_root)
        gone = [kind for kind in before if kind not in after]
        added = [kind for kind in after if kind not in before]
        if gone or added:
            yield f"{_at(where)} was {' or '.join(before)}, is {' or '.join(after)}"
        for kind, schema in before.items():
            if kind in after:
                yield from self._one(schema, after[kind], where)

    def _one(self, old: Json, new: Json, where: str) -> Iterator[str]:
        """What breaks between two schemas of one type."""
        yield from _values(old, new, where)
        yield from _bounds(old, new, where)
        yield from self._fields(old, new, where)
        for key, suffix in (("items", "[]"), ("additionalProperties", ".*")):
            if isinstance(old.get(key), Mapping) and isinstance(new.get(key), Mapping):
                yield from self.changes(old[key], new[key], where + suffix)
            elif new.get(key) not in (None, True) and old.get(key) in (None, True):
                yield f"{_at(where)}: {key} is now bound"
            elif old.get(key) not in (None, True) and new.get(key) in (None, True):
                yield f"{_at(where)}: {key} is no longer bound"

    def _fields(self, old: Json, new: Json, where: str) -> Iterator[str]:
        before, after = old.get("properties", {}), new.get("properties", {})
        needed_before, needed_after = set(old.get("required", ())), set(new.get("required", ()))
        for name, schema in before.items():
            path = f"{where}.{name}" if where else name
            if name not in after:
                yield f"{_at(path)} was removed"
                continue
            if name in needed_after - needed_before:
                yield f"{_at(path)} became required"
            if name in needed_before - needed_after:
                yield f"{_at(path)} may now be missing"
            yield from self.changes(schema, after[name], path)
        for name in sorted(needed_after - set(before)):
            yield f"{_at(f'{where}.{name}' if where else name)} is new and required"


def _values(old: Json, new: Json, where: str) -> Iterator[str]:
    before, after = _enumeration(old), _enumeration(new)
    if after is None:
        if before is not None:
            yield f"{_at(where)}: any value may now stand where only {before} could"
    elif before is None:
        yield f"{_at(where)}: now only one of {after}"
    elif gone := [value for value in before if value not in after]:
        yield f"{_at(where)}: no longer {', '.join(str(value) for value in gone)}"


def _bounds(old: Json, new: Json, where: str) -> Iterator[str]:
    for names, sign in ((_UPPER, 1), (_LOWER, -1)):
        for name in names:
            before, after = old.get(name), new.get(name)
            if after is not None and (before is None or sign * after < sign * before):
                yield f"{_at(where)}: {name} is now {after}, was {_or_none(before)}"
    for name in _EXACT:
        before, after = old.get(name), new.get(name)
        if after is not None and after != before:
            yield f"{_at(where)}: {name} is now {after}, was {_or_none(before)}"


def _alternatives(schema: Json, root: Json) -> dict[str, Json]:
    """The types that a value may have, with the schema of each; several of one type are counted."""
    found: dict[str, Json] = {}
    for option in schema.get("anyOf", schema.get("oneOf", [schema])):
        resolved = _resolved(option, root)
        kinds = resolved.get("type", "any")
        for kind in [kinds] if isinstance(kinds, str) else kinds:
            name, n = kind, 1
            while name in found:
                n += 1
                name = f"{kind} #{n}"
            found[name] = resolved
    return found


def _resolved(schema: Json, root: Json) -> Json:
    """The schema that a reference inside the document leads to."""
    while "$ref" in schema:
        target: Any = root
        for step in schema["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        schema = target
    return schema


def _enumeration(schema: Json) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return None if values is None else list(values)


def _at(where: str) -> str:
    return f"field {where}" if where else "the message"


def _or_none(value: Any) -> str:
    return "unbounded" if value is None else str(value)
