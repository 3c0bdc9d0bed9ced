"""`costgov plan batch`: a line for every row, in their order, whatever is in them."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from governor.cli.main import cli

FIELDS = (
    "row_id",
    "tok_s_gpu",
    "tok_s_gpu_low",
    "tok_s_gpu_high",
    "mem_gb_allocated",
    "mem_gb_reserved",
    "fits",
    "notes",
)
HEAD = "row_id,model,hidden,layers,heads,gpu,gpus,seq_len,micro_bs,zero_stage,act_ckpt,framework,precision,grad_accum"
GOOD = "a,Llama3-8B,4096,32,32,H100-SXM-80GB,8,4096,1,3,full,DeepSpeed,bf16,1"


def batch(tmp_path: Path, text: str, *options: str) -> Result:
    path = tmp_path / "rows.csv"
    path.write_text(text, encoding="utf-8")
    return CliRunner().invoke(cli, ["plan", "batch", str(path), *options])


def lines(tmp_path: Path, text: str) -> list[dict[str, Any]]:
    result = batch(tmp_path, text, "--json")
    assert result.exit_code == 0
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_row_has_exactly_these_fields_in_their_units(tmp_path: Path) -> None:
    (line,) = lines(tmp_path, f"{HEAD}\n{GOOD}\n")
    assert tuple(line) == FIELDS
    assert line["row_id"] == "a"
    assert 0 < line["tok_s_gpu_low"] < line["tok_s_gpu"] < line["tok_s_gpu_high"]
    assert 0 < line["mem_gb_allocated"] < line["mem_gb_reserved"] < 80
    assert line["fits"] is True


def test_what_fits_by_a_hair_is_not_said_to_fit_and_the_note_says_why(tmp_path: Path) -> None:
    """BigScience's chronicle of BLOOM: ten layers on one node took all of 80 GB."""
    head = f"{HEAD},tp,ffn,vocab"
    row = "b,BLOOM-proto,14336,{},64,A100-SXM-80GB,8,2048,1,1,full,Megatron-DeepSpeed,fp16,2048,8,57344,250000"
    tight, beyond = lines(tmp_path, "\n".join([head, row.format(10), row.format(12)]) + "\n")
    assert 80 < tight["mem_gb_reserved"] < 80 * 1.074  # GiB
    assert (tight["fits"], beyond["fits"]) == (False, False)
    assert "may not fit: " in tight["notes"]
    assert "does not fit: " in beyond["notes"]


def test_a_test_of_megatron_is_predicted_for_its_last_rank_which_writes_the_log(tmp_path: Path) -> None:
    head = f"{HEAD},pp"
    row = "c,gpt,1024,16,8,H100-SXM-80GB,8,4096,1,0,none,{},bf16,8,4"
    logged, fullest = lines(tmp_path, "\n".join([head, row.format("Megatron-Core CI"), row.format("Megatron")]) + "\n")
    assert logged["mem_gb_allocated"] < fullest["mem_gb_allocated"]
    assert logged["mem_gb_reserved"] == fullest["mem_gb_reserved"]


def test_what_was_measured_is_not_looked_at(tmp_path: Path) -> None:
    plain = lines(tmp_path, f"{HEAD}\n{GOOD}\n")
    measured = lines(tmp_path, f"{HEAD},tok_s_gpu,mem_gb,mfu,tflops_gpu,step_time_s,mem_value\n{GOOD},1,2,3,4,5,6\n")
    assert measured == plain


def test_a_blank_is_unknown_widens_the_interval_and_is_said(tmp_path: Path) -> None:
    known, blank = lines(tmp_path, f"{HEAD}\n{GOOD}\n{GOOD.replace(',full,', ',,').replace('a,', 'b,', 1)}\n")
    assert "act_ckpt" in blank["notes"]
    assert "act_ckpt" not in known["notes"]
    assert blank["tok_s_gpu_high"] / blank["tok_s_gpu_low"] > known["tok_s_gpu_high"] / known["tok_s_gpu_low"]


@pytest.mark.parametrize("word", ["nan", "N/A", " ? ", "-", "unknown"])
def test_other_words_for_a_blank_are_blanks(tmp_path: Path, word: str) -> None:
    blank, said = lines(tmp_path, f"{HEAD}\n{GOOD.replace(',full,', ',,')}\n{GOOD.replace(',full,', f',{word},')}\n")
    assert said == blank


