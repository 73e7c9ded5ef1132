"""What whoever watches the demonstration sees: a live screen on a terminal, lines anywhere else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from evertick.story import Line, What, story
from lab import chronicle
from lab.chronicle import EVERTICK, JOB, TRUTH, Entry, View
from lab.score import newest
from lab.workloads.runner import Iteration
from schemas import identity
from schemas.action import Action, Outcome
from schemas.incident import Incident
from schemas.path import RouteMove
from schemas.signal import Signal

_BARS = "▁▂▃▄▅▆▇█"
_WORST_NS = 10_000_000_000
_SPARK_NS = 30_000_000_000
_SPARK_WIDTH = 60
_STALLS_SHOWN = 5
_STANDSTILL_MS = 200.0
_REFRESH_PER_S = 3
_STYLES = {TRUTH: "red", EVERTICK: "green", JOB: "yellow"}


class Audience(Protocol):
    """Whom a run is shown to."""

    def say(self, words: str) -> None:
        """What is being done now."""

    def told(self, view: View, index: int) -> None:
        """A fault is over, and what came of it is known."""

    def showing(self, view: Callable[[], View]) -> AbstractContextManager[None]:
        """While a run lasts."""


class Screen:
    """A terminal that shows all of a run at once."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None

    def say(self, words: str) -> None:
        """On the screen it stands in the view's note; between runs as a line."""
        if self._live is None:
            self._console.print(Text(words, "dim"))

    def told(self, view: View, index: int) -> None:
        """Stands on the screen already."""

    @contextmanager
    def showing(self, view: Callable[[], View]) -> Iterator[None]:
        """Draw the view again and again."""
        live = Live(
            console=self._console,
            get_renderable=lambda: screen(view(), self._console.size.height),
            refresh_per_second=_REFRESH_PER_S,
            transient=True,
        )
        with live:
            self._live = live
            try:
                yield
            finally:
                self._live = None


class Lines:
    """Everything as lines, each once."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def say(self, words: str) -> None:
        """A line."""
        self._write(words)

    def told(self, view: View, index: int) -> None:
        """A line for everything that happened around the fault."""
        for entry in chronicle.entries(view, index):
            self._write(f"  {as_line(view, entry)}")

    @contextmanager
    def showing(self, view: Callable[[], View]) -> Iterator[None]:
        """Lines need no view."""
        yield


def as_line(view: View, entry: Entry) -> str:
    """An entry with its time since the run began."""
    return f"{_offset(view, entry.at_ns)}  {entry.who:<8}  {entry.text}"


def screen(view: View, height: int = 50) -> RenderableType:
    """The whole screen.

    Args:
        view: what is shown.
        height: lines that there are.
    """
    usual = chronicle.usual_ms(view.iterations)
    fixed = view.topology.hosts + 11
    left = max(6, height - fixed)
    known = newest(view.events)
    told = story_of(view, known[-1].incident) if known else []
    story_lines = min(len(told), left // 2)
    parts: list[RenderableType] = [
        header(view),
        topology(view),
        Rule(style="dim"),
        job(view, usual),
        Rule("what happened", style="dim", align="left"),
        happened(view, max(3, left - story_lines), usual),
    ]
    if told:
        parts += [Rule("the newest incident's story", style="dim", align="left")]
        parts += [_story(told[-max(3, story_lines) :])]
    return Group(*parts)


def header(view: View) -> Text:
    """Which run, how far."""
    words = Text.assemble(
        ("with Evertick" if view.with_evertick else "WITHOUT Evertick", "bold reverse"),
        f"  fault {len(view.spans)} of {view.acts}",
        f"  {(view.now_ns - view.began_ns) / 1e9:.0f} s",
        ("  " + view.note, "dim"),
    )
    words.truncate(200)
    return words


def topology(view: View) -> Table:
    """Hosts and their links; a link is red while it is truly broken, and marked where the traffic to
    the host's next one goes over it."""
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    table.add_column("")
    for rail, leaf in zip(view.topology.rail_names, view.topology.leaf_names, strict=True):
        table.add_column(f"{rail} to {leaf}", min_width=26)
    routes = in_use(view)
    for host in view.topology.host_names:
        cells = [
            link(view, host, rail, routes[host] == rail) for rail in range(view.topology.rails)
        ]
        table.add_row(Text(host, "bold"), *cells)
    return table


def link(view: View, host: str, rail: int, used: bool) -> Text:
    """One cable."""
    fault = broken(view, host, rail)
    line = Text("━━━✕━━━" if fault else "━━━━━━━", "bold red" if fault else "green")
    if fault:
        line.append(f" {fault}", "red")
    if used:
        line.append(" ◀ traffic", "bold")
    return line


