"""Which parts the stack has, how each is started, and what tells that it is ready and well.

Settings reach the parts as they reached us, with what the stack itself decides on top: addresses,
data folder, and the bounds that keep the folder within its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from bus import topics
from bus.settings import KafkaSettings, Settings, SettingsError
from evertick.embedded.folder import KAFKA, Split, split
from evertick.embedded.groups import Groups, Progress
from evertick.embedded.kafka import KafkaConfig, wait_ready
from evertick.embedded.preflight import bootstrap, clickhouse_url
from evertick.embedded.process import Process
from evertick.embedded.supervisor import Part
from schemas.topics import TOPICS

_ANSWER_TIMEOUT_S = 4.0
_LOOK_AGAIN_S = 0.1
_FIRST_KAFKA_S = 600.0
"""Includes a download on a slow network; the download bounds itself."""
_ALTER_TIMEOUT_S = 15.0
_T = TypeVar("_T")


def environment() -> dict[str, str]:
    """The environment of the parts: ours, with our own code first, and fewer malloc arenas, which
    in processes of many threads take memory that nobody uses."""
    root = str(Path(__file__).resolve().parents[2])
    there = os.environ.get("PYTHONPATH", "")
    return {
        **os.environ,
        "PYTHONPATH": root + (os.pathsep + there if there else ""),
        "MALLOC_ARENA_MAX": "2",
    }


def overrides(settings: Settings, shares: Split) -> list[str]:
    """Settings that the stack decides, as flags."""
    spool = min(settings.agent.spool_max_bytes, shares.spool_max_bytes)
    asked = int(settings.history.get("max_bytes", 0) or 0)
    history = min(asked, shares.history_max_bytes) if asked > 0 else shares.history_max_bytes
    return [
        f"kafka.bootstrap={bootstrap(settings)}",
        f"clickhouse.url={clickhouse_url(settings)}",
        f"data_dir={settings.data_dir.absolute()}",
        f"history.max_bytes={history}",
        f"agent.spool_max_bytes={spool}",
    ]


def all_parts(settings: Settings, options: Sequence[str]) -> list[Part]:
    """The parts, in the order in which they are shown.

    Args:
        settings: what holds for this run.
        options: ``--config`` and ``--set`` as we were given them.
    """
    shares = split(settings.embedded.data_max_bytes)
    metrics = settings.metrics
    options = [*options]
    for flag in overrides(settings, shares):
        options += ["--set", flag]
    inner = settings.kafka.model_copy(update={"bootstrap": bootstrap(settings)})
    groups = Groups(inner)

    def python(*words: str) -> list[str]:
        return [sys.executable, "-P", "-m", *words]

    def worker(
        name: str, module: str, words: Sequence[str], port: int, group: str, needs: tuple[str, ...]
    ) -> Part:
        watch = _GroupWatch(groups, group)
        host = _reachable(metrics.host)

        async def start(process: Process) -> None:
            before = await _until(lambda: in_thread(lambda: groups.describe(group)))
            process.let_in()
            await _until(lambda: _healthy(host, port))
            await _until(lambda: in_thread(lambda: _joined(groups, group, before.members)))

        return Part(
            name,
            python("evertick.embedded.gate", module, *options, *words),
            start=start,
            answers=lambda: _healthy(host, port),
            stalled=watch.look,
            rest=watch.rest,
            needs=needs,
            gated=True,
            metrics=f"http://{host}:{port}/metrics",
        )

    return [
        _kafka(settings, inner, shares, groups, python),
        _clickhouse(settings, python("evertick", *options, "history", "serve")),
        worker(
            "history",
            "history.writer",
            ("history", "write"),
            metrics.history_port,
            "history",
            ("kafka", "clickhouse"),
        ),
        worker("stream", "streams.worker", ("stream",), metrics.stream_port, "streams", ("kafka",)),
        worker(
            "remediate",
            "remediators.worker",
            ("remediate",),
            metrics.remediate_port,
            "remediate",
            ("kafka",),
        ),
        _agent(
            metrics.agent_port,
            _reachable(metrics.host),
            python("evertick.embedded.gate", "collectors.agent", *options, "agent"),
            f"node {settings.agent.node}",
        ),
    ]


def record_classes() -> list[str]:
    """The command that prepares quicker starts of Kafka."""
    return [sys.executable, "-P", "-m", "evertick.embedded.broker", "record"]


def has_class_archive(pid: int) -> bool:
    """Whether a running broker was started from an archive of its classes."""
    try:
        return b"-XX:AOTCache=" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True  # it has just died; the next start is time enough


def _kafka(
    settings: Settings,
    inner: KafkaSettings,
    shares: Split,
    groups: Groups,
    python: Callable[..., list[str]],
) -> Part:
    embedded = settings.embedded
    config = KafkaConfig(
        settings.data_dir.absolute() / KAFKA,
        embedded.host,
        embedded.kafka_port,
        embedded.kafka_controller_port,
    )
    fields = {
        "data_dir": str(config.data_dir),
        "host": config.host,
        "port": config.port,
        "controller_port": config.controller_port,
    }

    async def start(process: Process) -> None:
        def up() -> bool:
            return wait_ready(config, lambda: not process.exited.is_set(), _FIRST_KAFKA_S)

        while not await in_thread(up):
            await process.exited.wait()
        await _until(lambda: in_thread(lambda: make_topics(inner, shares.topics_budget_bytes)))

    return Part(
        "kafka",
        python("evertick.embedded.broker", json.dumps(fields)),
        start=start,
        answers=lambda: in_thread(lambda: _broker_answers(groups)),
        start_timeout_s=_FIRST_KAFKA_S,
        where=config.bootstrap,
    )


def _clickhouse(settings: Settings, argv: Sequence[str]) -> Part:
    host, port = settings.embedded.host, settings.embedded.clickhouse_port
    headers = {
        "X-ClickHouse-User": settings.clickhouse.user,
        "X-ClickHouse-Key": settings.clickhouse.password.get_secret_value(),
    }

    async def ready() -> bool:
        status, _ = await http_get(host, port, "/ping", {})
        return status == 200 and await answers()

    async def answers() -> bool:
        # Any answer will do: one that is busy or refuses our password lives.
        await http_get(host, port, f"/?query={quote('SELECT 1')}", headers)
        return True

    async def start(process: Process) -> None:
        await _until(ready)

    return Part("clickhouse", argv, start=start, answers=answers, where=clickhouse_url(settings))


def _agent(port: int, host: str, argv: Sequence[str], where: str) -> Part:
    async def start(process: Process) -> None:
        process.let_in()
        await _until(lambda: _healthy(host, port))
        await _until(lambda: _has_sent(host, port))

    return Part(
        "agent",
        argv,
        start=start,
        answers=lambda: _healthy(host, port),
        needs=("kafka",),
        gated=True,
        where=where,
        metrics=f"http://{host}:{port}/metrics",
    )


class _GroupWatch:
    """Looks at a group now and then."""

    def __init__(self, groups: Groups, group: str) -> None:
        self._groups = groups
        self._group = group
        self._progress = Progress()

    def rest(self) -> None:
        """Begin anew."""
        self._progress = Progress()

    async def look(self) -> str | None:
        """What stands still; None also where the broker does not answer, which is its own fault."""
        try:
            return await in_thread(self._look)
        except (KafkaException, TimeoutError):
            return None

    def _look(self) -> str | None:
        found = self._groups.describe(self._group)
        offsets = self._groups.offsets(self._group, found.assigned)
        return self._progress.observe(time.monotonic(), len(found.members), offsets)


def make_topics(kafka: KafkaSettings, budget_bytes: int) -> bool:
    """Make the topics, and give those that are there already the sizes of this budget.

    Raises:
        SettingsError: the broker refuses.
    """
    made = set(topics.ensure(kafka, budget_bytes))
    resources = []
    for spec in TOPICS.values():
        name = topics.name_on_broker(kafka, spec.name)
        if name not in made:
            entries = [
                ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
                for key, value in topics.storage(spec, budget_bytes).items()
            ]
            resources.append(ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries))
    if resources:
        admin = AdminClient(kafka.client("evertick-up"))
        for future in admin.incremental_alter_configs(
            resources, request_timeout=_ALTER_TIMEOUT_S
        ).values():
            future.result(_ALTER_TIMEOUT_S)
    return True


def _broker_answers(groups: Groups) -> bool:
    try:
        return groups.answers()
    except KafkaException as error:
        raise TimeoutError(error.args[0].str()) from None


def _joined(groups: Groups, group: str, before: frozenset[str]) -> bool:
    """Whether somebody is in the group who was not before, and all have their partitions."""
    found = groups.describe(group)
    return found.stable and bool(found.members - before)


async def _healthy(host: str, port: int) -> bool:
    status, _ = await http_get(host, port, "/healthz", {})
    return status == 200


async def _has_sent(host: str, port: int) -> bool:
    """Whether Kafka has acknowledged something of the agent's, such as its inventory."""
    _, body = await http_get(host, port, "/metrics", {})
    return any(
        line.startswith(b"evertick_producer_sent_total{") and float(line.rpartition(b" ")[2]) > 0
        for line in body.splitlines()
    )


