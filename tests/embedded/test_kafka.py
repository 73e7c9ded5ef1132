"""The embedded Kafka: its jars under concurrency and kills, its settings, and a real broker."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import given
from hypothesis import strategies as st

from evertick.embedded import kafka
from evertick.embedded.class_archive import ensure_class_archive
from evertick.embedded.jars import ensure_jars
from evertick.embedded.kafka import EmbeddedKafkaError, KafkaConfig

START_TIMEOUT_S = 90


def read_properties(text: str) -> dict[str, str]:
    """Read `text` as java.util.Properties does, as far as server_properties goes."""

    def unescape(value: str) -> str:
        units = re.sub(r"\\u([0-9a-f]{4})", lambda m: chr(int(m[1], 16)), value)
        return units.encode("utf-16", "surrogatepass").decode("utf-16").replace("\\\\", "\\")

    lines = text.split("\n")[:-1]
    return {key: unescape(value) for key, value in (line.split("=", 1) for line in lines)}


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0/,"), min_size=1))
def test_any_folder_name_survives_server_properties(name: str) -> None:
    config = KafkaConfig(Path("/data") / f"x{name}x")
    assert read_properties(kafka.server_properties(config))["log.dirs"] == str(config.log_dir)


def test_server_properties_listen_where_told_and_bound_disk_and_message() -> None:
    config = KafkaConfig(Path("/data"), port=1234, controller_port=1235, log_retention_bytes=99)
    properties = read_properties(kafka.server_properties(config))
    assert properties["listeners"] == "PLAINTEXT://127.0.0.1:1234,CONTROLLER://127.0.0.1:1235"
    assert properties["log.retention.bytes"] == "99"
    assert properties["message.max.bytes"] == str(8 * 1024**2)
    assert properties["auto.create.topics.enable"] == "false"


def test_a_comma_in_the_data_folder_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedKafkaError, match="a,b"):
        kafka.server_properties(KafkaConfig(tmp_path / "a,b"))


# --- jars: the real module in processes of its own, with a download that is small and slow


SLOW_DOWNLOAD = textwrap.dedent(
    """
    import pathlib, sys, time
    from evertick.embedded import jars

    def download(staging, say):
        with open(sys.argv[2], "a") as counter:
            counter.write("x")
        for name in ("a.jar", "b.jar"):
            (staging / "jars" / name).write_bytes(b"half")
            print("half", flush=True)
            time.sleep(float(sys.argv[3]))
            (staging / "jars" / name).write_bytes(b"the whole jar")

    jars._download = download
    print([p.name for p in jars.ensure_jars(pathlib.Path(sys.argv[1]))])
    """
)


def start_download(cache: Path, counter: Path, pause_s: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SLOW_DOWNLOAD, str(cache), str(counter), str(pause_s)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_two_processes_at_once_download_once(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    runs = [start_download(tmp_path / "cache", counter, 0.3) for _ in range(2)]
    outputs = [run.communicate(timeout=60)[0] for run in runs]
    assert all(output.endswith("['a.jar', 'b.jar']\n") for output in outputs)
    assert counter.read_text() == "x"


def test_a_download_killed_in_the_middle_is_made_anew(tmp_path: Path) -> None:
    cache, counter = tmp_path / "cache", tmp_path / "counter"
    victim = start_download(cache, counter, 60)
    assert victim.stdout is not None
    assert victim.stdout.readline() == "half\n"
    victim.kill()
    victim.communicate(timeout=30)
    assert start_download(cache, counter, 0).communicate(timeout=60)[0].endswith("b.jar']\n")
    assert counter.read_text() == "xx"
    found = sorted(cache.glob("*/jars/*"))
    assert [path.read_bytes() for path in found] == [b"the whole jar"] * 2


def test_a_shortened_jar_is_noticed_and_brought_again(tmp_path: Path) -> None:
    cache, counter = tmp_path / "cache", tmp_path / "counter"
    start_download(cache, counter, 0).communicate(timeout=60)
    next(cache.glob("*/jars/b.jar")).write_bytes(b"the who")
    start_download(cache, counter, 0).communicate(timeout=60)
    assert next(cache.glob("*/jars/b.jar")).read_bytes() == b"the whole jar"


def test_without_a_network_one_line_says_what_and_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_network(monkeypatch)
    with pytest.raises(EmbeddedKafkaError) as caught:
        ensure_jars(tmp_path / "cache")
    message = str(caught.value)
    assert "\n" not in message
    assert "Apache Kafka" in message and "HTTPS_PROXY" in message
    assert not list((tmp_path / "cache").glob("*/jars"))


def cut_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send every request of this process to a port that refuses."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)


# --- the real broker


@pytest.fixture(scope="session")
def jars() -> list[Path]:
    try:
        found = ensure_jars()
    except EmbeddedKafkaError as error:
        pytest.skip(f"no jars of Kafka: {error}")
    ensure_class_archive(found)
    return found


@pytest.fixture
def config(tmp_path: Path) -> KafkaConfig:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        ports = one.getsockname()[1], two.getsockname()[1]
    # A name that a careless properties file would not survive.
    return KafkaConfig(tmp_path / "dätä von 日本", port=ports[0], controller_port=ports[1])


@contextmanager
def running(config: KafkaConfig, jars: list[Path]) -> Iterator[subprocess.Popen[bytes]]:
    kafka.format_storage(config, jars)
    log = config.data_dir / "kafka.log"
    with log.open("ab") as out:
        process = subprocess.Popen(
            kafka.command(config, jars), stdout=out, stderr=subprocess.STDOUT
        )
    try:
        ready = kafka.wait_ready(config, lambda: process.poll() is None, START_TIMEOUT_S)
        assert ready, log.read_text()[-3000:]
        yield process
    finally:
        process.kill()
        process.wait()


def create_topic(config: KafkaConfig, name: str, settings: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": config.bootstrap})
    for made in admin.create_topics([NewTopic(name, 1, 1, config=settings)]).values():
        made.result(timeout=30)


def produce(config: KafkaConfig, topic: str, values: list[bytes]) -> int:
    """Send `values`; how many were acknowledged."""
    acknowledged = 0

    def delivered(error: object, message: object) -> None:
        nonlocal acknowledged
        acknowledged += error is None

    producer = Producer(
        {
            "bootstrap.servers": config.bootstrap,
            "acks": "all",
            "message.max.bytes": kafka.MESSAGE_MAX_BYTES,
        }
    )
    for value in values:
        producer.produce(topic, value, on_delivery=delivered)
        producer.poll(0)
    producer.flush(60)
    return acknowledged


def consume(config: KafkaConfig, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": config.bootstrap, "group.id": "test"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    deadline = time.monotonic() + 60
    try:
        while len(values) < count and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                values.append(message.value() or b"")
    finally:
        consumer.close()
    return values


def eventually(holds: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


def test_acknowledged_messages_survive_kill_9(config: KafkaConfig, jars: list[Path]) -> None:
    values = [str(number).encode() for number in range(1000)]
    with running(config, jars) as process:
        create_topic(config, "kept", {})
        assert produce(config, "kept", values) == 1000
        process.send_signal(signal.SIGKILL)
        process.wait()
    with running(config, jars):
        assert consume(config, "kept", 1000) == values


def test_a_second_start_finds_jars_and_folder_and_needs_no_network(
    config: KafkaConfig, jars: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_network(monkeypatch)
    assert ensure_jars() == jars
    assert kafka.cluster_id(config) is None
    first = kafka.format_storage(config, jars)
    assert kafka.format_storage(config, jars) == first == kafka.cluster_id(config)


def test_sigterm_ends_the_broker_cleanly(config: KafkaConfig, jars: list[Path]) -> None:
    with running(config, jars) as process:
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
    assert (config.log_dir / ".kafka_cleanshutdown").exists()


def test_listens_on_loopback_only_and_takes_large_messages(
    config: KafkaConfig, jars: list[Path]
) -> None:
    with running(config, jars) as process:
        listening = listeners_of(process.pid)
        assert {port for _, port in listening} == {config.port, config.controller_port}
        assert {address for address, _ in listening} == {"127.0.0.1"}

        with pytest.raises(KafkaException):
            raise_if_unknown(config, "never-made")
        create_topic(config, "large", {})
        value = bytes(7 * 1024**2)
        assert produce(config, "large", [value]) == 1
        assert consume(config, "large", 1) == [value]


def raise_if_unknown(config: KafkaConfig, topic: str) -> None:
    producer = Producer({"bootstrap.servers": config.bootstrap})
    if error := producer.list_topics(topic, timeout=10).topics[topic].error:
        raise KafkaException(error)


def listeners_of(pid: int) -> set[tuple[str, int]]:
    """The TCP addresses on which process `pid` listens (proc_pid_net(5), proc_pid_fd(5))."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(os.readlink(fd))
        except FileNotFoundError:
            continue  # closed while we look
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                address, port = fields[1].split(":")
                v4 = bytes.fromhex(address[-8:])[::-1]
                found.add((socket.inet_ntoa(v4), int(port, 16)))
    return found


