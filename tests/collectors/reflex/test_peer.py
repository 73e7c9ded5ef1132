"""Two ends over a simulated network: verdicts, agreement, sessions, and what never happens."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.reflex.choice import FAILOVER
from collectors.reflex.peer import CARRIER, DEAF, REPLAYED, SILENT, STRANGER, UNHEARD

from .simulation import HOLD, MS, TIMING, Network


def joined() -> Network:
    network = Network()
    network.run(600)
    assert network.a.peer.chosen is not None
    assert network.a.peer.chosen == network.b.peer.chosen
    assert network.a.peer.life.alive == network.b.peer.life.alive == [True, True]
    network.a.moves.clear()
    network.b.moves.clear()
    return network


def used(network: Network) -> int:
    chosen = network.a.peer.chosen
    assert chosen is not None
    return chosen


def test_a_silent_loss_is_left_by_both_within_the_timeout_and_taken_again() -> None:
    network = joined()
    place, at_ns = used(network), network.now_ns
    network.lost["a", place] = network.lost["b", place] = True
    network.run(300)
    for end in (network.a, network.b):
        (move,) = end.moves
        assert move.decision.reason == FAILOVER and move.decision.left == place
        assert move.at_ns - at_ns <= 40 * MS
        (death,) = end.told
        assert (death.alive, death.fault, death.paths_alive) == (False, SILENT, 1)
        assert death.missed >= 2
    network.lost["a", place] = network.lost["b", place] = False
    network.run(600)
    assert used(network) == network.b.peer.chosen == place
    for end in (network.a, network.b):
        assert [told.alive for told in end.told] == [False, True]
        assert end.told[0].since_ns == end.told[1].since_ns


@pytest.mark.parametrize("sender", ["a", "b"])
def test_a_loss_one_way_is_known_and_named_at_both_ends(sender: str) -> None:
    network = joined()
    place, at_ns = used(network), network.now_ns
    network.lost[sender, place] = True
    network.run(300)
    ends = {"a": network.a, "b": network.b}
    faults = {name: end.told[0].fault for name, end in ends.items()}
    assert faults == {sender: UNHEARD, "b" if sender == "a" else "a": DEAF}
    for end in ends.values():
        assert [move.decision.reason for move in end.moves] == [FAILOVER]
        assert end.moves[0].at_ns - at_ns <= 45 * MS


def test_carrier_is_acted_upon_at_once_at_both_ends() -> None:
    network = joined()
    place, at_ns = used(network), network.now_ns
    network.b.peer.carrier(place, False)
    network.run(20)
    assert network.b.moves[0].at_ns - at_ns <= 2 * MS
    assert network.a.moves[0].at_ns - at_ns <= 4 * MS
    network.run(200)
    assert network.b.told[0].fault == CARRIER and network.a.told[0].fault == SILENT
    network.b.peer.carrier(place, True)
    network.run(600)
    assert network.a.peer.chosen == network.b.peer.chosen == place


def test_all_paths_dead_is_said_at_once_and_moves_nothing() -> None:
    network = joined()
    place = used(network)
    for key in network.lost:
        network.lost[key] = True
    network.run(70)
    for end in (network.a, network.b):
        assert [told.paths_alive for told in end.told] == [0, 0]
        assert not end.moves and end.peer.chosen == place


def test_a_host_that_stands_still_is_no_fault_of_a_path() -> None:
    network = joined()
    for end, milliseconds in ((network.a, 35), (network.b, 38), (network.a, 500), (network.b, 90)):
        network.stall(end, milliseconds)
        network.run(milliseconds + 300)
    assert not network.a.moves and not network.b.moves
    assert not [
        told
        for told in network.b.told
        if told.paths_alive == 1 and not told.alive and told.fault == CARRIER
    ]
    assert network.a.peer.life.alive == [True, True]


def test_a_steady_queue_is_no_death() -> None:
    network = joined()
    place = used(network)
    for delay_ms in range(1, 40):
        network.delay_ns["a", place] = network.delay_ns["b", place] = delay_ms * MS
        network.run(20)
    assert not network.a.moves and not network.b.moves


def test_single_losses_are_no_death_and_raise_the_bar() -> None:
    network = joined()
    place = used(network)
    for _ in range(60):
        network.lost["a", place] = True
        network.run(20)
        network.lost["a", place] = False
        network.run(60)
    assert not [move for move in network.b.moves if move.decision.reason == FAILOVER]
    assert network.b.peer.paths[place].need > TIMING.need
    assert network.b.peer.paths[place].lossy


def test_an_end_that_restarts_is_known_again_without_a_death() -> None:
    network = joined()
    place = used(network)
    network.b.start(3003)
    network.b.peer.choice.adopt(place)
    network.run(400)
    assert network.a.peer.peer_session == 3003 and network.b.peer.peer_session == 1001
    assert network.a.peer.life.alive == network.b.peer.life.alive == [True, True]
    assert not network.a.moves and not network.b.moves and not network.a.told


def test_nothing_that_was_recorded_counts_again() -> None:
    network = joined()
    place = used(network)
    recorded = [item for item in network.captured if item[0] == "b"]
    network.run(4000)
    for _, path, heartbeat in recorded:
        assert network.deliver(network.a, path, heartbeat) == REPLAYED
    # Of an earlier session of the peer's, and of an earlier one of ours.
    network.b.start(3003)
    network.run(300)
    for _, path, heartbeat in recorded:
        assert network.deliver(network.a, path, heartbeat) == REPLAYED
    network.a.start(4004)
    heard = [network.deliver(network.a, path, heartbeat) for _, path, heartbeat in recorded]
    assert set(heard) <= {STRANGER, REPLAYED}
    assert network.a.peer.peer_session is None and network.a.peer.life.alive == [None, None]
    network.run(300)
    assert network.a.peer.life.alive == [True, True]
    for _, path, heartbeat in recorded:
        assert network.deliver(network.a, path, heartbeat) in (REPLAYED, STRANGER)
    assert network.a.peer.peer_session == 3003
    assert network.a.peer.chosen in (place, 1 - place)


def test_a_blackhole_is_not_hidden_by_replays() -> None:
    network = joined()
    place = used(network)
    recorded = [item for item in network.captured if item[0] == "b" and item[1] == place]
    network.lost["b", place] = network.lost["a", place] = True
    for _ in range(10):
        for _, path, heartbeat in recorded[-5:]:
            network.deliver(network.a, path, heartbeat)
        network.run(10)
    assert network.a.peer.chosen == 1 - place


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("lost"), st.sampled_from("ab"), st.integers(0, 1), st.booleans()),
        st.tuples(st.just("carrier"), st.sampled_from("ab"), st.integers(0, 1), st.booleans()),
        st.tuples(st.just("stall"), st.sampled_from("ab"), st.integers(1, 120), st.just(True)),
        st.tuples(st.just("delay"), st.sampled_from("ab"), st.integers(0, 25), st.booleans()),
        st.tuples(st.just("start"), st.sampled_from("ab"), st.integers(0, 1), st.just(True)),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(_STEPS, st.lists(st.integers(1, 400), min_size=12, max_size=12), st.integers(0, 9))
def test_whatever_happens(
    steps: list[tuple[str, str, int, bool]], waits_ms: list[int], phase_ms: int
) -> None:
    network = Network()
    network.b.due_ns = phase_ms * MS
    network.run(500)
    ends = {"a": network.a, "b": network.b}
    for number, ((what, name, value, on), wait_ms) in enumerate(zip(steps, waits_ms, strict=False)):
        end = ends[name]
        if what == "lost":
            network.lost[name, value] = on
        elif what == "carrier":
            end.peer.carrier(value, on)
        elif what == "stall":
            network.stall(end, value)
        elif what == "delay":
            network.delay_ns[name, int(on)] = max(1, value) * MS
        else:
            chosen = end.peer.chosen
            carriers = [path.carrier for path in end.peer.paths]
            end.start(10_000 + number)
            for place, carrier in enumerate(carriers):
                end.peer.carrier(place, carrier)
            if chosen is not None:
                end.peer.choice.adopt(chosen)
        network.run(wait_ms)
    for end in ends.values():
        assert not end.wrong_ns
        backs = end.failbacks()
        if end is network.a and not any(step[0] == "start" for step in steps):
            assert all(later - sooner >= HOLD.first_ns for sooner, later in pairwise(backs))
    # All is well again: both ends agree, on the best path, and stay there.
    for key in network.lost:
        network.lost[key] = False
        network.delay_ns[key] = MS // 5
    for end in ends.values():
        for place in range(2):
            end.peer.carrier(place, True)
    network.run(HOLD.max_ns // MS + 800)
    assert network.a.peer.life.alive == network.b.peer.life.alive == [True, True]
    assert network.a.peer.chosen == network.b.peer.chosen is not None
    moves = len(network.a.moves) + len(network.b.moves)
    network.run(400)
    assert len(network.a.moves) + len(network.b.moves) == moves