def broken(view: View, host: str, rail: int) -> str:
    """The fault that a cable has now, by the truth; empty where it is well."""
    leaf = identity.node(view.topology.leaf_names[rail])
    subjects = {view.topology.link(host, rail), identity.node(host), leaf}
    for span in view.spans:
        if span.ended_ns is None and span.subject in subjects:
            return span.fault
    return ""


def in_use(view: View) -> dict[str, int]:
    """The rail that each host's traffic to the next one takes, as far as Evertick has said; else the
    first."""
    names = view.topology.host_names
    behind = {host: names[(place + 1) % len(names)] for place, host in enumerate(names)}
    found = dict.fromkeys(names, 0)
    for event in view.events:
        if isinstance(event, RouteMove) and behind.get(event.node) == event.peer:
            rail = chronicle.rail_of(view.topology, event.to_path)
            found[event.node] = rail or 0
    return found


def job(view: View, usual: float) -> RenderableType:
    """The job's pulse, and how long it stood still at each fault."""
    spark = sparkline(view.iterations, view.now_ns)
    pulse = Text.assemble(("job  ", "bold"), (spark, "cyan"), f"  {usual:.1f} ms an iteration")
    if view.standing_ms > usual + _STANDSTILL_MS:
        pulse.append(f"  STANDS STILL for {view.standing_ms / 1000:.1f} s", "bold red")
    stalls = Text("stood still  ", "bold")
    first = max(0, len(view.spans) - _STALLS_SHOWN)
    for index in range(first, len(view.spans)):
        stall_ms = chronicle.answer(view, index, usual).job_stall_ms
        style = "green" if stall_ms < 100 else "yellow" if stall_ms < 1000 else "bold red"
        stalls.append(f"{view.spans[index].fault} ")
        stalls.append(f"{stall_ms:.0f} ms   ", style)
    return Group(pulse, stalls)


def sparkline(
    iterations: Sequence[Iteration],
    now_ns: int,
    width: int = _SPARK_WIDTH,
    length_ns: int = _SPARK_NS,
) -> str:
    """The longest iteration of each part of the last while, on a logarithmic scale from the usual
    one to ten seconds; blank where there was none."""
    usual_ns = max(1.0, chronicle.usual_ms(iterations) * 1e6)
    worst = [0] * width
    start_ns, part_ns = now_ns - length_ns, length_ns / width
    for one in reversed(iterations):
        if one.at_ns <= start_ns:
            break
        last = min(width - 1, int((one.at_ns - start_ns) / part_ns))
        first = max(0, int((one.at_ns - one.took_ns - start_ns) / part_ns))
        for part in range(first, last + 1):
            worst[part] = max(worst[part], one.took_ns)
    scale = math.log(max(10.0, _WORST_NS / usual_ns))
    return "".join(
        _BARS[
            min(len(_BARS) - 1, max(0, int(len(_BARS) * math.log(took / usual_ns) / scale)))
            if took > usual_ns
            else 0
        ]
        if took
        else " "
        for took in worst
    )


def happened(view: View, most: int, usual: float) -> Table:
    """The last lines of the chronicle."""
    lines = [
        entry for index in range(len(view.spans)) for entry in chronicle.entries(view, index, usual)
    ]
    table = Table(box=None, pad_edge=False, show_header=False, show_edge=False)
    for width in (len("1234.56 s"), len(EVERTICK)):
        table.add_column(no_wrap=True, min_width=width)
    table.add_column(no_wrap=True, overflow="ellipsis")
    for entry in lines[-most:]:
        style = _STYLES[entry.who]
        table.add_row(_offset(view, entry.at_ns), Text(entry.who, style), Text(entry.text, style))
    return table


def story_of(view: View, incident: str) -> list[Line]:
    """The story of an incident, without the evidence: what was noticed, understood and done."""
    lines = story(
        [one for one in view.events if isinstance(one, Incident) and one.incident == incident],
        [one for one in view.events if isinstance(one, Signal)],
        [one for one in view.events if isinstance(one, Action)],
        [one for one in view.events if isinstance(one, Outcome)],
    )
    return [line for line in lines if line.what is not What.EVIDENCE]


def understood(view: View) -> list[tuple[Incident, list[Line]]]:
    """Every incident with what was understood of it and done about it, step by step."""
    return [
        (one, [line for line in story_of(view, one.incident) if line.what >= What.INCIDENT])
        for one in newest(view.events)
    ]


def _story(lines: Sequence[Line]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False, show_edge=False)
    table.add_column(no_wrap=True, min_width=len("+123.456 s"))
    table.add_column(no_wrap=True, overflow="ellipsis")
    for line in lines:
        style = "green" if line.what >= What.INCIDENT else ""
        table.add_row(f"{line.offset_ns / 1e9:+8.3f} s", Text(line.text, style))
    return table


def _offset(view: View, at_ns: int) -> str:
    return f"{(at_ns - view.began_ns) / 1e9:7.2f} s"
