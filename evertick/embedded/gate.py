"""An ``evertick`` command that loads its modules at once and begins only when it is let in.

So the parts load while Kafka boots, and yet none meets a Kafka that is not there, or makes topics
before their sizes are set. Usage: ``python -m evertick.embedded.gate MODULE WORD…``; a line on
standard input opens the gate, its end without one ends the process.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module


def main() -> None:
    """Load, wait, become the command."""
    module, *words = sys.argv[1:]
    # The command says which package is missing, and how to install it.
    with suppress(ModuleNotFoundError):
        import_module(module)
    from evertick.cli import main as command

    if not os.read(0, 1):
        return
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["evertick", *words]
    command()


if __name__ == "__main__":
    main()