def test_a_row_of_which_nothing_is_known_is_answered_and_says_that_all_is_assumed(tmp_path: Path) -> None:
    known, nothing = lines(tmp_path, f"{HEAD}\n{GOOD}\n{',' * 13}\n")
    assert nothing["tok_s_gpu"] > 0
    assert {"assumed: params_b", "assumed: gpu"} <= {note.rpartition(" ")[0] for note in nothing["notes"].split("; ")}
    assert nothing["tok_s_gpu_high"] / nothing["tok_s_gpu_low"] > known["tok_s_gpu_high"] / known["tok_s_gpu_low"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (GOOD.replace("H100-SXM-80GB", "zork"), "no GPU named 'zork'"),
        (
            "d,x,4096,32,30,H100-SXM-80GB,8,4096,1,3,full,DeepSpeed,bf16,1",
            "30 heads do not divide hidden 4096: 8 or 16 or 32 do",
        ),
        (GOOD.replace(",4096,1,3", ",abc,1,3"), "seq_len = 'abc' is no number"),
        (GOOD.replace(",4096,1,3", ",1e300,1,3"), "beyond every machine"),
        (GOOD.replace(",1,3,full", ",1,7,full"), "ZeRO stage 7"),
        (
            "e,x,99999999999999999999,32,30,H100-SXM-80GB,8,4096,1,3,full,DeepSpeed,bf16,1",
            "hidden must be from 1 to 10,000",
        ),
        ("f,x,4096,32,1e12,H100-SXM-80GB,8,4096,1,3,full,DeepSpeed,bf16,1", "must be from 1 to 10,000,000"),
        (GOOD.replace(",1,3,full", ",1,inf,full"), "zero_stage = 'inf'"),
    ],
)
def test_a_bad_row_has_nulls_its_reason_and_a_line_and_the_others_go_on(tmp_path: Path, row: str, words: str) -> None:
    result = batch(tmp_path, f"{HEAD}\n{row}\n{GOOD}\n", "--json")
    bad, good = (json.loads(line) for line in result.stdout.splitlines())
    assert words in bad["notes"]
    assert {bad[name] for name in FIELDS[1:7]} == {None}
    assert tuple(bad) == FIELDS
    assert good["tok_s_gpu"] > 0
    (line,) = result.stderr.splitlines()
    assert words in line
    assert result.exit_code == 0


def test_rows_without_a_name_are_counted_and_odd_lengths_are_rows(tmp_path: Path) -> None:
    made = lines(tmp_path, f"# a remark\n{HEAD}\n{GOOD[1:]}\n#1{GOOD[1:]},more,and more\nc,Llama3-8B\n")
    assert [line["row_id"] for line in made] == ["1", "#1", "c"]
    assert all(line["tok_s_gpu"] for line in made)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"row_id;model;gpu\na;Llama3-8B;H100\n", "in line 1; columns are separated by commas"),
        (b"\xef\xbb\xbfrow_id,model\n", "a line of titles, and no row below it"),
        (b"", "no column that a set-up has"),
        (b"model,gpu\nLlama3-8B,\xff\xfe\n", "no CSV in UTF-8"),
        (b'model,gpu\n"' + b"x" * 200_000 + b'",H100\n', "no CSV in UTF-8"),
        (None, "No such file"),
    ],
)
def test_what_is_no_table_is_one_line(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "rows.csv"
    if content is not None:
        path.write_bytes(content)
    result = CliRunner().invoke(cli, ["plan", "batch", str(path), "--json"])
    assert result.exit_code == 1
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_without_json_it_is_a_table_for_people(tmp_path: Path) -> None:
    head, row = batch(tmp_path, f"{HEAD}\n{GOOD}\n").stdout.splitlines()
    assert head.split()[:3] == ["ROW", "TOK/S/GPU", "LOW"]
    assert row.split()[0] == "a"


@pytest.mark.parametrize("name", ["throughput_dev.csv", "memory_dev.csv"])
def test_every_published_row_has_its_line(name: str) -> None:
    folder = os.environ.get("COSTGOV_PLANNER_DATA", "")
    path = Path(folder) / name
    if not folder or not path.is_file():
        pytest.skip(f"no published measurements: COSTGOV_PLANNER_DATA names no folder with {name}")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    made = [
        json.loads(line) for line in CliRunner().invoke(cli, ["plan", "batch", str(path), "--json"]).stdout.splitlines()
    ]
    assert [line["row_id"] for line in made] == [row["row_id"] for row in rows]
    assert all(line["tok_s_gpu"] is not None and line["mem_gb_reserved"] is not None for line in made)


@pytest.mark.parametrize(("command", "name"), [("batch", "fifo"), ("compare", "fifo.toml"), ("compare", "fifo")])
def test_what_has_no_end_is_one_line(tmp_path: Path, command: str, name: str) -> None:
    os.mkfifo(tmp_path / name)
    result = CliRunner().invoke(cli, ["plan", command, str(tmp_path / name)])
    assert result.exit_code
    assert not isinstance(result.exception, OSError)


def test_a_row_without_end_is_one_line(tmp_path: Path) -> None:
    said = batch(tmp_path, HEAD + "\n" + '"x\n",' * 300_000).stderr
    assert said.endswith("rows.csv: a row of more than 1,048,576 characters: this is no table\n")
