"""What a policy would have saved, in dollars of the ledger.

Each charge of a run is cut where its recording begins and ends and where a policy would have halted it, by
`core.money.reports.cost.clip`. The parts of a charge add up to it, so the sums of the bill are those of the ledger.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from governor.core.base.units import NS_PER_S, DurationNs, MonoNs
from governor.core.events.ends import COMPLETED
from governor.core.money.charges import Charge
from governor.core.money.reports.cost import clip
from governor.replay.compare import halts
from governor.replay.play import Replay, ReplayVerdict
from governor.replay.stretches import Span, Stretches, merged

if TYPE_CHECKING:
    from governor.adapters.journal.run_ends import HaltRow, RunRow  # They bring sqlite3, which few replays need.

# A run is persisted every ten seconds. One that was not for so long has no governor any more.
UNSEEN_NS: Final = 60 * NS_PER_S
HEALTHY: Final = "healthy"
TROUBLED: Final = "troubled"

# By incident, and when it opened: whether a person called its halt right.
Marks = Mapping[tuple[str, int], bool]
NO_MARKS: Final[Marks] = {}


# --- how a run ended, and what that says of it


@dataclass(frozen=True, slots=True)
class Ending:
    """`role`: healthy, troubled, or None where nobody knows."""

    text: str
    role: str | None = None


def ending_of(run: RunRow | None, halted: Sequence[HaltRow], now: int, marks: Marks = NO_MARKS) -> Ending:
    """How a run ended, by the journal. `halted`: its halts, the latest last. `now`: wall time.

    Healthy is what ended well or still trains, and was not halted. A halt says nothing of the run until it is marked.
    """
    last = halted[-1] if halted else None
    role = None
    if last is not None and (is_right := marks.get((last.incident_id, last.opened_wall))) is not None:
        role = TROUBLED if is_right else HEALTHY
    if run is None:
        return Ending("unknown", role)
    went_on = last is not None and max(run.began_wall, run.ended_wall) > (last.closed_wall or last.opened_wall)
    well = HEALTHY if last is None else role
    if run.has_completed:
        return Ending(COMPLETED, well)
    if last is not None and not went_on:
        return Ending(f"halted by {last.rule}" if last.rule is not None else "halted by hand", role)
    if run.is_alive:
        is_seen = now - run.wall < UNSEEN_NS
        return Ending("still running", well) if is_seen else Ending("not seen to its end", role)
    if run.exit_code or run.cause is not None:
        code = f", exit code {run.exit_code}" if run.exit_code else ""
        return Ending(f"failed{code}", role)
    return Ending("ended", role)


# --- where each policy would have halted


@dataclass(frozen=True, slots=True)
class FirstHalt:
    """A policy's first halt of an attempt: after it, nothing of that attempt would have happened.

    `after`: the attempt's time that it cuts off, on the wall clock. It is empty where the attempt ended there.
    """

    verdict: ReplayVerdict
    after: Span


class PolicyHalts(NamedTuple):
    """The first halt of each attempt, in their order: of all rules, and of those that enforce."""

    of_all: Sequence[FirstHalt] = ()
    enforced: Sequence[FirstHalt] = ()

    def reaching(self, since: int) -> PolicyHalts:
        """Those of attempts that train behind this time. Of the others no dollar is told."""
        return PolicyHalts(*([one for one in group if one.after.until > since] for group in self))


def policy_halts(replay: Replay, stretches: Stretches, policy: str) -> PolicyHalts:
    """Where a policy would have halted a recorded run: once an attempt, which would be launched again all the same."""
    found = halts(replay.verdicts, policy)
    enforced = [verdict for verdict in found if verdict.mode == "enforce"]
    return PolicyHalts(_of_attempts(found, replay, stretches), _of_attempts(enforced, replay, stretches))


def _of_attempts(verdicts: Sequence[ReplayVerdict], replay: Replay, stretches: Stretches) -> list[FirstHalt]:
    """A recording has times: seconds since its first line."""
    first: dict[int, FirstHalt] = {}
    for verdict in verdicts:
        if verdict.t is None:
            continue
        at = MonoNs(replay.clock.began + round(verdict.t * NS_PER_S))
        number = stretches.attempt_at(at)
        if number is not None and number not in first:
            first[number] = FirstHalt(verdict, stretches.rest_of(number, at))
    return [first[number] for number in sorted(first)]


# --- money


@dataclass
class Bill:
    """The money of one run in micro-dollars: recorded or not, and of the recorded part what came after halts.

    `recorded`: wall time. `after`: by any key, the time after each of some halts. Where two of these overlap, because
    the clock was set back, the first has the money.
    """

    recorded: Sequence[Span] = ()
    after: Mapping[object, Sequence[Span]] = field(default_factory=dict)
    total_usd_micros: int = 0
    recorded_usd_micros: int = 0
    unrecorded_usd_micros: int = 0
    after_usd_micros: dict[object, list[int]] = field(default_factory=dict)  # For each of the halts.
    before_usd_micros: dict[object, int] = field(default_factory=dict)  # After none of them.

    def __post_init__(self) -> None:
        spans = merged(self.recorded)
        self._begins, self._ends = [span.since for span in spans], [span.until for span in spans]
        self._cuts = sorted({at for group in (spans, *self.after.values()) for span in group for at in span})
        self.after_usd_micros = {key: [0] * len(group) for key, group in self.after.items()}
        self.before_usd_micros = dict.fromkeys(self.after, 0)

    def add(self, charge: Charge) -> None:
        """Enter a charge of the run."""
        self.total_usd_micros += charge.usd_micros
        for piece in self._pieces(charge):
            at, amount = int(piece.from_wall), int(piece.usd_micros)
            if not self._is_recorded(at):
                self.unrecorded_usd_micros += amount
                continue
            self.recorded_usd_micros += amount
            for key, group in self.after.items():
                halt = next((number for number, span in enumerate(group) if span.since <= at < span.until), None)
                if halt is None:
                    self.before_usd_micros[key] += amount
                else:
                    self.after_usd_micros[key][halt] += amount

    def _pieces(self, charge: Charge) -> Iterator[Charge]:
        """What a launch or a checkpoint costs is of one moment, and stays whole."""
        begin, end = int(charge.from_wall), int(charge.to_wall)
        inner = self._cuts[bisect_right(self._cuts, begin) : bisect_left(self._cuts, end)]
        if not inner:
            yield charge
            return
        for since, until in zip([begin, *inner], [*inner, end], strict=True):
            yield clip(charge, since, until)

    def _is_recorded(self, at: int) -> bool:
        found = bisect_right(self._begins, at) - 1
        return found >= 0 and at < self._ends[found]


# --- the bill of every run, and its sums


@dataclass(frozen=True, slots=True)
class RecordingFacts:
    """What a recording lacks. `problem`: the first line of it that could not be read."""

    records: int
    gaps: int
    lines_lost: int
    begins_late: bool  # Its oldest segments are gone.
    ends_at_halt: bool
    is_cut: bool
    clock_set_ns: DurationNs
    problem: str | None


@dataclass(frozen=True, slots=True)
class RunBill:
    """One run of the window. `halts`: by policy; empty without a recording."""

    run: str
    ending: Ending
    bill: Bill
    recording: RecordingFacts | None = None
    halts: Mapping[str, PolicyHalts] = field(default_factory=dict)
    unpriced_ns: DurationNs = DurationNs(0)  # Of its time, what no price is known for.

    @property
    def is_priced(self) -> bool:
        """Whether it is known what it cost. Without a price nothing is charged: the ledger's 0 is unknown then."""
        return self.bill.total_usd_micros != 0 or not self.unpriced_ns

    def before_usd_micros(self, policy: str) -> int:
        """Of what is recorded, what this policy would have spent all the same."""
        return self.bill.before_usd_micros.get((policy, False), self.bill.recorded_usd_micros)

    def after_usd_micros(self, policy: str, *, enforced: bool = False) -> list[int]:
        """For each of its halts, what was spent after it."""
        return self.bill.after_usd_micros.get((policy, enforced), [])


