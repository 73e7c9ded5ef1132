"""``evertick doctor``: what works on this host, what does not, why, and how to have it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from evertick.commands import screen
from evertick.commands.globals import settings

if TYPE_CHECKING:
    from bus.settings import Settings
    from collectors.base import Capability, Collector, Host
    from evertick.checks import Check

_STYLES = {"ok": "green", "fails": "bold red", "note": "yellow", "off": "dim"}


def doctor(
    ctx: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for a program.")] = False,
) -> None:
    """Say what works on this host, what does not, why, and the command that would enable it.

    It looks at every collector, at Kafka and ClickHouse, and at what the host offers, and changes
    nothing. Exit code 0 when everything that is enabled works, 1 when something does not.

    Example: evertick doctor --json
    """
    from evertick.checks import Verdict

    found = list(checks(settings(ctx)))
    works = all(check.verdict is not Verdict.FAILS for check in found)
    if as_json:
        screen.data({"works": works, "checks": [asdict(check) for check in found]})
    else:
        _print(found)
        typer.echo(
            "Everything that is enabled works."
            if works
            else "Something that is enabled does not work: see the lines that say fails."
        )
    raise typer.Exit(0 if works else 1)


def checks(chosen: Settings) -> Iterator[Check]:
    """All checks, in the order in which they are shown.

    Raises:
        SettingsError: a part's settings do not fit.
    """
    from evertick import checks as host

    own_settings(chosen)
    yield from collecting(chosen)
    yield from host.kafka(chosen)
    yield host.clickhouse(chosen)
    yield from host.python()
    yield host.clock()
    yield host.disk(chosen)
    yield host.memory()
    yield host.permissions()
    yield host.kernel_log()
    yield host.gpus()
    yield host.rdma()
    yield host.ebpf()


def own_settings(chosen: Settings) -> None:
    """Check the tables of settings that parts check at their own start, where they are installed.

    Raises:
        SettingsError: one of them does not fit.
    """
    from bus.settings import section

    try:
        from history.writer import HistorySettings
        from remediators.worker import configured
        from streams.base import registered
        from streams.correlator import CorrelatorSettings
        from streams.detecting import Fleet
    except ModuleNotFoundError:
        return  # the check of the packages says which part is not installed here
    Fleet(registered(), chosen.detectors)
    section(CorrelatorSettings, chosen.correlator, "correlator")
    section(HistorySettings, chosen.history, "history")
    for remedy in configured(chosen).values():
        remedy.close()


def collecting(chosen: Settings) -> Iterator[Check]:
    """What each collector can do here.

    Raises:
        SettingsError: a collector's settings do not fit.
    """
    from bus.settings import SettingsError, section
    from collectors.base import Host, registered
    from evertick.checks import Check, Verdict

    try:
        known = registered()
    except ModuleNotFoundError as error:
        yield Check(
            "collectors",
            "all",
            Verdict.FAILS,
            f"package {error.name} is not installed",
            "pip install -e '.[agent]'",
        )
        return
    if unknown := sorted(set(chosen.collectors) - set(known)):
        raise SettingsError(
            f"setting collectors.{unknown[0]}: no such collector; there are: {', '.join(known)}"
        )
    host = Host(chosen.agent.node, chosen.zone, chosen.data_dir)
    for name, collector in known.items():
        options = section(collector.Settings, chosen.collectors.get(name, {}), f"collectors.{name}")
        enabled = collector.enabled if options.enabled is None else options.enabled
        yield from judged(name, enabled, _capabilities(collector, host, options))


def judged(name: str, enabled: bool, found: Iterable[Capability]) -> Iterator[Check]:
    """A verdict on each capability of a collector.

    One that does not work fails if something can be done about it, or if it is all that the
    collector has; else there is simply nothing here to observe. One that the collector can do without
    is a note.
    """
    from evertick.checks import Check, Verdict

    capabilities = list(found)
    any_works = any(capability.works for capability in capabilities)
    for capability in capabilities:
        if capability.works:
            verdict = Verdict.OK if enabled else Verdict.OFF
        elif not enabled:
            verdict = Verdict.OFF
        else:
            spared = capability.optional or not capability.fix
            verdict = Verdict.NOTE if any_works and spared else Verdict.FAILS
        fix = capability.fix if enabled else f"--set collectors.{name}.enabled=true"
        label = name if capability.name == name else f"{name}: {capability.name}"
        yield Check("collectors", label, verdict, capability.detail, fix)


def _capabilities(collector: type[Collector], host: Host, options: object) -> list[Capability]:
    from collectors.base import Capability

    try:
        return collector.capabilities(host, options)
    except Exception as error:  # noqa: BLE001  a defect in one collector hides no other's state
        return [Capability(collector.name, False, f"{type(error).__name__}: {error}")]


def _print(found: list[Check]) -> None:
    table = screen.table("", "CHECK", "FOUND", "HOW TO HAVE IT")
    area = ""
    for check in found:
        if check.area != area:
            area = check.area
            table.add_row("", screen.text(area.upper(), "bold"), "", "")
        table.add_row(
            screen.text(check.verdict, _STYLES[check.verdict]),
            screen.text(check.name),
            screen.text(check.detail),
            screen.text(check.fix),
        )
    screen.show(table, screen.console())
