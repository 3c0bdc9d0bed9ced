"""`costgov export`: what is joined of recording and journal, in the forms that need no package; what is refused."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from governor.cli.common import ExitCode, Failed
from governor.cli.export import FORMS
from governor.cli.main import cli
from governor.exports import forms
from governor.exports.forms.tensorboard import FILE
from governor.exports.owned import MARKER, PART
from governor.replay.logs import records
from governor.wire import recording
from tests.unit.exports.exported import (
    LINES,
    PARTS,
    ROWS,
    RUN,
    at,
    gpus,
    hello,
    leave_journal,
    leave_recording,
    read_lines,
    row,
    step,
    window,
)


def export(*words: str) -> tuple[int, str, str]:
    """Exit code, standard output, and what is told beside it."""
    result = CliRunner().invoke(cli, ("export", *words), standalone_mode=False)
    failed = result.exception
    if isinstance(failed, Failed):
        return failed.code, result.stdout, result.stderr + failed.message
    if failed is not None and not isinstance(failed, SystemExit):
        raise failed
    code = result.return_value if isinstance(result.return_value, int) else result.exit_code
    return code, result.stdout, result.stderr


def document(*words: str) -> dict[str, Any]:
    code, out, err = export(*words, "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert isinstance(told, dict)
    return told


def files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_every_form_of_the_folder_is_offered() -> None:
    assert forms.FORMS == FORMS
    for name in FORMS:
        module = forms.form(name)
        assert module.MEANING.endswith(".")
        assert module.TARGET.startswith("DIR")


def test_the_seeds_files_hold_steps_gpus_and_what_happened(left: Path, tmp_path: Path) -> None:
    told = document(RUN, "--jsonl", str(tmp_path / "logs"))
    training, performance, gpu, events = (
        read_lines(tmp_path / "logs" / f"{name}.jsonl")
        for name in ("training_metrics", "performance_metrics", "gpu_metrics", "events")
    )
    assert training[0] == {
        "timestamp": "2027-01-15T08:00:10.000000Z", "step": 1, "loss": 2.0, "tokens_total": 1000.0,
        "steps_per_second": 2.0, "spend_usd": 1.0,
    }  # fmt: skip
    assert [line.get("loss") for line in training] == [2.0, 2.0, "nan"]
    assert training[1]["learning_rate"] == 0.001
    assert performance.pop(0) == {"timestamp": "2027-01-15T08:00:00.000000Z", "step": 0, "phase": "init"}
    assert performance[1] == {
        "timestamp": "2027-01-15T08:00:20.000000Z", "step": 2, **PARTS, "other_s": 0.125, "steps_per_second": 2.0,
        "tokens_per_second": 2000.0, "spend_usd": 2.0, "usd_per_mtok": 0.2,
    }  # fmt: skip
    assert "usd_per_mtok" not in performance[0], "no window had closed: unknown is not zero"
    assert gpu == [
        {"timestamp": "2027-01-15T08:00:15.000000Z", "step": 1, "gpu": 0, "uuid": "GPU-a", "busy_frac": 0.5,
         "memory_used_bytes": 10, "memory_total_bytes": 80},
        {"timestamp": "2027-01-15T08:00:15.000000Z", "step": 1, "gpu": 1, "uuid": "GPU-b", "memory_total_bytes": 80},
    ]  # fmt: skip
    assert [(line["step"], line["event"], line["text"]) for line in events] == [
        (0, "attempt", "a1, policy default, 2 ranks"),
        (2, "rule_slow", "half the pace"),
        (3, "rule", "nan (halt): loss is nan"),
        (3, "halt", "llama.n.1: ARMED to ASKED (DECIDED)"),
        (3, "ended", "exit code 1 (killed)"),
    ]
    assert (told["spend_usd"], told["points"], told["gpu_samples"], told["events"]) == ("3.000000", 3, 2, 5)
    assert (told["last_step"], told["unchanged"], told["recorded"], told["lines_unread"]) == (3, False, True, 0)


def test_the_seeds_own_script_reads_its_last_line(left: Path, tmp_path: Path) -> None:
    """As the guide of a training stack has it: the last line's step, and its pace."""
    document(RUN, "--jsonl", str(tmp_path / "logs"))
    last = json.loads((tmp_path / "logs" / "training_metrics.jsonl").read_text().splitlines()[-1])
    assert (last["step"], last.get("steps_per_second", 0)) == (3, 2.0)


