"""What a person asks for over the control socket. `uid`: who asks, as the kernel says."""

from __future__ import annotations

from dataclasses import dataclass

from governor.core.base.units import DurationNs, MonoNs
from governor.core.money.budgets import Scope, ScopedBudget


@dataclass(frozen=True, slots=True)
class OperatorHalt:
    at: MonoNs
    run: str
    reason: str
    uid: int
    is_unsaved: bool = False  # No checkpoint is asked for, and one that was asked for is not waited for.


@dataclass(frozen=True, slots=True)
class OperatorHold:
    at: MonoNs
    run: str
    duration: DurationNs  # 0 lifts the hold.
    reason: str
    uid: int


@dataclass(frozen=True, slots=True)
class OperatorForget:
    """Release the name of a run that is not alive."""

    at: MonoNs
    run: str
    uid: int


@dataclass(frozen=True, slots=True)
class OperatorBudget:
    """A person sets a live ceiling, or (budget None) removes it."""

    at: MonoNs
    scope: Scope
    budget: ScopedBudget | None
    reason: str
    uid: int


OperatorEvent = OperatorHalt | OperatorHold | OperatorBudget | OperatorForget
