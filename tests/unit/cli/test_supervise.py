"""What `costgov run` does about a command that is gone and whom it left behind."""

from __future__ import annotations

import errno
import io
import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from governor.adapters.command.child import Command
from governor.app.settings_file import load_settings
from governor.cli.run.console import Console
from governor.cli.run.left import Left, left_behind, left_unwatched, look_at_left
from governor.cli.run.outcome import Outcome
from governor.cli.run.relaunch import how_to_resume, launched_before, made_for
from governor.cli.run.supervise import (
    HELLO_NS,
    NAMED_NS,
    READ_NS,
    closing_lines,
    is_over,
    leave_halts,
    report_lines,
)
from governor.core.base.identity import ConnectionId, ProcessFacts, ProcessId
from governor.core.base.units import BootNs, UsdMicros
from governor.core.engine.alarms import PIDS_NAMED_MAX
from governor.core.engine.managed_run import PreviousCommand
from governor.core.events.checkpoints import NamedCheckpoint
from governor.core.events.effects import Alarm, Effect, PersistIncident
from governor.core.events.inputs import CommandLaunched, Disconnected, TrainerExited
from governor.core.events.operators import OperatorHalt
from governor.core.events.streams import StreamOpened
from governor.core.halt.adopted import Adoption
from governor.core.halt.elsewhere import Elsewhere
from governor.core.views.status import run_status
from governor.daemon.process_killer import ProcessKiller
from governor.reports.resume_text import BEGINS_ANEW
from tests.contract.fakes import FakeClock, FakeProcesses
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, play, tick, training

PRICE = UsdMicros(98_320_000)
OWN_PID = 999


class BlindProcesses(FakeProcesses):
    def table(self) -> Mapping[int, ProcessFacts]:
        raise OSError(errno.EMFILE, "Too many open files")


class OutOfDescriptors(FakeProcesses):
    """As the real table then: nobody can be asked whether he is gone, and unknown is not gone."""

    def is_gone(self, target: ProcessId) -> bool:
        return False


class Beside:
    """The ports of a governor that `costgov run` looks through, and a command that has ended."""

    def __init__(self, processes: FakeProcesses | None = None, price: UsdMicros | None = PRICE) -> None:
        self.clock = FakeClock()
        self.processes = processes or FakeProcesses()
        self.node = make_node(price_usd_micros_per_hour=price)
        self.is_reading = False
        self.state_dir, self.elsewhere = Path("/"), Elsewhere()
        with subprocess.Popen(["true"]) as process:
            self.command = Command(process)

    @property
    def governor(self) -> Any:
        paths = SimpleNamespace(state_dir=self.state_dir)
        settings = SimpleNamespace(jsonl=[SimpleNamespace(run="log")], paths=paths)
        calls = SimpleNamespace(is_reading_checkpoint=self.is_reading)
        performer = SimpleNamespace(calls=calls, process_killer=ProcessKiller(self.processes, OWN_PID))
        return SimpleNamespace(
            clock=self.clock, processes=self.processes, node=self.node, settings=settings, streams=[],
            elsewhere=self.elsewhere, daemon=SimpleNamespace(performer=performer),
        )  # fmt: skip

    def leave(self, *pids: int) -> None:
        for pid in pids:
            self.processes.add(pid, sid=self.command.process.pid)

    def left(self) -> Left:
        return look_at_left(self.governor, self.command)

    def unwatched(self) -> list[str]:
        return left_unwatched(self.governor, self.command, self.left().below)

    def alarm(self) -> Alarm | None:
        effects = left_behind(self.governor, self.command, "run-1", self.left())
        assert all(isinstance(effect, Alarm) for effect in effects)
        return next((effect for effect in effects if isinstance(effect, Alarm)), None)


@pytest.fixture
def beside() -> Beside:
    return Beside()


