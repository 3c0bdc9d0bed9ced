"""What `costgov evidence` gathers: asked of the governor, of py-spy, of NCCL RAS and of a profile's trace."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from governor.adapters.evidence import py_spy, ras, trace
from governor.core.base.printable import at_step
from governor.core.halt.left_launch import process_of
from governor.text.collectives import standings
from governor.wire.shown import read_collectives

SCHEMA: Final = "costgov.evidence/1"
COLLECTIVES_S: Final = 3.0
STACKS_S: Final = 3.0
RAS_S: Final = 6.0  # NCCL itself waits for its peers, up to five seconds.
PROFILE_S: Final = 600.0
# A run without progress for so long stands still, or so many of its usual steps where these are longer.
STANDS_STILL_S: Final = 10.0
STANDS_STILL_STEPS: Final = 10
SAID_EVERY_S: Final = 10.0
_PERIOD_S: Final = 0.1
OLDER_SHIM: Final = "not asked: it is not connected, or its costgov-shim is older than this"
SILENT: Final = "no answer within {:g} s: its interpreter may be held by native code"

Ask = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    stacks: bool = False
    collectives: bool = False
    ras: bool = False
    profile_steps: int = 0
    rank: int = 0  # Whose steps are profiled.


def gather(
    ask: Ask, run: str, wanted: Wanted, say: Callable[[str], None], environ: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """The document. Each part has what was seen, and why there is none where there is none. `say`: how far it is."""
    request = {"cmd": "evidence", "run": run}
    seen = _asked(ask, {**request, **({"what": "collectives"} if wanted.collectives else {})}, run, COLLECTIVES_S)
    document: dict[str, Any] = {"schema": SCHEMA, "run": run, "ranks": [_rank_row(row) for row in seen["ranks"]]}
    if wanted.collectives:
        document["collectives"] = _collectives(seen["ranks"])
    if wanted.stacks:
        document["stacks"] = _stacks(seen["ranks"])
    if wanted.ras:
        document["ras"] = _ras(environ.get("NCCL_RAS_ADDR") or ras.DEFAULT_ADDRESS)
    if wanted.profile_steps:
        document["profile"] = _profiled(ask, seen, run, wanted, say)
    return document


def _profiled(ask: Ask, seen: Any, run: str, wanted: Wanted, say: Callable[[str], None]) -> dict[str, Any]:
    """Refused at once where no step ends, and given up where none does any more."""
    request = {"cmd": "evidence", "run": run, "what": "profile", "steps": wanted.profile_steps, "rank": wanted.rank}
    still, said_at = stands_still(seen, wanted.rank), time.monotonic()

    def is_in_vain(seen: Any) -> bool:
        nonlocal still, said_at
        still = stands_still(seen, wanted.rank)
        if still is None and time.monotonic() - said_at >= SAID_EVERY_S:
            said_at = time.monotonic()
            rows = [row for row in seen["ranks"] if row["rank"] == wanted.rank]
            say(f"rank {wanted.rank} is {at_step(rows[0]['step'] if rows else None)}; its profile is not done yet")
        return still is not None

    if still is None:
        time.sleep(2 * _PERIOD_S if wanted.collectives else 0)  # A run is not asked twice in one moment.
        seen = _asked(ask, request, run, PROFILE_S, is_in_vain)
    rows = [row for row in seen["ranks"] if row["rank"] == wanted.rank]
    if still is not None:
        return {"rank": wanted.rank, "steps": wanted.profile_steps, "path": None, "problem": still}
    return _profile(rows, wanted)


def stands_still(seen: Any, rank: int) -> str | None:
    """Why a profile of this rank would wait in vain: it ends no step."""
    rows = [row for row in seen["ranks"] if row["rank"] == rank]
    limit_s = max(STANDS_STILL_S, STANDS_STILL_STEPS * (seen.get("usual_step_s") or 0.0))
    if not rows or rows[0]["still_s"] is None or rows[0]["still_s"] < limit_s:
        return None
    row = rows[0]
    return (
        f"rank {rank} has made no progress for {row['still_s']:.0f} s ({at_step(row['step'])}, {row['phase']}): "
        "it ends no step that could be profiled; --stacks and --collectives show where it stands"
    )


def _asked(
    ask: Ask, request: dict[str, Any], run: str, within_s: float, is_in_vain: Callable[[Any], bool] = lambda _: False
) -> Any:
    """Begin a look, and read it until every rank has answered, or the time is over."""
    deadline = time.monotonic() + within_s
    seen = ask(request)
    while seen["look"] is not None and any(row["is_waited_for"] for row in seen["ranks"]):
        if is_in_vain(seen) or time.monotonic() >= deadline:
            break
        time.sleep(_PERIOD_S)
        seen = ask({"cmd": "evidence", "run": run, "look": seen["look"]})
    return seen


def _rank_row(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("rank", "connected", "step", "phase", "still_s")
    return {"pid": row["process"]["pid"], **{name: row[name] for name in names}}


def _why_not(row: Mapping[str, Any], within_s: float) -> str | None:
    if row["is_unable"]:
        return OLDER_SHIM
    answer = row["answer"]
    return SILENT.format(within_s) if answer is None else answer["problem"]


def _collectives(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    told = {row["rank"]: read_collectives(row["answer"]["entries"]) for row in rows if row["answer"] is not None}
    problems = {str(row["rank"]): why for row in rows if (why := _why_not(row, COLLECTIVES_S)) is not None}
    ages = [row["answer"].get("age_s", 0.0) for row in rows if row["answer"] is not None]
    return {
        "groups": [standing.row() for standing in standings(told)], "problems": problems,
        "age_s": max(ages, default=0.0),
    }  # fmt: skip


def _stacks(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    targets = [py_spy.Target(row["rank"], process_of(row["process"]), row["uid"]) for row in rows]
    by_rank = {row["rank"]: row for row in rows}
    found = []
    for stacks in py_spy.take(targets, STACKS_S, py_spy.program()):
        row = stacks.row()
        if stacks.problem is not None:  # The rank's own last word, of its main thread.
            row["last_beat"] = by_rank[stacks.target.rank]["stack"]
        found.append(row)
    return found


def _ras(address: str) -> dict[str, Any]:
    try:
        return {"address": address, "lines": ras.verbose_status(address, RAS_S), "problem": None}
    except ras.RasUnavailable as error:
        return {"address": address, "lines": [], "problem": str(error)}


def _profile(rows: Sequence[Mapping[str, Any]], wanted: Wanted) -> dict[str, Any]:
    told: dict[str, Any] = {"rank": wanted.rank, "steps": wanted.profile_steps, "path": None, "problem": None}
    if not rows:
        return {**told, "problem": f"there is no rank {wanted.rank}"}
    row, answer = rows[0], rows[0]["answer"]
    if answer is None:
        why = OLDER_SHIM if row["is_unable"] else f"{wanted.profile_steps} steps have not ended in {PROFILE_S:g} s"
        return {**told, "problem": why}
    if answer["problem"] is not None or answer["path"] is None:
        return {**told, "problem": answer["problem"] or "the rank has named no trace"}
    try:
        return {**told, "path": answer["path"], **trace.read_profile(answer["path"], row["uid"]).row()}
    except trace.TraceUnreadable as error:
        return {**told, "path": answer["path"], "problem": str(error)}
