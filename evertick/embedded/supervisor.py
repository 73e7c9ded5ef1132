"""Starts parts, waits until they are ready, watches them, restarts them, ends them.

It knows nothing of Kafka or history: a :class:`Part` says how it is started, when it is ready and
how to see that it lives. One event loop in the main thread does it all; only that thread forks (see
``process.py``).

A part counts as dead when it exits, when it says of itself that it is late (three times in a row),
when it does not answer for 20 s, and when it is seen from outside to make no progress. It is then
killed with all that it started and starts anew, after a pause that doubles from 0.5 s to 30 s and
begins again at 0.5 s once a life has lasted 60 s. A part whose needs are not ready is not judged.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from bus.settings import SettingsError
from evertick.embedded.folder import LOG_FILE_MAX_BYTES, LOGS, DataFolder
from evertick.embedded.logs import Events, RotatingFile
from evertick.embedded.process import Process

PAUSE_MIN_S, PAUSE_MAX_S, LONG_LIFE_S = 0.5, 30.0, 60.0
_ATTEMPTS_TO_START = 5
_LATE_ANSWERS = 3
_CLIENTS_END_S, _SERVERS_END_S = 2.5, 3.8
"""Seconds after the order to stop at which those are killed that have not ended."""
_KILLED_S = 0.7
_REFUSED = 2
"""Exit status of a part whose settings do not fit: starting it again would not help."""
_T = TypeVar("_T")


class CannotStart(Exception):
    """A part died again and again before it was ever ready; the text says its last words."""


@dataclass(frozen=True, slots=True)
class Part:
    """One process of the stack."""

    name: str
    argv: Sequence[str]
    start: Callable[[Process], Awaitable[None]]
    """Lets the process in and returns when it is ready."""
    answers: Callable[[], Awaitable[bool]]
    """Whether it says that all is well; raises OSError or TimeoutError where it does not answer."""
    stalled: Callable[[], Awaitable[str | None]] | None = None
    """What stands still, seen from outside, in words."""
    rest: Callable[[], None] = lambda: None
    """Forget what ``stalled`` has seen: a new life begins."""
    needs: tuple[str, ...] = ()
    """Parts that must be ready before this one is let in."""
    gated: bool = False
    """It waits at the gate, see ``gate.py``; otherwise it begins at once."""
    start_timeout_s: float = 90.0
    where: str = ""
    """Where it can be reached."""
    metrics: str = ""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often parts are looked at; tests are in a hurry."""

    answer_s: float = 5.0
    silent_s: float = 20.0
    stalled_s: float = 10.0


@dataclass(slots=True)
class State:
    """How a part fares."""

    phase: str = "starting"
    since_s: float = field(default_factory=time.monotonic)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    ready_after_s: float | None = None
    restarts: int = 0
    process: Process | None = None

    def enter(self, phase: str) -> None:
        """Be in another phase from now on."""
        self.phase, self.since_s = phase, time.monotonic()


def pause_s(deaths: int, jitter: float) -> float:
    """The pause before the start that follows a number of deaths in a row (at least 1).

    ``jitter`` from 0 to 1 takes up to a fifth away.
    """
    pause = min(PAUSE_MAX_S, PAUSE_MIN_S * 2.0 ** min(deaths - 1, 10))
    return pause * (1 - 0.2 * jitter)


