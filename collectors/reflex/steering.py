"""The peers' routes as the watchdog steers them: adopted, moved, kept, and left in good order.

What is reported is collected and sent by the loop once the peers have heard of it, for that is more
urgent.
"""

from __future__ import annotations

import errno
import time
from typing import Any, NamedTuple

from collectors.netlink import NetlinkError
from collectors.reflex.choice import RELEASE, RESTORE, START
from collectors.reflex.exchange import Path, PeerEnd
from collectors.reflex.peer import Decision
from collectors.reflex.plan import Plan
from collectors.reflex.report import utc
from collectors.reflex.routes import PROTOCOL, Hop, Route, Routes, beneath

_MOVE_AGAIN_NS = 50_000_000
_UNBLOCK_TIMES = 4


class Said(NamedTuple):
    """Something to report."""

    kind: str
    fields: dict[str, Any]


class Steering:
    """The routes of this host to its peers."""

    def __init__(self, plan: Plan) -> None:
        """Opens netlink; raises ``OSError`` where there is none."""
        self._plan = plan
        self._routes = Routes(plan.metric, plan.rto_min_ms)
        self._again_ns: dict[str, int] = {}
        self._blocked: dict[Path, int] = {}
        self._leftover: set[str] = set()
        """Peers to whom an earlier run left a route that fits none of the paths."""
        self._said: list[Said] = []

    def take_said(self) -> list[Said]:
        """What is to be reported since it was last asked."""
        said, self._said = self._said, []
        return said

    def adopt(self, ends: list[PeerEnd]) -> None:
        """Take over the routes that an earlier run left, and remove those that nobody needs.

        Raises:
            OSError, NetlinkError: the routes cannot be read.
        """
        if self._plan.dry_run:
            return
        destinations = {address: end for end in ends for address in end.plan.addresses}
        for route in self._routes.table():
            if route.protocol != PROTOCOL:
                continue
            end = destinations.get(route.destination)
            if end is None or route.metric != self._plan.metric:
                self._forget(route.destination, route.metric)
                continue
            number = next(
                (
                    path.number
                    for path in end.paths
                    if route.hops == (self._hop(path, route.destination),)
                ),
                None,
            )
            if number is None:
                self._leftover.add(end.plan.name)
            else:
                end.state.choice.adopt(number)

    def move(self, end: PeerEnd, decision: Decision, decided_ns: int) -> bool:
        """Do what was decided; returns whether it worked."""
        name = end.plan.name
        if decided_ns < self._again_ns.get(name, 0):
            return False
        done = end.plan.addresses
        if not self._plan.dry_run:
            done = self.keep(end, decision.place)
            if not done:
                self._again_ns[name] = decided_ns + _MOVE_AGAIN_NS
                return False
        at_ns = time.monotonic_ns()
        end.state.moved(decision.place)
        left = None if decision.left is None else end.paths[decision.left]
        if left is not None and not left.place.carrier and not self._plan.dry_run:
            self._blocked[left] = _UNBLOCK_TIMES
            self.unblock()
        reason = decision.reason
        if reason == START and name in self._leftover:
            reason = RESTORE
        self._leftover.discard(name)
        times_ns = utc(decision.failed_ns), utc(decided_ns), utc(at_ns)
        for destination in done:
            self._say_move(end, destination, reason, (decision.left, decision.place), times_ns)
        return True

    def keep(self, end: PeerEnd, number: int) -> tuple[str, ...]:
        """Lead all of a peer's addresses over a path; returns those for which it worked."""
        done = []
        for destination in end.plan.addresses:
            try:
                self._routes.take(
                    destination,
                    self._hop(end.paths[number], destination),
                    self._plan.source(destination),
                )
            except (OSError, NetlinkError) as error:
                self._note(f"route to {destination} of {end.plan.name} cannot be moved: {error}")
            else:
                done.append(destination)
        return tuple(done)

    def unblock(self) -> None:
        """Free what waits for hops that routes have just left. What was being sent while the route was
        moved may come to wait there a moment later, so it is done at some ticks more."""
        for path, times in list(self._blocked.items()):
            if times > 1:
                self._blocked[path] = times - 1
            else:
                del self._blocked[path]
            for destination in path.end.plan.addresses:
                try:
                    self._routes.unblock(self._hop(path, destination))
                except (OSError, NetlinkError) as error:
                    # Nothing waited, or the interface is gone with all that did.
                    if getattr(error, "errno", None) not in (errno.ENOENT, errno.ENODEV):
                        self._note(f"what waits on {path.plan.interface} stays: {error}")

    def release(self, ends: list[PeerEnd]) -> None:
        """Take our routes away, but for those without which a peer would be lost."""
        try:
            table = self._routes.table()
        except (OSError, NetlinkError) as error:
            self._note(f"all routes are left in place, they cannot be read: {error}")
            return
        for end in ends:
            chosen = end.state.chosen
            if chosen is None:
                continue
            for destination in end.plan.addresses:
                lost = _lost_without(end, beneath(table, destination))
                if lost:
                    self._note(
                        f"route to {destination} of {end.plan.name} is left in place: {lost}"
                    )
                    continue
                if not self._plan.dry_run:
                    self._forget(destination)
                now_ns = utc(time.monotonic_ns())
                self._say_move(end, destination, RELEASE, (chosen, None), (0, now_ns, now_ns))

    def _hop(self, path: Path, destination: str) -> Hop:
        return Hop(path.place.index, path.plan.gateway(destination) or "")

    def _forget(self, destination: str, metric: int | None = None) -> None:
        """Take a route of ours away."""
        try:
            self._routes.release(destination, metric)
        except (OSError, NetlinkError) as error:
            if getattr(error, "errno", None) != errno.ESRCH:
                self._note(f"route to {destination} cannot be taken away: {error}")

    def _say_move(
        self,
        end: PeerEnd,
        destination: str,
        reason: str,
        places: tuple[int | None, int | None],
        times_ns: tuple[int, int, int],
    ) -> None:
        left, taken = places
        failed_ns, decided_ns, at_ns = times_ns
        fields = {
            "peer": end.plan.name,
            "destination": destination,
            "reason": reason,
            "left": left,
            "taken": taken,
            "dry_run": self._plan.dry_run,
            "failed_ns": failed_ns,
            "decided_ns": decided_ns,
            "at_ns": at_ns,
        }
        self._said.append(Said("move", fields))

    def _note(self, text: str) -> None:
        self._said.append(Said("note", {"text": text[:1000]}))


def _lost_without(end: PeerEnd, below: Route | None) -> str:
    """Why a peer would be lost without our route; empty where it would not."""
    if below is None:
        return "there is no other"
    dead = {
        path.place.index: path.plan.interface
        for path in end.paths
        if end.state.life.alive[path.number] is False
    }
    through = next((dead[hop.ifindex] for hop in below.hops if hop.ifindex in dead), None)
    return f"the one beneath leads over {through}, which is dead" if through else ""
