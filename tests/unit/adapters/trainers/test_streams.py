"""A stream that cannot be read: missing data, said once, no evidence of anything; and what its phase marks mean."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from governor.adapters.trainers.streams import Stream
from governor.core.base.identity import ConnectionId
from governor.core.base.units import NS_PER_S
from governor.core.engine.node import Node
from governor.core.events.effects import Alarm, Ask, Effect, PersistRuns, Term
from governor.core.events.inputs import Disconnected, PhaseChange, Step, TrainerExited
from governor.core.events.streams import StreamOpened, StreamState
from governor.core.runs.state import UNWATCHED_AFTER_NS
from governor.core.views.status import run_status
from governor.settings.streams import Jsonl
from tests.contract.fakes import FakeProcesses
from tests.unit.core.engine.test_step import at, hello, make_node, peer, play, rule, tick
from tests.unit.followed_log import AtOnce, Watch
from tests.unit.idle_node import FACTS, Idle, seconds

LOST = "/data/m.jsonl: Permission denied"


# --- the file -------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "m.jsonl"


def stream(path: Path, **keys: object) -> Stream:
    return Stream(Jsonl(path=path, run="log", **keys), FakeProcesses(), begin=AtOnce)  # type: ignore[arg-type]


def problems(watched: Stream, when: float) -> list[str | None]:
    return [event.problem for event in watched.poll(at(when)) if isinstance(event, StreamState)]


def test_a_file_that_becomes_unreadable_is_said_once_and_so_is_its_return(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("")
    watched = stream(path)
    assert problems(watched, 0) == []
    path.parent.rename(path.parent.with_name("away"))
    assert problems(watched, 1) == [f"{path}: No such file or directory"]
    assert problems(watched, 2) == []
    path.parent.with_name("away").rename(path.parent)
    assert problems(watched, 3) == [None]
    watched.close()


def test_a_file_that_nobody_has_begun_to_write_is_awaited_and_not_missed(path: Path) -> None:
    watched = stream(path)
    assert problems(watched, 0) == []
    assert problems(watched, 100) == []


def test_a_file_that_a_living_process_does_not_write_is_missed(path: Path, tmp_path: Path) -> None:
    pidfile = tmp_path / "pid"
    pidfile.write_text("4321\n")
    processes = FakeProcesses()
    processes.add(4321, start_ticks=0)
    watched = Stream(Jsonl(path=path, run="log", pidfile=pidfile), processes, begin=AtOnce)
    assert problems(watched, 0) == [f"{path}: No such file or directory"]


# --- tokens that are held -------------------------------------------------------------------------------------


def rising(watch: Watch, first: int, last: int) -> int:
    """Lines of which it is not known whether they are a total. What they are together, each for itself."""
    counts = {step: 30_000 + 100 * step for step in range(first, last + 1)}
    with watch.path.open("a") as file:
        file.write("".join(f'{{"step": {step}, "loss": 2.0, "tokens": {count}}}\n' for step, count in counts.items()))
    return sum(counts.values())


@pytest.mark.parametrize("is_read_before", [True, False])
def test_tokens_that_are_held_when_the_process_ends_are_counted(tmp_path: Path, is_read_before: bool) -> None:
    watch = Watch(tmp_path)
    tokens = rising(watch, 1, 5)
    if is_read_before:
        watch.poll(1)
        assert watch.tokens == 30_100, "the first line's"
    watch.processes.end(4321)
    effects = watch.poll(6)
    assert watch.tokens == tokens
    assert [one.name for one in effects if isinstance(one, Alarm)] == ["tokens_read"]
    kept = [one.runs["log"] for one in effects if isinstance(one, PersistRuns)][-1]
    assert (kept["tokens_total"], kept["tokens"]["progress_tokens"]) == (tokens, tokens)


def test_tokens_that_are_held_when_another_launch_begins_are_the_earlier_ones(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    tokens = rising(watch, 1, 5)
    watch.poll(1)
    watch.processes.end(4321)
    watch.launch(4322)
    watch.poll(6)
    assert watch.tokens == tokens


@pytest.mark.parametrize("lives", [True, False])
def test_tokens_that_are_held_are_counted_by_the_next_governor(tmp_path: Path, lives: bool) -> None:
    watch = Watch(tmp_path)
    tokens = rising(watch, 1, 4)
    watch.poll(1)
    if not lives:
        watch.processes.end(4321)
    watch.restart(watch.kept(2), 3)
    if lives:
        assert watch.tokens == 30_100
        tokens += rising(watch, 5, 5)
        watch.poll(4)
        watch.processes.end(4321)
        watch.poll(20)
    assert watch.tokens == tokens


# --- what follows ---------------------------------------------------------------------------------------------


def watching(node: Node) -> None:
    play(node, tick(0), StreamOpened(at(0), "log", 1000))
    play(node, *(a_line(second) for second in range(1, 31)))


def a_line(second: float, **values: object) -> Step:
    return Step(at(second), None, "log", 0, step=int(second), **values)  # type: ignore[arg-type]


def ticks(node: Node, begin: int, end: int, every: int = 1) -> list[Effect]:
    """Less than five seconds apart: after a longer gap the governor itself did not run, and no silence is evidence."""
    return [effect for second in range(begin, end, every) for effect in play(node, tick(second))]


def names(effects: list[Effect]) -> list[str]:
    return [effect.name for effect in effects if isinstance(effect, Alarm)]


def test_an_unreadable_log_is_unwatched_after_a_minute_and_never_a_hang() -> None:
    node = make_node(rule("hang"), rule())
    watching(node)
    play(node, StreamState(at(40), "log", LOST))
    effects = ticks(node, 41, 100)
    assert names(effects) == []
    assert run_status(node.runs["log"], at(99))["state"] == "training"
    effects = ticks(node, 100, 3 * 3600, every=4)
    assert names(effects) == ["unwatched"]
    assert LOST in next(effect.text for effect in effects if isinstance(effect, Alarm))
    assert run_status(node.runs["log"], at(3 * 3600))["state"] == "unwatched"
    assert not any(isinstance(effect, (Ask, Term)) for effect in effects)


def test_a_log_that_is_back_is_said_and_its_silence_counts_from_then() -> None:
    node = make_node(rule("hang"), rule())
    watching(node)
    play(node, StreamState(at(40), "log", LOST))
    ticks(node, 41, 3600, every=4)
    play(node, StreamState(at(3600), "log", None))
    effects = ticks(node, 3600, 3600 + 35 * 60)
    assert names(effects) == ["watched_again"]
    assert node.runs["log"].incident is None
    assert run_status(node.runs["log"], at(3700))["state"] == "training"
    ticks(node, 3600 + 35 * 60, 3600 + 36 * 60)
    assert node.runs["log"].incident is not None, "a readable log that stays silent is evidence"


def test_a_deleted_log_that_is_still_written_has_record() -> None:
    node = make_node()
    watching(node)
    play(node, StreamState(at(40), "log", LOST))
    effects = [effect for second in range(41, 400) for effect in play(node, a_line(second), tick(second))]
    assert names(effects) == []
    assert names(ticks(node, 400, 400 + UNWATCHED_AFTER_NS // NS_PER_S + 1)) == ["unwatched"]


def test_a_run_whose_ranks_say_hello_is_no_longer_its_log_alone() -> None:
    """After a restart of the governor the stream is there first, and the ranks a moment later."""
    node = make_node(rule("hang"))
    play(node, tick(0), StreamOpened(at(0), "llama", 1000), hello(0, 1, world_size=1))
    assert not node.runs["llama"].run.jsonl_only
    play(node, StreamState(at(2), "llama", LOST))
    play(node, Disconnected(at(3), ConnectionId(1)))
    assert names(ticks(node, 4, 64)) == ["unwatched"], "its lost connection counts"


def test_a_step_around_a_marked_pause_says_nothing_of_the_speed() -> None:
    node = make_node()
    watching(node)
    run = node.runs["log"].run
    known = len(run.step_times)
    play(node, PhaseChange(at(31), None, "log", 0, "eval"))
    assert run_status(node.runs["log"], at(31))["state"] == "eval"
    play(node, PhaseChange(at(600), None, "log", 0, "train"))
    play(node, a_line(601))
    assert len(run.step_times) == known, "an evaluation of ten minutes is no step of ten minutes"
    play(node, a_line(602))
    assert len(run.step_times) == known + 1


def test_a_step_ends_a_phase_that_the_log_never_ends() -> None:
    node = make_node()
    watching(node)
    play(node, PhaseChange(at(31), None, "log", 0, "eval"), a_line(40), a_line(41))
    assert run_status(node.runs["log"], at(41))["state"] == "training"
    assert node.runs["log"].run.step_times.newest(1) == [1.0]


@pytest.mark.parametrize(("mark", "minutes"), [("compile", 180), ("checkpoint", 35), ("eval", 75)])
def test_a_marked_pause_may_take_what_the_same_phase_of_a_rank_may(mark: str, minutes: int) -> None:
    node = make_node(rule("hang"))
    watching(node)
    play(node, PhaseChange(at(60), None, "log", 0, mark))
    end = 60 + minutes * 60
    ticks(node, 60, end, every=4)
    ticks(node, end - 10, end)
    assert node.runs["log"].incident is None
    play(node, tick(end))
    incident = node.runs["log"].incident
    assert incident is not None
    assert incident.reason == f"overdue_{mark}"


def test_marks_reach_the_run_from_the_file(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("")
    node = make_node()
    watched = stream(path)
    play(node, tick(0), *watched.poll(at(0)))
    with path.open("a") as file:
        file.write(json.dumps({"step": 1, "loss": 2.0}) + "\n" + json.dumps({"phase": "checkpoint_start"}) + "\n")
    play(node, *watched.poll(at(1)))
    assert run_status(node.runs["log"], at(1))["state"] == "checkpoint"
    watched.close()


# --- over a restart of the governor ---------------------------------------------------------------------------


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(tmp_path)


def test_what_was_written_while_no_governor_ran_is_judged_once(watch: Watch) -> None:
    watch.write(1, 10)
    watch.poll(1)
    kept = watch.kept(2)
    watch.write(11, 15)
    watch.restart(kept, 60)
    assert watch.tokens == 15_000
    watch.poll(61)
    assert watch.tokens == 15_000


def test_a_crash_takes_lines_and_what_was_made_of_them_back_together(watch: Watch) -> None:
    watch.write(1, 10)
    watch.poll(1)
    kept = watch.kept(2)
    watch.write(11, 15)
    watch.poll(3)
    assert watch.tokens == 15_000
    watch.restart(kept, 60)
    assert watch.tokens == 15_000, "neither lost nor counted twice"


def test_a_nan_of_the_same_launch_is_acted_on_late(watch: Watch) -> None:
    watch.write(1, 30)
    watch.poll(1)
    kept = watch.kept(2)
    watch.write(31, 31, loss=float("nan"))
    watch.restart(kept, 60)
    assert watch.node.runs["log"].incident is not None


def test_a_nan_of_an_earlier_launch_does_not_end_the_one_that_runs_now(watch: Watch) -> None:
    watch.write(1, 30)
    watch.poll(1)
    kept = watch.kept(2)
    watch.write(31, 31, loss=float("nan"))
    watch.processes.end(4321)
    watch.launch(4322)
    watch.write(20, 25)
    watch.restart(kept, 60)
    managed = watch.node.runs["log"]
    assert managed.incident is None
    assert managed.run.first_step_at is None, "it is a new attempt"
    watch.write(26, 26, loss=float("nan"))
    watch.poll(61)
    assert managed.incident is not None


def test_a_process_that_ended_while_we_were_away_ends_its_run(watch: Watch) -> None:
    watch.write(1, 30)
    watch.poll(1)
    kept = watch.kept(2)
    watch.processes.end(4321)
    watch.restart(kept, 60)
    assert not watch.node.runs["log"].run.alive, "nobody is charged for it any more"


def test_a_pidfile_that_was_removed_while_we_were_away_ends_nothing(watch: Watch) -> None:
    watch.write(1, 30)
    watch.poll(1)
    kept = watch.kept(2)
    watch.pidfile.unlink()
    watch.write(31, 31)
    watch.restart(kept, 60)
    managed = watch.node.runs["log"]
    assert managed.run.alive
    assert [process.pid for process in managed.launch.named] == [4321]
    assert managed.run.step == 31


def test_without_a_named_process_nobody_knows_whose_voice_it_is_and_the_past_is_left_alone(tmp_path: Path) -> None:
    watch = Watch(tmp_path, pidfile=False)
    watch.write(1, 30)
    watch.poll(1)
    kept = watch.kept(2)
    watch.write(31, 31, loss=float("nan"))
    watch.restart(kept, 60)
    assert watch.node.runs["log"].incident is None
    watch.write(32, 32)
    watch.poll(61)
    assert watch.node.runs["log"].run.step == 32


@pytest.mark.parametrize(("pidfile", "is_new"), [(True, False), (True, True), (False, False)])
def test_who_goes_on_with_no_process_reads_nothing_of_before(tmp_path: Path, *, pidfile: bool, is_new: bool) -> None:
    watch = Watch(tmp_path, pidfile=pidfile)
    watch.write(1, 30)
    watch.poll(1)
    kept = watch.kept(2)
    watch.write(31, 40)
    if is_new:
        watch.processes.end(4321)
        watch.launch(4322)
    watch.restart(kept, 60)
    is_fresh = is_new or not pidfile
    assert (watch.node.runs["log"].has_fresh_log, watch.tokens) == (is_fresh, 30_000 if is_fresh else 40_000)


def test_a_log_that_was_rotated_while_we_were_away_is_news_from_its_first_line(watch: Watch) -> None:
    watch.write(1, 10)
    watch.poll(1)
    kept = watch.kept(2)
    watch.path.rename(watch.path.with_suffix(".1"))
    watch.write(11, 12)
    watch.restart(kept, 60)
    assert watch.tokens == 12_000


@pytest.mark.parametrize("row", [{}, {"inode": 1, "head": "zz", "offset": 1}, {"inode": 1, "head": "", "offset": -5}])
def test_a_position_of_another_version_costs_the_past_and_not_our_start(watch: Watch, row: dict[str, object]) -> None:
    watch.write(1, 10)
    watch.poll(1)
    watch.restart(json.dumps({**json.loads(watch.kept(2)), "stream_position": row}), 60)
    watch.write(11, 11)
    watch.poll(61)
    assert watch.tokens == 11_000


def test_a_log_that_goes_on_after_a_reboot_is_a_live_run_again() -> None:
    """Nobody has named its processes, so its lines alone can show that the run was launched again."""
    world = Idle(facts=replace(FACTS, idle_stop_ns=seconds(20)))
    world.tell(StreamOpened(at(0), "log", 1000))
    world.until(5)
    world.restart(boot_id="boot-2")
    world.tell(StreamOpened(at(world.now), "log", 1000))
    world.until(world.now + 10)
    world.tell(Step(at(world.now), None, "log", 0, step=1))
    world.until(world.now + 60)
    assert world.node.runs["log"].run.alive
    assert world.stops() == []


def test_the_last_lines_of_a_log_do_not_revive_what_has_ended() -> None:
    world = Idle(facts=replace(FACTS, idle_stop_ns=seconds(20)))
    world.tell(StreamOpened(at(0), "log", 1000, None, {}, (peer(100).process,)))
    world.until(5)
    world.tell(TrainerExited(at(5), "log", None), Step(at(5), None, "log", 0, step=9))
    assert not world.node.runs["log"].run.alive


def test_lines_that_cannot_be_read_are_counted(watch: Watch) -> None:
    with watch.path.open("ab") as file:
        file.write(b"garbage\n\xff\xfe\n[1]\n")
    watch.write(1, 1)
    watch.poll(1)
    assert watch.node.frames_lost_total == 3
    assert watch.node.runs["log"].run.step == 1
