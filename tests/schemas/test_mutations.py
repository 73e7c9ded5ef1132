"""100,000 spoilt messages through the one function that all readers decode with."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from schemas.registry import Unreadable, decode, encode, topic_of
from tests.e2e.mutation import SEED, mutants


@pytest.mark.timeout(900)
def test_whatever_is_sent_is_read_or_refused_with_a_reason() -> None:
    read: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    reasons: set[str] = set()
    for mutant in mutants(SEED, 100_000, time.time_ns()):
        try:
            event = decode(mutant.value, mutant.topic)
        except Unreadable as error:
            refused[mutant.how] += 1
            reasons.add(str(error))
            continue
        read[mutant.how] += 1
        # What was read can be passed on: state and documents are what was read, written again.
        assert topic_of(event) == mutant.topic
        assert decode(encode(event), mutant.topic) == event
        assert isinstance(event.key(), str)
    assert all(0 < len(reason.encode()) < 5000 for reason in reasons)
    assert sum(read.values()) > 20_000
    assert sum(refused.values()) > 40_000
    assert {"nothing", "large", "truncate", "not_utf8", "schema", "version"} <= set(refused)
