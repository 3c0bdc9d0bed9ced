"""`costgov run --log-format`: what may be said of it, and which log of whose run it becomes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from governor.adapters.command.output import make_output
from governor.app.settings_file import load_settings
from governor.cli.main import cli
from governor.cli.run.own_log import KEPT_FOR_NS, LogOptions, OwnLog, with_log
from governor.core.base.units import NS_PER_S
from governor.core.events.machine import SourceTrouble
from governor.settings.model import Settings
from governor.settings.streams import FORMATS
from tests.unit.core.engine.test_step import at


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    paths = {"state_dir": f"{tmp_path}/state", "runtime_dir": f"{tmp_path}/run"}
    found, problems = load_settings(None, {"paths": paths}, run="mine")
    assert found is not None, problems
    return found


def test_its_output_is_a_log_of_the_commands_own_run(settings: Settings) -> None:
    asked = LogOptions((("megatron", "-"),), 4096, 64)
    found, own = with_log(settings, "mine", asked, None)
    (entry,) = found.jsonl
    assert (entry.run, entry.format, entry.sequence_length, entry.gpus) == ("mine", "megatron", 4096, 64)
    assert entry.path == own.path == settings.paths.state_dir / "output.log"
    assert entry.ended_by is None, "the command is its writer"
    assert own.is_output


def test_the_file_of_log_is_followed_and_stays_as_it_is(settings: Settings, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    for given in ("-", str(log)):
        found, own = with_log(settings, "mine", LogOptions((("hf", given),)), log)
        assert found.jsonl[0].path == log
        assert (own.path, own.is_output) == (None, True)


def test_another_file_is_a_log_that_the_command_writes(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found, own = with_log(settings, "mine", LogOptions((("jsonl", "metrics.jsonl"),)), tmp_path / "train.log")
    assert found.jsonl[0].path == tmp_path / "metrics.jsonl"
    assert (own.path, own.is_output) == (None, False)


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_directory_that_is_there_already_is_followed_as_one_that_comes(
    settings: Settings, tmp_path: Path, name: str
) -> None:
    """A launch that is resumed finds the directory of the launch before."""
    for given in (tmp_path, tmp_path / "comes"):
        found, own = with_log(settings, "mine", LogOptions(((name, str(given)),)), None)
        assert found.jsonl[0].path == given
        assert (own.path, own.is_output) == (None, False)


def test_the_file_of_log_is_no_file_of_a_library(settings: Settings, tmp_path: Path) -> None:
    asked = LogOptions((("tensorboard", str(tmp_path / "train.log")),))
    with pytest.raises(click.UsageError, match="no command prints it"):
        with_log(settings, "mine", asked, tmp_path / "train.log")


def test_without_it_nothing_changes(settings: Settings) -> None:
    found, own = with_log(settings, "mine", LogOptions(), None)
    assert found is settings
    assert own.make() is None


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (LogOptions((), 4096), "name it with --log-format"),
        (LogOptions((("hf", "-"), ("jsonl", "a"))), "the one log of the command"),
        (LogOptions((("hf", "/dev/null"),)), "not a regular file"),
        (LogOptions((("hf", "/"),)), "not a regular file"),
        (LogOptions((("tensorboard", "/dev/null"),)), "neither a directory nor a regular file"),
        (LogOptions((("tensorboard", "-"),)), "no command prints it"),
        (LogOptions((("wandb", "-"),)), "no command prints it"),
    ],
)
def test_what_cannot_be_meant_is_one_line(settings: Settings, asked: LogOptions, told: str) -> None:
    with pytest.raises(click.UsageError, match=told):
        with_log(settings, "mine", asked, None)


def test_a_log_that_is_no_file_or_a_run_with_two_logs_is_refused(settings: Settings) -> None:
    asked = LogOptions((("hf", "-"),))
    with pytest.raises(click.UsageError, match="--log /dev/null: not a regular file"):
        with_log(settings, "mine", asked, Path(os.devnull))
    twice, _ = with_log(settings, "mine", asked, None)
    with pytest.raises(click.UsageError, match="both the log of mine"):
        with_log(twice, "mine", asked, None)


def test_an_unknown_format_is_answered_with_those_that_are_known() -> None:
    done = CliRunner().invoke(cli, ["run", "--log-format", "megatrom", "-", "--", "true"])
    assert done.exit_code == 2
    assert all(name in done.output for name in ("megatrom", *FORMATS))


@pytest.mark.parametrize("given", [("--log-format", "jsonl"), ("--log",), ("--name",)])
def test_a_word_that_was_left_out_before_the_command_is_missed(tmp_path: Path, given: tuple[str, ...]) -> None:
    """It took the "--", and the command began unwatched or its output went to a file of that name."""
    run = cli.get_command(click.Context(cli), "run")
    assert run is not None
    with pytest.raises(click.UsageError, match=f"{given[0]} .*missing"):
        run.make_context("run", [*given, "--", "touch", str(tmp_path / "began")])


def test_its_formats_are_completed_and_stand_in_the_help() -> None:
    def completed(*words: str) -> set[str]:
        made = ShellComplete(cli, {}, "costgov", "_COSTGOV_COMPLETE").get_completions(["run", *words[:-1]], words[-1])
        return {item.value for item in made}

    assert {"modded-nanogpt", "megatron", "mllog"} <= completed("--log-format", "m")
    assert "hf" not in completed("--log-format", "m")
    shown = " ".join(CliRunner().invoke(cli, ["run", "--help"], terminal_width=200).output.split()).replace("- ", "-")
    assert all(name in shown for name in FORMATS)


@dataclass
class Copy:
    """Instead of an OutputCopy: how far was said to be judged for good."""

    read_to: int = 0

    def note_read(self, offset: int) -> None:
        self.read_to = offset


def test_what_was_judged_may_be_freed_once_the_journal_has_it_and_not_that_of_another_file(tmp_path: Path) -> None:
    """A governor that comes back begins where the journal says."""
    path, copy = tmp_path / "output.log", Copy()
    make_output(path).close()
    managed: Any = SimpleNamespace(stream_position={"inode": 7, "offset": 500})
    node: Any = SimpleNamespace(runs={"mine": managed})
    own = OwnLog("mine", path, is_output=True)
    own.follow(copy, inode=7)  # type: ignore[arg-type]
    own.attend(node)
    later_s = KEPT_FOR_NS // NS_PER_S
    own.poll(at(0))
    managed.stream_position = {"inode": 7, "offset": 900}
    own.poll(at(later_s - 1))
    assert copy.read_to == 0
    own.poll(at(later_s))
    assert copy.read_to == 500
    own.attend(node)
    managed.stream_position = {"inode": 8, "offset": 5_000}
    own.poll(at(2 * later_s))
    own.poll(at(4 * later_s))
    assert copy.read_to == 500


@pytest.mark.parametrize("has_copy", [True, False])
def test_a_command_that_empties_its_own_output_is_told_of_and_not_each_time(tmp_path: Path, *, has_copy: bool) -> None:
    """`> /dev/stderr` does. `has_copy`: else the file is that of --log."""
    path, copy = tmp_path / "output.log", Copy()
    managed: Any = SimpleNamespace(stream_position={"inode": 7, "offset": 500, "head": "aa"})
    own = OwnLog("mine", path if has_copy else None, is_output=True, followed=path)
    if has_copy:
        own.follow(copy, inode=7)  # type: ignore[arg-type]
    node: Any = SimpleNamespace(runs={"mine": managed})
    own.attend(node)

    def told(offset: int, head: str = "aabb") -> bool:
        managed.stream_position = {"inode": 7, "offset": offset, "head": head}
        events = own.poll(at(1))
        assert all(isinstance(event, SourceTrouble) and str(path) in event.text for event in events)
        return bool(events)

    assert not told(500, "aa")
    assert not told(600)
    assert told(20), "cut off"
    assert told(700, "cc"), "cut off, and grown beyond where it was"
    assert not told(30, "cc")
    assert told(20, "cc")
    own.poll(at(2 * KEPT_FOR_NS // NS_PER_S))
    assert copy.read_to <= 20, "what was judged of the file before is none of this one"
    managed.stream_position = {"inode": 8, "offset": 5, "head": "aa"}
    assert own.poll(at(1)) == [], "another file"
    managed.stream_position = {"inode": 8, "offset": 9, "head": "bb", "head_bytes": 4000}
    assert own.poll(at(1)) == [], "a digest"
    managed.stream_position = {"inode": 8, "offset": 5, "head": "aa"}
    own.attend(node)
    assert own.poll(at(1)) == [], "a governor that comes back begins where the journal says"