@pytest.mark.parametrize("form", ["jsonl", "tensorboard"])
def test_the_same_is_exported_the_same_and_left_alone_the_second_time(left: Path, tmp_path: Path, form: str) -> None:
    first = document(RUN, str(tmp_path / "a"), "--to", form)
    before, (path, *_) = files(tmp_path / "a"), first["paths"]
    written = os.stat(path).st_mtime_ns
    again = document(RUN, str(tmp_path / "a"), "--to", form)
    assert (first["unchanged"], again["unchanged"]) == (False, True)
    assert (files(tmp_path / "a"), os.stat(path).st_mtime_ns) == (before, written)
    document(RUN, str(tmp_path / "b"), "--to", form)
    assert files(tmp_path / "b") == before


@pytest.mark.parametrize("form", ["jsonl", "tensorboard"])
def test_a_run_that_went_on_replaces_its_export(left: Path, tmp_path: Path, form: str) -> None:
    document(RUN, str(tmp_path / "a"), "--to", form)
    leave_recording(left, [*LINES, step(40, 4, **PARTS)])
    told = document(RUN, str(tmp_path / "a"), "--to", form)
    assert (told["last_step"], told["unchanged"]) == (4, False)
    assert not list((tmp_path / "a").rglob(PART))


def test_event_files_are_read_by_tensorboard_itself_and_by_replay(left: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    told = document(RUN, str(tmp_path), "--to", "tensorboard")
    assert told["paths"] == [str(tmp_path / RUN / FILE)]
    read = EventAccumulator(str(tmp_path / RUN))
    read.Reload()
    tags = {"train/loss", "cost/spend_usd", "speed/tokens_per_s", "time/data_s", "gpu/0/busy_frac"}
    assert tags <= {*read.Tags()["scalars"]}
    assert [(one.step, one.wall_time, one.value) for one in read.Scalars("cost/spend_usd")] == [
        (1, 1_800_000_010.0, 1.0), (2, 1_800_000_020.0, 2.0), (3, 1_800_000_030.0, 2.5),
    ]  # fmt: skip
    (halt,) = read.Tensors("events/halt")
    assert (halt.step, halt.tensor_proto.string_val[0]) == (3, b"llama.n.1: ARMED to ASKED (DECIDED)")
    replayed = [record for _, record in records(tmp_path / RUN) if isinstance(record, dict) and "train/loss" in record]
    assert [record["step"] for record in replayed] == [1, 2, 3]


@pytest.mark.parametrize(("form", "name"), [("jsonl", "training_metrics.jsonl"), ("tensorboard", f"{RUN}/{FILE}")])
def test_a_file_that_is_not_of_an_export_is_refused_and_nothing_is_changed(
    left: Path, tmp_path: Path, form: str, name: str
) -> None:
    theirs = tmp_path / "logs" / name
    theirs.parent.mkdir(parents=True)
    theirs.write_text('{"step": 1}\n')
    code, out, err = export(RUN, str(tmp_path / "logs"), "--to", form)
    assert (code, out) == (ExitCode.FAILED, "")
    assert err == f"{theirs}: is there already and not of an export; move it away, or name another directory"
    assert files(tmp_path / "logs") == {name: b'{"step": 1}\n'}


def test_an_export_that_somebody_changed_is_theirs(left: Path, tmp_path: Path) -> None:
    document(RUN, "--jsonl", str(tmp_path))
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write("{}\n")
    code, _, err = export(RUN, "--jsonl", str(tmp_path))
    assert code == ExitCode.FAILED
    assert "events.jsonl: was changed since it was exported" in err


def test_a_link_in_the_place_of_a_file_is_not_followed(left: Path, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "precious").write_text("x")
    (tmp_path / "logs" / "events.jsonl").symlink_to(tmp_path / "precious")
    code, _, err = export(RUN, "--jsonl", str(tmp_path / "logs"))
    assert (code, "events.jsonl: is there already" in err) == (ExitCode.FAILED, True)
    assert (tmp_path / "precious").read_text() == "x"


def test_another_runs_export_is_not_replaced(left: Path, tmp_path: Path) -> None:
    document(RUN, "--jsonl", str(tmp_path))
    leave_journal(left, [row("run", 0, ROWS[0].data, run="other")], [])
    code, _, err = export("other", "--jsonl", str(tmp_path))
    assert (code, f"holds the export of run '{RUN}'" in err) == (ExitCode.FAILED, True)


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"costgov_export": 2}', b"[" * 60_000])
def test_a_marker_that_is_none_is_said(left: Path, tmp_path: Path, damage: bytes) -> None:
    document(RUN, "--jsonl", str(tmp_path))
    (tmp_path / MARKER).write_bytes(damage)
    code, _, err = export(RUN, "--jsonl", str(tmp_path))
    assert (code, err.startswith(str(tmp_path / MARKER)), "\n" in err) == (ExitCode.FAILED, True, False)


