"""Tables that W&B and others export, as logs."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pytest

from governor.replay.logs import logs, records
from governor.replay.readers.lines import LINE_BYTES_MAX, LogUnreadable
from tests.unit.replayed import rows, run

HEADER = ",_step,_runtime,_timestamp,train/loss,train/grad_norm,note"


def table(*losses: str) -> str:
    """As `run.history().to_csv()` writes it: a number for each row, and nothing where a row has no value."""
    lines = [f'{n},{n},{10.0 * n},{1.8e9 + 10 * n},{loss},1.0,"a, b"' for n, loss in enumerate(losses)]
    return "\n".join([HEADER, *lines]) + "\n"


def test_a_table_is_a_log_and_an_empty_cell_is_nothing(tmp_path: Path) -> None:
    path = tmp_path / "history.csv"
    path.write_text("\ufeff" + table("2.5", "", "nan"))
    first, second, _ = (record for _, record in records(path))
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert (first["train/loss"], first["_runtime"], first["note"]) == (2.5, 0.0, "a, b")
    assert "train/loss" not in second
    verdict, summary = rows(run(path, "--json"))
    assert (verdict["rule"], verdict["step"], verdict["t"], summary["records"]) == ("nonfinite", 2, 20.0, 3)
    packed = tmp_path / "history.csv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert str([*records(packed)]) == str([*records(path)])


def test_words_of_truth_are_flags(tmp_path: Path) -> None:
    path = tmp_path / "flags.csv"
    path.write_text("step,overflow,name\n1,True,x\n2,FALSE,1e3\n")
    assert [record for _, record in records(path)] == [
        {"step": 1.0, "overflow": True, "name": "x"},
        {"step": 2.0, "overflow": False, "name": 1000.0},
    ]


def test_a_table_is_taken_only_by_name(tmp_path: Path) -> None:
    (tmp_path / "dataset.csv").write_text(table("2.5"))
    found, (problem,) = logs([tmp_path])
    assert found == []
    assert f"{tmp_path}: holds no log; name a file" in problem


@pytest.mark.parametrize(
    ("content", "said", "count"),
    [
        (b"", ": empty", 0),
        (b"step,loss\n1,2\n2,3,4\n3,1\n", ":3: more cells than names; skipped", 2),
        (b'step,loss\n1,"2\n' + b"x" * 200_000, ":3: a quoted cell has no end; skipped", 0),
        (b"step,loss\n1,2\n2", ":3: the last row is cut off: fewer cells than names; skipped", 1),
        (b"step,loss\n1,2\n2," + b"3" * (LINE_BYTES_MAX + 1), f":3: longer than {LINE_BYTES_MAX} bytes", 1),
    ],
)
def test_what_is_no_table_is_said_in_one_line(tmp_path: Path, content: bytes, said: str, count: int) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    result = run(path, "--json")
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"costgov: {path}{said}")
    assert rows(result)[-1]["records"] == count


def test_a_header_that_comes_again_names_what_is_below_it(tmp_path: Path) -> None:
    """A relaunch wrote its own columns, of the same number: live and here a table is read by one reader."""
    path = tmp_path / "metrics.csv"
    before, after = "".join(f"{n},2.0,0.001\n" for n in range(80)), "".join(f"{n},0.001,nan\n" for n in range(80, 90))
    path.write_text(f"step, loss,lr\n{before}step,lr,loss\n{after}")
    verdict, *_, summary = rows(run(path, "--json"))
    assert (verdict["rule"], verdict["step"], summary["records"]) == ("nonfinite", 80, 90)


def test_a_last_row_without_an_end_is_a_row(tmp_path: Path) -> None:
    path = tmp_path / "made.csv"
    path.write_text("step,loss\n" + "".join(f"{n},2.0\n" for n in range(50)) + "50,nan")
    verdict, *_, summary = rows(run(path, "--json"))
    assert (verdict["step"], summary["records"]) == (50, 51)


def test_a_cell_that_is_no_utf8_costs_its_cell_alone(tmp_path: Path) -> None:
    path = tmp_path / "latin.csv"
    path.write_bytes(b"step,loss,note\n1,2.0,caf\xe9\n2,nan,\n")
    assert rows(run(path, "--json"))[0]["step"] == 2


def test_an_export_that_counts_samples_has_steps(tmp_path: Path) -> None:
    """W&B beside DeepSpeed's monitor: rows stand at counts of samples, a NaN as the API spells it."""
    path = tmp_path / "history.jsonl"
    history = [
        {"_step": 512 * n, "_runtime": 3.0 * n, "Train/Samples/train_loss": 2.0 if n < 9 else "NaN"}
        for n in range(1, 12)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in history))
    verdict, _ = rows(run(path, "--json"))
    assert (verdict["rule"], verdict["step"]) == ("nonfinite", 9)


def test_of_the_states_of_one_trainer_the_last_is_its_log(tmp_path: Path) -> None:
    """Each checkpoint repeats those before it; 1000 is after 999, and the state beside them is that of the end."""
    for name in ("a/checkpoint-999", "a/checkpoint-1000", "b/checkpoint-5", "b", "c/checkpoint-7"):
        directory = tmp_path / name
        directory.mkdir(parents=True, exist_ok=True)
        history = [{"step": 1, "loss": 2.0}, {"step": 2, "train_runtime": 9.0, "train_loss": math.nan}]
        (directory / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    result = run(tmp_path, "--json")
    assert result.exit_code == 0
    taken = {str(Path(row["log"]).parent.relative_to(tmp_path)): (row["halts"], row["records"]) for row in rows(result)}
    assert taken == {"a/checkpoint-1000": (0, 1), "b": (0, 1), "c/checkpoint-7": (0, 1)}


def test_a_row_over_many_lines_has_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text(f"{HEADER}\n" + '"x\n",' * 20_000)
    assert {type(record) for _, record in records(path)} <= {list}, "and none of them is believed"


def test_a_document_of_too_many_values_is_not_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json.gz"
    path.write_bytes(gzip.compress(f'{{"log_history": [{"{}," * 8_000_000}0]}}'.encode(), 1))
    with pytest.raises(LogUnreadable, match=r"larger than any trainer_state"):
        [*records(path)]


def test_a_number_in_a_cell_is_of_ascii_digits(tmp_path: Path) -> None:
    path = tmp_path / "digits.csv"
    path.write_text("step,loss\n1,\N{ARABIC-INDIC DIGIT TWO}\n")
    assert [record for _, record in records(path)] == [{"step": 1.0, "loss": "\N{ARABIC-INDIC DIGIT TWO}"}]
