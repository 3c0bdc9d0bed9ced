"""Expected against actual by stage: the table for the handover of a stage, from charges and windows alone.

Money is everything that was charged: the stage's tokens also cost pauses, restarts and start-up. Tokens are those of
closed windows and of the open one. Each window has its plan; the open one has the last one's, else the run's. Ratios
are exact; only the forecast (`lands_at_usd_micros`) is an estimate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction

from governor.core.base.units import MTOK, NS_PER_S
from governor.core.money.charges import LineKind, Unit
from governor.core.money.expected import ExpectedCost, WindowRow, has_trained, window_rate
from governor.core.money.forecast import RECENT_WINDOWS, forecast
from governor.core.money.reports.cost import NO_STAGE, UNALLOCATED_ROW, Sum, stage_of
from governor.core.money.reports.namesakes import Namesakes, OneRun, Part
from governor.core.money.reports.stage_row import StageRow, added, sum_of_known
from governor.core.money.steady import SteadySum
from governor.core.money.token_price import drift, over, per_mtok
from governor.core.money.token_windows import TokenMeter, Window
from governor.core.money.waste import SpendSplit, SpentOn, sum_by_cause, wasted_of


@dataclass(slots=True)
class _Share:
    """One run's part of one stage."""

    node_ns: int = 0
    usd_micros: int = 0
    reconstructed_usd_micros: int = 0
    tokens: int = 0
    # Between the steps of an attempt: without starts.
    steady_ns: int = 0
    steady_tokens: int = 0
    wasted_tokens: int = 0
    # Of the windows, by their tokens and by journal; `split` knows more, of the journals that are not left here.
    twice_usd_micros: dict[str, int] = field(default_factory=dict)
    split: dict[SpentOn, int] | None = None  # None: nobody counted what this money bought.
    untold_tokens: int = 0  # Trained and paid for, in windows that are no longer stored.
    unpriced_ns: int = 0  # Of its time, what has no price.
    unpriced_tokens: int = 0  # Of windows that closed while the machine's price was unknown.
    steady: dict[int | None, SteadySum] = field(default_factory=dict)  # By the planned price.
    by_plan: dict[int | None, int] = field(default_factory=dict)  # Tokens, by the planned price.
    all_in_tokens: int = 0  # Of windows with a planned all-in price, and what was planned for them.
    all_in_usd: int = 0
    has_all_in: bool = False  # Its plan has an all-in price; without tokens, that of its last commit.
    planned_tokens: int = 0  # Of windows with a planned price.
    planned_usd: int = 0  # In micro-dollar-tokens: 10^-12 dollars.
    # Of windows with a planned speed, and the time that was planned for them.
    timed_tokens: int = 0
    planned_s: float = 0.0
    to_tokens: int = 0  # Where it goes on from: behind its progress while it trains lost tokens again.
    plan: ExpectedCost | None = None  # The last window's, else the run's own; None: neither is known.
    journal: str = ""  # In which it has trained last.
    is_left: bool = False  # The run continues in another stage.
    is_counted_elsewhere: bool = False  # In the total, the run and its ceiling are those of another stage.
    # The run's earlier cost in other stages: its ceiling here counts that too.
    elsewhere_usd_micros: int = 0
    recent: deque[Window] = field(default_factory=lambda: deque(maxlen=RECENT_WINDOWS))

    def train(self, window: Window) -> None:
        """What also holds of a window without progress."""
        self.steady_ns += window.steady_ns
        self.steady_tokens += window.steady_tokens
        self.wasted_tokens += window.wasted_tokens
        self.unpriced_tokens += (window.tokens or window.wasted_tokens) if window.is_unpriced else 0

    def expect(self, tokens: int, plan: ExpectedCost) -> None:
        self.by_plan[plan.usd_micros_per_mtok] = self.by_plan.get(plan.usd_micros_per_mtok, 0) + tokens
        if plan.usd_micros_per_mtok_all_in is not None:
            self.has_all_in = True
            self.all_in_tokens += tokens
            self.all_in_usd += tokens * plan.usd_micros_per_mtok_all_in
        if plan.usd_micros_per_mtok is not None:
            self.planned_tokens += tokens
            self.planned_usd += tokens * plan.usd_micros_per_mtok
        if plan.tokens_per_s:
            self.timed_tokens += tokens
            self.planned_s += tokens / plan.tokens_per_s


