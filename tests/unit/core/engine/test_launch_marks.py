"""What tells a run's processes is known of it through restarts of the governor, and bounded."""

from __future__ import annotations

from governor.core.base.identity import ProcessId
from governor.core.base.units import BootNs
from governor.core.engine.managed_run import MARKS_MAX, UNSURE_MAX
from governor.core.engine.node_journal import run_snapshot
from governor.core.engine.resume import restore_runs
from governor.core.events.inputs import CommandLaunched, LaunchersSeen, ProcessesSeen
from governor.core.events.operators import OperatorHalt
from tests.unit.core.engine.test_step import ack, at, hello, make_node, peer, play, tick, training

STRAY = ProcessId(300, 3000, "boot-1")


def test_marks_add_up_and_are_known_after_a_restart_of_the_governor() -> None:
    node = make_node()
    play(node, tick(0), hello(0), hello(1))
    play(
        node,
        LaunchersSeen(at(1), "llama", (), marks=(7,), cgroups=("/a.scope",), unsure=(STRAY,)),
        LaunchersSeen(at(1), "llama", (), marks=(8, 7), programs=("a b",)),
    )
    again = make_node(boot=40)
    restore_runs(again, [dict(run_snapshot(node, node.runs["llama"], at(2)))], BootNs(at(40)), at(40))
    for launch in (node.runs["llama"].launch, again.runs["llama"].launch):
        assert (launch.marks, launch.cgroups, launch.unsure) == ((7, 8), ("/a.scope",), (STRAY,))
        assert launch.programs == ("a b",)


def test_a_look_without_launchers_takes_none_away() -> None:
    node = make_node()
    play(node, tick(0), hello(0))
    agent = peer(90).process
    play(node, LaunchersSeen(at(1), "llama", (agent,), ("torchrun",)), LaunchersSeen(at(1), "llama", (), marks=(7,)))
    assert (node.runs["llama"].launch.launchers, node.runs["llama"].launch.command) == ((agent,), ("torchrun",))


def test_the_newest_are_kept() -> None:
    node = make_node()
    play(node, tick(0), hello(0))
    strays = tuple(ProcessId(pid, pid, "boot-1") for pid in range(1_000, 1_000 + 2 * UNSURE_MAX))
    play(node, LaunchersSeen(at(1), "llama", (), marks=tuple(range(1, 2 * MARKS_MAX + 1)), unsure=strays))
    launch = node.runs["llama"].launch
    assert launch.marks == tuple(range(MARKS_MAX + 1, 2 * MARKS_MAX + 1))
    assert launch.unsure == strays[-UNSURE_MAX:]


def test_orphans_that_a_later_hello_sees_are_not_the_launchs() -> None:
    node = make_node()
    training(node)
    play(node, LaunchersSeen(at(31), "llama", (), marks=(7,), unsure=(STRAY,)))
    assert (node.runs["llama"].launch.marks, node.runs["llama"].launch.unsure) == ((7,), ())


def test_orphans_of_the_first_hello_are_the_launchs_however_late_the_look() -> None:
    """Beside a crowd the process table is read when the run has made its first steps, or its NaN."""
    node = make_node()
    said = at(0)
    training(node)
    play(node, LaunchersSeen(said, "llama", (), marks=(7,), unsure=(STRAY,)))
    assert node.runs["llama"].launch.unsure == (STRAY,)


def test_the_launched_command_has_its_mark_before_any_rank_attaches() -> None:
    node = make_node()
    play(node, tick(0), CommandLaunched(at(1), "job", 1000, (peer(90).process,), marks=(7,)))
    assert node.runs["job"].launch.marks == (7,)


def test_what_lives_on_unsure_is_in_the_incident_once() -> None:
    node = make_node()
    training(node)
    play(node, OperatorHalt(at(31), "llama", "enough", 0), ack("failed", 32))
    seen = ProcessesSeen(at(33), "llama.node-a.1", (), unsure=((300, "redis-server"),))
    play(node, seen, seen)
    incident = node.runs["llama"].incident
    assert incident is not None
    (entry,) = [entry for entry in incident.timeline if entry["what"] == "unsure"]
    assert entry["detail"] == {"processes": [{"pid": 300, "command": "redis-server"}]}
