"""Under `costgov run` nothing is started that the first tick would halt: a budget that is used up refuses before."""

from __future__ import annotations

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
from governor.core.engine.halt_plan import FIXED_POINT_MAX, halt_times, lasts_ns, own_ceiling
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.money.budgets import ScopedBudget, ScopeKind
from governor.core.money.ledger import reserve

CENT: Final = MICROS_PER_USD // 100
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

    def reserve(self, *ceilings: int | None, unsaved_ns: int = 0) -> UsdMicros:
        """What the shortest halt under these ceilings costs: right after a checkpoint, or before there was work.

        With `unsaved_ns` of work it may wait as long for a checkpoint.
        """
        node, rate = self.node, self.node.facts.usd_micros_per_hour
        lasts = min((ns for one in ceilings if (ns := lasts_ns(one, rate)) is not None), default=None)
        times = halt_times(node.facts, self.policy, lasts, None, self.at)
        whole = times.whole_ns + max(0, min(unsaved_ns, self.policy.halt.grace_ns) - times.grace_ns)
        upload = checkpoint_reserve(node, self.managed) if self.managed is not None else 0
        return UsdMicros(reserve(rate or 0, whole) + upload)

    def spend(self) -> int:
        """What the run's ceiling counts, with what an earlier launch had cost that ended together with its governor."""
        node, previous = self.node, self.node.previous_command
        waiting = 0
        if previous is not None and {self.command, self.name} & {previous.run, previous.account}:
            waiting = sum(charge.usd_micros for charge in previous.unallocated) + previous.unallocated_older_usd_micros
        counted = node.ledger.spend(self.name) + node.ledger.book.runs.beside(self.name, self.command)
        return counted + waiting + self.started_usd_micros


def refusal(node: Node, name: str, uid: int, boot: BootNs, at: MonoNs) -> str | None:
    """Why a command of this name is not started: a budget would halt it at once. None: none would.

    A person's hold lets it go on, and so does a governor or a policy that only observes.
    """
    rate = node.facts.usd_micros_per_hour
    payer = ceiling_run(node, name)
    managed = node.runs.get(payer)
    if node.facts.observe or not rate or (managed is not None and _is_on_hold(managed, at)):
        return None
    run = managed.run if managed is not None else None
    stage, labels = (run.stage, run.labels) if run is not None else (None, {})
    policy = managed.policy if managed is not None else node.policy_for(payer, None, {}, uid)
    started = rate * max(0, boot - node.began) // NS_PER_HOUR
    launch = _Launch(node, name, payer, policy, managed, started, at)
    rules = [rule for rule in policy.rules if _halts_at_once(rule) and rule.applies_to(labels, stage)]
    return next((why for rule in rules for why in _reached(launch, rule, stage, labels.items())), None)


def _is_on_hold(managed: ManagedRun, at: MonoNs) -> bool:
    return managed.history.hold_until is not None and at < managed.history.hold_until


def _halts_at_once(rule: Rule) -> bool:
    enforced = rule.response is Response.HALT and rule.mode is Mode.ENFORCE
    return rule.trigger == "budget" and enforced and rule.persistence == AT_ONCE and rule.warmup is None


def _reached(launch: _Launch, rule: Rule, stage: str | None, labels: Iterable[tuple[str, str]]) -> Iterator[str]:
    """One line for each ceiling of this rule that the first tick would find reached."""
    own, shortens = launch.policy.budget.ceiling_usd_micros, own_ceiling(launch.policy)
    frac = float(rule.params.get("at_frac", 1.0))
    if own is not None and not rule.params.get("caps_only"):
        spend = launch.spend()
        held = launch.reserve(own)
        if spend + held >= own * round(frac * 10**6) // 10**6:
            buys = _buys(launch, spend, frac, ())
            remedy = f"pass --ceiling {buys / MICROS_PER_USD:.2f} or more, {_TRAINS}, or launch under another --name"
            yield _refused(f"run:{launch.name}", own, spend, held, remedy)
    for budget in launch.node.budgets.of_groups() if frac >= 1 else ():
        if budget.scope.covers(launch.name, stage, dict(labels)):
            yield from _group_reached(launch, budget, shortens)


def _group_reached(launch: _Launch, budget: ScopedBudget, own: int | None) -> Iterator[str]:
    ceiling, spend = budget.ceiling_usd_micros, spent(launch.node, budget.scope, launch.at) + launch.started_usd_micros
    held = launch.reserve(own, ceiling)
    if budget.scope.kind is ScopeKind.DAY:  # What its halt costs after midnight is the next day's.
        wall = launch.node.wall(launch.at)
        rate = launch.node.facts.usd_micros_per_hour or 0
        held = UsdMicros(min(held, reserve(rate, day_of(wall)[1] - wall)))
    if spend + held >= ceiling:
        buys = format_usd(_buys(launch, spend, 1.0, (own,)))
        source = budget.source if budget.is_live else "costgov.toml"
        until = ", wait for 00:00 UTC" if budget.scope.kind is ScopeKind.DAY else ""
        remedy = f"raise it to {buys} or more ({source}), {_TRAINS}{until}, or launch under another --name"
        yield _refused(budget.scope.text, ceiling, spend, held, remedy)


def _buys(launch: _Launch, spend: int, frac: float, others: tuple[int | None, ...] | None) -> int:
    """The ceiling that buys BUYS_NS of training, in whole cents: one that starts alone is reached in the next moment.

    A larger one gives its halt more time; `others` None: none does.
    """
    rate = launch.node.facts.usd_micros_per_hour or 0
    wanted = enough = spend + reserve(rate, BUYS_NS)
    for _ in range(FIXED_POINT_MAX):
        held = launch.reserve(*(() if others is None else (*others, enough)), unsaved_ns=BUYS_NS)
        enough = -(-(wanted + held) * 10**6 // round(frac * 10**6))
    return -(-enough // CENT) * CENT


def _refused(scope: str, ceiling: int, spend: int, held: int, remedy: str) -> str:
    return (
        f"not launched: {scope} has spent {format_usd(spend)} and its halt is reserved {format_usd(held)}: the ceiling "
        f"{format_usd(ceiling)} would halt it at once; {remedy}"
    )
