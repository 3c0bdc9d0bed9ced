"""A run's end in the engine: whose it is, which alarm it is, and what a halt and a restart know of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from governor.cli.status_table import render_status
from governor.core.base.identity import ConnectionId, ProcessId
from governor.core.base.units import DurationNs
from governor.core.engine.node import Node
from governor.core.engine.node_journal import run_snapshot
from governor.core.engine.resume import restore_runs
from governor.core.events.effects import Alarm, Effect, Record
from governor.core.events.ends import CommandEndSeen, Failure, LastLine, OomKillsSeen, RankFailed, RunEnd
from governor.core.events.inputs import Bye, CommandLaunched, Disconnected, Event, TrainerExited
from governor.core.runs.ends import FOLLOWED_NS
from governor.core.runs.last_good import LastGood
from governor.core.views.status import run_status, runs_status
from governor.text.screen import FILE
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, play, tick, training

OOM = Failure("torch.OutOfMemoryError", "CUDA out of memory.")
CAUSE = "out of GPU memory on rank 1 (torch.OutOfMemoryError: CUDA out of memory.)"
GONE = (
    Disconnected(at(31), ConnectionId(1)),
    Disconnected(at(31), ConnectionId(2)),
    TrainerExited(at(32), "llama", None),
)


def raised(rank: int = 1, failure: Failure = OOM, when: float = 31) -> RankFailed:
    return RankFailed(at(when), ConnectionId(rank + 1), "llama", rank, failure)


def a_node(*events: Event, **facts: Any) -> tuple[Node, list[Effect]]:
    node = make_node(**facts)
    training(node)
    return node, play(node, *events)


def names(effects: list[Effect]) -> list[str]:
    return [effect.name for effect in effects if isinstance(effect, Alarm)]


def test_a_rank_that_raised_is_the_cause_of_its_runs_end() -> None:
    node, effects = a_node(raised(), *GONE)
    assert node.runs["llama"].run.end == RunEnd(None, CAUSE)
    assert names(effects) == ["crashed"]
    (ended,) = [one for one in effects if isinstance(one, Record) and one.kind == "ended"]
    assert ended.data["cause"] == CAUSE


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({}, "step 24, /ckpt/24 (not looked into: the look has not ended)"),
        ({"torn": "model.pt is cut short"}, "step 24, /ckpt/24 (do not resume from it: model.pt is cut short)"),
        ({"nonfinite": "model.pt: w"}, "step 24, /ckpt/24 (do not resume from it: not finite: model.pt: w)"),
    ],
)
def test_the_alarm_says_of_its_checkpoint_no_more_than_was_seen(found: dict[str, str], said: str) -> None:
    node, _ = a_node()
    saved = LastGood(24, "/ckpt/24", **found)
    node.runs["llama"].run.take_last_good(saved, None, ())
    (alarm,) = [one for one in play(node, raised(), *GONE) if isinstance(one, Alarm) and one.name == "crashed"]
    assert alarm.text.endswith(f"last checkpoint: {said}")


def test_an_end_without_a_word_is_no_cause_and_no_alarm() -> None:
    node, effects = a_node(*GONE)
    assert node.runs["llama"].run.end is None
    assert names(effects) == []


@pytest.mark.parametrize("failure", [Failure("KeyboardInterrupt", ""), Failure("OSError", "x", thread="pin")])
def test_a_person_and_a_side_thread_are_no_alarm(failure: Failure) -> None:
    _, effects = a_node(raised(0, failure), *GONE)
    assert names(effects) == []


def test_a_rank_that_says_it_a_thousand_times_is_noted_once() -> None:
    _, effects = a_node(*(raised() for _ in range(1_000)))
    assert len([one for one in effects if isinstance(one, Record)]) == 1


def test_secrets_of_the_users_own_names_are_not_written() -> None:
    failure = Failure("E", "mykey=abcdef", place="/data/mykey=abcdef/t.py:main:3")
    node, effects = a_node(raised(0, failure), redact_keys=("mykey",))
    assert "abcdef" not in repr((effects, node.runs["llama"].run.failures))


def test_the_status_has_it_at_once_and_its_end_until_the_next_attempt() -> None:
    node, _ = a_node(raised())
    shown = run_status(node.runs["llama"], at(31))
    assert (shown["raised"], shown["end"]) == (CAUSE, None), "the others still live"
    assert CAUSE in table(node)
    play(node, *GONE)
    shown = run_status(node.runs["llama"], at(33))
    assert (shown["raised"], shown["end"]) == (None, {"exit_code": None, "cause": CAUSE, "text": f"ended: {CAUSE}"})
    assert f"llama: ended: {CAUSE}" in table(node)


def table(node: Node) -> str:
    status = {"governor": {"node": "n"}, "runs": runs_status(node, at(33))}
    return render_status(status, FILE)


def test_a_halt_has_it_in_its_timeline_once_whenever_it_came() -> None:
    for first, then in ((raised(), a_step(32, 1, loss=float("nan"))), (a_step(32, 1, loss=float("nan")), raised())):
        node, _ = a_node(first, then, raised(0, when=33))
        incident = node.runs["llama"].incident
        assert incident is not None
        assert [entry["detail"] for entry in incident.timeline if entry["what"] == "raised"] == [{"text": CAUSE}]
        play(node, *GONE)
        assert node.runs["llama"].run.end is None, "the halt is the cause"


def test_the_next_attempt_begins_without_it_and_a_restarted_governor_has_it() -> None:
    node, _ = a_node(raised(), *GONE)
    snapshot = run_snapshot(node, node.runs["llama"], at(33))
    again = make_node()
    restore_runs(again, [snapshot], again.began, at(40))
    assert again.runs["llama"].run.end == RunEnd(None, CAUSE)
    older = {key: value for key, value in snapshot.items() if key != "end"}
    older_node = make_node()
    restore_runs(older_node, [older], older_node.began, at(40))
    assert older_node.runs["llama"].run.end is None
    play(node, hello(0, 40, attempt="a2", connection=ConnectionId(9)))
    assert (node.runs["llama"].run.end, node.runs["llama"].run.failures) == (None, {})


LAUNCHED = ProcessId(4321, 1, "boot-1")
DISK = LastLine("a full disk", "token=abcdefgh")
SEEN = CommandEndSeen(at(33), "named", (LAUNCHED,), 134, died_of="SIGABRT", last_lines=(DISK,))


def test_a_commands_end_is_that_of_its_own_runs() -> None:
    node = make_node(exclusive=True)
    play(node, CommandLaunched(at(0), "named", 1000, (LAUNCHED,)), tick(0))
    training(node)
    node.runs["llama"].launch.launchers = (LAUNCHED,)
    effects = play(node, *GONE, replace(SEEN, exit_code=0))
    assert names(effects) == []
    assert names(play(node, SEEN)) == ["crashed"]
    assert node.runs["llama"].run.end == RunEnd(134, 'a full disk (its output says "token=<redacted>")')


def test_a_signal_that_was_passed_on_is_no_alarm() -> None:
    node = make_node(exclusive=True)
    play(node, CommandLaunched(at(0), "named", 1000, (LAUNCHED,)), tick(0))
    effects = play(node, replace(SEEN, exit_code=143, died_of=None, died_below="SIGTERM", passed_on="SIGTERM"))
    assert names(effects) == []
    assert node.runs["named"].run.end == RunEnd(143, "SIGTERM was sent to costgov run, which passed it on")


@pytest.mark.parametrize(
    ("died_of", "before", "alarms"),
    [
        ("SIGABRT", FOLLOWED_NS, []),
        ("SIGABRT", FOLLOWED_NS + 1, ["crashed"]),
        ("SIGTERM", FOLLOWED_NS + 1, []),
    ],
)
def test_a_signal_that_the_command_has_survived_silences_no_later_crash(
    died_of: str, before: int, alarms: list[str]
) -> None:
    node = make_node(exclusive=True)
    play(node, CommandLaunched(at(0), "named", 1000, (LAUNCHED,)), tick(0))
    end = replace(SEEN, died_of=died_of, passed_on="SIGTERM", passed_on_before=DurationNs(before), last_lines=())
    assert names(play(node, end)) == alarms
    sent = "SIGTERM was sent to costgov run, which passed it on"
    assert node.runs["named"].run.end == RunEnd(134, sent if died_of == "SIGTERM" else died_of)


KILLED = "rank 0 ended without a word, and 1 more after it; the run's control group counted an out-of-memory kill"


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_kill_that_the_group_counted_explains_an_end_without_a_word(order: str) -> None:
    counted = OomKillsSeen(at(31 if order == "before" else 34), "llama", 1)
    node, effects = a_node(
        *((counted, *GONE) if order == "before" else (*GONE, counted)), OomKillsSeen(at(35), "llama", 1)
    )
    assert node.runs["llama"].run.end == RunEnd(None, KILLED)
    assert names(effects) == ["crashed"]


@pytest.mark.parametrize(("when", "told"), [(20.5, " 11.5s before the end"), (43.5, " 11.5s after the end")])
def test_a_kill_that_was_not_counted_at_the_end_is_told_with_its_time(when: float, told: str) -> None:
    counted = OomKillsSeen(at(when), "llama", 1)
    events: tuple[Event, ...] = (counted, *GONE) if when < 31 else (*GONE, counted)
    node, _ = a_node(*events)
    assert node.runs["llama"].run.end == RunEnd(None, KILLED + told)


def test_a_kill_explains_neither_a_good_end_nor_a_later_one_nor_a_ranks_own_fault() -> None:
    byes = [Bye(at(31), ConnectionId(rank + 1), "llama", rank, 9, completed=True) for rank in (0, 1)]
    for events in ((*byes, *GONE), (raised(), *GONE)):
        node, _ = a_node(OomKillsSeen(at(31), "llama", 1), *events)
        end = node.runs["llama"].run.end
        assert end is None or end.cause == CAUSE
    node, _ = a_node(OomKillsSeen(at(31), "llama", 1), *GONE[:2], TrainerExited(at(200), "llama", None))
    assert node.runs["llama"].run.end is None
