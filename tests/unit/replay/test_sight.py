"""What a replay says of a log that shows less than a policy needs: never "0 halted" about what nobody has seen."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.unit.replayed import rows, run

SICK = [3.0, 3.0, 3.0, 3.0, math.nan]


def log(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def nested(tmp_path: Path) -> Path:
    """NaN under names that nobody knows, as in findings of users."""
    records = [{"iter": n, "train": {"ce": loss}, "optim/gnorm": 1.0, "sec": 5.0 * n} for n, loss in enumerate(SICK)]
    return log(tmp_path / "nested.jsonl", records)


def compared(*words: object) -> tuple[int, dict[str, Any], str]:
    """Exit code, the summary of the log, and what was said of it."""
    result = run(*words, "--json")
    return result.exit_code, rows(result)[-1], result.stderr


def test_a_log_of_which_only_steps_are_known_is_refused_with_the_map_that_makes_it_known(nested: Path) -> None:
    code, summary, said = compared(nested)
    assert (code, summary["halts"]) == (1, 0)
    maps = [word for word in said.split() if "=" in word]
    assert maps == ["loss=train.ce", "grad_norm=optim/gnorm", "t=sec"]
    code, summary, said = compared(nested, *(word for one in maps for word in ("--map", one)))
    assert (code, summary["halts"], summary["first_halt_t"], said) == (0, 1, 20.0, "")


def test_an_advised_map_is_one_word_of_a_shell(tmp_path: Path) -> None:
    """Names of users have blanks, quotes and what else a shell reads."""
    names = {"lm loss $total": 2.0, "iteration no'": 1}
    _, _, said = compared(log(tmp_path / "a.jsonl", [names] * 5))
    words = shlex.split(said.partition("; try ")[2])
    assert words == ["--map", "loss=lm loss $total", "--map", "step=iteration no'"]


def test_a_map_that_stands_in_the_way_of_a_usual_name_is_to_be_left_out(tmp_path: Path) -> None:
    path = log(tmp_path / "a.jsonl", [{"step": n, "loss": 2.0, "t": n} for n in range(5)])
    _, _, said = compared(path, "--map", "loss=nope")
    assert 'no record has "nope", which is mapped to loss; leave that out: "loss" needs no map' in said
    assert "--map" not in said


@pytest.mark.parametrize(("mark", "shown"), [(";", "';'"), ("|", "'|'")])
def test_a_table_without_commas_is_told_what_separates_it(tmp_path: Path, mark: str, shown: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "".join(f"{mark.join(row)}\n" for row in (("step", "loss", "t"), ("1", "2.0", "3"), ("2", "2.0", "4")))
    )
    _, _, said = compared(path)
    assert f"its columns are separated by {shown}: write the table with commas" in said
    assert "--map" not in said


def test_a_log_without_times_is_said_to_show_no_hang(tmp_path: Path) -> None:
    code, _, said = compared(log(tmp_path / "a.jsonl", [{"step": n, "loss": 2.0} for n in range(30)]))
    assert code == 0
    assert "a.jsonl: its records have no time: neither a hang nor a slow run can be seen" in said


def test_blanks_around_a_table_s_names_are_no_part_of_them(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("step, loss, t\n1, 2.0, 10\n2, nan, 20\n")
    code, summary, said = compared(path)
    assert (code, summary["halts"], said) == (0, 1, "")


def test_a_log_that_is_refused_counts_for_no_policy(nested: Path) -> None:
    assert " 0/0 " in run(nested).stdout.splitlines()[-1]


@pytest.mark.parametrize("name", ["nosuch", "train.nosuch"])
def test_a_mapped_name_that_no_record_has_is_an_error(tmp_path: Path, name: str) -> None:
    path = log(tmp_path / "a.jsonl", [{"step": n, "lr": 1e-4, "my_loss": loss, "t": n} for n, loss in enumerate(SICK)])
    code, summary, said = compared(path, "--map", f"loss={name}")
    assert (code, summary["halts"]) == (1, 0)
    assert f'"{name}"' in said
    assert "--map loss=my_loss" in said


def test_one_unknown_field_is_said_and_the_others_are_judged(tmp_path: Path) -> None:
    records = [{"step": n, "t": 10.0 * n, "step_s": 10.0, "objective": 2.0} for n in range(30)]
    code, summary, said = compared(log(tmp_path / "a.jsonl", records), "--run-on", "4h")
    assert (code, summary["halts"]) == (0, 2), "neither the hang nor the stalled log needs a loss"
    assert said.count("\n") == 1
    assert "loss" in said


def test_a_line_that_is_none_hides_no_word_of_the_others(tmp_path: Path) -> None:
    path = log(tmp_path / "a.jsonl", [{"step": n, "x": 1.0} for n in range(5)])
    path.write_text("begin\n" + path.read_text())
    code, _, said = compared(path)
    assert (code, said.count("\n")) == (1, 1)
    assert ":1: " in said
    assert "keys: step, x" in said


@pytest.mark.parametrize("when", [47_870.0, 10_800.0, 3_601.0])
def test_a_clock_that_began_elsewhere_is_no_hang(tmp_path: Path, when: float) -> None:
    records = [{"step": n, "loss": loss, "t": when + 5.0 * n} for n, loss in enumerate(SICK)]
    code, summary, _ = compared(log(tmp_path / "a.jsonl", records))
    assert (code, summary["halts"], summary["first_halt_t"]) == (0, 1, when + 20.0), "on the log's own clock"


@pytest.mark.parametrize(
    ("began", "onset"), [(0.0, 20.0), (47_870.0, 47_890.0), (1.7e9, 20.0), (1.7e9, 1.7e9 + 20)],
    ids=["from 0", "from elsewhere", "since 1970", "since 1970, the onset too"],
)  # fmt: skip
def test_the_onset_is_on_the_logs_own_clock(tmp_path: Path, began: float, onset: float) -> None:
    meta = {"meta": {"role": "troubled", "onset_t": onset - 1}}
    records = [{"step": n, "loss": loss, "t": began + 5.0 * n} for n, loss in enumerate([*SICK, *SICK])]
    result = run(log(tmp_path / "a.jsonl", [meta, *records]), "--price", "3600")
    cells = result.stdout.splitlines()[-1].split()
    assert cells[5:7] + cells[-2:] == ["1/1", "1.0s", "$25.00", "-"], result.stdout
