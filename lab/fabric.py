"""Makes a topology out of network namespaces, and takes it away whole.

A host is a namespace, a leaf switch is a namespace with one bridge, a cable is a veth pair between
them. The leaf's end of a cable is where faults are made, so that the host cannot see by whom.

Every namespace's name carries a tag of the lab, and a file of that tag names the process that owns it.
A lab whose owner is gone (killed, crashed) is taken away when the next one begins; one that lives is
never touched. Needs root and iproute2; a namespace of users will do for root where the kernel lets
everyone make one (:mod:`lab.rootless`).
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from lab import rootless
from lab.namespace import CommandFailed, Namespace, kill_inhabitants, remove
from lab.topology import SERVICE, Topology

_OWNERS = Path("/run/evertick-lab")
_NAMES = Path("/run/netns")
_PREFIX = "evlab-"
# The kernel puts off news of a veth whose index is that of its peer, and counts from 2 in every
# namespace: so the ends get indices of their own.
_HOST_INDEX, _LEAF_INDEX = 100, 1000
# Five milliseconds of a full link wait in its queue, as in the shallow buffers of a leaf switch.
_QUEUE_S = 0.005
_BURST_BYTES = 128 * 1024


class NoLab(Exception):
    """No lab can be made on this machine; the text says why and what would help."""


class Fabric:
    """A topology that exists; a context manager."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.tag = secrets.token_hex(3)
        self.hosts: dict[str, Namespace] = {}
        self.leaves: list[Namespace] = []
        """By rail."""

    def __enter__(self) -> Self:
        """Make it.

        Raises:
            NoLab: this machine makes none.
        """
        why = missing()
        if why:
            raise NoLab(why)
        sweep()
        _own(self.tag)
        try:
            self._make()
        except CommandFailed as error:
            self.close()
            raise NoLab(f"the lab cannot be made: {error}") from None
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take it away; processes that still run inside are killed."""
        for namespace in (*self.hosts.values(), *self.leaves):
            namespace.close()
        self.hosts, self.leaves = {}, []
        _remove(self.tag)

    def _make(self) -> None:
        topology = self.topology
        for name in topology.host_names:
            self.hosts[name] = Namespace(self._name(name), name)
        for name in topology.leaf_names:
            self.leaves.append(Namespace(self._name(name), name))
        for namespace in self.hosts.values():
            namespace.sysctl(
                {
                    "ipv4/conf/all/rp_filter": 0,
                    "ipv4/conf/default/rp_filter": 0,
                    "ipv4/conf/all/arp_ignore": 1,
                    "ipv6/conf/default/accept_dad": 0,
                    "ipv6/conf/default/accept_ra": 0,
                }
            )
        for rail, leaf in enumerate(self.leaves):
            leaf.sysctl({"ipv6/conf/default/disable_ipv6": 1})
            leaf.ip("link add br0 type bridge stp_state 0 mcast_snooping 0\nlink set br0 up\n")
            leaf.ip("".join(self._cables(rail)))
        for host, namespace in self.hosts.items():
            namespace.ip("".join(self._setup(host)))
        if topology.rate_mbps:
            for namespace in self.hosts.values():
                namespace.tc("".join(self._bounds(topology.rail_names)))
            ports = [topology.port(host) for host in topology.host_names]
            for leaf in self.leaves:
                leaf.tc("".join(self._bounds(ports)))

    def cable(self, host: str, rail: int) -> str:
        """The line of ``ip`` that makes a cable, run on the leaf. A NIC that comes again has the
        same hardware address, as a real one has."""
        number = self.topology.number(host)
        return (
            f"link add {self.topology.port(host)} index {_LEAF_INDEX + number} type veth "
            f"peer name {self.topology.rail_names[rail]} index {_HOST_INDEX + rail} "
            f"address 02:0e:00:00:{rail:02x}:{number:02x} netns {self._name(host)}\n"
        )

    def plug(self, host: str, rail: int) -> Iterator[str]:
        """Lines of ``ip`` that set up the leaf's end of a cable."""
        port = self.topology.port(host)
        yield f"link set {port} master br0\n"
        yield f"link set {port} up\n"

    def setup_nic(self, host: str, rail: int) -> Iterator[str]:
        """Lines of ``ip`` that set up a host's NIC: addresses, and on rail 0 the base routes."""
        topology = self.topology
        name = topology.rail_names[rail]
        yield f"addr add {topology.rail_address(host, rail)}/24 dev {name}\n"
        yield f"addr add {topology.rail_address(host, rail, 6)}/64 dev {name} nodad\n"
        yield f"link set {name} up\n"
        if rail:
            return
        four, six = topology.service_addresses(host)
        for peer in topology.host_names:
            if peer != host:
                peer_four, peer_six = topology.service_addresses(peer)
                yield (
                    f"route add {peer_four}/32 via {topology.rail_address(peer, 0)} dev {name} "
                    f"src {four} proto static metric 1024\n"
                )
                yield (
                    f"route add {peer_six}/128 via {topology.rail_address(peer, 0, 6)} dev {name} "
                    f"src {six} proto static metric 2048\n"
                )

    def bounds(self, interface: str) -> str:
        """The line of ``tc`` that bounds an interface's rate to the topology's."""
        return bound(interface, self.topology.rate_mbps)

    def _cables(self, rail: int) -> Iterator[str]:
        for host in self.topology.host_names:
            yield self.cable(host, rail)
            yield from self.plug(host, rail)

    def _setup(self, host: str) -> Iterator[str]:
        yield "link set lo up\n"
        yield f"link add {SERVICE} type bridge\nlink set {SERVICE} up\n"
        four, six = self.topology.service_addresses(host)
        yield f"addr add {four}/32 dev {SERVICE}\naddr add {six}/128 dev {SERVICE} nodad\n"
        for rail in range(self.topology.rails):
            yield from self.setup_nic(host, rail)

    def _bounds(self, interfaces: list[str]) -> Iterator[str]:
        return (self.bounds(interface) for interface in interfaces)

    def _name(self, node: str) -> str:
        return f"{_PREFIX}{self.tag}-{node}"


