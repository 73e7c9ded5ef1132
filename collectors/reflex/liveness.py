"""Which paths to a peer live: a verdict from evidence, not from silence alone.

A peer sends one heartbeat at a time under one number over all paths. What one path delivered and
another did not within the delay that is usual on it was lost there: after ``timeout / heartbeat`` of
those in a row the path is dead. A peer that stands still sends nothing on any path, so it proves
nothing against one of them; only when all have been silent for longer than the timeout they are all
held dead. Time in which our own loop was late counts for nobody (:meth:`Liveness.excuse`).

What is usual is measured on each path: its delay above its own minimum (queues on the way) adds to
the time that a heartbeat may take, its loss adds to the number that must be missing. A path lives
only while the peer, too, says that it hears us there, so a one-way loss is known at both ends.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

MILLISECOND_NS = 1_000_000

_RISE = 3
"""Heartbeats in a row that make a dead path live."""
_LOSS_WEIGHT = 1 / 128
_LOSS_NONE = 1e-4
_FALSE_VERDICT = 1e-6
"""How often a path of steady random loss may look dead, per heartbeat."""
_NEED_MAX = 30
_LOSSY_AT, _LOSSY_UNTIL = 0.05, 0.01
_ALLOW_MIN_NS = 2 * MILLISECOND_NS
_ALLOW_MAX_NS = 250 * MILLISECOND_NS
_MEASURE_EVERY = 4
"""Of heartbeats that come as usual, one in so many is measured."""
_LATE_DECAY = 128
"""Measurements after which a delay once seen has lost 63 % of its weight."""
_LATE_FACTOR = 1.25
_BASE_WINDOW_NS = 10_000 * MILLISECOND_NS
"""Clocks drift apart (100 ppm: 1 ms), so the least delay is one of the recent past."""
_SENT_KEPT = 64
_RTTS_KEPT = 1024
_WINDOW = 28
_WINDOW_MASK = (1 << _WINDOW) - 1


class Timing(NamedTuple):
    """How often heartbeats are sent, and how much silence is death."""

    heartbeat_ns: int
    timeout_ns: int

    @property
    def need(self) -> int:
        """Heartbeats that must be missing on a path without loss."""
        return max(2, math.ceil(self.timeout_ns / self.heartbeat_ns))


class PathLife:
    """What is known of one path."""

    __slots__ = (
        "_last_transit_ns",
        "_turn_ns",
        "_turning_ns",
        "base_ns",
        "carrier",
        "heard",
        "heard_ns",
        "hearing",
        "jitter_ns",
        "late_ns",
        "life_ns",
        "loss",
        "lossy",
        "need",
        "peer_carrier",
        "peer_hears",
        "peer_lossy",
        "rtts_ns",
        "streak",
        "tick",
        "usual_ns",
        "window",
    )

    def __init__(self, need: int) -> None:
        self.carrier = True
        self.hearing: bool | None = None
        """Our verdict on what comes in; None until there was enough to judge."""
        self.peer_hears: bool | None = None
        """What the peer says of what goes out; None where it has not said."""
        self.peer_carrier = True
        self.peer_lossy = False
        self.tick = -1
        """Highest number heard in the peer's present session."""
        self.window = 0
        """Which of the numbers before that were heard, a bit for each (RFC 4303, 3.4.3)."""
        self.heard_ns = 0
        """When it came, less the time that did not count."""
        self.life_ns = 0
        """When it came."""
        self.streak = 0
        self.heard = 0
        """Heartbeats heard since it was last asked."""
        self.need = need
        self.rtts_ns: list[int] = []
        self.loss = 0.0
        self.lossy = False
        self.forget()

    def fresh(self, tick: int) -> bool:
        """Whether a number was not heard yet, as far as it can be told."""
        behind = self.tick - tick
        return behind < 0 or (behind < _WINDOW and not self.window >> behind & 1)

    def forget(self) -> None:
        """Start measuring anew: after a loss the way may be another one."""
        self.base_ns: int | None = None
        """The least transit of the recent past, by two clocks that have no common zero."""
        self.usual_ns = range(0)
        """Transits that tell nothing new."""
        self._turning_ns = self._turn_ns = self._last_transit_ns = 0
        self.jitter_ns = 0
        self.late_ns = 0

    @property
    def allow_ns(self) -> int:
        """How much later than the least delay a heartbeat may come."""
        late_ns = int(self.late_ns * _LATE_FACTOR)
        return min(_ALLOW_MAX_NS, _ALLOW_MIN_NS + late_ns)

    def measure(self, transit_ns: int, now_ns: int) -> None:
        """Take in how long a heartbeat was on its way, by two clocks that have no common zero."""
        base_ns = self.base_ns
        if base_ns is None:
            self.base_ns = base_ns = self._turning_ns = self._last_transit_ns = transit_ns
            self._turn_ns = now_ns + _BASE_WINDOW_NS
        elif transit_ns < self._turning_ns:
            self._turning_ns = transit_ns
            self.base_ns = base_ns = min(base_ns, transit_ns)
        if now_ns > self._turn_ns:
            self.base_ns = base_ns = self._turning_ns
            self._turning_ns, self._turn_ns = transit_ns, now_ns + _BASE_WINDOW_NS
        late_ns = self.late_ns
        late_ns -= late_ns // _LATE_DECAY + 1
        self.late_ns = max(late_ns, transit_ns - base_ns)
        off_ns = transit_ns - self._last_transit_ns
        self.jitter_ns += ((off_ns if off_ns > 0 else -off_ns) - self.jitter_ns) // 16
        self._last_transit_ns = transit_ns
        self.usual_ns = range(base_ns, base_ns + self.late_ns + 1)

    def count(self, lost: int, least: int) -> None:
        """Take in one heartbeat heard after ``lost`` that were not."""
        loss = self.loss
        for _ in range(min(lost, _NEED_MAX)):
            loss += (1 - loss) * _LOSS_WEIGHT
        loss -= loss * _LOSS_WEIGHT
        self.loss = loss if loss > _LOSS_NONE else 0.0
        self.need = max(least, needed(loss))
        self.lossy = loss > (_LOSSY_UNTIL if self.lossy else _LOSSY_AT)