def cut_off(halts: Mapping[str, PolicyHalts]) -> dict[object, Sequence[Span]]:
    """The time after each halt, under the keys by which RunBill asks for its money."""
    return {
        (policy, enforced): [halt.after for halt in group]
        for policy, groups in halts.items()
        for enforced, group in zip((False, True), groups, strict=True)
    }


@dataclass(slots=True)
class RuleSum:
    """The attempts that a rule would have been the first to halt, and their dollars after that."""

    policy: str
    rule: str
    mode: str
    halts: int = 0
    healthy: int = 0  # Of healthy runs.
    troubled: int = 0
    after_usd_micros: int = 0
    is_priced: bool = False  # It is known of one of them what it cost.


def sums_by_rule(runs: Iterable[RunBill], policies: Sequence[str]) -> list[RuleSum]:
    """By policy in this order and by rule, the most dollars first."""
    sums: dict[tuple[str, str, str], RuleSum] = {}
    for run in runs:
        for policy, groups in run.halts.items():
            for halt, after in zip(groups.of_all, run.after_usd_micros(policy), strict=True):
                key = policy, halt.verdict.rule, halt.verdict.mode
                one = sums.setdefault(key, RuleSum(*key))
                one.halts += 1
                one.healthy += run.ending.role == HEALTHY
                one.troubled += run.ending.role == TROUBLED
                one.after_usd_micros += after
                one.is_priced |= run.is_priced
    place = {policy: number for number, policy in enumerate(policies)}
    return sorted(sums.values(), key=lambda one: (place[one.policy], -one.after_usd_micros, one.rule, one.mode))


def after_by_role(runs: Iterable[RunBill], policy: str, role: str) -> int | None:
    """Micro-dollars after the halts of the runs that have this role. None: nobody knows what any of these cost."""
    its = [run for run in runs if run.ending.role == role]
    halted = [run for run in its if run.after_usd_micros(policy)]
    return known_total(halted, lambda run: sum(run.after_usd_micros(policy)))


def known_total(runs: Sequence[RunBill], amount: Callable[[RunBill], int]) -> int | None:
    """The sum over the runs of which is known what they cost. None where that is known of none of them."""
    return sum(map(amount, runs)) if not runs or any(run.is_priced for run in runs) else None
