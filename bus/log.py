"""Our own log: structured, one line an event, to standard error.

For a person by default, as JSON where ``log_json`` asks for it. What libraries log by the standard
module goes the same way.
"""

from __future__ import annotations

import logging
import sys

import structlog

from bus.settings import Settings


def configure(settings: Settings, part: str) -> None:
    """Set up logging for this process; ``part`` names it in every line."""
    level = logging.getLevelName(settings.log_level.upper())
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer()
        if settings.log_json
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            pad_event_to=0,
            # The default shows the local variables of every frame, and with them our secrets.
            exception_formatter=structlog.dev.plain_traceback,
        )
    )
    if settings.log_json:
        shared.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    structlog.contextvars.bind_contextvars(part=part)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(processor=renderer, foreign_pre_chain=shared)
    )
    logging.basicConfig(handlers=[handler], level=max(level, logging.WARNING), force=True)


def get(name: str) -> structlog.typing.FilteringBoundLogger:
    """A logger for one module."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(module=name)
    return logger
