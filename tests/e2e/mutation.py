"""Messages as no honest producer writes them: valid ones of every model, spoilt in a seeded way.

Hypothesis builds the valid ones (the strategies of ``tests/schemas/test_messages.py``); a few fields
are then made lifelike (few nodes, times about now), so that what stays valid reaches deep into the
detectors and the correlator. A mutation spoils a message as JSON or as bytes. One seed and one time
give one sequence.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, given, seed, settings

from schemas.event import Event
from schemas.registry import encode, models
from schemas.topics import TOPICS
from tests.schemas.test_messages import messages

SEED = 7
_SECOND_NS = 1_000_000_000
_YEAR_NS = 365 * 86_400 * _SECOND_NS
_LARGE_SHARE = 0.0003
_BEFORE = ("from_ns", "since_ns", "first_ns", "raised_ns", "opened_ns", "started_ns")
_INTEGERS = (0, -1, 1 << 31, 1 << 32, 1 << 53, (1 << 63) - 1, 1 << 63, 1 << 64, -(1 << 63), 10**30)
_NUMBERS = (*_INTEGERS, 0.5, -0.0, 1e308, float("nan"), float("inf"), float("-inf"))
_WORDS = (
    "", " ", "\0", "n/1", "../../etc", "a\nb", "é" * 300, "x" * 5000, "nic:", "nic:n1/eth 0",
    "gpu:n1", "job:", "node:n1/eth0", "\ud800", "a\udfffb", "'; DROP TABLE signals", "{}", "null",
)  # fmt: skip
_VALUES = (None, True, {}, [], [[]], {"a": {"b": [1]}}, *_NUMBERS, *_WORDS)
_BYTES = (
    b"",
    b"null",
    b"[]",
    b"{}",
    b'"x"',
    b"NaN",
    b"\xef\xbb\xbf{}",
    b"\0" * 100,
    b"[" * 100_000,
)


class Mutant(NamedTuple):
    """One message to send, and which mutation made it."""

    topic: str
    key: bytes
    value: bytes | None
    how: str


def examples(at_seed: int, each: int) -> dict[str, list[Event]]:
    """Valid messages of every model, by schema name."""
    return {name: _built(model, at_seed, each) for name, _, _, model in models()}


def _built(model: type[Event], at_seed: int, count: int) -> list[Event]:
    found: list[Event] = []

    @seed(at_seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(messages(model))
    def collect(message: Event) -> None:
        found.append(message)

    collect()
    return found


def mutants(at_seed: int, count: int, now_ns: int) -> Iterator[Mutant]:
    """That many messages over all topics; about one in six is as valid as when it was built."""
    rng = random.Random(at_seed)
    found = examples(at_seed, 25)
    pool = [
        (topic, [(json.loads(encode(message)), message.key()) for message in found[name]])
        for name, _, topic, _ in models()
    ]
    for _ in range(count):
        topic, valid = rng.choice(pool)
        built, key = rng.choice(valid)
        fields = json.loads(json.dumps(built))
        if rng.random() < 0.85:
            _lifelike(fields, rng, now_ns)
            key = _key(topic, fields)
        if rng.random() < 0.05:
            topic = rng.choice(list(TOPICS))
        if rng.random() < 0.02:
            key = rng.choice(("", "elsewhere", "x" * 3000, "\0"))
        how = rng.choice(_MUTATIONS) if rng.random() >= _LARGE_SHARE else _large
        value = how(fields, rng)
        yield Mutant(topic, key.encode(errors="replace"), value, how.__name__.strip("_"))


def _lifelike(fields: dict[str, Any], rng: random.Random, now_ns: int) -> None:
    fields["at_ns"] = at_ns = now_ns - rng.randrange(60 * _SECOND_NS)
    fields["zone"] = rng.choice(("default", "default", "default", "hall-2"))
    for name in _BEFORE:
        if name in fields:
            fields[name] = at_ns - rng.randrange(10 * _SECOND_NS)
    node = f"n{rng.randrange(30)}"
    if "node" in fields:
        fields["node"] = node
    if "subject" in fields and rng.random() < 0.9:
        place = (
            f"eth{rng.randrange(3)}" if "carrier" in fields else f"0000:9b:00.{rng.randrange(3)}"
        )
        fields["subject"] = f"{'nic' if 'carrier' in fields else 'gpu'}:{node}/{place}"
    if "code" in fields:
        fields["code"] = rng.choice((13, 31, 45, 48, 63, 74, 79, 94, 95, 119, 154))
    for symptom in fields.get("symptoms", ()):
        symptom["raised_ns"] = symptom["updated_ns"] = at_ns


def _key(topic: str, fields: dict[str, Any]) -> str:
    names = {"signals": "zone", "incidents": "incident", "actions": "target", "outcomes": "target",
             "inventory": "subject", "deadletter": "topic"}  # fmt: skip
    return str(fields[names.get(topic, "node")])


def _dump(fields: Any) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _place(fields: dict[str, Any], rng: random.Random) -> tuple[Any, Any]:
    """A random place in the tree of a message: a container and a key or index in it."""
    container: Any = fields
    while True:
        where = rng.choice(list(container)) if isinstance(container, dict) else None
        where = rng.randrange(len(container)) if where is None else where
        inside = container[where]
        if not isinstance(inside, dict | list) or not inside or rng.random() < 0.3:
            return container, where
        container = inside


def _untouched(fields: dict[str, Any], rng: random.Random) -> bytes:
    return _dump(fields)


def _drop(fields: dict[str, Any], rng: random.Random) -> bytes:
    container, where = _place(fields, rng)
    del container[where]
    return _dump(fields)


def _rename(fields: dict[str, Any], rng: random.Random) -> bytes:
    name = rng.choice(list(fields))
    fields[rng.choice((name.upper(), name + "_", "", "schema", "id"))] = fields.pop(name)
    return _dump(fields)


def _retype(fields: dict[str, Any], rng: random.Random) -> bytes:
    container, where = _place(fields, rng)
    container[where] = rng.choice(_VALUES)
    return _dump(fields)


def _number(fields: dict[str, Any], rng: random.Random) -> bytes:
    """Another number where a number is: much of it stays valid."""
    for _ in range(20):
        container, where = _place(fields, rng)
        if type(container[where]) in (int, float):
            container[where] = rng.choice(_NUMBERS)
            break
    return _dump(fields)


def _word(fields: dict[str, Any], rng: random.Random) -> bytes:
    for _ in range(20):
        container, where = _place(fields, rng)
        if isinstance(container[where], str) and where not in ("schema", "version"):
            container[where] = rng.choice(_WORDS)
            break
    return _dump(fields)


def _time(fields: dict[str, Any], rng: random.Random) -> bytes:
    far = (0, 1, 10**9, _YEAR_NS, 30 * _YEAR_NS, 136 * _YEAR_NS, 290 * _YEAR_NS, (1 << 63) - 1)
    stamps = [name for name in fields if name.endswith("_ns")]
    fields[rng.choice(stamps)] = rng.choice((*far, rng.randrange(1 << 63)))
    return _dump(fields)


def _every_time(fields: dict[str, Any], rng: random.Random) -> bytes:
    """All times of a message moved together, so that it stays a valid one."""
    at_ns = rng.choice((rng.randrange(1 << 63), rng.randrange(60 * _YEAR_NS)))
    for name in ("at_ns", *_BEFORE):
        if name in fields:
            fields[name] = at_ns
    return _dump(fields)


def _identity(fields: dict[str, Any], rng: random.Random) -> bytes:
    names = [n for n in ("id", "node", "subject", "zone", "episode", "incident") if n in fields]
    fields[rng.choice(names)] = rng.choice(_WORDS)
    return _dump(fields)


def _schema(fields: dict[str, Any], rng: random.Random) -> bytes:
    fields["schema"] = rng.choice(
        ("", "no.such", "x" * 10_000, *(name for name, *_ in models()), 5, None, "\ud800")
    )
    return _dump(fields)


def _version(fields: dict[str, Any], rng: random.Random) -> bytes:
    fields["version"] = rng.choice((0, 2, 99, -1, 1.0, "1", True, None, 10**30, 10**4000))
    return _dump(fields)


def _long_integer(fields: dict[str, Any], rng: random.Random) -> bytes:
    """An integer of more digits than Python turns into text."""
    name = rng.choice(("version", "at_ns", "clock_error_ns", "extra"))
    fields[name] = 0
    return _dump(fields).replace(f'"{name}":0'.encode(), f'"{name}":'.encode() + b"9" * 5000)


def _unequal(fields: dict[str, Any], rng: random.Random) -> bytes:
    columns = fields.setdefault("columns", {"a": [1]})
    column = columns[rng.choice(list(columns))]
    column.append(rng.choice((0, "x", True, *column)))
    return _dump(fields)


def _extra(fields: dict[str, Any], rng: random.Random) -> bytes:
    fields[rng.choice(("extra", "Node", "at", "x" * 2000))] = rng.choice(_VALUES)
    return _dump(fields)


def _deep(fields: dict[str, Any], rng: random.Random) -> bytes:
    depth = rng.choice((50, 300, 20_000))
    opened, closed = rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
    return _dump(fields)[:-1] + b',"deep":' + opened * depth + b"1" + closed * depth + b"}"


def _twice(fields: dict[str, Any], rng: random.Random) -> bytes:
    """A key that is there twice."""
    name = rng.choice(list(fields))
    more = _dump({name: rng.choice((fields[name], rng.choice(_VALUES)))})[1:-1]
    body = _dump(fields)
    return rng.choice((b"{" + more + b"," + body[1:], body[:-1] + b"," + more + b"}"))


def _reorder(fields: dict[str, Any], rng: random.Random) -> bytes:
    names = list(fields)
    rng.shuffle(names)
    return _dump({name: fields[name] for name in names})


def _truncate(fields: dict[str, Any], rng: random.Random) -> bytes:
    body = _dump(fields)
    return body[: rng.randrange(len(body))]


def _flip(fields: dict[str, Any], rng: random.Random) -> bytes:
    body = bytearray(_dump(fields))
    for _ in range(rng.randint(1, 4)):
        body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
    return bytes(body)


def _insert(fields: dict[str, Any], rng: random.Random) -> bytes:
    body = _dump(fields)
    at = rng.randrange(len(body))
    return body[:at] + rng.randbytes(rng.randint(1, 8)) + body[at:]


def _duplicate(fields: dict[str, Any], rng: random.Random) -> bytes:
    body = _dump(fields)
    start, end = sorted((rng.randrange(len(body)), rng.randrange(len(body))))
    return body[:end] + body[start:end] + body[end:]


def _swap(fields: dict[str, Any], rng: random.Random) -> bytes:
    body = bytearray(_dump(fields))
    a, b = rng.randrange(len(body)), rng.randrange(len(body))
    body[a], body[b] = body[b], body[a]
    return bytes(body)


def _not_utf8(fields: dict[str, Any], rng: random.Random) -> bytes:
    body = _dump(fields)
    at = body.find(b':"') + 2
    return body[:at] + rng.choice((b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xe2\x82")) + body[at:]


def _no_message(fields: dict[str, Any], rng: random.Random) -> bytes:
    return rng.choice(_BYTES)


def _nothing(fields: dict[str, Any], rng: random.Random) -> None:
    return None


def _large(fields: dict[str, Any], rng: random.Random) -> bytes:
    """One of 1–5 MB, at times close to the most that a topic takes."""
    size = rng.choice((rng.randrange(1 << 20, 5 << 20), rng.randrange(1 << 20, 5 << 20), 8_200_000))
    pad = rng.randbytes(size // 2).hex()
    return rng.choice((_dump(fields)[:-1] + b',"pad":"' + pad.encode() + b'"}', pad.encode()))


_MUTATIONS: tuple[Callable[[dict[str, Any], random.Random], bytes | None], ...] = (
    _untouched, _untouched, _untouched, _untouched, _drop, _rename, _retype, _retype, _number,
    _number, _word, _word, _time, _every_time, _identity, _schema, _version, _long_integer,
    _unequal, _extra, _deep, _twice, _reorder, _truncate, _flip, _insert, _duplicate, _swap,
    _not_utf8, _no_message, _nothing,
)  # fmt: skip
