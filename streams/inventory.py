"""The whole inventory, in every worker: a reader in a thread, from the beginning and then on.

An incident names its victims by the inventory, whichever partition its signals came on; so no group
divides this topic. Messages that cannot be read are passed over here; the history puts them aside.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException, TopicPartition

from bus import log
from bus.consumer import Record, client_config, to_record
from bus.settings import KafkaSettings
from bus.topics import name_on_broker

TOPIC = "inventory"
_TIMEOUT_S = 15.0

_log = log.get(__name__)


class InventoryReader:
    """Follows the inventory until closed."""

    def __init__(
        self,
        kafka: KafkaSettings,
        on_records: Callable[[list[Record]], None],
        on_caught_up: Callable[[], None],
    ) -> None:
        """
        Args:
            kafka: where.
            on_records: given what was read, in order, in the reader's thread.
            on_caught_up: called once, when all that was there at the start has been given.
        """
        self._kafka = kafka
        self._on_records = on_records
        self._on_caught_up = on_caught_up
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="inventory", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join(2.0)

    def _run(self) -> None:
        client = Consumer({**client_config(self._kafka, "streams-inventory", "earliest")})
        try:
            ends = self._begin(client)
            caught_up = False
            while not self._stop.is_set():
                if not caught_up and all(
                    place.offset >= ends[place.partition]
                    for place in client.position(
                        [TopicPartition(name_on_broker(self._kafka, TOPIC), p) for p in ends]
                    )
                ):
                    caught_up = True
                    self._on_caught_up()
                records = [
                    record
                    for message in client.consume(500, 0.5 if caught_up else 0.05)
                    if message.error() is None
                    and isinstance(record := to_record(self._kafka, "streams", message), Record)
                ]
                if records:
                    self._on_records(records)
        finally:
            client.close()

    def _begin(self, client: Consumer) -> dict[int, int]:
        """Assign every partition from its start; returns the ends of those that hold something."""
        name = name_on_broker(self._kafka, TOPIC)
        while not self._stop.wait(0.0):
            try:
                topic = client.list_topics(name, timeout=_TIMEOUT_S).topics[name]
                places = [TopicPartition(name, partition) for partition in topic.partitions]
                bounds = {
                    place.partition: client.get_watermark_offsets(place, _TIMEOUT_S)
                    for place in places
                }
                client.assign([TopicPartition(name, p, low) for p, (low, _) in bounds.items()])
            except KafkaException as error:
                _log.warning("inventory not read yet", reason=error.args[0].str())
                self._stop.wait(1.0)
            else:
                return {p: high for p, (low, high) in bounds.items() if high > low}
        return {}
