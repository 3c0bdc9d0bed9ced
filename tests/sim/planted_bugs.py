"""Who tests the simulator? Known bugs, planted one at a time into the table or its driver: each must be caught.

`python -m tests.sim.planted_bugs` prints by which seed and by which invariant.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random

from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.effects import (
    Confirm,
    Effect,
    HaltEffect,
    Kill,
    Page,
    PersistIncident,
    PersistRuns,
    ReadBilling,
    StopCompute,
)
from governor.core.events.inputs import Event, ProcessesSeen, TrainerExited
from governor.core.halt import acts
from governor.core.halt.acts import Act
from governor.core.halt.table import (
    TRANSITIONS,
    Cell,
    Fact,
    Halt,
    HaltPlan,
    HaltState,
    Outcome,
    StopTarget,
    entry_effects,
)
from tests.sim.disk import Disk
from tests.sim.engine_driver import EngineDriver, Kept, engine_schedule
from tests.sim.faults import INCIDENT, Schedule, draw_schedule
from tests.sim.governor import Driver, Governor, TableDriver
from tests.sim.schedule import FailedError, run_schedule, sound
from tests.sim.world import World

SEEDS_MAX = 2_000  # As many as one check plays: a bug that needs more would live for a while.

Cells = Mapping[tuple[HaltState, Fact], Act]


@dataclass(frozen=True, slots=True)
class Bug:
    name: str
    cells: Cells = field(default_factory=dict)
    driver: Callable[[World], Driver] = TableDriver
    governor: type[Governor] = Governor
    draw: Callable[[Random], Schedule] = draw_schedule

    @property
    def is_in_table_alone(self) -> bool:
        return (self.driver, self.governor, self.draw) == (TableDriver, Governor, draw_schedule)


@contextmanager
def planted(cells: Cells) -> Iterator[None]:
    """The table with these cells replaced, for as long as the block lasts."""
    before = {key: TRANSITIONS[key] for key in cells}
    for key, act in cells.items():
        TRANSITIONS[key] = Cell(tuple(HaltState), act, "A planted bug.")
    try:
        yield
    finally:
        TRANSITIONS.update(before)


def hunt(bug: Bug, seeds: int = SEEDS_MAX) -> FailedError | None:
    """Return the first schedule that catches the bug, or None when it survives them all."""
    for seed in range(seeds):
        # Before it comes to a cell of the bug, a schedule of the table is as without it; most never do.
        if bug.is_in_table_alone and not bug.cells.keys() & sound(seed).cells:
            continue
        with planted(bug.cells):
            try:
                run_schedule(seed, bug.driver, bug.governor, bug.draw)
            except FailedError as caught:
                return caught
    return None


# --- wrong acts ------------------------------------------------------------------------------------------


def _to(stage: HaltState, *, lasts_s: float = 60.0) -> Act:
    def act(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
        deadline = None if stage is HaltState.HALTED else MonoNs(at + round(lasts_s * NS_PER_S))
        moved = replace(halt, stage=stage, since=at, deadline=deadline, page_reason="planted")
        return moved, entry_effects(moved, plan)

    return act


def _wait(lasts_s: float = 60.0) -> Act:
    def act(halt: Halt, at: MonoNs, _plan: HaltPlan) -> Outcome:
        return replace(halt, deadline=MonoNs(at + round(lasts_s * NS_PER_S))), ()

    return act


def _without(kind: type[object], act: Act) -> Act:
    """The sound act, but for one kind of effect that it forgets."""

    def forgetful(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
        after, effects = act(halt, at, plan)
        return after, tuple(effect for effect in effects if not isinstance(effect, kind))

    return forgetful


def _sound(stage: HaltState, fact: Fact) -> Act:
    return TRANSITIONS[stage, fact].act


def _extend_grace(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
    return replace(halt, deadline=MonoNs(at + plan.save_grace_ns)), ()


def _resend_for_ever(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
    if halt.stop_reply is Fact.STOP_REFUSED:
        return acts.stop_again(halt, at, plan)
    return acts.stop_again(replace(halt, rung_attempts=1), at, plan)


def _climb_at_once(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
    return acts.climb(halt, at, plan)


def _same_rung_again(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
    harsher, effects = acts.climb(halt, at, plan)
    if harsher.stage is not HaltState.STOPPING:
        return harsher, effects
    again = replace(harsher, rung=halt.rung, rung_attempts=halt.rung_attempts + 1)
    return again, (StopCompute(halt.incident_id, halt.run, again.stop_attempts, again.rung),)


def _poll_each_answer(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
    return acts.poll(replace(halt, poll_due=None, poll_n=0), at, plan)


def _page_each_round(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
    after, effects = acts.retry(halt, at, plan)
    return after, (Page(halt.incident_id, halt.run, halt.page_reason), *effects)


def _hurry(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
    after, effects = acts.retry(halt, at, plan)
    return replace(after, deadline=MonoNs(at + plan.retry_min_ns // 2)), effects


def _beyond_policy(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
    return acts.climb(halt, at, replace(plan, rung_max=min(2, plan.rung_max + 1)))


def _billing_for_processes(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
    return acts.after_exit(halt, at, replace(plan, stop=StopTarget.INSTANCE))


def _unkillable_is_halted(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
    return acts.halted(halt, at, plan) if plan.stop is StopTarget.PROCESSES else acts.after_unkillable(halt, at, plan)


def _refused_and_blind(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
    return replace(halt, stop_reply=Fact.STOP_REFUSED, deadline=MonoNs(at + NS_PER_S)), ()


# --- wrong drivers ---------------------------------------------------------------------------------------


class ResumeForgetsEffects(TableDriver):
    def resume(self, kept: object, at: MonoNs) -> tuple[HaltEffect, ...]:
        super().resume(kept, at)
        return ()


class ResumeAsksAgain(TableDriver):
    def resume(self, kept: object, at: MonoNs) -> tuple[HaltEffect, ...]:
        super().resume(kept, at)
        if self.halt.stage is HaltState.ASKED:
            self.halt = replace(self.halt, deadline=MonoNs(at + self.plan.grace_ns))
        return entry_effects(self.halt, self.plan)


class ResumeKeepsTheDeadline(TableDriver):
    """The simulator found this one: SIGKILL followed at once upon a SIGTERM that only the restart had sent."""

    def resume(self, kept: object, at: MonoNs) -> tuple[HaltEffect, ...]:
        assert isinstance(kept, Halt)
        self.halt = kept
        return entry_effects(kept, self.plan)


class ResumeBeginsAnew(TableDriver):
    def resume(self, kept: object, at: MonoNs) -> tuple[HaltEffect, ...]:
        return tuple(effect for step in self.verdict(at, asked=False) for effect in step.effects)


class ActsBeforeJournal(Governor):
    def _journal(self) -> None:
        if self.rng.random() < 0.7:  # Else the commit is still under way.
            super()._journal()


class JournalsOnlyTransitions(Governor):
    def _journal(self) -> None:
        kept, last = self.driver.kept(), self.disk.newest()
        if not (isinstance(kept, Halt) and isinstance(last, Halt) and last.stage is kept.stage):
            super()._journal()


class DiskWithoutFallback(Disk):
    def newest(self) -> object | None:
        return self.rows[-1][1] if self.rows else None


class ReadsOnlyTheDisk(Governor):
    def _restart(self) -> None:
        self.disk = DiskWithoutFallback(self.disk.rows)
        super()._restart()


class RanksAreEverybody(EngineDriver):
    """The simulator found this one: a launcher outlived its ranks, and the halt of processes was declared over."""

    def _decide(self, event: Event) -> list[Effect]:
        if isinstance(event, TrainerExited) and self.halt.stage not in (HaltState.ARMED, HaltState.HALTED):
            event = ProcessesSeen(event.at, INCIDENT, ())
        return super()._decide(event)


class DoesBeforeItKeeps(EngineDriver):
    def _decide(self, event: Event) -> list[Effect]:
        return sorted(super()._decide(event), key=lambda effect: isinstance(effect, PersistIncident))


class ConfirmsBeforeItKeeps(EngineDriver):
    """And this one: an ack confirmed, then the governor died before it had written down what followed from it."""

    def _decide(self, event: Event) -> list[Effect]:
        return sorted(super()._decide(event), key=lambda effect: not isinstance(effect, Confirm))


class DropsNewcomers(EngineDriver):
    def _decide(self, event: Event) -> list[Effect]:
        return [] if isinstance(event, ProcessesSeen) and event.respawned else super()._decide(event)


class KeepsOnlyTransitions(EngineDriver):
    def _decide(self, event: Event) -> list[Effect]:
        before = self.halt.stage
        effects = super()._decide(event)
        moved = self.halt.stage is not before
        return [effect for effect in effects if moved or not isinstance(effect, PersistIncident)]


class ForgetsItsDowntime(EngineDriver):
    """Takes up the run's spend as of now, as if the meter had stood still while nobody watched."""

    def resume(self, kept: object, at: MonoNs) -> tuple[HaltEffect, ...]:
        assert isinstance(kept, Kept)
        run = json.loads(kept.run) | {"boot_ns": at} if kept.run is not None else None
        return super().resume(replace(kept, run=json.dumps(run)), at)


