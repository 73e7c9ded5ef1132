"""A ring all-reduce over plain TCP: what a data-parallel training step does to the network.

Each rank holds a vector of 64-bit numbers; in N-1 steps of reduce-scatter and N-1 of all-gather (the
bandwidth-optimal ring of Patarasuk and Yuan, 2009) every rank ends up with the sum over all. The sums
are checked in every iteration. Numbers are added a chunk at a time as one long integer, whose lanes of
64 bits never overflow: that needs no package and is as fast as the network here.

It has no timeouts of its own short of a minute, as a training job has none: what stands still, stalls.
Run one process a rank: ``python -m lab.workloads.ring --rank 0 --peers 10.99.0.1,10.99.0.2``.
"""

from __future__ import annotations

import argparse
import select
import socket
import time
from collections.abc import Sequence

from lab.workloads.rank import Iterations, JobError, Summary, main, options

_LANE_BYTES = 8
_IPPROTO_MPTCP = 262
_JOIN_S = 60.0
_PIECE_BYTES = 1 << 18


class Ring:
    """One rank's two connections: from the rank before it, to the one behind it."""

    def __init__(
        self, rank: int, peers: Sequence[str], port: int, patience_s: float, protocol: int
    ) -> None:
        """Meet the neighbours.

        Raises:
            JobError: they do not come within a minute.
        """
        self.rank, self.ranks = rank, len(peers)
        self._patience_s = patience_s
        family = socket.AF_INET6 if ":" in peers[rank] else socket.AF_INET
        deadline_s = time.monotonic() + _JOIN_S
        with socket.socket(family, proto=protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((peers[rank], port))
            listener.listen(1)
            behind = peers[(rank + 1) % self.ranks]
            self._next = _reach(family, protocol, peers[rank], behind, port)
            listener.settimeout(max(0.1, deadline_s - time.monotonic()))
            try:
                self._previous, _ = listener.accept()
            except TimeoutError:
                raise JobError("the rank before this one did not connect") from None
        for end in (self._next, self._previous):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.setblocking(False)
        self._poll = select.poll()

    def all_reduce(self, chunks: list[bytes]) -> list[bytes]:
        """The sum over all ranks.

        Args:
            chunks: this rank's vector in as many parts as there are ranks, all of one length.
        """
        length = len(chunks[0])
        for step in range(self.ranks - 1):
            outgoing = (self.rank - step) % self.ranks
            incoming = (outgoing - 1) % self.ranks
            received = self._exchange(chunks[outgoing], length)
            chunks[incoming] = _add(chunks[incoming], received)
        for step in range(self.ranks - 1):
            outgoing = (self.rank + 1 - step) % self.ranks
            chunks[(outgoing - 1) % self.ranks] = self._exchange(chunks[outgoing], length)
        return chunks

    def close(self) -> None:
        """End both connections."""
        self._next.close()
        self._previous.close()

    def _exchange(self, data: bytes, expected: int) -> bytes:
        """Send to the next rank while receiving from the one before."""
        rest, received = memoryview(data), bytearray()
        self._poll.register(self._previous, select.POLLIN)
        self._poll.register(self._next, select.POLLOUT)
        while rest or len(received) < expected:
            ready = self._poll.poll(self._patience_s * 1000)
            if not ready:
                raise JobError(f"nothing moved for {self._patience_s:g} s")
            for descriptor, _ in ready:
                try:
                    if descriptor == self._next.fileno():
                        rest = rest[self._next.send(rest) :]
                        if not rest:
                            self._poll.unregister(self._next)
                    else:
                        piece = self._previous.recv(min(_PIECE_BYTES, expected - len(received)))
                        if not piece:
                            raise JobError("the rank before this one is gone")
                        received += piece
                        if len(received) == expected:
                            self._poll.unregister(self._previous)
                except BlockingIOError:
                    continue
                except OSError as error:
                    raise JobError(f"connection lost: {error}") from None
        return bytes(received)


def run(options: argparse.Namespace) -> Summary:
    """Reduce until the time is over; rank 0 decides, and its word travels in the vector itself.

    Raises:
        JobError: a neighbour does not come, is gone, or nothing moves.
    """
    peers = options.peers.split(",")
    lanes = max(2, options.bytes // len(peers) // _LANE_BYTES)
    protocol = _IPPROTO_MPTCP if options.mptcp else socket.IPPROTO_TCP
    ring = Ring(options.rank, peers, options.port, options.patience_s, protocol)
    last, right = 0, True
    with Iterations(options.log) as iterations:
        while not last:
            last = int(options.rank == 0 and iterations.seconds >= options.seconds)
            number = len(iterations) % 1000
            chunks = [
                _vector(options.rank + number, part, lanes, last) for part in range(len(peers))
            ]
            start_ns = time.monotonic_ns()
            sums = ring.all_reduce(chunks)
            iterations.add(time.monotonic_ns() - start_ns)
            last = int.from_bytes(sums[0][:_LANE_BYTES], "little")
            total = sum(rank + number for rank in range(len(peers)))
            right &= sums == [
                _vector(total, part, lanes, last, len(peers)) for part in range(len(peers))
            ]
            time.sleep(options.compute_ms / 1000)
    ring.close()
    return iterations.summary(options.rank, right)


def _vector(value: int, part: int, lanes: int, flag: int, times: int = 1) -> bytes:
    """A part of a vector: the flag in lane 0, ``value`` in half of the others, the part's number,
    as often as there are ranks, in the rest."""
    head = flag.to_bytes(_LANE_BYTES, "little")
    lane = value.to_bytes(_LANE_BYTES, "little")
    mark = (part * times).to_bytes(_LANE_BYTES, "little")
    half = (lanes - 1) // 2
    return head + lane * half + mark * (lanes - 1 - half)


def _add(one: bytes, other: bytes) -> bytes:
    total = int.from_bytes(one, "little") + int.from_bytes(other, "little")
    return total.to_bytes(len(one), "little")


def _reach(family: int, protocol: int, own: str, peer: str, port: int) -> socket.socket:
    deadline_s = time.monotonic() + _JOIN_S
    while True:
        end = socket.socket(family, proto=protocol)
        end.bind((own, 0))
        end.settimeout(max(0.1, deadline_s - time.monotonic()))
        try:
            end.connect((peer, port))
        except OSError as error:
            end.close()
            if time.monotonic() > deadline_s:
                raise JobError(f"{peer} cannot be reached: {error}") from None
            time.sleep(0.05)
        else:
            return end


if __name__ == "__main__":
    parser = options(__doc__ or "")
    parser.add_argument("--mptcp", action="store_true", help="multipath TCP, the kernel's own")
    main(run, parser)
