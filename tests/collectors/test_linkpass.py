"""Collector ``linkpass`` in a host of its own: a real watchdog, and one at the other end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bus.settings import section
from collectors.base import Host, Unavailable
from collectors.linkpass import LinkPassCollector
from collectors.reflex.config import LinkPassSettings
from schemas.event import Event
from schemas.path import PathHealth, PathTransition, ReflexOutcome, RouteMove, RouteMoveReason
from schemas.registry import decode, encode, topic_of


def settings(own: int, other: int, **changes: Any) -> LinkPassSettings:
    table = {
        "key": "a secret of the test",
        "port": 17251,
        "address": [f"10.99.9.{own}"],
        "failback_after_ms": 200,
        "health_interval_s": 0.2,
        "peers": {
            f"node-{other}": {
                "address": [f"10.99.9.{other}"],
                "paths": [
                    {
                        "interface": "va" if own == 1 else "vb",
                        "local": f"10.99.0.{own}",
                        "remote": f"10.99.0.{other}",
                    }
                ],
            }
        },
        **changes,
    }
    return section(LinkPassSettings, table, "collectors.linkpass")


@pytest.fixture
def ends(
    namespaces: Any, host: Host, tmp_path: Path
) -> Iterator[tuple[LinkPassCollector, LinkPassCollector]]:
    namespaces.address()
    for name, own in ((namespaces.a, 1), (namespaces.b, 2)):
        namespaces.ip("-n", name, "addr", "add", f"10.99.9.{own}/32", "dev", "lo")
    other = Host(node="node-2", zone="default", data_dir=tmp_path / "other", boot_id="boot-2")
    one = namespaces.inside(namespaces.a, lambda: LinkPassCollector(host, settings(1, 2)))
    two = namespaces.inside(namespaces.b, lambda: LinkPassCollector(other, settings(2, 1)))
    yield one, two
    one.close()
    two.close()


def moved(events: list[Event]) -> list[RouteMoveReason]:
    return [event.reason for event in events if isinstance(event, RouteMove)]


def test_its_reports_are_events_that_can_be_sent(
    ends: tuple[LinkPassCollector, LinkPassCollector],
    namespaces: Any,
    until: Callable[..., list[Event]],
) -> None:
    one, _ = ends
    events = until(one, lambda seen: any(isinstance(event, PathHealth) for event in seen) and
                   RouteMoveReason.START in moved(seen))  # fmt: skip
    namespaces.peer("down")
    events += until(one, lambda seen: any(isinstance(event, PathTransition) for event in seen))
    (death,) = [event for event in events if isinstance(event, PathTransition)]
    assert (death.alive, death.fault, death.paths_alive) == (False, "carrier", 0)
    assert death.subject == "path:node-1/10.99.0.1->10.99.0.2"
    assert (death.interface, death.peer_interface) == ("va", "vb")
    namespaces.peer("up")
    events += until(one, lambda seen: any(isinstance(event, PathTransition) for event in seen))
    assert [event.alive for event in events if isinstance(event, PathTransition)] == [False, True]
    # With one path there is nothing to move to.
    assert not [event for event in events if isinstance(event, ReflexOutcome)]
    for event in events:
        assert decode(encode(event), topic_of(event)) == event


def test_a_watchdog_that_dies_is_replaced_and_its_route_adopted(
    ends: tuple[LinkPassCollector, LinkPassCollector],
    namespaces: Any,
    until: Callable[..., list[Event]],
) -> None:
    one, _ = ends
    until(one, lambda seen: RouteMoveReason.START in moved(seen))
    child = one._child
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)

    def replaced(seen: list[Event]) -> bool:
        alive = [event.columns.alive for event in seen if isinstance(event, PathHealth)]
        return one._child not in (None, child) and [True] in alive

    # It starts in the namespace of the thread that collects.
    events = namespaces.inside(namespaces.a, lambda: until(one, replaced))
    assert not moved(events)


def test_without_peers_there_is_nothing_to_do(host: Host) -> None:
    with pytest.raises(Unavailable, match="no peers"):
        LinkPassCollector(host, LinkPassSettings())
    (capability,) = LinkPassCollector.capabilities(host, LinkPassSettings())
    assert not capability.works and "peers" in capability.detail


def test_doctor_looks_at_each_thing_it_needs(host: Host) -> None:
    found = {one.name: one for one in LinkPassCollector.capabilities(host, settings(1, 2))}
    assert set(found) == {"linkpass.key", "linkpass.routes", "linkpass.realtime", "linkpass.va"}
    assert not found["linkpass.va"].works and "no interface va" in found["linkpass.va"].detail
