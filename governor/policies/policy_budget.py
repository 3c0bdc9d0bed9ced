"""The tables of a policy about money: [budget] and [expected]."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from governor.core.base.policy import Budget, Expected, Rule
from governor.core.base.units import MTOK, UsdMicros, format_usd, usd
from governor.core.rules.triggers.base import Key
from governor.policies.policy_keys import BUDGET_KEYS, EXPECTED_KEYS
from governor.policies.policy_reader import Reader
from governor.policies.policy_values import COUNT
from governor.wire.toml_lines import KeyPath

# A window is a row in the journal. Below this a node that trains a million tokens a second would write ten a second,
# each telling of a single step; above, a run of 20B tokens would show its price less than twenty times.
WINDOW_TOKENS_MIN: Final = 100_000
WINDOW_TOKENS_MAX: Final = 1_000_000_000
TOKENS_PER_S: Final = Key("", "number", 1.0, "")


def read_budget(reader: Reader) -> Budget:
    table = reader.table("budget", BUDGET_KEYS)
    ceiling = None
    if "ceiling_usd" in table:
        ceiling = _ceiling(reader, table["ceiling_usd"])
    tokens = reader.value(("budget", "tokens"), COUNT, table["tokens"]) if "tokens" in table else None
    if tokens == 0:
        reader.fail(("budget", "tokens"), "0 tokens are no training run")
    window = _window(reader, table["window"]) if "window" in table else MTOK
    return Budget(ceiling, tokens, _alert_at(reader, table.get("alert_at", []), ceiling), window)


def read_expected(reader: Reader) -> Expected:
    table = reader.table("expected", EXPECTED_KEYS)
    price = _dollars(reader, ("expected", "usd_per_mtok"), table["usd_per_mtok"]) if "usd_per_mtok" in table else None
    if price == 0:
        reader.fail(("expected", "usd_per_mtok"), "is below a millionth of a dollar, the smallest amount that we count")
    speed = None
    if "tokens_per_s" in table:
        speed = reader.value(("expected", "tokens_per_s"), TOKENS_PER_S, table["tokens_per_s"])
        if speed == 0:
            reader.fail(("expected", "tokens_per_s"), "0 tokens a second are no training run; leave it out")
    return Expected(price, speed)


def check_expected(reader: Reader, budget: Budget, expected: Expected) -> None:
    """A plan that is dearer than its own ceiling would be halted on plan."""
    price, ceiling, tokens = expected.usd_micros_per_mtok, budget.ceiling_usd_micros, budget.tokens
    if reader.errors or price is None or ceiling is None or tokens is None:
        return
    planned = price * tokens // MTOK
    if planned > ceiling:
        text = f"{tokens:,} tokens at that price are {format_usd(planned)}, above ceiling_usd ({format_usd(ceiling)})"
        reader.fail(("expected", "usd_per_mtok"), text)


def check_watched(reader: Reader, budget: Budget, rules: Sequence[Rule]) -> None:
    if reader.errors or (budget.ceiling_usd_micros is None and budget.tokens is None):
        return
    if not any(rule.trigger == "budget" for rule in rules):
        key = "ceiling_usd" if budget.ceiling_usd_micros is not None else "tokens"
        reader.fail(("budget", key), 'nothing watches it; add a [[rule]] with trigger = "budget"')


def _ceiling(reader: Reader, value: object) -> UsdMicros | None:
    path: KeyPath = ("budget", "ceiling_usd")
    ceiling = _dollars(reader, path, value)
    if ceiling == 0:
        reader.fail(path, "a ceiling of $0 halts every run at its first step")
    return ceiling


def _dollars(reader: Reader, path: KeyPath, value: object) -> UsdMicros | None:
    if not isinstance(value, bool) and isinstance(value, int | float | str):
        with suppress(ValueError):
            return usd(value)
    reader.fail(path, f"{value!r:.40} is not an amount in dollars")
    return None


def _window(reader: Reader, value: object) -> int:
    path: KeyPath = ("budget", "window")
    errors = len(reader.errors)
    tokens: int = reader.value(path, COUNT, value)
    if len(reader.errors) == errors and not WINDOW_TOKENS_MIN <= tokens <= WINDOW_TOKENS_MAX:
        text = f"{value!r:.40} is no window: it takes {WINDOW_TOKENS_MIN:,} to {WINDOW_TOKENS_MAX:,} tokens"
        reader.fail(path, text)
    return tokens


def _alert_at(reader: Reader, value: object, ceiling: UsdMicros | None) -> tuple[float, ...]:
    path: KeyPath = ("budget", "alert_at")
    if not isinstance(value, list):
        reader.fail(path, "is not a list of fractions; write [0.5, 0.8, 0.95]")
        return ()
    if value and ceiling is None:
        reader.fail(path, "are parts of ceiling_usd, which is not given")
    for frac in value:
        if isinstance(frac, bool) or not isinstance(frac, int | float) or not 0 < frac < 1:
            reader.fail(path, f"{frac!r:.40} is not a fraction between 0 and 1")
            return ()
    return tuple(sorted({float(frac) for frac in value}))
