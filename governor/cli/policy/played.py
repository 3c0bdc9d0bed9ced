"""Policies from files, and their results side by side: shared by the commands that replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from governor.cli.common import Failed, complain
from governor.core.base.policy import Policy
from governor.core.base.units import NS_PER_S, UsdMicros, format_duration, format_usd
from governor.policies import files
from governor.policies.files import PolicyUnreadable
from governor.policies.parse import load_policies
from governor.text.screen import Screen
from governor.text.table import Head, plain, render_rows

UNKNOWN: Final = "-"
COLUMNS: Final = (
    "POLICY", "HALTED", "ENFORCED", "FALSE", "PER 1000 H", "CAUGHT", "DELAY MEDIAN", "DELAY MAX",
    "SAVED", "WRONGLY CUT",
)  # fmt: skip


def load_each(paths: Sequence[Path]) -> tuple[Policy, ...]:
    """The policies of these files, each loaded alone: two of them may be for the same runs."""
    loaded: list[Policy] = []
    for path in paths or (files.PACKAGED_POLICY,):
        try:
            texts = files.policy_texts([path])
        except PolicyUnreadable as error:
            raise Failed(str(error)) from error
        for text in texts:
            policies, problems = load_policies([text])
            if policies is None:
                raise Failed("\n".join(str(problem) for problem in problems))
            for policy in policies.policies:
                known = any(policy.name == other.name for other in loaded)
                loaded.append(replace(policy, name=f"{policy.name} ({text[0]})") if known else policy)
    if not loaded:
        raise Failed(f"{paths[0]}: holds no *.toml; name a policy file")
    return tuple(loaded)


def note_unreachable_ceilings(policies: tuple[Policy, ...], price: UsdMicros | None) -> tuple[Policy, ...]:
    for policy in policies:
        if price is None and policy.budget.ceiling_usd_micros is not None:
            complain_plainly(
                f"policy {policy.name} has a ceiling, which no log can reach at an unknown price: give --price"
            )
    return policies


def complain_plainly(problem: str) -> None:
    """One line on standard error. What users named steers no terminal."""
    complain(plain(problem))


def table(rows: Sequence[Mapping[str, Any]], screen: Screen) -> str:
    """The policies side by side: one line each, with the results on the logs' labels."""
    cells = []
    for row in rows:
        per = row["false_halts_per_1000_run_hours"]
        cells.append([
            plain(row["policy"]),
            f"{row['halted']}/{row['logs']}",
            str(row["halted_enforced"]),
            f"{row['false_halts']}/{row['healthy']}",
            UNKNOWN if per is None else f"{per:.2f}",
            f"{row['caught']}/{row['troubled']}",
            *(_seconds(row[name]) for name in ("delay_median_s", "delay_max_s")),
            *(_usd(row[name]) for name in ("saved_usd_micros", "wrongly_cut_usd_micros")),
        ])  # fmt: skip
    heads = [Head(title, may_wrap=title == COLUMNS[0]) for title in COLUMNS]
    return render_rows(heads, cells, total=False, screen=screen)


def _seconds(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else format_duration(round(seconds * NS_PER_S))


def _usd(micros: int | None) -> str:
    return UNKNOWN if micros is None else format_usd(micros)
