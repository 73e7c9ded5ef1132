"""Whether the services that a command needs can be reached, told within seconds and in one line."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bus.settings import ClickHouseSettings, KafkaSettings, SettingsError

if TYPE_CHECKING:
    from confluent_kafka.admin import ClusterMetadata

_CONNECT_TIMEOUT_S = 3.0
_ANSWER_TIMEOUT_S = 5.0
_KAFKA_PORT = 9092


class Lost(Exception):
    """A service that was there went away while a command used it."""


def brokers(bootstrap: str) -> list[tuple[str, int]]:
    """The hosts and ports in ``kafka.bootstrap``.

    Raises:
        SettingsError: a port is not a number.
    """
    places = []
    for word in bootstrap.split(","):
        place = word.strip().rpartition("://")[2]
        if not place:
            continue
        host, colon, port = place.rpartition(":")
        if not colon or place.endswith("]"):
            host, port = place, str(_KAFKA_PORT)
        if not port.isdigit():
            raise SettingsError(f"setting kafka.bootstrap: {place} has no port number")
        places.append((host.strip("[]"), int(port)))
    if not places:
        raise SettingsError("setting kafka.bootstrap: no broker is named; write host:port")
    return places


def kafka(settings: KafkaSettings) -> ClusterMetadata:
    """What the cluster says of itself: brokers and topics.

    Raises:
        SettingsError: no broker accepts a connection, or none answers as Kafka does.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    if reason := _refusal(brokers(settings.bootstrap)):
        raise SettingsError(_unreachable(settings, reason))
    try:
        client = AdminClient(settings.client("evertick-reach"))
        return client.list_topics(timeout=_ANSWER_TIMEOUT_S)
    except KafkaException as error:
        raise SettingsError(_unreachable(settings, error.args[0].str())) from None


def clickhouse(settings: ClickHouseSettings) -> None:
    """Whether something listens where ClickHouse should; told in milliseconds, without its client.

    Raises:
        SettingsError: nothing does, or the URL has no host.
    """
    try:
        url = urlsplit(settings.url)
        place = (url.hostname or "", url.port or (8443 if url.scheme == "https" else 8123))
    except ValueError:
        place = ("", 0)
    if not place[0]:
        raise SettingsError(
            "setting clickhouse.url: no host and port in it; write http://HOST:8123"
        ) from None
    reason = _refusal([place])
    if reason:
        raise SettingsError(
            f"ClickHouse at {url.scheme}://{place[0]}:{place[1]} does not answer ({reason}); "
            "start it with: evertick up, or name another with --set clickhouse.url=http://HOST:8123"
        )


def _refusal(places: list[tuple[str, int]]) -> str:
    """Why none of some places accepts a connection; empty where one does. A plain connection tells
    in milliseconds what librdkafka tells after its time-out."""
    reason = ""
    for place in places:
        try:
            socket.create_connection(place, _CONNECT_TIMEOUT_S).close()
            return ""
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
    return reason


def _unreachable(settings: KafkaSettings, reason: str) -> str:
    return (
        f"Kafka at {settings.bootstrap} does not answer ({reason}); "
        "start it with: evertick up, or name another with --set kafka.bootstrap=HOST:PORT"
    )
