"""The choice of a path: alike at both ends, spread over the rails, never back before its time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from collectors.reflex.choice import FAILBACK, FAILOVER, RESTORE, START, Choice, HoldDown, order

_HOLD = HoldDown(first_ns=1000, max_ns=8000, forget_ns=60_000)
_CLEAN = [False, False]


def choice(leads: bool = True) -> Choice:
    return Choice([0, 1], leads, _HOLD)


def observe(made: Choice, alive: list[bool | None], now_ns: int) -> None:
    for place, living in enumerate(alive):
        made.observe(place, living, False, now_ns)


def test_both_ends_rank_alike_and_peers_spread() -> None:
    first = []
    for number in range(200):
        tags = [number * 7 + 1, number * 7 + 2, number * 7 + 3]
        there, back = (
            order("node-1", f"node-{number + 2}", tags),
            order(f"node-{number + 2}", "node-1", tags),
        )
        assert there == back and sorted(there) == [0, 1, 2]
        first.append(there[0])
    assert all(first.count(place) > 40 for place in range(3))


def test_a_dead_path_is_left_at_once_and_taken_again_after_the_hold_down() -> None:
    made = choice()
    observe(made, [True, True], 0)
    assert made.decide([True, True], _CLEAN, None, True, 0) == (0, START)
    made.moved(0)
    observe(made, [False, True], 5000)
    assert made.decide([False, True], _CLEAN, None, True, 5000) == (1, FAILOVER)
    made.moved(1)
    observe(made, [True, True], 6000)
    assert made.decide([True, True], _CLEAN, None, True, 6999) is None and made.waiting
    assert made.decide([True, True], _CLEAN, None, True, 7000) == (0, FAILBACK)


def test_all_dead_leaves_the_route_alone() -> None:
    made = choice()
    made.moved(0)
    observe(made, [False, False], 1)
    assert made.decide([False, False], _CLEAN, None, True, 1) is None


def test_what_an_earlier_run_left_wrong_is_restored() -> None:
    made = choice()
    made.adopt(0)
    observe(made, [False, True], 1)
    assert made.decide([False, True], _CLEAN, None, True, 1) == (1, RESTORE)


def test_the_other_end_follows_where_it_sees_the_path_alive() -> None:
    made = choice(leads=False)
    made.moved(1)
    assert made.decide([True, True], _CLEAN, 0, True, 0) == (0, FAILBACK)
    assert made.decide([True, True], _CLEAN, 1, True, 0) is None
    assert made.decide([True, True], _CLEAN, None, True, 10**9) is None
    assert made.decide([False, True], _CLEAN, 0, True, 0) is None


def test_the_hold_down_doubles_up_to_its_bound_and_is_forgotten() -> None:
    made = choice()
    now_ns, holds = 0, []
    for _ in range(6):
        observe(made, [True, True], now_ns)
        now_ns += made.hold_ns(0)
        observe(made, [False, True], now_ns)
        holds.append(made.hold_ns(0))
    assert holds == [1000, 2000, 4000, 8000, 8000, 8000]
    observe(made, [True, True], now_ns)
    now_ns += _HOLD.forget_ns
    observe(made, [False, True], now_ns)
    assert made.hold_ns(0) == 1000


def test_a_train_of_flaps_is_one_death() -> None:
    made = choice()
    observe(made, [True, True], 0)
    for now_ns in range(5000, 5500, 50):
        observe(made, [False, True], now_ns)
        observe(made, [True, True], now_ns + 25)
    assert made.hold_ns(0) == 1000
    made.moved(1)
    assert made.decide([True, True], _CLEAN, None, True, 6000) is None


def test_a_clean_path_is_better_than_a_lossy_one() -> None:
    made = choice()
    observe(made, [True, True], 0)
    made.moved(0)
    assert made.decide([True, True], [True, False], None, True, 5000) == (1, FAILBACK)
    assert made.decide([True, True], [True, True], None, True, 5000) is None


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.booleans(), st.integers(0, 3000)), min_size=1, max_size=80
    )
)
def test_never_on_a_dead_path_while_one_lives_nor_back_too_soon(
    turns: list[tuple[int, bool, int]],
) -> None:
    made = choice()
    alive: list[bool | None] = [True, True]
    now_ns, backs = 0, [-(10**9)]
    observe(made, alive, now_ns)
    for place, living, wait_ns in turns:
        now_ns += wait_ns
        alive[place] = living
        observe(made, alive, now_ns)
        while (wanted := made.decide(alive, _CLEAN, None, True, now_ns)) is not None:
            to, reason = wanted
            assert alive[to] and to != made.current
            if reason == FAILBACK:
                assert now_ns - backs[-1] >= _HOLD.first_ns
                backs.append(now_ns)
            made.moved(to)
        if True in alive and made.current is not None:
            assert alive[made.current]