def test_who_is_left_behind_is_waited_for_and_then_named_with_what_it_costs(beside: Beside) -> None:
    beside.leave(500_001, 500_002)
    assert not is_over(beside.governor, beside.command)
    beside.clock.advance(HELLO_NS - 1)
    assert not is_over(beside.governor, beside.command)
    beside.clock.advance(1)
    assert is_over(beside.governor, beside.command)
    alarm = beside.alarm()
    assert alarm is not None
    assert (alarm.name, alarm.run) == ("left_behind", "run-1")
    for said in ("UNWATCHED: 2 process(es)", "500001, 500002", "$98.32/h", f"pkill -s {beside.command.process.pid}"):
        assert said in alarm.text
    assert "\n" not in alarm.text


def test_who_left_the_commands_session_is_left_behind_too(beside: Beside) -> None:
    beside.command.mark = 1 << 40 | 5
    beside.processes.add(os.getpid(), start_ticks=0)
    beside.processes.add(500_001, ppid=os.getpid(), sid=500_001, mark=1 << 40 | 5)
    beside.leave(500_002)
    assert not is_over(beside.governor, beside.command)
    alarm = beside.alarm()
    assert alarm is not None
    assert "(pid 500001, 500002)" in alarm.text
    assert f"pkill -s 500001,{beside.command.process.pid}" in alarm.text


def test_who_left_it_and_dropped_the_mark_is_left_behind_or_left_alone(beside: Beside) -> None:
    """Left alone, and named: where the orphans of others come to us too, as to pid 1 of a container."""
    beside.command.mark = 1 << 40 | 5
    beside.processes.add(os.getpid(), start_ticks=0, mark=1 << 40 | 6)
    beside.processes.add(500_001, ppid=os.getpid(), sid=500_001, argv=["train", "--token=hf_abcdefghijklmnopqrst"])
    for is_ours_alone in (True, False):
        beside.command.adoption = Adoption(os.getpid(), beside.command.process.pid, 1 << 40 | 5, 0, is_ours_alone)
        assert is_over(beside.governor, beside.command) is not is_ours_alone
        alarm, told = beside.alarm(), beside.unwatched()
        assert (alarm is not None and "(pid 500001)" in alarm.text) is is_ours_alone
        assert [line.startswith("pid 500001 still runs, left alone") for line in told] == [True] * (not is_ours_alone)
        assert "hf_abc" not in "".join(told)


def test_others_orphans_push_the_commands_own_out_of_no_line(beside: Beside) -> None:
    """What `docker exec` leaves in a container, before the trainer and after it."""
    beside.processes.add(os.getpid(), start_ticks=0, mark=1 << 40 | 6)
    for pid in range(500_000, 500_014):
        uid = 1000 if pid in (500_009, 500_013) else 2001
        beside.processes.add(pid, ppid=os.getpid(), sid=pid, uid=uid, start_ticks=2_000)
    pid = beside.command.process.pid
    beside.command.adoption = Adoption(os.getpid(), pid, 1 << 40 | 5, 0, is_ours_alone=False)
    assert [facts.uid for facts in beside.command.adoption.unsure(beside.processes.table())][:3] == [1000, 1000, 2001]
    *lines, also = beside.unwatched()
    assert [line.partition(" still")[0] for line in lines][:2] == ["pid 500009", "pid 500013"]
    rest = ", ".join(f"pid {pid} of uid 2001" for pid in (500_006, 500_007, 500_008, 500_010, 500_011, 500_012))
    assert (len(lines), also) == (PIDS_NAMED_MAX, f"so do {rest}, left alone too")


def test_the_line_names_so_many_pids_and_counts_the_rest(beside: Beside) -> None:
    beside.leave(*range(500_000, 500_000 + PIDS_NAMED_MAX + 1_000))
    alarm = beside.alarm()
    assert alarm is not None
    assert "and 1000 more" in alarm.text
    assert sum(str(pid) in alarm.text for pid in range(500_000, 501_008)) == PIDS_NAMED_MAX


def test_an_unknown_price_is_not_a_price_of_nothing() -> None:
    beside = Beside(price=None)
    beside.leave(500_001)
    alarm = beside.alarm()
    assert alarm is not None
    assert "price of this machine is unknown" in alarm.text


