"""A run that no governor watches any more is still told of: how it ended, and what its name is good for."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from governor.adapters.command import launch_lock
from governor.adapters.journal.lock import JournalLocked
from governor.adapters.journal.run_ends import RunRow
from governor.adapters.journal.writer import open_journal
from governor.adapters.machine.clock import SystemClock
from governor.adapters.machine.processes import LinuxProcesses
from governor.app.node_facts import CannotStart
from governor.app.settings_file import paths_of_run
from governor.cli.common import ExitCode, Failed
from governor.cli.main import cli
from governor.cli.run.relaunch import is_running
from governor.core.base.units import MTOK
from governor.core.engine.node_journal import run_snapshot
from governor.core.events.ends import COMPLETED
from governor.core.money.charges import UNALLOCATED
from governor.core.views.status import run_status
from governor.replay.bills import ending_of
from governor.reports.terminal import closing_line
from governor.settings.model import Paths
from tests.golden.report_cases import nan_halt
from tests.unit.core.engine.test_run_forecast import started, trained
from tests.unit.core.engine.test_step import at, hello, peer, play, tick

RAN: dict[str, Any] = {
    "run": "gpt", "attempt": "a1", "wall_ns": 1_780_000_000 * 10**9, "alive": False, "step": 60, "completed": False,
    "tokens_total": 61_440, "spend_usd_micros": 2_500_000, "last_good": {"step": 40, "path": "/ck/40"},
    "end": {"exit_code": 1, "cause": "rank 0 raised ValueError: no"},
}  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in (("STATE_DIR", "state"), ("RUNTIME_DIR", "run")):
        monkeypatch.setenv(f"COSTGOV_PATHS__{name}", str(tmp_path / value))
    monkeypatch.setenv("COSTGOV_CONTROL", str(tmp_path / "run" / "control.sock"))
    return tmp_path


def leave(
    home: Path, *halts: dict[str, Any], node: dict[str, Any] | None = None,
    others: dict[str, dict[str, Any]] | None = None, **over: Any,
) -> None:  # fmt: skip
    """The journal of a `costgov run` of the name gpt."""
    path = home / "state" / "runs" / "gpt"
    path.mkdir(parents=True, exist_ok=True)
    journal, problem = open_journal(str(path / "costgov.db"), str(path))
    assert problem is None
    for halt in halts:
        assert journal.close_incident(str(halt["incident_id"]), halt)
    rows = {"gpt": RAN | over, **(others or {}), **({UNALLOCATED: node} if node is not None else {})}
    assert journal.save_runs(rows)
    journal.close()


def call(*words: str) -> tuple[int, str, str]:
    """Exit code, standard output, and what is told beside it."""
    result = CliRunner().invoke(cli, words, standalone_mode=False)
    failed = result.exception
    if isinstance(failed, Failed):
        return failed.code, result.stdout, result.stderr + failed.message
    return result.exit_code, result.stdout, result.stderr


def test_how_a_run_ended_is_told_when_its_terminal_is_gone(home: Path) -> None:
    leave(home)
    code, told, _ = call("status", "gpt")
    assert (code, told) == (
        0,
        "gpt: ended with exit code 1: rank 0 raised ValueError: no; step 60; 61,440 tokens; spent $2.50; "
        "last checkpoint: step 40, /ck/40; as of 2026-05-28 20:26:40 UTC\n",
    )
    code, _, remark = call("status")
    assert code == ExitCode.NO_GOVERNOR
    assert "the last `costgov run` here: `costgov status gpt` says how it ended" in remark


def test_a_launch_that_was_refused_is_not_named_as_the_last_one(home: Path) -> None:
    leave(home)
    refused = home / "state" / "runs" / "never"
    refused.mkdir()
    journal, problem = open_journal(str(refused / "costgov.db"), str(refused))
    assert problem is None
    journal.close()
    later = os.path.getmtime(home / "state" / "runs" / "gpt" / "costgov.db") + 60
    os.utime(refused / "costgov.db", (later, later))
    assert "the last `costgov run` here: `costgov status gpt` says how it ended" in call("status")[2]
    (home / "state" / "runs" / "gpt" / "costgov.db").unlink()
    assert "says how it ended" not in call("status")[2]


@pytest.mark.parametrize(
    ("over", "how"),
    [
        ({"end": None}, "gpt: halted: loss is NaN at step 41 (costgov incident show run7.gpu-17.1)"),
        ({"end": None, "attempt": "a2"}, "gpt: ended"),
        ({"end": None, "attempt": "a2", "alive": True}, "gpt: its end was not seen"),
    ],
)
def test_a_halt_is_named_of_its_own_attempt_alone(home: Path, over: dict[str, Any], how: str) -> None:
    leave(home, nan_halt() | {"run": "gpt"}, **over)
    assert call("status", "gpt")[1].startswith(f"{how}; step 60; ")


def test_the_money_of_an_ended_run_is_that_of_its_closing_line(home: Path) -> None:
    """From a governor whose run went back from step 10 to 4 and trained on to 14: 2.5M tokens, 1.5M of them twice."""
    node = started()
    trained(node, 1, 10)
    play(node, hello(0, 11, world_size=1, attempt="a2", stage="stage1", peer=peer(900)))
    trained(node, 12, 21, total_before=MTOK)
    play(node, tick(21))
    managed = node.runs["llama"]
    watched = run_status(managed, at(21))
    kept = json.loads(json.dumps(run_snapshot(node, managed, at(21))))
    leave(home, **kept | {"run": "gpt", "alive": False, "end": {"exit_code": 0, "cause": None}})
    [ended] = json.loads(call("status", "gpt", "--json")[1])["runs"]
    same = (
        "ceiling_usd", "spend_usd", "tokens_total", "tokens_wasted", "usd_per_mtok_all_in", "usd_per_mtok_useful",
        "usd_per_mtok", "usd_per_mtok_steady", "wasted_usd", "wasted_usd_by_cause", "unpriced_s",
    )  # fmt: skip
    assert {key: ended[key] for key in same} == {key: watched[key] for key in same}
    assert None not in [ended[key] for key in same]
    _, told, _ = call("status", "gpt")
    assert told.startswith(closing_line(watched | {"run": "gpt"}, "ended with exit code 0").split("; last check")[0])
    assert f"{watched['tokens_total']:,} tokens (and 1,500,000 trained again); " in told


@pytest.mark.parametrize("micros", [0, 2_500_000])
def test_an_ended_run_that_had_no_price_has_spent_what_nobody_knows(home: Path, micros: int) -> None:
    leave(home, spend_usd_micros=micros)
    [ended] = json.loads(call("status", "gpt", "--json")[1])["runs"]
    assert ended["spend_usd"] == (micros / 1e6 or None)
    assert ("$2.50" in call("status", "gpt")[1]) == (micros > 0)


@pytest.mark.parametrize(("completed", "word"), [(True, COMPLETED), (False, "ended")])
def test_one_word_tells_in_each_view_that_a_run_trained_to_its_end(home: Path, completed: bool, word: str) -> None:
    leave(home, completed=completed, end=None)
    [ended] = json.loads(call("status", "gpt", "--json")[1])["runs"]
    report = json.loads(call("report", "gpt", "--json")[1])
    replayed = ending_of(RunRow("gpt", 1, False, completed, None, None), (), 10**20)
    assert (ended["completed"], ended["ended"], replayed.text) == (completed, word, word)
    assert report["ended"].split()[0] == word


STUCK = {"halt_stage": "VERIFYING", "closed_wall_ns": None}
ITS_HALT = "its halt was not seen to its end, stage VERIFYING: loss is NaN at step 41 (costgov incident show run7."


@pytest.mark.parametrize("end", [None, {"exit_code": 137, "cause": None}])
def test_a_halt_that_was_not_seen_to_end_is_not_said_to_be_one(home: Path, end: object) -> None:
    leave(home, nan_halt() | {"run": "gpt", **STUCK}, end=end)
    assert call("status", "gpt")[1].startswith(f"gpt: {ITS_HALT}")


def launched(pid: int, start_ticks: int) -> dict[str, Any]:
    """The node's row: its command went on when its governor ended."""
    process = {"pid": pid, "start_ticks": start_ticks, "boot_id": SystemClock().boot_id}
    told = {"run": "gpt", "account": None, "processes": [process], "unattached": True}
    told |= {"nobodys": [{"usd_micros": 250_000}], "nobodys_older_usd_micros": 50_000}
    return {"run": UNALLOCATED, "launched": told}


