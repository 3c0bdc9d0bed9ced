"""The local log of a W&B run, run-<id>.wandb, as a log. W&B's own `wandb leet inspect` prints it, one line per record.

W&B's Python package no longer has a reader (0.30 removed the internal one). This command is the documented way for
people and scripts. It is started offline: it uploads nothing and contacts nobody.
"""

from __future__ import annotations

import importlib.util
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from governor.replay.readers.lines import LogUnreadable, bounded_lines
from governor.wire.jsonl import date_seconds, parse_line

SUFFIX: Final = ".wandb"
EXTRA: Final = (
    "W&B's local logs need its own reader: pip install 'costgov[wandb]', or export the run (docs/howto/replay.md)"
)
# Either alone prevents its error reports in the versions that we tried. We set both.
OFFLINE: Final[Mapping[str, str]] = {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false"}
HISTORY: Final = b'"type":"history"'
RUN: Final = b'"type":"run"'
RUNTIME: Final = "_runtime"
STAMP: Final = "_timestamp"
NAMED: Final = "wandb leet inspect: "
SAID_BYTES_MAX: Final = 64 * 1024
SAID_CHARS_MAX: Final = 300


def records(path: Path) -> Iterator[tuple[int, dict[str, Any] | list[str]]]:
    """Each row of the run's history, with its place among the log's records.

    LogUnreadable, with W&B's own message, at the end of what can be read. Memory does not grow with the log.
    """
    began: float | None = None
    is_told_later: bool | None = None
    with _inspected(path) as lines:
        for number, line in lines:
            if line is None:
                yield number, ["a record is too long"]
            elif began is None and RUN in line:
                began = _began(parse_line(line))
            elif HISTORY in line:
                record = parse_line(line)
                if isinstance(record, dict):  # Otherwise wandb died while writing, and its exit status says so.
                    history = record.get("history")
                    item = history.get("item") if isinstance(history, dict) else None
                    if isinstance(item, dict):
                        if is_told_later is None:
                            is_told_later = _is_told_later(item, began)
                        if is_told_later:
                            item.pop(RUNTIME, None)
                        yield number, item


def _began(record: object) -> float | None:
    """When the process began whose log this is."""
    run = record.get("run") if isinstance(record, dict) else None
    began = run.get("start_time") if isinstance(run, dict) else None
    return date_seconds(began) if isinstance(began, str) else None


def _is_told_later(first: Mapping[str, Any], began: float | None) -> bool:
    """Whether the rows are of a time before their own process: an export's, a sync's of another tool's files.

    Their stamps are theirs. `_runtime` is W&B's own, and there it is how long the export has run.
    """
    stamp = first.get(STAMP)
    return began is not None and isinstance(stamp, int | float) and stamp < began


@contextmanager
def _inspected(path: Path) -> Iterator[Iterator[tuple[int, bytes | None]]]:
    if not _is_there():
        raise LogUnreadable(f"{path}: {EXTRA}")
    try:
        is_file = stat.S_ISREG(os.stat(path).st_mode)
    except OSError as error:
        raise LogUnreadable(f"{path}: {error.strerror}; name a log that can be read") from error
    if not is_file:
        raise LogUnreadable(f"{path}: not a regular file; name a log that can be read")
    # -P: ./wandb, which W&B creates beside a script, must not be imported as the package.
    command = [sys.executable, "-P", "-m", "wandb", "leet", "inspect", "--json", str(path.absolute())]
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, env=os.environ | OFFLINE
        ) as child,
    ):
        assert child.stdout is not None
        try:
            yield bounded_lines(child.stdout)
        except BaseException:
            child.kill()
            raise
        status = child.wait()
        text = _last_line(said)
    if status or text:
        raise LogUnreadable(f"{path}: {text or f'wandb ended with {status}'}")


def _is_there() -> bool:
    spec = importlib.util.find_spec("wandb")
    return spec is not None and spec.origin is not None  # A directory ./wandb alone has no origin.


def _last_line(file: IO[bytes]) -> str:
    """The last line of the output, with the reason of a traceback or of a refused command. "" if there is none."""
    file.seek(-min(SAID_BYTES_MAX, file.seek(0, os.SEEK_END)), os.SEEK_END)
    lines = file.read().decode("utf-8", "replace").split("\n")
    return next((line.removeprefix(NAMED) for line in reversed(lines) if line.strip()), "")[:SAID_CHARS_MAX]
