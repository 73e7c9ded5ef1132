"""One peer: sessions, liveness and choice put together. Pure: no socket, no clock, no route.

A session is a random number that each end draws at its start. A heartbeat counts as a sign of life
only when it names the receiver's present session, so nothing recorded before the receiver's start
ever counts, and when its number is higher than the last on its path, so nothing recorded since counts
twice. A heartbeat that does not name our session is answered with one that does name the sender's:
a peer that is really there then learns our session and names it. A session of the peer's that was
followed by another never comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from collectors.reflex import wire
from collectors.reflex.choice import Choice, HoldDown, order
from collectors.reflex.liveness import Liveness, PathLife, Timing
from collectors.reflex.wire import Heartbeat

CARRIER, SILENT, DEAF, UNHEARD = "carrier", "silent", "deaf", "unheard"
ACCEPTED, REPLAYED, STRANGER, IDLE = "accepted", "replayed", "stranger", "idle"

_TELL_AFTER_HEARTBEATS = 6
"""After so long both ends have come to their verdicts, and a loss one way is told from one of both."""
_SETTLE_NS = 500_000_000
_NEW_NS = 3_000_000_000
_SENT_KEPT = 64
_SAYS = {None: wire.UNKNOWN, True: wire.HEARS, False: wire.DEAF}


class Transition(NamedTuple):
    """A path died or came back."""

    place: int
    alive: bool
    fault: str
    """Why it died; of a return, why it had."""
    since_ns: int
    """Last sign of life before it died, also of a return."""
    at_ns: int
    paths_alive: int
    missed: int


class Decision(NamedTuple):
    """The peer's route is to move."""

    place: int
    """Whereto."""
    reason: str
    left: int | None
    """The path that it leaves."""
    failed_ns: int
    """The last sign of life there, of a failover."""


class _Death(NamedTuple):
    since_ns: int
    at_ns: int
    paths_alive: int
    missed: int


