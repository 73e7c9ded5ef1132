"""Runs a workload with one rank a host and collects what the ranks say."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from lab.fabric import Fabric

_ROOT = Path(__file__).resolve().parents[2]
_END_S = 5.0


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration of a job."""

    at_ns: int
    """When it ended, nanoseconds UTC."""
    took_ns: int


class Job:
    """A workload over all hosts of a lab; a context manager that ends what still runs."""

    module: ClassVar[str]
    """What each rank runs."""

    def __init__(
        self,
        fabric: Fabric,
        seconds: float,
        vector_bytes: int = 1 << 20,
        compute_ms: float = 0.0,
        version: int = 4,
        patience_s: float = 120.0,
    ) -> None:
        """
        Args:
            fabric: where.
            seconds: how long it runs.
            vector_bytes: what is reduced in each iteration.
            compute_ms: pause between iterations.
            version: 4 or 6, of the addresses.
            patience_s: standstill that the job takes for an error.
        """
        self._fabric = fabric
        self._options = [
            f"--seconds={seconds}",
            f"--bytes={vector_bytes}",
            f"--compute-ms={compute_ms}",
            f"--patience-s={patience_s}",
        ]
        self._version = version
        self._folder = tempfile.TemporaryDirectory(prefix="evertick-job-")
        self._ranks: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Self:
        peers = ",".join(self._addresses())
        for rank, host in enumerate(self._fabric.topology.host_names):
            words = [sys.executable, "-m", self.module, f"--rank={rank}"]
            words += [f"--peers={peers}", f"--log={self._log(rank)}", *self._options]
            self._ranks.append(
                self._fabric.hosts[host].spawn(
                    words, cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                )
            )
        return self

    def _addresses(self) -> list[str]:
        """Of the ranks, in their order."""
        topology = self._fabric.topology
        place = 0 if self._version == 4 else 1
        return [topology.service_addresses(host)[place] for host in topology.host_names]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for rank in self._ranks:
            if rank.poll() is None:
                rank.kill()
            rank.communicate()
        self._folder.cleanup()

    @property
    def pids(self) -> list[int]:
        """The ranks' processes."""
        return [rank.pid for rank in self._ranks]

    @property
    def running(self) -> bool:
        """Whether any rank still runs."""
        return any(rank.poll() is None for rank in self._ranks)

    def iterations(self, rank: int = 0) -> list[Iteration]:
        """Those that a rank has finished so far."""
        path = self._log(rank)
        if not path.exists():
            return []
        lines = path.read_text().split("\n")[:-1]
        return [Iteration(**json.loads(line)) for line in lines]

    def wait(self, timeout_s: float) -> list[dict[str, Any]]:
        """The ranks' summaries; one that failed without a word has ``errors`` and ``error``.

        Raises:
            subprocess.TimeoutExpired: they have not ended.
        """
        found = []
        for number, rank in enumerate(self._ranks):
            said, complaint = rank.communicate(timeout=timeout_s)
            try:
                found.append(json.loads(said.strip().splitlines()[-1]))
            except (IndexError, ValueError):
                why = complaint.strip().splitlines()[-1:] or [f"exit {rank.returncode}"]
                found.append({"rank": number, "errors": 1, "error": why[0]})
        return found

    def _log(self, rank: int) -> Path:
        return Path(self._folder.name, f"rank-{rank}.jsonl")


class RingJob(Job):
    """A ring all-reduce over plain TCP, which needs nothing installed."""

    module = "lab.workloads.ring"

    def __init__(self, *arguments: Any, mptcp: bool = False, **options: Any) -> None:
        """
        Args:
            arguments: those of :class:`Job`.
            mptcp: connect the addresses of rail 0 by multipath TCP over all rails.
            options: those of :class:`Job`.
        """
        super().__init__(*arguments, **options)
        self._mptcp = mptcp
        if mptcp:
            self._options.append("--mptcp")

    def _addresses(self) -> list[str]:
        if not self._mptcp:
            return super()._addresses()
        self._multipath()
        topology = self._fabric.topology
        return [topology.rail_address(host, 0) for host in topology.host_names]

    def _multipath(self) -> None:
        """Let every host open a subflow from each of its other rails, and offer them."""
        topology = self._fabric.topology
        for host, namespace in self._fabric.hosts.items():
            lines = ["limits set subflows 8 add_addr_accepted 8"]
            for rail in range(1, topology.rails):
                address = topology.rail_address(host, rail)
                lines.append(
                    f"endpoint add {address} dev {topology.rail_names[rail]} subflow signal"
                )
            namespace.ip("mptcp endpoint flush\n" + "".join(f"mptcp {line}\n" for line in lines))


class DdpJob(Job):
    """PyTorch's DDP over gloo; see :func:`lab.workloads.ddp.missing` first."""

    module = "lab.workloads.ddp"