def needed(loss: float) -> int:
    """Heartbeats in a row whose loss is no accident on a path that loses ``loss`` of them."""
    if loss <= _LOSS_NONE:
        return 2
    return min(_NEED_MAX, math.ceil(math.log(_FALSE_VERDICT) / math.log(min(loss, 0.9))))


class Liveness:
    """The paths to one peer, from what is heard over them. Times are monotonic nanoseconds."""

    __slots__ = (
        "_need",
        "_sent",
        "_timing",
        "alive",
        "expected",
        "heard_ns",
        "paths",
        "stirred",
        "top",
    )

    def __init__(self, paths: int, timing: Timing) -> None:
        """
        Args:
            paths: how many there are.
            timing: heartbeats and timeout.
        """
        self._timing = timing
        self._need = timing.need
        self.paths = [PathLife(self._need) for _ in range(paths)]
        self.alive: list[bool | None] = [None] * paths
        """The verdicts; None where nothing is known yet."""
        self.top = -1
        """The highest number heard over any path."""
        self.heard_ns: int | None = None
        """When the peer was last heard over any path, less what did not count; None before."""
        self.expected = 0
        """Heartbeats that the peer has sent since it was last asked."""
        self.stirred = True
        """Something came that may change a verdict."""
        self._sent: deque[tuple[int, int]] = deque(maxlen=_SENT_KEPT)

    def begin(self, tick: int, now_ns: int) -> None:
        """The peer has a new session, whose first heartbeat heard is ``tick``. Verdicts stay until
        there is evidence of the new session against them."""
        self._sent.clear()
        self.stirred = True
        self.top = tick - 1
        for path in self.paths:
            path.tick = tick - 1
            path.window = _WINDOW_MASK
            path.heard_ns = now_ns
            path.streak = 0
            path.peer_hears = None
            path.forget()

    def leave(self) -> None:
        """The peer ended in good order: nothing is known any more, and nothing is wrong."""
        self._sent.clear()
        self.stirred = True
        self.heard_ns = None
        for place, path in enumerate(self.paths):
            path.hearing = path.peer_hears = None
            path.streak = 0
            self.alive[place] = False if not path.carrier else None

    def hear(self, place: int, tick: int, sent_ns: int, now_ns: int) -> None:
        """A heartbeat of the peer's present session came, whose number is fresh on its path.

        Args:
            place: the path.
            tick: its number.
            sent_ns: the peer's clock when it was sent.
            now_ns: ours when it came.
        """
        path = self.paths[place]
        path.heard += 1
        if tick != path.tick + 1 or not path.hearing or path.loss:
            if tick < path.tick:
                # Another one overtook it.
                path.window |= 1 << path.tick - tick
                return
            self._hear_after(path, tick - path.tick - 1)
        else:
            path.window = path.window << 1 & _WINDOW_MASK | 1
            path.streak += 1
        path.tick = tick
        path.heard_ns = path.life_ns = self.heard_ns = now_ns
        transit_ns = now_ns - sent_ns
        if not tick % _MEASURE_EVERY or transit_ns not in path.usual_ns:
            path.measure(transit_ns, now_ns)
        if tick > self.top:
            self.expected += tick - self.top
            self.top = tick
            self._sent.append((tick, sent_ns))

    def _hear_after(self, path: PathLife, lost: int) -> None:
        """Note a heartbeat after ``lost`` that were not heard."""
        self.stirred = True
        path.window = (path.window << lost + 1 | 1) & _WINDOW_MASK if lost < _WINDOW else 1
        if path.hearing:
            path.count(lost, self._need)
        path.streak = path.streak + 1 if lost == 0 else 1
        if lost == 0 and path.hearing is False and self.heard_ns is not None:
            # Nothing was lost, so nothing was wrong with the path: the peer had stood still.
            path.streak = max(path.streak, _RISE)

    def round_trip(self, place: int, rtt_ns: int) -> None:
        """A round trip was measured on a path."""
        rtts = self.paths[place].rtts_ns
        if len(rtts) < _RTTS_KEPT:
            rtts.append(max(0, rtt_ns))

    def told(self, place: int, hears: bool | None, carrier: bool, lossy: bool) -> None:
        """The peer says what it hears on a path, whether it has carrier there, and loses much."""
        path = self.paths[place]
        path.peer_hears, path.peer_carrier, path.peer_lossy = hears, carrier, lossy
        self.stirred = True

    def excuse(self, late_ns: int) -> None:
        """Our own loop was late: silence of that time counts for nobody."""
        if self.heard_ns is not None:
            self.heard_ns += late_ns
        for path in self.paths:
            path.heard_ns += late_ns

    def rests(self, now_ns: int) -> bool:
        """Whether all is as it was when it was last judged, and well, so that there is nothing to
        judge. Cheap, for it is so most of the time."""
        if self.stirred or self.heard_ns is None:
            return False
        if now_ns - self.heard_ns >= self._timing.timeout_ns:
            return False
        top = self.top
        for path in self.paths:
            if top - path.tick >= path.need or not path.carrier:
                return False
        return None not in self.alive and False not in self.alive

    def judge(self, now_ns: int) -> list[int]:
        """Renew the verdicts; returns the paths whose own verdict or state has changed."""
        self.stirred = False
        changed = []
        for place, path in enumerate(self.paths):
            if not path.carrier:
                hearing: bool | None = False
                path.streak = 0
            elif path.hearing:
                hearing = not self._lost(path, now_ns)
            elif path.streak >= _RISE:
                hearing = True
            elif path.hearing is None and self._lost(path, now_ns):
                hearing = False
            else:
                hearing = path.hearing
            alive = self._alive(path, hearing, self.alive[place])
            if hearing is not path.hearing or alive is not self.alive[place]:
                changed.append(place)
                if hearing and not path.hearing:
                    path.forget()
                    path.loss, path.lossy, path.need = 0.0, False, self._need
                elif path.hearing and not hearing:
                    path.streak = 0
                path.hearing = hearing
                self.alive[place] = alive
        return changed

    def uneasy(self, now_ns: int) -> bool:
        """Whether something is missing, so that it is worth looking more often."""
        top = self.top
        for path in self.paths:
            if path.tick < top and path.hearing and path.carrier:
                # What was sent on all paths at once does not come in one instant.
                late = self.heard_ns is not None and now_ns - self.heard_ns > _ALLOW_MIN_NS
                if late or top - path.tick > 1:
                    return True
        return False

    def timeout_ns(self, path: PathLife) -> int:
        """Silence that now counts as death."""
        return path.need * self._timing.heartbeat_ns + path.allow_ns

    @staticmethod
    def _alive(path: PathLife, hearing: bool | None, before: bool | None) -> bool | None:
        if not path.carrier or hearing is False:
            return False
        if path.peer_hears is False or not path.peer_carrier:
            return False
        if hearing and path.peer_hears:
            return True
        # The peer has just begun and cannot say yet.
        return before

    def _lost(self, path: PathLife, now_ns: int) -> bool:
        if self.heard_ns is None:
            return False
        heartbeat_ns = self._timing.heartbeat_ns
        if self.top - path.tick >= path.need:
            silent_ns = now_ns - path.heard_ns
            if silent_ns >= path.need * heartbeat_ns - heartbeat_ns // 2:
                return self._missing(path, now_ns) >= path.need
            return False
        if path.hearing is None:
            return False
        return now_ns - self.heard_ns >= self.timeout_ns(path) + heartbeat_ns * 3 // 2

    def _missing(self, path: PathLife, now_ns: int) -> int:
        """Heartbeats that others delivered and that should have come on this path by now."""
        base_ns = path.base_ns
        if base_ns is None:
            known = [other.base_ns for other in self.paths if other.base_ns is not None]
            base_ns = min(known, default=0)
        until_ns = now_ns - base_ns - path.allow_ns
        return sum(1 for tick, sent_ns in self._sent if tick > path.tick and sent_ns <= until_ns)


def quantile(values: Sequence[int], share: float) -> int:
    """The value below which ``share`` of them lie; 0 of none."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0
