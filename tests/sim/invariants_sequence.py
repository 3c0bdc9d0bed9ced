"""Invariants of the sequence: stages, signals, graces, journal, restarts, the end."""

from __future__ import annotations

from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.effects import Ask, HaltEffect, Kill, Page, ReadBilling, StopCompute, Term
from governor.core.halt.acts import UNANSWERED
from governor.core.halt.table import RENEWALS_MAX, Fact, Halt, HaltState, StopTarget
from tests.sim.checker import DOWN_NS, RANK, Checker
from tests.sim.governor import GRID_NS, Step
from tests.sim.world import STAMP_AGE_NS_MAX, START, World

SCAN_MAX_NS = 3 * NS_PER_S  # Birth of a newcomer to its being seen.
FROM_TERMED = frozenset(stage for stage in HaltState if RANK[stage] >= RANK[HaltState.TERMED]) - {HaltState.HALTED}


class EscalationNeverGoesBack(Checker):
    """Only VERIFYING may retry STOPPING, and then on a harsher rung; a restart changes nothing at all."""

    last: Halt | None = None

    def on_step(self, step: Step) -> None:
        if self.last is not None and step.before != self.last:
            self.broken(f"the halt changed between two facts: {self.last} became {step.before}")
        self.last = step.after
        if RANK[step.after.stage] < RANK[step.before.stage]:
            climbs = (step.before.stage, step.after.stage) == (HaltState.VERIFYING, HaltState.STOPPING)
            if not (climbs and step.after.rung > step.before.rung):
                self.broken(f"{step.before.stage.name} -> {step.after.stage.name} on {step.fact.name}")

    def on_resume(self, halt: Halt) -> None:
        last, self.last = self.last, halt
        if last is None:
            return
        if (last.stage, last.rung, last.saved, last.since) != (halt.stage, halt.rung, halt.saved, halt.since):
            self.broken(f"resumed as {halt}, was {last}")
        if (last.deadline is None) != (halt.deadline is None):
            self.broken("a restart changed whether there is a deadline")


class HaltedIsTrue(Checker):
    """HALTED means: gone, where processes were all there was to end; else the invoice ended, and we saw that it had."""

    resumed_at = START

    def on_resume(self, halt: Halt) -> None:
        self.resumed_at = self.world.now

    def on_step(self, step: Step) -> None:
        if step.after.stage is not HaltState.HALTED or step.before.stage is HaltState.HALTED:
            return
        cloud, performer = self.world.cloud, self.world.performer
        if self.plan.stop is not StopTarget.PROCESSES and not (cloud.ended_at and performer.ended_samples):
            self.broken(f"HALTED on {step.fact.name}, but nobody saw the invoice end")
        if (
            self.plan.stop is not StopTarget.PROCESSES
            and cloud.billing
            and not cloud.restarted_since(performer.ended_samples[-1])
        ):
            self.broken(f"HALTED on {step.fact.name} while the invoice runs")
        for process in self.world.trainer.alive():
            seen_by = max(process.born_at, self.resumed_at) if process.newcomer else process.born_at
            fresh = self.world.now - seen_by <= SCAN_MAX_NS
            if self.plan.stop is StopTarget.PROCESSES and not fresh and not process.newcomer:
                self.broken(f"HALTED while process {process.pid} lives")
            if not process.termed and not process.killed and not fresh:
                self.broken(f"HALTED while process {process.pid} was never signalled")


class JournalBeforeAct(Checker):
    """No effect before its row (or the row's undurable stand-in) holds the halt that ordered it."""

    def on_effect(self, effect: HaltEffect, halt: Halt, journaled: object) -> None:
        if journaled is None or getattr(journaled, "halt", journaled) != halt:
            self.broken(f"{effect} before its row")


class SigkillAfterGrace(Checker):
    """SIGTERM comes first, and its grace has passed: counted from the stamp of what led to it."""

    termed_at: MonoNs | None = None
    all_gone = False
    restarts = 0

    def on_resume(self, halt: Halt) -> None:
        self.restarts += halt.stage is HaltState.TERMED

    def on_step(self, step: Step) -> None:
        self.all_gone = self.all_gone or (step.fact is Fact.EXITED and step.before.stage is HaltState.TERMED)

    def on_effect(self, effect: HaltEffect, halt: Halt, journaled: object) -> None:
        if isinstance(effect, Term) and self.termed_at is None:
            self.termed_at = self.world.now
        if isinstance(effect, Kill) and (
            self.termed_at is None or self.world.now - self.termed_at < self.plan.term_grace_ns - STAMP_AGE_NS_MAX
        ):
            if self.all_gone:
                return  # Everyone went within the grace; this one is for something that came back.
            if self.restarts > RENEWALS_MAX:
                return  # The grace was renewed as often as a governor that keeps dying is granted.
            self.broken("SIGKILL without SIGTERM's grace")


