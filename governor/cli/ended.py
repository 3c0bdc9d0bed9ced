"""Runs of `costgov run` that no governor watches any more: what their journals say of them."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import sqlite3
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from governor.core.base.units import MICROS_PER_USD, NS_PER_S

JOURNAL_NAME: Final = "costgov.db"


def _journal(name: str) -> Path | None:
    """The journal that `costgov run --name NAME` has left in this user's state directory, with no configured paths."""
    from governor.app.settings_file import paths_of_run

    if "/" in name:
        return None
    path = Path(paths_of_run(os.environ, name)["state_dir"], JOURNAL_NAME)
    return path if path.parent.parent.name == "runs" and path.exists() else None


def ended_run(name: str) -> str | None:
    """One line about a run that has ended, from its own journal. None where it left none, or nothing readable."""
    from governor.adapters.journal.db import JournalReader
    from governor.reports.terminal import closing_line

    path = _journal(name)
    if path is None:
        return None
    # A journal may be another version's, another user's, or torn.
    with contextlib.suppress(sqlite3.Error, OSError, ValueError, KeyError, TypeError), contextlib.ExitStack() as at_end:
        reader = JournalReader(str(path))
        at_end.callback(reader.close)
        rows = [json.loads(row["snapshot"]) for row in reader.run(name) if "snapshot" in row]
        halts = [json.loads(row["snapshot"]) for row in reader.incidents(1, only_open=False)]
        if rows:
            run = rows[0]
            shown = {**run, "spend_usd": run["spend_usd_micros"] / MICROS_PER_USD}
            seen_at = datetime.fromtimestamp(run["wall_ns"] / NS_PER_S, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            return f"{closing_line(shown, _how(run, halts))}; as of {seen_at}"
    return None


def is_of_ended(name: str) -> bool:
    """Whether a `costgov run` of this name has left its journal."""
    return _journal(name) is not None


def newest_ended() -> str | None:
    """The name whose journal was written last: of a run whose terminal has closed, say."""
    from governor.app.settings_file import paths_of_run

    runs = os.path.dirname(paths_of_run(os.environ, "any")["state_dir"])
    journals = glob.glob(f"{glob.escape(runs)}/*/{JOURNAL_NAME}") if runs.endswith("/runs") else []
    with contextlib.suppress(OSError):
        newest = max(journals, key=os.path.getmtime, default=None)
        return os.path.basename(os.path.dirname(newest)) if newest is not None else None
    return None


def _how(run: Mapping[str, Any], halts: list[dict[str, Any]]) -> str:
    from governor.core.events.ends import RunEnd
    from governor.core.runs.ends import ended_text

    if run.get("end") is not None:
        return ended_text(RunEnd(run["end"]["exit_code"], run["end"]["cause"]))
    for halt in halts:
        if halt["run"] == run["run"] and halt["attempt"] == run["attempt"]:
            return f"halted: {halt['text']} (costgov incident show {halt['incident_id']})"
    return "its end was not seen" if run["alive"] else "ended"
