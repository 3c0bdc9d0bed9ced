"""Users' own tests of their policies: what passes, what fails and how it is said, and where a mistake stands."""

from __future__ import annotations

import inspect
import json
import random
from dataclasses import fields
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from governor.cli.common import ExitCode
from governor.cli.policy.user_tests import test as command
from governor.core.events.inputs import Step
from governor.policies.parse import load_policies
from governor.replay.user_tests import Outcome, run_file
from governor.timeline import cases
from governor.timeline.halt_player import HaltPlayer
from governor.timeline.player import Player
from governor.timeline.series import FLAG_FIELDS, STEP_FIELDS, WHOLE_FIELDS, WORDS, SeriesError, play
from tests.paths import ROOT

POLICIES = ROOT / "policies"
POLICY = """
[policy]
name = "p"
[[rule]]
name = "nan"
trigger = "nonfinite"
response = "halt"
"""
SERIES = 'series = ["hello", "steps 30 every 2s loss=2.0", "steps 1 every 2s loss=nan"]'


def played(tmp_path: Path, case: str, head: str = 'policy = "p.toml"') -> tuple[list[Outcome], list[str]]:
    (tmp_path / "p.toml").write_text(POLICY)
    path = tmp_path / "tests.toml"
    path.write_text(f'{head}\n[[case]]\nname = "it"\n{case}\n')
    outcomes, errors = run_file(path)
    return outcomes, [error.removeprefix(f"{tmp_path}/") for error in errors]


def problems(tmp_path: Path, case: str) -> tuple[str, ...]:
    outcomes, errors = played(tmp_path, case)
    assert not errors
    return outcomes[0].problems


@pytest.mark.parametrize(
    "expected",
    [
        'verdicts = ["62s nan loss_nan"]',
        'verdicts = ["1m2s nan loss_nan"]',
        'verdicts = ["62s nan loss_nan halt"]',
        'findings = ["0s nan unknown not_judged_yet", "61.9s nan quiet", "62s nan firing loss_nan"]',
        'readings = { nan = "firing" }',
    ],
)
def test_what_came_as_expected_passes(tmp_path: Path, expected: str) -> None:
    assert problems(tmp_path, f"{SERIES}\n{expected}") == ()


def test_a_verdict_at_another_time_is_shown_beside_the_expected_one(tmp_path: Path) -> None:
    assert problems(tmp_path, f'{SERIES}\nverdicts = ["60s nan loss_nan"]') == (
        "verdicts (- expected, + came):",
        "  - 60s nan loss_nan",
        "  + 62s nan loss_nan halt",
    )


def test_what_follows_a_verdict_can_be_expected_too(tmp_path: Path) -> None:
    assert problems(tmp_path, f'{SERIES}\nverdicts = ["62s nan loss_nan warn"]')[1:] == (
        "  - 62s nan loss_nan warn",
        "  + 62s nan loss_nan halt",
    )
    observing = POLICY.replace('"p"', '"p"\nmode = "observe"').strip()
    rules = f"rules = '''\n{observing}\n'''\n"
    assert problems(tmp_path, f'{rules}{SERIES}\nverdicts = ["62s nan loss_nan observe"]') == ()


def test_what_differs_in_a_halt_is_shown_beside_what_came(tmp_path: Path) -> None:
    halt = '["62s asked", "...", "70s saved good", "72s term", "...", "120s halted"]'
    assert problems(tmp_path, f"{SERIES}\nhalt = {halt}") == (
        "halt (- expected, + came):",
        "    62s asked good",
        "    62s received",
        "    62s agreed",
        "    62s saving",
        "  - 70s saved good",
        "  + 72s saved good",
        "    72s term",
        "    73s exited",
        "    73s stop_requested stop",
        "    73s stop_accepted",
        "    75s billing  # running; 4 times, the last at 102s",
        "    117s verified  # stopped",
        "  - 120s halted",
        "  + 117s halted",
    )


