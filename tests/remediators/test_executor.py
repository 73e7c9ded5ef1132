"""A receiver's queue: order, one at a time, and what happens when the receiver is slow."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediators import executor as executor_module
from remediators.base import Limits, Result
from remediators.executor import Executor, Task, backoff_s
from tests.conftest import eventually
from tests.remediators.samples import incident
from tests.remediators.test_ledger import FIRING, RESOLVED, action

DONE = Result(True, "done")
AGAIN = Result(False, "away", again=True)
NOW_S = int(time.time()) - 1_790_000_000


def task(number: int, ends: bool = False) -> Task:
    return Task(action(number, RESOLVED if ends else FIRING, at_s=NOW_S), incident(number))


def label(of: Task) -> tuple[str, str]:
    return of.action.incident, of.action.purpose


class Desk:
    """An executor with a remedy that does what the test says."""

    def __init__(self, **limits: float) -> None:
        self.tried: list[tuple[str, str]] = []
        self.concluded: list[tuple[tuple[str, str], Result]] = []
        self.results: dict[tuple[str, str], list[Result | Exception]] = {}
        self.hang: dict[tuple[str, str], threading.Event] = {}
        self.under_way = 0
        self.most_under_way = 0
        self._lock = threading.Lock()
        self.executor = Executor(
            "notify",
            "pager",
            Limits(**limits),
            self._perform,
            self._conclude,  # type: ignore[arg-type]
        )

    def _perform(self, of: Task) -> Result:
        name = label(of)
        with self._lock:
            self.tried.append(name)
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
        if name in self.hang:
            self.hang[name].wait(30)
        with self._lock:
            self.under_way -= 1
        queue = self.results.get(name)
        result = queue.pop(0) if queue else DONE
        if isinstance(result, Exception):
            raise result
        return result

    def _conclude(self, of: Task, result: Result) -> None:
        self.concluded.append((label(of), result))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_module, "_BACKOFF_FIRST_S", 0.02)


def test_one_at_a_time_while_the_receiver_is_prompt() -> None:
    desk = Desk(concurrency=4)
    desk.executor.submit(*[task(number) for number in range(50)])
    eventually(lambda: len(desk.concluded) == 50)
    assert desk.most_under_way == 1


def test_a_request_that_hangs_holds_up_only_its_own_incident() -> None:
    desk = Desk(concurrency=2)
    release = desk.hang[label(task(0))] = threading.Event()
    desk.executor.submit(task(0), task(0, ends=True), task(1), task(1, ends=True))
    eventually(lambda: len(desk.concluded) == 2)
    assert [name for name, _ in desk.concluded] == [label(task(1)), label(task(1, ends=True))]
    release.set()
    eventually(lambda: len(desk.concluded) == 4)
    assert [name for name, _ in desk.concluded][2:] == [label(task(0)), label(task(0, ends=True))]


def test_what_fails_is_tried_again_before_what_follows_it() -> None:
    desk = Desk()
    desk.results[label(task(0))] = [AGAIN, AGAIN, DONE]
    desk.executor.submit(task(0), task(0, ends=True), task(1))
    eventually(lambda: len(desk.concluded) == 3)
    assert [name for name in desk.tried if name[0] == task(0).action.incident] == [
        label(task(0)),
        label(task(0)),
        label(task(0)),
        label(task(0, ends=True)),
    ]
    assert desk.concluded[0][0] == label(task(1)), "others do not wait for it"


def test_it_is_given_up_after_its_time() -> None:
    desk = Desk(give_up_s=1.0)
    old = Task(action(0, at_s=NOW_S - 3600), incident(0))
    desk.results[label(old)] = [AGAIN]
    desk.executor.submit(old)
    eventually(lambda: desk.concluded)
    [(_, result)] = desk.concluded
    assert not result.done and not result.again
    assert "given up" in result.detail and "away" in result.detail


def test_what_is_refused_for_good_is_concluded_at_once() -> None:
    desk = Desk()
    desk.results[label(task(0))] = [Result(False, "HTTP 410")]
    desk.executor.submit(task(0))
    eventually(lambda: desk.concluded)
    assert desk.tried == [label(task(0))]


def test_a_fault_in_a_remedy_ends_nothing() -> None:
    desk = Desk()
    desk.results[label(task(0))] = [ZeroDivisionError("a bug"), DONE]
    desk.executor.submit(task(0), task(1))
    eventually(lambda: len(desk.concluded) == 2)
    assert [name for name, _ in desk.concluded] == [label(task(1)), label(task(0))]


def test_once_stopped_nothing_begins_and_what_is_under_way_may_end() -> None:
    desk = Desk()
    release = desk.hang[label(task(0))] = threading.Event()
    desk.executor.submit(task(0), task(1))
    eventually(lambda: desk.tried)
    desk.executor.stop()
    assert not desk.executor.wait_idle(time.monotonic() + 0.05)
    release.set()
    assert desk.executor.wait_idle(time.monotonic() + 30)
    assert [name for name, _ in desk.concluded] == [label(task(0))]


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_backoff_grows_and_is_bounded(attempts: int, jitter: float) -> None:
    wait_s = backoff_s(attempts, jitter)
    assert 0 < wait_s <= 30
    assert backoff_s(attempts + 1, jitter) >= wait_s
