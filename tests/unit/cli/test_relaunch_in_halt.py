"""A command is launched again while the halt of its earlier launch is open."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from governor.adapters.command import launch_lock
from governor.cli.common import ExitCode
from governor.cli.run.relaunch import finish_halt
from governor.core.base.identity import ProcessId
from governor.core.base.units import MonoNs, WallNs
from governor.core.engine.halt_plan import RUNG_DESTROY
from governor.core.engine.incident_json import incident_of, incident_snapshot
from governor.core.engine.node import Node
from governor.core.events.inputs import Event
from governor.core.halt.incident import Incident
from governor.core.halt.left_launch import NEVER_LOOKED, Below, LeftLaunch, process_row
from governor.core.halt.state import HaltState, StopTarget
from governor.daemon.launches import SupervisedCommand
from governor.daemon.process_killer import ProcessKiller
from tests.contract.fakes import FakeClock, FakeProcesses
from tests.unit.core.engine.test_step import a_step, make_node, play, training

MARK, GONE = 0x9ABCDEF012, ProcessId(700, 5, "boot-1")


def halting(
    stage: HaltState, stop: StopTarget = StopTarget.INSTANCE, *, survives_stop: bool | None = None
) -> tuple[Node, Incident]:
    node = make_node(survives_stop=survives_stop)
    training(node)
    play(node, a_step(31, 1, loss=float("nan")))
    incident = node.runs["llama"].incident
    assert incident is not None
    incident.plan = replace(incident.plan, stop=stop)
    incident.move(replace(incident.halt, stage=stage))
    return node, incident


class Serving:
    """The loop of a governor: what it attends to, and what comes while it serves."""

    def __init__(self, node: Node, comes: Callable[[SupervisedCommand], None]) -> None:
        self.node, self.comes, self.begun = node, comes, 0
        self.processes = FakeProcesses("boot-1")
        self.said: list[str] = []
        self.state_dir = Path("/")
        self.performer = SimpleNamespace(process_killer=ProcessKiller(self.processes, 999))

    def supervise(self, supervised: SupervisedCommand) -> None:
        self.supervised = supervised

    def run(self, begin: list[Any]) -> bool:
        self.begun += 1
        assert begin == ["resumes"]
        assert not self.supervised.should_end()
        self.comes(self.supervised)
        return True

    def apply(self, event: Event) -> None:
        play(self.node, event)

    def launch(self, name: str = "llama") -> int | None:
        governor: Any = SimpleNamespace(
            node=self.node, daemon=self, begin=["resumes"], processes=self.processes, clock=FakeClock(),
            settings=SimpleNamespace(paths=SimpleNamespace(state_dir=self.state_dir)),
        )  # fmt: skip
        return finish_halt(governor, name, ["train"], self.said.append)


@pytest.mark.parametrize("stage", [HaltState.STOPPING, HaltState.VERIFYING])
def test_the_stop_goes_on_to_its_end_and_nothing_is_launched_to_be_killed_at_once(stage: HaltState) -> None:
    node, incident = halting(stage)

    def verified(supervised: SupervisedCommand) -> None:
        incident.move(replace(incident.halt, stage=HaltState.HALTED))
        assert supervised.should_end()

    serving = Serving(node, verified)
    assert serving.launch() == ExitCode.HALTED
    assert serving.supervised.processes == ()
    (line,) = serving.said
    assert line.startswith(
        f"costgov: not launched: the halt of an earlier launch (incident {incident.incident_id}) is "
    )


def test_who_sends_a_signal_leaves_with_the_stop_unseen() -> None:
    node, _ = halting(HaltState.VERIFYING)

    def interrupted(supervised: SupervisedCommand) -> None:
        assert supervised.on_signal(signal.SIGUSR1), "it ends nothing"
        assert not supervised.on_signal(signal.SIGINT)

    serving = Serving(node, interrupted)
    assert serving.launch() == ExitCode.NEEDS_HUMAN


@pytest.mark.parametrize(
    ("stage", "stop"),
    [
        (HaltState.HALTED, StopTarget.INSTANCE),
        (HaltState.SAVING, StopTarget.PROCESSES),  # None of its processes lives.
        (HaltState.NEEDS_HUMAN, StopTarget.PROCESSES),
    ],
)
def test_a_halt_with_nothing_left_to_end_is_not_waited_for(stage: HaltState, stop: StopTarget) -> None:
    serving = Serving(halting(stage, stop)[0], lambda _supervised: None)
    assert (serving.launch(), serving.said, serving.begun) == (None, [], 0)


@pytest.mark.parametrize("stage", [HaltState.ASKED, HaltState.SAVING, HaltState.TERMED, HaltState.NEEDS_HUMAN])
@pytest.mark.parametrize("stop", [StopTarget.PROCESSES, StopTarget.INSTANCE])
def test_nothing_of_its_name_is_launched_beside_a_rank_that_an_open_halt_ends(
    stage: HaltState, stop: StopTarget
) -> None:
    """Its ranks would be the halt's: ended at their hello, and their first step counted as the checkpoint."""
    node, incident = halting(stage, stop)

    def goes_on(supervised: SupervisedCommand) -> None:
        assert not supervised.should_end()
        incident.move(replace(incident.halt, stage=HaltState.HALTED))
        assert supervised.should_end()

    serving = Serving(node, goes_on)
    serving.processes.add(101, start_ticks=1010)
    assert serving.launch() == ExitCode.HALTED
    (line,) = serving.said
    assert "not launched" in line
    assert incident.incident_id in line


