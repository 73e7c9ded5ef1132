"""The truth reaches its topic, and is none of the contract's messages."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, TopicPartition

from bus.consumer import client_config
from bus.settings import KafkaSettings
from bus.topics import name_on_broker
from lab.truth import TOPIC, FaultTruth, Span, published
from schemas.registry import models


def test_beginning_and_end_are_read_back(kafka: KafkaSettings) -> None:
    with published(kafka) as truth:
        began_ns = truth.began("random_loss", "link:host-1/rail0--leaf-1/p1", {"percent": 5})
        truth.ended("random_loss", "link:host-1/rail0--leaf-1/p1", began_ns, {"percent": 5})
    (span,) = truth.spans
    found: list[FaultTruth] = []
    reader = Consumer(client_config(kafka, "truth-reader", "earliest"))
    reader.assign([TopicPartition(name_on_broker(kafka, TOPIC.name), 0, 0)])
    deadline_s = time.monotonic() + 60
    while len(found) < 2 and time.monotonic() < deadline_s:
        message = reader.poll(1)
        if message is not None and message.error() is None:
            found.append(FaultTruth.model_validate_json(message.value()))
    reader.close()
    begin, end = found
    assert (begin.phase, end.phase) == ("begin", "end")
    assert span == Span("random_loss", begin.subject, begin.at_ns, end.at_ns)
    assert begin.details == end.details == {"percent": 5}


def test_it_is_not_published_as_part_of_the_contract() -> None:
    assert FaultTruth not in {model for *_, model in models()}
