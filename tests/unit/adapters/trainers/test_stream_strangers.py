"""Paths that others control: a stream waits for none of them, and believes none about another user's process."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from governor.adapters.trainers.deciders import ANYONE, read_pidfile, stranger
from governor.adapters.trainers.jsonl_tail import JsonlTail
from governor.adapters.trainers.stream_files import Asked, Seen, StreamFiles, StreamThread
from governor.adapters.trainers.streams import Stream
from governor.core.events.effects import Alarm, Effect
from governor.core.views.status import run_status
from governor.settings.streams import Jsonl
from tests.contract.fakes import FakeProcesses
from tests.opened import opened_in
from tests.unit.core.engine.test_step import at, make_node, play, tick
from tests.unit.followed_log import AtOnce, Watch


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "m.jsonl"


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(tmp_path)


def names(effects: list[Effect]) -> list[str]:
    return [effect.name for effect in effects if isinstance(effect, Alarm)]


# --- a path that does not answer ------------------------------------------------------------------------------


class Held(AtOnce):
    """`Answerer` whose file server has gone away: it answers once that is back."""

    def __init__(self, name: str, files: StreamFiles, wake: object) -> None:
        super().__init__(name, files, wake)
        self.asked: list[Asked] = []

    @property
    def is_busy(self) -> bool:
        return bool(self.asked)

    def ask(self, asked: Asked) -> None:
        self.asked.append(asked)

    def come_back(self) -> None:
        super().ask(self.asked[-1])

    def take(self) -> Seen | None:
        seen = super().take()
        if seen is not None:
            self.asked.clear()
        return seen


def test_a_path_that_does_not_answer_is_said_once_in_seconds_and_watched_when_it_does(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("")
    made: list[Held] = []

    def begin(name: str, files: StreamFiles, wake: object) -> Held:
        made.append(Held(name, files, wake))
        return made[-1]

    node, watched = make_node(), Stream(Jsonl(path=path, run="log"), FakeProcesses(), begin=begin)

    def poll(when: float) -> list[str]:
        return names(play(node, tick(when), *watched.poll(at(when))))

    assert poll(0) == []
    assert poll(4) == []
    assert poll(5) == ["stream_unanswered"]
    assert len(made[0].asked) == 1, "no question is added to one that hangs"
    assert [name for second in range(6, 70) for name in poll(second)] == ["unwatched"]
    assert run_status(node.runs["log"], at(70))["state"] == "unwatched"
    made[0].come_back()
    assert poll(71) == []
    made[0].come_back()
    assert poll(72) == []
    assert poll(73) == ["watched_again"]
    watched.close()


@pytest.mark.parametrize("is_there", [True, False])
def test_what_is_written_after_the_first_look_is_no_history(path: Path, is_there: bool) -> None:
    """`costgov run` launches its command once every log was looked at."""
    path.parent.mkdir()
    if is_there:
        path.write_text('{"step": 1}\n')
    node, watched = make_node(), Stream(Jsonl(path=path, run="log"), FakeProcesses(), begin=AtOnce)
    watched.begin(at(0))
    with path.open("a") as file:
        file.write('{"step": 2}\n')
    play(node, tick(0), *watched.poll(at(0)), *watched.poll(at(1)))
    run = node.runs["log"].run
    assert (run.step, run.attempt_step) == (2, 1)
    watched.close()


def test_a_thread_that_is_held_up_holds_up_nobody_and_is_not_replaced() -> None:
    held, entered = threading.Event(), threading.Event()

    class Slow(StreamFiles):
        def answer(self, asked: Asked) -> Seen:
            entered.set()
            assert held.wait(60)
            return super().answer(asked)

    woken = threading.Event()
    thread = StreamThread("stream log", Slow(JsonlTail("/nowhere/log"), None), woken.set)
    thread.ask(Asked(is_look=True, is_read=False))
    assert entered.wait(60)
    before = threading.active_count()
    assert thread.take() is None
    assert thread.is_busy
    thread.close()
    assert threading.active_count() == before
    held.set()
    assert woken.wait(60), "news wakes the loop"
    assert thread.take() is not None


# --- who is believed about a process -------------------------------------------------------------------------


def test_a_pidfile_is_decided_by_all_who_could_have_put_it_there(tmp_path: Path) -> None:
    pidfile = tmp_path / "pid"
    pidfile.write_text("4321\n")
    assert decided(pidfile) == set()
    pidfile.chmod(0o666)
    assert decided(pidfile) == {ANYONE}
    pidfile.chmod(0o644)
    os.link(pidfile, tmp_path / "second")
    assert decided(pidfile) == {ANYONE}
    os.unlink(tmp_path / "second")
    (tmp_path / "link").symlink_to("pid")
    assert decided(tmp_path / "link") == set()
    (tmp_path / "loop").symlink_to("loop")
    for absent in (tmp_path / "loop", tmp_path, tmp_path / "none", Path("/"), Path("/dev/null")):
        assert read_pidfile(str(absent)) is None


def decided(pidfile: Path) -> set[int]:
    read = read_pidfile(str(pidfile))
    assert read is not None
    return set(read.deciders)


def test_the_processs_own_user_and_root_are_believed_and_nobody_else() -> None:
    assert stranger(1000, {}) is None
    assert stranger(1000, {1000: "/a"}) is None
    assert stranger(0, {1000: "/a"}) == (1000, "/a")
    assert stranger(1000, {1000: "/a", 1001: "/a/b"}) == (1001, "/a/b")
    assert stranger(1000, {ANYONE: "/a, which everybody may write"}) is not None


def test_a_log_that_becomes_anybodys_names_nobody_before_its_lines_are_judged(watch: Watch) -> None:
    watch.write(1, 30)
    watch.poll(1)
    watch.path.unlink()
    watch.write(31, 31, loss=float("nan"))
    watch.path.chmod(0o666)
    effects = watch.poll(2)
    assert "stream_untrusted" in names(effects)
    incident = watch.node.runs["log"].incident
    assert incident is not None
    assert incident.names_nobody
    assert watch.node.runs["log"].run.alive
    watch.path.chmod(0o644)
    watch.poll(10)
    assert [process.pid for process in watch.node.runs["log"].launch.named] == [4321], "once its owner alone decides"


def test_a_fifo_as_a_pidfile_names_nobody_and_holds_up_no_loop(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pid")
    with opened_in(tmp_path) as opened:
        assert read_pidfile(str(tmp_path / "pid")) is None
    assert opened == []
