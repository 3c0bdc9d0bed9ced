"""The tables of a policy about money: [budget]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from governor.core.policy import Budget, Rule
from governor.core.units import UsdMicros, usd
from governor.wire.policy_reader import Reader
from governor.wire.policy_values import COUNT
from governor.wire.toml_lines import KeyPath

BUDGET_KEYS: Final = ("ceiling_usd", "tokens", "alert_at")


def read_budget(reader: Reader) -> Budget:
    table = reader.table("budget", BUDGET_KEYS)
    ceiling = None
    if "ceiling_usd" in table:
        ceiling = _ceiling(reader, table["ceiling_usd"])
    tokens = reader.value(("budget", "tokens"), COUNT, table["tokens"]) if "tokens" in table else None
    if tokens == 0:
        reader.fail(("budget", "tokens"), "0 tokens are no training run")
    return Budget(ceiling, tokens, _alert_at(reader, table.get("alert_at", []), ceiling))


def check_watched(reader: Reader, budget: Budget, rules: Sequence[Rule]) -> None:
    if reader.errors or (budget.ceiling_usd_micros is None and budget.tokens is None):
        return
    if not any(rule.trigger == "budget" for rule in rules):
        key = "ceiling_usd" if budget.ceiling_usd_micros is not None else "tokens"
        reader.fail(("budget", key), 'nothing watches it; add a [[rule]] with trigger = "budget"')


def _ceiling(reader: Reader, value: object) -> UsdMicros | None:
    path: KeyPath = ("budget", "ceiling_usd")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        reader.fail(path, f"{value!r} is not an amount in dollars")
        return None
    try:
        ceiling = usd(value)
    except ValueError:
        reader.fail(path, f"{value!r} is not an amount in dollars")
        return None
    if ceiling == 0:
        reader.fail(path, "a ceiling of $0 halts every run at its first step")
    return ceiling


def _alert_at(reader: Reader, value: object, ceiling: UsdMicros | None) -> tuple[float, ...]:
    path: KeyPath = ("budget", "alert_at")
    if not isinstance(value, list):
        reader.fail(path, "is not a list of fractions; write [0.5, 0.8, 0.95]")
        return ()
    if value and ceiling is None:
        reader.fail(path, "are parts of ceiling_usd, which is not given")
    for frac in value:
        if isinstance(frac, bool) or not isinstance(frac, int | float) or not 0 < frac < 1:
            reader.fail(path, f"{frac!r} is not a fraction between 0 and 1")
            return ()
    return tuple(sorted({float(frac) for frac in value}))
