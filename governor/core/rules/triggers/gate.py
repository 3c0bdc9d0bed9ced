"""After its first steps: the run's cost at its goal is above what it may cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from governor.core.base.findings import QUIET, Finding, Reading, firing
from governor.core.base.policy import Budget, Expected
from governor.core.base.reservoir import Reservoir
from governor.core.base.units import (
    MICROS_PER_USD,
    MTOK,
    NS_PER_HOUR,
    NS_PER_S,
    MonoNs,
    UsdMicros,
    format_usd,
    per_mtok_text,
)
from governor.core.events.inputs import Beat, Event, PhaseChange, Step
from governor.core.money.forecast import total_ahead
from governor.core.money.token_price import per_mtok
from governor.core.rules.trigger import Key, Trigger, is_step_time
from governor.core.rules.trigger_state import ADDED, UNKEPT
from governor.core.runs.intake import PAUSES, is_lead
from governor.core.runs.state import Run

TIMES_MAX: Final = 512  # Step times that the forecast is made from: the last ones.
PATIENCE: Final = 4  # It is asked until so many times its steps or tokens have passed.
# Who is asked again and again is wrong sometime: where the cost is just the ceiling, an interval that holds 90 % once
# says "above" in 28 of 100 runs by the 60th time. This much wider it is 10 (simulated; up to 16 where a step resembles
# the one before, r 0.5). It is the crossing of an Ornstein-Uhlenbeck process whose clock is the logarithm of the steps.
WIDER: Final = 1.6
# A machine beside others is a few percent slower the next time. The ceiling that is proposed leaves a tenth for that.
ROOM: Final = 10
TOKENS_AFTER_STEPS: Final = 20  # A run that has told no tokens by then tells none.
CENT: Final = MICROS_PER_USD // 100

PASSED: Final = "gate_passed"
UNSURE: Final = "gate_unsure"
NOT_ASKED: Final = "gate_not_asked"
ABOVE: Final = "gate"  # Why the run is halted.

_OBSTACLES: Final = {
    "no_goal": "the run has no goal: pass total_steps to trainer_shim.attach(), or set [budget] tokens in the policy",
    "no_limit": "there is nothing to compare with: set a ceiling, or a price in [expected] of the policy",
    "no_tokens": "the run has told no tokens: have the trainer tell them, or give it a goal and the gate in steps",
    "price_unknown": "the price of this machine is unknown",
    "few_steps": "too few steps have told their time",
}


@dataclass(slots=True)
class _State:
    answer: str = ""  # "": not asked yet.
    is_over: bool = False  # It is asked no more.
    steps: int = 0  # Of this attempt that are past, from the first that was seen.
    first_step: int | None = None
    first_number: int = 0  # Its number in the attempt, as far as steps have one.
    from_step: int | None = None  # Where its tokens were first counted, and how many there were.
    from_tokens: int = 0
    own_s: Reservoir = field(default_factory=lambda: Reservoir(TIMES_MAX))
    # What it was when it was asked last: the run's cost at its goal, in micro-dollars.
    low: int = 0
    mid: int = 0
    high: int = 0
    spent: int = 0
    reserve: int = 0
    done: int = 0  # In the goal's unit.
    spent_before: int = 0  # By the attempts before, and at the last step of this one that was seen.
    spent_last: int = 0
    launch: int = 0  # What this attempt had cost at its first step.
    goal: int = 0
    unit: str = ""
    left_tokens: int = 0  # To the goal.
    # From where its spend begins. An older journal has it under another name.
    goal_tokens: int = field(default=0, metadata=ADDED)
    began_tokens: int | None = None  # The first total that was seen, without its step. Over all attempts.
    line: str = field(default="", metadata=UNKEPT)  # What a person is told. Not stored: it has been told.
    last: Step | None = field(default=None, metadata=UNKEPT)  # The lead rank's.
    paused: bool = field(default=False, metadata=UNKEPT)  # The lead rank paused since its last step.


@dataclass(frozen=True, slots=True)
class _Goal:
    steps_left: float
    done: int  # In its unit.
    whole: int
    unit: str
    tokens: int | None  # At the goal. None: not known.


class Gate(Trigger):
    """What the run will have cost at its goal, forecast from its first steps, is above its ceiling.

    Asked in each attempt after `steps` steps, or `tokens` tokens. The cost is what is spent, plus the steps that are
    left at the mean time of the steps so far and the present rate. The goal is the `total_steps` of the trainer or the
    `tokens` of `[budget]`, whichever comes first. It fires when even the lower end of the forecast is above the
    ceiling, less what is reserved for the halt: one-sided, 90 % over all the times that it is asked. The first step is
    left out; so are saves, and steps with an evaluation.

    Without a ceiling it is compared with the plan: `[expected] usd_per_mtok_all_in` times all tokens that the run pays
    for. Where only `usd_per_mtok` is planned, which has no start, the cost of what is left is compared with that times
    the tokens left.

    QUIET once the upper end fits. In between it is UNKNOWN and asked again at each step, up to four times as many. It
    is answered once in an attempt. Resets at each attempt.
    """

    KIND: ClassVar[str] = "gate"
    KEYS: ClassVar[tuple[Key, ...]] = (
        Key("steps", "count", 20, "Steps of the attempt after which it is asked.", 1),
        Key("tokens", "count", 0, "Tokens after which it is asked instead; 0: by steps."),
    )
    STEPPED: ClassVar[bool] = True
    LISTENS: ClassVar[frozenset[type]] = frozenset({Step, Beat, PhaseChange})
    PLANNED: ClassVar[bool] = True
    MEANING: ClassVar[tuple[str, ...]] = (
        "after {steps} steps of an attempt ({tokens} tokens, if that is not 0) the cost of the whole run is above its "
        "ceiling ({ceiling}) with 90 % certainty",
        "Without a ceiling it is compared with what [expected] says.",
    )

    def __init__(self, params: Mapping[str, Any]) -> None:
        budget: Budget = params["budget"]
        expected: Expected = params["expected"]
        self._ceiling, self._tokens_goal = budget.ceiling_usd_micros, budget.tokens
        self._per_mtok, self._all_in = expected.usd_micros_per_mtok, expected.usd_micros_per_mtok_all_in
        self._after_steps: int = params["steps"]
        self._after_tokens: int = params["tokens"]
        self._state: _State = self._fresh()

    def _fresh(self) -> _State:
        return _State()

    def new_attempt(self, run: Run) -> None:
        spent, began = self._state.spent_last, self._state.began_tokens
        super().new_attempt(run)
        self._state.spent_before, self._state.began_tokens = spent, began

    # --- the steps ----------------------------------------------------------------------------------------------

    def observe(self, event: Event, run: Run) -> bool | None:
        state = self._state
        state.spent_last = run.spend_usd_micros
        if state.is_over:
            return False
        if isinstance(event, Step):
            rank = run.ranks.get(event.rank)
            leads = event.connection is None or (rank is not None and is_lead(run, rank))
            return leads and self._see(event, run)
        if isinstance(event, Beat | PhaseChange) and event.phase in PAUSES:
            state.paused = state.paused or (state.last is not None and event.rank == state.last.rank)
        return None

    def _see(self, event: Step, run: Run) -> bool:
        state, last = self._state, self._state.last
        if last is None or event.at != last.at:  # Of records that arrive together the first counts.
            state.last = event
        number = event.attempt_step if event.attempt_step is not None else event.step
        if state.first_step is None:
            state.first_step, state.first_number = event.step, number
            state.launch = max(0, run.spend_usd_micros - state.spent_before)
        state.steps = max(state.steps, number - state.first_number + 1)
        if state.began_tokens is None and run.tokens_total is not None:
            state.began_tokens = max(0, run.tokens_total - (event.tokens or 0))
        counted = run.counted_step
        # Until all ranks have told their tokens, those of the attempt before stand there.
        if state.from_step is None and counted is not None and state.first_step <= counted <= event.step:
            state.from_step, state.from_tokens = counted, run.tokens_total or 0
        own_s = _own_s(event, last) if state.steps > 1 and not state.paused else None
        state.paused = False
        if own_s is not None and is_step_time(own_s):
            state.own_s.add(own_s)
        return self._ask(run)

    # --- the answer ---------------------------------------------------------------------------------------------

    def _ask(self, run: Run) -> bool:
        """Ask, if it is time to. True: the finding may be another."""
        state = self._state
        passed, need = state.steps, self._after_steps
        if self._after_tokens:
            passed, need = (run.tokens_total or 0) - state.from_tokens, self._after_tokens
        if run.unheard_ns is not None:
            return False  # It has paid for steps that are not read yet.
        goal = self._goal(run)
        obstacle = self._obstacle(run, goal)
        if obstacle is None and passed < need:
            return False
        state.is_over = passed >= PATIENCE * need
        if obstacle is None:
            obstacle = self._weigh(run, goal) if goal is not None else "few_steps"
        if obstacle is not None:
            self._tell(NOT_ASKED, f"the gate cannot be asked: {_OBSTACLES[obstacle]}", "the run goes on without it")
            return True
        limit = self._limit()
        if state.low > limit:
            state.answer, state.is_over = ABOVE, True
        elif state.high <= limit:
            self._tell(PASSED, f"gate passed: lands at {self._landing()} after {state.goal:,} {state.unit}")
            state.is_over = True
        else:
            until = f"asked again at each step until {PATIENCE * need:,} {'tokens' if self._after_tokens else 'steps'}"
            said = f"the gate is not certain after {state.steps:,} steps: lands at {self._landing()}; "
            self._tell(UNSURE, said + ("the run goes on" if state.is_over else until))
        return True

    def _tell(self, answer: str, line: str, at_last: str = "") -> None:
        """Tell a person when the answer is another, and when it is the last."""
        state = self._state
        if answer != state.answer or state.is_over:
            state.answer, state.line = answer, f"{line}; {at_last}" if state.is_over and at_last else line

    def _goal(self, run: Run) -> _Goal | None:
        """The goal that comes first. None: there is none, or not known how far it is."""
        total, per_step = run.tokens_total, self._tokens_per_step(run)
        goals = []
        if run.total_steps is not None and run.step is not None:
            left = max(0, run.total_steps - run.step)
            tokens = None if total is None or per_step is None else total + round(left * per_step)
            goals.append(_Goal(left, run.step, run.total_steps, "steps", tokens))
        if self._tokens_goal is not None and total is not None and per_step is not None:
            left_tokens = max(0, self._tokens_goal - total)
            goals.append(_Goal(left_tokens / per_step, total, self._tokens_goal, "tokens", self._tokens_goal))
        return min(goals, key=lambda goal: goal.steps_left, default=None)

    def _tokens_per_step(self, run: Run) -> float | None:
        state = self._state
        if state.from_step is None or run.tokens_total is None or run.counted_step is None:
            return None
        steps, tokens = run.counted_step - state.from_step, run.tokens_total - state.from_tokens
        return tokens / steps if steps > 0 and tokens > 0 else None

    def _obstacle(self, run: Run, goal: _Goal | None) -> str | None:
        """Why it cannot be asked, as far as waiting for its steps does not help."""
        if self._ceiling is None and self._per_mtok is None and self._all_in is None:
            return "no_limit"
        if goal is None and self._tokens_goal is None:
            return "no_goal"
        needs_tokens = goal is None or self._after_tokens > 0 or (self._ceiling is None and goal.tokens is None)
        by_then = TOKENS_AFTER_STEPS if self._after_tokens else self._after_steps
        if needs_tokens and self._tokens_per_step(run) is None and self._state.steps >= by_then:
            return "no_tokens"
        return None

    def _weigh(self, run: Run, goal: _Goal) -> str | None:
        """What the run will have cost at its goal. Returns why that is not known."""
        state, rate = self._state, run.spend_rate_usd_micros_per_hour
        if rate is None:
            return "price_unknown"
        left_s = total_ahead(list(state.own_s), goal.steps_left) if len(state.own_s) else None
        if left_s is None or left_s.low is None or left_s.high is None or (self._ceiling is None and not goal.tokens):
            return "few_steps"
        paid = run.paid_tokens
        spent = run.counted_usd_micros if self._ceiling is not None else run.spend_usd_micros - paid.paid_before
        per_s = rate * NS_PER_S / NS_PER_HOUR
        low_s, high_s = (left_s.mid + WIDER * (end - left_s.mid) for end in (left_s.low, left_s.high))
        state.low, state.mid, state.high = (
            spent + round(max(0.0, seconds) * per_s) for seconds in (low_s, left_s.mid, high_s)
        )
        state.spent, state.reserve = spent, run.reserve_usd_micros or 0
        state.done, state.goal, state.unit = goal.done, goal.whole, goal.unit
        if goal.tokens is not None:
            unpaid = paid.unpaid_tokens if paid.unpaid_tokens is not None else state.began_tokens or 0
            state.left_tokens, state.goal_tokens = goal.tokens - (run.tokens_total or 0), goal.tokens - unpaid
        return None

    def judge(self, at: MonoNs, run: Run) -> Finding:
        state = self._state
        if state.answer == ABOVE:
            # A ceiling that was raised meanwhile opens it.
            return self._above() if state.low > self._limit() else QUIET
        if state.answer == PASSED:
            return Finding(Reading.QUIET, PASSED, state.line) if state.line else QUIET
        return Finding(Reading.UNKNOWN, state.answer or "not_asked_yet", state.line)

    # --- its words ----------------------------------------------------------------------------------------------

    def _limit(self) -> int:
        """What the run may have cost at its goal."""
        if self._ceiling is not None:
            return self._ceiling - self._state.reserve
        if self._all_in is not None:
            return self._all_in * self._state.goal_tokens // MTOK
        return self._state.spent + (self._per_mtok or 0) * self._state.left_tokens // MTOK

    def _least(self, ceiling: UsdMicros) -> UsdMicros:
        """The ceiling under which the next launch passes with the gate's certainty, also with steps a tenth slower.

        It pays its start anew, and its halt may be reserved more.
        """
        state = self._state
        needed = state.high + max(0, state.high - state.spent) // ROOM + state.launch
        unreserved = max(ceiling - state.reserve, 1)
        return _in_cents(max(needed + state.reserve, -(-needed * ceiling // unreserved)))

    def _landing(self) -> str:
        whole = self._ceiling if self._ceiling is not None else self._limit()
        return f"{self._between()} of {format_usd(UsdMicros(whole))}{'' if self._ceiling is not None else ' planned'}"

    def _between(self) -> str:
        state = self._state
        low, mid, high = (format_usd(UsdMicros(value)) for value in (state.low, state.mid, state.high))
        return mid if low == high else f"{mid} ({low} to {high})"

    def _above(self) -> Finding:
        state, limit = self._state, self._limit()
        if self._ceiling is not None:
            reserved = f" less {format_usd(UsdMicros(state.reserve))} for its halt" if state.reserve else ""
            above = f"the ceiling {format_usd(self._ceiling)}{reserved}"
            least = self._least(self._ceiling)
            enough = f"a ceiling from {format_usd(least)} on (with room for steps {100 // ROOM} % slower)"
        else:
            above = f"the {format_usd(UsdMicros(limit))} that its plan expects"
            least = None
            enough = self._planned_enough()
        fits = self._fitting(limit)
        fewer = f", or a goal of {fits:,} {state.unit}" if fits is not None else ""
        goal = f"{state.goal:,} {state.unit}"
        return firing(
            ABOVE,
            f"after {state.steps:,} steps the run lands at {self._between()} at its goal of {goal}, above {above}; "
            f"what would do: {enough}{fewer}",
            {
                "landing_usd_micros": state.mid,
                "landing_low_usd_micros": state.low,
                "landing_high_usd_micros": state.high,
                "limit_usd_micros": limit,
                "ceiling_usd_micros": self._ceiling,
                "reserve_usd_micros": state.reserve,
                "enough_usd_micros": least,
                "goal": state.goal,
                "goal_unit": state.unit,
                "would_fit": fits,
                "steps": state.steps,
                "step_times": len(state.own_s),
            },
        )

    def _planned_enough(self) -> str:
        """The plan under which it passes."""
        state, is_all_in = self._state, self._all_in is not None
        usd_micros, tokens = (
            (state.high, state.goal_tokens) if is_all_in else (state.high - state.spent, state.left_tokens)
        )
        price = per_mtok_text(math.ceil(per_mtok(usd_micros, max(1, tokens)) or 0))
        return f"a plan from {price} per 1M tokens on{', all-in' if is_all_in else ''}"

    def _fitting(self, limit: int) -> int | None:
        """The goal that the ceiling pays for: of what is left, as much as the rest of it does. A plan has none."""
        state = self._state
        left = (state.goal - state.done) * max(0, limit - state.spent) // max(1, state.high - state.spent)
        return state.done + left if self._ceiling is not None and left > 0 else None


def _in_cents(usd_micros: int) -> UsdMicros:
    """Rounded up."""
    return UsdMicros(-(-usd_micros // CENT) * CENT)


def _own_s(event: Step, last: Step | None) -> float | None:
    """How long the step itself took. None: not known."""
    if (training_s := event.training_s) is not None:
        return training_s
    if last is None or last.rank != event.rank or event.step <= last.step:
        return None
    return (event.at - last.at) / NS_PER_S / (event.step - last.step)  # A log without step times: by arrival.
