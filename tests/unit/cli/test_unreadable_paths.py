"""What may not be read, or is not what its name says, is one line for itself; what else was named goes on."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import governor.cli.policy.replay
import governor.replay.user_tests  # noqa: F401 - read while they may be.
from governor.cli.policy.command import policy
from governor.replay.logs import WITHIN

NOBODY = 65_534
SICK = b'{"t": 1.0, "step": 1, "loss": 2.0}\n{"t": 2.0, "step": 2, "loss": NaN}\n'


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may read everything: not to be root is what makes a file unreadable."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory that others may enter, unlike pytest's own."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    for directory in path.rglob("*"):
        if directory.is_dir():
            directory.chmod(0o755)
    shutil.rmtree(path)


def run(*arguments: object) -> Result:
    with as_nobody():
        return CliRunner().invoke(policy, [str(argument) for argument in arguments])


def closed(path: Path) -> Path:
    path.chmod(0o000)
    return path


def test_logs_and_directories_that_may_not_be_read_are_named_and_the_others_go_on(home: Path) -> None:
    for name in ("open", "shut", "below/inner"):
        (home / name).parent.mkdir(exist_ok=True)
        (home / f"{name}.jsonl").write_bytes(SICK)
    (home / "empty").mkdir()
    shut, below = closed(home / "shut.jsonl"), closed(home / "below")
    # One job: Python's own files for more of them may be closed to this user, too.
    result = run("replay", "--json", "--jobs", 1, home, home / "empty", below, shut, home / "gone.jsonl")
    unread = f"costgov: {shut}: Permission denied; name a log that can be read"
    left_out = f"costgov: {below}: Permission denied; its logs are left out"
    assert result.stderr.splitlines() == [
        left_out,
        f"costgov: {home}/empty: holds no log; name a file, or a directory with {WITHIN}",
        left_out,
        unread,
        f"costgov: {home}/gone.jsonl: No such file or directory; name a log that can be read",
    ]
    summaries = [row for row in map(json.loads, result.stdout.splitlines()) if "records" in row]
    assert [(Path(row["log"]).name, row["halts"]) for row in summaries if row["records"]] == [("open.jsonl", 1)]
    assert result.exit_code == 1


@pytest.mark.parametrize("command", ["check", "explain", "test"])
def test_a_policy_that_may_not_be_read_is_a_line(home: Path, command: str) -> None:
    directory = home / "policies.d"
    directory.mkdir()
    file = directory / "p.toml"
    file.write_text('[policy]\nname = "p"\n')
    closed(file)
    why = "Permission denied; name a file of tests" if command == "test" else "cannot be read: Permission denied"
    assert one_line(run(command, file)) == f"{file}: {why}"
    closed(directory)
    assert one_line(run(command, file)) == f"{file}: {why}"
    assert one_line(run(command, directory)) == f"{directory}: {why}"


def one_line(result: Result) -> str:
    """The line that a command failed with, without the word before it."""
    assert result.exit_code == 1, result.output
    (line,) = (line for line in result.stderr.splitlines() if "denied" in line)
    return line.partition(": ")[2]
