"""Every [[case]] of the TOML files here, and of the tests that are shipped with the policies: series in, verdicts out.

What `costgov policy test` plays. The format: governor/timeline/cases.py; the language: governor/timeline/series.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from governor.core.rules import triggers
from governor.replay.user_tests import loaded_for, run_case
from governor.timeline.cases import Case, read_cases
from tests.tidy import gates

HERE = Path(__file__).parent
POLICIES = HERE.parents[1] / "policies"
FILES = sorted([*HERE.glob("*.toml"), *(POLICIES / "tests").glob("*.toml")])


def cases_of(file: Path) -> list[Case]:
    cases, errors = read_cases(str(file), file.read_text())
    assert not errors, [str(error) for error in errors]
    return cases


CASES = [
    pytest.param(case, id=f"{file.stem}-{case.name.replace(' ', '-')}") for file in FILES for case in cases_of(file)
]


@pytest.mark.parametrize("case", CASES)
def test_timeline(case: Case) -> None:
    policies, errors = loaded_for(case)
    assert policies is not None, errors
    assert not run_case(case, policies).problems


def test_every_shipped_policy_is_tested() -> None:
    named = {file for case in cases_of(POLICIES / "tests/shipped.toml") for file in case.rules.files}
    assert named >= {f"../{policy.name}" for policy in POLICIES.glob("*.toml")}


def test_every_trigger_is_seen_to_fire_and_to_stay_quiet() -> None:
    gates.nothing_missing(gates.without_a_timeline(triggers.load(), HERE))
