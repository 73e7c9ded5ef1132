"""What every workload's rank has in common: its options, the log of its iterations, its summary.

A rank is one process. It writes the time of each iteration to a file as it goes, one JSON object a
line, prints its summary as its last line and exits 1 where it failed or the result is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from types import TracebackType
from typing import Self


class JobError(Exception):
    """The job cannot go on; the text says why."""


@dataclass(slots=True)
class Summary:
    """How a rank's run went."""

    rank: int
    iterations: int = 0
    errors: int = 0
    right: bool = True
    """The result was what it should be."""
    p50_ms: float = 0.0
    """Of one iteration."""
    stall_max_ms: float = 0.0
    """The longest iteration."""
    seconds: float = 0.0


class Iterations:
    """The times of a rank's iterations, kept and written; a context manager."""

    def __init__(self, path: str) -> None:
        """
        Args:
            path: of the file; empty for none.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        self._file = os.open(path, flags, 0o644) if path else -1
        self._began_s = time.monotonic()
        self._took_ns: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file >= 0:
            os.close(self._file)

    def __len__(self) -> int:
        return len(self._took_ns)

    @property
    def seconds(self) -> float:
        """Since the first began."""
        return time.monotonic() - self._began_s

    def add(self, took_ns: int) -> None:
        """One ended now."""
        self._took_ns.append(took_ns)
        if self._file >= 0:
            # Written at once: whoever looks on sees the job as it is.
            os.write(self._file, b'{"at_ns":%d,"took_ns":%d}\n' % (time.time_ns(), took_ns))

    def summary(self, rank: int, right: bool) -> Summary:
        """All of them together."""
        return Summary(
            rank=rank,
            iterations=len(self),
            right=right,
            p50_ms=round(median(self._took_ns) / 1e6, 3),
            stall_max_ms=round(max(self._took_ns) / 1e6, 3),
            seconds=round(self.seconds, 3),
        )


def options(about: str) -> argparse.ArgumentParser:
    """The command line of one rank.

    Args:
        about: the workload's docstring.
    """
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument(
        "--peers", required=True, help="addresses of all ranks, with commas between"
    )
    parser.add_argument("--port", type=int, default=29500)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--bytes", type=int, default=1 << 20, help="what an iteration reduces")
    parser.add_argument("--compute-ms", type=float, default=0.0, help="pause between iterations")
    parser.add_argument(
        "--patience-s", type=float, default=120.0, help="standstill that is an error"
    )
    parser.add_argument(
        "--log", default="", help="file for the time of every iteration, JSON lines"
    )
    return parser


def main(run: Callable[[argparse.Namespace], Summary], parser: argparse.ArgumentParser) -> None:
    """Run one rank to its end."""
    given = parser.parse_args()
    try:
        summary = run(given)
    except JobError as error:
        print(json.dumps({"rank": given.rank, "errors": 1, "error": str(error)}), flush=True)
        sys.exit(1)
    print(json.dumps(asdict(summary)), flush=True)
    sys.exit(0 if summary.right else 1)
