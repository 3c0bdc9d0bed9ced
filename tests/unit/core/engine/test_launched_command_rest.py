"""What follows in the same command once the run that spoke for it has ended: metered, and under its ceiling."""

from __future__ import annotations

import pytest

from governor.core.base.findings import Reading
from governor.core.base.identity import ConnectionId, ProcessId
from governor.core.base.policy import Persistence, PersistenceKind
from governor.core.base.units import NS_PER_S, BootNs, DurationNs
from governor.core.engine.launched_command import ATTACH_EXPECTED_NS
from governor.core.engine.node import Node
from governor.core.engine.node_journal import run_snapshot
from governor.core.engine.resume import restore_runs
from governor.core.events.effects import Alarm, Effect
from governor.core.events.inputs import (
    Bye,
    CommandLaunched,
    Disconnected,
    LauncherExited,
    LaunchersSeen,
    ProcessesSeen,
    TrainerExited,
)
from governor.core.events.operators import OperatorHalt, OperatorHold
from governor.core.events.streams import StreamOpened
from governor.core.halt.table import HaltState
from governor.core.money.charges import UNALLOCATED
from governor.core.views.status import run_status
from tests.unit.core.engine.test_budgeting import set_live
from tests.unit.core.engine.test_launched_command import COMMAND, STREAMED, launched, pass_time, stream, terms
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, peer, play, rule, tick

EXPECTED_S = ATTACH_EXPECTED_NS // NS_PER_S


def missed(effects: list[Effect]) -> list[Alarm]:
    return [effect for effect in effects if isinstance(effect, Alarm) and effect.name == "nobody_attached"]


def trained(name: str = "job", until: int = 100) -> Node:
    """A rank attached at once, has trained until then, and is gone; the command goes on."""
    node = launched()
    play(node, hello(0, 0, run=name, world_size=1))
    play(node, a_step(1, run=name, when=1, loss=2.5))
    pass_time(node, until, 2)
    play(node, Disconnected(at(until), ConnectionId(1)), TrainerExited(at(until), name, None))
    return node


@pytest.mark.parametrize("name", ["job", "named-by-the-script"])
def test_what_never_attaches_again_is_held_to_the_ceiling_of_the_run_that_did(name: str) -> None:
    node = trained(name)
    pass_time(node, 110, 101)
    run = node.runs[name].run
    assert list(node.runs) == [name]
    assert run.spend_usd_micros == 110_000_000
    assert terms(pass_time(node, 1_000, 111)) == [name]
    incident = node.runs[name].incident
    assert incident is not None
    assert (incident.reason, incident.rank_processes, incident.launchers) == ("ceiling_reached", (COMMAND,), (COMMAND,))
    assert incident.spend_at_verdict_usd_micros < 600_000_000
    assert node.ledger.spend(UNALLOCATED) == 0


def test_the_ceiling_reserves_no_grace_for_a_checkpoint_that_nobody_is_left_to_save() -> None:
    node = trained()
    assert terms(pass_time(node, 577, 101)) == [], "1 s of grace, 20 s of ending and 1 s of ticks, at a dollar each"
    assert terms(pass_time(node, 578, 578)) == ["job"]


def test_a_log_that_speaks_for_the_command_brings_its_stage_and_labels() -> None:
    node = launched(ceiling=None)
    set_live(node, 0, "stage:stage1", 600)
    play(node, StreamOpened(at(1), "job", 1000, "stage1", {"team": "nlp"}, (STREAMED,)))
    run = node.runs["job"].run
    assert (run.stage, run.labels) == ("stage1", {"team": "nlp"})
    assert terms(pass_time(node, 1_000, 1)) == ["job"]
    assert node.ledger.groups.of_key("label:team=nlp") == node.ledger.spend("job")