class StageTally:
    """Makes rows from charges and windows. Windows of a run must come in the order in which they closed.

    Of several journals one comes after the other, the last written last, and charges come behind all of them: which of
    the runs of one name are one run (see Namesakes) is known by their tokens.
    """

    def __init__(self, *, from_the_beginning: bool = True) -> None:
        """Without the beginning (--since) the used part of a ceiling and the forecast are unknown."""
        self._namesakes = Namesakes()
        self._shares: dict[tuple[str, OneRun], _Share] = {}
        self._newest: dict[OneRun, _Share] = {}  # Its newest stage.
        self._plans: dict[OneRun, ExpectedCost] = {}  # As of its last commit.
        # Each journal has metered its own part of a run. Its total at the end of the last entered window, and what it
        # had trained again by then, where that window had no progress.
        self._told_to: dict[Part, int] = {}
        self._wasted_to: dict[Part, int] = {}
        self._anew: dict[Part, int | None] = {}  # Where the metering of a run began anew that had been given back.
        self._from_the_beginning = from_the_beginning

    def enter_meters(self, meters: Iterable[tuple[Part, TokenMeter]]) -> None:
        """Enter of all journals how far the runs have come, before anything else."""
        self._namesakes.enter_all((part, meter.began_tokens, meter.progress_tokens) for part, meter in meters)

    def enter_charges(self, one: Sum, journal: str = "") -> None:
        """Enter charges of one stage and run."""
        charge = one.charge
        share = self._share(stage_of(charge), self._namesakes.run_of((journal, charge.payer.run)))
        share.usd_micros += charge.usd_micros
        share.reconstructed_usd_micros += charge.usd_micros if charge.reconstructed else 0
        if charge.line.kind is LineKind.COMPUTE and charge.line.unit is Unit.HOUR:
            share.node_ns += charge.quantity

    def enter_given_back(self, name: str, meter: TokenMeter | None, journal: str = "") -> None:
        """Of a run whose first windows another has paid for: leave them out. Enter this before its windows."""
        self._anew[journal, name] = meter.began_tokens if meter is not None else None

    def enter_window(self, name: str, row: WindowRow, journal: str = "") -> None:
        part = journal, name
        if part in self._anew and row.plan.began_tokens != self._anew[part]:
            return
        window, plan = row.window, row.plan
        tokens = window.tokens
        run = self._namesakes.enter(part, plan.began_tokens, window.to_tokens)
        share = self._trains(row.stage, run) if tokens else self._share(row.stage or NO_STAGE, run)
        self._miss(share, part, window.from_tokens, plan.began_tokens)
        self._told_to[part], self._wasted_to[part] = window.to_tokens, row.wasted_to
        share.tokens += tokens
        share.train(window)
        if window.wasted_tokens:
            # The window's cost covers both the tokens of progress and those that were trained again. Its start may be
            # another stage's money: that of launches that never stepped, and of the end of the stage before.
            again = Fraction(window.wasted_tokens, tokens + window.wasted_tokens)
            usd_micros = int(window.steady_usd_micros * again)
            share.twice_usd_micros[journal] = share.twice_usd_micros.get(journal, 0) + usd_micros
        if not tokens:  # What the run goes on from, and its forecast, are of the stage in which it last had progress.
            self._plans[run] = plan
            return
        share.expect(tokens, plan)
        if not window.is_unpriced:
            share.steady.setdefault(plan.usd_micros_per_mtok, SteadySum()).add(window)
        share.to_tokens = window.to_tokens
        share.plan, share.journal = plan, journal
        share.recent.append(window)

    def enter_plan(self, name: str, plan: ExpectedCost, journal: str = "") -> None:
        """Enter what a run was held against last, before its open window: of the windows each has its own."""
        self._plans[self._namesakes.run_of((journal, name))] = plan

    def enter_open(self, name: str, stage: str | None, meter: TokenMeter, journal: str = "") -> None:
        """Enter the beginning of the open window.

        The meter must be older than the windows, so that a window that closed in between is counted once.
        """
        part = journal, name
        run = self._namesakes.enter(part, meter.began_tokens, meter.progress_tokens)
        window, told_to = meter.open_window, self._told_to.get(part, 0)
        is_open = (told_to, self._wasted_to.get(part, 0)) <= (meter.from_tokens, meter.wasted_before)
        lent = window.lent_tokens if is_open else 0
        tokens = meter.progress_tokens - max(meter.from_tokens, told_to) - lent
        if is_open and has_trained(window):
            self._share(stage or NO_STAGE, run).train(window)
        newest = self._newest.get(run)
        if newest is not None and told_to <= meter.progress_tokens:
            newest.to_tokens = meter.last_total
            if newest.plan is not None:  # Its last window's, and others may have paid since.
                newest.plan = replace(newest.plan, lent_tokens=meter.lent_tokens)
        if tokens <= 0:
            return
        share = self._trains(stage, run)
        self._miss(share, part, meter.from_tokens, meter.began_tokens)
        share.tokens += tokens
        if is_open and not share.recent:
            share.recent.append(window)
        elif not is_open and window.is_unpriced:
            share.unpriced_tokens += tokens
        share.to_tokens = meter.last_total
        if share.plan is None or share.journal != journal:
            share.plan, share.journal = self._plans.get(run) or share.plan, journal
        if share.plan is not None:
            share.expect(tokens, share.plan)

    def enter_split(self, name: str, split: SpendSplit, journal: str = "") -> None:
        """Enter what the run's money has bought, of all its time in this journal and of every stage."""
        run = self._namesakes.run_of((journal, name))
        for stage, by_cause in split.of_stages().items():
            share = self._share(stage or NO_STAGE, run)
            share.twice_usd_micros.pop(journal, None)
            share.split = sum_by_cause((share.split or {}, by_cause))
        for stage, unpriced_ns in split.unpriced_ns.items():
            self._share(stage or NO_STAGE, run).unpriced_ns += unpriced_ns

    def rows(self) -> list[StageRow]:
        """One row per stage, by name. Runs without a stage, and unallocated charges, come last."""
        stages: dict[str, list[_Share]] = {}
        spent: dict[OneRun, int] = {}
        for (stage, run), share in self._shares.items():
            stages.setdefault(stage, []).append(share)
            spent[run] = spent.get(run, 0) + share.usd_micros
            if share.plan is None and run in self._plans:  # The ceiling is the run's from its launch on.
                share.plan = ExpectedCost(ceiling_usd_micros=self._plans[run].ceiling_usd_micros)
                share.has_all_in = not share.tokens and self._plans[run].usd_micros_per_mtok_all_in is not None
        last_of = {run: share for (_, run), share in self._shares.items()} | self._newest
        for (_, run), share in self._shares.items():
            share.is_counted_elsewhere = share is not last_of[run]
        for run, share in self._newest.items():
            share.elsewhere_usd_micros = spent[run] - share.usd_micros
        last = (NO_STAGE, UNALLOCATED_ROW)
        names = sorted(stages, key=lambda name: (last.index(name) + 1 if name in last else 0, name))
        return [self._row(name, stages[name]) for name in names]

    def _miss(self, share: _Share, part: Part, from_tokens: int, began_tokens: int) -> None:
        """Count tokens of missing windows (a limit of the journal, a damaged page). Their money is in the charges."""
        to = self._told_to.get(part, 0 if self._from_the_beginning else from_tokens)
        share.untold_tokens += max(0, from_tokens - max(to, began_tokens))

    def _trains(self, stage: str | None, run: OneRun) -> _Share:
        share = self._share(stage or NO_STAGE, run)
        self._newest.setdefault(run, share).is_left = True
        share.is_left = False
        self._newest[run] = share
        return share

    def _share(self, stage: str, run: OneRun) -> _Share:
        share = self._shares.get((stage, run))
        if share is None:
            share = self._shares[stage, run] = _Share()
        return share

    def _row(self, stage: str, shares: list[_Share]) -> StageRow:
        tokens, spent = sum(share.tokens for share in shares), sum(share.usd_micros for share in shares)
        steady_ns, steady_tokens = sum(s.steady_ns for s in shares), sum(s.steady_tokens for s in shares)
        planned_tokens, planned_usd = sum(s.planned_tokens for s in shares), sum(s.planned_usd for s in shares)
        planned_s, timed_tokens = sum(s.planned_s for s in shares), sum(s.timed_tokens for s in shares)
        expected = Fraction(planned_usd, planned_tokens) if planned_tokens else None
        untold = sum(share.untold_tokens for share in shares)
        unpriced = sum(share.unpriced_tokens for share in shares)
        unpriced_ns = sum(share.unpriced_ns for share in shares)
        is_priced = not (unpriced or unpriced_ns)
        is_whole = is_priced and not untold
        actual = per_mtok(spent, tokens) if is_whole else None
        wasted = sum(share.wasted_tokens for share in shares)
        all_in = per_mtok(spent, tokens + wasted) if is_whole else None
        all_in_tokens, all_in_usd = sum(s.all_in_tokens for s in shares), sum(s.all_in_usd for s in shares)
        expected_all_in = Fraction(all_in_usd, all_in_tokens) if all_in_tokens else None
        planned_all_in = [share for share in shares if share.has_all_in]
        is_steady = all_in_tokens < planned_tokens
        expected_tokens, expected_usd = (planned_tokens, planned_usd) if is_steady else (all_in_tokens, all_in_usd)
        limited = [share for share in shares if _ceiling(share) is not None]
        ceiling = sum(_ceiling(share) or 0 for share in limited)
        counted = sum(share.usd_micros + share.elsewhere_usd_micros for share in limited)
        whole = self._from_the_beginning and is_priced
        return StageRow(
            stage=stage,
            runs=0 if stage == UNALLOCATED_ROW else len(shares),
            runs_elsewhere=sum(share.is_counted_elsewhere for share in shares),
            node_ns=sum(share.node_ns for share in shares),
            tokens=tokens,
            expected_usd_micros=expected_usd // MTOK if expected_tokens else None,
            is_expected_steady=is_steady,
            expected_per_mtok=expected,
            actual_usd_micros=spent,
            per_mtok_useful=actual,
            per_mtok_steady=_steady_per_mtok(shares) if not untold else None,  # Of the windows with a price.
            drift=_drift(shares) if not untold else None,
            per_mtok_all_in=all_in,
            expected_per_mtok_all_in=expected_all_in,
            drift_all_in=_drift_all_in(planned_all_in) if is_whole else None,
            unplanned_all_in_runs=len(shares) - len(planned_all_in) if planned_all_in else 0,
            expected_tokens_per_s=timed_tokens / planned_s if planned_s else None,
            tokens_per_s=steady_tokens * NS_PER_S / steady_ns if steady_ns and steady_tokens else None,
            wasted_tokens=wasted,
            wasted_usd_micros=sum_of_known(_wasted_usd_micros(share) for share in shares),
            wasted_by_cause=_by_cause(shares),
            ceiling_usd_micros=ceiling if limited else None,
            ceiling_elsewhere_usd_micros=sum(_ceiling(s) or 0 for s in limited if s.is_counted_elsewhere),
            used=Fraction(counted, ceiling) if ceiling and whole else None,
            burn_rate=_burn_rate(limited) if is_whole else None,
            lands_at_usd_micros=_landing(shares) if whole else None,
            untold_tokens=untold,
            unpriced_tokens=unpriced,
            unpriced_ns=unpriced_ns,
            unplanned_tokens=tokens - expected_tokens if expected_tokens else 0,
            unlimited_runs=len(shares) - len(limited) if limited else 0,
            reconstructed_usd_micros=sum(share.reconstructed_usd_micros for share in shares),
        )