def test_what_a_killed_export_left_is_no_obstacle(left: Path, tmp_path: Path) -> None:
    """It ends after the first file: half new, half old, and a directory of parts."""
    document(RUN, "--jsonl", str(tmp_path))
    marked = json.loads((tmp_path / MARKER).read_text())
    leave_recording(left, [*LINES, step(40, 4)])
    document(RUN, "--jsonl", str(tmp_path / "new"))
    os.replace(tmp_path / "new" / "training_metrics.jsonl", tmp_path / "training_metrics.jsonl")
    fresh = json.loads((tmp_path / "new" / MARKER).read_text())["files"]
    marked["files"] = {name: sorted({*known, *fresh[name]}) for name, known in marked["files"].items()}
    (tmp_path / MARKER).write_text(json.dumps(marked))
    (tmp_path / PART).mkdir()
    (tmp_path / PART / "events.jsonl").write_text("half")
    assert document(RUN, "--jsonl", str(tmp_path))["last_step"] == 4


@pytest.mark.parametrize("run", ["nobody", "../recordings/llama", "a/b", "x" * 500, "", "\x1b[2J"])
def test_a_run_that_is_none_is_one_line_and_nothing_is_written(left: Path, tmp_path: Path, run: str) -> None:
    code, _, err = export(run, "--jsonl", str(tmp_path / "logs"))
    assert (code, err.startswith("there is no run "), "\n" in err) == (ExitCode.UNKNOWN, True, False)
    assert "\x1b" not in err
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize(
    "words",
    [
        (RUN,),
        (RUN, "d"),
        (RUN, "--to", "wandb"),
        (RUN, "--to", "csv", "d"),
        (RUN, "d", "--jsonl", "d"),
        (RUN, "d", "--to", "jsonl", "--every", "0"),
    ],
)
def test_a_wrong_command_line_is_that(left: Path, words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, ("export", *words))
    assert result.exit_code == ExitCode.USAGE


def test_without_a_recording_there_is_what_the_journal_says(state: Path, tmp_path: Path) -> None:
    leave_journal(state)
    code, out, err = export(RUN, "--jsonl", str(tmp_path), "--json")
    assert (code, "has no recording" in err) == (0, True)
    assert (json.loads(out)["points"], json.loads(out)["events"], json.loads(out)["recorded"]) == (1, 5, False)
    assert read_lines(tmp_path / "performance_metrics.jsonl") == [
        {"timestamp": "2027-01-15T08:00:15.000000Z", "step": None, "spend_usd": 1.5, "usd_per_mtok": 0.2}
    ]
    assert (tmp_path / "training_metrics.jsonl").read_text() == ""


