"""Which living path a peer's route takes.

Both ends of a pair rank its paths alike, by rendezvous hashing (Thaler and Ravishankar, 1998) over
the pair's names and the path, so a node's peers spread over its rails, and over those that are left
when one is gone. A dead path is left at once for the best living one. The way back is led by one end,
the node whose name sorts first: it returns to a better path once that has been clean for the
hold-down, and its heartbeats say so; the other end follows as soon as it, too, sees that path alive.
The hold-down doubles each time a path dies again soon after it was trusted, up to a bound, and is
forgotten after a quiet time.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

START, FAILOVER, FAILBACK = "start", "failover", "failback"
RESTORE, RELEASE = "restore", "release"


class HoldDown(NamedTuple):
    """How long a path must have been clean before its peer's route returns to it."""

    first_ns: int
    max_ns: int
    forget_ns: int
    """Clean for so long, a path's past is forgotten."""


class _Record:
    """A path's past, as far as trust goes."""

    __slots__ = ("clean_since_ns", "deaths")

    def __init__(self) -> None:
        self.clean_since_ns: int | None = None
        self.deaths = 0

    def hold_ns(self, hold: HoldDown) -> int:
        return min(hold.max_ns, hold.first_ns << min(max(0, self.deaths - 1), 40))


class Choice:
    """The choice for one peer. Times are monotonic nanoseconds."""

    def __init__(self, order: Sequence[int], leads: bool, hold: HoldDown) -> None:
        """
        Args:
            order: the paths, best first.
            leads: whether this end decides on the way back.
            hold: the hold-down.
        """
        self._rank = {place: rank for rank, place in enumerate(order)}
        self._leads = leads
        self._hold = hold
        self._records = {place: _Record() for place in order}
        self.current: int | None = None
        """The path that the route takes; None where there is none of ours."""
        self.waiting = False
        """A better path than the present one only has to stay clean for its time."""
        self._adopted = False

    def adopt(self, place: int) -> None:
        """An earlier run left the route on this path."""
        self.current = place
        self._adopted = True

    def observe(self, place: int, alive: bool | None, lossy: bool, now_ns: int) -> None:
        """Note how a path is now."""
        record = self._records[place]
        if alive and not lossy:
            if record.clean_since_ns is None:
                record.clean_since_ns = now_ns
            if place == self.current:
                self._adopted = False
            return
        if record.clean_since_ns is not None:
            clean_ns = now_ns - record.clean_since_ns
            if clean_ns >= self._hold.forget_ns or record.deaths == 0:
                record.deaths = 1
            elif clean_ns >= record.hold_ns(self._hold):
                record.deaths += 1
            record.clean_since_ns = None

    def hold_ns(self, place: int) -> int:
        """The hold-down of a path now."""
        return self._records[place].hold_ns(self._hold)

    def decide(
        self,
        alive: Sequence[bool | None],
        lossy: Sequence[bool],
        led: int | None,
        settled: bool,
        now_ns: int,
    ) -> tuple[int, str] | None:
        """Whereto the route should move now, and why; None to leave it.

        Args:
            alive: the verdict on each path.
            lossy: whether it loses much.
            led: the path that the other end has chosen; None where it has not said.
            settled: whether all paths have had the time to show themselves.
            now_ns: the time.
        """
        self.waiting = False
        living = [place for place in self._rank if alive[place]]
        if not living:
            return None
        best = min(living, key=lambda place: (lossy[place], self._rank[place]))
        if not self._leads and led is not None and alive[led]:
            best = led
        current = self.current
        if current is None:
            return (best, START) if settled or best == led else None
        if alive[current] is False:
            return best, RESTORE if self._adopted else FAILOVER
        if best == current or not alive[current]:
            return None
        if not self._leads:
            return (best, FAILBACK) if best == led else None
        since_ns = self._records[best].clean_since_ns
        if since_ns is None or now_ns - since_ns < self.hold_ns(best):
            self.waiting = True
            return None
        return best, FAILBACK

    def moved(self, place: int) -> None:
        """The route takes this path now."""
        self.current = place
        self._adopted = False


def order(node: str, peer: str, tags: Sequence[int]) -> list[int]:
    """The paths of a pair, best first, the same at both ends.

    Args:
        node: one end.
        peer: the other.
        tags: names of the paths that both ends know.
    """
    pair = "\0".join(sorted((node, peer)))

    def weight(place: int) -> bytes:
        return blake2b(f"{pair}\0{tags[place]}".encode(), digest_size=8).digest()

    return sorted(range(len(tags)), key=weight)
