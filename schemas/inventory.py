"""What the fleet consists of (topic ``inventory``, compacted by subject).

Each message is the whole of what is known about one thing; a null value under the same key says
that it is gone. The map from a job's ranks to nodes, GPUs and NICs is what lets an incident name
its victims.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas.event import Count, Event
from schemas.identity import NodeName, Subject
from schemas.registry import event


class InventoryItem(Event):
    """Base of the inventory's messages: the state of one subject as of ``at_ns``."""

    subject: Subject

    def key(self) -> str:
        return self.subject


@event(topic="inventory")
class InventoryNode(InventoryItem):
    """A host."""

    schema_name: Literal["inventory.node"] = Field(default="inventory.node", alias="schema")
    version: Literal[1] = 1

    node: NodeName
    boot_id: str
    kernel: str
    """Release of its kernel, as ``uname -r`` prints it."""
    agent_version: str
    collectors: list[str]
    """Names of the collectors that run on it."""


@event(topic="inventory")
class InventoryNic(InventoryItem):
    """A network interface."""

    schema_name: Literal["inventory.nic"] = Field(default="inventory.nic", alias="schema")
    version: Literal[1] = 1

    node: NodeName
    interface: str
    mac: str
    physical: bool
    driver: str = ""
    pci_address: str | None = None
    speed_mbps: Count | None = None
    mtu_bytes: Count = 0
    addresses: list[str] = []


@event(topic="inventory")
class InventoryGpu(InventoryItem):
    """A GPU."""

    schema_name: Literal["inventory.gpu"] = Field(default="inventory.gpu", alias="schema")
    version: Literal[1] = 1

    node: NodeName
    pci_address: str
    uuid: str = ""
    index: Count | None = None
    model: str = ""


@event(topic="inventory")
class InventoryLink(InventoryItem):
    """A cable: its two ends."""

    schema_name: Literal["inventory.link"] = Field(default="inventory.link", alias="schema")
    version: Literal[1] = 1

    end_a: Subject
    end_b: Subject


class RankPlace(BaseModel):
    """Where one rank of a job runs and which devices it uses."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    rank: Annotated[int, Field(ge=0)]
    node: NodeName
    gpus: list[Subject] = []
    nics: list[Subject] = []


@event(topic="inventory")
class InventoryJob(InventoryItem):
    """A job that runs, with the place of each rank. When it ends, its message is deleted."""

    schema_name: Literal["inventory.job"] = Field(default="inventory.job", alias="schema")
    version: Literal[1] = 1

    name: str
    ranks: list[RankPlace]
