"""Console logs of trainers, followed as JSONL is: each as its framework prints it, through what befalls a file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from governor.core.events.effects import Alarm
from governor.settings.streams import OptionLog
from tests.unit.core.engine.test_step import play, tick
from tests.unit.followed_log import Watch
from tests.unit.wire.formats.written import BATCH, GPUS, LENGTH, WRITERS, Did, run

FORMATS = pytest.mark.parametrize("name", list(WRITERS))
# What their lines tell no tokens of: nobody is to be told more than that.
WITHOUT_TOKENS = ("deepspeed", "lightning", "hf", "modded-nanogpt", "torchtune")


class Console:
    """A log of that format, and the governor that follows it."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self.watch = Watch(directory, format=name, sequence_length=LENGTH, gpus=GPUS)
        self.now = 1.0

    def write(self, did: Sequence[Did], *, mode: str = "a") -> None:
        """In three pieces, torn anywhere, with a look at the file after each."""
        text = "".join(f"{line}\n" for line in WRITERS[self.name](did)).encode()
        for part in (text[: len(text) // 3], text[len(text) // 3 : -7], text[-7:]):
            with self.watch.path.open(f"{mode}b") as file:
                file.write(part)
            mode = "a"
            self.look()

    def look(self) -> list[str]:
        told: list[str] = []
        for _ in range(2):
            self.now += 1
            told += [one.name for one in self.watch.poll(self.now) if isinstance(one, Alarm)]
        return told

    @property
    def step(self) -> int | None:
        return self.watch.node.runs["log"].run.step

    @property
    def loss(self) -> float | None:
        return self.watch.node.runs["log"].run.last_loss


@pytest.fixture
def console(tmp_path: Path, name: str) -> Console:
    return Console(tmp_path, name)


@FORMATS
def test_steps_are_the_writers_own(console: Console) -> None:
    did = run(40)
    console.write(did)
    assert console.step in (did[-1].step, did[-1].step - 1)


@FORMATS
def test_a_log_that_is_rotated_and_emptied_goes_on(console: Console) -> None:
    did = run(60)
    console.write(did[:20])
    os.replace(console.watch.path, console.watch.path.with_suffix(".1"))
    console.write(did[20:40], mode="w")
    console.look()
    console.write(did[40:], mode="w")
    assert console.step in (did[-1].step, did[-1].step - 1)


def test_a_bar_that_ends_no_line_is_read_as_it_is_drawn(tmp_path: Path) -> None:
    console = Console(tmp_path, "lightning")
    with console.watch.path.open("ab") as file:
        file.writelines(f"\r{line}".encode() for line in WRITERS["lightning"](run(40)))
    console.look()
    assert console.step == 39, "the last one may go on"


@FORMATS
def test_a_nan_is_halted_with_its_line(console: Console) -> None:
    did = run(60, broken_from=41)
    console.write(did[:40])
    assert console.watch.node.runs["log"].incident is None
    console.write(did[40:50])
    incident = console.watch.node.runs["log"].incident
    assert incident is not None
    assert incident.reason.startswith(("loss_", "grad")), incident.reason


@pytest.mark.parametrize("name", [name for name in WRITERS if name not in WITHOUT_TOKENS])
def test_tokens_are_the_batch_times_the_length(console: Console) -> None:
    did = run(40)
    console.write(did[:20])
    before = console.watch.tokens
    console.write(did[20:])
    after = console.watch.tokens
    assert before is not None
    assert after is not None
    assert after - before == pytest.approx(20 * BATCH * LENGTH, rel=0.06), "the first lines may be uncounted, not these"


@pytest.mark.parametrize("name", ["megatron"])
def test_a_restarted_governor_knows_what_the_first_lines_said(console: Console) -> None:
    """The length of a sequence stands in the configuration alone."""
    watch = console.watch
    watch.keys = {name: value for name, value in watch.keys.items() if name != "sequence_length"}
    did = run(40)
    console.write(did[:20])
    kept = watch.kept(console.now)
    watch.restart(kept, console.now)
    with watch.path.open("a") as file:
        file.writelines(f"{line}\n" for line in list(WRITERS["megatron"](did[20:]))[4:])
    console.look()
    assert watch.tokens == did[-1].samples * LENGTH


def test_what_its_tokens_need_is_told_once(tmp_path: Path) -> None:
    console = Console(tmp_path, "nemo")
    console.watch = Watch(tmp_path, format="nemo")
    with console.watch.path.open("a") as file:
        file.writelines(f"{line}\n" for line in WRITERS["nemo"](run(40)))
    told = console.look() + console.look()
    assert told.count("tokens_read") == 1


def unwatched(watch: Watch, lines: Iterable[tuple[int, str]], end: int) -> list[tuple[int, str]]:
    """Write each line at its second, look each second until `end`: when the run was told to be unwatched, and why."""
    written: dict[int, list[str]] = {}
    for second, line in lines:
        written.setdefault(second, []).append(f"{line}\n")
    told = []
    for second in range(1, end):
        with watch.path.open("a") as file:
            file.writelines(written.get(second, ()))
        effects = [*watch.poll(second), *play(watch.node, tick(second))]
        told += [(second, one.text) for one in effects if isinstance(one, Alarm) and one.name == "unwatched"]
    return told


def every(seconds: int, lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    return ((1 + seconds * number, line) for number, line in enumerate(lines))


def test_a_log_of_another_format_is_unwatched_within_a_minute_and_told_what_to_write(tmp_path: Path) -> None:
    """Megatron's line comes every 10 s where the log is said to be hf: no number of lines may be waited for."""
    lines = [line for line in WRITERS["megatron"](run(200)) if "iteration" in line]
    ((second, text),) = unwatched(Watch(tmp_path, format="hf"), every(10, lines), 200)
    assert second <= 62
    assert 'no record of hf in 4 lines, such as "' in text
    assert 'write format = "megatron"' in text


def test_a_burst_of_another_format_is_not_waited_for_to_grow_old(tmp_path: Path) -> None:
    lines = list(WRITERS["torchtitan"](run(300)))
    ((second, text),) = unwatched(Watch(tmp_path, format="megatron"), every(0, lines), 100)
    assert second <= 34
    assert 'write format = "torchtitan"' in text


def test_lines_of_no_format_are_told_after_five_minutes_and_a_long_silence_after_them_is_not(tmp_path: Path) -> None:
    quiet, busy = Watch(tmp_path, format="hf"), tmp_path / "busy"
    assert unwatched(quiet, every(0, ["NCCL INFO"] * 400), 500) == []
    busy.mkdir()
    ((second, text),) = unwatched(Watch(busy, format="hf"), every(1, ["my own words"] * 400), 400)
    assert 330 <= second <= 333
    assert "say what it is: megatron, nemo" in text


def test_what_prints_beside_a_trainer_is_no_other_format_until_the_trainer_is_silent_for_long(tmp_path: Path) -> None:
    """DeepSpeed prints every 10 steps, Megatron every 100."""
    beside = [line for line in WRITERS["deepspeed"](run(200)) if "step" in line]
    watch = Watch(tmp_path, format="megatron")
    assert unwatched(watch, every(10, beside[:20]), 250) == []


def test_json_lines_of_a_log_that_is_said_to_be_a_console_are_named(tmp_path: Path) -> None:
    lines = [json.dumps({"step": number, "loss": 2.0}) for number in range(1, 100)]
    ((_, text),) = unwatched(Watch(tmp_path, format="nanogpt"), every(1, lines), 100)
    assert 'write format = "jsonl"' in text


def test_advice_about_the_log_of_an_option_names_options(tmp_path: Path) -> None:
    megatron = list(WRITERS["megatron"](run(200)))
    watch = Watch(tmp_path, pidfile=False, kind=OptionLog, launches=True, format="hf")
    ((_, text),) = unwatched(watch, every(1, megatron), 100)
    assert "pass --log-format megatron" in text
    told = watch.stream.shortfall()
    assert told is not None
    assert told.startswith(f"log: nothing of its log was judged: {watch.path}: no record of hf in ")
