"""The two ends of a TCP flow as people write them."""

from __future__ import annotations

from ipaddress import ip_address
from typing import NamedTuple

_V4_MAPPED = bytes(10) + b"\xff\xff"


class Ends(NamedTuple):
    """The two ends of a flow."""

    local: str
    """``address:port``, IPv6 addresses in brackets; IPv4 in IPv6 as plain IPv4."""
    remote: str
    loopback: bool
    """It does not leave the host."""


def ends(local: bytes, local_port: int, remote: bytes, remote_port: int) -> Ends:
    """From addresses of 4 or 16 bytes in network order, and ports."""
    local, remote = local.removeprefix(_V4_MAPPED), remote.removeprefix(_V4_MAPPED)
    return Ends(
        _end(local, local_port),
        _end(remote, remote_port),
        local == remote or ip_address(local).is_loopback or ip_address(remote).is_loopback,
    )


def _end(address: bytes, port: int) -> str:
    shown = ip_address(address)
    return f"{shown}:{port}" if shown.version == 4 else f"[{shown}]:{port}"
