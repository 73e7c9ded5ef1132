"""``evertick show``: the whole story of one incident."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evertick.commands import screen
from evertick.commands.globals import settings
from evertick.commands.incidents import document

if TYPE_CHECKING:
    from evertick.story import Line
    from schemas.incident import Incident


def show(
    ctx: typer.Context,
    identifier: Annotated[
        str, typer.Argument(metavar="ID", help="The incident's id, or its first digits.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for a program.")] = False,
) -> None:
    """Tell an incident from its first symptom to its outcome.

    What was seen and by whom, what was understood from it, what was done and what came of it, with
    the time of each and its distance from the beginning.

    Example: evertick show 3f2a9c1b
    """
    from evertick.sources import check_prefix, find, open_source
    from evertick.story import story

    prefix = check_prefix(identifier)
    source = open_source(settings(ctx))
    incident = find(source, prefix)
    told = source.told(incident)
    lines = story([*told.revisions, incident], told.signals, told.actions, told.outcomes)
    if source.note:
        screen.note(source.note)
    if as_json:
        screen.data({"incident": document(incident), "story": [as_data(line) for line in lines]})
        return
    _print(incident, lines)


def as_data(line: Line) -> dict[str, Any]:
    """A line of the story for a program."""
    from evertick.wording import utc

    made = {
        "at": utc(line.at_ns),
        "at_ns": line.at_ns,
        "offset_ns": line.offset_ns,
        "what": line.what.name.lower(),
        "text": line.text,
        "subject": line.subject,
        "severity": line.severity,
        "id": line.id,
    }
    return {name: value for name, value in made.items() if value != ""}


def _print(incident: Incident, lines: list[Line]) -> None:
    from evertick.wording import offset, utc

    console = screen.console()
    style = screen.STYLES[incident.severity]
    console.print(screen.text(f"{incident.kind} on {incident.subject}", "bold"))
    console.print(screen.text(f"{incident.severity}, {incident.state}: {incident.summary}", style))
    facts = screen.table("", "")
    facts.show_header = False
    for name, words in summary(incident, time.time_ns()):
        facts.add_row(screen.text(name, "dim"), screen.text(words))
    screen.show(facts, console)
    console.print()
    table = screen.table("TIME (UTC)", "OFFSET", "WHAT", "SUBJECT", "")
    for line in lines:
        table.add_row(
            utc(line.at_ns, 3).partition("T")[2] or utc(line.at_ns),
            offset(line.offset_ns),
            line.what.name.lower(),
            screen.text(line.subject),
            screen.text(line.text, screen.STYLES.get(line.severity, "")),
        )
    screen.show(table, console)


def summary(incident: Incident, now_ns: int) -> list[tuple[str, str]]:
    """What is to be said of an incident as a whole, name and words."""
    from evertick.wording import ago, gpu_time, recommended, span, utc

    end_ns = incident.resolved_ns
    lasted = "" if end_ns is None else f", for {span(max(0, end_ns - incident.opened_ns))}"
    victims = [
        f"{kind} {', '.join(named)}"
        for kind, named in incident.victims.model_dump().items()
        if named
    ]
    told = [
        ("incident", incident.incident),
        ("opened", f"{utc(incident.opened_ns)} ({ago(incident.opened_ns, now_ns)}{lasted})"),
        ("clocks", f"right within ±{span(incident.clock_error_ns)}"),
        ("confidence", f"{incident.confidence:.0%}"),
        ("hurts", "; ".join(victims) or "no job that is known"),
        ("cost", gpu_time(incident.cost_gpu_s)),
    ]
    if incident.merged_into is not None:
        told.append(("goes on in", incident.merged_into))
    if incident.failovers:
        told.append(("failovers", f"{incident.failovers:,}, of which {incident.failbacks:,} ended"))
    if incident.stall_ns:
        told.append(("stall", f"flows stood still for {span(incident.stall_ns)} at most"))
    if incident.restart_cost_gpu_s:
        told.append(("a restart", f"would have cost {gpu_time(incident.restart_cost_gpu_s)}"))
    if incident.reopened:
        told.append(("reopened", f"{incident.reopened} times"))
    if incident.recommendation is not None:
        told.append(("recommended", recommended(incident.recommendation)))
    return told
