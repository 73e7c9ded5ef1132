"""The supervisor over cheap real processes: they die, hang, say they are late, refuse, leave children."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.settings import SettingsError
from evertick.embedded import folder
from evertick.embedded.groups import PARTITION_STALLED_S, STALLED_S, Progress, assigned
from evertick.embedded.logs import Events, RotatingFile
from evertick.embedded.process import Process
from evertick.embedded.supervisor import (
    PAUSE_MAX_S,
    CannotStart,
    Pace,
    Part,
    Supervisor,
    pause_s,
)

QUICK = Pace(answer_s=0.05, silent_s=0.3, stalled_s=0.05)
SLEEP = "import time; print('here', flush=True); time.sleep(300)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SLEEP


async def well() -> bool:
    return True


async def printed(process: Process) -> None:
    """Ready once it has said something."""
    process.let_in()
    while not process.tail:
        await asyncio.sleep(0.01)


def part(name: str, code: str, **rest: object) -> Part:
    fields: dict[str, object] = {"start": printed, "answers": well, **rest}
    return Part(name, [sys.executable, "-c", code], **fields)  # type: ignore[arg-type]


def supervise(
    tmp_path: Path, parts: list[Part], scenario: Callable[[Supervisor], Awaitable[None]] | None
) -> str:
    """Run parts, a scenario once they are ready, then SIGTERM; returns the log of events."""
    held = folder.hold(tmp_path / "data")
    held.make()
    path = held.path / folder.LOGS / "up.log"
    log = RotatingFile(path, 1 << 20)
    events = Events(log)

    async def live() -> None:
        stack = Supervisor(parts, os.environ, held, events, QUICK)
        tasks = []

        async def play() -> None:
            try:
                if scenario is not None:
                    async with asyncio.timeout(60):
                        await scenario(stack)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)

        await stack.run(lambda: tasks.append(asyncio.ensure_future(play())))
        await asyncio.gather(*tasks)
        assert all(
            state.process is None or state.process.status is not None
            for state in stack.states.values()
        )

    assert threading.current_thread() is threading.main_thread()
    try:
        asyncio.run(live())
    finally:
        log.close()
        held.close()
    return path.read_text()


async def until(true: Callable[[], object]) -> None:
    while not true():
        await asyncio.sleep(0.01)


def test_a_part_that_is_killed_comes_back_and_the_others_stay(tmp_path: Path) -> None:
    async def scenario(stack: Supervisor) -> None:
        one, two = stack.states["one"], stack.states["two"]
        assert one.process is not None and two.process is not None
        first, other = one.process.pid, two.process.pid
        os.kill(first, signal.SIGKILL)
        await until(lambda: one.process is not None and one.process.pid != first)
        await one.ready.wait()
        assert two.process.pid == other

    log = supervise(tmp_path, [part("one", SLEEP), part("two", SLEEP)], scenario)
    assert "warning one: exited by SIGKILL" in log
    assert "starting it again in 0." in log


def test_a_part_that_says_it_is_late_is_replaced(tmp_path: Path) -> None:
    answers = {"well": True}

    async def answer() -> bool:
        return answers["well"]

    async def scenario(stack: Supervisor) -> None:
        state = stack.states["one"]
        answers["well"] = False
        await until(lambda: state.restarts)
        answers["well"] = True
        await state.ready.wait()

    log = supervise(tmp_path, [part("one", SLEEP, answers=answer)], scenario)
    assert "one: says that it makes no progress" in log


def test_a_part_that_does_not_answer_is_replaced_also_if_it_ignores_sigterm(tmp_path: Path) -> None:
    silent = {"now": False}

    async def answer() -> bool:
        if silent["now"]:
            raise ConnectionRefusedError
        return True

    async def scenario(stack: Supervisor) -> None:
        state = stack.states["one"]
        silent["now"] = True
        await until(lambda: state.restarts)
        silent["now"] = False
        await state.ready.wait()

    log = supervise(tmp_path, [part("one", DEAF, answers=answer)], scenario)
    assert "one: has not answered for" in log
    assert "one: did not end in time" in log


def test_a_part_that_stands_still_is_replaced_but_not_while_its_need_is_away(
    tmp_path: Path,
) -> None:
    looked = {"still": False, "looks": 0, "rests": 0}

    async def stalled() -> str | None:
        looked["looks"] += 1
        return "stands still" if looked["still"] else None

    def rest() -> None:
        looked["rests"] += 1

    async def scenario(stack: Supervisor) -> None:
        server, client = stack.states["server"], stack.states["client"]
        assert server.process is not None
        await until(lambda: looked["looks"])
        rests = looked["rests"]
        os.kill(server.process.pid, signal.SIGKILL)
        await until(lambda: looked["rests"] > rests)  # it is let off as long as the server is away
        await server.ready.wait()
        assert client.restarts == 0
        looked["still"] = True
        await until(lambda: client.restarts)
        looked["still"] = False
        await client.ready.wait()

    parts = [
        part("server", SLEEP),
        part("client", SLEEP, needs=("server",), stalled=stalled, rest=rest),
    ]
    assert "client: stands still" in supervise(tmp_path, parts, scenario)


def test_a_gated_part_begins_only_when_what_it_needs_is_ready(tmp_path: Path) -> None:
    gated = (
        "import sys; sys.stdin.readline(); print('in', flush=True); import time; time.sleep(300)"
    )
    slow = "import time; time.sleep(0.5); print('up', flush=True); time.sleep(300)"
    parts = [part("client", gated, needs=("server",), gated=True), part("server", slow)]
    log = supervise(tmp_path, parts, None)
    assert log.index("server: ready") < log.index("client: ready")


def test_a_part_that_refuses_its_settings_ends_all_with_its_words(tmp_path: Path) -> None:
    refuses = "import sys; print('evertick: setting x: no such setting'); sys.exit(2)"
    with pytest.raises(SettingsError, match=r"^setting x: no such setting$"):
        supervise(tmp_path, [part("one", SLEEP), part("two", refuses, start=never)], None)


def test_a_part_that_never_starts_ends_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evertick.embedded.supervisor.PAUSE_MIN_S", 0.01)
    dies = "print('no such library'); raise SystemExit(1)"
    with pytest.raises(CannotStart, match="two exited with status 1, last words: no such library"):
        supervise(tmp_path, [part("one", SLEEP), part("two", dies, start=never)], None)


async def never(process: Process) -> None:
    await asyncio.sleep(300)


def test_what_a_part_started_ends_with_it(tmp_path: Path) -> None:
    code = (
        "import subprocess, time; p = subprocess.Popen(['sleep', '300']);"
        "print(p.pid, flush=True); time.sleep(300)"
    )
    pids: list[int] = []

    async def scenario(stack: Supervisor) -> None:
        process = stack.states["one"].process
        assert process is not None
        pids.append(int(process.tail[0]))

    supervise(tmp_path, [part("one", code)], scenario)
    wait_for(lambda: gone(pids[0]))


KILLED = textwrap.dedent(
    """
    import asyncio, os, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[2])
    from evertick.embedded import folder
    from evertick.embedded.logs import Events, RotatingFile
    from evertick.embedded.supervisor import Part, Supervisor

    held = folder.hold(Path(sys.argv[1]))
    held.make()

    async def start(process):
        while not process.tail:
            await asyncio.sleep(0.01)

    async def answers():
        return True

    async def main():
        code = ("import subprocess, time; p = subprocess.Popen(['sleep', '300']);"
                "print(p.pid, flush=True); time.sleep(300)")
        part = Part("one", [sys.executable, "-c", code], start=start, answers=answers)
        events = Events(RotatingFile(held.path / "logs" / "up.log", 1 << 20))
        stack = Supervisor([part], os.environ, held, events)
        def told():
            process = stack.states["one"].process
            print(process.pid, process.tail[0], flush=True)
        await stack.run(told)

    asyncio.run(main())
    """
)


def test_parts_die_with_a_killed_supervisor_and_the_next_ends_their_children(
    tmp_path: Path,
) -> None:
    root = str(Path(__file__).resolve().parents[2])
    run = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "data"), root],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    process, child = (int(word) for word in run.stdout.readline().split())
    run.kill()
    run.wait()
    run.stdout.close()
    wait_for(lambda: gone(process))
    assert not gone(child)  # the kernel ends only what the supervisor itself started
    held = folder.hold(tmp_path / "data")
    assert held.end_orphans() == 1
    held.close()
    wait_for(lambda: gone(child))


def test_a_folder_is_held_by_one_and_named_by_its_process(tmp_path: Path) -> None:
    held = folder.hold(tmp_path / "data")
    with pytest.raises(SettingsError, match=rf"another evertick up \(process {os.getpid()}\)"):
        folder.hold(tmp_path / "data")
    held.close()
    folder.hold(tmp_path / "data").close()


def test_a_process_is_not_taken_for_an_earlier_one_of_its_number() -> None:
    sleeper = subprocess.Popen(["sleep", "300"], start_new_session=True)
    try:
        ticks = folder.start_ticks(sleeper.pid)
        assert ticks is not None
        assert folder.orphans_of([folder.Known(sleeper.pid, ticks)]) == [sleeper.pid]
        assert folder.orphans_of([folder.Known(sleeper.pid, ticks - 1)]) == []
    finally:
        sleeper.kill()
        sleeper.wait()


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has reaped yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_for(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@given(st.lists(st.binary(max_size=50), max_size=40))
def test_logs_never_exceed_two_files_of_their_size(pieces: list[bytes]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as home:
        log = RotatingFile(Path(home) / "x.log", 64)
        for piece in pieces:
            log.write(piece)
        log.close()
        files = {path.name: path.read_bytes() for path in Path(home).iterdir()}
    assert set(files) <= {"x.log", "x.log.1"}
    assert all(len(content) <= 64 for content in files.values())
    kept = files.get("x.log.1", b"") + files["x.log"]
    assert b"".join(pieces).endswith(kept)


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_pauses_double_to_a_bound(deaths: int, jitter: float) -> None:
    assert 0.4 <= pause_s(deaths, jitter) <= PAUSE_MAX_S
    assert pause_s(deaths, 0) <= pause_s(deaths + 1, 0)


A, B = ("t", 0), ("t", 1)


def test_a_group_that_commits_or_has_nothing_to_read_gets_on() -> None:
    progress = Progress()
    for second in range(0, 300, 10):
        assert progress.observe(second, 1, {A: (second, 1000), B: (7, 7)}) is None


def test_a_group_that_commits_nothing_with_messages_to_read_stands_still() -> None:
    progress = Progress()
    told = [progress.observe(second, 1, {A: (5, 9), B: (7, 7)}) for second in range(0, 50, 10)]
    assert told[: int(STALLED_S // 10)] == [None] * 3
    assert told[3] is not None and "with 4 messages to read (t/0)" in told[3]


def test_one_partition_may_wait_for_others_but_not_for_ever() -> None:
    progress = Progress()
    told = {
        second: progress.observe(second, 1, {A: (5, 9), B: (second, 10_000)})
        for second in range(0, 200, 10)
    }
    late = [second for second, words in told.items() if words]
    assert late and late[0] == PARTITION_STALLED_S


def test_a_group_without_members_stands_still() -> None:
    progress = Progress()
    assert progress.observe(0, 1, {A: (5, 5)}) is None
    assert progress.observe(10, 0, {}) is None
    assert "left its group" in str(progress.observe(10 + STALLED_S, 0, {}))


def test_an_assignment_is_read_as_kafka_writes_it() -> None:
    written = bytes.fromhex("0000000000020001610000000200000000000000030002626200000000ffffffff")
    assert assigned(written) == [("a", 0), ("a", 3)]
    assert assigned(b"") == []