class GraceIsKept(Checker):
    """Nobody is termed before the grace is over without a reason, nor after it: acks extend nothing."""

    REASONS = frozenset({Fact.DEADLINE, Fact.SAVED, Fact.SAVE_FAILED, Fact.EXITED, Fact.VERDICT_NO_ASK})
    restarts = 0

    def on_resume(self, halt: Halt) -> None:
        self.restarts += 1

    def on_step(self, step: Step) -> None:
        asked = step.before.stage in (HaltState.ASKED, HaltState.SAVING)
        if step.before.grace_until is not None and step.after.grace_until != step.before.grace_until:
            self.broken(f"{step.fact.name} moved the grace")
        if asked and step.after.stage is not step.before.stage and step.after.stage is not HaltState.SAVING:
            until = step.before.grace_until
            assert until is not None
            if self.world.now > until + GRID_NS + self.restarts * DOWN_NS:
                self.broken(f"termed {(self.world.now - until) / NS_PER_S:.1f} s after the grace")
            if step.fact not in self.REASONS:
                self.broken(f"grace cut short by {step.fact.name}")
        is_last = step.after.stage is HaltState.WAITING and self.world.plan.others_ns > 0
        if asked and step.fact is Fact.SAVED and not (is_last or any(isinstance(one, Term) for one in step.effects)):
            self.broken("saved, and still waiting")
        self._check_waiting(step)

    def _check_waiting(self, step: Step) -> None:
        """The node of rank 0 goes last, and waits neither without need nor for ever."""
        others_ns, begun = self.world.plan.others_ns, (HaltState.ARMED, HaltState.ASKED, HaltState.SAVING)
        if others_ns and step.before.stage in begun and step.after.stage is HaltState.TERMED:
            self.broken("the node of rank 0 went first")
        if step.after.stage is HaltState.WAITING and step.fact is Fact.OTHERS_GONE:
            self.broken("waits for nobody")
        if step.before.stage is not HaltState.WAITING or step.after.stage is HaltState.WAITING:
            return
        if step.fact not in (Fact.OTHERS_GONE, Fact.DEADLINE):
            self.broken(f"did not wait for the other nodes: {step.fact.name}")
        if self.world.now > step.before.since + others_ns + GRID_NS + self.restarts * DOWN_NS:
            self.broken("waited for the other nodes beyond their time")


class EveryStageDoesItsWork(Checker):
    """A stage is not left by its deadline before its effect was performed at least once, whatever crashed."""

    WORK = {  # noqa: RUF012
        HaltState.ASKED: Ask,
        HaltState.TERMED: Term,
        HaltState.KILLED: Kill,
        HaltState.STOPPING: StopCompute,
        HaltState.VERIFYING: ReadBilling,
        HaltState.NEEDS_HUMAN: Page,
    }

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.done: set[type[object]] = set()
        self.restarts = 0  # In this stage.

    def on_step(self, step: Step) -> None:
        work = self.WORK.get(step.before.stage)
        if step.fact is Fact.DEADLINE and work is not None and work not in self.done and self.restarts < 2:
            # Two deaths in one stage may have come before the effect both times; one is made good by the resume.
            self.broken(f"{step.before.stage.name} expired, but {work.__name__} was never performed")
        if step.after.stage is not step.before.stage:
            self.done = set()
            self.restarts = 0

    def on_resume(self, halt: Halt) -> None:
        self.restarts += 1

    def on_effect(self, effect: HaltEffect, halt: Halt, journaled: object) -> None:
        self.done.add(type(effect))


class DeadlinesMove(Checker):
    """A deadline that has come must end, or be set anew: else the clock spins, or nothing ever happens again."""

    def on_step(self, step: Step) -> None:
        live = step.after.stage is not HaltState.HALTED
        if live and step.after.deadline is None:
            self.broken(f"{step.after.stage.name} has no deadline")
        if live and step.fact is Fact.DEADLINE and step.after.deadline == step.before.deadline:
            self.broken(f"DEADLINE in {step.before.stage.name} leads nowhere")


class NewcomersAreAnswered(Checker):
    """From TERMED on, whatever comes back is signalled in the same step."""

    def on_step(self, step: Step) -> None:
        if step.fact is Fact.RESPAWNED and step.before.stage in FROM_TERMED:
            if not any(isinstance(effect, Term | Kill) for effect in step.effects):
                self.broken(f"respawned in {step.before.stage.name}: nothing done")
            if step.after.deadline != step.before.deadline:
                self.broken("a newcomer moved the deadline")


class PagesOncePerEntry(Checker):
    """A person is called when NEEDS_HUMAN is entered, and once before if no stop is answered; again after a restart."""

    pages = 0
    lives = 1
    unanswered = 0

    def on_effect(self, effect: HaltEffect, halt: Halt, journaled: object) -> None:
        if isinstance(effect, Page):
            is_early = effect.reason == UNANSWERED
            self.unanswered, self.pages = self.unanswered + is_early, self.pages + (not is_early)
            if max(self.pages, self.unanswered) > self.lives:
                self.broken(f"{self.pages} pages, {self.unanswered} for want of an answer")
            if not effect.reason:
                self.broken("a page without a reason")

    def on_resume(self, halt: Halt) -> None:
        self.lives += 1


class EventuallyHalted(Checker):
    """Once the faults have healed, the halt ends, is closed, and the money has stopped."""

    def on_end(self, halt: Halt) -> None:
        if self.world.performer.dark:
            if self.world.cloud.ended_at:
                return  # Our own machine went down: the end that nobody on it can see.
            self.broken("dark, but the invoice never ended")
        if halt.stage is not HaltState.HALTED:
            self.broken(f"still {halt.stage.name} long after the faults healed")
        if not self.world.performer.closed:
            self.broken("halted, but never closed")
