"""The benchmark ``packets`` with small counts: that it measures, and that nothing is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from collectors.ebpf.flows import possible
from collectors.ebpf.watch import NoEbpf
from lab.fabric import missing

_BENCH = (sys.executable, "-m", "evertick", "bench", "packets", "--json", "--quick")


@pytest.mark.e2e
def test_delay_and_losses_are_told(tmp_path: Path) -> None:
    if why := missing():
        pytest.skip(why)
    try:
        possible()
    except NoEbpf as reason:
        pytest.skip(f"no eBPF here: {reason}")
    figures = {}
    for only in ("rtt_", "retransmits_"):
        done = subprocess.run(
            [*_BENCH, "--only", only],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert done.returncode == 0, done.stderr
        figures |= json.loads(done.stdout)["figures"]
    assert figures["rtt_error_percent"] >= 0
    assert figures["rtt_error_to_endpoints_percent"] >= 0
    # None is missed; on a busy machine a probe of the tail may go out that nothing called for.
    assert figures["retransmits_counted_of_injected"] >= 1
    assert not list(tmp_path.glob("evertick-bench-*"))