def test_without_a_ledger_the_spend_is_unknown_and_not_zero(state: Path, tmp_path: Path) -> None:
    leave_recording(state)
    told = document(RUN, "--jsonl", str(tmp_path))
    assert told["spend_usd"] is None
    assert not any("spend_usd" in line for line in read_lines(tmp_path / "training_metrics.jsonl"))


def test_a_resumed_run_goes_back_and_a_step_told_twice_counts_once(state: Path, tmp_path: Path) -> None:
    leave_recording(
        state,
        [hello(0), step(1, 1), step(1.1, 1, loss=7.0), step(2, 2), hello(10, attempt="a2"),
         step(11, 2, attempt_step=1), step(12, 3, attempt_step=2)],
    )  # fmt: skip
    document(RUN, "--jsonl", str(tmp_path))
    lines = read_lines(tmp_path / "training_metrics.jsonl")
    assert [(line["step"], line["loss"]) for line in lines] == [(1, 2.0), (2, 2.0), (2, 2.0), (3, 2.0)]


def test_the_step_that_a_halt_is_of_is_exported_also_where_the_lowest_rank_had_not_told_it(
    state: Path, tmp_path: Path
) -> None:
    """Ranks send a broken step at once, and others four times a second: behind a verdict nothing is recorded."""
    healthy = (hello(0), hello(0, rank=1), step(10, 1), step(10, 1, rank=1, loss=9.0))
    broken = (step(11, 2, rank=1, loss=8.0), step(12, 3, rank=1, loss="nan"))
    halted = recording.halted(at(12), "llama.n.1")
    for number, lines in enumerate([(*healthy, *broken), (*healthy, *broken, halted)]):
        leave_recording(state, lines)
        document(RUN, "--jsonl", str(tmp_path / f"{number}"))
    before, behind = (read_lines(tmp_path / f"{number}" / "training_metrics.jsonl") for number in (0, 1))
    assert [line["loss"] for line in before] == [2.0], "the lowest rank's, as it may still tell them"
    assert [line["loss"] for line in behind] == [2.0, 8.0, "nan"]


def test_of_a_halt_that_no_step_is_the_reason_for_the_series_are_the_lowest_ranks(state: Path, tmp_path: Path) -> None:
    lines = (hello(0), hello(0, rank=1), step(10, 1), step(10, 2, rank=1), recording.halted(at(90), "llama.n.1"))
    leave_recording(state, lines)
    document(RUN, "--jsonl", str(tmp_path / "logs"))
    assert [line["step"] for line in read_lines(tmp_path / "logs" / "training_metrics.jsonl")] == [1]


def test_when_a_step_does_not_say_how_long_it_took_its_arrival_does(state: Path, tmp_path: Path) -> None:
    leave_recording(state, [hello(0), step(10, 1), step(20, 3)])
    document(RUN, "--jsonl", str(tmp_path))
    _, first, second = read_lines(tmp_path / "performance_metrics.jsonl")
    assert "steps_per_second" not in first
    assert (second["steps_per_second"], second["tokens_per_second"]) == (0.2, 200.0)


def test_every_nth_step(left: Path, tmp_path: Path) -> None:
    document(RUN, "--jsonl", str(tmp_path), "--every", "2")
    assert [line["step"] for line in read_lines(tmp_path / "training_metrics.jsonl")] == [2]


def test_lines_that_are_none_are_counted_and_the_rest_is_exported(state: Path, tmp_path: Path) -> None:
    bad = (
        b"[]\n",
        b"garbage\n",
        b'{"v":1,"kind":"step","at_ns":"x"}\n',
        b'{"v":1,"kind":"note","note":"gpus","at_ns":5}\n',
    )
    leave_recording(state, [hello(0), step(1, 1), *bad, step(2, 2, step=-5), step(3, 3, lr=1e400), step(4, 4)])
    leave_recording(state, [gpus(5), step(6, 6)], number=3)
    code, out, err = export(RUN, "--jsonl", str(tmp_path), "--json")
    told = json.loads(out)
    assert (code, told["lines_unread"], told["last_step"]) == (0, 5, 6)
    assert "5 lines of the recording could not be read" in err


