"""What must hold in every schedule, each as one named checker. A breach raises BrokenError with the checker's name."""

from __future__ import annotations

from typing import NoReturn

from governor.core.effects import Ask, CloseIncident, HaltEffect, Kill, Page, ReadBilling, StopCompute, Term
from governor.core.halt import STOP_ATTEMPTS_PER_RUNG_MAX, Fact, Halt, Stage, StopTarget
from governor.core.units import NS_PER_S, MonoNs
from tests.sim.governor import GRID_NS, Step
from tests.sim.world import START, World

RANK = {stage: n for n, stage in enumerate(Stage)}
DOWN_NS = 10 * NS_PER_S  # The longest restart.
SCAN_MAX_NS = 3 * NS_PER_S  # Birth of a newcomer to its being seen.
READS_PER_MINUTE_MAX = 60  # Polls every 2 s, and one beside each stop and after each answer.
FROM_TERMED = frozenset(stage for stage in Stage if RANK[stage] >= RANK[Stage.TERMED]) - {Stage.HALTED}


class BrokenError(AssertionError):
    """An invariant does not hold; the first word is its name."""


class Checker:
    """Sees every step, effect and restart of one schedule."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.plan = world.plan

    def broken(self, text: str) -> NoReturn:
        raise BrokenError(f"{type(self).__name__}: {text}")

    def on_step(self, step: Step) -> None: ...

    def on_effect(self, effect: HaltEffect, halt: Halt, journaled: object) -> None: ...

    def on_resume(self, halt: Halt) -> None: ...

    def on_end(self, halt: Halt) -> None: ...


class EscalationNeverGoesBack(Checker):
    """Only VERIFYING may retry STOPPING, and then on a harsher rung; a restart changes nothing at all."""

    last: Halt | None = None

    def on_step(self, step: Step) -> None:
        if self.last is not None and step.before != self.last:
            self.broken(f"the halt changed between two facts: {self.last} became {step.before}")
        self.last = step.after
        if RANK[step.after.stage] < RANK[step.before.stage]:
            climbs = (step.before.stage, step.after.stage) == (Stage.VERIFYING, Stage.STOPPING)
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
        if step.after.stage is not Stage.HALTED or step.before.stage is Stage.HALTED:
            return
        cloud, hands = self.world.cloud, self.world.hands
        if self.plan.stop is not StopTarget.PROCESSES and not (cloud.ended_at and hands.ended_samples):
            self.broken(f"HALTED on {step.fact.name}, but nobody saw the invoice end")
        if (
            self.plan.stop is not StopTarget.PROCESSES
            and cloud.billing
            and not cloud.restarted_since(hands.ended_samples[-1])
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
    """SIGTERM comes first, and its grace has passed."""

    termed_at: MonoNs | None = None
    all_gone = False

    def on_step(self, step: Step) -> None:
        self.all_gone = self.all_gone or (step.fact is Fact.EXITED and step.before.stage is Stage.TERMED)

    def on_effect(self, effect: HaltEffect, halt: Halt, journaled: object) -> None:
        if isinstance(effect, Term) and self.termed_at is None:
            self.termed_at = self.world.now
        if isinstance(effect, Kill) and (
            self.termed_at is None or self.world.now - self.termed_at < self.plan.term_grace_ns
        ):
            if self.all_gone:
                return  # Everyone went within the grace; this one is for something that came back.
            self.broken("SIGKILL without SIGTERM's grace")


class GraceIsKept(Checker):
    """Nobody is termed before the grace is over without a reason, nor after it: acks extend nothing."""

    REASONS = frozenset({Fact.DEADLINE, Fact.SAVED, Fact.SAVE_FAILED, Fact.EXITED, Fact.VERDICT_NO_ASK})

    def on_step(self, step: Step) -> None:
        asked = step.before.stage in (Stage.ASKED, Stage.SAVING)
        if step.before.grace_until is not None and step.after.grace_until != step.before.grace_until:
            self.broken(f"{step.fact.name} moved the grace")
        if asked and step.after.stage is not step.before.stage and step.after.stage is not Stage.SAVING:
            until = step.before.grace_until
            assert until is not None
            if step.at > until + GRID_NS + 2 * DOWN_NS:
                self.broken(f"termed {(step.at - until) / NS_PER_S:.1f} s after the grace")
            if step.fact not in self.REASONS:
                self.broken(f"grace cut short by {step.fact.name}")
        if asked and step.fact is Fact.SAVED and not any(isinstance(effect, Term) for effect in step.effects):
            self.broken("saved, and still waiting")


class EveryStageDoesItsWork(Checker):
    """A stage is not left by its deadline before its effect was performed at least once, whatever crashed."""

    WORK = {  # noqa: RUF012
        Stage.ASKED: Ask,
        Stage.TERMED: Term,
        Stage.KILLED: Kill,
        Stage.STOPPING: StopCompute,
        Stage.VERIFYING: ReadBilling,
        Stage.NEEDS_HUMAN: Page,
    }

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.done: set[type[object]] = set()

    def on_step(self, step: Step) -> None:
        work = self.WORK.get(step.before.stage)
        if step.fact is Fact.DEADLINE and work is not None and work not in self.done:
            self.broken(f"{step.before.stage.name} expired, but {work.__name__} was never performed")
        if step.after.stage is not step.before.stage:
            self.done = set()

    def on_effect(self, effect: HaltEffect, halt: Halt, journaled: object) -> None:
        self.done.add(type(effect))


class DeadlinesMove(Checker):
    """A deadline that has come must end, or be set anew: else the clock spins, or nothing ever happens again."""

    def on_step(self, step: Step) -> None:
        live = step.after.stage is not Stage.HALTED
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


class StopsAreBounded(Checker):
    """At most so many stops per rung before a person is called; afterwards never faster than the retry interval."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.sent: dict[int, int] = {}  # Attempt numbers seen, by rung: a repeated one after a restart is the same.
        self.numbers: set[int] = set()
        self.last_round_at: MonoNs | None = None

    def on_effect(self, effect: HaltEffect, halt: Halt, journaled: object) -> None:
        if not isinstance(effect, StopCompute) or effect.attempt in self.numbers:
            return
        self.numbers.add(effect.attempt)
        if effect.rung > self.plan.rung_max:
            self.broken(f"rung {effect.rung} is beyond policy")
        if halt.stage is not Stage.NEEDS_HUMAN:
            self.sent[effect.rung] = self.sent.get(effect.rung, 0) + 1
            if self.sent[effect.rung] > STOP_ATTEMPTS_PER_RUNG_MAX:
                self.broken(f"{self.sent[effect.rung]} stops on rung {effect.rung}")
            return
        if self.last_round_at is not None and self.world.now - self.last_round_at < self.plan.retry_min_ns:
            self.broken("rounds come too fast")
        self.last_round_at = self.world.now


