"""What ranks say, at its edges: who is connected, who comes back, and what a hostile or broken one cannot do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from governor.core.base.findings import Response
from governor.core.base.identity import ConnectionId, ProcessId
from governor.core.base.units import BootNs, MonoNs, WallNs
from governor.core.engine.idle.occupancy import occupants
from governor.core.engine.incident_json import incident_snapshot
from governor.core.engine.node import RUNS_PER_UID_MAX, Node
from governor.core.events.checkpoints import NamedCheckpoint
from governor.core.events.effects import Alarm, Ask, Confirm, Effect, Kill, Refuse, Term
from governor.core.events.inputs import Bye, Disconnected, Hello, ProcessesSeen, Tick, TrainerExited
from governor.core.events.machine import SpotNotice
from governor.core.events.operators import OperatorHalt
from governor.core.events.streams import StreamOpened
from governor.core.halt.table import HaltState
from governor.core.runs.last_good import LastGood
from governor.text.moments import moments
from tests.unit.core.engine.test_step import a_step, ack, at, hello, make_node, only, peer, play, rule, tick, training
from trainer_shim.saving.open_requests import OWN

NAN = float("nan")


def test_an_ack_without_a_step_does_not_break_the_next_hello() -> None:
    node = make_node()
    training(node)
    record = {"path": "/ck/s", "manifest": "/ck/s/manifest.json", "kind": "good"}
    play(node, ack("saved", 31, incident_id="llama.checkpoint.x.1", step=None, checkpoint=record))
    play(node, Disconnected(at(32), ConnectionId(1)))
    effects = play(node, hello(0, 33, connection=ConnectionId(9), last_good=NamedCheckpoint(30, "/ck/30")))
    assert any(isinstance(effect, Confirm) for effect in effects)
    assert node.runs["llama"].run.last_good == LastGood(30, "/ck/30")


def test_a_checkpoint_that_a_rule_asked_for_and_that_failed_is_said_once() -> None:
    node = make_node(rule("spot_notice", response=Response.CHECKPOINT, checkpoint="good"))
    training(node)
    letter = only(play(node, SpotNotice(at(30.5), "terminate"), tick(31)), Ask)
    assert isinstance(letter, Ask)
    why = {"incident_id": letter.incident_id, "exit_after": False, "reason": "no way to save"}
    told = play(node, *(ack("declined", 31.5, rank, **why) for rank in (1, 0)), tick(32))
    assert [effect.text for effect in told if isinstance(effect, Alarm)] == [
        'the checkpoint of run llama that rule "r-spot_notice" asked for has not been saved: no way to save'
    ]


@pytest.mark.parametrize(
    ("reason", "is_told"),
    [
        ("rank 0: cannot write to /ck/cg_31: No space left on device", True),
        ("rank 0: training has finished", False),
        ("rank 1: training has finished (no answer from ranks 0, 1)", False),  # Nobody has posted a step.
    ],
)
def test_a_checkpoint_that_the_script_asked_for_and_that_failed_is_an_alarm(reason: str, is_told: bool) -> None:
    """On a full disk a run trains on for days, and each halt would find its last checkpoint older."""
    node = make_node()
    training(node)
    own = {"incident_id": f"{OWN}30.3", "exit_after": False, "reason": reason}
    told = play(node, *(ack("aborted", 31.5, rank, **own) for rank in (1, 0)), tick(32))
    text = f"the checkpoint of run llama that the training script asked for has not been saved: {reason}"
    assert [effect for effect in told if isinstance(effect, Alarm)] == [
        Alarm("checkpoint_failed", "llama", text) for _ in range(is_told)
    ]


def test_a_checkpoint_that_goes_on_failing_is_one_alarm_until_one_is_saved() -> None:
    node = make_node()
    training(node)

    def alarms(step: int, reason: str, what: str = "aborted") -> int:
        own = {"incident_id": f"{OWN}{step}.1", "exit_after": False, "reason": reason}
        told = play(node, ack(what, step + 0.5, 0, **own), tick(step + 1))
        return sum(isinstance(effect, Alarm) for effect in told)

    full, lost = "cannot write to /ck/cg_{}: No space left on device", "rank {}: Stale file handle"
    assert [alarms(step, full.format(step)) for step in (31, 32, 33)] == [1, 0, 0]
    assert alarms(34, lost.format(1)) == 1, "another reason"
    assert alarms(35, "", "saved") == 0
    assert alarms(36, lost.format(0)) == 1


def test_a_halt_amid_a_checkpoint_without_one_takes_its_save_for_its_own() -> None:
    """The ranks fold the halt's letter into the one that is open, and go on under that one's name."""
    node = make_node(rule(), rule("spot_notice", response=Response.CHECKPOINT, checkpoint="good"))
    training(node)
    letter = only(play(node, SpotNotice(at(30.5), "terminate"), tick(31)), Ask)
    assert isinstance(letter, Ask)
    play(node, a_step(32, 1, loss=NAN), ack("merged", 32.1, merged_into=letter.incident_id))
    record = {"path": "/ck/cg_33", "manifest": "/ck/cg_33/manifest.json", "kind": "suspect"}
    saved = ack("saved", 33, incident_id=letter.incident_id, step=33, checkpoint=record)
    play(node, replace(saved, exit_after=False))
    incident = node.runs["llama"].incident
    assert incident is not None
    assert incident.halt.stage is HaltState.ASKED, "of a rank that has not heard of the halt: it trains on"
    assert only(play(node, replace(saved, exit_after=True)), Term), "not when the grace is over"
    assert incident.checkpoint is not None
    assert incident.checkpoint["path"] == "/ck/cg_33"


@pytest.mark.parametrize(
    ("other", "asked_by"),
    [
        (f"{OWN}30.3", "the training script"),
        ("llama.checkpoint.r-spot_notice.5", 'rule "r-spot_notice"'),
        ("elsewhere.1", "incident elsewhere.1"),
    ],
)
def test_a_checkpoint_that_goes_on_as_the_halts_is_told_as_that(other: str, asked_by: str) -> None:
    node = make_node(rule())
    training(node)
    play(node, a_step(31, 1, loss=NAN))
    incident = node.runs["llama"].incident
    assert incident is not None
    folded = ack("merged", 31.1, incident_id=other, merged_into=incident.incident_id)
    busy = ack("merged", 31.2, incident_id=other, merged_into="another.2")
    parked = ack("merged", 31.3, 1, incident_id=incident.incident_id, merged_into="another.2")
    play(node, folded, busy, parked)
    told = [moment.text for moment in moments(incident_snapshot(node, incident)) if moment.what == "merged"]
    assert told == [
        f"rank 0 saves once for this halt and for {asked_by}",
        "rank 0 is busy with incident another.2",
        "rank 1 is busy with incident another.2",
    ]


def test_a_person_who_asks_for_a_halt_amid_one_is_told_in_words() -> None:
    node = make_node(rule())
    training(node)
    play(node, a_step(31, 1, loss=NAN), OperatorHalt(at(31.1), "llama", "wrong data", 1000))
    incident = node.runs["llama"].incident
    assert incident is not None
    told = [moment.text for moment in moments(incident_snapshot(node, incident)) if moment.what == "merged"]
    assert told == ["an operator asked for a halt too: wrong data"]


def test_a_connection_that_says_hello_twice_leaves_no_rank_connected_behind() -> None:
    node = make_node()
    play(node, tick(0), hello(0, run="one"), hello(0, run="two"), Disconnected(at(1), ConnectionId(1)))
    assert [managed.run.connected_ranks() for managed in node.runs.values()] == [[], []]
    assert node.connections == {}


def test_a_rank_that_comes_back_amid_the_asking_gets_the_letter_and_the_others_no_second_one() -> None:
    node = make_node()
    training(node)
    play(node, a_step(31, 1, loss=NAN))
    play(node, Disconnected(at(31.1), ConnectionId(1)))
    effects = play(node, hello(0, 31.2, connection=ConnectionId(9)))
    ask = only(effects, Ask)
    assert isinstance(ask, Ask)
    assert ask.rank == 0


def test_an_attempt_that_was_over_and_trains_on_is_judged_again() -> None:
    node = make_node()
    training(node)
    play(node, Disconnected(at(31), ConnectionId(1)), Disconnected(at(31), ConnectionId(2)))
    play(node, TrainerExited(at(32), "llama", None))
    assert not node.runs["llama"].run.alive
    again = replace(hello(0, 40, connection=ConnectionId(7)), peer=peer(300))
    play(node, again)
    assert node.runs["llama"].run.alive
    effects = play(node, a_step(31, 0, 41, connection=ConnectionId(7), loss=NAN))
    assert any(isinstance(effect, Ask) for effect in effects)


def test_what_trains_on_after_its_halt_is_said_and_can_be_halted_again() -> None:
    node = make_node(cloud="none")
    training(node)
    play(node, a_step(31, 1, loss=NAN), ack("failed", 31.5))
    play(node, ProcessesSeen(at(32), "llama.node-a.1", ()))
    play(node, Disconnected(at(32), ConnectionId(1)), Disconnected(at(32), ConnectionId(2)))
    assert node.runs["llama"].incident.halt.stage is HaltState.HALTED  # type: ignore[union-attr]
    effects = play(node, replace(hello(0, 40, connection=ConnectionId(7)), peer=peer(300)))
    assert "back_after_halt" in [effect.name for effect in effects if isinstance(effect, Alarm)]
    play(node, a_step(32, 0, 41, connection=ConnectionId(7), loss=2.0))
    play(node, a_step(33, 0, 42, connection=ConnectionId(7), loss=NAN))
    assert node.runs["llama"].incident.incident_id == "llama.node-a.2"  # type: ignore[union-attr]


def test_one_user_cannot_take_every_run_of_the_node() -> None:
    node = make_node()
    effects = []
    for number in range(RUNS_PER_UID_MAX + 1):
        effects = play(node, hello(0, run=f"r{number}", world_size=1, connection=ConnectionId(number + 1)))
    assert any(isinstance(effect, Refuse) for effect in effects)
    other = replace(hello(0, run="other", connection=ConnectionId(999)), peer=peer(500, uid=2000))
    assert any(isinstance(effect, Confirm) for effect in play(node, other))


def opened(when: float, *pids: int, uid: int = 1000) -> StreamOpened:
    named = tuple(ProcessId(pid, pid * 10, "boot-1") for pid in pids)
    return StreamOpened(at(when), "log", uid, None, {}, named)


def test_a_run_that_names_no_process_is_never_halted_by_seeing_nobody() -> None:
    node = make_node(cloud="none")
    play(node, tick(0), opened(0), OperatorHalt(at(1), "log", "enough", 0))
    incident = node.runs["log"].incident
    assert incident is not None
    effects = play(node, ProcessesSeen(at(2), incident.incident_id, ()), ProcessesSeen(at(3), incident.incident_id, ()))
    assert [effect.name for effect in effects if isinstance(effect, Alarm)] == ["nobody_named"]
    for second in range(2, 200, 5):
        play(node, Tick(MonoNs(at(second)), BootNs(at(second)), WallNs(at(second))))
    assert incident.halt.stage is HaltState.NEEDS_HUMAN


@pytest.mark.parametrize(("named_at", "expected"), [(5, Term), (40, Kill), (100, Kill)])
def test_processes_that_are_named_only_after_the_halt_are_ended_too(named_at: int, expected: type[Effect]) -> None:
    """A verdict within the first seconds: the pidfile is read every five."""
    node = make_node(cloud="none")
    play(node, tick(0), opened(0, uid=0), OperatorHalt(at(1), "log", "enough", 0))
    incident = node.runs["log"].incident
    assert incident is not None
    play(node, ProcessesSeen(at(2), incident.incident_id, ()))
    for second in range(3, named_at):
        play(node, tick(second))
    effects = play(node, opened(named_at, 100, uid=1000), opened(named_at + 5, 100, uid=1000))
    assert [type(effect) for effect in effects if isinstance(effect, Term | Kill)] == [expected], "once"
    assert [process.pid for process in node.announced(incident.incident_id)] == [100]
    play(node, ProcessesSeen(at(named_at + 6), incident.incident_id, ()))
    assert incident.halt.stage is HaltState.HALTED


def test_a_stream_belongs_to_the_uid_of_its_processes_as_soon_as_they_are_known() -> None:
    node = make_node(cloud="none")
    play(node, tick(0), opened(0, uid=0), opened(5, 100, uid=1000))
    assert node.runs["log"].run.uid == 1000


def test_a_stream_whose_process_is_launched_anew_is_a_new_attempt_and_watched_again() -> None:
    node = make_node(cloud="none")
    play(node, tick(0), opened(0, 100), OperatorHalt(at(1), "log", "enough", 0))
    incident = node.runs["log"].incident
    assert incident is not None
    play(node, ProcessesSeen(at(2), incident.incident_id, ()))
    assert not node.runs["log"].run.alive
    play(node, opened(10, 200))
    assert node.runs["log"].run.alive
    effects = play(node, OperatorHalt(at(11), "log", "again", 0))
    assert any(isinstance(effect, Term) for effect in effects)
    assert [process.pid for process in node.runs["log"].incident.rank_processes] == [200]  # type: ignore[union-attr]


def test_the_lowest_connected_rank_gives_the_runs_figures() -> None:
    node = make_node()
    training(node, steps=3)
    run = node.runs["llama"].run
    play(node, a_step(4, 1, loss=9.0))
    assert (run.step, run.loss) == (3, 2.0)
    play(node, Disconnected(at(4), ConnectionId(1)), a_step(4, 1, loss=9.0))
    assert (run.step, run.loss) == (4, 9.0)


# --- two launches under one name ------------------------------------------------------------------------------


def launched_again(when: float, attempt: str = "a2", pid: int = 300) -> Hello:
    return replace(hello(0, when, attempt=attempt, connection=ConnectionId(pid)), peer=peer(pid))


def superseded(effects: list[Effect]) -> list[str]:
    return [effect.text for effect in effects if isinstance(effect, Alarm) and effect.name == "displaced"]


def ticks(node: Node, begin: int, end: int) -> list[Effect]:
    return [effect for second in range(begin, end) for effect in play(node, tick(second))]


def test_a_launch_that_takes_a_live_runs_name_is_said_with_whom_nobody_watches_any_more() -> None:
    node = make_node()
    training(node)
    effects = play(node, launched_again(31))
    effects += ticks(node, 31, 36)
    assert superseded(effects) == []
    (text,) = superseded(ticks(node, 36, 3600))
    for said in ("attempt a2 has taken the name of run llama", "2 rank(s) of attempt a1", "UNWATCHED (pid 100, 101)"):
        assert said in text
    for remedy in ("RANK and WORLD_SIZE", "attach(engine, run=…)"):
        assert remedy in text
    assert node.superseded == {}


def test_a_displaced_ranks_broken_loss_is_said_once_and_halts_nobody() -> None:
    node = make_node()
    training(node)
    play(node, launched_again(31))
    effects = play(node, a_step(31, 1, 31, loss=2.0), a_step(32, 1, 32, loss=NAN), a_step(33, 1, 33, loss=NAN))
    (alarm,) = effects
    assert isinstance(alarm, Alarm)
    assert alarm.name == "displaced_nonfinite"
    assert "pid 101 has loss nan at step 32 and is not judged: attempt a1 of run llama" in alarm.text
    assert node.runs["llama"].incident is None
    assert [one.text for one in occupants(node, at(34)) if one.kind == "ranks"] == ["2 rank(s) that train unwatched"]
    play(node, Disconnected(at(34), ConnectionId(1)), Disconnected(at(34), ConnectionId(2)))
    assert node.ignored == {}


def test_a_restart_whose_old_ranks_hang_up_a_moment_later_is_no_news() -> None:
    node = make_node()
    training(node)
    play(node, launched_again(31), Disconnected(at(31.1), ConnectionId(1)), Disconnected(at(31.1), ConnectionId(2)))
    assert superseded(ticks(node, 32, 3600)) == []


def test_a_process_that_attaches_anew_or_said_bye_is_not_displaced() -> None:
    node = make_node()
    training(node)
    play(node, Bye(at(31), ConnectionId(2), "llama", 1, 9))
    play(node, replace(hello(0, 32, attempt="a2"), peer=peer(100)))
    assert superseded(ticks(node, 33, 3600)) == []


def test_two_launches_that_fight_for_a_name_are_said_once_a_minute() -> None:
    node = make_node()
    training(node)
    effects: list[Effect] = []
    for number in range(20):  # Each comes with a connection of its own; none of the old ones hangs up.
        effects += play(node, launched_again(40 + 6 * number, f"b{number}", 1_000 + number))
        effects += ticks(node, 40 + 6 * number, 46 + 6 * number)
    assert 2 <= len(superseded(effects)) <= 3, "in two minutes"


def test_under_a_halt_the_old_ranks_are_the_halts_business() -> None:
    node = make_node()
    training(node)
    play(node, a_step(31, 1, loss=NAN), launched_again(32))
    assert node.superseded == {}
