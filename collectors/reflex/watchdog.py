"""The watchdog process: ``python -m collectors.reflex.watchdog``, its plan as a line of JSON on stdin.

One thread, one loop. At every tick it sends a heartbeat over each path and looks at everything; in
between it wakes for the kernel's news of carriers at once, and for heartbeats at most every two
milliseconds, so that many peers do not mean as many wakes. Where it is allowed to, it runs under
``SCHED_FIFO`` with its memory locked, so a busy host does not delay it.

It ends in good order at a line ``stop`` or SIGTERM: peers are told, and routes of its own are taken
away where that harms nobody. When stdin closes without a word the agent was killed: it ends at once
and leaves the routes, which the next start adopts.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import os
import select
import signal
import sys
import time
from ipaddress import ip_address
from secrets import randbits
from types import FrameType
from typing import NamedTuple

from collectors.netlink import NetlinkError
from collectors.reflex import wire
from collectors.reflex.choice import RESTORE, START
from collectors.reflex.links import Links
from collectors.reflex.liveness import quantile
from collectors.reflex.peer import REPLAYED, STRANGER, Decision, Peer, Transition
from collectors.reflex.plan import PathPlan, PeerPlan, Plan, plan_of
from collectors.reflex.ports import BATCH, Port, Receiver, Refused
from collectors.reflex.report import Reports, utc
from collectors.reflex.routes import PROTOCOL, Hop, Route, Routes, beneath

_MILLISECOND_NS = 1_000_000
_SECOND_NS = 1_000_000_000
_SETTLE_NS = 2 * _MILLISECOND_NS
"""News is looked at no more often than this, however much of it there is."""
_UNEASY_NS = 1 * _MILLISECOND_NS
"""How often to look while a verdict is near."""
_ROUNDS = 4
"""Batches of one socket before the others get their turn."""
_NEWS_AT_ONCE = 48
_PROOFS_A_SECOND = 16
"""Repetitions on an interface whose proof is looked at, to tell replayed from forged."""
_OPEN_AGAIN_NS = 200 * _MILLISECOND_NS
_MOVE_AGAIN_NS = 50 * _MILLISECOND_NS
_UNBLOCK_TIMES = 4
_HEALTH_ROWS = 8
_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4
_RELEASE = "release"


class _Place:
    """An interface with our address on it, and what of the peers lies behind."""

    __slots__ = ("answered_ns", "index", "interface", "local", "paths", "port", "proofs", "refused")

    def __init__(self, interface: str, local: str, refused: Refused) -> None:
        self.interface = interface
        self.local = local
        self.refused = refused
        self.index = 0
        self.port: Port | None = None
        self.paths: dict[bytes, _Path] = {}
        """By the peers' packed addresses."""
        self.answered_ns: dict[bytes, int] = {}
        self.proofs = _PROOFS_A_SECOND


class _Path(NamedTuple):
    """One path to a peer."""

    peer: _Peer
    number: int
    plan: PathPlan
    place: _Place


class _Peer:
    """One peer with its paths."""

    __slots__ = (
        "body",
        "heartbeat",
        "inward",
        "leftover",
        "macs",
        "move_after_ns",
        "names",
        "outward",
        "paths",
        "plan",
        "state",
    )

    def __init__(self, node: str, key: bytes, plan: PeerPlan, state: Peer) -> None:
        count = len(plan.paths)
        self.plan = plan
        self.state = state
        self.paths: list[_Path] = []
        self.names = wire.pack_names([path.interface for path in plan.paths])
        self.outward = wire.Seal(key, node, plan.name, count)
        self.inward = wire.Seal(key, plan.name, node, wire.PATHS_MAX)
        # The last body that came, read and proven once for all paths.
        self.body = b""
        self.heartbeat: wire.Heartbeat | None = None
        self.macs = b""
        self.move_after_ns = 0
        self.leftover = False
        """An earlier run left a route that fits none of the paths."""