class Supervisor:
    """Keeps parts running until told to stop."""

    def __init__(
        self,
        parts: Sequence[Part],
        env: Mapping[str, str],
        folder: DataFolder,
        events: Events,
        pace: Pace = Pace(),
    ) -> None:
        """
        Args:
            parts: what to run.
            env: the environment of all of them.
            folder: where their logs go, and the record of what was started.
            events: hears what happens.
            pace: how often to look.
        """
        self.parts = parts
        self.states = {part.name: State() for part in parts}
        self._env = env
        self._folder = folder
        self._events = events
        self._pace = pace
        self._logs: dict[str, RotatingFile] = {}
        self._stopping = asyncio.Event()
        self._helpers: list[Process] = []

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Run until SIGINT, SIGTERM or SIGHUP; then everything has ended.

        Args:
            on_ready: called once, when all parts are ready for the first time.

        Raises:
            SettingsError: a part refused its settings.
            CannotStart: a part cannot be started.
        """
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._told_to_stop, number)
        keepers = [asyncio.create_task(self._keep(part)) for part in self.parts]
        stop = asyncio.create_task(self._stopping.wait())
        first = asyncio.create_task(self._all_ready())
        try:
            await asyncio.wait([stop, first, *keepers], return_when=asyncio.FIRST_COMPLETED)
            _raise_first(keepers)
            if not stop.done():
                on_ready()
                await asyncio.wait([stop, *keepers], return_when=asyncio.FIRST_COMPLETED)
                _raise_first(keepers)
        finally:
            for task in (*keepers, stop, first):
                task.cancel()
            await asyncio.gather(*keepers, stop, first, return_exceptions=True)
            await self._end()

    def help_out(self, name: str, argv: Sequence[str], nice: int) -> None:
        """Run something once beside the parts; it ends with us if not before."""
        try:
            helper = Process(argv, self._env, self._log(name), nice=nice)
        except OSError as error:
            self._events.say(name, f"cannot be run: {error.strerror}", "warning")
            return
        self._helpers.append(helper)
        self._folder.started(name, helper.pid)

    def _log(self, name: str) -> RotatingFile:
        if name not in self._logs:
            path = self._folder.path / LOGS / f"{name}.log"
            self._logs[name] = RotatingFile(path, LOG_FILE_MAX_BYTES)
        return self._logs[name]

    def _processes(self) -> list[Process]:
        running = [state.process for state in self.states.values() if state.process is not None]
        return [*running, *self._helpers]

    def _reap(self) -> None:
        for process in self._processes():
            process.reap()

    def _told_to_stop(self, number: int) -> None:
        if self._stopping.is_set():
            if number == signal.SIGINT:  # in a hurry
                for process in self._processes():
                    process.kill()
                os._exit(130)
            return
        self._events.say("up", f"stopping ({signal.Signals(number).name})")
        self._stopping.set()

    async def _all_ready(self) -> None:
        while not all(state.ready.is_set() for state in self.states.values()):
            for state in self.states.values():
                await state.ready.wait()

    async def _keep(self, part: Part) -> None:
        state = self.states[part.name]
        deaths = 0
        while True:
            started_s = time.monotonic()
            try:
                process = Process(part.argv, self._env, self._log(part.name), gated=part.gated)
            except OSError as error:
                reason = f"cannot be started: {error.strerror}"
            else:
                state.process = process
                self._folder.started(part.name, process.pid)
                reason = await self._life(part, state, process)
                state.ready.clear()
                process.kill()
                await process.exited.wait()
                process.close()
                self._folder.ended(part.name)
                if state.ready_after_s is None and process.status == _REFUSED:
                    raise SettingsError(process.last_words())
                if process.tail and "status" in reason:  # nobody speaks before a SIGKILL
                    reason += f", last words: {process.last_words().splitlines()[-1]}"
            deaths = 1 if time.monotonic() - started_s >= LONG_LIFE_S else deaths + 1
            if state.ready_after_s is None and deaths >= _ATTEMPTS_TO_START:
                raise CannotStart(f"{part.name} {reason}")
            wait_s = pause_s(deaths, random.random())
            state.enter("restarting")
            state.restarts += 1
            self._events.say(part.name, f"{reason}; starting it again in {wait_s:.1f} s", "warning")
            await asyncio.sleep(wait_s)

    async def _life(self, part: Part, state: State, process: Process) -> str:
        """From the start of a process to why it must be replaced."""
        born_s = time.monotonic()
        part.rest()
        state.enter("waiting" if part.needs else "starting")
        if not await _unless_exited(process, self._needs(part)):
            return _exit_words(process)
        state.enter("starting")
        try:
            async with asyncio.timeout(part.start_timeout_s):
                if not await _unless_exited(process, part.start(process)):
                    return _exit_words(process)
        except TimeoutError:
            return f"was not ready within {part.start_timeout_s:.0f} s"
        state.enter("ready")
        took_s = time.monotonic() - born_s
        state.ready_after_s = took_s if state.ready_after_s is None else state.ready_after_s
        state.ready.set()
        self._events.say(part.name, f"ready after {took_s:.1f} s (process {process.pid})")
        return await self._watch(part, process)

    async def _needs(self, part: Part) -> None:
        for need in part.needs:
            await self.states[need].ready.wait()

    async def _watch(self, part: Part, process: Process) -> str:
        late = 0
        answered_s = looked_s = time.monotonic()
        while True:
            try:
                async with asyncio.timeout(self._pace.answer_s):
                    await process.exited.wait()
                return _exit_words(process)
            except TimeoutError:
                pass  # it lives: look at it
            if not all(self.states[need].ready.is_set() for need in part.needs):
                late, answered_s = 0, time.monotonic()
                part.rest()
                continue
            try:
                well = await part.answers()
            except (OSError, TimeoutError):
                silent_s = time.monotonic() - answered_s
                if silent_s >= self._pace.silent_s:
                    return f"has not answered for {silent_s:.0f} s"
                continue
            answered_s = time.monotonic()
            late = 0 if well else late + 1
            if late >= _LATE_ANSWERS:
                return "says that it makes no progress"
            if part.stalled is not None and answered_s - looked_s >= self._pace.stalled_s:
                looked_s = answered_s
                if (reason := await part.stalled()) is not None:
                    return reason

    async def _end(self) -> None:
        """End everything: those that use others first, so that they can still say goodbye."""
        for helper in self._helpers:
            helper.kill()
        needed = {need for part in self.parts for need in part.needs}
        waves = (
            ([part.name for part in self.parts if part.name not in needed], _CLIENTS_END_S),
            ([part.name for part in self.parts if part.name in needed], _SERVERS_END_S),
        )
        began_s = time.monotonic()
        for names, until_s in waves:
            processes = [p for name in names if (p := self.states[name].process) is not None]
            for process in processes:
                process.terminate()
            await _exits(processes, began_s + until_s - time.monotonic())
            for name in names:
                state = self.states[name]
                if state.process is not None and not state.process.exited.is_set():
                    self._events.say(name, "did not end in time: killed", "warning")
                    state.process.kill()
        await _exits(self._processes(), _KILLED_S)
        for process in self._processes():
            process.close()
        for name in (*self.states, *self._logs):
            self._folder.ended(name)
        for log in self._logs.values():
            log.close()


async def _unless_exited(process: Process, awaitable: Awaitable[None]) -> bool:
    """Await something; False if the process exits before."""
    task = asyncio.ensure_future(awaitable)
    exited = asyncio.create_task(process.exited.wait())
    try:
        await asyncio.wait([task, exited], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        return task.done() and not process.exited.is_set()
    finally:
        for each in (task, exited):
            each.cancel()
        await asyncio.gather(task, exited, return_exceptions=True)


async def _exits(processes: Sequence[Process], within_s: float) -> None:
    waits = [asyncio.create_task(p.exited.wait()) for p in processes if not p.exited.is_set()]
    if waits:
        _, late = await asyncio.wait(waits, timeout=within_s)
        for task in late:
            task.cancel()


def _raise_first(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done():
            task.result()


def _exit_words(process: Process) -> str:
    status = process.status
    if status is not None and status < 0:
        return f"exited by {signal.Signals(-status).name}"
    return f"exited with status {status}"
