"""A data-parallel training job: PyTorch's DDP over gloo, as users run it.

Every rank trains the same small network on its own random data; gradients are averaged over the hosts'
service addresses. Every few steps the ranks agree whether to go on, and in the end that their
parameters are the same to the bit. Needs torch, which nothing else here does.

Run one process a rank: ``python -m lab.workloads.ddp --rank 0 --peers 10.99.0.1,10.99.0.2``.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from datetime import timedelta
from math import isqrt
from typing import Any

from lab.topology import SERVICE
from lab.workloads.rank import Iterations, JobError, Summary, main, options

_JOIN = timedelta(seconds=60)
_AGREE_STEPS = 20
_BATCH = 16
_LAYERS = 2
_FLOAT_BYTES = 4


def missing() -> str:
    """Why this job cannot run here; empty where it can."""
    if importlib.util.find_spec("torch") is None:
        return "the DDP job needs torch (pip install torch)"
    return ""


def run(options: argparse.Namespace) -> Summary:
    """Train until the time is over; rank 0 decides.

    Raises:
        JobError: no torch, or a collective failed.
    """
    if why := missing():
        raise JobError(why)
    import torch

    # Of a host's interfaces, the one with the addresses that outlive a link.
    os.environ["GLOO_SOCKET_IFNAME"] = SERVICE
    torch.set_num_threads(1)
    try:
        return _train(torch, options)
    except RuntimeError as error:
        # torch.distributed has no narrower one for what gloo reports.
        raise JobError(str(error).strip().splitlines()[0]) from None


def _train(torch: Any, options: argparse.Namespace) -> Summary:
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    peers = options.peers.split(",")
    store = distributed.TCPStore(
        peers[0], options.port, len(peers), is_master=options.rank == 0, timeout=_JOIN
    )
    distributed.init_process_group(
        "gloo",
        store=store,
        rank=options.rank,
        world_size=len(peers),
        timeout=timedelta(seconds=options.patience_s),
    )
    torch.manual_seed(1)
    width = max(8, isqrt(options.bytes // _FLOAT_BYTES // _LAYERS))
    layers = [torch.nn.Linear(width, width, bias=False) for _ in range(_LAYERS)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(options.rank)
    over = torch.zeros(1)
    with Iterations(options.log) as iterations:
        while not over.item():
            start_ns = time.monotonic_ns()
            optimizer.zero_grad()
            model(torch.randn(_BATCH, width, generator=data)).square().mean().backward()
            optimizer.step()
            iterations.add(time.monotonic_ns() - start_ns)
            if len(iterations) % _AGREE_STEPS == 0:
                over.fill_(float(iterations.seconds >= options.seconds))
                distributed.broadcast(over, 0)
            time.sleep(options.compute_ms / 1000)
    right = _same(torch, distributed, model)
    distributed.destroy_process_group()
    return iterations.summary(options.rank, right)


def _same(torch: Any, distributed: Any, model: Any) -> bool:
    """Whether all ranks have the same parameters, compared with the smallest and the largest."""
    own = torch.cat([one.detach().reshape(-1) for one in model.parameters()])
    lowest, highest = own.clone(), own.clone()
    distributed.all_reduce(lowest, op=distributed.ReduceOp.MIN)
    distributed.all_reduce(highest, op=distributed.ReduceOp.MAX)
    return bool(torch.equal(lowest, highest) and torch.isfinite(own).all())


if __name__ == "__main__":
    main(run, options(__doc__ or ""))