def test_retention_by_size_bounds_the_disk(config: KafkaConfig, jars: list[Path]) -> None:
    with running(config, jars):
        create_topic(
            config, "bounded", {"retention.bytes": str(4 * 1024**2), "segment.bytes": "1048576"}
        )
        assert produce(config, "bounded", [os.urandom(100_000) for _ in range(160)]) == 160
        folder = config.log_dir / "bounded-0"

        def bounded() -> bool:
            return sum(f.stat().st_size for f in folder.glob("*.log*")) <= 6 * 1024**2

        assert not bounded()
        assert eventually(bounded, timeout_s=150)


def test_a_half_finished_format_is_repaired(config: KafkaConfig, jars: list[Path]) -> None:
    kafka.format_storage(config, jars)
    (config.log_dir / "meta.properties").unlink()
    (config.log_dir / "meta.properties.tmp").write_text("version=1\nclu")
    for checkpoint in config.log_dir.rglob("*.checkpoint"):
        checkpoint.write_bytes(b"")
    with running(config, jars):
        create_topic(config, "works", {})


def test_data_without_meta_properties_is_never_removed(
    config: KafkaConfig, jars: list[Path]
) -> None:
    partition = config.log_dir / "precious-0"
    partition.mkdir(parents=True)
    with pytest.raises(EmbeddedKafkaError, match="precious-0"):
        kafka.format_storage(config, jars)
    assert partition.exists()


