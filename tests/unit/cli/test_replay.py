"""`costgov policy replay`: any log that a person may name, and one line for what cannot be read."""

from __future__ import annotations

import gzip
import json
import lzma
import math
from pathlib import Path
from typing import Any

import pytest

from governor.replay.readers.lines import LINE_BYTES_MAX
from tests.unit.replayed import rows, run
from trainer_shim.wire import encode, head

SICK = [*({"t": 10.0 * n, "step": n, "loss": 2.0} for n in range(5)), {"t": 50.0, "step": 5, "loss": math.nan}]
WELL = SICK[:5]


def text(records: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


@pytest.fixture
def sick(tmp_path: Path) -> Path:
    path = tmp_path / "sick.jsonl"
    path.write_bytes(text(SICK))
    return path


def test_verdict_and_summary_are_as_the_documentation_has_them(sick: Path) -> None:
    result = run(sick, "--json")
    verdict, summary = rows(result)
    assert result.exit_code == 0
    assert {*verdict} >= {"log", "rule", "trigger", "response", "step", "t", "reason", "evidence"}
    assert (verdict["rule"], verdict["step"], verdict["t"], verdict["evidence"]["loss"]) == (
        "nonfinite",
        5,
        50.0,
        "nan",
    )
    assert summary == {
        "log": str(sick), "halts": 1, "halts_enforced": 1, "first_halt_step": 5, "first_halt_t": 50.0, "records": 6,
    }  # fmt: skip


def test_packed_logs_are_the_same_logs(sick: Path, tmp_path: Path) -> None:
    packed = [tmp_path / "a.jsonl.gz", tmp_path / "a.jsonl.xz"]
    packed[0].write_bytes(gzip.compress(text(SICK)))
    packed[1].write_bytes(lzma.compress(text(SICK)))
    for path in packed:
        told = rows(run(path, "--json"))
        assert [{**row, "log": ""} for row in told] == [{**row, "log": ""} for row in rows(run(sick, "--json"))]


def test_standard_input_is_a_log_of_its_own_name(sick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "-").mkdir()  # Whatever is called so.
    monkeypatch.chdir(tmp_path)
    told = rows(run("-", sick, "-", "--json", stdin=text(SICK)))
    assert [row["log"] for row in told] == ["-", "-", str(sick), str(sick)], "and it is read once"
    assert [{**row, "log": ""} for row in told[:2]] == [{**row, "log": ""} for row in told[2:]]
    assert rows(run("-", "--json", stdin=b"".join(line + b"\n" for line in frames())))[-1]["records"] == 238


def test_standard_input_has_the_bounds_of_a_file() -> None:
    long = text(WELL) + b'{"x": "' + b"x" * (2 * LINE_BYTES_MAX) + b'"}\n' + text(SICK[5:])
    result = run("-", "--json", stdin=long)
    assert result.stderr == f"costgov: -:6: longer than {LINE_BYTES_MAX} bytes; skipped\n"
    assert (result.exit_code, rows(result)[-1]["halts"]) == (1, 1)
    assert run("-", stdin=bytes(range(256))).stderr.startswith("costgov: -: no known format")
    assert run("-", stdin=b"").stderr == "costgov: -: holds no record\n"


def test_the_order_of_logs_changes_only_the_order_of_lines(sick: Path, tmp_path: Path) -> None:
    well = tmp_path / "well.jsonl"
    well.write_bytes(text(WELL))
    there, back = run(sick, well, "--json").stdout.splitlines(), run(well, sick, "--json").stdout.splitlines()
    assert there[-1:] + there[:-1] == back
    assert [row["log"] for row in rows(run(tmp_path, "--json")) if "records" in row] == [str(sick), str(well)]


def test_a_trainer_state_is_a_log_without_times(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    history = [{"step": n, "loss": 2.0} for n in range(5)] + [
        {"step": 5, "loss": math.nan},
        {"step": 5, "eval_loss": 1},
    ]
    path.write_text(json.dumps({"log_history": history, "best_metric": None}))
    verdict, summary = rows(run(path, "--json"))
    assert (verdict["reason"], verdict["t"], summary["records"]) == ("loss_nan", None, 7)


def frames() -> list[bytes]:
    """Two ranks for a minute, of a machine that has been up for a while; then only their beats."""
    up_ns = 9_000_000_000_000
    told = []
    for rank in (0, 1):
        hello = {"seq": 1, "run": "r", "attempt": "a", "local_rank": rank, "world_size": 2, "signal": 0}
        told.append(encode({**head("hello", rank, up_ns), **hello}))
    for n in range(1, 60):
        for rank in (0, 1):
            at = up_ns + n * 1_000_000_000
            beat = {"progress_seq": n, "phase": "train", "phase_since_ns": up_ns, "in_step": True}
            step = {"step": n, "attempt_step": n, "loss": 2.0, "step_s": 1.0, "progress_seq": n}
            told += [encode({**head("beat", rank, at - 1), **beat}), encode({**head("step", rank, at), **step})]
    return told


def test_recorded_frames_are_told_from_where_they_begin(tmp_path: Path) -> None:
    path = tmp_path / "frames.jsonl"
    path.write_bytes(b"\n".join(frames()) + b"\n")
    (summary,) = rows(run(path, "--json"))
    assert (summary["halts"], summary["records"]) == (0, 238)
    *verdicts, summary = rows(run(path, "--json", "--run-on", "2h"))
    assert [verdict["rule"] for verdict in verdicts if verdict["response"] == "halt"] == ["hang"]
    assert 59 < summary["first_halt_t"] < 59 + 10 * 60, "ranks that beat have the tight limit"


def test_what_cannot_be_read_is_said_in_one_line_and_the_others_go_on(sick: Path, tmp_path: Path) -> None:
    torn, long, binary = tmp_path / "torn.jsonl.gz", tmp_path / "long.jsonl", tmp_path / "binary.jsonl"
    torn.write_bytes(gzip.compress(text(SICK * 50))[:-20])
    long.write_bytes(text(WELL) + b'{"x": "' + b"x" * (2 * LINE_BYTES_MAX) + b'"}\n' + text(SICK[5:]))
    binary.write_bytes(bytes(range(256)) * 8)
    missing = tmp_path / "missing.jsonl"
    result = run(torn, long, binary, missing, sick, "--json")
    assert result.exit_code == 1
    said = result.stderr.splitlines()
    assert len(said) == 4
    assert said[0].startswith(f"costgov: {torn}:")
    assert "damaged" in said[0]
    assert said[1] == f"costgov: {long}:6: longer than {LINE_BYTES_MAX} bytes; skipped"
    assert said[2].startswith(f"costgov: {binary}: no known format")
    assert said[3].startswith(f"costgov: {missing}: No such file or directory")
    halts = {row["log"]: row["halts"] for row in rows(result) if "records" in row}
    assert (halts[str(long)], halts[str(sick)], halts[str(missing)]) == (1, 1, 0)


def test_a_log_of_which_nothing_can_be_judged_is_named_and_counts_for_no_policy(tmp_path: Path) -> None:
    strange, negative, empty = (tmp_path / f"{name}.jsonl" for name in ("strange", "negative", "empty"))
    strange.write_bytes(text([{"meta": {"role": "healthy"}}, {"epoch": 1, "accuracy": 0.5}, {"epoch": 2}]))
    negative.write_bytes(text([{"t": 1.0, "step": -1, "loss": 2.0}]))
    empty.touch()
    result = run(strange, negative, empty)
    assert result.stderr.splitlines() == [
        f"costgov: {strange}: nothing in it was judged: no record has a step, a whole number (keys: epoch, accuracy)",
        f"costgov: {negative}:1: step is negative; skipped",
        f"costgov: {empty}: holds no record",
    ]
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1].split()[:4] == ["default", "0/0", "0", "0/0"]
    assert run(empty).exit_code == 0, "a log that has nothing yet is no mistake"


def test_a_byte_order_mark_costs_no_record(tmp_path: Path) -> None:
    path = tmp_path / "bom.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + text(SICK))
    (*_, summary) = rows(run(path, "--json"))
    assert summary["records"] == len(SICK)


def test_a_log_that_is_named_twice_is_one_log(sick: Path) -> None:
    result = run(sick, sick.parent, sick, "--json")
    assert [row["log"] for row in rows(result) if "records" in row] == [str(sick)]


def test_a_ceiling_at_an_unknown_price_is_said_to_hold_nobody(sick: Path, tmp_path: Path) -> None:
    rule = '[[rule]]\nname = "ceiling"\ntrigger = "budget"\nresponse = "halt"\n'
    policy = tmp_path / "p.toml"
    policy.write_text(f'[policy]\nname = "p"\n[budget]\nceiling_usd = 0.01\n[halt]\ncheckpoint = "none"\n{rule}')
    unpriced = run(sick, "--policy", policy, "--json")
    assert "policy p has a ceiling, which no log can reach at an unknown price: give --price" in unpriced.stderr
    priced = run(sick, "--policy", policy, "--json", "--price", "20")
    assert priced.stderr == ""
    assert [rows(result)[-1]["halts"] for result in (unpriced, priced)] == [0, 1]


def test_a_log_without_times_is_told_that_it_cannot_run_on(sick: Path, tmp_path: Path) -> None:
    timeless = tmp_path / "timeless.jsonl"
    timeless.write_bytes(text([{"step": step, "loss": 2.0} for step in range(9)]))
    result = run(timeless, sick, "--run-on", "3h", "--json")
    assert result.stderr == f"costgov: {timeless}: its records have no time, so no clock can run on\n"
    assert result.exit_code == 0


def test_several_policies_each_name_themselves(sick: Path, tmp_path: Path) -> None:
    rule = '[[rule]]\nname = "nan"\ntrigger = "nonfinite"\nfor = "{} step"\nresponse = "halt"\n'
    for name, steps in (("hasty", 1), ("slow", 2)):
        (tmp_path / f"{name}.toml").write_text(f'[policy]\nname = "{name}"\n' + rule.format(steps))
    told = rows(run(sick, "--policy", tmp_path / "hasty.toml", "--policy", tmp_path / "slow.toml", "--json"))
    assert [row["policy"] for row in told if "rule" in row] == ["hasty"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--run-on", "90"], "is not a duration"), (["--run-on", "90d"], "longer than"), (["--price", "0"], "above 0")],
)
def test_a_wrong_command_line_says_so(sick: Path, arguments: list[str], said: str) -> None:
    result = run(sick, *arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_plot_is_one_page_of_all_logs_and_one_that_cannot_be_written_is_a_line(sick: Path, tmp_path: Path) -> None:
    (tmp_path / "well.jsonl").write_bytes(text(WELL))
    drawn = tmp_path / "out.html"
    assert run(tmp_path, "--plot", drawn).exit_code == 0
    page = drawn.read_text()
    assert page.count("<section>") == 2
    assert "nonfinite" in page
    for name in ("no/out.html", "no/out.png", "out.svg"):
        result = run(sick, "--plot", tmp_path / name)
        assert result.exit_code == 1
        assert f"--plot: {tmp_path / name}: " in result.stderr
        assert len(result.stderr.splitlines()) == 1
