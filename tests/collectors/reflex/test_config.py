"""LinkPass's settings: what does not fit is refused by name, and the plan that follows from the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bus.settings import SettingsError, section
from collectors.reflex.config import LinkPassSettings, rto_min_for
from collectors.reflex.plan import plan_of, settings_of


def table(**changes: Any) -> dict[str, Any]:
    path = {"interface": "eth1", "local": "10.1.0.1", "remote": "10.1.0.2"}
    return {
        "key": "0123456789abcdef",
        "address": "10.9.0.1,fd09::1",
        "peers": {"node-2": {"address": ["10.9.0.2"], "paths": [path]}},
        **changes,
    }


def read(**changes: Any) -> LinkPassSettings:
    return section(LinkPassSettings, table(**changes), "collectors.linkpass")


def peers(address: str, **path: Any) -> dict[str, Any]:
    given = {"interface": "eth1", "local": "10.1.0.1", "remote": "10.1.0.2", **path}
    return {"node-2": {"address": [address], "paths": [given]}}


def test_a_plan_survives_its_way_to_the_watchdog() -> None:
    plan = read(peers=peers("10.9.0.2", via="10.1.0.254,fe80::1")).plan("node-1")
    assert plan_of(json.loads(json.dumps(settings_of(plan)))) == plan
    path = plan.peers[0].paths[0]
    assert path.routed
    assert path.gateway("10.9.0.2") == "10.1.0.254" and path.gateway("fd09::2") == "fe80::1"
    assert plan.source("10.9.0.2") == "10.9.0.1" and plan.source("fd09::2") == "fd09::1"


def test_without_a_gateway_the_peer_itself_is_the_next_hop() -> None:
    path = read().plan("node-1").peers[0].paths[0]
    assert not path.routed and path.gateway("10.9.0.2") == "10.1.0.2"
    assert path.gateway("fd09::2") is None


def test_ipv4_may_go_over_an_ipv6_path() -> None:
    plan = read(peers=peers("10.9.0.2", local="fe80::1", remote="fe80::2")).plan("node-1")
    assert plan.peers[0].paths[0].gateway("10.9.0.2") == "fe80::2"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"key": "short"}, "key: at least 16"),
        ({"key": ""}, "key or key_file"),
        ({"timeout_ms": 15}, "timeout_ms"),
        ({"peers": peers("10.9.0.2", interface="a/b")}, "interface"),
        ({"peers": peers("10.9.0.300")}, "no IP address"),
        ({"peers": peers("10.9.0.2", remote="fd01::2")}, "two families"),
        ({"peers": peers("fd09::2")}, "via"),
        ({"peers": peers("10.9.0.1")}, "this node's own"),
        ({"address": "fd09::1"}, "own service address"),
        ({"hold_down_max_s": 0.5}, "hold_down_max_s"),
        ({"peer": {}}, "did you mean peers"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsError, match="linkpass") as refused:
        read(**changes)
    assert named in str(refused.value)
    assert "0123456789abcdef" not in str(refused.value)


def test_the_key_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("fedcba9876543210\n")
    assert read(key="", key_file=str(file)).secret() == b"fedcba9876543210"
    file.write_text("short")
    with pytest.raises(ValueError, match="less than 16"):
        read(key="", key_file=str(file)).secret()


@pytest.mark.parametrize(("jiffy_ms", "expected"), [(1.0, 5), (4.0, 4), (10.0, 10), (10 / 3, 3)])
def test_the_third_try_comes_after_the_route_has_moved(jiffy_ms: float, expected: int) -> None:
    assert rto_min_for(30, jiffy_ms) == expected
