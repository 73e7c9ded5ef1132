"""Which symptoms an incident still takes in when it has many.

A dead switch between dozens of hosts is told by thousands of paths, and an incident must fit in one
message. Once it is three quarters full it takes in only what adds to its diagnosis, so that the paths
that happened to be read first do not decide what broke: paths whose ends nothing blames yet, and of
these none that shares an end with another. Each of those proves one more broken link, since no set of
links that explains them all can be smaller. And it takes in word that the traffic is off the fault, so
that it is known to be mitigated. The rest is only counted.
"""

from __future__ import annotations

from itertools import islice

from schemas.incident import Symptom
from schemas.signal import Signal
from streams import explain
from streams.live import Live
from streams.victims import Inventory


def has_room(live: Live, signal: Signal, inventory: Inventory, symptoms_max: int) -> bool:
    """Whether an incident takes in a symptom that it does not hold."""
    held, freely = len(live.symptoms), symptoms_max * 3 // 4
    if held >= symptoms_max:
        return False
    if live.diagnosis is None or held < freely:
        return True
    if explain.is_relief(signal.kind):
        helped = any(explain.is_relief(key.kind) for key in live.active)
        return held < symptoms_max * 7 // 8 or not helped
    ends = _nics(signal, inventory)
    if not ends:
        return True
    if ends & live.diagnosis.blamed or held >= symptoms_max * 15 // 16:
        return False
    added = islice(live.symptoms.values(), freely, None)
    return all(explain.is_relief(one.kind) or not ends & _nics(one, inventory) for one in added)


def _nics(one: Signal | Symptom, inventory: Inventory) -> set[str]:
    return {place for place in explain.touched(one, inventory) if place.startswith("nic:")}
