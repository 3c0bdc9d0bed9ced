"""What is known about who uses the node. Mutable; the engine owns it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from governor.core.base.units import BootNs, MonoNs

if TYPE_CHECKING:  # Commands take NODE from here: ManagedRun would triple what they import.
    from governor.core.engine.managed_run import ManagedRun

# The pseudo-run whose incident is the node's own stop: no valid run name.
NODE: Final = "@node"


@dataclass(frozen=True, slots=True)
class Finish:
    """A run ended well, and its policy wants the node stopped then."""

    run: str
    policy: str
    observed: bool
    at: MonoNs  # When it ended.


@dataclass(slots=True)
class IdleState:
    """Who uses the node, and since when nobody does. A restart drops the times: nobody watched meanwhile."""

    # Who is here, beside the runs.
    # The name of `costgov run`'s command, until the command and its whole session are gone.
    command: str | None = None
    gpus_at: MonoNs | None = None  # When we last knew which processes use the GPUs.
    gpus_unnamed: int = 0
    gpus_problem: str | None = "the GPUs have not been looked at yet"
    governors: tuple[int, ...] = ()
    governors_problem: str | None = "the process table has not been looked at yet"
    # When a hello was last refused. A refused rank trains, and asks again.
    refused_at: MonoNs | None = None
    hold_until: MonoNs | None = None
    hold_reason: str = ""
    # Since when nobody is here, and what follows.
    last_runs: tuple[str, ...] = ()  # The runs that were live at the last tick that had any.
    finish: Finish | None = None
    looked_at: MonoNs | None = None
    looked_boot: BootNs = BootNs(0)  # The same moment by the clock that counts suspended time.
    since: MonoNs | None = None  # None: somebody is here, or this is unknown.
    unseen_since: MonoNs | None = None
    warned_at: MonoNs | None = None
    alarmed: set[str] = field(default_factory=set)  # Names of this stretch's alarms: each is given once.
    is_done: bool = False  # This stretch's stop is closed.
    stop: ManagedRun | None = None  # The pseudo-run with the open or last stop.
    incidents_total: int = 0
    spent_before_usd_micros: int = 0  # The unallocated spend when the stretch began.

    @property
    def is_stopping(self) -> bool:
        return self.stop is not None and self.stop.incident is not None and not self.stop.incident.is_closed

    def begin_anew(self) -> None:
        """Begin the idle time anew: somebody was here."""
        self.since = self.warned_at = None
        self.alarmed.clear()
        self.is_done = False

    def snapshot(self) -> Mapping[str, Any]:
        wish = self.finish
        return {
            "last_runs": list(self.last_runs),
            "finish": [wish.run, wish.policy, wish.observed, wish.at] if wish is not None else None,
            "incidents_total": self.incidents_total,
            "hold_until": self.hold_until,
            "hold_reason": self.hold_reason,
        }


def restored(row: Mapping[str, Any], at: MonoNs, *, same_boot: bool) -> IdleState:
    """Restore what outlives a restart. From an earlier boot, only names and numbers: a started machine is wanted."""
    idle = IdleState(
        last_runs=tuple(str(name) for name in row["last_runs"]), incidents_total=int(row["incidents_total"])
    )
    if same_boot:
        until = row["hold_until"]
        idle.hold_until, idle.hold_reason = MonoNs(int(until)) if until is not None else None, str(row["hold_reason"])
        if row["finish"] is not None:
            run, policy, observed, *ended = row["finish"]
            ended_at = MonoNs(int(ended[0])) if ended else at  # An older journal does not say.
            idle.finish = Finish(str(run), str(policy), bool(observed), ended_at)
    return idle
