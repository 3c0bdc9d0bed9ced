"""`costgov report` and `costgov goodput` as they are called: from a journal and a recording, without a governor."""

from __future__ import annotations

import json
import os
import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from governor.adapters.journal.writer import open_journal
from governor.cli.common import ExitCode
from governor.cli.main import cli
from governor.cli.report.known import Kept, _failures, how_it_ended
from governor.core.attribution.account import TimeAccount
from governor.core.attribution.causes import Amount, Cause
from governor.core.base.units import MICROS_PER_USD, NS_PER_HOUR, NS_PER_S, UsdMicros, WallNs
from governor.core.money.charges import Charge, Line, LineKind, Payer, Place, Unit, charge_row
from governor.core.views.status import run_status
from tests.golden.report_cases import nan_halt
from tests.unit.cli.test_ended import call, home, leave
from tests.unit.core.engine.test_run_forecast import started, trained
from tests.unit.core.engine.test_step import at
from tests.unit.replay.recorded_file import Written

__all__ = ["home"]  # A fixture.


def account() -> TimeAccount:
    return TimeAccount(
        by_cause={Cause.PRODUCTIVE: Amount(60 * NS_PER_S, 2_000_000), Cause.DATA: Amount(15 * NS_PER_S, 500_000)},
        furthest_step=60,
        has_begun=True,
    )


@pytest.fixture
def ran(home: Path) -> Path:
    """Its journal and its recording."""
    leave(home, time=account().snapshot())
    return home


def record(home: Path) -> None:
    written = Written("gpt", 1_780_000_000).hello(0).steps(range(1, 61), 10, 1.0)
    written.save(home / "state" / "recordings")


def test_the_report_comes_from_journal_and_recording(ran: Path) -> None:
    record(ran)
    code, text, _ = call("report", "gpt", "--json")
    assert code == ExitCode.OK
    document = json.loads(text)
    assert (document["run"], document["wall_s"], document["usd"]) == ("gpt", 75.0, 2.5)
    assert [one["cause"] for one in document["causes"]] == ["data_starvation"]
    assert document["stability"]["steps"] == 60
    assert document["mfu"] is None


def test_without_a_recording_it_says_so(ran: Path) -> None:
    code, text, _ = call("report", "gpt", "--md")
    assert code == ExitCode.OK
    assert "it has no recording" in text