def test_what_the_last_steps_were_like_halts_nobody_who_comes_after_them() -> None:
    """They starved for one minute of the three that the rule asks for; then training ended, and an evaluation began."""
    starved = rule("data_starvation", persistence=Persistence(PersistenceKind.DURATION, 180 * NS_PER_S))
    node = launched(starved, ceiling=None)
    play(node, hello(0, 0, run="job", world_size=1))
    for second in range(1, 101):
        slow = {"step_s": 1.0, "data_s": 0.0 if second < 40 else 0.95}
        play(node, a_step(second, run="job", when=second, **slow), tick(second))
    assert node.runs["job"].rules.findings["r-data_starvation"].reading is Reading.FIRING
    play(node, Disconnected(at(101), ConnectionId(1)), TrainerExited(at(101), "job", None))
    assert terms(pass_time(node, 1_000, 102)) == []
    assert node.runs["job"].incident is None


def test_the_rest_counts_towards_the_budget_of_its_stage() -> None:
    node = launched(ceiling=None)
    set_live(node, 0, "stage:stage1", 600)
    play(node, hello(0, 0, run="job", world_size=1, stage="stage1"))
    pass_time(node, 100)
    play(node, Disconnected(at(100), ConnectionId(1)), TrainerExited(at(100), "job", None))
    effects = pass_time(node, 1_000, 101)
    assert terms(effects) == ["job"]
    (said,) = missed(effects)
    assert "only the ceiling $600.00 of stage:stage1 protects this run" in said.text
    assert node.ledger.spend("job") == 1_000_000_000
    incident = node.runs["job"].incident
    assert incident is not None
    assert incident.spend_at_verdict_usd_micros < 600_000_000


def test_nobody_who_attaches_in_time_is_missed_and_then_it_is_said_once_for_each_rest() -> None:
    node = trained()
    assert missed(pass_time(node, 100 + EXPECTED_S, 101)) == []
    (alarm,) = missed(pass_time(node, 300, 101 + EXPECTED_S))
    assert alarm.run == "job"
    for said in ("the run has ended, its command goes on", "for 1m", "only the ceiling $600.00"):
        assert said in alarm.text
    play(node, hello(0, 300, run="job", attempt="a2", world_size=1, peer=peer(300)))
    play(node, Disconnected(at(310), ConnectionId(1)), TrainerExited(at(310), "job", None))
    assert len(missed(pass_time(node, 400, 310))) == 1


def test_the_pause_between_two_trainings_is_the_next_ones_start_up_and_nobodys_nowhere() -> None:
    node = trained("first")
    pass_time(node, 130, 101)
    play(node, hello(0, 130, run="second", attempt="b", world_size=1, peer=peer(300)))
    pass_time(node, 150, 131)
    assert (node.ledger.spend("first"), node.ledger.spend("second")) == (100_000_000, 50_000_000)
    assert node.ledger.spend(UNALLOCATED) == 0
    first = node.runs["first"].run
    assert (first.alive, first.ended_at, first.step) == (False, at(130), 1), "told to its end"
    assert node.runs["second"].history.paid_from == at(100) + NS_PER_S, "its first window begins where it began to pay"


def test_the_attempt_that_trained_keeps_what_it_has_shown_and_that_it_was_heard() -> None:
    node = trained()
    pass_time(node, 200, 101)
    shown = run_status(node.runs["job"], at(200))
    assert (shown["step"], shown["loss"], shown["ranks_connected"]) == (1, 2.5, 0)
    assert node.runs["job"].was_announced


def test_the_same_attempt_that_says_hello_again_is_launched_anew() -> None:
    node = trained()
    pass_time(node, 110, 101)
    play(node, hello(0, 110, run="job", world_size=1, peer=peer(300)), tick(111))
    run = node.runs["job"].run
    assert (run.alive, run.step, run.attempt_at) == (True, None, at(110))
    assert not node.runs["job"].is_unattached