def test_nobody_is_left_behind_by_a_command_that_took_everybody_along(beside: Beside) -> None:
    beside.processes.add(500_001, sid=500_001)  # Of another session: not the command's.
    beside.leave(500_002)
    beside.processes.by_pid[500_002].becomes_zombie = True
    beside.processes.end(500_002)
    assert is_over(beside.governor, beside.command)
    assert beside.alarm() is None


def test_what_outlives_a_training_that_was_watched_to_its_end_is_no_alarm(beside: Beside) -> None:
    play(beside.node, hello(0))
    beside.leave(500_001)
    assert beside.alarm() is None


def test_what_outlives_a_training_behind_which_the_command_went_on_is_no_alarm_either(beside: Beside) -> None:
    play(beside.node, CommandLaunched(at(0), "llama", 1000, (ProcessId(4321, 1, "boot-1"),)), hello(0), tick(0))
    play(beside.node, Disconnected(at(1), ConnectionId(1)), TrainerExited(at(1), "llama", None), tick(1))
    assert beside.node.runs["llama"].is_unattached
    beside.leave(500_001)
    assert beside.alarm() is None


def test_a_table_that_cannot_be_read_is_said_and_not_taken_for_an_empty_one() -> None:
    beside = Beside(BlindProcesses())
    assert not is_over(beside.governor, beside.command)
    beside.clock.advance(HELLO_NS)
    assert is_over(beside.governor, beside.command)
    alarm = beside.alarm()
    assert alarm is not None
    assert "what is left of the command" in alarm.text


def test_a_followed_log_closes_with_what_it_showed_and_the_command_with_its_end(beside: Beside) -> None:
    beside.command.poll()
    ended = f"run-1: ended with exit code {beside.command.exit_code}"
    play(beside.node, StreamOpened(at(0), "log", 1000))
    assert closing_lines(beside.governor, beside.command, Outcome("run-1")) == [f"{ended}; no step was seen"]
    play(beside.node, a_step(199, run="log", connection=None), a_step(200, run="log", connection=None))
    log, command = closing_lines(beside.governor, beside.command, Outcome("run-1"))
    assert log.startswith("log: its log was followed; step 200; ")
    assert command == ended


def test_a_fault_in_a_closing_line_costs_its_figures(beside: Beside) -> None:
    """It is of one run, and no fault of the command's."""
    beside.command.poll()
    play(beside.node, StreamOpened(at(0), "log", 1000), a_step(200, run="log", connection=None))
    no_money: Any = None
    beside.node.runs["log"].run.spend_usd_micros = no_money
    log, command = closing_lines(beside.governor, beside.command, Outcome("run-1"))
    assert log.startswith(
        "log: its log was followed; its figures cannot be told, by a fault of costgov's own (TypeError"
    )
    assert command == f"run-1: ended with exit code {beside.command.exit_code}"


def test_after_a_halt_the_logs_that_it_is_not_of_close_with_what_they_showed(beside: Beside) -> None:
    play(beside.node, StreamOpened(at(0), "log", 1000), StreamOpened(at(0), "halted", 1000))
    play(beside.node, a_step(200, run="log", connection=None), OperatorHalt(at(1), "halted", "enough", 0))
    outcome = Outcome("halted", stages={"halted.node-a.1": "HALTED"})
    (line,) = closing_lines(beside.governor, beside.command, outcome)
    assert line.startswith("log: its log was followed until the halt; step 200; ")


@pytest.mark.parametrize(("code", "is_told"), [(137, True), (1, True), (0, False)])
def test_a_bad_end_says_the_command_that_goes_on_with_its_budget(beside: Beside, code: int, is_told: bool) -> None:
    beside.command.exit_code = code
    training(beside.node)
    argv = ["python", "train.py", "--key=a b"]
    told = how_to_resume(beside.governor, beside.command, "r1", argv, is_halted=False)
    assert len(told) == is_told
    for line in told:
        assert line.startswith(f"resume        cd {shlex.quote(os.getcwd())} && costgov ")
        assert " --again r1 " in line
        assert line.endswith(" python train.py '--key=a b'")
    assert how_to_resume(beside.governor, beside.command, "r1", argv, is_halted=True) == []


