"""What of LinkPass works on this host, for ``evertick doctor``; looks, and changes nothing."""

from __future__ import annotations

import resource
from pathlib import Path

from collectors.base import Capability
from collectors.reflex.config import LinkPassSettings

_CAP_NET_ADMIN, _CAP_IPC_LOCK, _CAP_SYS_NICE = 12, 14, 23
_STATUS = Path("/proc/self/status")
_NET = Path("/sys/class/net")
_RP_FILTER = Path("/proc/sys/net/ipv4/conf")


def powers(settings: LinkPassSettings) -> list[Capability]:
    """Each of the things that it needs or is better with."""
    held = _capabilities()
    admin = bool(held >> _CAP_NET_ADMIN & 1)
    nice = bool(held >> _CAP_SYS_NICE & 1) or bool(resource.getrlimit(resource.RLIMIT_RTPRIO)[0])
    lock = bool(held >> _CAP_IPC_LOCK & 1) or (
        resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == resource.RLIM_INFINITY
    )
    found = [
        _key(settings),
        Capability(
            "linkpass.routes",
            admin or settings.dry_run,
            "dry run: routes are watched, not moved"
            if settings.dry_run
            else "may move routes"
            if admin
            else "no CAP_NET_ADMIN, so no route can be moved",
            "" if admin else "run the agent as root or with AmbientCapabilities=CAP_NET_ADMIN",
        ),
        Capability(
            "linkpass.realtime",
            nice and lock,
            "SCHED_FIFO and locked memory"
            if nice and lock
            else "no SCHED_FIFO or locked memory: a loaded host may delay heartbeats",
            "" if nice and lock else "AmbientCapabilities=CAP_SYS_NICE CAP_IPC_LOCK",
        ),
    ]
    interfaces = {path.interface for peer in settings.peers.values() for path in peer.paths}
    found += [_interface(name) for name in sorted(interfaces)]
    return found


def _key(settings: LinkPassSettings) -> Capability:
    try:
        settings.secret()
    except (OSError, ValueError) as error:
        return Capability("linkpass.key", False, str(error), "write a secret into key_file")
    return Capability("linkpass.key", True, "there")


def _interface(name: str) -> Capability:
    what = f"linkpass.{name}"
    if not (_NET / name).exists():
        return Capability(what, False, f"no interface {name}; its paths count as dead")
    if strict := [place for place in ("all", name) if _rp_filter(place) == 1]:
        return Capability(
            what,
            False,
            "strict reverse-path filter: what a peer sends over this path is dropped while our "
            "route to it takes another",
            "; ".join(f"sysctl -w net.ipv4.conf.{place}.rp_filter=2" for place in strict),
        )
    return Capability(what, True, "there, and takes what comes over any path")


def _rp_filter(place: str) -> int:
    try:
        return int((_RP_FILTER / place / "rp_filter").read_text())
    except OSError:
        # No IPv4 on it.
        return 0


def _capabilities() -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0