async def http_get(
    host: str, port: int, path: str, headers: Mapping[str, str]
) -> tuple[int, bytes]:
    """Status and body of an answer.

    Raises:
        OSError, TimeoutError: there is none.
    """
    async with asyncio.timeout(_ANSWER_TIMEOUT_S):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            lines = [f"GET {path} HTTP/1.0", f"Host: {host}", "Connection: close"]
            lines += [f"{name}: {value}" for name, value in headers.items()]
            writer.write("\r\n".join([*lines, "", ""]).encode())
            head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
        finally:
            writer.close()
    words = head.split(b" ", 2)
    if len(words) < 2 or not words[1].isdigit():
        raise ConnectionError(f"{host}:{port} does not speak HTTP")
    return int(words[1]), body


async def in_thread(call: Callable[[], _T]) -> _T:
    """Call something that blocks, in a thread that nobody waits for at exit."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def settle(result: _T | None, error: Exception | None) -> None:
        if not future.done():
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result, failure = None, None
        try:
            result = call()
        except Exception as error:  # noqa: BLE001 - handed to whoever awaits it
            failure = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=work, daemon=True).start()
    return await future


async def _until(check: Callable[[], Awaitable[_T]]) -> _T:
    """Ask again until the answer is true; no answer is none."""
    while True:
        try:
            if found := await check():
                return found
        except (OSError, TimeoutError, KafkaException, SettingsError):
            pass  # not yet there, which is what is waited for; the start has its own time-out
        await asyncio.sleep(_LOOK_AGAIN_S)


def _reachable(host: str) -> str:
    return "127.0.0.1" if host == "0.0.0.0" else host