@pytest.mark.parametrize(("sent", "is_launched"), [("sent", False), ("denied", True)])
def test_nor_beside_a_child_that_is_deaf_to_sigterm_when_the_ranks_are_gone(sent: str, is_launched: bool) -> None:
    """The halt sends it SIGKILL yet, and would send it to the ranks that begin meanwhile."""
    node, incident = halting(HaltState.TERMED, StopTarget.PROCESSES)
    serving = Serving(node, lambda _supervised: incident.move(replace(incident.halt, stage=HaltState.HALTED)))
    child = serving.processes.add(700)
    incident.add_targets([{**process_row(child), "role": "child", "argv0": "python", "sent": sent}])
    assert serving.launch() == (None if is_launched else ExitCode.HALTED)


@pytest.mark.parametrize("is_ended", [False, True])
def test_what_lives_of_the_halted_launch_is_named_and_the_halt_was_not_seen_to_its_end(is_ended: bool) -> None:
    node, incident = halting(HaltState.KILLED, StopTarget.PROCESSES)

    def goes_on(_supervised: SupervisedCommand) -> None:
        for pid in (700, 701) if is_ended else (700,):
            serving.processes.end(pid)
        incident.move(replace(incident.halt, stage=HaltState.HALTED))

    serving = Serving(node, goes_on)
    command = serving.processes.add(700, uid=0, argv=["sh", "entry.sh"], mark=MARK)
    serving.processes.add(701, sid=701, uid=2002, argv=["helper", "--token=hf_abc"], mark=MARK)
    read_back(incident, Below(), command)
    incident.launchers = (command,)
    assert serving.launch() == (ExitCode.HALTED if is_ended else ExitCode.NEEDS_HUMAN)
    named = serving.said[1:]
    assert [line.split(":")[1] for line in named] == (
        [] if is_ended else [" pid 701 of uid 2002 still runs, perhaps of the halted launch, and was not ended"]
    )
    assert "hf_abc" not in "".join(named)


@pytest.mark.parametrize(
    ("below", "told"),
    [
        (Below(unlisted=64), "the halted launch had 64 more process(es) than were noted"),
        (Below(missed=64), "the halted launch had 64 more process(es) than were noted"),  # By one of two governors.
        (NEVER_LOOKED, "what the halted launch had below it was never looked at"),
    ],
)
def test_where_more_was_the_launchs_than_was_noted_no_end_is_claimed(below: Below, told: str) -> None:
    """Nor is anything launched as if all of it were gone, though nobody who was noted lives."""
    node, incident = halting(HaltState.KILLED, StopTarget.PROCESSES)
    serving = Serving(node, lambda _supervised: incident.move(replace(incident.halt, stage=HaltState.HALTED)))
    read_back(incident, below)
    incident.launchers = (GONE,)
    assert serving.launch() == ExitCode.NEEDS_HUMAN
    assert serving.said[-1].startswith(f"costgov: {told}")


