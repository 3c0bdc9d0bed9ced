"""[[budget]] of costgov.toml: what is read, and one line for each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from governor.core.base.units import UsdMicros
from governor.core.money.budgets import GROUP_ALERT_AT, ScopedBudget, parse_scope
from tests.unit.app.test_settings_file import bad, config, good


def test_a_budget_reads_as_it_is_written(tmp_path: Path) -> None:
    text = """
[[budget]]
scope = "label:team=nlp"
ceiling_usd = 1500.5
[[budget]]
scope = "run:llama"
ceiling_usd = "90"
tokens = "20B"
[[budget]]
scope = "day"
ceiling_usd = 300
alert_at = [0.9, 0.5]
"""
    team, run, day = (table.scoped() for table in good(config(tmp_path, text)).budget)
    assert team == ScopedBudget(parse_scope("label:team=nlp"), UsdMicros(1_500_500_000), "costgov.toml", GROUP_ALERT_AT)
    assert (run.ceiling_usd_micros, run.tokens, run.alert_at) == (90_000_000, 20_000_000_000, ())
    assert day.alert_at == (0.5, 0.9)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('scope = "day"', ":2: budget[1].ceiling_usd: is missing; add it"),
        ('ceiling_usd = 5', ":2: budget[1].scope: is missing; add it"),
        ('scope = "month"\nceiling_usd = 5', ':3: budget[1].scope: "month" is not a scope; write run:NAME'),
        ('scope = "llama"\nceiling_usd = 5', ':3: budget[1].scope: "llama" is not a scope'),
        ('scope = 7\nceiling_usd = 5', ":3: budget[1].scope: must be a scope in quotes"),
        ('scope = "day"\nceiling_usd = 0', ":4: budget[1].ceiling_usd: a ceiling is more than $0"),
        ('scope = "day"\nceiling_usd = -1', ":4: budget[1].ceiling_usd: \"-1\" is not an amount in dollars"),
        ('scope = "day"\nceiling_usd = nan', ":4: budget[1].ceiling_usd: \"nan\" is not an amount"),
        ('scope = "day"\nceiling_usd = inf', ":4: budget[1].ceiling_usd: \"inf\" is not an amount"),
        ('scope = "day"\nceiling_usd = 1e10', ":4: budget[1].ceiling_usd: a ceiling is below $1,000,000,000"),
        ('scope = "day"\nceiling_usd = true', ":4: budget[1].ceiling_usd: True is not an amount in dollars"),
        ('scope = "day"\nceiling_usd = 5\nalert_at = [1.5]', ":5: budget[1].alert_at: must be fractions"),
        ('scope = "day"\nceiling_usd = 5\nalert_at = 0.5', ":5: budget[1].alert_at: must be a list of"),
        ('scope = "day"\nceiling_usd = 5\ntokens = "1B"', "budget[1]: tokens belong to a run: scope = \"run:NAME\""),
        ('scope = "run:a"\nceiling_usd = 5\ntokens = 0', ":5: budget[1].tokens: must be a number of tokens"),
        ('scope = "day"\nceilling_usd = 5', 'budget[1].ceilling_usd: unknown key; did you mean "ceiling_usd"?'),
    ],
)  # fmt: skip
def test_what_is_no_budget_is_one_line_that_says_where(tmp_path: Path, table: str, said: str) -> None:
    problems = bad(config(tmp_path, f"\n[[budget]]\n{table}\n"))
    assert [problem for problem in problems if said in problem], problems


def test_two_budgets_of_one_scope_are_refused(tmp_path: Path) -> None:
    one = '[[budget]]\nscope = "day"\nceiling_usd = 5\n'
    [problem] = bad(config(tmp_path, one + one))
    assert problem.endswith('two of them have scope = "day"; keep one')