def test_a_damaged_segment_costs_that_and_is_said(left: Path, tmp_path: Path) -> None:
    path = leave_recording(left, [step(50, 5)], number=2)
    path.write_bytes(b"no gzip at all")
    code, out, err = export(RUN, "--jsonl", str(tmp_path), "--json")
    assert (code, json.loads(out)["last_step"]) == (ExitCode.FAILED, 3)
    assert (str(path) in err, err.count("\n")) == (True, 1)


def test_a_recording_of_another_run_is_refused(state: Path, tmp_path: Path) -> None:
    leave_recording(state, run="other")
    code, _, err = export(RUN, "--jsonl", str(tmp_path), "--json")
    assert (code, "is of run 'other'" in err) == (ExitCode.FAILED, True)


def test_memory_does_not_grow_with_the_run(state: Path, tmp_path: Path) -> None:
    def peak(count: int) -> int:
        for old in (state / "recordings" / RUN).glob("*"):
            old.unlink()
        leave_recording(state, [hello(0), *(step(n, n, **PARTS) for n in range(1, count))])
        tracemalloc.start()
        document(RUN, "--jsonl", str(tmp_path / str(count)))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(10)  # Imports.
    assert peak(10_000) < peak(1_000) + 1_000_000


def test_a_window_of_unknown_price_ends_the_price_before(state: Path, tmp_path: Path) -> None:
    leave_recording(state, [hello(0), step(10, 1), step(20, 2)])
    leave_journal(state, [window(5, 0, 1_000, 500), window(15, 1_000, 2_000, 0)])
    document(RUN, "--jsonl", str(tmp_path))
    prices = [
        line.get("usd_per_mtok") for line in read_lines(tmp_path / "performance_metrics.jsonl") if "phase" not in line
    ]
    assert prices == [0.5, None]


@pytest.mark.parametrize("name", [MARKER, PART])
def test_a_fifo_in_the_place_of_our_own_is_refused(left: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "to").mkdir()
    os.mkfifo(tmp_path / "to" / name)
    code, _, err = export(RUN, "--jsonl", str(tmp_path / "to"))
    assert (code, err.startswith(f"{tmp_path / 'to' / name}: "), "None" in err) == (ExitCode.FAILED, True, False)


def test_a_link_in_the_place_of_the_parts_is_told_as_that(left: Path, tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "to" / PART).symlink_to(tmp_path / "other")
    code, _, err = export(RUN, "--jsonl", str(tmp_path / "to"))
    assert (code, "no directory of an export" in err) == (ExitCode.FAILED, True)
    assert (tmp_path / "other").is_dir()


def test_goodput_reads_the_times_of_an_export_alone_and_says_so(left: Path, tmp_path: Path) -> None:
    export(RUN, "--jsonl", str(tmp_path / "to"))
    result = CliRunner().invoke(cli, ("goodput", str(tmp_path / "to"), "--json"))
    logs = json.loads(result.stdout)["logs"]
    assert [Path(one["log"]).name for one in logs] == ["causes.jsonl"]
    assert result.stderr.count("an export of costgov") == 1
    (tmp_path / "to" / "causes.jsonl").write_bytes(b"")
    result = CliRunner().invoke(cli, ("goodput", str(tmp_path / "to"), "--json"))
    logs = json.loads(result.stdout)["logs"]
    assert [Path(one["log"]).name for one in logs] == ["performance_metrics.jsonl"]
    result = CliRunner().invoke(cli, ("goodput", str(tmp_path / "to" / "events.jsonl")))
    assert result.exit_code == ExitCode.FAILED