@pytest.mark.parametrize(
    ("halt", "is_met"),
    [
        ('["..."]', True),
        ('["...", "72s saved", "..."]', True),
        ('["62s asked", "62s received", "...", "117s halted"]', True),
        ('["...", "72s term", "...", "72s saved", "..."]', False),
        ('["62s asked", "...", "62s asked", "..."]', False),
        ('["...", "117s verified"]', False),
        ('["62s received", "..."]', False),
        ('["62s asked", "117s halted"]', False),
        ("[]", False),
    ],
)
def test_three_dots_are_any_number_of_entries_and_order_counts(tmp_path: Path, halt: str, is_met: bool) -> None:
    assert (problems(tmp_path, f"{SERIES}\nhalt = {halt}") == ()) is is_met


def test_a_halt_without_dots_is_the_whole_timeline_and_can_be_pasted_from_verbose(tmp_path: Path) -> None:
    told = played(tmp_path, f'{SERIES}\nhalt = ["..."]')[0][0].halt
    assert told[0] == "62s asked good"
    assert told[-1] == "117s halted"
    assert problems(tmp_path, f"{SERIES}\nhalt = {json.dumps(told)}") == ()
    assert problems(tmp_path, f"{SERIES}\nhalt = {json.dumps(told[:-1])}")[-1] == "  + 117s halted"


def test_a_halt_that_did_not_come_is_told_as_missing(tmp_path: Path) -> None:
    assert problems(tmp_path, 'series = ["hello", "quiet 1s"]\nhalt = ["1s term"]') == (
        "halt (- expected, + came):",
        "  - 1s term",
    )


def test_an_answer_of_the_world_alone_has_the_halt_played(tmp_path: Path) -> None:
    line = SERIES.replace('"hello"', '"hello", "cloud none"')
    assert played(tmp_path, f"{line}\nverdicts = ['62s nan loss_nan halt']")[0][0].halt[-1] == "73s halted"
    assert played(tmp_path, f"{SERIES}\nverdicts = ['62s nan loss_nan halt']")[0][0].halt == ()


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("attempt", 'attempt: the halt is still open; let it end first, for example by "quiet 5m"'),
        ("hello", 'hello: the halt has ended its processes; write "attempt" to launch it again'),
    ],
)
def test_a_run_is_not_launched_into_its_own_halt(tmp_path: Path, line: str, error: str) -> None:
    wait = '"quiet 5m", ' if line == "hello" else ""
    series = SERIES.replace("]", f', {wait}"{line}"]')
    (said,) = problems(tmp_path, f'{series}\nhalt = ["..."]')
    assert said.endswith(error)


def test_a_log_names_its_processes_before_its_halt(tmp_path: Path) -> None:
    series = 'log = true\nseries = ["steps 30 every 2s loss=2.0", "steps 1 every 2s loss=nan", "named"]'
    (said,) = problems(tmp_path, f'{series}\nhalt = ["..."]')
    assert said.endswith("named: a halt is open; write it before that")


def test_quiet_fails_at_any_verdict(tmp_path: Path) -> None:
    assert problems(tmp_path, f"{SERIES}\nquiet = true")[1:] == ("  + 62s nan loss_nan halt",)


def test_a_finding_that_differs_is_said_with_its_text(tmp_path: Path) -> None:
    assert problems(tmp_path, f'{SERIES}\nfindings = ["62s nan quiet"]') == (
        "findings: at 62s nan should be quiet and is firing loss_nan: rank 0 has loss nan at step 31; "
        "it was 2 at step 30",
    )
    assert problems(tmp_path, f'{SERIES}\nfindings = ["70s nan quiet"]') == (
        "findings: the series ends at 62s, before 70s",
    )
    assert problems(tmp_path, f'{SERIES}\nreadings = {{ nan = "quiet" }}')[0].startswith("readings: at the end nan")


def test_an_expectation_of_a_rule_that_is_not_there_is_no_pass(tmp_path: Path) -> None:
    said = ('policy "p" has no rule "nann"; did you mean "nan"?',)
    assert problems(tmp_path, f'{SERIES}\nreadings = {{ nann = "quiet" }}') == said


