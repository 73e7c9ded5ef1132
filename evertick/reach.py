"""Whether the services that a command needs can be reached, told within seconds and in one line."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from bus.settings import KafkaSettings, SettingsError

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

    _connect(settings)
    try:
        client = AdminClient(settings.client("evertick-reach"))
        return client.list_topics(timeout=_ANSWER_TIMEOUT_S)
    except KafkaException as error:
        raise SettingsError(_unreachable(settings, error.args[0].str())) from None


def _connect(settings: KafkaSettings) -> None:
    """A plain connection tells in milliseconds what librdkafka tells after its time-out."""
    reason = ""
    for place in brokers(settings.bootstrap):
        try:
            socket.create_connection(place, _CONNECT_TIMEOUT_S).close()
            return
        except OSError as error:
            reason = error.strerror or str(error)
    raise SettingsError(_unreachable(settings, reason))


def _unreachable(settings: KafkaSettings, reason: str) -> str:
    return (
        f"Kafka at {settings.bootstrap} does not answer ({reason}); "
        "start it with: evertick up, or name another with --set kafka.bootstrap=HOST:PORT"
    )
