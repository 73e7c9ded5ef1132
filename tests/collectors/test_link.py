"""Collector ``link`` against real interfaces in network namespaces."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from collectors.base import Host
from collectors.link import LinkCollector, LinkSettings
from schemas.event import Event
from schemas.inventory import InventoryNic
from schemas.packet import LinkTransition
from schemas.registry import decode, encode

Until = Callable[..., list[Event]]


def opened(namespaces: Any, host: Host, *include: str) -> LinkCollector:
    settings = LinkSettings(include=list(include) or ["va"])
    collector: LinkCollector = namespaces.inside(
        namespaces.a, lambda: LinkCollector(host, settings)
    )
    return collector


def transitions(events: list[Event]) -> list[LinkTransition]:
    return [event for event in events if isinstance(event, LinkTransition)]


def told(number: int) -> Callable[[list[Event]], bool]:
    return lambda events: len(transitions(events)) >= number


def settled(events: list[Event]) -> bool:
    return any(isinstance(event, InventoryNic) for event in events)


def test_start_tells_the_inventory_and_no_fault(namespaces: Any, host: Host, until: Until) -> None:
    namespaces.address()
    collector = opened(namespaces, host)
    events = until(collector, settled)
    collector.close()
    assert transitions(events) == []
    (nic,) = [event for event in events if isinstance(event, InventoryNic)]
    assert (nic.subject, nic.physical, nic.driver) == ("nic:node-1/va", False, "veth")
    assert nic.addresses == ["10.99.0.1/24"]
    assert nic.mtu_bytes == 1500
    assert len(nic.mac.split(":")) == 6


def test_virtual_interfaces_are_left_out_unless_asked_for(
    namespaces: Any, host: Host, until: Until
) -> None:
    collector = opened(namespaces, host, "none*")
    list(collector.collect())
    namespaces.peer("down", "up", "down")
    events = [event for _ in range(2) for event in collector.collect()]
    collector.close()
    assert events == []


def test_loss_and_return(namespaces: Any, host: Host, until: Until) -> None:
    collector = opened(namespaces, host)
    until(collector, settled)
    namespaces.peer("down")
    (loss,) = transitions(until(collector, told(1)))
    namespaces.peer("up")
    (back,) = transitions(until(collector, told(1)))
    collector.close()
    assert (loss.carrier, loss.admin_up, loss.present, loss.physical) == (False, True, True, False)
    assert (back.carrier, back.admin_up, back.since_ns) == (True, True, loss.at_ns)
    assert back.at_ns > loss.at_ns
    assert back.carrier_losses == loss.carrier_losses >= 1
    assert decode(encode(loss), "telemetry.packet") == loss


def test_an_interface_set_down_here_is_no_loss(namespaces: Any, host: Host, until: Until) -> None:
    collector = opened(namespaces, host)
    until(collector, settled)
    namespaces.near("down")
    namespaces.near("up")
    events = transitions(until(collector, told(2)))
    collector.close()
    assert [(event.carrier, event.admin_up) for event in events] == [(False, False), (True, True)]


def test_of_twenty_quick_flaps_no_loss_is_missed(namespaces: Any, host: Host, until: Until) -> None:
    collector = opened(namespaces, host)
    until(collector, settled)
    namespaces.peer(*["down", "up"] * 20)

    def all_there(events: list[Event]) -> bool:
        seen = transitions(events)
        return sum(1 + event.unseen for event in seen if not event.carrier) >= 20 and bool(
            seen[-1].carrier
        )

    events = transitions(until(collector, all_there))
    collector.close()
    assert sum(1 + event.unseen for event in events if not event.carrier) == 20
    assert [event.carrier for event in events] == [False, True] * (len(events) // 2)
    assert len({event.id for event in events}) == len(events)


def test_removal_ends_a_loss(namespaces: Any, host: Host, until: Until) -> None:
    collector = opened(namespaces, host)
    until(collector, settled)
    namespaces.peer("down")
    (loss,) = transitions(until(collector, told(1)))
    namespaces.ip("-n", namespaces.a, "link", "del", "va")
    events = transitions(
        until(collector, lambda seen: any(not event.present for event in transitions(seen)))
    )
    assert events[0].since_ns == loss.at_ns
    assert not any(event.admin_up for event in events)
    namespaces.pair()
    namespaces.peer("down")
    again = until(
        collector,
        lambda seen: any(event.admin_up and not event.carrier for event in transitions(seen)),
    )
    collector.close()
    assert transitions(again)[-1].at_ns > loss.at_ns


def test_a_short_loss_while_the_agent_was_away_is_one_episode(
    namespaces: Any, host: Host, until: Until
) -> None:
    collector = opened(namespaces, host)
    until(collector, settled)
    collector.close()
    closed_ns = json.loads((host.data_dir / "link.json").read_text())["seen_ns"]
    namespaces.peer("down", "up", "down", "up")
    again = opened(namespaces, host)
    loss, back = transitions(until(again, told(2)))
    again.close()
    assert (loss.carrier, loss.at_ns, loss.unseen) == (False, closed_ns, 1)
    assert (back.carrier, back.since_ns) == (True, closed_ns)


def test_a_restart_amid_a_loss_tells_it_once(namespaces: Any, host: Host, until: Until) -> None:
    collector = opened(namespaces, host)
    until(collector, settled)
    namespaces.peer("down")
    (loss,) = transitions(until(collector, told(1)))
    collector.close()
    again = opened(namespaces, host)
    assert transitions(until(again, settled)) == []
    namespaces.peer("up")
    (back,) = transitions(until(again, told(1)))
    again.close()
    assert back.since_ns == loss.at_ns


def test_a_crash_before_sending_sends_the_very_same_event_later(
    namespaces: Any, host: Host, until: Until
) -> None:
    collector = opened(namespaces, host)
    until(collector, settled)
    namespaces.peer("down")
    events = collector.collect()
    loss = next(iter(events))
    # The process dies here: neither sent nor closed.
    again = opened(namespaces, host)
    repeated = transitions(until(again, settled))
    again.close()
    assert repeated == [loss]


def test_when_the_kernel_drops_messages_the_table_is_asked_for_again(
    namespaces: Any, host: Host, until: Until, monkeypatch: Any
) -> None:
    monkeypatch.setattr("collectors.link._RECEIVE_BUFFER_BYTES", 2304)
    collector = opened(namespaces, host)
    until(collector, settled)
    for _ in range(20):
        namespaces.near("mtu", "1400")
        namespaces.near("mtu", "1500")
    namespaces.peer("down")
    (loss,) = transitions(until(collector, told(1)))
    collector.close()
    assert not loss.carrier


def test_a_state_file_that_is_not_ours_is_passed_over(
    namespaces: Any, host: Host, until: Until
) -> None:
    for content in ("{", "[]", '{"boot_id": "boot-1", "seen_ns": 1, "ports": [{}], "unsent": []}'):
        (host.data_dir / "link.json").write_text(content)
        collector = opened(namespaces, host)
        assert transitions(until(collector, settled)) == []
        collector.close()


def test_a_clock_that_steps_back_breaks_nothing(
    namespaces: Any, host: Host, until: Until, monkeypatch: Any
) -> None:
    collector = opened(namespaces, host)
    until(collector, settled)
    monkeypatch.setattr("bus.clock.time.time_ns", lambda: 1_000_000_000)
    namespaces.peer("down")
    (loss,) = transitions(until(collector, told(1)))
    collector.close()
    assert loss.at_ns == 1_000_000_000


def test_facts_that_change_are_told(namespaces: Any, host: Host, until: Until) -> None:
    collector = opened(namespaces, host)
    until(collector, settled)
    namespaces.near("mtu", "9000")
    namespaces.address()

    def known(events: list[Event]) -> bool:
        nics = [event for event in events if isinstance(event, InventoryNic)]
        return bool(nics) and (nics[-1].mtu_bytes, nics[-1].addresses) == (9000, ["10.99.0.1/24"])

    until(collector, known)
    collector.close()


def test_it_works_on_any_linux(host: Host) -> None:
    (capability,) = LinkCollector.capabilities(host, LinkSettings())
    assert capability.works
