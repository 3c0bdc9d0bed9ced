"""What the journal knows of processes of another PID namespace: a container that was replaced, or the host beside one.

Its rows are taken up as our own process table has them. Of who is not seen from here nothing is claimed: such a run is
over for this governor, as after a reboot, and its budget goes on; a halt that could only end such processes is closed
as not seen to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from governor.core.base.identity import ProcessId
from governor.core.base.units import WallNs
from governor.core.events.effects import Alarm, Effect, PersistIncident
from governor.core.halt.left_launch import process_of, process_row
from governor.core.halt.state import GivenUp, StopTarget
from governor.core.money.budgets import TORN
from governor.core.money.charges import UNALLOCATED

UNOBSERVED: Final = "its processes cannot be seen from here, and their end was not observed"

Row = dict[str, Any]
Locate = Callable[[ProcessId], ProcessId | None]  # ports.Processes.locate


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What the journal's last launches have left that cannot be seen from here, alive or not."""

    is_unseen: bool = False  # Processes of this boot.
    is_of_other_boot: bool = False  # Of an earlier boot, or of another machine with the same directory.
    halts: tuple[str, ...] = ()  # Open ones that could only end such processes.


def as_seen(snapshot: Mapping[str, Any], locate: Locate) -> Row:
    """A row of the journal with its processes as they are seen from here. `unseen`: those that are not.

    A run has those no more. An incident keeps them, for its report, and because nothing may say that they are gone.
    """
    seen, unseen = dict(snapshot), list[Any]()
    for key in ("processes", "unsure"):
        if isinstance(rows := snapshot.get(key), list):
            seen[key] = _seen(rows, locate, unseen, keep=False)
    for key in ("rank_processes", "launchers", "targets"):
        if isinstance(rows := snapshot.get(key), list):
            seen[key] = _seen(rows, locate, unseen if key != "targets" else [], keep=True)
    if isinstance(launch := snapshot.get("launch"), Mapping):
        del seen["launch"]  # Of a halt: its command's number is a session's, which here may be a stranger's.
        rows = {key: launch.get(key) for key in ("processes", "below", "below_shared")}
        known = {key: _seen(of, locate, [], keep=False) for key, of in rows.items() if isinstance(of, list)}
        seen |= {"launch": {**launch, **known}} if known.get("processes") else {}
    for key in ("launched", "left"):
        launched = snapshot.get(key)
        if isinstance(launched, Mapping) and isinstance(rows := launched.get("processes"), list):
            seen[key] = {**launched, "processes": _seen(rows, locate, unseen, keep=False)}
    return {**seen, "unseen": unseen} if unseen else seen


def _seen(rows: Iterable[Any], locate: Locate, unseen: list[Any], *, keep: bool) -> list[Any]:
    seen = []
    for row in rows:
        try:
            place = locate(process_of(row))
        except TORN:  # Whoever takes the row up says so.
            seen.append(row)
            continue
        if place is None:
            unseen.append(row)
        if place is not None or keep:
            seen.append({**row, **process_row(place)} if place is not None else row)
    return seen


def left_elsewhere(runs: Iterable[Mapping[str, Any]], halts: Iterable[Mapping[str, Any]], boot_id: str) -> Elsewhere:
    """What these rows, as they are seen from here, had going and leave unseen."""
    known, opened = list(runs), list(halts)
    going = [
        row
        for row in known
        if row.get("alive") or (row.get("run") == UNALLOCATED and (row.get("launched") or row.get("left")))
    ]
    # The node's row is in every commit. A run's may be of long ago.
    last = next((str(row.get("boot_id")) for row in known if row.get("run") == UNALLOCATED), boot_id)
    return Elsewhere(
        is_unseen=any(row.get("unseen") for row in (*going, *opened)),
        is_of_other_boot=bool(going or opened) and last not in (boot_id, ""),
        halts=tuple(str(row.get("incident_id")) for row in opened if ends_unseen(row)),
    )


def ends_unseen(snapshot: Mapping[str, Any]) -> bool:
    """Whether an open halt has nobody to end who is seen from here, and no machine to stop."""
    if not snapshot.get("unseen"):
        return False
    try:
        is_cheap = snapshot["plan"]["stop"] == StopTarget.PROCESSES.name
        known = {process_of(row) for row in (*snapshot["rank_processes"], *snapshot["launchers"])}
    except TORN:  # Whoever takes it up says so.
        return False
    return is_cheap and known <= {process_of(row) for row in snapshot["unseen"]}


def leave_unseen(snapshot: Mapping[str, Any], wall: WallNs) -> list[Effect]:
    """Close a halt whose processes cannot be seen from here: neither ended nor seen to be gone."""
    incident_id, was = str(snapshot["incident_id"]), snapshot["halt_stage"]
    detail = {"was": was, "reason": f"its governor ended at {was} in another PID namespace: {UNOBSERVED}"}
    note = {"mono_ns": 0, "wall_ns": wall, "what": GivenUp.LEFT_UNSEEN, "detail": detail}
    timeline = [*snapshot["timeline"], note]
    closed = {**snapshot, "halt_stage": GivenUp.LEFT_UNSEEN, "closed_wall_ns": wall, "timeline": timeline}
    text = (
        f"incident {incident_id} was at {was} when its governor ended in another PID namespace (a container); "
        f"{UNOBSERVED}: nothing ends them"
    )
    return [PersistIncident(incident_id, closed, closed=True), Alarm(GivenUp.LEFT_UNSEEN, str(snapshot["run"]), text)]


def unseen_runs(runs: Iterable[Mapping[str, Any]]) -> list[Effect]:
    """The service's alarms: `costgov run` says it of its command, in one line."""
    text = (
        "its processes are of another PID namespace (a container), and cannot be seen from here: whether they live is "
        "not known, and nothing watches them"
    )
    named = [str(row["run"]) for row in runs if row.get("unseen") and row.get("alive")]
    return [Alarm(GivenUp.LEFT_UNSEEN, run, f"run {run}: {text}") for run in named]