def test_what_is_ended_of_the_rest_is_the_commands_also_where_its_ranks_were_another_user() -> None:
    node = launched()
    play(node, hello(0, 0, run="job", world_size=1, peer=peer(100, uid=2000), of_command=True))
    play(node, Disconnected(at(1), ConnectionId(1)), TrainerExited(at(1), "job", None), tick(1))
    play(node, OperatorHalt(at(2), "job", "enough", 0))
    incident = node.runs["job"].incident
    assert incident is not None
    assert (incident.uid, incident.rank_processes) == (1000, (COMMAND,))


def test_a_command_that_has_exited_has_no_rest() -> None:
    node = launched()
    play(node, hello(0, 0, run="job", world_size=1))
    pass_time(node, 10)
    play(node, LauncherExited(at(10)), Disconnected(at(10), ConnectionId(1)), TrainerExited(at(10), "job", None))
    pass_time(node, 100, 11)
    assert not node.runs["job"].run.alive
    assert node.ledger.spend("job") == 10_000_000


def test_a_rest_that_ends_has_cost_what_it_has_cost() -> None:
    node = trained()
    pass_time(node, 120, 101)
    play(node, LauncherExited(at(120)), TrainerExited(at(120), "job", None))
    pass_time(node, 130, 121)
    assert not node.runs["job"].run.alive
    assert node.ledger.spend("job") == 120_000_000


def test_of_two_runs_the_first_to_end_leaves_the_command_to_the_other() -> None:
    node = launched()
    play(node, hello(0, 0, run="a", world_size=1))
    play(node, hello(0, 0, run="b", world_size=1, connection=ConnectionId(2), peer=peer(200)))
    pass_time(node, 10)
    play(node, Disconnected(at(10), ConnectionId(1)), TrainerExited(at(10), "a", None))
    pass_time(node, 20, 11)
    assert not node.runs["a"].run.alive
    play(node, Disconnected(at(20), ConnectionId(2)), TrainerExited(at(20), "b", None))
    pass_time(node, 30, 21)
    assert (node.runs["a"].is_unattached, node.runs["b"].run.alive) == (True, False)
    assert node.runs["a"].run.spend_usd_micros == 15_000_000, "half of ten seconds, and the last ten"


def test_a_command_that_a_halt_has_ended_is_not_stood_in_for() -> None:
    node = launched()
    play(node, hello(0, 0, run="job", world_size=1), LaunchersSeen(at(0), "job", (COMMAND,)))
    pass_time(node, 10)
    play(node, OperatorHalt(at(10), "job", "wrong data", 0))
    incident = node.runs["job"].incident
    assert incident is not None
    pass_time(node, 80, 11)
    play(node, ProcessesSeen(at(80), incident.incident_id, ()))
    assert incident.halt.stage is HaltState.HALTED
    pass_time(node, 90, 81)
    assert node.runs["job"].incident is incident
    assert not node.runs["job"].run.alive


@pytest.mark.parametrize("halted", ["job", "other"])
def test_the_rest_of_a_command_that_a_halt_has_left_to_another_run_is_held_to_its_ceiling(halted: str) -> None:
    """The halt ends one of two runs and leaves the launcher of both, and the other run ends by itself."""
    node, ends = launched(), "other" if halted == "job" else "job"
    links = {"job": ConnectionId(1), "other": ConnectionId(2)}
    for name, link in links.items():
        play(node, hello(0, 0, run=name, world_size=1, connection=link, peer=peer(100 * link)))
        play(node, LaunchersSeen(at(0), name, (COMMAND,)))
    pass_time(node, 10)
    play(node, OperatorHalt(at(10), halted, "wrong data", 0))
    incident = node.runs[halted].incident
    assert incident is not None
    incident.note_left([COMMAND], [])
    pass_time(node, 80, 11)
    play(node, ProcessesSeen(at(80), incident.incident_id, ()))
    assert incident.halt.stage is HaltState.HALTED
    play(node, Disconnected(at(90), links[ends]), TrainerExited(at(90), ends, None))
    pass_time(node, 100, 91)
    assert sum(managed.is_unattached for managed in node.runs.values()) == 1
    assert sum(managed.run.spend_usd_micros for managed in node.runs.values()) == 100_000_000, "$1 a second, all of it"
    assert len(terms(pass_time(node, 1_000, 101))) == 1


