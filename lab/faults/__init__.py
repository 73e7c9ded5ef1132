"""Things that break, one module each: a fault has a beginning and an end and says so as truth.

Defining a subclass of :class:`lab.faults.base.Fault` registers it under its name.
"""

from lab.faults.base import Fault, known, make

__all__ = ["Fault", "known", "make"]