MARK = 0x9ABCD << 24 | os.getpid()  # Another than in a process beside, whose orphans would be this launch's too.
SILENT: dict[str, Any] = {"step": None, "tokens_total": 0, "spend_usd_micros": 0, "last_good": None, "end": None}


def test_what_a_killed_governor_has_left_unwatched_is_told_with_its_money_while_it_runs(home: Path) -> None:
    """Of `sleep 300`, which no rank speaks for: it was "ended", and had cost nothing."""
    own = LinuxProcesses(SystemClock().boot_id).facts(os.getpid())
    assert own is not None
    leave(home, node=launched(own.process.pid, own.process.start_ticks), **SILENT)
    code, told, _ = call("status", "gpt")
    assert (code, told.splitlines()[0].split("; as of")[0]) == (
        ExitCode.NO_GOVERNOR, "gpt: its end was not seen; no step was seen; spent $0.3000; no checkpoint seen",
    )  # fmt: skip
    assert f"`kill {own.process.pid}`" in told
    code, told, _ = call("status", "gpt", "--json")
    shown = json.loads(told)
    assert (code, shown["living"], shown["runs"][0]["spend_usd"]) == (ExitCode.NO_GOVERNOR, [own.process.pid], 0.3)


@pytest.fixture
def detached() -> Iterator[int]:
    """An orphan in a session of its own, with a launch's mark."""
    rank = "echo $$; exec sleep 600 > /dev/null"
    script = f"setsid prlimit --locks={MARK}: sh -c '{rank}' &"
    pid = int(subprocess.run(["sh", "-c", script], check=True, stdout=subprocess.PIPE).stdout)
    yield pid
    with open(os.pidfd_open(pid), "rb") as pidfd:
        os.kill(pid, signal.SIGKILL)
        select.select([pidfd], [], [])