def test_a_stream_beside_the_rest_does_not_take_its_account() -> None:
    node = trained("named-by-the-script")
    pass_time(node, 110, 101)
    stream(node, "other", 110, STREAMED)
    pass_time(node, 130, 111)
    assert node.runs["named-by-the-script"].run.spend_usd_micros == 120_000_000
    stream(node, "named-by-the-script", 130)
    own = node.runs["named-by-the-script"]
    assert not own.is_unattached, "its own log speaks for it"
    assert (own.run.attempt, own.run.attempt_at, own.run.step) == ("stream", at(130), None), "and begins anew"


def test_of_two_holds_the_longer_stands() -> None:
    for loading, own, left in ((100, 1_000, 1_000), (1_000, 100, 1_000), (100, None, 100)):
        node = trained("first", until=50)
        play(node, tick(50))
        play(node, hello(0, 50, run="second", attempt="b", world_size=1, peer=peer(300)))
        play(node, Disconnected(at(51), ConnectionId(1)), TrainerExited(at(51), "second", None), tick(51))
        # The second stands in for the command now; the first is known, and may be held for itself.
        play(node, OperatorHold(at(52), "second", DurationNs(loading * NS_PER_S), "loading", 0))
        if own is not None:
            play(node, OperatorHold(at(52), "first", DurationNs(own * NS_PER_S), "by hand", 0))
        play(node, hello(0, 53, run="first", attempt="c", world_size=1, peer=peer(400)))
        assert node.runs["first"].history.hold_until == at(52 + left)
        assert node.runs["first"].history.hold_reason == ("by hand" if left == own else "loading")


def fails(before: Node, when: int, *, completes: bool = False) -> tuple[Node, set[str]]:
    """Another launch: its rank trains a step, and its launcher ends after it. Returns whom the rule has ended."""
    kept = [run_snapshot(before, managed, at(when)) for managed in before.runs.values()]
    node = make_node(*before.policies.policies[0].rules, cloud="none", exclusive=True, boot=when)
    restore_runs(node, kept, BootNs(at(when)), at(when))
    link, whose = ConnectionId(when), peer(200 + when)
    effects = play(
        node,
        CommandLaunched(at(when), "job", 1000, (ProcessId(4321, when, "boot-1"),), ("x",)),
        tick(when),
        hello(0, when + 1, run="job", world_size=1, connection=link, peer=whose, attempt=f"a{when}"),
        a_step(1, run="job", when=when + 2, connection=link),
        tick(when + 3),
        *([Bye(at(when + 3), link, "job", 0, 5, completed=True)] if completes else []),
        Disconnected(at(when + 4), link),
        TrainerExited(at(when + 4), "job", None),
        tick(when + 5),
        LauncherExited(at(when + 6)),
        TrainerExited(at(when + 6), "job", 1),
    )
    return node, set(terms(effects))


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_launch_that_failed_counts_once_though_its_launcher_went_on_without_it(attempts: int) -> None:
    node = make_node(rule("restart_loop", params={"attempts": attempts}))
    for number in range(attempts):
        node, ended = fails(node, 10 + 20 * number)
        assert ended == set()
    assert fails(node, 90)[1] == {"job"}


def test_a_launch_that_trained_to_its_end_is_no_failure_because_its_command_went_on() -> None:
    node, _ = fails(make_node(rule("restart_loop", params={"attempts": 1})), 10, completes=True)
    node, ended = fails(node, 30)
    assert ended == set()
    assert fails(node, 50)[1] == {"job"}
