"""A run whose halts are played to their end: the engine decides as in the daemon, and a small world answers it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from governor.core.base.identity import ProcessId
from governor.core.base.units import NS_PER_DAY, NS_PER_HOUR, TICK_NS, MonoNs, WallNs
from governor.core.engine import incidents, resume
from governor.core.engine.incident_json import incident_snapshot
from governor.core.engine.managed_run import Launch
from governor.core.engine.node import NodeFacts, recall
from governor.core.engine.step import pass_deadline
from governor.core.engine.stops import replies
from governor.core.events.effects import Effect
from governor.core.events.inputs import Ack, Beat, BillingRead, Event, PhaseChange, ProcessesSeen, Step, StopReplied
from governor.core.halt.incident import Incident
from governor.core.runs.life import LifeFact
from governor.timeline.entries import OPEN, Entry, entries_of
from governor.timeline.halt_world import Answer, HaltWorld
from governor.timeline.player import Player, Settings

# How long a halt is played behind the last line. A person who was called has an hour: what is tried until then repeats.
PLAYED_NS: Final = NS_PER_DAY
CALLED_NS: Final = NS_PER_HOUR


class HaltPlayer(Player):
    """A player of whole halts. Its run has a machine of its own at a provider, until `set_cloud` says otherwise."""

    facts = NodeFacts(
        "test", "boot", cloud="test", instance_id="machine", can_stop=True, billing_source="test", said_running=True,
        survives_stop=True,
    )  # fmt: skip

    def __init__(self, *args: Any, **settings: Any) -> None:
        """As Player."""
        super().__init__(*args, **settings)
        self.world = HaltWorld()
        self._halts: dict[str, Incident] = {}  # In their order.
        recall(self._node, self._managed)

    def halt_entries(self) -> list[Entry]:
        """The timelines of all halts. One that is not over ends in the state that it is in."""
        entries = [entry for incident in self._halts.values() for entry in entries_of(incident)]
        incident = self._open
        return [*entries, Entry(self.now, OPEN, incident.stage_name)] if incident is not None else entries

    def finish(self) -> None:
        """Let time pass until the halt is closed, at most for a day, or for an hour since a person was called."""
        end = self.now + PLAYED_NS
        while (incident := self._open) is not None and self.now < end:
            paged_at = incident.at_of("page")
            until = end if paged_at is None else max(self.now, min(end, paged_at + CALLED_NS))
            known = [at for at in (incident.halt.deadline, self.world.next_at()) if at is not None]
            at = -(-min([until, *known]) // TICK_NS) * TICK_NS
            if self.now >= until:
                return
            self.let_pass(max(TICK_NS, at - self.now))

    # --- what a case says of the world --------------------------------------------------------------------------

    def set_cloud(self, *, exists: bool | None = None, disk_survives: bool | None = None) -> None:
        """Say of the machine whether a provider can stop it, and whether its disk outlives that. None: as before."""
        facts = self._node.facts
        if exists is not None:
            facts = replace(facts, cloud="test" if exists else "none", can_stop=exists)
        if disk_survives is not None:
            facts = replace(facts, survives_stop=disk_survives)
        self._node = replace(self._node, facts=facts)

    def name_processes(self) -> None:
        """The log's owner names its processes: a signal reaches them, and their end is seen. ValueError in a halt."""
        if self._open is not None:
            raise ValueError("a halt is open; write it before that")
        self._managed = replace(self._managed, launch=Launch(named=(ProcessId(999, 1, "boot"),)))
        recall(self._node, self._managed)

    # --- what trainers do ---------------------------------------------------------------------------------------

    def hello(self) -> None:
        if self.world.is_gone:
            raise ValueError('the halt has ended its processes; write "attempt" to launch it again')
        super().hello()

    def attempt(self) -> None:
        if self._open is not None:
            raise ValueError('the halt is still open; let it end first, for example by "quiet 5m"')
        self.run.move(LifeFact.RANK_OF_NEW_ATTEMPT, MonoNs(self.now))
        self.world.relaunch()
        self._left_out_ticks = False  # The rules have seen no tick since the halt began, as in the daemon.
        super().attempt()

    def one_step(
        self, dt_ns: int, fields: Mapping[str, Any], *, micro: int = 1, stride: int = 1,
        of_rank: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> None:  # fmt: skip
        self.world.move(MonoNs(self.now))
        super().one_step(dt_ns, fields, micro=micro, stride=stride, of_rank=of_rank)

    def beats(self, duration_ns: int, by_rank: Mapping[int, Settings], *, moves: bool) -> None:
        if moves:
            self.world.move(MonoNs(self.now))
        else:
            self.world.stand()
        super().beats(duration_ns, by_rank, moves=moves)

    def apply(self, event: Event) -> None:
        """Ranks that save take no steps, and processes that have ended say nothing."""
        is_theirs = isinstance(event, Step | Beat | PhaseChange)
        if (is_theirs and self.world.is_gone) or (isinstance(event, Step) and self.world.is_saving):
            return
        super().apply(event)

    # --- what the governor does ---------------------------------------------------------------------------------

    def restart(self) -> None:
        """Restart the governor. An open halt goes on as it was journaled."""
        incident = self._open
        super().restart()
        recall(self._node, self._managed)
        if incident is None:
            return
        self.world.forget_calls()
        row = incident_snapshot(self._node, incident)
        self._perform(resume.restore_incidents(self._node, [row], MonoNs(self.now), WallNs(self.now)))

    @property
    def _open(self) -> Incident | None:
        incident = self._managed.incident
        return incident if incident is not None and not incident.is_closed else None

    def _perform(self, effects: Iterable[Effect]) -> None:
        effects = list(effects)
        super()._perform(effects)
        incident = self._managed.incident
        if incident is None:
            return
        self._halts[incident.incident_id] = incident
        ranks = {one.rank: one.connection for one in self.run.connected_ranks() if one.connection is not None}
        for effect in effects:
            step = (self.run.step or 0) + 1
            self.world.do(effect, MonoNs(self.now), ranks, step, is_named=not incident.names_nobody)

    def _ticks(self, tick_at: int, before: int) -> int:
        """As Player, with the world's answers between the ticks: what comes first is taken first."""
        while True:
            due = self.world.next_at()
            if due is not None and due < before and due <= tick_at:
                self.now = max(self.now, due)
                self._take(self.world.take())
            elif tick_at < before:
                tick_at = self._one_tick(tick_at, before)
            else:
                return tick_at

    def _take(self, answer: Answer | None) -> None:
        incident, managed = self._open, self._managed
        if answer is None or incident is None or answer.incident_id != incident.incident_id:
            return
        answer = replace(answer, at=MonoNs(self.now))  # It may have waited for the governor.
        if self.world.is_gone:
            for rank in self.run.connected_ranks():
                self.lose(rank.rank)
        match answer:
            case Ack():
                self._perform(incidents.on_ack(self._node, managed, answer))
            case ProcessesSeen():
                self._perform(incidents.on_processes(self._node, managed, answer))
            case StopReplied():
                self._perform(replies.on_stop_replied(self._node, managed, answer))
            case BillingRead():
                self._perform(replies.on_billing(self._node, managed, answer))

    def judge(self, event: Step | None = None) -> None:
        """In an open halt a step alone is judged, as in the daemon: what it finds joins that halt."""
        if event is not None or self._is_judged:
            super().judge(event)

    @property
    def _is_judged(self) -> bool:
        return self.run.alive and self._open is None

    def _observe_tick(self, at: int) -> None:
        if self._is_judged:
            super()._observe_tick(at)

    def _tick(self, at: int) -> None:
        """As the engine's tick: an open halt has its deadlines, and an ended run is judged no more."""
        if self._is_judged:
            super()._tick(at)
            return
        self.now = at
        if self._open is not None:
            self._accrue()
            self._perform(pass_deadline(self._node, self._managed, MonoNs(at)))

    def _steady_until(self) -> int:
        incident = self._open
        if self._is_judged:
            return super()._steady_until()
        known = [self.world.next_at(), incident.halt.deadline if incident is not None else None]
        return min((at for at in known if at is not None), default=sys.maxsize)
