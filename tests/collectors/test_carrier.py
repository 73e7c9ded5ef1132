"""The meaning of what the kernel says about carrier."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.carrier import Carriers, Transition
from collectors.nics import Link

NIC = Link(
    ifindex=2,
    name="eth1",
    admin_up=True,
    carrier=True,
    up_count=1,
    down_count=1,
    device="0000:01:00.0",
)
VETH = replace(NIC, device="", kind="veth")
S = 1_000_000_000


def lost(link: Link, losses: int = 1) -> Link:
    return replace(
        link,
        carrier=False,
        down_count=link.down_count + losses,
        up_count=link.up_count + losses - 1,
    )


def back(link: Link) -> Link:
    return replace(link, carrier=True, up_count=link.up_count + 1)


def watching(link: Link = NIC, at_ns: int = 1 * S) -> Carriers:
    carriers = Carriers(bring_up_ns=30 * S)
    assert carriers.observe(link, at_ns) == []
    assert carriers.complete({link.ifindex}, set(), at_ns) == []
    return carriers


def restarted(carriers: Carriers, seen_ns: int, same_boot: bool = True) -> Carriers:
    again = Carriers(bring_up_ns=30 * S)
    again.restore(carriers.state(), seen_ns, same_boot)
    return again


def shape(told: list[Transition]) -> list[tuple[int, bool, bool, int, int]]:
    return [(t.at_ns, t.carrier, t.admin_up, t.since_ns, t.unseen) for t in told]


def test_a_loss_and_its_return() -> None:
    carriers = watching()
    assert shape(carriers.observe(lost(NIC), 5 * S)) == [(5 * S, False, True, 1 * S, 0)]
    assert shape(carriers.observe(back(lost(NIC)), 7 * S)) == [(7 * S, True, True, 5 * S, 0)]
    assert carriers.observe(back(lost(NIC)), 8 * S) == []


def test_losses_that_the_kernel_did_not_announce() -> None:
    carriers = watching()
    now = replace(NIC, up_count=4, down_count=4)
    assert shape(carriers.observe(now, 5 * S)) == [
        (5 * S, False, True, 1 * S, 2),
        (5 * S, True, True, 5 * S, 0),
    ]
    carriers.observe(lost(now), 6 * S)
    assert shape(carriers.observe(lost(lost(now), 1), 7 * S)) == []
    again = replace(lost(now), up_count=6, down_count=7)
    assert [(t.carrier, t.since_ns) for t in carriers.observe(again, 8 * S)] == [
        (True, 6 * S),
        (False, 8 * S),
    ]


def test_setting_down_is_no_loss_and_ends_one() -> None:
    carriers = watching()
    down = replace(lost(NIC), admin_up=False)
    assert shape(carriers.observe(down, 5 * S)) == [(5 * S, False, False, 1 * S, 0)]
    assert carriers.observe(replace(down, admin_up=True), 6 * S) == []
    assert shape(carriers.observe(back(down), 7 * S)) == []


def test_an_interface_set_up_may_negotiate_but_not_for_ever() -> None:
    carriers = watching()
    down = replace(lost(NIC), admin_up=False)
    carriers.observe(down, 5 * S)
    carriers.observe(replace(down, admin_up=True), 6 * S)
    assert carriers.tick(35 * S) == []
    assert shape(carriers.tick(36 * S)) == [(36 * S, False, True, 6 * S, 0)]
    assert carriers.tick(37 * S) == []


def test_a_port_with_nothing_plugged_in_is_not_faulty() -> None:
    carriers = watching(replace(NIC, carrier=False, up_count=0, down_count=1))
    assert carriers.tick(1000 * S) == []


def test_the_first_start_tells_nothing() -> None:
    for link in (NIC, lost(NIC), replace(NIC, admin_up=False)):
        watching(link)


def test_a_short_loss_while_the_agent_was_away() -> None:
    again = restarted(watching(), seen_ns=4 * S)
    assert shape(again.observe(replace(NIC, up_count=3, down_count=3), 60 * S)) == [
        (4 * S, False, True, 1 * S, 1),
        (60 * S, True, True, 4 * S, 0),
    ]


def test_a_loss_that_still_holds_after_a_restart() -> None:
    again = restarted(watching(), seen_ns=4 * S)
    assert shape(again.observe(lost(NIC), 60 * S)) == [(4 * S, False, True, 1 * S, 0)]


def test_a_loss_told_before_a_restart_is_not_told_again() -> None:
    carriers = watching()
    carriers.observe(lost(NIC), 5 * S)
    again = restarted(carriers, seen_ns=6 * S)
    assert again.observe(lost(NIC), 60 * S) == []
    assert shape(again.observe(back(lost(NIC)), 61 * S)) == [(61 * S, True, True, 5 * S, 0)]


def test_a_new_boot_ends_a_loss_and_compares_no_counts() -> None:
    carriers = watching()
    carriers.observe(lost(NIC), 5 * S)
    again = restarted(carriers, seen_ns=6 * S, same_boot=False)
    assert shape(again.observe(replace(NIC, ifindex=9, down_count=50), 60 * S)) == [
        (60 * S, True, True, 5 * S, 0)
    ]
    well = restarted(watching(), seen_ns=6 * S, same_boot=False)
    assert well.observe(replace(NIC, down_count=50), 60 * S) == []


def test_removal_of_a_device_is_a_loss_until_it_is_back() -> None:
    carriers = watching()
    # The kernel sets it down first.
    down = replace(lost(NIC), admin_up=False)
    carriers.observe(down, 5 * S)
    told = carriers.remove(down, 5 * S + 1)
    assert [(t.present, t.admin_up, t.carrier) for t in told] == [(False, True, False)]
    new = replace(NIC, ifindex=8, admin_up=False, carrier=False, up_count=0)
    assert carriers.observe(new, 9 * S) == []
    assert carriers.observe(replace(new, admin_up=True), 10 * S) == []
    assert shape(carriers.observe(replace(NIC, ifindex=8), 11 * S)) == [
        (11 * S, True, True, 5 * S + 1, 0)
    ]


def test_removal_of_a_virtual_interface_ends_its_loss() -> None:
    carriers = watching(VETH)
    carriers.observe(lost(VETH), 5 * S)
    told = carriers.remove(lost(VETH), 6 * S)
    assert [(t.present, t.admin_up, t.since_ns) for t in told] == [(False, False, 5 * S)]
    assert carriers.state() == []


def test_a_device_given_to_a_container_is_not_lost() -> None:
    told = watching().remove(replace(NIC, moved=True), 6 * S)
    assert [(t.present, t.admin_up) for t in told] == [(False, False)]


def test_a_removal_nobody_told_of_is_found_when_all_is_compared() -> None:
    again = restarted(watching(), seen_ns=4 * S)
    told = again.complete(set(), set(), 60 * S)
    assert [(t.at_ns, t.present, t.admin_up) for t in told] == [(4 * S, False, True)]


def test_what_is_no_longer_watched_is_forgotten() -> None:
    again = restarted(watching(), seen_ns=4 * S)
    assert again.complete(set(), {"eth1"}, 60 * S) == []
    assert again.state() == []


def test_a_new_name_is_no_fault() -> None:
    carriers = watching()
    told = carriers.observe(replace(NIC, name="rail0"), 5 * S)
    assert [(t.interface, t.present, t.admin_up) for t in told] == [("eth1", False, False)]
    assert shape(carriers.observe(lost(replace(NIC, name="rail0")), 6 * S))[0][1:3] == (False, True)


steps = st.lists(
    st.tuples(
        st.sampled_from(["lose", "return", "down", "up", "hear", "restart"]), st.integers(0, 9)
    ),
    max_size=60,
)


@settings(max_examples=200)
@given(steps)
def test_every_loss_is_told_once_and_every_return_names_its_loss(
    wanted: list[tuple[str, int]],
) -> None:
    """Whatever the kernel coalesces and however often the agent restarts."""
    link, carriers, now_ns, losses = NIC, watching(), 1 * S, 0
    told: list[Transition] = []
    for step, seconds in [*wanted, ("hear", 1)]:
        now_ns += seconds * S
        if step == "lose" and link.carrier:
            link, losses = lost(link), losses + 1
        elif step == "return" and not link.carrier:
            link = back(link)
        elif step == "hear":
            told += carriers.observe(link, now_ns)
        elif step == "restart":
            carriers = restarted(carriers, now_ns)
    assert sum(1 + t.unseen for t in told if not t.carrier) == losses
    open_since: int | None = None
    for transition in told:
        if transition.carrier:
            assert transition.since_ns == open_since
            open_since = None
        else:
            assert open_since is None
            open_since = transition.at_ns
    assert (open_since is not None) == (not link.carrier)
