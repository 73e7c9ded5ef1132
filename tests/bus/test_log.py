"""Our own log: what must not be in it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

from bus import log
from bus.settings import load


@pytest.fixture
def _put_back() -> Iterator[None]:
    """Logging as it was before."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("_put_back")
@pytest.mark.parametrize("as_json", ["true", "false"])
def test_a_traceback_shows_no_values(capsys: pytest.CaptureFixture[str], as_json: str) -> None:
    log.configure(load([f"log_json={as_json}"]), "test")
    password = "".join(("hunter", "2"))
    for logger in (log.get("ours"), logging.getLogger("a library's")):
        try:
            raise ValueError(len(password))
        except ValueError:
            logger.exception("something failed")
    shown = capsys.readouterr().err
    assert shown.count("ValueError: 7") == 2
    assert password not in shown
