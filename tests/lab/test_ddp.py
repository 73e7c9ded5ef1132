"""PyTorch's DDP over the lab's hosts, where torch is installed."""

from __future__ import annotations

import pytest

from lab import faults
from lab.fabric import Fabric
from lab.fabric import missing as no_lab
from lab.topology import Topology
from lab.truth import Truth
from lab.workloads.ddp import missing as no_torch
from lab.workloads.runner import DdpJob
from tests.conftest import eventually

_why = no_torch() or no_lab()


@pytest.mark.skipif(bool(_why), reason=_why or "-")
def test_a_training_job_stalls_over_a_dead_link_and_ends_right() -> None:
    with (
        Fabric(Topology(hosts=2, rails=1)) as fabric,
        DdpJob(fabric, 4, vector_bytes=1 << 16) as job,
    ):
        eventually(lambda: len(job.iterations()) > 20, 180)
        faults.make("blackhole", fabric, Truth(), "host-2", 0).hold(0.4)
        summaries = job.wait(120)
    assert [(one["errors"], one["right"]) for one in summaries] == [(0, True)] * 2
    assert all(one["stall_max_ms"] >= 300 for one in summaries)


@pytest.mark.skipif(not no_torch(), reason="torch is installed")
def test_without_torch_it_says_so() -> None:
    assert "needs torch" in no_torch()
