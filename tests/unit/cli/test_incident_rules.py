"""`costgov incident rules`, `mark`, `rearm` and `marks`, on the journals of governors that have ended."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from governor.adapters.journal.writer import open_journal
from governor.app.mark_requests import begin
from governor.app.settings_file import load_settings
from governor.cli.common import ExitCode, Failed
from governor.cli.incident.rules import month_of, week_of
from governor.cli.main import cli
from governor.core.base.policy import PolicySet
from governor.core.base.units import parse_utc
from governor.policies.files import policy_texts
from governor.policies.parse import load_policies
from tests.golden.report_cases import nan_halt
from tests.paths import ROOT


class Node:
    def __init__(self, work: Path, state: str = "state") -> None:
        self.work, self.state = work, state
        self.environ = {
            "COSTGOV_PATHS__STATE_DIR": f"{work}/{state}", "COSTGOV_PATHS__RUNTIME_DIR": f"{work}/run",
            "COSTGOV_CONTROL": f"{work}/run/control.sock", "COLUMNS": "200",
        }  # fmt: skip

    def halted(self, name: str, number: int = 1, **changes: Any) -> str:
        """One launch of `costgov run` that was halted and has ended."""
        incident_id = f"{name}.gpu-17.{number}"
        opened = nan_halt()["opened_wall_ns"] + number
        told = {"incident_id": incident_id, "run": name, "opened_wall_ns": opened, "wrong_max": 2, **changes}
        journal, _ = open_journal(f"{self.work}/{self.state}/runs/{name}/costgov.db", f"{self.work}/run")
        try:
            assert journal.close_incident(incident_id, nan_halt() | told)
        finally:
            journal.close()
        return incident_id

    def __call__(self, *words: str) -> Result:
        return CliRunner().invoke(cli, ["incident", *words], env=self.environ)

    def json(self, *words: str) -> Any:
        done = self(*words, "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_two_false_halts_of_two_launches_make_the_rule_observe(node: Node) -> None:
    ids = [node.halted("one"), node.halted("two")]
    assert node.json("mark", ids[0], "--false", "--note", "new data")["entry"]["note"] == "new data"
    assert [row["incident_id"] for row in node.json("mark", ids[1], "--false")["counted"]] == ids
    (row,) = node.json("rules")
    assert (row["halts"], row["false"], row["precision_frac"], row["incidents"]["false"]) == (2, 2, 0.0, ids)
    assert row["fallen_back"][0]["incidents"] == ids
    assert node("rearm", "nan").exit_code == 0
    assert node.json("rules")[0]["fallen_back"] == []
    acts = [one["act"] for one in node.json("marks")]
    assert acts == ["mark", "mark", "fell_back", "rearm", "enforces_again"]
    for words in (("rules",), ("rules", "--by", "month"), ("rules", "--by", "week", "--since", "9000d"), ("marks",)):
        assert node(*words).exit_code == 0, node(*words).output


def test_what_is_marked_is_what_the_next_launch_reads_whatever_the_directory_is_called(tmp_path: Path) -> None:
    node = Node(tmp_path, "runs/job7")
    for name in ("one", "two"):
        node.json("mark", node.halted(name), "--false")
    assert not (tmp_path / "halt_marks.jsonl").exists(), "the directory above is not ours"
    settings, _ = load_settings(None, None, node.environ, run="three")
    assert settings is not None
    _, policies, told = begin(settings.paths.marks_dir, PolicySet((), "digest"))
    assert ([*policies.wrong], told) == ([("stage1-1b-dense", "nan")], [])


@pytest.mark.parametrize(("then", "now", "falls"), [(2, 5, False), (5, 2, True), (2, 0, False)])
def test_what_has_fallen_back_is_by_the_policy_in_force(node: Node, then: int, now: int, falls: bool) -> None:
    """As a governor decides it. What the halts say is of the policy that they were judged by."""
    policies = node.work / "policies"
    policies.mkdir()
    node.environ["COSTGOV_PATHS__POLICIES_DIR"] = str(policies)
    (policies / "p.toml").write_text(
        f'[policy]\nname = "stage1-1b-dense"\n[halt]\nwrong_max = {now}\n'
        '[[rule]]\nname = "nan"\ntrigger = "nonfinite"\nresponse = "halt"\n'
    )
    for name in ("one", "two"):
        said = node("mark", node.halted(name, wrong_max=then), "--false").stdout
    assert ("only observes from now on" in said) is falls
    assert [bool(row["fallen_back"]) for row in node.json("rules")] == [falls]
    assert ("observes" in node("rules").stdout.splitlines()[1]) is falls
    told = node("marks").stderr
    assert ("no longer enforces" in told, "not fallen back under the policy" in told) == (falls, then == 2)
    loaded, problems = load_policies(policy_texts([policies]))
    assert loaded is not None, problems
    _, in_force, _ = begin(node.work / "state", loaded)
    assert bool(in_force.fallen()) is falls


def test_policies_that_cannot_be_read_are_told_and_what_was_marked_is_by_the_halts(node: Node) -> None:
    policies = node.work / "policies"
    policies.mkdir()
    (policies / "p.toml").write_text("[policy\n")
    node.environ["COSTGOV_PATHS__POLICIES_DIR"] = str(policies)
    for name in ("one", "two"):
        node.json("mark", node.halted(name), "--false")
    done = node("rules")
    assert (done.exit_code, "p.toml" in done.stderr, "observes" in done.stdout) == (0, True, True)


def test_a_halt_by_a_ceiling_or_by_hand_is_counted_only(node: Node) -> None:
    for number in (1, 2, 3):
        node.json("mark", node.halted("one", number, rule="budget", trigger="budget", wrong_max=0), "--false")
    (row,) = node.json("rules")
    assert (row["false"], row["fallen_back"]) == (3, [])


def test_an_unknown_halt_or_rule_is_one_line_and_code_5(node: Node) -> None:
    node.halted("one")
    for words in (("mark", "two", "--false"), ("rearm", "nan"), ("rearm", "nan", "--policy", "x\x1b[2J")):
        error = CliRunner().invoke(cli, ["incident", *words], env=node.environ, standalone_mode=False).exception
        assert isinstance(error, Failed)
        assert (error.code, error.message.isprintable()) == (ExitCode.UNKNOWN, True)
    assert node("mark", "one").exit_code == ExitCode.USAGE
    assert node("mark", "one", "--false", "--note", "x" * 513).exit_code == ExitCode.USAGE


def test_words_that_contradict_each_other_mark_nothing(node: Node) -> None:
    halted = node.halted("one")
    for words in (("--false", "--right"), ("--false", "--clear"), ("--clear", "--right"), ()):
        done = node("mark", halted, *words)
        assert done.exit_code == ExitCode.USAGE, words
        assert "say one of --false, --right, --clear" in done.stderr
    assert node.json("marks") == []


def test_a_file_that_cannot_be_read_is_not_told_as_an_empty_one(node: Node) -> None:
    file = node.work / "state" / "halt_marks.jsonl"
    node.json("mark", node.halted("one"), "--false")
    file.chmod(0o666)
    for words in (("marks",), ("rearm", "nan")):
        done = node(*words)
        assert (done.exit_code, done.stdout, "others may write it" in done.stderr) == (1, "", True)
    assert node("rules").exit_code == 0


def test_a_hostile_note_steers_no_terminal(node: Node) -> None:
    node.json("mark", node.halted("one"), "--false", "--note", "a\x1b[2J\nb")
    assert "\x1b" not in node("marks").stdout
    assert node.json("marks")[0]["note"] == "a\x1b[2J\nb"


def test_a_snapshot_that_is_not_whole_hides_no_other(node: Node) -> None:
    node.halted("one")
    node.halted("two", policy=None)
    assert [row["halts"] for row in node.json("rules")] == [1]


def test_periods_are_utc_months_and_weeks_from_monday() -> None:
    wall = parse_utc("2026-11-29T23:59:59Z")  # A Sunday.
    assert (month_of(wall), week_of(wall), week_of(wall + 10**9)) == ("2026-11", "2026-11-23", "2026-11-30")


def test_the_examples_of_rearm_name_rules_and_policies_that_we_ship() -> None:
    told = CliRunner().invoke(cli, ["incident", "rearm", "--help"]).stdout
    shipped = [load_policies([(path.name, path.read_text())])[0] for path in (ROOT / "policies").glob("*.toml")]
    policies = [policy for found in shipped if found is not None for policy in found.policies]
    examples = [shlex.split(line)[3:] for line in told.splitlines() if line.strip().startswith("costgov incident re")]
    assert len(examples) == 2
    assert {words[0] for words in examples} <= {rule.name for policy in policies for rule in policy.rules}
    named = [words[words.index("--policy") + 1] for words in examples if "--policy" in words]
    assert set(named) <= {policy.name for policy in policies}