def test_a_bad_end_of_a_script_that_begins_at_step_0_says_so_as_a_halt_does(beside: Beside) -> None:
    play(beside.node, tick(0), hello(0, resumes="never"), a_step(1))
    beside.node.runs["llama"].run.name_last_good(NamedCheckpoint(1, "/ckpt/cg_1"), at(1))
    beside.command.exit_code = 1
    _, told = how_to_resume(beside.governor, beside.command, "llama", ["true"], is_halted=False)
    assert told == f"resume from   /ckpt/cg_1: {BEGINS_ANEW}"


@pytest.mark.parametrize("kind", [FakeProcesses, OutOfDescriptors])
def test_a_process_that_has_the_number_of_an_earlier_launchs_is_not_named(kind: type[FakeProcesses]) -> None:
    """The line says `kill`."""
    beside = Beside(kind("boot-1"))
    training(beside.node)
    beside.processes.add(101, argv=("vi", "notes"), start_ticks=999_999)
    assert launched_before(beside.governor, "llama") is None
    assert beside.node.runs["llama"].processes()[1].pid == 101


def test_an_earlier_launch_that_trains_on_is_named_before_another_is_started() -> None:
    """Two trainers of one name write the same checkpoints, and the first's steps were shown as the second's."""
    beside = Beside(FakeProcesses("boot-1"))
    assert launched_before(beside.governor, "llama") is None
    training(beside.node)
    assert launched_before(beside.governor, "llama") is None, "its processes are gone"
    beside.processes.add(101, argv=("python", "train.py", "--token=hunter2"), start_ticks=1010)
    refusal = launched_before(beside.governor, "llama") or ""
    assert "not launched: an earlier launch of llama still runs, unwatched (pid 101: python train.py" in refusal
    assert "`kill 101`" in refusal
    assert "--name" in refusal
    assert "hunter2" not in refusal
    play(beside.node, OperatorHalt(at(31), "llama", "by hand", 0))
    assert launched_before(beside.governor, "llama") is None, "its halt goes on, and ends it"
    beside.node.runs["llama"].drop_latch()
    assert launched_before(beside.governor, "llama") is not None
    beside.processes.by_pid[101].becomes_zombie = True
    beside.processes.end(101)
    assert launched_before(beside.governor, "llama") is None


def test_a_refused_rank_that_outlives_the_command_is_named_at_the_end() -> None:
    beside = Beside(FakeProcesses("boot-1"))
    play(beside.node, CommandLaunched(at(0), "llama", 1000, (ProcessId(4321, 1_005, "boot-1"),)), hello(0))
    assert beside.unwatched() == []
    beside.processes.add(100, start_ticks=1_000)
    (line,) = beside.unwatched()
    assert line.startswith("pid 100 still runs, UNWATCHED: it is older than the command that was launched as llama")


def test_a_command_that_no_rank_had_joined_is_an_earlier_launch_too(beside: Beside) -> None:
    process = beside.processes.add(700, argv=("python", "train.py"))
    beside.node.previous_command = PreviousCommand(
        "run-1", (process,), None, BootNs(0), (), UsdMicros(0), is_unattached=True
    )
    assert "pid 700" in (launched_before(beside.governor, "run-1") or "")


def test_the_processes_of_a_followed_log_are_no_earlier_launch(beside: Beside) -> None:
    process = beside.processes.add(700)
    play(beside.node, StreamOpened(at(0), "log", 1000, None, {}, (process,)))
    assert beside.node.runs["log"].processes() == (process,)
    assert launched_before(beside.governor, "run-1") is None


