"""What a journal tells of one run in the order of time: halts, alarms, attempts, ends, and closed windows of tokens.

Rows are read page by page, also beside a running governor. `reader` opens the file and translates its errors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from governor.adapters.journal.reader import (
    NOT_OURS,
    PAGE_ROWS,
    Unreadable,
    Unreadables,
    has_table,
    paged,
    reading,
    refuse,
    shown,
    what_of,
)
from governor.core.base.units import UsdMicros
from governor.core.money.expected import row_of
from governor.core.money.token_price import whole_micros

_ROWS: Final = """
SELECT seq, wall_ns, kind, incident_id, data FROM journal
WHERE seq > :after AND run = :run AND kind IN ('alarm', 'ended', 'run', 'transition', 'verdict', 'window')
ORDER BY seq LIMIT :rows"""


@dataclass(frozen=True, slots=True)
class Noted:
    """One row. `wall`: nanoseconds. `name` is the alarm's, or halt, rule, attempt, completed, ended."""

    wall: int
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class PricedWindow:
    """A window of tokens that closed at this wall time. `usd_micros_per_mtok`: None while that is unknown."""

    wall: int
    to_tokens: int
    usd_micros_per_mtok: UsdMicros | None


def read_history(path: str, run: str, unread: Unreadables = refuse) -> Iterator[Noted | PricedWindow]:
    """Yield a run's rows in the order in which they were written.

    Calls `unread` for each row that cannot be read. Raises `ChargesUnreadable` if the file cannot be read.
    """
    with reading(path) as connection:
        if not has_table(connection, "journal"):
            return
        for _, wall, kind, incident, data in paged(connection, _ROWS, {"run": run}, {"after": -1}, PAGE_ROWS):
            name = shown(kind)
            try:
                found = _READ[name](int(wall), json.loads(data), shown(incident))
            except NOT_OURS as error:
                at = wall if isinstance(wall, int) else None
                unread(Unreadable(path, f"a row of kind {name}", run, at, None, what_of(error)))
                continue
            if found is not None:
                yield found


def _alarm(wall: int, data: Mapping[str, Any], _incident: str) -> Noted:
    return Noted(wall, str(data["name"]), str(data["text"]))


def _ended(wall: int, data: Mapping[str, Any], _incident: str) -> Noted:
    how = "completed" if data["completed"] else f"exit code {data['exit_code']}"
    cause = data.get("cause")
    return Noted(wall, "ended", f"{how} ({cause})" if cause else how)


def _run(wall: int, data: Mapping[str, Any], _incident: str) -> Noted:
    if data.get("completed"):
        return Noted(wall, "completed", f"at step {data['step']}")
    return Noted(wall, "attempt", f"{data['attempt']}, policy {data['policy']}, {data['world_size']} ranks")


def _transition(wall: int, data: Mapping[str, Any], incident: str) -> Noted:
    return Noted(wall, "halt", f"{incident}: {data['from']} to {data['to']} ({data['fact']})")


def _verdict(wall: int, data: Mapping[str, Any], _incident: str) -> Noted | None:
    """A warning is an alarm as well, with the same words."""
    if data["response"] not in ("halt", "checkpoint"):
        return None
    mode = "" if data["enforced"] else ", observed alone"
    return Noted(wall, "rule", f"{data['rule']} ({data['response']}{mode}): {data['text']}")


def _window(wall: int, data: Mapping[str, Any], _incident: str) -> PricedWindow:
    window = row_of(data).window
    micros = whole_micros(window.per_mtok)
    return PricedWindow(wall, window.to_tokens, None if micros is None else UsdMicros(micros))


_READ: Final[Mapping[str, Callable[[int, Mapping[str, Any], str], Noted | PricedWindow | None]]] = {
    "alarm": _alarm,
    "ended": _ended,
    "run": _run,
    "transition": _transition,
    "verdict": _verdict,
    "window": _window,
}
