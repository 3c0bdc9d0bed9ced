"""What people read before anything runs: help, completion, and one line for every mistake."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from governor.cli.common import MEANINGS, ExitCode
from governor.cli.main import cli
from tests.drills.cli.installed import COSTGOV, Costgov

REPOSITORY = Path(__file__).parents[3]


def commands(path: tuple[str, ...] = (), command: click.Command = cli) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            inner = command.get_command(ctx, name)
            assert inner is not None, name
            yield from commands((*path, name), inner)


def test_every_command_explains_itself(costgov: Costgov) -> None:
    for path in commands():
        told = costgov(*path, "--help", COLUMNS="80")
        assert (told.returncode, told.stderr) == (0, ""), path
        assert not [line for line in told.stdout.splitlines() if len(line) > 80], path
        assert told.stdout.startswith(f"Usage: {' '.join(('costgov', *path))}"), path
        listed = told.stdout.partition("Commands:")[2]
        assert not [line for line in listed.splitlines() if line.endswith("...")], "cut short in the list of commands"


def test_help_shows_the_one_table_of_exit_codes(costgov: Costgov) -> None:
    told = " ".join(costgov("--help").stdout.split())
    assert all(f"{code.value} {meaning}" in told for code, meaning in MEANINGS.items())


def test_version_is_the_distributions(costgov: Costgov) -> None:
    from governor import __version__

    assert costgov("--version").stdout == f"costgov {__version__}\n"


def test_help_loads_nothing_heavy() -> None:
    heavy = {"pydantic", "rich", "httpx", "structlog", "prometheus_client", "psutil", "pynvml", "torch", "trainer_shim"}
    program = f"import sys, governor.cli.main; print(*sorted({heavy!r} & set(sys.modules)))"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.split() == []


@pytest.mark.parametrize("module", ["governor", "governor.cli.main"])
def test_the_package_is_the_command(environ: dict[str, str], module: str) -> None:
    told = subprocess.run(
        [sys.executable, "-m", module, "policy", "--help"], env=environ, capture_output=True, text=True
    )
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith("Usage: costgov policy ")
    wrong = subprocess.run([sys.executable, "-m", module, "nonsense"], env=environ, capture_output=True, text=True)
    assert wrong.returncode == ExitCode.USAGE


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(costgov: Costgov, shell: str) -> None:
    assert "_COSTGOV_COMPLETE" in costgov("completion", shell).stdout


def test_completion_completes(costgov: Costgov) -> None:
    told = costgov(_COSTGOV_COMPLETE="bash_complete", COMP_WORDS="costgov st", COMP_CWORD="1")
    assert told.stdout.split() == ["plain,status"]
    told = costgov(_COSTGOV_COMPLETE="bash_complete", COMP_WORDS="costgov policy t", COMP_CWORD="2")
    assert told.stdout.split() == ["plain,test", "plain,tune"]


@pytest.mark.parametrize("words", [(), ("policy",), ("incident",), ("budget",)])
def test_a_command_that_needs_another_word_shows_its_page(costgov: Costgov, words: tuple[str, ...]) -> None:
    """As a page, not flattened into a line; on stderr and with 2, since nothing was done."""
    told = costgov(*words)
    assert (told.returncode, told.stdout) == (ExitCode.USAGE, "")
    assert told.stderr == costgov(*words, "--help").stdout


MISTAKES = [
    (["nonsense"], "costgov: No such command 'nonsense'"),
    (["status", "--wtch"], "costgov status: No such option '--wtch'. Did you mean '--watch'?"),
    (["halt", "r"], "costgov halt: Missing option '--reason'"),
    (["hold", "r", "2x", "--reason", "a"], "costgov hold: Invalid value for 'DURATION': \"2x\" is not a duration"),
    (["hold", "r", "8d", "--reason", "a"], "costgov hold: Invalid value for 'DURATION': \"8d\": a hold lasts"),
    (["hold", "r", "2h"], "costgov hold: Missing option --reason"),
    (["hold", "r", "2h", "--reason", " "], "costgov hold: Missing option --reason"),
    (["run"], "costgov run: Missing argument"),
    (
        ["run", "--celing", "300", "--", "true"],
        "costgov run: No such option '--celing'. (Did you mean one of: '--ceiling',",
    ),
    (["run", "--ceiling", "nan", "--", "true"], "costgov run: Invalid value for '--ceiling'"),
    (["run", "--price", "-1", "--", "true"], "costgov run: Invalid value for '--price'"),
    (["run", "--progress", "nan", "--", "true"], "costgov run: Invalid value for '--progress': nan is not a number"),
    (["run", "--progress", "inf", "--", "true"], "costgov run: Invalid value for '--progress': inf is not in"),
    (["run", "--progress", "0", "--", "true"], "costgov run: Invalid value for '--progress'"),
    (
        ["run", "--ceiling", "0.0000001", "--", "true"],
        "costgov run: Invalid value for '--ceiling': \"0.0000001\" is less than a millionth of a dollar",
    ),
    (["run", "--ceiling", "0", "--", "true"], "costgov run: Invalid value for '--ceiling': \"0\" must be above 0"),
    (["run", "--name", "", "--", "true"], 'costgov run: Invalid value for --name: "" cannot name a run'),
    (["run", "--name", "../../etc", "--", "true"], 'costgov run: Invalid value for --name: "../../etc" cannot name'),
    (
        ["budget", "set", "r", "0", "--reason", "x"],
        "costgov budget set: Invalid value for 'USD': \"0\" must be above 0",
    ),
    (["budget", "set", "r", "nan", "--reason", "x"], "costgov budget set: Invalid value for 'USD': \"nan\" is not an"),
    (
        ["budget", "set", "r", "--reason", "x", "--", "-5"],
        "costgov budget set: Invalid value for 'USD': \"-5\" is not an",
    ),
    (
        ["budget", "set", "r", "1e10", "--reason", "x"],
        "costgov budget set: Invalid value for 'USD': a ceiling is below",
    ),
    (
        ["budget", "set", "label:nlp", "5", "--reason", "x"],
        "costgov budget set: Invalid value for 'SCOPE': \"label:nlp\" is",
    ),
    (
        ["budget", "set", "@node", "5", "--reason", "x"],
        "costgov budget set: Invalid value for 'SCOPE': \"@node\" is not",
    ),
    (["budget", "set", "day", "5"], "costgov budget set: Missing option '--reason'"),
    (["budget", "set", "day", "5", "--reason", "x", "--tokens", "1B"], "costgov budget set: --tokens belongs to a run"),
    (["budget", "set", "day", "5", "--reason", "x", "--alert-at", "2"], "costgov budget set: --alert-at: must be"),
    (
        ["budget", "clear", "stage:", "--reason", "x"],
        "costgov budget clear: Invalid value for 'SCOPE': \"stage:\" is not",
    ),
    (["completion", "tcsh"], "costgov completion: Invalid value"),
    (["incident", "show"], "costgov incident show: Missing argument"),
    (["incident", "show", "x", "--json", "--markdown"], "costgov incident show: --markdown and --json exclude"),
    (["incident", "list", "--last", "0"], "costgov incident list: Invalid value for '--last'"),
    (["halt", "\udcff", "--reason"], "costgov: Option '--reason' requires an argument"),
]


@pytest.mark.parametrize(("words", "expected"), MISTAKES)
def test_a_wrong_command_line_is_one_line_and_exits_2(costgov: Costgov, words: list[str], expected: str) -> None:
    told = costgov(*words)
    assert (told.returncode, told.stdout) == (ExitCode.USAGE, "")
    assert told.stderr.startswith(expected)
    assert told.stderr.endswith("--help`)\n")
    assert told.stderr.count("\n") == 1


def test_a_name_of_the_environment_is_blamed_on_the_environment(costgov: Costgov) -> None:
    told = costgov("run", "--", "true", COSTGOV_RUN="a/b")
    assert told.returncode == ExitCode.USAGE
    assert told.stderr.startswith('costgov run: Invalid value for COSTGOV_RUN: "a/b" cannot name a run')


@pytest.mark.parametrize(
    "words",
    [["status"], ["status", "--watch"], ["status", "--json"], ["halt", "r", "--reason", "x"], ["hold", "r", "off"]],
)
def test_without_a_governor_the_line_says_how_to_start_one(costgov: Costgov, words: list[str]) -> None:
    told = costgov(*words)
    assert (told.returncode, told.stdout) == (ExitCode.NO_GOVERNOR, "")
    assert told.stderr.startswith("costgov: no governor at ")
    assert told.stderr.endswith("start it with `systemctl start costgov` or `costgov run -- CMD`\n")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("denied", ExitCode.DENIED),
        ("no_such_run", ExitCode.UNKNOWN),
        ("bad_request", ExitCode.FAILED),
        ("unavailable", ExitCode.FAILED),
    ],
)
def test_a_refusal_has_its_exit_code(costgov: Costgov, governor: dict[str, Any], code: str, expected: int) -> None:
    governor["answers"]["halt"] = {"ok": False, "error": "because", "code": code}
    told = costgov("halt", "r", "--reason", "x")
    assert (told.returncode, told.stderr) == (expected, "costgov: because\n")


def test_a_wrong_configuration_is_a_line_for_each_mistake(costgov: Costgov, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("[metrics]\nprt = 1\n[log]\nlevel = 'loud'\n")
    for command in ("daemon", "doctor"):
        told = costgov(command, "--config", f"{tmp_path}/c.toml")
        assert told.returncode == ExitCode.FAILED
        assert f'{tmp_path}/c.toml:2: metrics.prt: unknown key; did you mean "port"?' in told.stdout + told.stderr
        assert f"{tmp_path}/c.toml:4: log.level: must be" in told.stdout + told.stderr


def test_an_output_that_is_full_is_one_line(environ: dict[str, str]) -> None:
    with open("/dev/full", "w") as full:
        told = subprocess.run([COSTGOV, "--help"], env=environ, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (told.returncode, told.stderr) == (1, "costgov: standard output: No space left on device\n")


def test_an_output_that_is_closed_is_nobodys_fault(environ: dict[str, str]) -> None:
    program = ["sh", "-c", 'exec "$0" --help >&-', COSTGOV]
    told = subprocess.run(program, env=environ, stderr=subprocess.PIPE, text=True)
    assert (told.returncode, told.stderr) == (0, "")


@pytest.mark.parametrize("words", ["status", "doctor", "cost", "cost --csv", "incident list", "prices"])
def test_what_only_shows_says_that_there_is_no_output(
    environ: dict[str, str], governor: dict[str, Any], words: str
) -> None:
    told = subprocess.run(
        ["sh", "-c", f'exec "$0" {words} >&-', COSTGOV], env=environ, stderr=subprocess.PIPE, text=True
    )
    assert told.returncode == ExitCode.FAILED
    assert told.stderr == "costgov: standard output is closed: there is nothing to show it on\n"


def test_a_command_runs_without_standard_input_and_output(environ: dict[str, str]) -> None:
    program = ["sh", "-c", 'exec "$0" run --price 22 -- sh -c "exit 7" <&- >&-', COSTGOV]
    told = subprocess.run(program, env=environ, stderr=subprocess.PIPE, text=True)
    assert told.returncode == 7, told.stderr


@pytest.mark.parametrize(
    "words",
    [("policy", "check"), ("doctor", "--config"), ("daemon", "--policy"), ("run", "--policy"), ("daemon", "--config")],
)
@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_what_is_no_file_is_not_waited_for(
    costgov: Costgov, short_tmp: Path, words: tuple[str, ...], kind: str
) -> None:
    path = f"{short_tmp}/fifo" if kind == "fifo" else "/dev/zero"
    if kind == "fifo":
        os.mkfifo(path)
    told = costgov(*words, path, *(["--", "true"] if words[0] == "run" else []))
    assert told.returncode == ExitCode.FAILED
    assert f"{path}: " in told.stdout + told.stderr
    assert "not a regular file" in told.stdout + told.stderr


@pytest.mark.parametrize("start", [["-m", "governor"], [COSTGOV]])
def test_ctrl_c_while_the_command_still_loads_is_quiet(
    environ: dict[str, str], tmp_path: Path, start: list[str]
) -> None:
    """Pressed in the middle of its imports, which a click of our own stands for."""
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")
    path = os.pathsep.join([str(tmp_path), environ.get("PYTHONPATH", "")])
    told = subprocess.run([sys.executable, *start, "--help"], env={**environ, "PYTHONPATH": path}, capture_output=True)
    assert (told.returncode, told.stdout, told.stderr) == (ExitCode.INTERRUPTED, b"", b"")