@pytest.mark.parametrize(
    ("of", "is_noted"), [("the last launch", True), ("one before it", False), ("no launch", False)]
)
def test_a_halt_that_was_seen_to_its_end_is_the_end_of_the_launch_that_it_ended(
    of: str, is_noted: bool, tmp_path: Path
) -> None:
    """Who holds that launch's lock on, as a daemon of another user does, refuses no launch for good."""
    node, incident = halting(HaltState.KILLED, StopTarget.PROCESSES)
    serving = Serving(node, lambda _supervised: incident.move(replace(incident.halt, stage=HaltState.HALTED)))
    serving.state_dir = tmp_path
    lock = launch_lock.join(tmp_path)
    assert lock is not None
    os.close(lock)
    serving.processes.add(101, start_ticks=1010)
    read_back(incident, Below())
    node.left = incident.launch
    if of == "one before it":
        node.left = LeftLaunch("llama", 0, (replace(GONE, start_ticks=9),), MARK, ())
    if of == "no launch":
        incident.launch = None
    assert serving.launch() == ExitCode.HALTED
    assert (node.left is None, node.ended_lock == launch_lock.stamp(tmp_path)) == (is_noted, is_noted)


def read_back(incident: Incident, below: Below, command: ProcessId = GONE, uid: int = 0) -> None:
    """As the governor has it that goes on with the halt."""
    left = LeftLaunch("llama", uid, (command,), MARK, (), below)
    incident.launch = LeftLaunch.of(left.row())
    incident.note_below(incident.launch.below)


def test_whom_this_governor_knows_and_does_not_list_it_sees_to_the_end() -> None:
    node, incident = halting(HaltState.KILLED, StopTarget.PROCESSES)
    incident.add_targets([{**process_row(GONE), "role": "child", "argv0": "python", "sent": "sent"}])

    def ends(_supervised: SupervisedCommand) -> None:
        serving.processes.end(GONE.pid)
        incident.move(replace(incident.halt, stage=HaltState.HALTED))

    serving = Serving(node, ends)
    read_back(incident, Below(), serving.processes.add(GONE.pid, start_ticks=GONE.start_ticks))
    incident.note_below(Below(unlisted=64))
    assert serving.launch() == ExitCode.HALTED
    incident.end(MonoNs(9), WallNs(9))
    assert incident.stage_name == "HALTED"


@pytest.mark.parametrize("stop", [StopTarget.PROCESSES, StopTarget.INSTANCE])
@pytest.mark.parametrize(
    ("below", "is_known"),
    [(Below(), True), (Below(unlisted=64), False), (Below(missed=64), False), (NEVER_LOOKED, False)],
)
def test_such_a_halt_is_closed_as_one_that_was_not_seen_to_its_end_unless_the_machine_was(
    stop: StopTarget, below: Below, is_known: bool
) -> None:
    node, incident = halting(HaltState.KILLED, StopTarget.PROCESSES)
    incident.plan = replace(incident.plan, stop=stop)
    read_back(incident, below)
    incident.move(replace(incident.halt, stage=HaltState.HALTED))
    incident.end(MonoNs(9), WallNs(9))
    is_told = is_known or stop is StopTarget.INSTANCE
    assert incident.is_closed
    assert incident.stage_name == ("HALTED" if is_told else "left_unnoted")
    assert incident_of(incident_snapshot(node, incident)).stage_name == incident.stage_name
    assert (incident.at_of("halted") is not None) == is_told


