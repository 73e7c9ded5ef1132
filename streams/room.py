"""Which symptoms an incident still takes in when it has many.

A dead switch between dozens of hosts is told by thousands of paths, and an incident must fit in one
message. What its diagnosis explains already is only counted once it is three quarters full. The rest
is for what it does not explain yet, so that the first paths that happen to be read do not decide what
broke, and for word that the traffic is off the fault, so that it is known to be mitigated.
"""

from __future__ import annotations

from schemas.signal import Signal
from streams import explain
from streams.live import Live
from streams.victims import Inventory


def has_room(live: Live, signal: Signal, inventory: Inventory, symptoms_max: int) -> bool:
    """Whether an incident takes in a symptom that it does not hold."""
    held = len(live.symptoms)
    if held >= symptoms_max:
        return False
    if live.diagnosis is None or 4 * held < 3 * symptoms_max:
        return True
    if explain.is_relief(signal.kind):
        helped = any(explain.is_relief(key.kind) for key in live.active)
        return 8 * held < 7 * symptoms_max or not helped
    explained = live.diagnosis.blamed & explain.touched(signal, inventory)
    return not explained and 16 * held < 15 * symptoms_max
