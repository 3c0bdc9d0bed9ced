"""The record of one halt: what was seen when, in the order in which it was seen. Plain JSON when written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from governor.core.halt import Halt, Plan, Stage
from governor.core.identity import ProcessId
from governor.core.run_state import Run
from governor.core.units import MonoNs, WallNs

TIMELINE_MAX = 400  # A halt has ~20 entries; a provider that refuses for a week repeats itself, and repeats are merged.


@dataclass(slots=True)
class Incident:
    incident_id: str
    run: str
    uid: int
    attempt: str
    reason: str
    text: str
    halt: Halt
    plan: Plan
    opened_at: MonoNs
    opened_wall: WallNs
    policy: str = ""
    rule: str = ""
    trigger: str = ""
    stage: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    operator_uid: int | None = None
    step: int | None = None
    loss: float | None = None
    tokens_total: int | None = None
    rank_processes: tuple[ProcessId, ...] = ()
    launchers: tuple[ProcessId, ...] = ()
    targets: list[dict[str, Any]] = field(default_factory=list)
    ranks: list[dict[str, Any]] = field(default_factory=list)
    timeline: list[dict[str, Any]] = field(default_factory=list)
    agreed_step: int | None = None
    checkpoint: dict[str, Any] | None = None
    last_good: Mapping[str, Any] | None = None
    spend_at_verdict_usd_micros: int = 0
    spend_usd_micros: int = 0
    usd_micros_per_mtok: int | None = None
    spend_rate_usd_micros_per_hour: int | None = None
    resume: str | None = None
    pages: list[str] = field(default_factory=list)
    closed_wall: WallNs | None = None
    undurable: bool = False

    @property
    def is_closed(self) -> bool:
        return self.halt.stage is Stage.HALTED

    def note(self, at: MonoNs, wall: WallNs, what: str, **detail: Any) -> None:
        """Add to the timeline. An entry that repeats the last one is counted in it instead."""
        if self.timeline:
            last = self.timeline[-1]
            if last["what"] == what and last["detail"] == detail:
                last["times"] = last.get("times", 1) + 1
                last["last_mono_ns"] = at
                return
        if len(self.timeline) >= TIMELINE_MAX:
            del self.timeline[TIMELINE_MAX // 2]  # How it began and how it ended say more than the days between.
        self.timeline.append({"mono_ns": at, "wall_ns": wall, "what": what, "detail": detail})

    def at_of(self, what: str) -> MonoNs | None:
        """When something was first seen."""
        return next((entry["mono_ns"] for entry in self.timeline if entry["what"] == what), None)


def rank_rows(run: Run) -> list[dict[str, Any]]:
    """Every rank's position at this moment, for the report."""
    return [
        {
            "rank": rank.rank,
            "pid": rank.peer.process.pid,
            "connected": rank.connected,
            "phase": rank.phase,
            "step": rank.step,
            "last_hook": rank.last_hook,
            "device_wait": rank.device_wait,
            "stack": list(rank.stack),
            "collective": dict(rank.collective) if rank.collective is not None else None,
        }
        for rank in sorted(run.ranks.values(), key=lambda rank: rank.rank)
    ]


def process_row(process: ProcessId) -> dict[str, Any]:
    return {"pid": process.pid, "start_ticks": process.start_ticks, "boot_id": process.boot_id}


def process_of(row: Mapping[str, Any]) -> ProcessId:
    return ProcessId(int(row["pid"]), int(row["start_ticks"]), str(row["boot_id"]))
