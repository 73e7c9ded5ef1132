"""What the restart of a job from its checkpoint costs: the price model, with its assumptions.

A job that loses a connection dies or hangs until a timeout; all its GPUs then wait while it is
noticed, scheduled, loaded, and while the steps since the checkpoint are computed again. Operators of
large jobs report up to 90 minutes for that: 16,384 GPUs × 1.5 h = 24,576 GPU-hours.
"""

from __future__ import annotations

RESTART_MIN = 90.0

ASSUMPTIONS = (
    f"a restart takes {RESTART_MIN:g} minutes on the checkpoint path: the upper end of what operators report",
    "every GPU of the job waits for all of that time",
    "a fault that is not bridged costs each job that it hurts one restart",
)


def restart_gpu_s(gpus: int, restart_min: float = RESTART_MIN) -> float:
    """GPU-seconds that one restart of a job (or of jobs together) with this many GPUs costs."""
    return gpus * restart_min * 60.0
