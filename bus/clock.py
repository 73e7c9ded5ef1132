"""The time, and how far off it may be.

The bound is the kernel's own: ``adjtimex`` keeps ``maxerror``, which chronyd, ntpd or ptp4l set at
each update and which grows in between by the kernel at 500 ppm (RFC 5905, root distance; ClockBound
publishes the same quantity). A clock that nobody disciplines carries the kernel's 16 s, and so do
we: nothing pretends to be in step.
"""

from __future__ import annotations

import ctypes
import time
from typing import NamedTuple

_UNSYNCHRONIZED_NS = 16_000_000_000
_REFRESH_S = 1.0


class _Timex(ctypes.Structure):
    """``struct timex`` of Linux, as far as it is read here (``man 2 adjtimex``)."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    ]


class Reading(NamedTuple):
    """A time with the bound on its error, both in nanoseconds."""

    ns: int
    error_ns: int


class Clock:
    """The host's clock."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._error_ns = _UNSYNCHRONIZED_NS
        self._error_until_s = 0.0

    def read(self) -> Reading:
        """The time now, and the bound on its error."""
        monotonic_s = time.monotonic()
        if monotonic_s >= self._error_until_s:
            self._error_ns = self._kernel_bound_ns()
            self._error_until_s = monotonic_s + _REFRESH_S
        return Reading(time.time_ns(), self._error_ns)

    def _kernel_bound_ns(self) -> int:
        timex = _Timex()
        if self._libc.adjtimex(ctypes.byref(timex)) < 0 or timex.maxerror < 0:
            return _UNSYNCHRONIZED_NS
        return int(timex.maxerror) * 1000