class Watchdog:
    """The loop and what it holds."""

    def __init__(self, plan: Plan, reports: Reports, commands: int) -> None:
        """
        Args:
            plan: what to do.
            reports: where to tell of it.
            commands: descriptor of the agent's commands.

        Raises:
            OSError: no netlink here.
        """
        self._plan = plan
        self._reports = reports
        self._commands = commands
        self._links = Links()
        self._routes = Routes(plan.metric, plan.rto_min_ms)
        self._receiver = Receiver()
        self._ending = False
        self._session = randbits(64) or 1
        now_ns = time.monotonic_ns()
        self._refused: dict[str, Refused] = {}
        self._places: dict[tuple[str, str], _Place] = {}
        self._peers: list[_Peer] = []
        for each in plan.peers:
            self._add(each, now_ns)
        # Each wakes for more: the kernel and the agent; news as well; everything.
        self._kernel, self._soon, self._all = select.epoll(), select.epoll(), select.epoll()
        for epoll in (self._kernel, self._soon, self._all):
            epoll.register(self._links.fileno(), select.EPOLLIN)
            epoll.register(commands, select.EPOLLIN)
        self._blocked: dict[_Path, int] = {}
        self._looked_ns = now_ns
        self._open_after_ns = 0
        self._second_ns = now_ns + _SECOND_NS
        self._health_from_ns = now_ns

    def end(self, *_: int | FrameType | None) -> None:
        """End in good order, soon; may be called from a signal handler."""
        self._ending = True

    def run(self) -> None:
        """Run until told to end.

        Raises:
            BrokenPipeError: the agent reads no more.
        """
        self._begin()
        heartbeat_ns = self._plan.timing.heartbeat_ns
        due_ns = settled_ns = time.monotonic_ns()
        while not self._ending:
            now_ns = time.monotonic_ns()
            uneasy = [each for each in self._peers if each.state.life.uneasy]
            planned_ns = min(due_ns, now_ns + _UNEASY_NS) if uneasy else due_ns
            events: list[tuple[int, int]] = []
            if now_ns < settled_ns < planned_ns:
                events = self._kernel.poll((settled_ns - now_ns) / 1e9)
                now_ns = time.monotonic_ns()
            if not events:
                epoll = self._all if uneasy else self._soon
                events = epoll.poll(max(0, planned_ns - now_ns) / 1e9)
            now_ns = time.monotonic_ns()
            if now_ns - planned_ns > heartbeat_ns // 2:
                for each in self._peers:
                    each.state.excuse(now_ns - planned_ns)
            moved = self._take(events)
            if self._ending:
                break
            if moved:
                # Carrier first: nothing that heartbeats say is as fresh.
                for each in self._peers:
                    self._act(each, now_ns)
            if events:
                settled_ns = now_ns + _SETTLE_NS
            self._look(now_ns)
            if now_ns >= due_ns:
                self._tick(now_ns)
                due_ns = max(due_ns + heartbeat_ns, now_ns)
            else:
                for each in self._peers:
                    self._act(each, now_ns)
        self._release()

    # --- what comes in

    def _take(self, events: list[tuple[int, int]]) -> bool:
        """See to the agent's commands and the kernel's news; returns whether a carrier may have
        changed."""
        moved = False
        for descriptor, _ in events:
            if descriptor == self._commands:
                self._command()
            elif descriptor == self._links.fileno() and self._links.read():
                self._carriers()
                moved = True
        return moved

    def _command(self) -> None:
        said = os.read(self._commands, 4096)
        if not said:
            # The agent was killed. Its routes stay as they are, for its next start.
            sys.exit(0)
        if b"stop" in said:
            self._ending = True

    def _look(self, now_ns: int) -> None:
        """Take in all heartbeats that have come."""
        offset_ns = time.time_ns() - time.monotonic_ns()
        since_ns, self._looked_ns = self._looked_ns, now_ns
        for place in self._places.values():
            port = place.port
            if port is None:
                continue
            for _ in range(_ROUNDS):
                batch = self._receiver.receive(port.steady, port.address_at)
                for data, sender, utc_ns in batch:
                    came_ns = utc_ns - offset_ns
                    if not since_ns <= came_ns <= now_ns:
                        # A clock that was set in between must not make it come at another time.
                        came_ns = min(now_ns, max(since_ns, came_ns))
                    self._hear(place, data, sender, came_ns)
                if len(batch) < BATCH:
                    break
            news = self._receiver.receive(port.news, port.address_at, _NEWS_AT_ONCE)
            for data, sender, utc_ns in news:
                self._hear(place, data, sender, min(now_ns, max(since_ns, utc_ns - offset_ns)))

    def _hear(self, place: _Place, data: bytes, sender: bytes, came_ns: int) -> None:
        path = place.paths.get(sender)
        refused = place.refused
        body = data[: -wire.MAC_BYTES]
        if path is None:
            if wire.unpack(body) is None:
                refused.malformed += 1
            else:
                refused.forged += 1
            refused.source(sender)
            return
        each = path.peer
        state = each.state
        number = path.number
        # The other paths have brought the same, and it was proven then.
        proven = body == each.body
        heartbeat = each.heartbeat if proven else wire.unpack(body)
        if heartbeat is None:
            refused.malformed += 1
            refused.source(sender)
            return
        stale = state.stale(number, heartbeat)
        if stale:
            if place.proofs <= 0:
                refused.unprocessed += 1
                refused.source(sender)
                return
            place.proofs -= 1
        macs = each.macs if proven else each.inward.macs(body, len(heartbeat.tags))
        slot = state.slot(number, heartbeat)
        if slot is None or not wire.same(wire.mac_at(macs, slot), data[-wire.MAC_BYTES :]):
            refused.forged += 1
        elif stale or (outcome := state.receive(number, slot, heartbeat, came_ns)) == REPLAYED:
            refused.replayed += 1
        else:
            if not proven:
                each.body, each.heartbeat, each.macs = body, heartbeat, macs
            if outcome == STRANGER:
                self._answer(path, sender, heartbeat.session, came_ns)
            return
        refused.source(sender)

    def _answer(self, path: _Path, sender: bytes, session: int, now_ns: int) -> None:
        place = path.place
        if now_ns - place.answered_ns.get(sender, 0) < self._plan.timing.heartbeat_ns // 2:
            if not path.peer.state.new(now_ns):
                place.refused.unprocessed += 1
            return
        place.answered_ns[sender] = now_ns
        each = path.peer
        self._tell([path], each, each.state.heartbeat(now_ns, each.names, wire.ANSWER, session))

    def _carriers(self) -> None:
        for place in self._places.values():
            link = self._links.state(place.interface)
            for path in place.paths.values():
                path.peer.state.carrier(path.number, link.carrier)
            if link.ifindex != place.index:
                self._close(place)
                place.index = link.ifindex
                self._open_after_ns = 0

    # --- what goes out

    def _tick(self, now_ns: int) -> None:
        if now_ns >= self._open_after_ns:
            self._open()
            self._open_after_ns = now_ns + _OPEN_AGAIN_NS
        if self._blocked:
            self._unblock()
        for each in self._peers:
            self._act(each, now_ns, steady=True)
        for place in self._places.values():
            if place.port is not None and self._links.state(place.interface).carrier:
                place.port.send()
        if now_ns >= self._second_ns:
            self._second_ns = now_ns + _SECOND_NS
            self._tell_refused(now_ns)
        if now_ns - self._health_from_ns >= self._plan.health_ns:
            self._tell_health(now_ns)

    def _act(self, each: _Peer, now_ns: int, steady: bool = False) -> None:
        """Renew verdicts, move the route, and send what is due: news at once, else at the tick."""
        state = each.state
        if state.rests(now_ns):
            if steady:
                self._beat(each)
            return
        changed = state.judge(now_ns)
        decision = state.decide(now_ns)
        if decision is not None and now_ns >= each.move_after_ns:
            changed = self._move(each, decision, now_ns) or changed
        if changed:
            self._tell(each.paths, each, state.heartbeat(time.monotonic_ns(), each.names))
        if steady:
            self._beat(each)
        for told in state.news():
            self._report(each, told)

    def _beat(self, each: _Peer) -> None:
        """Lay the next steady heartbeat into the batches."""
        state = each.state
        heartbeat = state.heartbeat(time.monotonic_ns(), each.names)
        if state.peer_session is None:
            # The steady port is closed to those who do not know the peer's session.
            self._tell(each.paths, each, heartbeat)
        body = wire.pack(heartbeat)
        macs = each.outward.macs(body, len(each.paths))
        for path in each.paths:
            port = path.place.port
            if port is not None:
                port.put(path.plan.remote, body + wire.mac_at(macs, path.number))

    def _tell(self, paths: list[_Path], each: _Peer, heartbeat: wire.Heartbeat) -> None:
        """Send a heartbeat as news."""
        body = wire.pack(heartbeat)
        macs = each.outward.macs(body, len(each.paths))
        for path in paths:
            port = path.place.port
            # What is sent into a dead interface waits there for its return.
            if port is not None and each.state.paths[path.number].carrier:
                port.tell(path.plan.remote, body + wire.mac_at(macs, path.number))

    def _report(self, each: _Peer, told: Transition) -> None:
        if told.alive and told.place == each.state.chosen and not self._plan.dry_run:
            # The kernel drops routes over an interface that was set down.
            self._take_routes(each, told.place)
        self._reports.send(
            "transition",
            peer=each.plan.name,
            path=told.place,
            peer_interface=each.state.interfaces[told.place],
            alive=told.alive,
            fault=told.fault,
            since_ns=utc(told.since_ns),
            at_ns=utc(told.at_ns),
            paths_alive=told.paths_alive,
            missed=told.missed,
        )

    # --- routes

    def _begin(self) -> None:
        while not self._links.complete:
            select.select([self._links], [], [], 1.0)
            self._links.read()
        self._carriers()
        destinations = {address: each for each in self._peers for address in each.plan.addresses}
        for route in self._routes.table():
            if route.protocol != PROTOCOL or self._plan.dry_run:
                continue
            each = destinations.get(route.destination)
            if each is None or route.metric != self._plan.metric:
                self._forget(route.destination, route.metric)
                continue
            number = self._number(each, route.destination, route.hops[0] if route.hops else None)
            if number is None:
                each.leftover = True
            else:
                each.state.choice.adopt(number)

    def _number(self, each: _Peer, destination: str, hop: Hop | None) -> int | None:
        for path in each.paths:
            if hop == self._hop(path, destination):
                return path.number
        return None

    def _hop(self, path: _Path, destination: str) -> Hop:
        index = self._links.state(path.plan.interface).ifindex
        return Hop(index, path.plan.gateway(destination) or "")

    def _move(self, each: _Peer, decision: Decision, decided_ns: int) -> bool:
        state = each.state
        reason = RESTORE if each.leftover and decision.reason == START else decision.reason
        done = list(each.plan.addresses)
        if not self._plan.dry_run:
            done = self._take_routes(each, decision.place)
            if not done:
                each.move_after_ns = decided_ns + _MOVE_AGAIN_NS
                return False
        at_ns = time.monotonic_ns()
        state.moved(decision.place)
        each.leftover = False
        if decision.left is not None and not state.paths[decision.left].carrier:
            self._blocked[each.paths[decision.left]] = _UNBLOCK_TIMES
            self._unblock()
        for destination in done:
            self._reports.send(
                "move",
                peer=each.plan.name,
                destination=destination,
                reason=reason,
                left=decision.left,
                taken=decision.place,
                dry_run=self._plan.dry_run,
                failed_ns=utc(decision.failed_ns),
                decided_ns=utc(decided_ns),
                at_ns=utc(at_ns),
            )
        return True

    def _unblock(self) -> None:
        """Free what waits for hops that the peers' routes have just left. What was being sent while
        the route was moved may come to wait there a moment later, so it is done more than once."""
        for path, times in list(self._blocked.items()):
            if times > 1:
                self._blocked[path] = times - 1
            else:
                del self._blocked[path]
            for destination in () if self._plan.dry_run else path.peer.plan.addresses:
                try:
                    self._routes.unblock(self._hop(path, destination))
                except (OSError, NetlinkError) as error:
                    # Nothing waited, or the interface is gone with all that did.
                    if getattr(error, "errno", None) not in (errno.ENOENT, errno.ENODEV):
                        self._note(f"what waits on {path.plan.interface} stays: {error}")

    def _take_routes(self, each: _Peer, place: int) -> list[str]:
        """Lead all of a peer's addresses over a path; returns those for which it worked."""
        done = []
        for destination in each.plan.addresses:
            try:
                self._routes.take(
                    destination,
                    self._hop(each.paths[place], destination),
                    self._plan.source(destination),
                )
            except (OSError, NetlinkError) as error:
                self._note(f"route to {destination} of {each.plan.name} cannot be moved: {error}")
            else:
                done.append(destination)
        return done

    def _forget(self, destination: str, metric: int | None = None) -> None:
        """Take a route of ours away."""
        try:
            self._routes.release(destination, metric)
        except (OSError, NetlinkError) as error:
            if getattr(error, "errno", None) != errno.ESRCH:
                self._note(f"route to {destination} cannot be taken away: {error}")

    def _release(self) -> None:
        """Take routes away, but for those without which a peer would be lost, and say goodbye."""
        table = self._routes.table()
        for each in self._peers:
            if each.state.chosen is None:
                continue
            for destination in each.plan.addresses:
                lost = self._lost_without(each, beneath(table, destination))
                if lost:
                    self._note(
                        f"route to {destination} of {each.plan.name} is left in place: {lost}"
                    )
                    continue
                if not self._plan.dry_run:
                    self._forget(destination)
                now_ns = utc(time.monotonic_ns())
                self._reports.send(
                    "move",
                    peer=each.plan.name,
                    destination=destination,
                    reason=_RELEASE,
                    left=each.state.chosen,
                    taken=None,
                    dry_run=self._plan.dry_run,
                    failed_ns=0,
                    decided_ns=now_ns,
                    at_ns=now_ns,
                )
        for each in self._peers:
            now_ns = time.monotonic_ns()
            heartbeat = each.state.heartbeat(now_ns, each.names, wire.LEAVING)
            self._tell(each.paths, each, heartbeat)

    def _lost_without(self, each: _Peer, below: Route | None) -> str:
        if below is None:
            return "there is no other"
        dead = {
            path.place.index: path.plan.interface
            for path in each.paths
            if each.state.life.alive[path.number] is False
        }
        through = next((dead[hop.ifindex] for hop in below.hops if hop.ifindex in dead), None)
        return f"the one beneath leads over {through}, which is dead" if through else ""

    # --- sockets

    def _open(self) -> None:
        for place in self._places.values():
            if place.port is not None or not place.index:
                continue
            plans = [path.plan for path in place.paths.values()]
            try:
                place.port = Port(
                    place.interface,
                    place.index,
                    place.local,
                    self._plan.port,
                    self._session,
                    any(plan.routed for plan in plans),
                )
            except OSError:
                # No address yet, most likely. It is tried again, and its paths stay dead.
                continue
            place.port.aim(
                {path.plan.remote: wire.size(len(path.peer.paths)) for path in place.paths.values()}
            )
            self._soon.register(place.port.news, select.EPOLLIN)
            for descriptor in (place.port.steady, place.port.news):
                self._all.register(descriptor, select.EPOLLIN)

    @staticmethod
    def _close(place: _Place) -> None:
        # Its epolls forget a descriptor that is closed.
        if place.port is not None:
            place.port.close()
            place.port = None

    # --- what is told

    def _note(self, text: str) -> None:
        self._reports.send("note", text=text[:1000])

    def _tell_refused(self, now_ns: int) -> None:
        a_second = 2 * _SECOND_NS // self._plan.timing.heartbeat_ns
        for place in self._places.values():
            place.proofs = _PROOFS_A_SECOND
            if place.port is not None:
                new = sum(path.peer.state.new(now_ns) for path in place.paths.values())
                # A peer that does not know our session yet sends what the kernel throws away.
                dropped = place.port.take_dropped() - new * a_second
                place.refused.unprocessed += max(0, dropped)
        for interface, refused in self._refused.items():
            if refused:
                self._reports.send(
                    "refused",
                    interface=interface,
                    from_ns=utc(refused.from_ns),
                    at_ns=utc(now_ns),
                    malformed=refused.malformed,
                    forged=refused.forged,
                    replayed=refused.replayed,
                    unprocessed=refused.unprocessed,
                    sources=sorted(refused.sources),
                )
            refused.clear(now_ns)

    def _tell_health(self, now_ns: int) -> None:
        from_ns, self._health_from_ns = self._health_from_ns, now_ns
        rows = []
        for number, each in enumerate(self._peers):
            life = each.state.life
            expected, life.expected = life.expected, 0
            for place, path in enumerate(life.paths):
                rtts, path.rtts_ns = path.rtts_ns, []
                heard, path.heard = path.heard, 0
                rows.append(
                    (
                        number,
                        place,
                        bool(life.alive[place]),
                        place == each.state.chosen,
                        expected,
                        heard,
                        quantile(rtts, 0.5) // 1000,
                        max(rtts, default=0) // 1000,
                        path.jitter_ns // 1000,
                        life.timeout_ns(path) // 1000,
                    )
                )
        for start in range(0, len(rows), _HEALTH_ROWS):
            self._reports.send(
                "health",
                from_ns=utc(from_ns),
                at_ns=utc(now_ns),
                rows=rows[start : start + _HEALTH_ROWS],
            )

    def _add(self, plan: PeerPlan, now_ns: int) -> None:
        node = self._plan.node
        tags = [wire.tag(node, path.local, plan.name, path.remote) for path in plan.paths]
        state = Peer(node, plan.name, self._session, tags, self._plan.timing, self._plan.hold)
        each = _Peer(node, self._plan.key, plan, state)
        for number, path_plan in enumerate(plan.paths):
            interface, local = path_plan.interface, path_plan.local
            refused = self._refused.setdefault(interface, Refused(now_ns))
            place = self._places.setdefault((interface, local), _Place(interface, local, refused))
            path = _Path(each, number, path_plan, place)
            place.paths[ip_address(path_plan.remote).packed] = path
            each.paths.append(path)
        self._peers.append(each)


def _prefer(priority: int) -> str:
    """Run before everything else and never wait for memory; returns why not, if so."""
    failed = ""
    libc = ctypes.CDLL(None, use_errno=True)
    # Only what is in use: locking all that is mapped would make the process ten times its size.
    if libc.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT):
        failed = f"memory is not locked: {os.strerror(ctypes.get_errno())}"
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    except OSError as error:
        failed = f"no SCHED_FIFO: {error.strerror}; a loaded host may delay it"
    gc.collect()
    gc.freeze()
    return failed


def main() -> None:
    """Read the plan, run, end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = bytearray()
    while not line.endswith(b"\n"):
        read = os.read(sys.stdin.fileno(), 1 << 16)
        if not read:
            sys.exit(0)
        line += read
    plan = plan_of(json.loads(line))
    reports = Reports(sys.stdout.fileno())
    watchdog = Watchdog(plan, reports, sys.stdin.fileno())
    signal.signal(signal.SIGTERM, watchdog.end)
    reports.send("ready", pid=os.getpid(), slower=_prefer(plan.priority))
    try:
        watchdog.run()
    except BrokenPipeError:
        # The agent is gone; as with its stdin.
        sys.exit(0)


if __name__ == "__main__":
    main()