@pytest.mark.parametrize("is_marked", [True, False])
def test_a_rank_lives_on_that_only_the_launchs_mark_tells(home: Path, detached: int, *, is_marked: bool) -> None:
    """Its launcher was ended as advised, and `costgov status` said "ended" while it trained."""
    node = launched(os.getpid(), 1)
    if is_marked:
        node["launched"] |= {"uid": os.geteuid(), "mark": MARK, "cgroups": []}
    leave(home, node=node, **SILENT)
    code, told, _ = call("status", "gpt")
    assert (code, f"`kill {detached}`" in told) == ((ExitCode.NO_GOVERNOR, True) if is_marked else (0, False))


def test_what_a_launcher_has_left_is_told_of_whom_its_governor_waited_for(home: Path, detached: int) -> None:
    left = launched(os.getpid(), 1)["launched"] | {"uid": os.geteuid(), "mark": MARK, "cgroups": [], "below": []}
    leave(home, node={"run": UNALLOCATED, "launched": None, "left": left}, **SILENT)
    code, told, _ = call("status", "gpt")
    assert (code, f"`kill {detached}`" in told) == (ExitCode.NO_GOVERNOR, True)
    assert told.startswith("gpt: its end was not seen")


@pytest.mark.parametrize("is_held", [True, False])
def test_a_launch_that_is_not_seen_from_here_runs_while_its_lock_is_held(home: Path, is_held: bool) -> None:
    """On another machine, or in a container beside: a launch of the name was refused, and its status had code 0."""
    node = launched(7, 500)
    node["launched"]["processes"][0]["boot_id"] = "another"
    leave(home, node=node | {"boot_id": "another"}, **SILENT)
    state = home / "state" / "runs" / "gpt"
    fd = launch_lock.join(state)
    assert fd is not None
    if not is_held:
        os.close(fd)
    code, told, _ = call("status", "gpt")
    assert told.startswith("gpt: its end was not seen")
    assert (code, f"its processes hold {state / 'launch.lock'}" in told) == (
        (ExitCode.NO_GOVERNOR, True) if is_held else (0, False)
    )
    shown = json.loads(call("status", "gpt", "--json")[1])
    assert shown.get("lock") == (str(state / "launch.lock") if is_held else None)
    if is_held:
        os.close(fd)


