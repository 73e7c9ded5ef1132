"""``evertick tail``: what a topic says, as it comes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from evertick.commands import screen
from evertick.commands.globals import settings

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

    from bus.settings import KafkaSettings

_LOST_AFTER_S = 15.0


def tail(
    ctx: typer.Context,
    topic: Annotated[str, typer.Argument(help="Such as signals, incidents, telemetry.packet.")],
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Begin with the oldest message that is kept.")
    ] = False,
    count: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after N messages.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Messages as they travel, one a line.")
    ] = False,
) -> None:
    """Follow a topic: one line for each message, until Ctrl-C.

    It reads beside all others and moves nobody's offsets. A message that cannot be read is shown
    with the reason.

    Example: evertick tail telemetry.packet --from-start --count 10
    """
    from bus.consumer import to_record
    from bus.settings import SettingsError
    from evertick import reach
    from schemas.topics import TOPICS

    kafka = settings(ctx).kafka
    name = topic.removeprefix(kafka.prefix)
    if name not in TOPICS:
        raise SettingsError(f"no topic {topic!r}; there are: {', '.join(TOPICS)}")
    if kafka.prefix + name not in reach.kafka(kafka).topics:
        raise SettingsError(
            f"topic {kafka.prefix + name} is not on the broker yet; "
            "evertick up creates all, and so does the first part that starts"
        )
    left = count
    for message in follow(kafka, name, from_start):
        if as_json:
            print(_raw(message), flush=True)
        else:
            print(screen.printable(_words(to_record(kafka, "evertick-tail", message))), flush=True)
        if left is not None:
            left -= 1
            if left == 0:
                return


def follow(kafka: KafkaSettings, topic: str, from_start: bool) -> Iterator[Message]:
    """The messages of a topic as they come, without a consumer group.

    Raises:
        Lost: Kafka went away and did not come back.
    """
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    from bus.consumer import client_config
    from bus.topics import name_on_broker

    name = name_on_broker(kafka, topic)
    away_since: list[float] = []

    def complain(error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN and not away_since:
            away_since.append(time.monotonic())
            screen.note(f"Kafka at {kafka.bootstrap} is away; waiting")

    client = Consumer({**client_config(kafka, "evertick-tail", "latest"), "error_cb": complain})
    try:
        places = []
        for partition in client.list_topics(name, timeout=5).topics[name].partitions:
            low, high = client.get_watermark_offsets(TopicPartition(name, partition), timeout=5)
            places.append(TopicPartition(name, partition, low if from_start else high))
        client.assign(places)
        while True:
            for message in client.consume(500, 0.1):
                if message.error() is None:
                    away_since.clear()
                    yield message
            if away_since:
                _wait(client, kafka, away_since)
    finally:
        client.close()


def _wait(client: Consumer, kafka: KafkaSettings, away_since: list[float]) -> None:
    """Ask whether Kafka is back; give up after a while."""
    from confluent_kafka import KafkaException

    from evertick.reach import Lost

    try:
        client.list_topics(timeout=1)
    except KafkaException:
        if time.monotonic() - away_since[0] > _LOST_AFTER_S:
            raise Lost(
                f"lost Kafka at {kafka.bootstrap}: no answer for {_LOST_AFTER_S:.0f} s; "
                "is it still running?"
            ) from None
        return
    away_since.clear()
    screen.note("Kafka is back")


def _raw(message: Message) -> str:
    """The value as it is; what is not JSON is wrapped, so that every line is."""
    value = message.value()
    key = (message.key() or b"").decode(errors="replace")
    if value is None:
        return json.dumps({"key": key, "deleted": True})
    try:
        text = value.decode()
        json.loads(text)
    except ValueError:
        return json.dumps({"key": key, "unreadable": value.decode(errors="backslashreplace")})
    return text if "\n" not in text else json.dumps(json.loads(text))


def _words(record: object) -> str:
    from bus.consumer import Record
    from evertick.wording import line, utc
    from schemas.deadletter import DeadLetter

    if isinstance(record, DeadLetter):
        place = f"{record.topic}[{record.partition}]@{record.offset}"
        return f"{utc(record.at_ns, 3)} unreadable {place}: {record.reason}"
    assert isinstance(record, Record)
    if record.event is None:
        return f"{'':24} {record.key} is gone"
    return f"{utc(record.event.at_ns, 3)} {line(record.event)}"
