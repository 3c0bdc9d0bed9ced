"""One JSON object per line on stderr. Possible secrets are cut out in one place."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Sequence
from typing import Any, Final

import structlog

_SECRET: Final = re.compile(r"secret|password|token$|api_?key|private_?key|authorization|credential", re.IGNORECASE)


def redact(_logger: Any, _method: str, record: Any) -> Any:
    """Blank the value of every key named like a secret. Providers blank their own; this catches forgotten ones."""
    for key in record:
        if _SECRET.search(key):
            record[key] = "[redacted]"
    return record


_PROCESSORS: Final[Sequence[Any]] = (
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    redact,
    structlog.processors.JSONRenderer(default=str),
)


def lost_record(lines: int) -> str:
    """The record that stands for records which nobody took in time."""
    record: Any = {"event": "lines_lost", "lines": lines}
    for process in _PROCESSORS:
        record = process(None, "warning", record)
    return str(record)


class Stderr:
    """Standard error while it has a reader. Without a reader the record is lost."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


def configure(level: str) -> None:
    """Log at `level` and above: debug, info, warning, error or critical."""
    structlog.configure(
        processors=_PROCESSORS,
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(Stderr()),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )
