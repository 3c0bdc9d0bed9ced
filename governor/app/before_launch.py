"""Under `costgov run` nothing is started that the first tick would halt: a budget that is used up refuses before."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from governor.core.base.findings import Response
from governor.core.base.policy import AT_ONCE, Mode, Policy, Rule
from governor.core.base.units import (
    MICROS_PER_USD,
    NS_PER_HOUR,
    NS_PER_MINUTE,
    BootNs,
    MonoNs,
    UsdMicros,
    day_of,
    format_usd,
)
from governor.core.engine.charging import checkpoint_reserve
from governor.core.engine.command.ceilings import ceiling_run, spent
from governor.core.engine.halt_plan import halt_times, lasts_ns, longest_save_ns, own_ceiling, save_bound_ns
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.engine.orders import of_fleet
from governor.core.money.budgets import ScopedBudget, ScopeKind
from governor.core.money.ledger import reserve

CENT: Final = MICROS_PER_USD // 100
CENTS_MAX: Final = 10**14  # A trillion dollars, and with it any ceiling that can be written.
BUYS_NS: Final = NS_PER_MINUTE  # At least: more where a save takes less than that.
_TRAINS: Final = "which buys at least a minute of training"


@dataclass(frozen=True, slots=True)
class _Launch:
    """A command as its first tick will have it."""

    node: Node
    command: str
    name: str  # Of the run that will pay.
    policy: Policy
    managed: ManagedRun | None  # Known from an earlier launch.
    started_usd_micros: int  # What the governor's own start has cost until now: the first tick charges it.
    at: MonoNs

    @property
    def rate(self) -> int:
        return self.node.facts.usd_micros_per_hour or 0

    def reserve(self, *ceilings: int | None, unsaved_ns: int = 0) -> UsdMicros:
        """What the shortest halt under these ceilings costs: right after a checkpoint, or before there was work.

        With `unsaved_ns` of work it may wait as long for a checkpoint, within the bound that these ceilings set.
        """
        node, rate = self.node, self.rate
        lasts = min((ns for one in ceilings if (ns := lasts_ns(one, rate)) is not None), default=None)
        times = halt_times(node.facts, self.policy, lasts, None, self.at)
        longest = longest_save_ns(self.managed.run) if self.managed is not None and lasts is not None else 0
        bound = save_bound_ns(self.policy, longest, lasts)
        whole = times.whole_ns + max(0, min(unsaved_ns, bound) - times.grace_ns)
        upload = checkpoint_reserve(node, self.managed) if self.managed is not None else 0
        return UsdMicros(reserve(rate, whole) + upload)

    def spend(self) -> int:
        """What the run's ceiling counts, with what an earlier launch had cost that ended together with its governor."""
        node, previous = self.node, self.node.previous_command
        waiting = 0
        if previous is not None and {self.command, self.name} & {previous.run, previous.account}:
            waiting = sum(charge.usd_micros for charge in previous.unallocated) + previous.unallocated_older_usd_micros
        return node.ledger.spend(self.name) + node.ledger.book.runs.beside(self.name, self.command) + waiting


def refusal(node: Node, name: str, uid: int, boot: BootNs, at: MonoNs) -> str | None:
    """Why a command of this name is not started: a budget would halt it at once. None: none would.

    A person's hold lets it go on, and so does a governor or a policy that only observes.
    """
    rate = node.facts.usd_micros_per_hour
    payer = ceiling_run(node, name)
    managed = node.runs.get(payer)
    if node.facts.observe or not rate or of_fleet.is_held(node, payer, uid, at):
        return None
    if managed is not None and managed.history.held(at) is not None:
        return None
    run = managed.run if managed is not None else None
    stage, labels = (run.stage, run.labels) if run is not None else (None, {})
    policy = managed.policy if managed is not None else node.policy_for(payer, None, {}, uid)
    started = rate * max(0, boot - node.began) // NS_PER_HOUR
    launch = _Launch(node, name, payer, policy, managed, started, at)
    rules = [rule for rule in policy.rules if _halts_at_once(rule) and rule.applies_to(labels, stage)]
    return next((why for rule in rules for why in _reached(launch, rule, stage, labels.items())), None)


