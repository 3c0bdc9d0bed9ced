"""[[budget]] of costgov.toml: a ceiling for a run, a stage, a label's value, the UTC day or the node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from governor.core.base.units import UsdMicros, parse_count, usd
from governor.core.money.budgets import (
    GROUP_ALERT_AT,
    Scope,
    ScopedBudget,
    ScopeKind,
    checked_ceiling,
    checked_fractions,
    parse_scope,
)

SOURCE = "costgov.toml"


def _scope(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError('must be a scope in quotes such as "stage:stage1" or "day"')
    return parse_scope(value)


def _ceiling(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{value!r} is not an amount in dollars")
    return checked_ceiling(usd(value))


def _fractions(value: object) -> object:
    numbers = [item for item in value if isinstance(item, (int, float))] if isinstance(value, (list, tuple)) else None
    if numbers is None or len(numbers) != len(value):  # type: ignore[arg-type]
        raise ValueError("must be a list of fractions such as [0.5, 0.8, 0.95]")
    return checked_fractions(numbers)


def _tokens(value: object) -> object:
    count = parse_count(value) if isinstance(value, str) else value
    if isinstance(count, bool) or not isinstance(count, int) or count <= 0:
        raise ValueError('must be a number of tokens above 0 such as "20B"')
    return count


class BudgetTable(BaseModel):
    """One of them. It halts whatever the policies' mode is; only `observe = true` of the node keeps it from that."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    scope: Annotated[Scope, BeforeValidator(_scope)]
    ceiling_usd: Annotated[int, BeforeValidator(_ceiling)]  # Micro-dollars once it is read.
    alert_at: Annotated[tuple[float, ...] | None, BeforeValidator(_fractions)] = None
    tokens: Annotated[int | None, BeforeValidator(_tokens)] = None

    @model_validator(mode="after")
    def _tokens_of_a_run(self) -> BudgetTable:
        if self.tokens is not None and self.scope.kind is not ScopeKind.RUN:
            raise ValueError('tokens belong to a run: scope = "run:NAME"')
        return self

    def scoped(self) -> ScopedBudget:
        usual = () if self.scope.kind is ScopeKind.RUN else GROUP_ALERT_AT  # A run's policy has its own.
        alert_at = usual if self.alert_at is None else self.alert_at
        return ScopedBudget(self.scope, UsdMicros(self.ceiling_usd), SOURCE, alert_at, self.tokens)


def one_of_each(tables: Sequence[BudgetTable]) -> Any:
    """ValueError where two tables are of one scope."""
    scopes = [table.scope.text for table in tables]
    twice = next((scope for scope in scopes if scopes.count(scope) > 1), None)
    if twice is not None:
        raise ValueError(f'two of them have scope = "{twice}"; keep one')
    return tables
