"""The options that every command has: which settings hold for this run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from bus.settings import Settings


@dataclass(frozen=True, slots=True)
class Globals:
    """What ``--config`` and ``--set`` said."""

    config: Path | None = None
    flags: list[str] = field(default_factory=list)

    def argv(self) -> list[str]:
        """The same options for another ``evertick`` process."""
        config = [] if self.config is None else ["--config", str(self.config)]
        return [*config, *(word for flag in self.flags for word in ("--set", flag))]


def of(ctx: typer.Context) -> Globals:
    """The global options of this run."""
    found = ctx.find_root().obj
    return found if isinstance(found, Globals) else Globals()


def settings(ctx: typer.Context) -> Settings:
    """The settings that hold for this run.

    Raises:
        SettingsError: one is unknown or does not fit.
    """
    from bus.settings import load

    chosen = of(ctx)
    return load(chosen.flags, chosen.config)
