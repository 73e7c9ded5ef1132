"""A place where parts of Evertick run and are measured: a temporary folder, free ports, processes.

Nothing of the host's own Evertick is touched or heeded: no settings file, no ``EVERTICK_…`` of the
environment, no data folder, no port in use. Only the cache of Kafka's jars is shared. Everything is
gone when the sandbox is closed, however that comes about; processes are also killed by the kernel
when this one dies (``PR_SET_PDEATHSIG``, which goes by the thread that forked: use a sandbox from
the main thread).
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from prometheus_client.parser import text_string_to_metric_families

from bus.settings import NOT_SETTINGS, PREFIX, Settings, load
from lab.bench import BenchError

DISK_MIN_BYTES = 6 << 30
_PR_SET_PDEATHSIG = 1
_STOP_S = 10.0
_TAIL_LINES = 8
_ROOT = Path(__file__).resolve().parents[1]
_libc = ctypes.CDLL(None)


class Part:
    """A process, its output in files."""

    def __init__(self, name: str, argv: Sequence[str], log: Path, env: dict[str, str]) -> None:
        self.name = name
        self._log, self._out = log, log.with_suffix(".out")
        with self._log.open("ab") as errors, self._out.open("wb") as output:
            self._popen = subprocess.Popen(
                argv,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                # Ctrl-C is ours to pass on.
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - one prctl, before exec
            )
        self.pid = self._popen.pid

    def alive(self) -> bool:
        """It still runs."""
        return self._popen.poll() is None

    def printed(self) -> str:
        """What it has written to standard output."""
        return self._out.read_text(errors="replace")

    def check(self) -> None:
        """See that it still runs.

        Raises:
            BenchError: it has ended, with what it said last.
        """
        status = self._popen.poll()
        if status is not None:
            lines = (self._log.read_text(errors="replace") or self.printed()).splitlines()
            said = "\n".join(lines[-_TAIL_LINES:])
            raise BenchError(f"{self.name} ended with status {status}; it said last:\n{said}")

    def stop(self) -> None:
        """SIGTERM; SIGKILL where that does not do."""
        try:
            self._popen.terminate()
            self._popen.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            pass  # it is killed below
        finally:
            self._popen.kill()
            self._popen.wait()


class Sandbox:
    """See the module; a context manager."""

    def __init__(self, flags: Sequence[str] = ()) -> None:
        """
        Args:
            flags: settings of the user's, ``name=value``; those that say where things are have no
                effect.

        Raises:
            SettingsError: a setting does not fit.
            BenchError: there is too little disk.
        """
        self._stack = ExitStack()
        place = Path(tempfile.mkdtemp(prefix="evertick-bench-"))
        self._stack.callback(shutil.rmtree, place, ignore_errors=True)
        try:
            free = shutil.disk_usage(place).free
            if free < DISK_MIN_BYTES:
                raise BenchError(
                    f"{place.parent} has {free / (1 << 30):.1f} GiB free, a benchmark may need "
                    f"{DISK_MIN_BYTES >> 30} GiB; free some, or name another folder in TMPDIR"
                )
            self.folder = place
            self._config = place / "evertick.toml"
            self._config.touch()
            self._env = without_settings()
            self._flags = [*flags, *self._places()]
            self.settings: Settings = self._load()
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def start(self, *words: str, flags: Sequence[str] = ()) -> Part:
        """Start ``evertick WORDS`` here, with further settings."""
        options = [option for flag in (*self._flags, *flags) for option in ("--set", flag)]
        argv = [sys.executable, "-m", "evertick", "--config", str(self._config), *options, *words]
        return self.run(" ".join(("evertick", *words)), argv)

    def run(self, name: str, argv: Sequence[str]) -> Part:
        """Start any program here; it is stopped with the sandbox."""
        log = self.folder / f"{name.replace(' ', '-')}.log"
        part = Part(name, argv, log, self._env)
        self._stack.callback(part.stop)
        return part

    def kafka(self) -> Part:
        """Start a broker and wait for it."""
        from evertick.embedded.kafka import (
            KafkaConfig,
            command,
            ensure_jars,
            format_storage,
            wait_ready,
        )

        jars = ensure_jars()
        embedded = self.settings.embedded
        config = KafkaConfig(
            data_dir=self.settings.data_dir / "kafka",
            port=embedded.kafka_port,
            controller_port=embedded.kafka_controller_port,
            log_retention_bytes=-1,
        )
        format_storage(config, jars)
        part = self.run("kafka", command(config, jars))
        if not wait_ready(config, part.alive, timeout_s=120):
            part.check()
            raise BenchError("Kafka is not ready after 120 s")
        return part

    def _places(self) -> list[str]:
        """Where everything is, as flags: they are stronger than all other settings."""
        names = (
            "embedded.kafka_port",
            "embedded.kafka_controller_port",
            "embedded.clickhouse_port",
            "metrics.agent_port",
            "metrics.stream_port",
            "metrics.remediate_port",
            "metrics.history_port",
        )
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        return [
            f"data_dir={self.folder / 'data'}",
            "embedded.host=127.0.0.1",
            "metrics.host=127.0.0.1",
            *(f"{name}={port}" for name, port in ports.items()),
            f"kafka.bootstrap=127.0.0.1:{ports['embedded.kafka_port']}",
            "kafka.security_protocol=PLAINTEXT",
            "kafka.replication=1",
            f"clickhouse.url=http://127.0.0.1:{ports['embedded.clickhouse_port']}",
        ]

    def _load(self) -> Settings:
        """The settings as the parts will see them."""
        ours = dict(os.environ)
        os.environ.clear()
        os.environ.update(self._env)
        try:
            return load(self._flags, self._config)
        finally:
            os.environ.clear()
            os.environ.update(ours)


def without_settings() -> dict[str, str]:
    """The environment without Evertick's settings, and with the code that runs here first."""
    there = os.environ.get("PYTHONPATH", "")
    return {
        name: value
        for name, value in os.environ.items()
        if not name.upper().startswith(PREFIX)
        or (name.upper() in NOT_SETTINGS and name.upper() != f"{PREFIX}CONFIG")
    } | {"PYTHONPATH": str(_ROOT) + (os.pathsep + there if there else "")}


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nothing listens on now, all different."""
    with ExitStack() as probes:
        ports = []
        for _ in range(count):
            probe = probes.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            ports.append(int(probe.getsockname()[1]))
        return ports


def metric(port: int, name: str, **labels: str) -> float:
    """The sum of a metric's samples that have these labels, from a part's ``/metrics``; 0 while it
    does not answer or has none."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except OSError:
        return 0.0
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def wait_for(
    true: Callable[[], object],
    what: str,
    parts: Sequence[Part],
    within_s: float,
    pause_s: float = 0.1,
) -> None:
    """Look again and again until something holds.

    Raises:
        BenchError: it does not in time, or a part has ended meanwhile.
    """
    deadline = time.monotonic() + within_s
    while not true():
        for part in parts:
            part.check()
        if time.monotonic() > deadline:
            raise BenchError(f"not within {within_s:.0f} s: {what}")
        time.sleep(pause_s)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