def test_of_several_policies_the_one_for_the_run_is_played(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('[policy]\nname = "s"\nmatch = { stage = "s1" }\n')
    two = 'policy = ["p.toml", "s.toml"]'
    assert problems(tmp_path, f'{two}\nstage = "s1"\n{SERIES}\nquiet = true') == ()
    assert problems(tmp_path, f'{two}\nstage = "s2"\n{SERIES}\nverdicts = ["62s nan loss_nan"]') == ()


@pytest.mark.parametrize(
    ("case", "error"),
    [
        (f"{SERIES}\nquiett = true", 'tests.toml:5: case[1].quiett: unknown key; did you mean "quiet"?'),
        (SERIES, "tests.toml:2: case[1]: expects nothing; write one of verdicts, findings, readings, halt, quiet"),
        (f"{SERIES}\nhalt = 3", "tests.toml:5: case[1].halt: is not a list of texts"),
        (f'{SERIES}\nhalt = ["saved"]', 'tests.toml:5: case[1].halt: "saved" is no entry of a halt; write "AT WHAT"'),
        (f'{SERIES}\nhalt = ["72 saved"]', 'tests.toml:5: case[1].halt: "72" is not a duration'),
        (
            f'{SERIES}\nhalt = ["...", "72s savd"]',
            'tests.toml:5: case[1].halt: "savd" is no entry of a halt; did you mean "saved"?; known: asked',
        ),
        (
            f'{SERIES}\nhalt = ["72s stop_requested soft"]',
            'tests.toml:5: case[1].halt: "stop_requested soft" is no entry of a halt: stop_requested may be followed '
            "by stop, force, destroy",
        ),
        (
            f'{SERIES}\nhalt = ["72s exited well"]',
            'tests.toml:5: case[1].halt: "exited well" is no entry of a halt: exited stands alone',
        ),
        ("quiet = true", "tests.toml:2: case[1].series: is missing; write"),
        ("series = 3\nquiet = true", "tests.toml:4: case[1].series: is not a list of lines"),
        ('quiet = true\n[[case]]\nverdicts = ["1s nan x loud"]', 'tests.toml:6: case[2].verdicts: "loud" is not what'),
        (f'{SERIES}\nverdicts = ["nan loss_nan"]', 'tests.toml:5: case[1].verdicts: "nan loss_nan" is no verdict'),
        (f'{SERIES}\nverdicts = ["62 nan loss_nan"]', 'tests.toml:5: case[1].verdicts: "62" is not a duration'),
        (f'{SERIES}\nfindings = ["1s nan loud"]', 'tests.toml:5: case[1].findings: "loud" is not one of quiet'),
        (f'{SERIES}\nquiet = true\nverdicts = ["1s nan x"]', "tests.toml:5: case[1].quiet: contradicts verdicts"),
        (
            f"{SERIES}\nquiet = true\nranks = 65",
            "tests.toml:6: case[1].ranks: 65 is not a number of ranks from",
        ),
        (f'policy = "q.toml"\n{SERIES}\nquiet = true', "tests.toml:4: policy: "),
        (
            f'policy = "q\\u0000.toml"\n{SERIES}\nquiet = true',
            "tests.toml:4: case[1].policy: is not the name of a policy",
        ),
        (
            f'rules = """\n[[rule]]\nname = "x"\ntrigger = "nonfinte"\n"""\n{SERIES}\nquiet = true',
            "tests.toml:7: rule[1].trigger: 'nonfinte' is not a trigger; did you mean \"nonfinite\"?",
        ),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_line_and_key(tmp_path: Path, case: str, error: str) -> None:
    outcomes, errors = played(tmp_path, case)
    assert not outcomes
    assert any(line.startswith(error) for line in errors), errors


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("stepz 3 every 2s", '"stepz" is not a word of a series; known: hello'),
        ("steps 3 every 2", 'steps: "2" is not a duration'),
        ("steps 3 every 2s lss=2", 'steps: "lss" is unknown here; known: applied'),
        ("steps 3 every 2s loss=two", 'steps: loss: "two" is not a number'),
        ("steps 9000000 every 2s", 'steps: "9000000" is not a number of steps (at most 1,000,000)'),
        ("steps 3 every 2s tokens=1.5", 'steps: tokens: "1.5" is not a whole number or absent'),
        ("steps 3 every 2s applied=1", 'steps: applied: "1" is not true, false or absent'),
        ("stand 9s phase=evel", 'stand: "evel" is not a phase; known: init'),
        ("lose 2", 'lose: "2" is not a rank; there are 0 to 1'),
        ("quiet 40d", '"40d" is longer than 7d'),
        ("money reserve=1", "money: spend=… is missing"),
        ("saves", 'saves: write "in 40s", "never" or "fail in 5s" behind it'),
        ("saves in 40", 'saves: "40" is not a duration'),
        ("saves in 8d", 'saves: "8d" is longer than 7d'),
        ("ends on term", 'ends: write "in 5s", "on kill" or "never" behind it'),
        ("cloud refuses all", 'cloud: write "ends in 5m"'),
        ("cloud ends on fire", 'cloud: write "ends in 5m"'),
        ("deaf 1", 'deaf: takes nothing more, and here is "1"'),
        ("named", "named: a rank says its process itself; write it in a case with log = true"),
    ],
)
def test_a_mistake_in_a_series_is_named_with_its_own_line(tmp_path: Path, line: str, error: str) -> None:
    (said,) = problems(tmp_path, f'series = """\nhello  # both\n{line}\n"""\nquiet = true')
    assert said.startswith(f"{tmp_path}/tests.toml:6: {line}: {error}")


def test_steps_before_hello_are_refused_and_a_log_needs_none(tmp_path: Path) -> None:
    (said,) = problems(tmp_path, 'series = ["steps 1 every 2s"]\nquiet = true')
    assert "no rank is connected" in said
    assert problems(tmp_path, 'series = ["steps 1 every 2s loss=1"]\nquiet = true\nlog = true') == ()


GOOD = (
    "hello", "steps 3 every 2s loss=2.0 tokens=1000", "stand 2s in_step", "work 2s phase=eval", "phase eval 0:",
    "quiet 2s", "blind 2s", "lose 1", "bye 0", "restart", "attempt", "money spend=1 reserve=1 rate=20", "saved",
    "cap scope=day spend=9 reserve=1 ceiling=10", "memory 4 of 64", "spot terminate 110s", "gpus 0.5 0.9", "rewind 1",
    "hold 2h", "saves in 40s", "saves fail in 5s", "deaf", "ends in 5s", "ends on kill", "named", "cloud ends in 5m",
    "cloud ends on force", "cloud refuses stop force", "cloud none", "steps 1 every 2s loss=nan",
    "gpu 1 xid 79",
)  # fmt: skip
THROWN = (
    "0",
    "1",
    "-1",
    "2s",
    "nan",
    "inf",
    "1e400",
    "x",
    "=",
    "true",
    "absent",
    "1/absent",
    "0:",
    "9:",
    "eval",
    "every",
)


def test_no_line_of_a_series_ends_in_anything_but_its_own_error() -> None:
    """Lines with a word exchanged, a value exchanged, a word too many: what cannot be played says so."""
    rng = random.Random(7)
    policies, _ = load_policies([("default.toml", (POLICIES / "default.toml").read_text())])
    assert policies is not None
    played, refused = 0, []
    for number in range(300):
        plays = HaltPlayer if number % 2 else Player
        player = plays(policies.policies[0], 2, 2, log=number % 3 == 0)
        for line in ["hello", *(_thrown(rng) for _ in range(8))]:
            try:
                play(player, line)
                played += 1
            except SeriesError as error:
                refused.append(str(error))
    assert min(played, len(refused)) > 500, (played, len(refused))
    assert not any("\n" in error for error in refused)


def test_every_word_of_the_language_is_among_the_good_lines() -> None:
    assert {line.split()[0] for line in GOOD} == set(WORDS)


def _thrown(rng: random.Random) -> str:
    words = rng.choice(GOOD).split()
    at = rng.randrange(len(words))
    match rng.randrange(4):
        case 0:
            words[at] = rng.choice(THROWN)
        case 1 if "=" in words[at]:
            words[at] = f"{words[at].split('=')[0]}={rng.choice(THROWN)}"
        case 2:
            words.append(rng.choice([*THROWN, *sorted(STEP_FIELDS)]))
        case _:
            pass
    return " ".join(words)


def test_the_command_says_how_it_went_to_people_programs_and_ci(tmp_path: Path) -> None:
    other = "[[case]]\nname = 'other'\nseries = ['quiet 1s']\nquiet = true"
    outcomes, _ = played(tmp_path, f"{SERIES}\nquiet = true\n{other}")
    assert [outcome.ok for outcome in outcomes] == [False, True]
    file, junit = str(tmp_path / "tests.toml"), tmp_path / "junit.xml"
    told = CliRunner().invoke(command, [file, "-v"])
    assert told.exit_code == ExitCode.FAILED
    assert told.output.splitlines() == [
        f"FAIL  {file}:2: it",
        "      verdicts (- expected, + came):",
        "        + 62s nan loss_nan halt",
        f"ok    {file}:6: other",
        "1 passed, 1 failed",
    ]
    assert CliRunner().invoke(command, [file, "--only", "other"]).exit_code == ExitCode.OK
    assert CliRunner().invoke(command, [file, "--only", "nothing"]).exit_code == ExitCode.FAILED
    played(tmp_path, f'{SERIES}\nhalt = ["62s asked", "...", "73s halted"]\n{other}')
    halted = CliRunner().invoke(command, [file, "--json", "--junit", str(junit)])
    assert json.loads(halted.output)["cases"][0]["halt"][0] == "62s asked good"
    assert "+ 117s halted" in (ElementTree.parse(junit).getroot().findtext("testcase/failure") or "")
    played(tmp_path, f'{SERIES}\nhalt = ["...", "117s halted"]')
    told = CliRunner().invoke(command, [file, "-v"])
    assert told.output.splitlines()[1:4] == ["      62s nan loss_nan halt", "      halt:", "        62s asked good"]
    played(tmp_path, f"{SERIES}\nquiet = true\n{other}")
    document = json.loads(CliRunner().invoke(command, [file, "--json", "--junit", str(junit)]).output)
    assert (document["ok"], [case["ok"] for case in document["cases"]]) == (False, [False, True])
    assert document["cases"][0]["verdicts"] == ["62s nan loss_nan halt"]
    suite = ElementTree.parse(junit).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert [case.get("name") for case in suite.iter("testcase")] == ["it", "other"]


def test_a_name_steers_no_terminal_and_breaks_no_xml(tmp_path: Path) -> None:
    played(
        tmp_path, 'series = ["quiet 1s"]\nquiet = true\n[[case]]\nname = "a\\u001b[2Jb"\nseries = ["x"]\nquiet = true'
    )
    told = CliRunner().invoke(command, [str(tmp_path / "tests.toml"), "--junit", str(tmp_path / "junit.xml")])
    assert "tests.toml:6: a [2Jb" in told.output
    assert "a [2Jb" in [
        case.get("name") for case in ElementTree.parse(tmp_path / "junit.xml").getroot().iter("testcase")
    ]


def test_the_example_of_the_documentation_passes(tmp_path: Path) -> None:
    form = inspect.cleandoc(cases.__doc__ or "").partition("\n\n")[2].rpartition("\n\n")[0]
    (tmp_path / "default.toml").write_text((POLICIES / "default.toml").read_text())
    (tmp_path / "tests.toml").write_text(form)
    (outcome,), errors = run_file(tmp_path / "tests.toml")
    assert (outcome.problems, errors) == ((), [])


def test_which_fields_are_whole_or_flags_is_what_a_step_declares() -> None:
    declared = {field.name: str(field.type).partition(" ")[0] for field in fields(Step) if field.name in STEP_FIELDS}
    assert {name for name, kind in declared.items() if kind == "int"} == WHOLE_FIELDS
    assert {name for name, kind in declared.items() if kind == "bool"} == FLAG_FIELDS
    assert set(declared.values()) == {"int", "bool", "float"}
