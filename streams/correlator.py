"""The correlator: signals that one cause explains become one incident.

Pure: no Kafka, no wall clock; live, in a replay and in a simulation it is the same object. All that
it knows is in the incidents that it returns, so the newest revision of each, stored, is its whole
memory. What makes it safe to read a signal twice:

- An episode that an incident took in is known by its id; only what is newer than the symptom's last
  word counts, and a cleared episode is over.
- After a restart older episodes of a symptom are known by their time: a symptom that an incident was
  restored with is taken to have no unread episode older than the one it carries.
- Resolved incidents are remembered for ``remember_s``, so that old signals find theirs and open none.
- When an incident resolves follows from when it was mitigated, not from when somebody looked.

Rules of what explains what are in modules named ``explain_*`` (see :mod:`streams.explain`).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from schemas.identity import content_id, parts
from schemas.incident import Incident, IncidentState, Symptom, Victims
from schemas.inventory import InventoryItem
from schemas.signal import EVIDENCE_MAX, Evidence, Phase, Severity, Signal
from streams import explain
from streams.correlating import CorrelatorSettings, Key, key_of, take_in
from streams.victims import Inventory