def _ceiling(share: _Share) -> int | None:
    return share.plan.ceiling_usd_micros if share.plan is not None else None


def _wasted_usd_micros(share: _Share) -> int | None:
    twice = sum(share.twice_usd_micros.values())
    if share.split is not None:
        return sum(wasted_of(share.split).values()) + twice
    return twice if share.tokens or share.wasted_tokens else None


def _steady(shares: Iterable[_Share]) -> list[tuple[int, Fraction, int | None]]:
    """Of each run under each plan: its tokens, its steady price, and the planned one. Runs without one are left out."""
    prices = (
        (share.by_plan[planned], total.per_mtok, planned) for share in shares for planned, total in share.steady.items()
    )
    return [(tokens, price, planned) for tokens, price, planned in prices if price is not None]


def _steady_per_mtok(shares: Iterable[_Share]) -> Fraction | None:
    found = _steady(shares)
    tokens = sum(tokens for tokens, _, _ in found)
    return sum((tokens * price for tokens, price, _ in found), Fraction(0)) / tokens if tokens else None


def _drift(shares: Iterable[_Share]) -> Fraction | None:
    """By tokens: each run's steady price against the price that was planned for it."""
    found = [(tokens, price, planned) for tokens, price, planned in _steady(shares) if planned]
    planned_usd = sum(tokens * planned for tokens, _, planned in found)
    actual_usd = sum((tokens * price for tokens, price, _ in found), Fraction(0))
    return drift(actual_usd, planned_usd)


