"""The real engine in the simulated world: frames in, effects out, snapshots through JSON, restored like after a crash.

The table is the same; what is under test here is everything around it: which event becomes which fact and when, what
is kept before what is done, and what a restart takes up again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from governor.core.base.findings import Response
from governor.core.base.identity import ConnectionId
from governor.core.base.policy import AT_ONCE, HaltSettings, Mode, Policy, PolicySet, Rule
from governor.core.base.units import NS_PER_S, BootNs, DurationNs, MonoNs, UsdMicros, WallNs, accrue
from governor.core.engine import step as engine
from governor.core.engine.halt_plan import STOP_REPLY_NS
from governor.core.engine.incident_json import incident_of
from governor.core.engine.node import Node, NodeFacts, new_node
from governor.core.engine.resume import restore_incidents, restore_runs
from governor.core.events.effects import (
    Ask,
    CloseIncident,
    Confirm,
    Effect,
    HaltEffect,
    Kill,
    Page,
    PersistIncident,
    PersistRuns,
    ReadBilling,
    StopCompute,
    Term,
)
from governor.core.events.inputs import Ack, BillingRead, Event, Hello, ProcessesSeen, StopReplied, Tick, TrainerExited
from governor.core.events.inputs import Step as StepFrame
from governor.core.events.operators import OperatorHalt
from governor.core.halt.table import Fact, Halt, HaltPlan, HaltState, StopTarget, billing_fact, open_halt, stop_fact
from governor.core.money.charges import UNALLOCATED, Charge
from tests.sim.faults import INCIDENT, RUN, Schedule, draw_schedule
from tests.sim.governor import GRID_NS, Step
from tests.sim.schedule import Result, run_schedule
from tests.sim.trainer import ACK_FACTS, UID, Process, hello
from tests.sim.world import World

WALL_NS = 1_700_000_000 * NS_PER_S
PRICE = UsdMicros(98_320_000)  # Of an 8xH100 node, per hour.
TRAINED_NS = 400 * NS_PER_S  # Unsaved work before the verdict: longer than any grace, so that no grace is cut short.

_HALT_EFFECTS = (Ask, Term, Kill, StopCompute, ReadBilling, Page, CloseIncident)


def engine_schedule(rng: Random) -> Schedule:
    """As any other, with what the engine settles by itself settled as it does."""
    drawn = draw_schedule(rng)
    plan = replace(
        drawn.plan,
        save_grace_ns=drawn.plan.grace_ns,
        stop=StopTarget.INSTANCE if drawn.plan.stop is StopTarget.JOB else drawn.plan.stop,
        stop_reply_ns=STOP_REPLY_NS,
        rung_max=max(1, drawn.plan.rung_max),
        others_ns=DurationNs(0),  # Its other nodes are engines too: tests/sim/nodes.
    )
    return replace(drawn, plan=plan)


@dataclass(frozen=True, slots=True)
class Kept:
    """What the journal holds, as text; `halt` is what a restart would read from it."""

    halt: Halt
    incident: str
    runs: Mapping[str, str]
    charged: Mapping[str, Charge]  # By its id: as the journal's table has them.
    began_at: MonoNs  # When the node's time began to be the run's.
    lives: int


FROM_TERMED = (HaltState.TERMED, HaltState.KILLED, HaltState.STOPPING, HaltState.VERIFYING, HaltState.NEEDS_HUMAN)


class EngineDriver:
    """Feeds one run of the engine; remembers the last snapshots as the journal would."""

    trained_ns: int = TRAINED_NS  # Before the verdict.

    def __init__(self, world: World) -> None:
        self.world = world
        self.plan = world.plan
        self.began_at = MonoNs(world.now - self.trained_ns)
        self.lives = 1
        self.node = self._new_node(BootNs(self.began_at))
        self._kept: Kept | None = None
        self._runs: dict[str, str] = {}
        self._charged: dict[str, Charge] = {}
        self._closed: Halt | None = None  # From the journal, after a restart: such an incident is not taken up again.

    @property
    def halt(self) -> Halt:
        if self._closed is not None:
            return self._closed
        managed = self.node.runs.get(RUN)
        if managed is None or managed.incident is None:
            return open_halt(INCIDENT, RUN, "", MonoNs(0))
        return managed.incident.halt

    # --- what happens ------------------------------------------------------------------------------------

    def verdict(self, at: MonoNs, *, asked: bool) -> Sequence[Step]:
        if self.halt.stage is not HaltState.ARMED:
            self._charge(at)
            return self._put(OperatorHalt(at, RUN, "by hand", UID), None, at)
        self._hear(self._tick(self.began_at))
        for first_hello in self._hellos(self.began_at, self.world.trainer.processes):
            self._hear(first_hello)
        self._hear(self._frame(self.began_at, 1, 2.0))
        fact = Fact.VERDICT if asked else Fact.VERDICT_NO_ASK
        steps = self._put(self._fault(at), fact, at)
        incident = self.node.runs[RUN].incident
        assert incident is not None
        self._check_plan(incident.plan)
        return steps

    def _check_plan(self, plan: HaltPlan) -> None:
        assert replace(plan, checkpoint=self.plan.checkpoint) == self.plan, "the engine planned otherwise"

    def _fault(self, at: MonoNs) -> Event:
        """What the verdict comes from."""
        self._hear(self._tick(at))
        return self._frame(at, 2, float("nan"))

    def clock(self, at: MonoNs) -> Sequence[Step]:
        return self._put(self._tick(at), Fact.DEADLINE, at)

    def event(self, event: Event) -> Sequence[Step]:
        self._charge(self.world.now)
        return self._put(event, self._fact_of(event), event.at)

    def kept(self) -> object:
        return self._kept

    def resume(self, kept: object, at: MonoNs) -> tuple[HaltEffect, ...]:
        assert isinstance(kept, Kept)
        self._kept, self._runs, self._charged = kept, dict(kept.runs), dict(kept.charged)
        self.began_at, self.lives = kept.began_at, kept.lives + 1
        self.node = self._new_node(BootNs(at))
        effects = restore_runs(self.node, [json.loads(text) for text in kept.runs.values()], BootNs(at), at)
        if kept.halt.stage is HaltState.HALTED:
            self._closed = kept.halt
            return (CloseIncident(INCIDENT, RUN),)  # Closed with the row; there is nothing left to be done.
        # A deadline that passed meanwhile is fed by the clock, in its turn; here the ranks come back.
        effects += restore_incidents(self.node, [json.loads(kept.incident)], at, WallNs(WALL_NS + at))
        self._remember(effects)
        for hello_again in self._hellos(at, self.world.trainer.alive()):
            effects += self._hear(hello_again)
        return _ordered(effects)

    def _charge(self, at: MonoNs) -> None:
        """The last tick before this moment: the grid's others would change nothing."""
        deadline = self.halt.deadline
        if self.halt.stage is not HaltState.HALTED:
            self._hear(self._tick(at if deadline is None or at < deadline else MonoNs(deadline - 1)))

    # --- the engine ----------------------------------------------------------------------------------------

    def _put(self, event: Event, fact: Fact | None, at: MonoNs) -> Sequence[Step]:
        before = self.halt
        effects = self._hear(event)
        if before.stage is HaltState.HALTED:
            return ()  # Whoever is launched now is another attempt, with a halt of its own if need be.
        ordered = _ordered(effects)
        if fact is None:
            assert self.halt == before, f"{event} moved the halt"
            assert not ordered or isinstance(event, OperatorHalt | Hello), f"{event} ordered {ordered}"
            # The letter once more, for a rank that came in the middle of the asking.
            return (Step(at, Fact.RECEIVED, before, before, ordered),) if ordered else ()
        return (Step(at, fact, before, self.halt, ordered),)

    def _hear(self, event: Event) -> list[Effect]:
        effects = self._decide(event)
        kept_first = [type(effect) for effect in effects if isinstance(effect, (PersistIncident, *_HALT_EFFECTS))]
        assert not kept_first or kept_first[0] is PersistIncident or isinstance(event, Hello), "done before it is kept"
        for position, effect in enumerate(effects):
            later = effects[position + 1 :]
            if isinstance(effect, Confirm) and isinstance(event, Ack):
                assert not any(isinstance(one, PersistIncident) for one in later), "confirmed before it is kept"
        self._remember(effects)
        return effects

    def _decide(self, event: Event) -> list[Effect]:
        return engine.step(self.node, event)

    def _remember(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, PersistRuns):
                self._runs |= {name: json.dumps(snapshot) for name, snapshot in effect.runs.items()}
                self._charged |= {charge.charge_id: charge for charge in effect.charges}
                self._check_charges(effect)
            elif isinstance(effect, PersistIncident):
                text = json.dumps(effect.snapshot)
                halt = incident_of(json.loads(text)).halt
                if effect.incident_id != INCIDENT:
                    continue
                self._kept = Kept(halt, text, dict(self._runs), dict(self._charged), self.began_at, self.lives)
                if effect.closed:
                    self._closed = halt
                    self._check_ledger(effect.snapshot["spend_usd_micros"], self.world.now)

    def _check_charges(self, effect: PersistRuns) -> None:
        """What is kept of a moment is of one moment: the rows in the journal are the spend, to the micro-dollar.

        The counters are fed while charges grow. What is compared with them are the rows that commits took along, over
        every life of the governor: a row that no commit has, or a life's counter that was not taken up, is seen here.
        """
        charged: Counter[str] = Counter()
        for charge in self._charged.values():
            charged[charge.payer.run] += charge.usd_micros
        spent = self.node.ledger.total()
        assert spent == charged.total(), f"ledger {spent}, charges {charged.total()}"
        for name, snapshot in effect.runs.items():
            kept = snapshot["unallocated_usd_micros" if name == UNALLOCATED else "spend_usd_micros"]
            assert kept == charged[name], f"kept of {name or 'nobody'}: {kept}, charges {charged[name]}"

    def _check_ledger(self, spent: int, at: MonoNs) -> None:
        """Price x time, exactly, as of some moment of the last tick, over every life of the governor."""
        exact, least = self._billed(at), self._billed(MonoNs(at - GRID_NS))
        assert least <= spent <= exact, f"ledger {spent}, price x time {exact}"

    def _billed(self, at: MonoNs) -> int:
        return accrue(PRICE, at - self.began_at, 0)[0]

    def _fact_of(self, event: Event) -> Fact | None:
        match event:
            case Ack():
                # On a connection that was never heard of since the restart it is nobody's.
                return ACK_FACTS[event.what] if event.connection in self.node.connections else None
            case ProcessesSeen():
                return Fact.RESPAWNED if event.respawned else Fact.EXITED
            case TrainerExited():
                # Only the ranks: once a scan runs, it alone tells who else is gone.
                return Fact.EXITED if self.halt.stage in (HaltState.ASKED, HaltState.SAVING) else None
            case Hello():
                managed = self.node.runs.get(RUN)
                incident = managed.incident if managed is not None else None
                known = incident is None or event.peer.process in incident.rank_processes
                return Fact.RESPAWNED if not known and self.halt.stage in FROM_TERMED else None
            case StopReplied():
                return stop_fact(event.answer, event.retryable)
            case BillingRead():
                return billing_fact(event.answer)
            case _:
                raise AssertionError(f"the world sent {event}")

    # --- what the engine knows -------------------------------------------------------------------------------

    def _new_node(self, boot: BootNs) -> Node:
        plan, asked = self.plan, self.world.schedule.asked
        settings = HaltSettings(
            stop="processes" if plan.stop is StopTarget.PROCESSES else "instance",
            grace_ns=plan.grace_ns,
            term_grace_ns=plan.term_grace_ns,
            kill_grace_ns=plan.kill_grace_ns,
            destroy=plan.rung_max == 2,
        )
        checkpoint = plan.checkpoint if asked else "none"
        facts = NodeFacts(
            "node-1",
            "boot-1",
            PRICE,
            "simulated",
            cloud="simulated",
            instance_id="i-1",
            can_stop=True,
            said_running=True,
            stop_bound_ns=plan.verify_ns,
        )
        facts = self._priced(facts, boot)
        policy = self._policy(Policy(name="p", halt=settings), facts, checkpoint)
        return new_node(facts, PolicySet((policy,), "digest"), boot, WallNs(WALL_NS + boot))

    def _priced(self, facts: NodeFacts, boot: BootNs) -> NodeFacts:
        """What a governor that starts now learns of the machine's price."""
        return facts

    def _policy(self, policy: Policy, facts: NodeFacts, checkpoint: str) -> Policy:
        """What the run is judged by."""
        rule = Rule("nan", "nonfinite", {}, AT_ONCE, Response.HALT, Mode.ENFORCE, checkpoint)
        return replace(policy, rules=(rule,))

    def _tick(self, at: MonoNs) -> Tick:
        return Tick(at, BootNs(at), WallNs(WALL_NS + at))

    def _hellos(self, at: MonoNs, processes: Sequence[Process]) -> list[Hello]:
        ranks = [process for process in processes if process.role == "rank" and not process.newcomer]
        return [
            hello(at, process, number, world_size=self.world.schedule.ranks)
            for number, process in enumerate(ranks, start=1)
        ]

    def _frame(self, at: MonoNs, number: int, loss: float) -> StepFrame:
        return StepFrame(at, ConnectionId(1), RUN, 0, number, attempt_step=number, loss=loss, loss_expected=True)


def _ordered(effects: Sequence[Effect]) -> tuple[HaltEffect, ...]:
    return tuple(effect for effect in effects if isinstance(effect, _HALT_EFFECTS))


def run_engine_schedule(seed: int) -> Result:
    """As run_schedule, with the engine in the table's place."""
    return run_schedule(seed, EngineDriver, draw=engine_schedule)