def test_nor_beside_what_the_launchs_mark_alone_tells() -> None:
    """Those that SIGTERM has reached are listed up to a bound."""
    node, incident = halting(HaltState.TERMED, StopTarget.PROCESSES)
    serving = Serving(node, lambda _supervised: serving.processes.end(701))
    serving.processes.add(999, argv=["costgov", "run"])
    serving.processes.add(701, sid=701, mark=MARK)
    read_back(incident, Below(), uid=1000)
    assert serving.launch() == ExitCode.NEEDS_HUMAN
    assert (serving.launch(), serving.begun) == (None, 1), "nobody of it is left"


def test_nor_beside_a_helper_that_was_seen_below_the_command_when_all_else_is_gone() -> None:
    node, incident = halting(HaltState.TERMED, StopTarget.PROCESSES)
    serving = Serving(node, lambda _supervised: incident.move(replace(incident.halt, stage=HaltState.HALTED)))
    incident.note_below(Below((serving.processes.add(700, uid=2002),)))
    assert serving.launch() == ExitCode.HALTED


def test_another_name_is_not_held_up_by_a_halt_that_ends_processes() -> None:
    serving = Serving(halting(HaltState.SAVING, StopTarget.PROCESSES)[0], lambda _supervised: None)
    serving.processes.add(101, start_ticks=1010)
    assert (serving.launch("other"), serving.said) == (None, [])


@pytest.mark.parametrize("stage", [HaltState.STOPPING, HaltState.VERIFYING])
def test_another_name_starts_where_the_disk_outlives_the_stop(stage: HaltState) -> None:
    node, incident = halting(stage, survives_stop=True)
    serving = Serving(node, lambda _supervised: None)
    assert (serving.launch("other"), serving.begun) == (None, 0)
    (line,) = serving.said
    assert incident.incident_id in line
    assert "beside this command" in line


@pytest.mark.parametrize(("survives_stop", "rung_max"), [(None, 1), (False, 1), (True, RUNG_DESTROY)])
def test_another_name_waits_where_the_disk_may_go_and_has_no_halts_exit_code(
    survives_stop: bool | None, rung_max: int
) -> None:
    node, incident = halting(HaltState.VERIFYING, survives_stop=survives_stop)
    incident.plan = replace(incident.plan, rung_max=rung_max)

    def verified(supervised: SupervisedCommand) -> None:
        incident.move(replace(incident.halt, stage=HaltState.HALTED))
        assert supervised.should_end()

    serving = Serving(node, verified)
    assert serving.launch("other") == ExitCode.FAILED, "it never ran, so nothing halted it"
    (line,) = serving.said
    assert line.endswith("launch again when it is over")


def test_another_name_waits_until_a_person_is_called_and_is_told_how_to_go_on() -> None:
    node, incident = halting(HaltState.VERIFYING)

    def never_verified(supervised: SupervisedCommand) -> None:
        incident.move(replace(incident.halt, stage=HaltState.NEEDS_HUMAN))
        assert supervised.should_end()

    serving = Serving(node, never_verified)
    assert serving.launch("other") == ExitCode.FAILED
    assert serving.said[-1].endswith("stop it at its provider, or launch again")
    assert serving.launch("other") is None


def test_the_halted_name_is_served_while_the_stop_is_tried_again_and_is_told_of_other_names() -> None:
    node, incident = halting(HaltState.VERIFYING, survives_stop=True)

    def never_verified(supervised: SupervisedCommand) -> None:
        incident.move(replace(incident.halt, stage=HaltState.NEEDS_HUMAN))
        assert not supervised.should_end(), "nobody else tries to stop the machine"
        assert not supervised.on_signal(signal.SIGINT)

    serving = Serving(node, never_verified)
    assert serving.launch() == ExitCode.NEEDS_HUMAN
    first, last = serving.said
    assert first.endswith("launch again when it is over, or under another --name now")
    assert last.endswith("stop it at its provider, or launch under another --name")


def test_a_run_that_chose_its_own_name_is_the_launched_names() -> None:
    node, _ = halting(HaltState.VERIFYING, survives_stop=True)
    node.runs["llama"].history.take_over("sweep", 1)
    serving = Serving(node, lambda _supervised: None)
    assert serving.launch("sweep") == ExitCode.NEEDS_HUMAN
    assert serving.begun == 1
