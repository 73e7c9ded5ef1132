"""Reports: never waiting, and what could not be sent is said."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

from collectors.reflex.report import Reports


def read(descriptor: int) -> list[dict[str, Any]]:
    data = b""
    with contextlib.suppress(BlockingIOError):
        while piece := os.read(descriptor, 1 << 16):
            data += piece
    return [json.loads(line) for line in data.splitlines()]


def test_a_full_pipe_loses_reports_and_says_how_many() -> None:
    reading, writing = os.pipe()
    try:
        reports = Reports(writing)
        for number in range(5000):
            reports.send("note", text="x" * 100, number=number)
        os.set_blocking(reading, False)
        told = read(reading)
        assert {"note"} <= {report["kind"] for report in told}
        reports.send("note", text="again")
        told += read(reading)
        notes = [report for report in told if report["kind"] == "note"]
        lost = sum(report["reports"] for report in told if report["kind"] == "lost")
        assert len(notes) + lost == 5001 and lost > 0
        assert notes[-1]["text"] == "again"
    finally:
        os.close(reading)
        os.close(writing)
