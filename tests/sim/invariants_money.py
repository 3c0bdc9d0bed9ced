"""Invariants of the provider's ladder: stops, reads, rungs, and never giving up."""

from __future__ import annotations

from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.effects import CloseIncident, HaltEffect, Kill, ReadBilling, StopCompute
from governor.core.halt.table import STOP_ATTEMPTS_PER_RUNG_MAX, Fact, Halt, HaltState, StopTarget
from tests.sim.checker import DOWN_NS, Checker
from tests.sim.governor import GRID_NS, Step
from tests.sim.world import World

READS_PER_MINUTE_MAX = 60  # Polls every 2 s, and one beside each stop and after each answer.


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
        if halt.stage is not HaltState.NEEDS_HUMAN:
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
        if step.after.stage is HaltState.NEEDS_HUMAN:
            assert step.after.deadline is not None
            if step.after.deadline - self.world.now > max(self.plan.retry_max_ns, self.plan.verify_ns):
                self.broken("the next attempt is too far away")
        is_round = step.before.stage is HaltState.NEEDS_HUMAN and step.fact is Fact.DEADLINE
        if is_round and not any(isinstance(effect, StopCompute | Kill) for effect in step.effects):
            self.broken("a round in which nothing is tried")


class ReadsKeepComing(Checker):
    """While billing is in question every answer plans the next read, and reads do not multiply."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.reads_at: list[MonoNs] = []

    def on_step(self, step: Step) -> None:
        asking = step.before.stage in (HaltState.VERIFYING, HaltState.NEEDS_HUMAN)
        awaited = step.before.poll_due is None or step.at >= step.before.poll_due
        answered = step.fact in (Fact.BILLING_RUNNING, Fact.BILLING_UNKNOWN)
        is_due = asking and awaited and answered and self.plan.stop is not StopTarget.PROCESSES
        if is_due and not any(isinstance(effect, ReadBilling) for effect in step.effects):
            self.broken(f"{step.before.stage.name} stopped reading on {step.fact.name}")

    def on_effect(self, effect: HaltEffect, halt: Halt, journaled: object) -> None:
        if isinstance(effect, ReadBilling):
            self.reads_at = [at for at in self.reads_at if self.world.now - at < 60 * NS_PER_S]
            self.reads_at.append(self.world.now)
            if len(self.reads_at) > READS_PER_MINUTE_MAX:
                self.broken(f"{len(self.reads_at)} reads in a minute")


class TheEndIsNoticed(Checker):
    """From the first stop on, a read that says "ended" closes the incident there and then."""

    def on_step(self, step: Step) -> None:
        asking = step.before.stage in (HaltState.STOPPING, HaltState.VERIFYING, HaltState.NEEDS_HUMAN)
        if asking and step.fact is Fact.BILLING_ENDED and step.after.stage is not HaltState.HALTED:
            self.broken(f"billing ended, and {step.before.stage.name} went on")


class NothingIsDestroyedBlindly(Checker):
    """A rung is climbed only after a refusal that was read back, or after an accepted stop had its full time."""

    def on_step(self, step: Step) -> None:
        before, after = step.before, step.after
        if after.rung <= before.rung or after.stage is not HaltState.STOPPING:
            return
        if step.fact is not Fact.DEADLINE:
            self.broken(f"climbed to rung {after.rung} on {step.fact.name}")
        if before.stage is HaltState.VERIFYING and self.world.now - before.since < self.plan.verify_ns:
            self.broken(f"climbed to rung {after.rung} before the stop had its time")
        if before.stage is HaltState.STOPPING and before.stop_reply is not Fact.STOP_REFUSED:
            self.broken(f"climbed to rung {after.rung} without a refusal")


class RefusalsAreReadBack(Checker):
    """An answer other than "accepted" is followed by a look at billing before the next stop goes out."""

    unread = False

    def on_step(self, step: Step) -> None:
        bad = step.fact in (Fact.STOP_BUSY, Fact.STOP_REFUSED, Fact.STOP_UNKNOWN)
        if step.before.stage is HaltState.STOPPING and bad and step.before.stop_reply is None:
            self.unread = not any(isinstance(effect, ReadBilling) for effect in step.effects)
        if self.unread and any(isinstance(effect, StopCompute) for effect in step.effects):
            self.broken("the next stop went out before billing was read")

    def on_resume(self, halt: Halt) -> None:
        self.unread = False  # A resumed STOPPING reads by itself.


class OnlyWhatIsOurs(Checker):
    """A halt of processes never touches the machine, and an incident is closed only when it is halted."""

    def on_effect(self, effect: HaltEffect, halt: Halt, journaled: object) -> None:
        if self.plan.stop is StopTarget.PROCESSES and isinstance(effect, StopCompute | ReadBilling):
            self.broken(f"{type(effect).__name__} for a halt of processes")
        if isinstance(effect, CloseIncident) and halt.stage is not HaltState.HALTED:
            self.broken("closed before it was halted")


class MoneyIsReachedInTime(Checker):
    """From the verdict to the first stop: the graces, and what restarts cost. Nothing else may hold it up."""

    stopped = False
    verdict_at: MonoNs | None = None
    restarts = 0

    def on_step(self, step: Step) -> None:
        if self.verdict_at is None:
            self.verdict_at = self.world.now
        allowed = self.plan.grace_ns + self.plan.others_ns + self.plan.term_grace_ns + self.plan.kill_grace_ns
        # A restart costs its own time, and renews the deadline of the stage that it interrupts.
        allowed += 4 * GRID_NS + self.restarts * (
            DOWN_NS + GRID_NS + max(self.plan.term_grace_ns, self.plan.kill_grace_ns)
        )
        live = step.before.stage is not HaltState.HALTED
        waits = self.plan.stop is not StopTarget.PROCESSES and not self.stopped
        if live and waits and self.world.now - self.verdict_at > allowed:
            self.broken("the first stop is late")

    def on_effect(self, effect: HaltEffect, halt: Halt, journaled: object) -> None:
        self.stopped = self.stopped or isinstance(effect, StopCompute)

    def on_resume(self, halt: Halt) -> None:
        self.restarts += 1
