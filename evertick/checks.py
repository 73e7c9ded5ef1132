"""What this host offers to Evertick, for ``evertick doctor``: each check is quick and changes nothing."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from bus.clock import Clock
from bus.settings import Settings, SettingsError
from bus.topics import name_on_broker
from evertick import extras, reach, wording
from schemas.topics import TOPICS

_PYTHON_MIN = (3, 11)
_UNSYNCHRONIZED_NS = 16_000_000_000
_MEMORY_MIN_BYTES = 2 << 30
_PING_TIMEOUT_S = 3.0
_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21, "CAP_SYSLOG": 34, "CAP_BPF": 39}
_BPF_SYSCALL = {"x86_64": 321, "aarch64": 280}
_BPF_MAP_TYPE_ARRAY = 2


class Verdict(StrEnum):
    """What a check found."""

    OK = "ok"
    FAILS = "fails"
    """Something that is enabled does not work."""
    NOTE = "note"
    """Worth knowing; nothing that is enabled depends on it, or it works less well."""
    OFF = "off"
    """Not enabled."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    area: str
    name: str
    verdict: Verdict
    detail: str
    fix: str = ""
    """The command or setting that would mend it."""


def python() -> Iterator[Check]:
    """The interpreter, and which parts have their packages."""
    version = platform.python_version()
    fits = sys.version_info >= _PYTHON_MIN
    yield Check(
        "python",
        "version",
        Verdict.OK if fits else Verdict.FAILS,
        version,
        "" if fits else "install Python 3.11 or newer",
    )
    for part in extras.EXTRAS:
        missing = extras.missing(part)
        yield Check(
            "python",
            f"packages of {part}",
            Verdict.NOTE if missing else Verdict.OK,
            f"missing: {', '.join(missing)}" if missing else "installed",
            f"pip install -e '.[{part}]'" if missing else "",
        )


def clock(error_ns: int | None = None) -> Check:
    """How far off the clock may be; ``error_ns`` in place of the kernel's own bound."""
    bound_ns = Clock().read().error_ns if error_ns is None else error_ns
    if bound_ns >= _UNSYNCHRONIZED_NS:
        return Check(
            "clock",
            "discipline",
            Verdict.NOTE,
            "nothing disciplines the clock: its error may be 16 s, so times of different hosts "
            "cannot be compared",
            "apt-get install chrony",
        )
    return Check("clock", "discipline", Verdict.OK, f"right within ±{wording.span(bound_ns)}")


def kafka(settings: Settings) -> Iterator[Check]:
    """Whether Kafka answers and has our topics."""
    try:
        found = reach.kafka(settings.kafka).topics
    except SettingsError as error:
        yield Check("services", "Kafka", Verdict.FAILS, *str(error).split("; ", 1))
        return
    yield Check("services", "Kafka", Verdict.OK, f"answers at {settings.kafka.bootstrap}")
    missing = [name for name in TOPICS if name_on_broker(settings.kafka, name) not in found]
    odd = [
        f"{name} has {there} partitions, not {spec.partitions}"
        for name, spec in TOPICS.items()
        if name not in missing
        and (there := len(found[name_on_broker(settings.kafka, name)].partitions))
        != spec.partitions
    ]
    if missing:
        yield Check(
            "services",
            "topics",
            Verdict.NOTE,
            f"not there yet: {', '.join(missing)}",
            "the first part that starts creates them",
        )
    else:
        detail = "; ".join(odd) or f"all {len(TOPICS)} are there"
        yield Check("services", "topics", Verdict.NOTE if odd else Verdict.OK, detail)