def test_the_state_directory_may_be_named(ran: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COSTGOV_PATHS__STATE_DIR")
    assert call("report", "--state-dir", str(ran / "state"), "gpt")[0] == ExitCode.OK
    code, _, said = call("report", "gpt", "--state-dir", str(ran / "nowhere"))
    assert (code, said.count("\n")) == (ExitCode.FAILED, 0)


@pytest.mark.parametrize("is_relative", [True, False])
def test_the_directory_of_a_launched_command_may_be_named(
    ran: Path, monkeypatch: pytest.MonkeyPatch, *, is_relative: bool
) -> None:
    """Its journal is there. Recordings of all launches are in the state directory that has it."""
    record(ran)
    directory = ran / "state" / "runs" / "gpt"
    monkeypatch.chdir(directory)
    code, text, _ = call("report", "gpt", "--json", "--state-dir", "." if is_relative else str(directory))
    beside = call("report", "gpt", "--json", "--state-dir", str(ran / "state"))
    assert (code, text) == (ExitCode.OK, beside[1])
    assert json.loads(text)["usd"] == 2.5


@pytest.mark.parametrize(("name", "begins"), [("r.html", "<!doctype html>"), ("r.md", "# Run gpt"), ("r.json", "{")])
def test_the_ending_of_the_file_says_what_is_written(ran: Path, tmp_path: Path, name: str, begins: str) -> None:
    assert call("report", "gpt", "--output", str(tmp_path / name))[0] == ExitCode.OK
    assert (tmp_path / name).read_text().startswith(begins)


def test_a_run_that_nobody_knows_is_one_line(ran: Path) -> None:
    code, _, said = call("report", "gtp")
    assert (code, "no run" in said, said.count("\n")) == (ExitCode.UNKNOWN, True, 0)
    assert call("report", "../gpt")[0] == ExitCode.UNKNOWN


def test_a_run_may_have_the_name_of_a_command(ran: Path) -> None:
    code, _, said = call("report", "show", "compare")
    assert code == ExitCode.UNKNOWN
    assert "compare" in said


def test_an_account_that_is_not_ours_costs_the_account(home: Path) -> None:
    leave(home, time={"by_cause": 3})
    code, text, _ = call("report", "gpt", "--json")
    assert code == ExitCode.OK
    assert json.loads(text)["wall_s"] is None
    assert any("cannot be read from its journal" in line for line in json.loads(text)["not_verified"])


def test_a_gpu_that_is_not_in_the_catalogue_is_one_line(ran: Path) -> None:
    code, _, said = call("report", "gpt", "--gpu", "H9000")
    assert (code, "--gpu" in said) == (ExitCode.FAILED, True)


def test_two_runs_are_compared(ran: Path) -> None:
    record(ran)
    code, text, _ = call("report", "compare", "gpt", "gpt", "--json", "--fail-on-regression")
    assert code == ExitCode.OK
    assert json.loads(text)["beyond_noise"] == []


def test_goodput_tells_logs_beside_one_that_cannot_be_read(tmp_path: Path) -> None:
    for name in ("a", "b"):
        rows = ({"t": at, "step": at, "loss": 2.0} for at in range(1, 21))
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    result = CliRunner().invoke(cli, ["goodput", *(f"{tmp_path}/{name}.jsonl" for name in "abc"), "--json"])
    assert result.exit_code == ExitCode.FAILED
    assert "c.jsonl: No such file" in result.stderr
    document = json.loads(result.stdout)
    assert [one["wall_s"] for one in document["logs"]] == [20.0, 20.0, 0.0]
    assert document["all"]["wall_s"] == 40.0
    code, text, _ = call("goodput", str(tmp_path / "a.jsonl"), "--price", "36")
    assert code == ExitCode.OK
    assert "$0.2000" in text


def test_a_halts_mark_leads_to_its_section(home: Path) -> None:
    halt = nan_halt() | {"run": "gpt", "incident_id": "gpt.node-1.1"}
    leave(home, halt, time=account().snapshot())
    written = Written("gpt", 1_780_000_000 - 1_000).hello(0).steps(range(1, 61), 300, 10.0)
    written.halted(1_000, "gpt.node-1.1").save(home / "state" / "recordings")
    code, page, _ = call("report", "gpt", "--html")
    assert code == ExitCode.OK
    assert 'href="#halt-gpt.node-1.1"' in page
    section = page.partition('<section id="halt-gpt.node-1.1">')[2].partition("</section>")[0]
    assert "<figure" in section
    assert "loss-not-a-number" in section
    assert "href=" not in call("report", "other", "--html")[1]


@pytest.mark.parametrize(
    ("row", "how"),
    [
        ({"state": "training"}, None),
        ({"state": "halting"}, None),
        ({"state": "finished"}, "ended"),
        (
            {"state": "halted", "halt": {"stage": "HALTED", "incident_id": "i-1", "reason": "NaN"}},
            "halted: NaN (costgov incident show i-1)",
        ),
        ({"state": "finished", "attempt": "a"}, "ended with exit code 3: no cause is known"),
        ({"state": "finished", "attempt": "b"}, "ended"),
        ({"state": "finished", "attempt": "whole"}, "completed at step 1,200"),
        ({"state": "finished", "attempt": "cut"}, "ended"),
    ],
)
def test_a_governor_that_keeps_a_run_that_is_over_does_not_make_it_go_on(
    row: dict[str, object], how: str | None
) -> None:
    end = {"exit_code": 3, "cause": "no cause is known"}
    rows: dict[object, dict[str, object]] = {
        "whole": {"attempt": "whole", "alive": False, "end": None, "completed": True, "step": 1_200},
        "cut": {"attempt": "cut", "alive": False, "end": None, "completed": False, "step": 7},
    }
    own = rows.get(row.get("attempt"), {"attempt": "a", "alive": False, "end": end})
    kept = Kept("j", own, (), ()) if "attempt" in row else None
    assert how_it_ended(row, kept) == how


@pytest.mark.parametrize("has_reader", [False, True])
def test_a_fifo_in_the_place_of_the_file_is_one_line(ran: Path, tmp_path: Path, *, has_reader: bool) -> None:
    os.mkfifo(tmp_path / "fifo.html")
    reader = os.open(tmp_path / "fifo.html", os.O_RDONLY | os.O_NONBLOCK) if has_reader else None
    code, _, told = call("report", "gpt", "--output", str(tmp_path / "fifo.html"))
    assert (code, "it is a FIFO" in told, "\n" in told.strip()) == (ExitCode.FAILED, True, False)
    if reader is not None:
        os.close(reader)


def charge(number: int, usd_an_hour: int) -> Charge:
    """An hour of the node, from hour `number` on."""
    wall = WallNs(1_780_000_000 * NS_PER_S + number * NS_PER_HOUR)
    line = Line(LineKind.COMPUTE, "node", Unit.HOUR, usd_an_hour * MICROS_PER_USD, "test", "2026-05-28")
    amount = UsdMicros(usd_an_hour * MICROS_PER_USD)
    until = WallNs(wall + NS_PER_HOUR)
    return Charge(f"c{number}", Place("n"), Payer("gpt", "a1"), line, wall, until, NS_PER_HOUR, amount)


@pytest.mark.parametrize("paid", [(36,), (72, 36)])
def test_an_hour_of_the_node_is_what_the_run_paid_last(home: Path, paid: tuple[int, ...]) -> None:
    """The node costs another price since."""
    now = {"price": {"usd_micros_per_hour": 99 * MICROS_PER_USD, "source": "test", "as_of": "2026-05-29"}}
    leave(home, time=account().snapshot(), node=now)
    path = home / "state" / "runs" / "gpt"
    journal, _ = open_journal(str(path / "costgov.db"), str(path))
    assert journal.save_runs({}, [charge_row(charge(number, usd)) for number, usd in enumerate(paid)], full=False)
    journal.close()
    assert json.loads(call("report", "gpt", "--json")[1])["usd_per_hour"] == 36


def alive() -> dict[str, Any]:
    node = started()
    trained(node, 1, 10)
    return json.loads(json.dumps(run_status(node.runs["llama"], at(11)))) | {"run": "gpt"}


class Listening(socketserver.StreamRequestHandler):
    """A governor's control socket, as far as a report asks it. Its server has what it tells."""

    def handle(self) -> None:
        self.rfile.readline()
        self.wfile.write(json.dumps({"ok": True, "data": vars(self.server)["told"]}).encode() + b"\n")


@contextmanager
def telling(path: Path, row: Mapping[str, Any] | None = None, **governor: str) -> Iterator[None]:
    """A governor there answers once, and has a run of this row. None: gpt."""
    path.parent.mkdir(exist_ok=True)
    with socketserver.UnixStreamServer(str(path), Listening) as server:
        vars(server)["told"] = {"governor": {"node": "n", **governor}, "runs": [row or alive()]}
        threading.Thread(target=server.handle_request, daemon=True).start()
        yield


@pytest.mark.parametrize(("below", "is_live"), [("state/runs/gpt", True), ("other/runs/gpt", False)])
def test_a_run_of_the_same_name_below_another_state_directory_is_another(
    ran: Path, below: str, *, is_live: bool
) -> None:
    with telling(ran / "run" / "control.sock", state_dir=str(ran / below)):
        assert json.loads(call("report", "gpt", "--json")[1])["is_live"] is is_live


def test_the_governor_of_the_settings_is_asked(ran: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COSTGOV_CONTROL", "COSTGOV_PATHS__STATE_DIR", "COSTGOV_PATHS__RUNTIME_DIR"):
        monkeypatch.delenv(name)
    settings = ran / "own.toml"
    settings.write_text(f'[paths]\nstate_dir = "{ran}/state"\nruntime_dir = "{ran}/own"\n')
    with telling(ran / "own" / "control.sock"):
        assert json.loads(call("report", "gpt", "--json", "--config", str(settings))[1])["is_live"] is True


def test_what_a_command_ended_with_is_told_once_though_its_end_was_seen_too() -> None:
    ended = {"completed": False, "exit_code": 1, "step": 39}
    rows = [
        ("failure", {"rank": 0, "step": 39, "name": "ValueError", "text": "no", "place": "t.py:f:3"}),
        ("ended", {**ended, "cause": None}),
        ("end_cause", {"exit_code": 1, "step": 39, "cause": "rank 0 raised ValueError: no"}),
        ("ended", {**ended, "step": 60, "cause": None}),  # Another attempt.
    ]
    told = _failures({"kind": kind, "data": json.dumps(data), "wall_ns": n} for n, (kind, data) in enumerate(rows))
    assert [(row["what"], row["step"], row["text"]) for row in told] == [
        ("rank 0 raised", 39, "ValueError: no (t.py:f:3)"),
        ("ended", 39, "exit code 1: rank 0 raised ValueError: no"),
        ("ended", 60, "exit code 1: no cause is known"),
    ]


@pytest.mark.parametrize("runs", [True, False])
def test_a_governor_that_nobody_finds_is_told_of_by_the_lock_of_its_journal(home: Path, *, runs: bool) -> None:
    leave(home, time=account().snapshot(), alive=True)
    path = home / "state" / "runs" / "gpt"
    governor, _ = open_journal(str(path / "costgov.db"), str(path))
    if not runs:
        governor.close()
    code, text, _ = call("report", "gpt", "--json", "--state-dir", str(home / "state"))
    governor.close()
    document = json.loads(text)
    assert (code, document["is_live"], document["usd"]) == (ExitCode.OK, runs, 2.5)
    assert any(f"(pid {os.getpid()})" in line for line in document["not_verified"]) is runs