def bound(interface: str, rate_mbps: int) -> str:
    """The line of ``tc`` that sets an interface's rate, or changes it."""
    limit = max(_BURST_BYTES, int(rate_mbps * 1e6 / 8 * _QUEUE_S))
    return (
        f"qdisc replace dev {interface} root tbf rate {rate_mbps}mbit burst {_BURST_BYTES} "
        f"limit {limit}\n"
    )


def missing() -> str:
    """Why no lab can be made here; empty where one can."""
    for program in ("ip", "tc", "nft"):
        if shutil.which(program) is None:
            package = "nftables" if program == "nft" else "iproute2"
            return f"the lab needs the command {program} (Debian: apt install {package})"
    if os.geteuid() != 0:
        why = rootless.refused()
        return (
            f"the lab makes network namespaces and needs root; {why}"
            if why
            else "the lab needs root; without it, run it under: python -m lab.rootless COMMAND"
        )
    return ""


def sweep() -> list[str]:
    """Take away what labs have left whose owner is gone; returns their tags."""
    if not _NAMES.is_dir():
        return []
    tags = {name.split("-")[1] for name in os.listdir(_NAMES) if name.startswith(_PREFIX)}
    gone = []
    for tag in tags | set(os.listdir(_OWNERS) if _OWNERS.is_dir() else ()):
        try:
            owner = (_OWNERS / tag).read_text()
        except FileNotFoundError:
            owner = ""
        pid = owner.partition(" ")[0]
        if not pid or _identity(int(pid)) != owner:
            _remove(tag)
            gone.append(tag)
    return gone


def _remove(tag: str) -> None:
    if _NAMES.is_dir():
        for name in os.listdir(_NAMES):
            if name.startswith(f"{_PREFIX}{tag}-"):
                kill_inhabitants(name)
                remove(name)
    (_OWNERS / tag).unlink(missing_ok=True)


def _own(tag: str) -> None:
    """Write who owns a lab, in one step: another lab's sweep may be looking."""
    _OWNERS.mkdir(exist_ok=True)
    draft = _OWNERS.with_suffix(f".{tag}")
    draft.write_text(_identity(os.getpid()))
    draft.rename(_OWNERS / tag)


def _identity(pid: int) -> str:
    """A process, told from another that has its id later: the id and when it started."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return ""
    return f"{pid} {fields[19]}"
