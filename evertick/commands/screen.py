"""What commands print: tables for a person, JSON for a program."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

_PIPE_WIDTH = 400
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
STYLES = {"critical": "bold red", "warning": "yellow", "info": "cyan"}


def console() -> Console:
    """The terminal; into a pipe or a file lines are not folded."""
    from rich.console import Console

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Terminal(
        highlight=False,
        markup=False,
        emoji=False,
        width=None if sys.stdout.isatty() else _PIPE_WIDTH,
    )


def table(*columns: str) -> Table:
    """An empty table without frames."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def show(made: Table, terminal: Console) -> None:
    """Print a table; into a pipe without the spaces that fill up its last column."""
    if terminal.is_terminal:
        terminal.print(made)
        return
    with terminal.capture() as captured:
        terminal.print(made)
    for line in captured.get().splitlines():
        print(line.rstrip())


def text(words: str, style: str = "") -> Text:
    """Words as they are. What others wrote may hold control characters, which could rewrite the
    screen; they are shown as escapes."""
    from rich.text import Text

    return Text(printable(words), style=style)


def printable(words: str) -> str:
    """Words with control characters as escapes."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", words)


def note(words: str) -> None:
    """A remark beside the output, to standard error."""
    print(f"evertick: {words}", file=sys.stderr)


def data(document: Any) -> None:
    """A document for a program."""
    print(json.dumps(document, indent=2, ensure_ascii=False))
