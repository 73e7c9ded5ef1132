"""A lab with Evertick in it: a fabric, Kafka out here, and a node agent in every host.

Agents are real ones, each in its host's namespace with its own settings and data; they reach Kafka
through a relay. The other parts (worker, remediators, history) run out here where they are wanted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Producer

from bus import topics
from bus.topics import name_on_broker
from lab.fabric import Fabric
from lab.relay import Relay
from lab.sandbox import Part, Sandbox
from lab.topology import Topology
from lab.truth import published
from schemas.event import Event
from schemas.registry import encode, topic_of

KEY = "a secret of the laboratory"


class Stage:
    """See the module; a context manager. Everything ends with it."""

    def __init__(
        self,
        topology: Topology,
        flags: Sequence[str] = (),
        linkpass: dict[str, Any] | None = None,
    ) -> None:
        """
        Args:
            topology: of the fabric.
            flags: settings for all parts.
            linkpass: further settings of LinkPass; None leaves the agents without it.
        """
        self.topology = topology
        self._stack = ExitStack()
        self._flags = flags
        self._linkpass = linkpass
        self.agents: dict[str, Part] = {}

    def __enter__(self) -> Self:
        """
        Raises:
            NoLab: no fabric can be made here.
            BenchError: a part does not start.
        """
        with ExitStack() as stack:
            self.fabric = stack.enter_context(Fabric(self.topology))
            self.sandbox = stack.enter_context(Sandbox(self._flags))
            self.kafka = self.sandbox.settings.kafka
            self.sandbox.kafka()
            topics.ensure(self.kafka)
            port = int(self.kafka.bootstrap.rpartition(":")[2])
            stack.enter_context(Relay(self.fabric.hosts.values(), [port]))
            self._producer = Producer(self.kafka.client("lab"))
            self.truth = stack.enter_context(published(self.kafka))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def tell(self, *events: Event) -> None:
        """Publish events: the inventory, say."""
        for event in events:
            topic = name_on_broker(self.kafka, topic_of(event))
            self._producer.produce(topic, encode(event), event.key())
        self._producer.flush(10)

    def agent(self, host: str, peers: Sequence[str] | None = None) -> Part:
        """Start the agent of a host; also one that has ended.

        Args:
            host: its name.
            peers: whom its LinkPass watches; None for all other hosts.
        """
        config = self.sandbox.folder / f"{host}.toml"
        config.write_text(self._settings(host, peers))
        command = [sys.executable, "-m", "evertick", "--config", str(config), "agent"]
        argv = self.fabric.hosts[host].words(command)
        self.agents[host] = self.sandbox.run(f"agent-{host}", argv)
        return self.agents[host]

    def start_agents(self) -> None:
        """Start the agents of all hosts."""
        for host in self.topology.host_names:
            self.agent(host)

    def _settings(self, host: str, peers: Sequence[str] | None) -> str:
        tables: dict[str, Any] = {
            "data_dir": str(self.sandbox.folder / host),
            "agent": {"node": host},
            "kafka": {"bootstrap": self.kafka.bootstrap},
            "collectors": {
                "link": {"include": ["rail*"]},
                "interface": {"include": ["rail*"]},
                "kernel_log": {"enabled": False},
            },
        }
        if self._linkpass is not None:
            table = self.topology.linkpass(host, KEY)
            if peers is not None:
                table["peers"] = {peer: table["peers"][peer] for peer in peers}
            tables["collectors"]["linkpass"] = table | self._linkpass
        return "".join(f"{name} = {toml(value)}\n" for name, value in tables.items())


def toml(value: Any) -> str:
    """A value of plain data as TOML, tables inline.

    Raises:
        TypeError: it has no such form.
    """
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{name}" = {toml(one)}' for name, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml(one) for one in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, str) and value.isprintable() and not set(value) & {'"', "\\"}:
        return f'"{value}"'
    raise TypeError(f"no TOML for {value!r}")