class Peer:
    """See the module. Times are monotonic nanoseconds; a path is named by its place in ``tags``."""

    def __init__(
        self,
        node: str,
        name: str,
        session: int,
        tags: Sequence[int],
        timing: Timing,
        hold: HoldDown,
    ) -> None:
        """
        Args:
            node: this node.
            name: the peer.
            session: this end's session.
            tags: the paths' names in heartbeats.
            timing: heartbeats and timeout.
            hold: the hold-down.
        """
        self.name = name
        self.session = session
        self.peer_session: int | None = None
        self.tick = 0
        self.life = Liveness(len(tags), timing)
        self.choice = Choice(order(node, name, tags), node < name, hold)
        self.interfaces = [""] * len(tags)
        """The peer's."""
        self._tags = tuple(tags)
        self._places = {tag: place for place, tag in enumerate(tags)}
        self._tell_after_ns = _TELL_AFTER_HEARTBEATS * timing.heartbeat_ns
        self._retired: set[int] = set()
        self._told_tick = -1
        self._said: tuple[int, ...] = ()
        self._slots = [0] * len(tags)
        self._led: int | None = None
        self._sent_ns = [0] * _SENT_KEPT
        self._echoed_ns = [0] * len(tags)
        self._plain: tuple[int, ...] = ()
        """What we say of the paths, without echoes; empty when it has to be made anew."""
        self._dying: dict[int, _Death] = {}
        self._dead: dict[int, tuple[str, int]] = {}
        self._news: list[Transition] = []
        self._first_alive_ns: int | None = None
        self._lossy: list[bool] = []
        self._began_ns = 0
        self._calm = False
        """Nothing has changed since there was nothing to decide."""

    @property
    def paths(self) -> list[PathLife]:
        """What is known of the paths."""
        return self.life.paths

    @property
    def chosen(self) -> int | None:
        """The path that the route takes."""
        return self.choice.current

    def new(self, now_ns: int) -> bool:
        """Whether one end has only just got to know the other, so that heartbeats under way name
        sessions that are none any more."""
        return self.peer_session is None or now_ns - self._began_ns < _NEW_NS

    def slot(self, place: int, heartbeat: Heartbeat) -> int | None:
        """Which entry of a heartbeat speaks of a path; None where none does."""
        entries = heartbeat.entries
        slot = self._slots[place]
        tag = self._tags[place]
        at = slot * wire.ENTRY_FIELDS
        if at < len(entries) and entries[at] == tag:
            return slot
        for slot, other in enumerate(heartbeat.tags):
            if other == tag:
                self._slots[place] = slot
                return slot
        return None

    def stale(self, place: int, heartbeat: Heartbeat) -> bool:
        """Whether a heartbeat can be nothing but a repetition."""
        session = heartbeat.session
        if session == self.peer_session:
            if heartbeat.flags & wire.ANSWER:
                return False
            return not self.life.paths[place].fresh(heartbeat.tick)
        return session in self._retired or session == self.session

    def receive(self, place: int, slot: int, heartbeat: Heartbeat, now_ns: int) -> str:
        """Take in a heartbeat whose proof is right.

        Args:
            place: the path that it came on.
            slot: its entry for that path.
            heartbeat: what it says.
            now_ns: when it came.

        Returns:
            ``ACCEPTED``; ``REPLAYED``; ``STRANGER`` for one that does not name our session and
            should be answered; ``IDLE`` for one that says nothing new.
        """
        session, echo_session, tick, sent_ns, _, flags, entries, _ = heartbeat
        known = session == self.peer_session and tick > self.life.paths[place].tick
        if not known and self.stale(place, heartbeat):
            return REPLAYED
        if echo_session != self.session:
            # A peer that has just begun names no session. One that names an earlier one of ours is
            # one that we do not know yet, or it is a recording.
            other = self.peer_session not in (None, session)
            return REPLAYED if echo_session and other else STRANGER
        if session != self.peer_session:
            self._begin(heartbeat, now_ns)
        elif flags & wire.ANSWER:
            # Several may be under way while two ends get to know each other; later there is none.
            return IDLE if self.new(now_ns) else REPLAYED
        if flags & wire.LEAVING:
            self._retired.add(session)
            self.peer_session = None
            self._led = None
            self.life.leave()
            return ACCEPTED
        if not flags & wire.ANSWER:
            self.life.hear(place, tick, sent_ns, now_ns)
        if not tick % wire.ECHO_EVERY:
            echo, held_us = entries[slot * wire.ENTRY_FIELDS + 2 : slot * wire.ENTRY_FIELDS + 4]
            ago = (self.tick - echo) & 0xFFFFFFFF
            if echo and ago < _SENT_KEPT:
                sent_ns = self._sent_ns[echo % _SENT_KEPT]
                self.life.round_trip(place, now_ns - sent_ns - held_us * 1000)
                self._echoed_ns[place] = sent_ns
        if tick > self._told_tick:
            self._told_tick = tick
            self._hear_said(heartbeat)
        return ACCEPTED

    def carrier(self, place: int, present: bool) -> None:
        """This end's interface of a path has carrier, or has not."""
        self.life.paths[place].carrier = present
        self.life.stirred = True
        self._plain = ()

    def excuse(self, late_ns: int) -> None:
        """Our own loop was late by so much."""
        self.life.excuse(late_ns)

    def rests(self, now_ns: int) -> bool:
        """Whether there is nothing to judge, to decide or to tell."""
        return self._calm and not self._dying and not self._news and self.life.rests(now_ns)

    def judge(self, now_ns: int) -> bool:
        """Renew verdicts.

        Returns:
            Whether the peer should hear of it at once.
        """
        life = self.life
        before = tuple(life.alive)
        changed = life.judge(now_ns)
        lossy = [path.lossy or path.peer_lossy for path in life.paths]
        self._plain = ()
        if changed or lossy != self._lossy:
            self._lossy = lossy
            self._calm = False
            for place in changed:
                if life.alive[place] is not before[place]:
                    self._turn(place, now_ns)
            for place, alive in enumerate(life.alive):
                self.choice.observe(place, alive, lossy[place], now_ns)
        if self._dying:
            self._tell(now_ns)
        return bool(changed)

    def decide(self, now_ns: int) -> Decision | None:
        """Whether the route is to move; call :meth:`moved` when it has."""
        if self._calm:
            return None
        alive = self.life.alive
        settled = None not in alive or (
            self._first_alive_ns is not None and now_ns - self._first_alive_ns >= _SETTLE_NS
        )
        wanted = self.choice.decide(alive, self._lossy, self._led, settled, now_ns)
        if wanted is None:
            # Where a better path only waits for its time, it is asked about again.
            self._calm = settled and not self.choice.waiting
            return None
        place, reason = wanted
        left = self.choice.current
        return Decision(place, reason, left, 0 if left is None else self._last_life_ns(left))

    def moved(self, place: int) -> None:
        """The route takes this path now."""
        self.choice.moved(place)
        self._calm = False

    def news(self) -> list[Transition]:
        """Transitions to report since it was last asked."""
        news, self._news = self._news, []
        return news

    def heartbeat(
        self, now_ns: int, names: bytes, flags: int = 0, echo_session: int | None = None
    ) -> Heartbeat:
        """A heartbeat: the next one, or an answer, which repeats the number of the last.

        Args:
            now_ns: the time.
            names: our interfaces, packed.
            flags: ``wire.ANSWER``, ``wire.LEAVING``.
            echo_session: the session to name; the peer's known one where None.
        """
        if not flags & wire.ANSWER:
            self.tick += 1
            self._sent_ns[self.tick % _SENT_KEPT] = now_ns
        chosen = self.choice.current
        entries = self._plain
        if not entries or not self.tick % wire.ECHO_EVERY:
            entries = self._entries(now_ns)
        return Heartbeat(
            self.session,
            (self.peer_session or 0) if echo_session is None else echo_session,
            self.tick,
            now_ns,
            0 if chosen is None else self._tags[chosen],
            flags,
            entries,
            names,
        )

    def _entries(self, now_ns: int) -> tuple[int, ...]:
        """What we say of the paths, with echoes where they are due."""
        echoes = not self.tick % wire.ECHO_EVERY
        entries: list[int] = []
        for tag, path in zip(self._tags, self.life.paths, strict=True):
            says = _SAYS[path.hearing]
            if path.lossy:
                says |= wire.LOSSY
            if not path.carrier:
                says |= wire.NO_CARRIER
            if echoes and path.streak:
                held_us = min((now_ns - path.life_ns) // 1000, 0xFFFFFFFF)
                entries += (tag, says, path.tick & 0xFFFFFFFF, held_us)
            else:
                entries += (tag, says, 0, 0)
        if not echoes:
            self._plain = tuple(entries)
        return tuple(entries)

    def _begin(self, heartbeat: Heartbeat, now_ns: int) -> None:
        """The peer has a new session."""
        if self.peer_session is not None:
            self._retired.add(self.peer_session)
        self.peer_session = heartbeat.session
        self._told_tick = -1
        self._said = ()
        answer = heartbeat.flags & wire.ANSWER
        self._began_ns = now_ns
        self.life.begin(heartbeat.tick + 1 if answer else heartbeat.tick, now_ns)
        for place in range(len(self._tags)):
            slot = self.slot(place, heartbeat)
            if slot is not None:
                self.interfaces[place] = wire.name_at(heartbeat.names, slot)

    def _hear_said(self, heartbeat: Heartbeat) -> None:
        """What the peer says of itself: its choice, and what it hears where."""
        chosen = heartbeat.chosen
        if self._led is None or self._tags[self._led] != chosen:
            self._led = self._places.get(chosen)
            self._calm = False
        said = heartbeat.said
        if said == self._said:
            return
        self._said = said
        for tag, says in zip(heartbeat.tags, said, strict=True):
            place = self._places.get(tag)
            if place is not None:
                self.life.told(
                    place,
                    wire.hearing(says),
                    not says & wire.NO_CARRIER,
                    bool(says & wire.LOSSY),
                )

    def _last_life_ns(self, place: int) -> int:
        path = self.life.paths[place]
        if path.carrier and path.hearing and path.peer_hears is False:
            # What comes in is well; of what goes out, the last that the peer has echoed arrived.
            return self._echoed_ns[place]
        return path.life_ns

    def _turn(self, place: int, now_ns: int) -> None:
        """A path's verdict is another one."""
        alive = self.life.alive
        if alive[place] is False:
            self._dying[place] = _Death(
                self._last_life_ns(place) or now_ns,
                now_ns,
                alive.count(True),
                max(0, self.life.top - self.life.paths[place].tick),
            )
        elif alive[place]:
            if self._first_alive_ns is None:
                self._first_alive_ns = now_ns
            if place in self._dying:
                self._tell_death(place, now_ns)
            if place in self._dead:
                fault, since_ns = self._dead.pop(place)
                self._news.append(
                    Transition(place, True, fault, since_ns, now_ns, alive.count(True), 0)
                )

    def _tell(self, now_ns: int) -> None:
        for place, death in list(self._dying.items()):
            certain = (
                not self.life.paths[place].carrier
                or True not in self.life.alive
                or now_ns - death.at_ns >= self._tell_after_ns
            )
            if certain:
                self._tell_death(place, now_ns)

    def _tell_death(self, place: int, now_ns: int) -> None:
        death = self._dying.pop(place)
        path = self.life.paths[place]
        if not path.carrier:
            fault = CARRIER
        elif path.hearing and path.peer_hears is False:
            fault = UNHEARD
        elif not path.hearing and path.peer_hears and path.peer_carrier:
            fault = DEAF
        else:
            fault = SILENT
        if place not in self._dead:
            self._news.append(
                Transition(
                    place,
                    False,
                    fault,
                    min(death.since_ns, death.at_ns),
                    death.at_ns,
                    death.paths_alive,
                    death.missed,
                )
            )
            self._dead[place] = fault, min(death.since_ns, death.at_ns)
