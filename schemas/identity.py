"""Names of the things that events speak of, as short strings that are the same everywhere.

A subject is written ``kind:place``, and the place begins with the node where there is one::

    node:node-3                       gpu:node-3/0000:9b:00.0
    nic:node-3/eth1                   path:node-3/10.0.0.3->10.0.0.9
    link:leaf-1/swp3--node-3/eth1     job:llm-70b
                                      rank:llm-70b/17

A plain string is used rather than a nested object because it is at once a Kafka key, a dictionary
key, a column value in ClickHouse and what an operator types. GPUs are named by PCI address, which
is what the kernel log knows; the inventory maps it to UUID and index.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, Field

_SUBJECT = re.compile(r"(node|nic|gpu|link|path|job|rank):[^\s:/][^\s]*")
NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_PCI = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.IGNORECASE)


class SubjectParts(NamedTuple):
    """A subject taken apart; ``node`` is empty for jobs, ranks and links, which have no one node."""

    kind: str
    node: str
    name: str


def node(name: str) -> str:
    """The subject of a host."""
    return f"node:{name}"


def nic(node_name: str, interface: str) -> str:
    """The subject of a network interface or RDMA port of a host."""
    return f"nic:{node_name}/{interface}"


def gpu(node_name: str, pci_address: str) -> str:
    """The subject of a GPU; the PCI address may be in any of the kernel's spellings."""
    return f"gpu:{node_name}/{pci(pci_address)}"


def link(end_a: str, end_b: str) -> str:
    """The subject of a cable between two nic subjects; the same whichever end is named first."""
    first, second = sorted((end_a.removeprefix("nic:"), end_b.removeprefix("nic:")))
    return f"link:{first}--{second}"


def path(node_name: str, source: str, destination: str) -> str:
    """The subject of the one-way path from an address of a host to another address."""
    return f"path:{node_name}/{source}->{destination}"


def job(name: str) -> str:
    """The subject of a training or inference job."""
    return f"job:{name}"


def rank(job_name: str, index: int) -> str:
    """The subject of one rank of a job."""
    return f"rank:{job_name}/{index}"


def parts(subject: str) -> SubjectParts:
    """Take a subject apart.

    Raises:
        ValueError: it is not a subject.
    """
    check_subject(subject)
    kind, _, place = subject.partition(":")
    if kind == "node":
        return SubjectParts(kind, place, "")
    if kind in ("job", "rank", "link"):
        return SubjectParts(kind, "", place)
    node_name, _, name = place.partition("/")
    return SubjectParts(kind, node_name, name)


def pci(address: str) -> str:
    """The PCI address in the form of sysfs: ``0000:9b:00.0``.

    The NVIDIA driver writes ``0000:9b:00`` or ``9b:00``, tools write eight-digit domains.

    Raises:
        ValueError: it is not a PCI address.
    """
    found = _PCI.fullmatch(address.strip())
    if found is None:
        raise ValueError(f"not a PCI address: {address!r}")
    domain, bus, device, function = found.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{device}.{function or '0'}".lower()


def check_subject(subject: str) -> str:
    """Return the subject if it is one.

    Raises:
        ValueError: it is not of the form ``kind:place`` with a known kind.
    """
    if _SUBJECT.fullmatch(subject) is None or len(subject) > 512:
        raise ValueError(
            f"not a subject: {subject[:80]!r} (expected node|nic|gpu|link|path|job|rank:place)"
        )
    return subject


def check_node(name: str) -> str:
    """Return the node name if it is a usable one (a host name: letters, digits, ``.``, ``_``, ``-``).

    Raises:
        ValueError: it is not.
    """
    if NODE.fullmatch(name) is None:
        raise ValueError(f"not a node name: {name[:80]!r} (letters, digits, '.', '_' and '-')")
    return name


def content_id(*content: str | int) -> str:
    """A 16-byte identifier made from content alone, so that saying a thing twice names it once."""
    text = "\x1f".join(str(item) for item in content)
    return blake2b(text.encode(), digest_size=16).hexdigest()


Subject = Annotated[
    str,
    AfterValidator(check_subject),
    Field(json_schema_extra={"pattern": f"^{_SUBJECT.pattern}$", "maxLength": 512}),
]
NodeName = Annotated[
    str,
    AfterValidator(check_node),
    Field(json_schema_extra={"pattern": f"^{NODE.pattern}$"}),
]
