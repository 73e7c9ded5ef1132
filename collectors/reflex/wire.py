"""The heartbeat: its layout, and the code that proves who sent it, whereto, and over which path.

A heartbeat is the same on all paths to a peer but for its last 16 bytes, so that both ends build,
read and prove it once for all of them. In front is a head, then an entry for each path (what the
sender hears there, and an echo of the last heartbeat heard), then the names of the sender's
interfaces. One keyed BLAKE2b over all that (RFC 7693), seeded with the names of sender and receiver,
yields 16 bytes for each path, in the order of the entries, and each path carries only its own. So what
was captured on one path, or is sent back to its sender, proves nothing elsewhere. Against replay in
time it names two sessions, the sender's and the receiver's, and a number that only grows
(:mod:`collectors.reflex.peer`).
"""

from __future__ import annotations

import hmac
import struct
from functools import lru_cache
from hashlib import blake2b
from ipaddress import ip_address
from typing import NamedTuple

MAGIC = b"EVH1"
PATHS_MAX = 16

ANSWER = 1
"""Flag: sent to a peer that does not know our session yet; its number was used before."""
LEAVING = 2
"""Flag: the sender ends in good order; its silence from now on means nothing."""

UNKNOWN, HEARS, DEAF = 0, 1, 2
"""What a sender says of its own hearing on a path."""
NO_CARRIER = 4
LOSSY = 8
_HEARING = 3

ECHO_EVERY = 4
"""One in so many heartbeats carries echoes."""

_HEAD = struct.Struct("!4sQQQQIBB")
ENTRY_FIELDS = 4
_NAME_BYTES = 16
MAC_BYTES = 16
_MACS_AT_ONCE = blake2b.MAX_DIGEST_SIZE // MAC_BYTES
_TAILS_KEPT = 256
_ENTRIES = [struct.Struct("!" + count * "IBII") for count in range(PATHS_MAX + 1)]
_PER_PATH_BYTES = _ENTRIES[1].size + _NAME_BYTES
_SIZES = {_HEAD.size + count * _PER_PATH_BYTES: count for count in range(1, PATHS_MAX + 1)}
BYTES_MAX = _HEAD.size + PATHS_MAX * _PER_PATH_BYTES + MAC_BYTES
ECHO_SESSION_AT = 12
"""Offset of ``echo_session``, for filters in the kernel."""


class Heartbeat(NamedTuple):
    """What a heartbeat says."""

    session: int
    """The sender's; random, new at each of its starts."""
    echo_session: int
    """The receiver's, as far as the sender knows; 0 where it does not."""
    tick: int
    """Its number: one more than that of the heartbeat before it."""
    sent_ns: int
    """The sender's monotonic clock."""
    chosen: int
    """Tag of the path that the sender's route takes; 0 where it has none."""
    flags: int
    entries: tuple[int, ...]
    """Of each of the sender's paths to the receiver, one behind the other: its tag; what the sender
    says of it (``UNKNOWN``, ``HEARS`` or ``DEAF``, with ``NO_CARRIER`` and ``LOSSY``); the number,
    modulo 2³², of the last heartbeat that it heard there, 0 where there was none; how long ago that
    came, in microseconds; both only in one of ``ECHO_EVERY``."""
    names: bytes
    """The sender's interface on each of these, packed."""

    @property
    def tags(self) -> tuple[int, ...]:
        """The tags of its entries."""
        return self.entries[::ENTRY_FIELDS]

    @property
    def said(self) -> tuple[int, ...]:
        """What the sender says of each path."""
        return self.entries[1::ENTRY_FIELDS]


def pack(heartbeat: Heartbeat) -> bytes:
    """A heartbeat's body, without its proof."""
    session, echo_session, tick, sent_ns, chosen, flags, entries, names = heartbeat
    count = len(entries) // ENTRY_FIELDS
    head = _HEAD.pack(MAGIC, session, echo_session, tick, sent_ns, chosen, flags, count)
    return head + _pack_tail(entries, names)


def unpack(body: bytes) -> Heartbeat | None:
    """Read a heartbeat's body, proven or not; None where the bytes are none."""
    if len(body) not in _SIZES:
        return None
    magic, session, echo_session, tick, sent_ns, chosen, flags, count = _HEAD.unpack_from(body)
    if magic != MAGIC or _SIZES[len(body)] != count:
        return None
    entries, names = _unpack_tail(body[_HEAD.size :], count)
    return Heartbeat(session, echo_session, tick, sent_ns, chosen, flags, entries, names)


# Most heartbeats say the same of the paths as the one before.
@lru_cache(_TAILS_KEPT)
def _pack_tail(entries: tuple[int, ...], names: bytes) -> bytes:
    return _ENTRIES[len(entries) // ENTRY_FIELDS].pack(*entries) + names


@lru_cache(_TAILS_KEPT)
def _unpack_tail(tail: bytes, count: int) -> tuple[tuple[int, ...], bytes]:
    layout = _ENTRIES[count]
    return layout.unpack_from(tail), tail[layout.size :]


def size(paths: int) -> int:
    """Bytes of a heartbeat with its proof."""
    return _HEAD.size + paths * _PER_PATH_BYTES + MAC_BYTES


def pack_names(interfaces: list[str]) -> bytes:
    """Interface names as a heartbeat carries them."""
    return b"".join(name.encode()[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0") for name in interfaces)


def name_at(names: bytes, slot: int) -> str:
    """The interface of the entry in a slot."""
    packed = names[slot * _NAME_BYTES : (slot + 1) * _NAME_BYTES]
    return packed.rstrip(b"\0").decode(errors="replace")


def hearing(says: int) -> bool | None:
    """Whether the sender hears on a path; None where it does not know yet."""
    return {HEARS: True, DEAF: False}.get(says & _HEARING)


class Seal:
    """The proof of one direction between two nodes."""

    __slots__ = ("_states",)

    def __init__(self, key: bytes, sender: str, receiver: str, paths: int) -> None:
        """
        Args:
            key: the secret that both ends share.
            sender: the node that sends.
            receiver: the node that is meant to hear.
            paths: how many entries there may be.
        """
        if len(key) > blake2b.MAX_KEY_SIZE:
            key = blake2b(key).digest()
        self._states = []
        for group in range(-(-paths // _MACS_AT_ONCE)):
            state = blake2b(key=key, person=b"evertick-hb")
            seed = blake2b(f"{sender}\0{receiver}\0{group}".encode()).digest()
            # A whole block, so that it is not computed again for each heartbeat.
            state.update(seed.ljust(128, b"\0"))
            self._states.append(state)

    def macs(self, body: bytes, count: int) -> bytes:
        """The proofs of a body with ``count`` entries, one behind the other, in their order."""
        state = self._states[0].copy()
        state.update(body)
        if count <= _MACS_AT_ONCE:
            return state.digest()
        digests = [state.digest()]
        for seeded in self._states[1 : -(-count // _MACS_AT_ONCE)]:
            state = seeded.copy()
            state.update(body)
            digests.append(state.digest())
        return b"".join(digests)


def mac_at(macs: bytes, slot: int) -> bytes:
    """The proof for the path whose entry is in a slot."""
    return macs[slot * MAC_BYTES : (slot + 1) * MAC_BYTES]


same = hmac.compare_digest


def tag(node: str, address: str, peer: str, peer_address: str) -> int:
    """A path's short name in heartbeats, the same at both ends; never 0."""
    ends = sorted([(node, str(ip_address(address))), (peer, str(ip_address(peer_address)))])
    text = "\0".join(word for end in ends for word in end)
    return int.from_bytes(blake2b(text.encode(), digest_size=4).digest(), "big") or 1