class NeverGivesUp(Checker):
    """With a person called, the next attempt is never further away than the longest interval."""

    def on_step(self, step: Step) -> None:
        if step.after.stage is Stage.NEEDS_HUMAN:
            assert step.after.deadline is not None
            if step.after.deadline - step.at > max(self.plan.retry_max_ns, self.plan.verify_ns):
                self.broken("the next attempt is too far away")
        tried = any(isinstance(effect, StopCompute | Kill) for effect in step.effects)
        if step.before.stage is Stage.NEEDS_HUMAN and step.fact is Fact.DEADLINE and not tried:
            self.broken("a round in which nothing is tried")


class ReadsKeepComing(Checker):
    """While billing is in question every answer plans the next read, and reads do not multiply."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.reads_at: list[MonoNs] = []

    def on_step(self, step: Step) -> None:
        asking = step.before.stage in (Stage.VERIFYING, Stage.NEEDS_HUMAN)
        awaited = step.before.poll_due is None or step.at >= step.before.poll_due
        answered = step.fact in (Fact.BILLING_RUNNING, Fact.BILLING_UNKNOWN)
        polled = any(isinstance(effect, ReadBilling) for effect in step.effects)
        if asking and awaited and answered and not polled and self.plan.stop is not StopTarget.PROCESSES:
            self.broken(f"{step.before.stage.name} stopped reading on {step.fact.name}")

    def on_effect(self, effect: HaltEffect, halt: Halt, journaled: object) -> None:
        if isinstance(effect, ReadBilling):
            self.reads_at = [at for at in self.reads_at if self.world.now - at < 60 * NS_PER_S]
            self.reads_at.append(self.world.now)
            if len(self.reads_at) > READS_PER_MINUTE_MAX:
                self.broken(f"{len(self.reads_at)} reads in a minute")


class NothingIsDestroyedBlindly(Checker):
    """A rung is climbed only after a refusal that was read back, or after an accepted stop had its full time."""

    def on_step(self, step: Step) -> None:
        before, after = step.before, step.after
        if after.rung <= before.rung or after.stage is not Stage.STOPPING:
            return
        if step.fact is not Fact.DEADLINE:
            self.broken(f"climbed to rung {after.rung} on {step.fact.name}")
        if before.stage is Stage.VERIFYING and step.at - before.since < self.plan.verify_ns:
            self.broken(f"climbed to rung {after.rung} before the stop had its time")
        if before.stage is Stage.STOPPING and before.stop_reply is not Fact.STOP_REFUSED:
            self.broken(f"climbed to rung {after.rung} without a refusal")


class RefusalsAreReadBack(Checker):
    """An answer other than "accepted" is followed by a look at billing before the next stop goes out."""

    unread = False

    def on_step(self, step: Step) -> None:
        bad = step.fact in (Fact.STOP_BUSY, Fact.STOP_REFUSED, Fact.STOP_UNKNOWN)
        if step.before.stage is Stage.STOPPING and bad and step.before.stop_reply is None:
            self.unread = True
        if any(isinstance(effect, ReadBilling) for effect in step.effects):
            self.unread = False
        if self.unread and any(isinstance(effect, StopCompute) for effect in step.effects):
            self.broken("the next stop went out before billing was read")


class PagesOncePerEntry(Checker):
    """A person is called when NEEDS_HUMAN is entered, and not again but after a restart."""

    pages = 0
    lives = 1

    def on_effect(self, effect: HaltEffect, halt: Halt, journaled: object) -> None:
        if isinstance(effect, Page):
            self.pages += 1
            if self.pages > self.lives:
                self.broken(f"{self.pages} pages")
            if not effect.reason:
                self.broken("a page without a reason")

    def on_resume(self, halt: Halt) -> None:
        self.lives += 1


class OnlyWhatIsOurs(Checker):
    """A halt of processes never touches the machine, and an incident is closed only when it is halted."""

    def on_effect(self, effect: HaltEffect, halt: Halt, journaled: object) -> None:
        if self.plan.stop is StopTarget.PROCESSES and isinstance(effect, StopCompute | ReadBilling):
            self.broken(f"{type(effect).__name__} for a halt of processes")
        if isinstance(effect, CloseIncident) and halt.stage is not Stage.HALTED:
            self.broken("closed before it was halted")


class MoneyIsReachedInTime(Checker):
    """From the verdict to the first stop: the graces, and what restarts cost. Nothing else may hold it up."""

    stopped = False
    verdict_at: MonoNs | None = None
    restarts = 0

    def on_step(self, step: Step) -> None:
        if self.verdict_at is None:
            self.verdict_at = step.at
        allowed = self.plan.grace_ns + self.plan.term_grace_ns + self.plan.kill_grace_ns
        # A restart costs its own time, and renews the deadline of the stage that it interrupts.
        allowed += 4 * GRID_NS + self.restarts * (
            DOWN_NS + GRID_NS + max(self.plan.term_grace_ns, self.plan.kill_grace_ns)
        )
        live = step.before.stage is not Stage.HALTED
        waits = self.plan.stop is not StopTarget.PROCESSES and not self.stopped
        if live and waits and step.at - self.verdict_at > allowed:
            self.broken("the first stop is late")

    def on_effect(self, effect: HaltEffect, halt: Halt, journaled: object) -> None:
        self.stopped = self.stopped or isinstance(effect, StopCompute)

    def on_resume(self, halt: Halt) -> None:
        self.restarts += 1


class EventuallyHalted(Checker):
    """Once the faults have healed, the halt ends, is closed, and the money has stopped."""

    def on_end(self, halt: Halt) -> None:
        if self.world.hands.dark:
            if self.world.cloud.ended_at:
                return  # Our own machine went down: the end that nobody on it can see.
            self.broken("dark, but the invoice never ended")
        if halt.stage is not Stage.HALTED:
            self.broken(f"still {halt.stage.name} long after the faults healed")
        if not self.world.hands.closed:
            self.broken("halted, but never closed")


CHECKERS: tuple[type[Checker], ...] = (
    EscalationNeverGoesBack,
    HaltedIsTrue,
    JournalBeforeAct,
    SigkillAfterGrace,
    GraceIsKept,
    EveryStageDoesItsWork,
    DeadlinesMove,
    NewcomersAreAnswered,
    StopsAreBounded,
    NeverGivesUp,
    ReadsKeepComing,
    NothingIsDestroyedBlindly,
    RefusalsAreReadBack,
    PagesOncePerEntry,
    OnlyWhatIsOurs,
    MoneyIsReachedInTime,
    EventuallyHalted,
)


class Invariants:
    """All checkers as one judge; also notes which cells of the table were visited."""

    def __init__(self, world: World) -> None:
        self.checkers = [checker(world) for checker in CHECKERS]
        self.cells: set[tuple[Stage, Fact]] = set()

    def on_step(self, step: Step) -> None:
        self.cells.add((step.before.stage, step.fact))
        for checker in self.checkers:
            checker.on_step(step)

    def on_effect(self, effect: HaltEffect, halt: Halt, journaled: object) -> None:
        for checker in self.checkers:
            checker.on_effect(effect, halt, journaled)

    def on_resume(self, halt: Halt) -> None:
        for checker in self.checkers:
            checker.on_resume(halt)

    def on_end(self, halt: Halt) -> None:
        for checker in self.checkers:
            checker.on_end(halt)