def _halts_at_once(rule: Rule) -> bool:
    enforced = rule.response is Response.HALT and rule.mode is Mode.ENFORCE
    return rule.trigger == "budget" and enforced and rule.persistence == AT_ONCE and rule.warmup is None


def _reached(launch: _Launch, rule: Rule, stage: str | None, labels: Iterable[tuple[str, str]]) -> Iterator[str]:
    """One line for each ceiling of this rule that the first tick would find reached."""
    own, shortens = launch.policy.budget.ceiling_usd_micros, own_ceiling(launch.policy)
    frac = float(rule.params.get("at_frac", 1.0))
    if own is not None and not rule.params.get("caps_only"):
        tally = _Tally(launch, f"run:{launch.name}", own, launch.spend(), frac)
        if tally.is_reached():
            remedy = f"pass --ceiling {tally.buys() / MICROS_PER_USD:.2f} or more, {_TRAINS}"
            yield tally.refused(f"{remedy}, or launch under another --name")
    for budget in launch.node.budgets.of_groups() if frac >= 1 else ():
        if budget.scope.covers(launch.name, stage, dict(labels)):
            yield from _group_reached(launch, budget, shortens)


def _group_reached(launch: _Launch, budget: ScopedBudget, own: int | None) -> Iterator[str]:
    is_day, wall = budget.scope.kind is ScopeKind.DAY, launch.node.wall(launch.at)
    left = day_of(wall)[1] - wall if is_day else None
    spend = spent(launch.node, budget.scope, launch.at)
    tally = _Tally(launch, budget.scope.text, budget.ceiling_usd_micros, spend, 1.0, own, left)
    if tally.is_reached():
        source = budget.source if budget.is_live else "costgov.toml"
        until = ", wait for 00:00 UTC" if is_day else ""
        remedy = f"raise it to {format_usd(tally.buys())} or more ({source}), {_TRAINS}{until}"
        yield tally.refused(f"{remedy}, or launch under another --name")


@dataclass(frozen=True, slots=True)
class _Tally:
    """One ceiling, and what the first tick would hold against it."""

    launch: _Launch
    scope: str
    ceiling_usd_micros: int
    spend_usd_micros: int  # By the ledger.
    frac: float
    shortens: int | None = None  # Another ceiling under which the halt is shorter.
    day_left_ns: int | None = None  # What comes after midnight is the next day's.

    def is_reached(self) -> bool:
        return self._at(0) + self._held(self.ceiling_usd_micros, 0) >= self._limit(self.ceiling_usd_micros)

    def buys(self) -> int:
        """The smallest ceiling, in whole cents, that buys BUYS_NS of training without a save.

        One that just starts is reached in the next moment. A larger one gives its halt more time, too.
        """
        spend = self._at(BUYS_NS)

        def is_enough(cents: int) -> bool:
            return spend + self._held(cents * CENT, BUYS_NS) <= self._limit(cents * CENT)

        return CENT * bisect_left(range(CENTS_MAX), True, key=is_enough)

    def refused(self, remedy: str) -> str:
        started = self.launch.started_usd_micros
        start = f", this start costs {format_usd(started)}" if started else ""
        return (
            f"not launched: {self.scope} has spent {format_usd(self.spend_usd_micros)}{start} and its halt is reserved "
            f"{format_usd(self._held(self.ceiling_usd_micros, 0))}: the ceiling {format_usd(self.ceiling_usd_micros)} "
            f"would halt it at once; {remedy}"
        )

    def _limit(self, ceiling: int) -> int:
        return ceiling * round(self.frac * 10**6) // 10**6

    def _at(self, after_ns: int) -> int:
        ns = after_ns if self.day_left_ns is None else min(after_ns, self.day_left_ns)
        return self.spend_usd_micros + self.launch.started_usd_micros + reserve(self.launch.rate, ns)

    def _held(self, ceiling: int, after_ns: int) -> int:
        held = self.launch.reserve(self.shortens, ceiling, unsaved_ns=after_ns)
        if self.day_left_ns is None:
            return held
        return min(held, reserve(self.launch.rate, max(0, self.day_left_ns - after_ns)))