def test_the_folder_of_another_kafka_is_refused(config: KafkaConfig, jars: list[Path]) -> None:
    config.log_dir.mkdir(parents=True)
    meta = config.log_dir / "meta.properties"
    meta.write_text("version=1\ncluster.id=someone\nnode.id=7\n")
    with pytest.raises(EmbeddedKafkaError, match="another Kafka"):
        kafka.format_storage(config, jars)
    assert "node.id=7" in meta.read_text()


def test_not_ready_when_dead_or_silent_or_when_it_is_another_broker(
    config: KafkaConfig, jars: list[Path], tmp_path: Path
) -> None:
    assert not kafka.wait_ready(config, lambda: False, timeout_s=30)
    with socket.create_server(("127.0.0.1", config.port)):  # a port that is merely open
        assert not kafka.wait_ready(config, lambda: True, timeout_s=2)
    other = KafkaConfig(tmp_path / "other", port=config.port)
    kafka.format_storage(other, jars)
    with running(config, jars):
        assert not kafka.wait_ready(other, lambda: True, timeout_s=2)


def test_the_class_archive_is_used(config: KafkaConfig, jars: list[Path]) -> None:
    archive = kafka.class_archive(jars)
    if not archive.exists():
        pytest.skip("no class archive could be made on this machine")
    with running(config, jars) as process:
        assert str(archive) in Path(f"/proc/{process.pid}/maps").read_text()


def test_an_archive_is_made_for_exactly_these_jars(jars: list[Path], tmp_path: Path) -> None:
    home = tmp_path / "kafka"
    (home / "jars").mkdir(parents=True)
    copies = [Path(shutil.copy2(jar, home / "jars")) for jar in jars]
    before = kafka.class_archive(copies)
    assert before == kafka.class_archive(copies)
    os.utime(copies[0], (0, 0))
    assert kafka.class_archive(copies) != before


def test_the_manifest_names_every_jar(jars: list[Path]) -> None:
    manifest = json.loads((jars[0].parent.parent / "manifest.json").read_text())
    assert sorted(manifest) == [jar.name for jar in jars] == sorted(os.listdir(jars[0].parent))
