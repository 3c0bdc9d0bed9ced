"""A log of which nothing is understood is not training: it is said with what was seen, and what to write."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from governor.adapters.trainers.stream_check import StreamCheck
from governor.adapters.trainers.understanding import Understanding
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.effects import Alarm, Effect
from governor.core.views.status import run_status
from governor.settings.streams import Jsonl
from governor.wire.jsonl import field_map
from governor.wire.records import RecordReader
from tests.contract.fakes import FakeProcesses
from tests.unit.core.engine.test_step import at, play, tick
from tests.unit.followed_log import Watch
from tests.unit.wire.formats.written import WRITERS, run

MEGATRON = " iteration      100/     500 | consumed samples:  25600 | lm loss: 2.5E+00 | \x1b[31mgrad norm: 1.2 |\n"
UNKNOWN = [{"it": n, "train": {"ce": 2.5}, "when": "now"} for n in range(1, 5)]


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(tmp_path)


def append(watch: Watch, text: str) -> None:
    with watch.path.open("a") as file:
        file.write(text)


def lines(*records: object) -> str:
    return "".join(f"{json.dumps(record)}\n" for record in records)


def state(watch: Watch, when: float) -> object:
    return run_status(watch.node.runs["log"], at(when))["state"]


def alarms(watch: Watch, begin: int, end: int) -> list[Alarm]:
    effects: list[Effect] = []
    for second in range(begin, end):
        effects += [*play(watch.node, tick(second)), *watch.poll(second)]
    return [effect for effect in effects if isinstance(effect, Alarm)]


def test_a_log_without_a_record_is_not_training(watch: Watch) -> None:
    assert alarms(watch, 1, 200) == []
    assert state(watch, 200) == "starting"
    watch.write(1, 1)
    watch.poll(201)
    assert state(watch, 201) == "training"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (MEGATRON, "not JSON"),
        (lines({"": 1.0}, {"": 1.0}, {"": 1.0}), "in 3 lines with the keys"),
        (lines(*UNKNOWN), "with the keys it, train.ce, when"),
        (lines(*UNKNOWN), 'fields = { step = "it", loss = "train.ce" }'),
    ],
)
def test_a_log_of_which_nothing_is_understood_is_alarmed_within_a_minute(watch: Watch, text: str, seen: str) -> None:
    append(watch, text)
    (alarm,) = alarms(watch, 1, 60)
    assert alarm.name == "unwatched"
    assert state(watch, 60) == "unwatched"
    assert seen in alarm.text
    assert alarm.text.isprintable()


def test_a_header_is_no_foreign_log_and_a_step_makes_it_watched(watch: Watch) -> None:
    append(watch, lines({"config": {"layers": 12}}, {"host": "a"}))
    assert alarms(watch, 1, 300) == []
    assert state(watch, 300) == "starting"
    append(watch, MEGATRON)
    assert [alarm.name for alarm in alarms(watch, 301, 340)] == ["unwatched"]
    watch.write(1, 1)
    watch.poll(340)
    assert [alarm.name for alarm in alarms(watch, 341, 343)] == ["watched_again"]
    append(watch, MEGATRON)
    assert alarms(watch, 343, 500) == [], "text between records is counted, as ever"


def test_after_a_restart_of_the_governor_text_between_records_is_no_foreign_log(watch: Watch) -> None:
    watch.write(1, 10)
    watch.poll(1)
    kept = watch.kept(2)
    append(watch, MEGATRON)
    watch.restart(kept, 60)
    assert state(watch, 60) == "training"
    assert alarms(watch, 61, 120) == []


def test_keys_within_objects_are_followed_where_the_user_names_them() -> None:
    reader = RecordReader("log", field_map({"step": "it", "loss": "train.ce"}))
    steps = [event for record in UNKNOWN for event in reader.read_line(json.dumps(record).encode(), at(1))]
    assert [(step.step, step.loss) for step in steps] == [(n, 2.5) for n in range(1, 5)]  # type: ignore[union-attr]
    (plain,) = reader.read_line(b'{"it": 7, "train.ce": 1.0, "train": {"ce": 2.0}}', at(1))
    assert plain.loss == 1.0  # type: ignore[union-attr]
    (absent,) = reader.read_line(b'{"it": 8, "train": 3}', at(1))
    assert absent.loss is None  # type: ignore[union-attr]


@pytest.mark.parametrize("keys", [{}, {"format": "csv"}, {"format": "tensorboard"}])
def test_a_log_of_the_command_that_never_appears_is_told_after_a_minute(tmp_path: Path, keys: dict[str, str]) -> None:
    """A mistyped name. Without a command nobody is known to write it, and a new file is awaited."""
    awaited = tmp_path / "awaited"
    awaited.mkdir()
    for launches, where in ((True, tmp_path), (False, awaited)):
        watch = Watch(where, pidfile=False, launches=launches, is_there=False, **keys)
        told = alarms(watch, 1, 100)
        assert [alarm.name for alarm in told] == ["unwatched"] * launches
        assert all(f"{watch.path}: No such file" in alarm.text for alarm in told)
    assert alarms(watch, 100, 200) == []


def test_a_log_of_the_command_that_appears_late_is_watched_again(tmp_path: Path) -> None:
    watch = Watch(tmp_path, pidfile=False, launches=True, is_there=False)
    alarms(watch, 1, 100)
    assert "No such file" in (watch.stream.shortfall() or "")
    watch.write(1, 1)
    assert [alarm.name for alarm in alarms(watch, 100, 110)] == ["watched_again"]
    assert state(watch, 110) == "training"
    assert watch.stream.shortfall() is None


def test_of_a_log_whose_writer_has_ended_something_was_judged(tmp_path: Path) -> None:
    """The end of a command comes behind the end of the process that its pidfile names."""
    watch = Watch(tmp_path)
    watch.write(1, 10)
    watch.poll(1)
    watch.processes.end(4321)
    for second in range(2, 30):
        watch.poll(second)
    assert not watch.node.runs["log"].run.alive
    assert watch.stream.shortfall() is None
    watch.launch(4400)
    watch.poll(40)
    assert "nothing was written to it" in (watch.stream.shortfall() or "")


def test_the_next_launch_of_the_command_must_be_understood_anew(tmp_path: Path) -> None:
    watch = Watch(tmp_path, pidfile=False, launches=True)
    watch.write(1, 10)
    watch.poll(1)
    kept = watch.kept(2)
    watch.restart(kept, 60)
    assert watch.stream.shortfall() == f"log: nothing of its log was judged: {watch.path}: nothing was written to it"


@pytest.mark.parametrize("keys", [{}, {"format": "csv"}])
def test_an_understood_log_that_no_longer_can_be_read_is_told_once(tmp_path: Path, keys: dict[str, str]) -> None:
    watch = Watch(tmp_path, **keys)

    def understood(step: int) -> str:
        return f"{step},2.0\n" if keys else lines({"step": step, "loss": 2.0})

    append(watch, "step,loss\n" * bool(keys) + understood(1) + understood(2))
    damaged = "1,2,3,4\n" if keys else "Traceback\n"
    for begin in (10, 200):
        append(watch, damaged * 19)
        assert alarms(watch, begin, begin + 20) == []
        append(watch, damaged * 19)
        (alarm,) = alarms(watch, begin + 20, begin + 80)
        assert alarm.name == "lines_unread"
        assert "the last 38 lines could not be read" in alarm.text
        append(watch, damaged * 19)
        assert alarms(watch, begin + 80, begin + 100) == [], "more of them are no news"
        append(watch, understood(begin))
        watch.poll(begin + 100)


# --- costgov doctor -------------------------------------------------------------------------------------------


def faults(path: Path, **keys: object) -> list[str]:
    check = StreamCheck(Jsonl(path=path, run="log", **keys), FakeProcesses())  # type: ignore[arg-type]
    check.run()
    return [f"{fault.text} -> {fault.advice}" for fault in check.faults]


def test_doctor_says_what_it_saw(tmp_path: Path) -> None:
    path, pidfile = tmp_path / "log", tmp_path / "pid"
    assert faults(path, pidfile=pidfile) == [], "it is waited for"
    path.write_text(MEGATRON * 2000)
    (text,) = faults(path)
    assert "not JSON" in text
    assert "iteration 100/ 500 | consumed samples: 25600" in text
    assert text.isprintable()
    path.write_text(lines(*UNKNOWN))
    (text,) = faults(path)
    assert text.endswith('map its names: fields = { step = "it", loss = "train.ce" }')
    assert faults(path, fields={"step": "it", "loss": "train.ce"}) == []
    path.write_text(lines({"step": 1, "loss": 2.0}))
    os.mkfifo(pidfile)
    (text,) = faults(path, pidfile=pidfile)
    assert "not a regular file" in text


def test_doctor_names_the_format_of_a_console(tmp_path: Path) -> None:
    """800 lines, as nanogpt's and as JSON; and a short log, in which nothing is known, may yet begin."""
    path = tmp_path / "log"
    path.write_text("\n".join(WRITERS["megatron"](run(300))))
    (text,) = faults(path, format="nanogpt")
    assert "no record of nanogpt in " in text
    assert text.endswith('write format = "megatron"')
    (text,) = faults(path)
    assert text.endswith('write format = "megatron"')
    path.write_text("NCCL INFO\n" * 100)
    assert faults(path, format="hf") == []
    path.write_text("NCCL INFO\n" * 20_000)
    (text,) = faults(path, format="hf")
    assert "say what it is" in text


@pytest.mark.parametrize(("by_option", "way"), [(True, "--log-format NAME"), (False, 'format = "NAME"')])
def test_a_print_of_ones_own_is_told_the_way_out_and_no_directorys_format(*, by_option: bool, way: str) -> None:
    own = Understanding(format="nanogpt", by_option=by_option)
    for step in range(300):
        own.see(f"[epoch 0] step={step} loss=5.9977 lr=0.0003 tok/s=20000".encode(), (), MonoNs(step * NS_PER_S))
    assert all(words in own.advice() for words in (way, "megatron", "have the trainer write jsonl"))
    assert not any(name in own.advice() for name in ("tensorboard", "wandb"))