class ForgetsWhatWasSpent(EngineDriver):
    """Takes up the run with its meters, and its counter begins at zero."""

    def resume(self, kept: object, at: MonoNs) -> tuple[HaltEffect, ...]:
        assert isinstance(kept, Kept)
        runs = {name: json.dumps(json.loads(text) | {"spend_usd_micros": 0}) for name, text in kept.runs.items()}
        return super().resume(replace(kept, runs=runs), at)


class LosesClosedCharges(EngineDriver):
    """A commit has only what still grows."""

    def _decide(self, event: Event) -> list[Effect]:
        effects = super()._decide(event)
        grows = {charge.charge_id for charge in self.node.ledger.book.open_charges()}
        return [
            replace(effect, charges=tuple(charge for charge in effect.charges if charge.charge_id in grows))
            if isinstance(effect, PersistRuns)
            else effect
            for effect in effects
        ]


def in_engine(name: str, driver: Callable[[World], Driver]) -> Bug:
    return Bug(name, driver=driver, draw=engine_schedule)


_ENTERED = {stage: _to(stage) for stage in HaltState}
_late = tuple(stage for stage in HaltState if stage.value in ("killed", "stopping", "verifying", "needs_human"))

BUGS: tuple[Bug, ...] = (
    Bug("accepted is taken for stopped", {(HaltState.STOPPING, Fact.STOP_ACCEPTED): acts.halted}),
    Bug("accepted is taken for stopped, late", {(HaltState.NEEDS_HUMAN, Fact.STOP_ACCEPTED): acts.halted}),
    Bug("a time-out is taken for stopped", {(HaltState.STOPPING, Fact.STOP_UNKNOWN): acts.halted}),
    Bug("not knowing is taken for ended", {(HaltState.VERIFYING, Fact.BILLING_UNKNOWN): acts.halted}),
    Bug("billing ended under a trainer that lives: halted", {(HaltState.ASKED, Fact.BILLING_ENDED): acts.halted}),
    Bug("the same while it saves", {(HaltState.SAVING, Fact.BILLING_ENDED): acts.halted}),
    Bug("exit while asked is declared halted", {(HaltState.ASKED, Fact.EXITED): acts.halted}),
    Bug("exit is declared halted, the machine bills on", {(HaltState.TERMED, Fact.EXITED): acts.halted}),
    Bug("exit with a person called is declared halted", {(HaltState.NEEDS_HUMAN, Fact.EXITED): acts.halted}),
    Bug("D state is waited for", {(HaltState.KILLED, Fact.DEADLINE): _wait()}),
    Bug("D state is declared halted", {(HaltState.KILLED, Fact.DEADLINE): _unkillable_is_halted}),
    Bug("no deadline edge while stopping", {(HaltState.STOPPING, Fact.DEADLINE): acts.stay}),
    Bug("no stop is sent again", {(HaltState.STOPPING, Fact.DEADLINE): _wait()}),
    Bug("a late ack resurrects the grace after TERM", {(HaltState.TERMED, Fact.SAVING): _ENTERED[HaltState.SAVING]}),
    Bug("a late ack resurrects the grace after KILL", {(HaltState.KILLED, Fact.SAVING): _ENTERED[HaltState.SAVING]}),
    Bug("a late SAVED sends TERM again", {(HaltState.STOPPING, Fact.SAVED): acts.saved_then_end}),
    Bug("progress extends the grace", {(HaltState.SAVING, Fact.SAVING): _extend_grace}),
    Bug("saved, and the grace is waited out", {(HaltState.SAVING, Fact.SAVED): acts.note_saved}),
    Bug("received is taken for saved", {(HaltState.ASKED, Fact.RECEIVED): acts.saved_then_end}),
    Bug("SIGKILL without SIGTERM", {(HaltState.ASKED, Fact.DEADLINE): acts.kill}),
    Bug("SIGKILL without SIGTERM, no ask", {(HaltState.ARMED, Fact.VERDICT_NO_ASK): acts.kill}),
    Bug("newcomers get SIGKILL within SIGTERM's grace", {(HaltState.TERMED, Fact.RESPAWNED): acts.kill_again}),
    Bug("newcomers are ignored from KILL on", {(stage, Fact.RESPAWNED): acts.stay for stage in _late}),
    Bug("newcomers are ignored while stopping", {(HaltState.STOPPING, Fact.RESPAWNED): acts.stay}),
    Bug("newcomers are ignored with a person called", {(HaltState.NEEDS_HUMAN, Fact.RESPAWNED): acts.stay}),
    Bug("a newcomer starts the ladder again", {(HaltState.VERIFYING, Fact.RESPAWNED): acts.kill}),
    Bug("a busy provider is asked for ever", {(HaltState.STOPPING, Fact.DEADLINE): _resend_for_ever}),
    Bug("a busy provider makes us climb", {(HaltState.STOPPING, Fact.STOP_BUSY): _climb_at_once}),
    Bug("a refusal makes us climb unread", {(HaltState.STOPPING, Fact.STOP_REFUSED): _climb_at_once}),
    Bug("a refusal is not read back", {(HaltState.STOPPING, Fact.STOP_REFUSED): _refused_and_blind}),
    Bug("accepted in vain, and the same rung again", {(HaltState.VERIFYING, Fact.DEADLINE): _same_rung_again}),
    Bug("the ladder is climbed beyond policy", {(HaltState.VERIFYING, Fact.DEADLINE): _beyond_policy}),
    Bug("a late refusal restarts the stop", {(HaltState.VERIFYING, Fact.STOP_REFUSED): _ENTERED[HaltState.STOPPING]}),
    Bug("reading stops at the first RUNNING", {(HaltState.VERIFYING, Fact.BILLING_RUNNING): acts.stay}),
    Bug("reading stops with a person called", {(HaltState.NEEDS_HUMAN, Fact.BILLING_RUNNING): acts.stay}),
    Bug("doubled answers multiply the polls", {(HaltState.VERIFYING, Fact.BILLING_RUNNING): _poll_each_answer}),
    Bug("the end of billing is not noticed while stopping", {(HaltState.STOPPING, Fact.BILLING_ENDED): acts.stay}),
    Bug("the end of billing is not noticed later", {(HaltState.NEEDS_HUMAN, Fact.BILLING_ENDED): acts.stay}),
    Bug("with a person called, nothing is tried", {(HaltState.NEEDS_HUMAN, Fact.DEADLINE): _wait()}),
    Bug("with a person called, tried next day", {(HaltState.NEEDS_HUMAN, Fact.DEADLINE): _wait(86_400)}),
    Bug("a page each round", {(HaltState.NEEDS_HUMAN, Fact.DEADLINE): _page_each_round}),
    Bug("rounds without a pause", {(HaltState.NEEDS_HUMAN, Fact.DEADLINE): _hurry}),
    Bug("a halt of processes stops the machine", {(HaltState.TERMED, Fact.EXITED): _billing_for_processes}),
    Bug("the node of rank 0 goes first", {(HaltState.SAVING, Fact.SAVED): acts.term}),
    Bug("the same where nobody saves", {(HaltState.ASKED, Fact.DEADLINE): acts.term}),
    Bug("the node of rank 0 waits for ever", {(HaltState.WAITING, Fact.DEADLINE): _wait()}),
    Bug("the node of rank 0 waits for nobody's sake", {(HaltState.WAITING, Fact.OTHERS_GONE): acts.stay}),
    Bug("a second verdict asks again", {(HaltState.TERMED, Fact.VERDICT): _ENTERED[HaltState.ARMED]}),
    Bug("a second verdict kills the save", {(HaltState.SAVING, Fact.VERDICT): acts.term}),
    Bug(
        "TERM is forgotten",
        {(HaltState.ASKED, Fact.DEADLINE): _without(object, _sound(HaltState.ASKED, Fact.DEADLINE))},
    ),
    Bug(
        "KILL is forgotten",
        {(HaltState.TERMED, Fact.DEADLINE): _without(Kill, _sound(HaltState.TERMED, Fact.DEADLINE))},
    ),
    Bug(
        "the first read is forgotten",
        {
            (HaltState.STOPPING, Fact.STOP_ACCEPTED): _without(
                ReadBilling, _sound(HaltState.STOPPING, Fact.STOP_ACCEPTED)
            )
        },
    ),
    Bug("a resume forgets the effects", driver=ResumeForgetsEffects),
    Bug("a resume begins the grace again", driver=ResumeAsksAgain),
    Bug("a resume keeps a deadline that has passed", driver=ResumeKeepsTheDeadline),
    Bug("a resume begins anew", driver=ResumeBeginsAnew),
    Bug("acts before the journal has it", governor=ActsBeforeJournal),
    Bug("only transitions are journaled", governor=JournalsOnlyTransitions),
    Bug("a restart reads the full disk and not the fallback", governor=ReadsOnlyTheDisk),
    in_engine("engine: the ranks' exit is everybody's", RanksAreEverybody),
    in_engine("engine: does before it keeps", DoesBeforeItKeeps),
    in_engine("engine: confirms before it keeps", ConfirmsBeforeItKeeps),
    in_engine("engine: newcomers are dropped", DropsNewcomers),
    in_engine("engine: keeps only transitions", KeepsOnlyTransitions),
    in_engine("engine: forgets its downtime", ForgetsItsDowntime),
    in_engine("engine: forgets what was spent", ForgetsWhatWasSpent),
    in_engine("engine: closed charges are in no commit", LosesClosedCharges),
)


def main() -> None:
    for bug in BUGS:
        caught = hunt(bug)
        by = f"seed {caught.seed:4}: {str(caught).splitlines()[0]}" if caught else "SURVIVED"
        print(f"{bug.name:55} {by}")


if __name__ == "__main__":
    main()
