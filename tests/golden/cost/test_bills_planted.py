"""Bills of the five forms with more than one difference planted: each has its cause, its amount and its resource."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from governor.cli.common import ExitCode
from tests.golden.cost.conftest import Call
from tests.golden.cost.test_bill_forms import FORMS, HOURS, focus, map_words, plain_rows, stamp, told
from tests.unit.cost.ledger_file import charge, write_ledger


@pytest.fixture
def machine(state_dir: Path) -> Path:
    write_ledger(state_dir / "costgov.db", [charge(stamp(n)) for n in range(HOURS)])
    return state_dir


def reconciled(costgov: Call, tmp_path: Path, text: str, *words: str) -> tuple[int, dict[str, Any]]:
    (tmp_path / "bill.csv").write_text(text)
    done = costgov("reconcile", str(tmp_path / "bill.csv"), "--json", *words)
    assert done.err == ""
    return done.code, json.loads(done.out)


@pytest.mark.parametrize("form", ["focus", "cur", "hourly"])
@pytest.mark.parametrize("shift", [9, -7])
def test_a_bill_in_local_time_that_is_not_final_says_what_nobody_can_tell(
    form: str, shift: int, machine: Path, costgov: Call, tmp_path: Path
) -> None:
    """Twelve hours are not billed yet: $660.48."""
    code, document = reconciled(costgov, tmp_path, FORMS[form](plain_rows(shift)[:-12]), *map_words(form))
    assert (code, document["shift_hours"], document["shift_may_be"]) == (ExitCode.DIFFERS, shift, [0])
    assert told(document) == {("not_final", "i-0aaa", "-660.480000")}
    lines = costgov("reconcile", str(tmp_path / "bill.csv"), *map_words(form)).out.splitlines()
    assert lines[1] == (
        f"its times may lie {abs(shift)} h {'before' if shift < 0 else 'after'} ours, as in local time: compared so "
        "moved; as ours they fit as well, with other hours missing"
    )


def test_an_outage_at_the_begin_may_be_local_time_and_is_compared_as_it_stands(
    state_dir: Path, costgov: Call, tmp_path: Path
) -> None:
    """The governor came six hours late: $330.24."""
    write_ledger(state_dir / "costgov.db", [charge(stamp(n)) for n in range(6, HOURS)])
    (tmp_path / "bill.csv").write_text(focus(plain_rows()))
    document = json.loads(costgov("reconcile", str(tmp_path / "bill.csv"), "--json").out)
    assert (document["shift_hours"], document["shift_may_be"]) == (0, [-6])
    assert told(document) == {("ours_missing", "i-0aaa", "330.240000")}
    assert costgov("reconcile", str(tmp_path / "bill.csv")).out.splitlines()[1] == (
        "its times may be in local time: 6 h before ours they fit as well; compared as they stand"
    )