@pytest.mark.parametrize(("marks", "is_its"), [([5], True), ([], True), ([6], False)])
def test_a_halt_of_an_earlier_launch_is_not_told_as_the_end_of_a_later_one(
    home: Path, marks: list[int], is_its: bool
) -> None:
    """Neither had attached, so both attempts had the same name: none."""
    halt = nan_halt() | {"run": "gpt", "attempt": "", "launch": {"processes": [], "mark": 5}}
    leave(home, halt, attempt="", marks=marks, end={"exit_code": 0, "cause": None})
    (shown,) = json.loads(call("status", "gpt", "--json")[1])["runs"]
    assert (shown["incident_id"] is not None) == is_its


def test_what_has_ended_since_does_not_live(home: Path) -> None:
    leave(home, node=launched(os.getpid(), 1), **SILENT)
    code, told, _ = call("status", "gpt")
    assert (code, "kill" in told) == (0, False)


def test_a_log_of_another_name_than_its_command_is_told_under_both(home: Path) -> None:
    log = RAN | {"run": "foreign", "command": "gpt"}
    leave(home, others={"foreign": log}, **SILENT)
    for name in ("gpt", "foreign"):
        code, told, _ = call("status", name)
        assert (code, len(told.splitlines())) == (0, 1)
        assert told.startswith("foreign: ended with exit code 1")


def test_a_name_that_left_nothing_or_nothing_readable_is_answered_as_by_no_governor(home: Path) -> None:
    (home / "state" / "runs" / "torn").mkdir(parents=True)
    (home / "state" / "runs" / "torn" / "costgov.db").write_bytes(b"no database, whatever its name says" * 100)
    for name in ("none", "torn", "../runs/torn"):
        assert call("status", name)[:2] == (ExitCode.NO_GOVERNOR, ""), name


def test_forget_says_what_the_name_of_an_ended_run_is_good_for(home: Path) -> None:
    leave(home)
    code, _, told = call("forget", "gpt")
    assert code == ExitCode.NO_GOVERNOR
    assert "gpt is the name of a `costgov run` that is over" in told
    assert "another --name has one of its own" in told
    assert "that is over" not in call("forget", "none")[2]


def test_a_name_that_runs_already_is_told_as_a_name_and_not_as_a_journal(home: Path) -> None:
    def fails(paths: Paths) -> str | None:
        try:
            raise CannotStart("x") from JournalLocked("/s/costgov.db", "4711")
        except CannotStart as error:
            return is_running(error, "gpt", paths)

    own = Paths(**paths_of_run(os.environ, "gpt"))
    told = fails(own)
    assert told is not None
    assert "gpt is running already, under costgov run (pid 4711)" in told
    assert "--name" in told
    assert fails(own.model_copy(update={"state_dir": home})) is None, "the holder may be any governor"


@pytest.mark.parametrize("knows", ["a launch that goes on", "none", "one before", "its end"])
def test_who_holds_the_lock_is_told_of_though_nothing_else_ties_it_to_the_launch(home: Path, knows: str) -> None:
    """Another user's trainer, say, which has no mark of the command's user. Or any, where no end was noted."""
    state = home / "state" / "runs" / "gpt"
    state.mkdir(parents=True)
    fd = launch_lock.join(state)
    stamp = launch_lock.stamp(state)
    assert fd is not None
    assert stamp is not None
    node = launched(os.getpid(), 1) if knows == "a launch that goes on" else {"run": UNALLOCATED}
    node |= {"one before": {"ended_lock": stamp - 1}, "its end": {"ended_lock": stamp}}.get(knows, {})
    leave(home, node=node | {"boot_id": SystemClock().boot_id}, **SILENT)
    script = "setsid sh -c 'echo $$; exec sleep 600 > /dev/null' &"
    pid = int(subprocess.run(["sh", "-c", script], check=True, stdout=subprocess.PIPE, pass_fds=[fd]).stdout)
    os.close(fd)
    code, told, _ = call("status", "gpt")
    shown = json.loads(call("status", "gpt", "--json")[1])
    with open(os.pidfd_open(pid), "rb") as pidfd:
        os.kill(pid, signal.SIGKILL)
        select.select([pidfd], [], [])
    if knows == "its end":
        assert (code, shown.get("lock")) == (0, None)
        return
    assert (code, shown["lock"]) == (ExitCode.NO_GOVERNOR, str(state / "launch.lock"))
    assert f"holds {state / 'launch.lock'} (perhaps pid {pid} of uid {os.geteuid()})" in told
    assert call("status", "gpt")[0] == 0