def clickhouse(settings: Settings) -> Check:
    """Whether ClickHouse answers and lets us in. Its client is not needed for that."""
    where = settings.clickhouse
    request = urllib.request.Request(
        f"{where.url.rstrip('/')}/?query=SELECT%20version()",
        headers={
            "X-ClickHouse-User": where.user,
            "X-ClickHouse-Key": where.password.get_secret_value(),
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=_PING_TIMEOUT_S) as answer:
            version = answer.read(100).decode(errors="replace").strip()
    except urllib.error.HTTPError as error:
        reason = error.read(300).decode(errors="replace").strip().partition("\n")[0]
        return Check(
            "services",
            "ClickHouse",
            Verdict.FAILS,
            f"{where.url} refuses: {reason or error.reason}",
            "set clickhouse.user and EVERTICK_CLICKHOUSE__PASSWORD",
        )
    except (OSError, ValueError) as error:
        reason = str(getattr(error, "reason", error))
        return Check(
            "services",
            "ClickHouse",
            Verdict.FAILS,
            f"{where.url} does not answer ({reason})",
            "evertick up, or --set clickhouse.url=http://HOST:8123",
        )
    return Check("services", "ClickHouse", Verdict.OK, f"{version} at {where.url}")


def disk(settings: Settings) -> Check:
    """Whether the data folder can be written and has room for the agent's spool."""
    folder = settings.data_dir
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    free, needed = shutil.disk_usage(there).free, settings.agent.spool_max_bytes
    found = f"{free / 1e9:.1f} GB free for {folder}"
    if not os.access(there, os.W_OK):
        return Check(
            "host",
            "disk",
            Verdict.FAILS,
            f"{there} cannot be written",
            "--set data_dir=FOLDER, one that you may write",
        )
    if free < needed:
        return Check(
            "host",
            "disk",
            Verdict.FAILS,
            f"{found}; the agent's spool may take {needed / 1e9:.1f} GB",
            "free some, or --set agent.spool_max_bytes=BYTES",
        )
    if free < settings.embedded.data_max_bytes:
        need_gb = settings.embedded.data_max_bytes / 1e9
        return Check(
            "host",
            "disk",
            Verdict.NOTE,
            f"{found}; evertick up may take {need_gb:.1f} GB",
            "free some, or --set embedded.data_max_bytes=BYTES",
        )
    return Check("host", "disk", Verdict.OK, found)


def memory(root: Path = Path("/")) -> Check:
    """Whether ``evertick up`` has enough of it."""
    found = {
        name: int(value.split()[0]) * 1024
        for name, _, value in (
            line.partition(":") for line in (root / "proc/meminfo").read_text().splitlines()
        )
    }
    free = found.get("MemAvailable", 0)
    enough = free >= _MEMORY_MIN_BYTES
    return Check(
        "host",
        "memory",
        Verdict.OK if enough else Verdict.NOTE,
        f"{free / 1e9:.1f} GB available" + ("" if enough else "; evertick up needs about 2"),
        "" if enough else "stop something else, or use a Kafka and a ClickHouse elsewhere",
    )


def permissions(root: Path = Path("/")) -> Check:
    """What this user may do beyond reading."""
    status = (root / "proc/self/status").read_text()
    held = int(next(line for line in status.splitlines() if line.startswith("CapEff:"))[7:], 16)
    missing = [name for name, bit in _CAPABILITIES.items() if not held >> bit & 1]
    who = "root" if os.geteuid() == 0 else f"user {os.geteuid()}"
    return Check(
        "host",
        "permissions",
        Verdict.NOTE if missing else Verdict.OK,
        f"{who}, without {', '.join(missing)}" if missing else f"{who}, all that is ever needed",
        "run as root to have them" if missing else "",
    )


def ebpf(root: Path = Path("/"), allowed: int | None = None) -> Check:
    """Whether programs can be put into the kernel, as collector ``tcp`` would.

    ``allowed`` in place of asking the kernel: 0 for yes, an errno for no.
    """
    types = (root / "sys/kernel/btf/vmlinux").exists()
    refused = _bpf_errno() if allowed is None else allowed
    found = [
        "kernel types (BTF) are there" if types else "no kernel types (BTF)",
        "bpf() is allowed" if refused == 0 else f"bpf(): {os.strerror(refused)}",
    ]
    works = types and refused == 0
    return Check("host", "eBPF", Verdict.OK if works else Verdict.NOTE, ", ".join(found))


def _bpf_errno() -> int:
    """Ask for a map of one entry and give it back."""
    number = _BPF_SYSCALL.get(platform.machine())
    if number is None:
        return 38  # ENOSYS: we do not know its number here
    attributes = (ctypes.c_uint32 * 16)(_BPF_MAP_TYPE_ARRAY, 4, 4, 1)
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.syscall(number, 0, ctypes.byref(attributes), ctypes.sizeof(attributes))
    if descriptor < 0:
        return ctypes.get_errno()
    os.close(descriptor)
    return 0


def gpus(root: Path = Path("/")) -> Check:
    """Whether the NVIDIA driver is loaded."""
    version = root / "proc/driver/nvidia/version"
    if not version.exists():
        return Check("host", "NVIDIA driver", Verdict.NOTE, "not loaded: no GPUs of NVIDIA here")
    cards = root / "proc/driver/nvidia/gpus"
    count = len(list(cards.iterdir())) if cards.is_dir() else 0
    first = version.read_text().partition("\n")[0].partition(":")[2].strip()
    return Check("host", "NVIDIA driver", Verdict.OK, f"{count} GPUs, {first}")


def rdma(root: Path = Path("/")) -> Check:
    """Whether there are RDMA devices."""
    folder = root / "sys/class/infiniband"
    devices = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    if not devices:
        return Check("host", "RDMA", Verdict.NOTE, "no RDMA devices here")
    return Check("host", "RDMA", Verdict.OK, ", ".join(devices))


def kernel_log(path: Path = Path("/dev/kmsg")) -> Check:
    """Whether the kernel log can be read."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        return Check(
            "host",
            "kernel log",
            Verdict.NOTE,
            f"{path}: {error.strerror}",
            "run as root, or: sysctl kernel.dmesg_restrict=0",
        )
    return Check("host", "kernel log", Verdict.OK, f"{path} can be read")
