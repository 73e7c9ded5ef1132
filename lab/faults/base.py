"""What a fault is, and the registry of all."""

from __future__ import annotations

import pkgutil
import time
from abc import ABC, abstractmethod
from importlib import import_module
from types import TracebackType
from typing import Any, ClassVar, Self

import lab.faults
from lab.fabric import Fabric
from lab.namespace import Namespace
from lab.truth import Truth
from schemas import identity

_registered: dict[str, type[Fault]] = {}


class Fault(ABC):
    """One fault on one cable; a context manager that ends what it began."""

    name: ClassVar[str]
    about: ClassVar[str]
    """One line for whoever watches."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            _registered[cls.name] = cls

    def __init__(self, fabric: Fabric, truth: Truth, host: str, rail: int = 0) -> None:
        """
        Args:
            fabric: where.
            truth: who is told.
            host: whose cable; of a switch any of its hosts.
            rail: which of its cables.
        """
        self.fabric = fabric
        self.host = host
        self.rail = rail
        self.options: dict[str, Any] = {}
        """How it was asked for, beyond where."""
        self._truth = truth
        self._began_ns: int | None = None

    @property
    def subject(self) -> str:
        """What is broken."""
        return self.fabric.topology.link(self.host, self.rail)

    @property
    def leaf(self) -> Namespace:
        """The switch at the other end."""
        return self.fabric.leaves[self.rail]

    @property
    def port(self) -> str:
        """The switch's port."""
        return self.fabric.topology.port(self.host)

    @property
    def interface(self) -> str:
        """The host's NIC."""
        return self.fabric.topology.rail_names[self.rail]

    @property
    def leaf_subject(self) -> str:
        """The switch."""
        return identity.node(self.fabric.topology.leaf_names[self.rail])

    @property
    def details(self) -> dict[str, Any]:
        """What the truth tells of it, beyond its kind and subject."""
        return self.options

    def begin(self) -> None:
        """Break it."""
        self._break()
        self._began_ns = self._truth.began(self.name, self.subject, self.details)

    def end(self) -> None:
        """Mend it; without effect where it is not broken."""
        if self._began_ns is None:
            return
        began_ns, self._began_ns = self._began_ns, None
        self._mend()
        self._truth.ended(self.name, self.subject, began_ns, self.details)

    def hold(self, seconds: float) -> None:
        """Break it, wait, mend it."""
        with self:
            time.sleep(seconds)

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    @abstractmethod
    def _break(self) -> None: ...

    @abstractmethod
    def _mend(self) -> None: ...


class Filtered(Fault):
    """A fault made of nftables rules at the leaf's port, where no host can see them."""

    @abstractmethod
    def rules(self) -> list[tuple[str, str]]:
        """Hook (``ingress`` is from the host, ``egress`` towards it) and rule."""

    def _break(self) -> None:
        table = self._table()
        lines = [f"add table netdev {table}"]
        for hook, rule in self.rules():
            lines.append(
                f"add chain netdev {table} {hook} "
                f'{{ type filter hook {hook} device "{self.port}" priority 0; }}'
            )
            lines.append(f"add rule netdev {table} {hook} {rule}")
        self.leaf.nft("\n".join(lines) + "\n")

    def _mend(self) -> None:
        self.leaf.nft(f"delete table netdev {self._table()}\n")

    def _table(self) -> str:
        return f"{self.name}_{self.port}"


def known() -> dict[str, type[Fault]]:
    """All faults, by name."""
    for module in pkgutil.iter_modules(lab.faults.__path__):
        import_module(f"lab.faults.{module.name}")
    return dict(sorted(_registered.items()))


def make(
    name: str, fabric: Fabric, truth: Truth, host: str, rail: int = 0, **options: Any
) -> Fault:
    """A fault by its name.

    Raises:
        ValueError: there is none of this name.
    """
    kinds = known()
    if name not in kinds:
        raise ValueError(f"no fault {name!r}; there are {', '.join(kinds)}")
    made = kinds[name](fabric, truth, host, rail, **options)
    made.options = options
    return made