def _drift_all_in(planned: Iterable[_Share]) -> Fraction | None:
    """Of runs with a planned all-in price alone: all that they have spent, against that price for all they trained."""
    spent, expected = 0, Fraction(0)
    for share in planned:
        spent += share.usd_micros
        if share.all_in_tokens:
            expected += Fraction(share.all_in_usd, share.all_in_tokens) * (share.tokens + share.wasted_tokens)
    return drift(Fraction(spent * MTOK), expected) if spent > 0 else None


def _by_cause(shares: Iterable[_Share]) -> dict[str, int] | None:
    """Together they are what the row wasted. None: of no run are the causes known."""
    found = list(shares)
    known = [wasted_of(share.split) for share in found if share.split is not None]
    return added(known, twice=sum(sum(share.twice_usd_micros.values()) for share in found))


def _burn_rate(limited: Iterable[_Share]) -> Fraction | None:
    """Of the runs with a goal: what they have spent over what their ceilings allow for the tokens that they trained."""
    spent, allowed = 0, Fraction(0)
    for share in limited:
        plan = share.plan
        if plan is not None and plan.tokens is not None and plan.ceiling_usd_micros is not None:
            spent += share.usd_micros
            allowed += Fraction(plan.ceiling_usd_micros * share.tokens, plan.tokens)
    return over(Fraction(spent), allowed) if spent > 0 else None


def _landing(shares: Iterable[_Share]) -> int | None:
    """The total cost of all runs at their goals; None when a run that trains has no goal.

    It uses each run's recent windows, as its status does of those that its governor saw close. A run without tokens
    ends at its present cost. So does a run that continues in another stage.
    """
    total = 0
    trains = False
    for share in shares:
        total += share.usd_micros
        if not share.tokens:
            continue
        trains = True
        if share.is_left:
            continue
        if share.plan is None or (goal := share.plan.tokens_goal) is None:
            return None
        left = forecast(share.recent, goal - share.to_tokens, share.plan.began_tokens)
        if left is None:
            return None  # All that is known is one step, with the run's start-up.
        # As the newest window was charged: after a price change the older ones say nothing. In an older
        # journal there are windows that took no time.
        rate = next((rate for window in reversed(share.recent) if (rate := window_rate(window)) is not None), None)
        if rate is None and left.tokens_left:
            return None
        total += round(left.hours_left.mid * (rate or 0.0))
    return total if trains else None
