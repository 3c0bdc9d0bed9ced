"""One JSON object per line on stderr. Possible secrets are cut out in one place."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from typing import Any, Final

import structlog

_SECRET: Final = re.compile(r"secret|password|token$|api_?key|private_?key|authorization|credential", re.IGNORECASE)


def redact(_logger: Any, _method: str, record: Any) -> Any:
    """Blank the value of every key named like a secret. Providers blank their own; this catches forgotten ones."""
    for key in record:
        if _SECRET.search(key):
            record[key] = "[redacted]"
    return record


class Stderr:
    """Standard error while it has a reader. Without a reader the record is lost, and no halt waits for it."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


def configure(level: str) -> None:
    """Log at `level` and above: debug, info, warning, error or critical."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            redact,
            structlog.processors.JSONRenderer(default=str),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(Stderr()),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )
