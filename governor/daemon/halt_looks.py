"""At the halt of a run that stands still, its ranks are asked for their last collectives: who is behind.

No stage of the halt waits for an answer. What has come by then goes into the incident, and to disk with its next row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from governor.core.base.policy import ALL
from governor.core.base.units import MonoNs
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.halt.incident import Incident
from governor.daemon.rank_looks import LOOKS_PER_UID_MAX, Look, RankLooks
from governor.text.collectives import Standing, line, named, standings
from governor.wire.shown import Collective, read_collectives

# Of a run that goes on, ranks are asked one after another, and differ though none is behind.
STILL: Final = frozenset({"hang", "log_stalled", "silence"})
GROUPS_MAX: Final = 4  # Those with a rank behind come first. Each row of the halt writes all of it.
LINE_CHARS_MAX: Final = 400
PROBLEM_CHARS_MAX: Final = 200
NOT_ASKED: Final = "not asked: not connected, or its costgov-shim cannot show"
NO_ANSWER: Final = "no answer"


@dataclass(slots=True)
class _HaltLook:
    look: Look
    told: dict[int, tuple[Collective, ...]] = field(default_factory=dict)  # By rank, of those that have answered.
    is_summed_up: bool = False


@dataclass(slots=True)
class HaltLooks:
    node: Node
    looks: RankLooks
    _of: dict[str, _HaltLook] = field(default_factory=dict)  # By incident.

    def ask(self, managed: ManagedRun, at: MonoNs) -> None:
        """Ask every rank that was not asked yet. It only sends, and a full socket is left alone."""
        incident = managed.incident
        if incident is None or incident.is_closed or not _stands_still(incident):
            return
        mine = self._of.get(incident.incident_id)
        if mine is not None:
            self.looks.ask_more(mine.look, managed)
        elif managed.run.connected_ranks():
            if len(self._of) >= LOOKS_PER_UID_MAX:
                self.forget(next(iter(self._of)))
            self._of[incident.incident_id] = _HaltLook(self.looks.begin_of_halt(managed, "collectives", at))

    def take(self, look: Look, at: MonoNs) -> None:
        """An answer has come. The last one sums up; so does each that comes after SIGTERM."""
        found = next(((name, mine) for name, mine in self._of.items() if mine.look is look), None)
        if found is not None and (found[1].is_summed_up or not look.waiting):
            self.sum_up(found[0], at)

    def sum_up(self, incident_id: str, at: MonoNs) -> None:
        """Note in the incident what has come so far."""
        mine, managed = self._of.get(incident_id), self.node.of_incident(incident_id)
        incident = managed.incident if managed is not None else None
        if mine is None or incident is None or incident.is_closed or incident.incident_id != incident_id:
            return
        mine.is_summed_up = True
        for rank, showed in mine.look.answers.items():
            if rank not in mine.told:
                mine.told[rank] = read_collectives(showed.entries)
        joined, missing = standings(mine.told), _missing(mine)
        found = {
            "groups": [standing.row() for standing in joined[:GROUPS_MAX]],
            "groups_total": len(joined),
            "problems": {str(rank): why for rank, why in sorted(missing.items())},
        }
        incident.note_collectives(at, self.node.wall(at), found, _line(joined, missing))

    def forget(self, incident_id: str) -> None:
        """The halt is over, or too many others are under way: what its ranks have shown is gone."""
        mine = self._of.pop(incident_id, None)
        if mine is not None:
            self.looks.halt_is_over(mine.look)


def _stands_still(incident: Incident) -> bool:
    """By the trigger; of a rule with several triggers, by any of them."""
    members = incident.evidence.get(ALL) if incident.trigger == ALL else None
    kinds = [one.get("trigger") for one in members if isinstance(one, Mapping)] if isinstance(members, list) else []
    return not STILL.isdisjoint([incident.trigger, *map(str, kinds)])


def _missing(mine: _HaltLook) -> dict[int, Any]:
    """Why a rank has told nothing, by rank."""
    answers = mine.look.answers
    return {
        **dict.fromkeys(mine.look.unable, NOT_ASKED),
        **dict.fromkeys(mine.look.waiting, NO_ANSWER),
        **{rank: showed.problem[:PROBLEM_CHARS_MAX] for rank, showed in answers.items() if showed.problem is not None},
    }


def _line(joined: tuple[Standing, ...], missing: Mapping[int, Any]) -> str | None:
    if not joined:
        return None
    without = f"; nothing from {named(missing)}" if missing else ""
    return line(joined[0])[:LINE_CHARS_MAX] + without
