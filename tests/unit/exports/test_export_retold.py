"""`costgov goodput` of an export tells what `costgov report` tells of the run, in each form; and hostile exports."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from governor.cli.common import ExitCode
from governor.cli.main import cli
from governor.core.attribution.causes import Amount, Cause
from governor.core.attribution.rows import ADVICE, RETOLD, Whole, how_sure, time_row
from governor.core.base.identity import ConnectionId
from governor.core.base.units import NS_PER_S, UsdMicros
from governor.exports.causes import PERIOD_NS
from governor.replay.goodput import LogTime
from governor.replay.retold import BEHIND_MAX_S, Retold
from governor.wire import recording
from governor.wire.cause_series import amounts_of, series_of
from governor.wire.jsonl import date_seconds
from governor.wire.recording import ReceivedFrame
from tests.unit.exports.exported import RUN, account_row, at, charge, gpus, hello, leave_journal, leave_recording, step
from tests.unit.exports.test_export import document
from tests.unit.exports.test_export_goodput import READS
from trainer_shim.wire import encode, head

Lines = Iterator[ReceivedFrame | bytes]
HEALTHY: dict[str, Any] = {"step_s": 1.0, "data_s": 0.1, "loop_s": 0.0, "forward_s": 0.3, "backward_s": 0.5}
SURE = ("low", "medium", "high")


def phase(second: float, name: str) -> ReceivedFrame:
    return ReceivedFrame(at(second), ConnectionId(7), encode({**head("phase", 0, at(second)), "phase": name}))


def bye(second: float) -> ReceivedFrame:
    fields = {"seq": 3, "completed": True, "step": 40, "reason": "end"}
    return ReceivedFrame(at(second), ConnectionId(7), encode({**head("bye", 0, at(second)), **fields}))


def healthy() -> Lines:
    yield hello(0)
    yield from (step(n + 3, n, **HEALTHY, comm_s=0.05) for n in range(1, 41))
    yield bye(45)


def loops() -> Lines:
    """Rank 1 sleeps 0.4 s in its loop at each step. Rank 0 waits for it in its collectives."""
    yield hello(0)
    yield hello(0, rank=1)
    for n in range(1, 41):
        waits = {**HEALTHY, "step_s": 1.4, "backward_s": 0.9, "comm_s": 0.41}
        yield step(1.4 * n, n, **waits)
        yield step(1.4 * n, n, rank=1, **{**HEALTHY, "step_s": 1.4, "loop_s": 0.4, "comm_s": 0.01})


def never_stepped() -> Lines:
    yield hello(0)
    yield from (gpus(second) for second in range(1, 120))


def hung_in_an_evaluation() -> Lines:
    yield hello(0)
    yield from (step(n + 3, n, **HEALTHY) for n in range(1, 21))
    yield phase(23, "eval")
    yield from (gpus(second) for second in range(24, 150))


RUNS: Mapping[str, tuple[Callable[[], Lines], int]] = {  # And for how long it hung, as the governor found.
    "healthy": (healthy, 0),
    "loops": (loops, 0),
    "never stepped": (never_stepped, 50),
    "hung in an evaluation": (hung_in_an_evaluation, 110),
}


def leave(state: Path, lines: list[ReceivedFrame | bytes], hung_s: int, *, is_priced: bool = True) -> None:
    """The recording, and a journal whose account is what these frames tell, with the hang that a governor sees."""
    log = LogTime(paid=(lambda now: now // 1_000_000) if is_priced else None)
    recorded = recording.head(RUN, {"node": "n"}, mono_ns=0, wall_ns=0, continues=False)
    for line in (recorded, *(one if isinstance(one, bytes) else recording.line(one) for one in lines)):
        log.read(json.loads(line))
    log.end()
    account = log.account
    largest = max(account.by_cause.values(), key=lambda one: one.ns)
    if hung_s:
        part = Amount(hung_s * NS_PER_S, largest.usd_micros // 2)
        largest.add(-part.ns, -part.usd_micros)
        account.by_cause[Cause.HANG] = part
    leave_recording(state, lines)
    charges = [charge("c1", 0, 200, 400_000)] if is_priced else []
    leave_journal(state, [], charges, {RUN: account_row(account, 200)})


def told(*words: str) -> dict[str, Any]:
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def goodput(*words: str) -> dict[str, Any]:
    (log,) = told("goodput", "--json", *words)["logs"]
    assert isinstance(log, dict)
    return log


def causes(row: Mapping[str, Any], of: str) -> dict[str, float]:
    found = {one["cause"]: one[of] for one in row["causes"]}
    return {name: value for name, value in {"productive": row[f"productive_{of}"], **found}.items() if value}


def within(expected: dict[str, float], form: str) -> Any:
    """An event file has float32."""
    return pytest.approx(expected, abs=1e-6, rel=1e-7 if form == "tensorboard" else 0)


@pytest.mark.parametrize("form", [*READS, "directory"])
@pytest.mark.parametrize("name", RUNS)
def test_goodput_of_an_export_tells_what_the_report_tells(state: Path, tmp_path: Path, form: str, name: str) -> None:
    lines, hung_s = RUNS[name]
    leave(state, list(lines()), hung_s)
    report = told("report", RUN, "--json")
    option, file = {**READS, "directory": ("--jsonl", ""), "jsonl": ("--jsonl", "causes.jsonl")}[form]
    document(RUN, option, str(tmp_path / "to"))
    log = goodput(str(tmp_path / "to" / file))
    for of in ("s", "usd"):
        assert causes(log, of) == within(causes(report, of), form)
        assert sum(causes(log, of).values()) == pytest.approx(log["wall_s" if of == "s" else "usd"], abs=1e-9)
    assert ("hang" in causes(log, "s")) is bool(hung_s)
    assert log["steps"] == max((one["step"] for one in read_steps(lines())), default=0)
    for has, had in zip(*(sorted(of["causes"], key=lambda one: one["cause"]) for of in (log, report)), strict=True):
        assert SURE.index(has["confidence"]) <= SURE.index(had["confidence"]), "no surer than the governor was"


def read_steps(lines: Lines) -> Iterator[dict[str, Any]]:
    for one in lines:
        frame = json.loads(recording.line(one)) if isinstance(one, ReceivedFrame) else {}
        if frame.get("kind") == "step":
            yield frame


def test_a_price_divides_the_time_to_the_micro_dollar(state: Path, tmp_path: Path) -> None:
    leave(state, list(loops()), 0)
    document(RUN, "--jsonl", str(tmp_path / "to"))
    log = goodput(str(tmp_path / "to"), "--price", "22")
    assert round(log["usd"] * 1e6) == 22_000_000 * round(log["wall_s"] * NS_PER_S) // (3_600 * NS_PER_S)
    assert sum(round(value * 1e6) for value in causes(log, "usd").values()) == round(log["usd"] * 1e6)
    seconds = causes(log, "s")
    assert causes(log, "usd") == pytest.approx(
        {n: log["usd"] * s / log["wall_s"] for n, s in seconds.items()}, abs=2e-6
    )


@pytest.mark.parametrize("is_priced", [True, False])
def test_dollars_are_shown_where_the_export_has_them(state: Path, tmp_path: Path, *, is_priced: bool) -> None:
    leave(state, list(healthy()), 0, is_priced=is_priced)
    document(RUN, "--jsonl", str(tmp_path / "to"))
    shown = CliRunner().invoke(cli, ("goodput", str(tmp_path / "to"))).stdout
    assert ("DOLLARS" in shown) is is_priced
    assert RETOLD not in shown, "one line says that an export does not tell how sure a cause is"
    (tmp_path / "log.jsonl").write_text("".join(f'{{"t": {n}, "step": {n}, "loss": 2.0}}\n' for n in range(9)))
    words = ("goodput", str(tmp_path / "to"), str(tmp_path / "log.jsonl"))
    assert "$/HOUR" not in CliRunner().invoke(cli, words).stdout, "half of a sum is none"
    assert told(*words, "--json")["all"]["usd"] is None


def test_it_contradicts_nothing_that_the_account_knows(state: Path, tmp_path: Path) -> None:
    leave(state, list(loops()), 0)
    document(RUN, "--jsonl", str(tmp_path / "to"))
    log = goodput(str(tmp_path / "to"))
    assert all(one["evidence"].startswith(RETOLD) for one in log["causes"])
    assert not any("productive" in line for line in log["missing"])


@pytest.mark.parametrize("cause", ADVICE)
def test_a_retold_cause_is_as_sure_as_the_least_sure_account(cause: Cause) -> None:
    whole = Whole({cause: Amount(NS_PER_S)}, 1, {}, retold=frozenset((cause,)))
    sure = {how_sure(cause, is_weak=is_weak)[0] for is_weak in (True, False)}
    assert time_row(whole)["causes"][0]["confidence"] == min(sure, key=SURE.index)


# --- exports that are cut, or somebody else's -----------------------------------------------------------------


@pytest.mark.parametrize("form", ["jsonl", "tensorboard"])
@pytest.mark.parametrize("kept", [0.0, 0.3, 0.6, 0.98])
def test_an_export_that_was_cut_tells_its_steps_and_says_so(
    state: Path, tmp_path: Path, form: str, kept: float
) -> None:
    leave(state, list(loops()), 0)
    option, _ = READS[form]
    document(RUN, option, str(tmp_path / "to"))
    (cut,) = tmp_path.glob("to/causes.jsonl" if form == "jsonl" else f"to/{RUN}/events.*")
    whole = cut.read_bytes()
    cut.write_bytes(whole[: int(kept * len(whole))])
    result = CliRunner().invoke(cli, ("goodput", "--json", str(tmp_path / "to")))
    assert result.exception is None or isinstance(result.exception, SystemExit)
    (log,) = json.loads(result.stdout)["logs"]
    assert not any(one["evidence"].startswith(RETOLD) for one in log["causes"])
    if form == "jsonl":
        assert (log["steps"], result.exit_code) == (40, ExitCode.FAILED)


def test_an_export_that_lost_its_last_lines_is_told_by_its_steps(state: Path, tmp_path: Path) -> None:
    leave(state, list(loops()), 0)
    document(RUN, "--jsonl", str(tmp_path / "to"))
    cut = tmp_path / "to" / "causes.jsonl"
    cut.write_bytes(cut.read_bytes().partition(b"\n")[0] + b"\n")
    result = CliRunner().invoke(cli, ("goodput", "--json", str(tmp_path / "to")))
    (log,) = json.loads(result.stdout)["logs"]
    assert log["wall_s"] == pytest.approx(56, abs=1)
    assert (result.exit_code, "causes.jsonl: does not tell" in result.stderr) == (ExitCode.FAILED, True)


def cut(path: Path, lines: int) -> None:
    """Behind a line: what is left is as good as a whole file."""
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:lines]))


@pytest.mark.parametrize("lines", [1, 2, 4])
def test_a_file_of_causes_that_is_not_as_it_was_exported_is_no_account(state: Path, tmp_path: Path, lines: int) -> None:
    leave(state, list(healthy()), 0)
    document(RUN, "--jsonl", str(tmp_path / "to"))
    assert len((tmp_path / "to/causes.jsonl").read_bytes().splitlines()) == 5
    cut(tmp_path / "to/causes.jsonl", lines)
    result = CliRunner().invoke(cli, ("goodput", "--json", str(tmp_path / "to")))
    (log,) = json.loads(result.stdout)["logs"]
    assert not any(one["evidence"].startswith(RETOLD) for one in log["causes"])
    assert (log["steps"], log["wall_s"]) == (40, pytest.approx(44, abs=2))
    assert (result.exit_code, result.stderr.count("does not tell the account")) == (ExitCode.FAILED, 1)
    (tmp_path / "to/performance_metrics.jsonl").unlink()
    alone = CliRunner().invoke(cli, ("goodput", str(tmp_path / "to/causes.jsonl")))
    assert (alone.exit_code, alone.stdout, alone.stderr.count("\n")) == (ExitCode.FAILED, "", 1)


@pytest.mark.parametrize("kept", [0.1, 0.5])
def test_an_event_file_that_is_not_as_it_was_exported_has_no_account(state: Path, tmp_path: Path, kept: float) -> None:
    leave(state, list(healthy()), 0)
    document(RUN, "--to", "tensorboard", str(tmp_path / "to"))
    (path,) = tmp_path.glob(f"to/{RUN}/events.*")
    whole, at, ends = path.read_bytes(), 0, [0]
    while at < len(whole):  # A record: its length in eight bytes, four of a sum, itself, and four of a sum.
        at += 16 + int.from_bytes(whole[at : at + 8], "little")
        ends.append(at)
    path.write_bytes(whole[: ends[int(kept * len(ends))]])
    log = goodput(str(tmp_path / "to"))
    assert not any(one["evidence"].startswith(RETOLD) for one in log["causes"])
    assert [line for line in log["missing"] if "the account of its run" in line]


def test_an_export_in_which_nothing_was_changed_is_told_after_it_was_copied(state: Path, tmp_path: Path) -> None:
    leave(state, list(healthy()), 0)
    document(RUN, "--jsonl", str(tmp_path / "to"))
    shutil.copytree(tmp_path / "to", tmp_path / "copy")
    (tmp_path / "other").mkdir()
    shutil.copy(tmp_path / "to/causes.jsonl", tmp_path / "other")  # Nothing says there what it was.
    for path in ("copy", "other"):
        assert all(one["evidence"].startswith(RETOLD) for one in goodput(str(tmp_path / path))["causes"])


BAD: list[dict[str, Any]] = [
    {"cause/hang_s": "nan"}, {"cause/hang_s": -1}, {"cause/hang_s": 10**400}, {"cause/hang_s": True},
    {"cause/hang_s": None}, {"cause/hang_s": {}}, {"cause/hang_s": 1e300, "cause/productive_s": 1},
    {"cause/hang_s": 9e8, "cause/productive_s": 9e8}, {"cause/gremlins_s": 1}, {"cause/_s": 1}, {"cause/": 1},
    {"cause/hang_usd": -1, "cause/hang_s": 1}, {"cause/hang_usd": 1e300}, {"cause/hang_s": 1, "loss": 2.0},
    {"cause/hang_s": float("inf")}, {"cause/hang_s": 1, "cause/" + "x" * 10_000: 1},
]  # fmt: skip


@pytest.mark.parametrize("is_beside", [True, False])
@pytest.mark.parametrize("bad", BAD, ids=range(len(BAD)))
def test_a_log_with_such_keys_that_are_none_is_told_by_its_steps(
    tmp_path: Path, bad: dict[str, Any], *, is_beside: bool
) -> None:
    path = tmp_path / "train.jsonl"
    steps: list[dict[str, Any]] = [{"t": 1.0 * n, "step": n, "loss": 2.0, "step_s": 1.0} for n in range(1, 11)]
    steps = [*steps, {"t": 10.0, "step": 10, **bad}] if is_beside else [{**bad, **row} for row in steps]
    path.write_text("".join(json.dumps(row) + "\n" for row in steps))
    log = goodput(str(path))
    assert (log["wall_s"], log["steps"]) == (pytest.approx(10), 10)
    # A line with figures beside is somebody's own, and no point of an export.
    is_point = is_beside and "loss" not in bad
    assert len([line for line in log["missing"] if "the account of its run" in line]) == is_point
    assert max(map(len, log["missing"])) < 250


@pytest.mark.parametrize("bad", BAD[:12], ids=range(12))
def test_a_file_of_causes_that_has_none_is_one_line(tmp_path: Path, bad: dict[str, Any]) -> None:
    path = tmp_path / "causes.jsonl"
    path.write_text(json.dumps({name.removeprefix("cause/"): value for name, value in bad.items()}))
    result = CliRunner().invoke(cli, ("goodput", str(path)))
    assert (result.exit_code, result.stderr.count("\n"), result.stdout) == (ExitCode.FAILED, 1, "")


def test_a_training_log_of_that_name_is_read_as_any(tmp_path: Path) -> None:
    path = tmp_path / "causes.jsonl"
    path.write_text("".join(f'{{"t": {n}, "step": {n}, "loss": 2.0, "step_s": 1.0}}\n' for n in range(1, 11)))
    log = goodput(str(path))
    assert (log["steps"], log["wall_s"]) == (10, pytest.approx(10))
    assert not any("the account of its run" in line for line in log["missing"])


@pytest.mark.parametrize(("behind_s", "is_cut"), [(BEHIND_MAX_S, False), (BEHIND_MAX_S + 0.5, True), (1e300, False)])
@pytest.mark.parametrize("began", [0.0, 1.8e9, "2027-01-15T08:00:00.000000Z"])
def test_steps_that_go_on_for_three_points_behind_the_last_one_are_of_a_cut_export(
    began: float | str, behind_s: float, *, is_cut: bool
) -> None:
    name, second = ("timestamp", date_seconds(began)) if isinstance(began, str) else ("t", began)
    assert second is not None
    retold = Retold()
    assert retold.take({name: began, "step": 1, "cause/productive_s": 1.0}) is not None
    retold.take({"t": second + behind_s, "step": 2, "loss": 2.0})
    assert (retold.by_cause is None, retold.why_not is not None) == (is_cut, is_cut)


def test_points_come_so_often_that_three_of_them_are_the_limit() -> None:
    assert BEHIND_MAX_S * NS_PER_S == 3 * PERIOD_NS


AMOUNTS = st.dictionaries(
    st.sampled_from(Cause), st.tuples(st.integers(0, 10**15), st.integers(0, 10**12)), min_size=1
).filter(lambda amounts: sum(ns for ns, _ in amounts.values()) > 0)


@given(AMOUNTS, st.none() | st.integers(0, 10**9).map(UsdMicros))
def test_what_is_written_is_read_to_the_nanosecond(
    amounts: dict[Cause, tuple[int, int]], price: UsdMicros | None
) -> None:
    ns, usd = ({cause.value: pair[of] for cause, pair in amounts.items()} for of in (0, 1))
    point = json.loads(json.dumps({"step": 3, "t": 1.0, **series_of(ns, usd)}))
    retold = Retold()
    assert retold.take(point) == {"t": 1.0}
    whole = retold.whole(price, 3)
    assert whole is not None
    assert {cause.value: one.ns for cause, one in whole.by_cause.items()} == ns
    charged = sum(usd.values()) if price is None else price * whole.wall_ns // (3_600 * NS_PER_S)
    assert whole.usd_micros == charged


@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.floats() | st.text()))
def test_no_point_of_anybody_raises(point: dict[str, Any]) -> None:
    for prefix in ("", "cause/"):
        Retold().take(point, prefix)
        amounts_of({f"{prefix}hang_s": value for value in point.values()}, prefix)