def test_the_commands_own_log_closes_with_the_commands_end_also_without_a_step() -> None:
    beside = Beside()
    beside.command.poll()
    pid = beside.command.process.pid
    process = ProcessId(pid, 1, "boot-1")
    play(beside.node, CommandLaunched(at(0), "run-1", 1000, (process,)), tick(0))
    play(beside.node, StreamOpened(at(1), "log", 1000, None, {}, (process,)), tick(10))
    (line,) = closing_lines(beside.governor, beside.command, Outcome("run-1", (process,)))
    assert line.startswith(f"log: ended with exit code {beside.command.exit_code}; no step was seen; spent $")


def test_a_halt_that_is_left_before_its_end_is_reported_with_what_it_has_cost_by_then(beside: Beside) -> None:
    """Exit 87: nothing named the report, the command that goes on, or that the machine may still be billed."""
    node, governor, kept = beside.node, beside.governor, list[Effect]()
    governor.daemon.performer.perform = kept.extend
    training(node)
    play(node, a_step(31, 1, loss=float("nan")), *[tick(second) for second in range(32, 60)])
    managed = node.runs["llama"]
    (snapshot,) = leave_halts(governor)
    assert [effect.snapshot for effect in kept if isinstance(effect, PersistIncident)] == [snapshot]
    assert snapshot["spend_usd_micros"] / 1e6 == run_status(managed, at(59))["spend_usd"]
    shown = io.StringIO()
    Console(shown).leave(snapshot)
    labels = [line.split("  ")[0] for line in shown.getvalue().splitlines()]
    assert {"NOT FINISHED", "stays billed", "report"} <= set(labels)


@pytest.mark.parametrize("named", [(), (ProcessId(500_003, 1, "boot-1"),)])
def test_a_halted_log_holds_a_command_that_has_ended_only_while_it_names_a_process(
    beside: Beside, named: tuple[ProcessId, ...]
) -> None:
    beside.node = make_node(cloud="none")
    now = beside.clock.mono()
    play(beside.node, StreamOpened(now, "log", 1000, None, {}, named), OperatorHalt(now, "log", "enough", 0))
    assert not is_over(beside.governor, beside.command), "its pidfile may be read yet"
    beside.clock.advance(NAMED_NS)
    assert is_over(beside.governor, beside.command) is not bool(named)


@pytest.mark.parametrize("assigned", [{}, {"COSTGOV_PATHS__STATE_DIR": "/s", "COSTGOV_PATHS__RUNTIME_DIR": "/d"}])
def test_only_directories_that_costgov_run_made_are_pruned(tmp_path: Path, assigned: dict[str, str]) -> None:
    environ = {"HOME": "/home/nobody", **assigned}
    settings, _ = load_settings(None, None, environ, run="train-1")
    assert settings is not None
    assert made_for("train-1", settings.paths, environ) == (settings.paths.state_dir, settings.paths.runtime_dir)
    # Configured, and named as one of ours would be.
    paths = {"state_dir": str(tmp_path / "runs" / "train-1"), "runtime_dir": str(tmp_path / "run" / "runs" / "train-1")}
    settings, _ = load_settings(None, {"paths": paths}, environ, run="train-1")
    assert settings is not None
    assert made_for("train-1", settings.paths, environ) == (None, None)


def test_the_end_waits_for_the_look_at_a_saved_checkpoint_but_not_for_all_of_its_hashes(beside: Beside) -> None:
    beside.is_reading = True
    assert not is_over(beside.governor, beside.command)
    beside.clock.advance(READ_NS)
    assert is_over(beside.governor, beside.command)


def test_a_command_ends_with_the_command_that_tells_the_whole_run_unless_a_halt_has_said_it(beside: Beside) -> None:
    beside.command.poll()
    assert report_lines(beside.governor, Outcome("run-1")) == [], "none of its runs has trained"
    play(beside.node, hello(0, 1, run="run-1", world_size=1), a_step(1, run="run-1"))
    (line,) = report_lines(beside.governor, Outcome("run-1"))
    assert line.split()[-3:] == ["costgov", "report", "run-1"]
    assert len(line) <= 80
    assert report_lines(beside.governor, Outcome("run-1", stages={"run-1.n.1": "HALTED"})) == []
