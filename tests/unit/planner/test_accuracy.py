"""How the planner's benchmarks judge: what was left out of a fit stays out of it, and absent tables are said."""

from pathlib import Path

import pytest

from benchmarks.planner import accuracy
from benchmarks.planner.accuracy import Predicted, Row
from governor.planner.table import read

ROWS: list[Row] = [
    {"row_id": str(i), "source": f"{source} page {i}", "value": str(value)}
    for i, (source, value) in enumerate([("a", 10), ("a", 12), ("b", 20), ("b", 22), ("c", 90)])
]


def _mean(rows: list[Row]) -> float:
    return sum(float(row["value"]) for row in rows) / len(rows)


def _predict(model: float, row: Row) -> Predicted:
    return Predicted(row["row_id"], accuracy.repository_of(row), float(row["value"]), model, 0.5 * model, 1.5 * model)


def test_a_row_is_predicted_from_the_other_sources_alone() -> None:
    found = accuracy.left_out(ROWS, accuracy.repository_of, lambda rows: _mean(list(rows)), _predict)
    assert {one.source: one.predicted for one in found} == {"a": 44, "b": pytest.approx(112 / 3), "c": 16}


def test_errors_are_fractions_of_the_measurement() -> None:
    summed = accuracy.summed_up([Predicted(str(i), "a", 100, 100 + i, 90, 115) for i in (-20, 0, 10, 20, 30)])
    assert (summed.median, summed.p90, summed.bias) == (pytest.approx(0.2), pytest.approx(0.3), pytest.approx(0.1))
    assert summed.within == 1.0
    assert accuracy.summed_up([Predicted("1", "a", 100, 100, 50, 60), Predicted("2", "a", 1, 1, 0, 2)]).within == 0.5
    assert accuracy.summed_up([Predicted("1", "a", 100, 100)]).within is None


def test_a_table_has_a_line_for_each_source_and_one_for_all() -> None:
    found = [_predict(20, row) for row in ROWS]
    lines = accuracy.table({"fitted": found, "of a alone": found[:2]}).splitlines()[2:]
    assert [line.split()[:2] for line in lines] == [["a", "2"], ["b", "2"], ["c", "1"], ["all", "rows"]]


def _rows(inside: int, outside: int) -> list[Predicted]:
    return [Predicted(str(i), "a", 100, 110, 90, 120 if i < inside else 95) for i in range(inside + outside)]


def test_a_class_says_whether_its_intervals_are_of_80_percent_where_it_has_enough_rows() -> None:
    classes = {"fine": _rows(16, 4), "narrow": _rows(13, 7), "wide": _rows(20, 0), "small": _rows(3, 0)}
    lines = {line.split()[0]: line for line in accuracy.class_table(classes).splitlines()[1:]}
    assert lines["fine"].split()[1:] == ["20", "1", "10.0%", "10.0%", "+10.0%", "80%"]
    assert lines["narrow"].endswith("65%  NOT 80 %")
    assert lines["wide"].endswith("100%  NOT 80 %")
    assert lines["small"].endswith("few rows")
    assert accuracy.missed_classes(classes) == ["narrow", "wide"]


def test_a_row_is_of_the_classes_of_what_it_runs_and_of_what_it_leaves_to_guess() -> None:
    row = {"model": "Llama3-8B", "gpu": "H100-SXM-80GB", "gpus": "8", "framework": "torchtitan (FSDP2)"}
    found = read(row | {"attention": "FA3", "seq_len": "8192", "micro_bs": "1", "grad_accum": "1", "zero_stage": "3"})
    assert accuracy.classes_of(found.setup, found.assumed) == [
        "fsdp2, dense", "precision: 16 bits", "attention kernel: fa3", "checkpointing: none",
        "guessed: act_ckpt", "guessed: precision",
    ]  # fmt: skip
    assert accuracy.classes_of(found.setup, ())[-1] == "nothing guessed"


def test_an_absent_table_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(accuracy.ENVIRONMENT, raising=False)
    assert accuracy.rows_of("memory_dev.csv", None) is None
    assert "skipped: no measurements: say --data FOLDER" in capsys.readouterr().out
    monkeypatch.setenv(accuracy.ENVIRONMENT, str(tmp_path))
    assert accuracy.rows_of("memory_dev.csv", None) is None
    assert f"skipped: there is no {tmp_path / 'memory_dev.csv'}" in capsys.readouterr().out
    (tmp_path / "memory_dev.csv").write_text("# measured 2026-11\nrow_id,source\nM1,a b\n")
    assert accuracy.rows_of("memory_dev.csv", None) == [{"row_id": "M1", "source": "a b"}]
