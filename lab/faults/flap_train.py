"""A link that flaps: short losses of carrier, one after another."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Any

from lab.faults.base import Fault


class FlapTrain(Fault):
    """Flaps until it is ended, or as many as asked; ``flaps`` counts them."""

    name = "flap_train"
    about = "the link flaps"

    def __init__(
        self, *arguments: Any, count: int = 5, down_s: float = 0.05, up_s: float = 0.05
    ) -> None:
        super().__init__(*arguments)
        self.flaps = 0
        """Flaps made so far."""
        self._count, self._down_s, self._up_s = count, down_s, up_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def details(self) -> dict[str, Any]:
        return {**super().details, "flaps": self.flaps}

    @property
    def length_s(self) -> float:
        """How long all of them take."""
        return self._count * (self._down_s + self._up_s)

    def _break(self) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._flap, daemon=True)
        self._thread.start()

    def _mend(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _flap(self) -> None:
        # A flap is as long as asked also on a busy machine, where the kernel lets us say so.
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        for _ in range(self._count):
            if self._stop.is_set():
                return
            self.leaf.set_up(self.port, False)
            self.flaps += 1
            time.sleep(self._down_s)
            self.leaf.set_up(self.port, True)
            time.sleep(self._up_s)
