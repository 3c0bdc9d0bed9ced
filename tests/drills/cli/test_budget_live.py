"""`costgov budget` on a real governor: ceilings that are set, raised, kept over a crash and cleared in training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from governor.cli.common import ExitCode
from tests.drills.cli.installed import BOUND_S, COSTGOV
from tests.drills.halt.conftest import Service
from tests.drills.halt.puppet import Puppet

# No budget of its own: what halts here is what an operator sets. $3,600/h is a dollar a second; ending a run is bounded
# by 1 s of grace, 1 + 5 s of ending and 1 s of ticks, so $8 for the node, however long a drill takes: a longer grace
# would grow with the work that is unsaved.
POLICY = """
[policy]
name = "drill"
[halt]
checkpoint = "none"
grace = "1s"
term_grace = "1s"
kill_grace = "5s"
stop = "processes"
[[rule]]
name = "nonfinite"
trigger = "nonfinite"
response = "halt"
"""
BUDGETS = """
[[budget]]
scope = "day"
ceiling_usd = 5000
alert_at = [0.5]
[[budget]]
scope = "node"
ceiling_usd = 5000
"""


class Node:
    """A service, the ranks on it, and `costgov` as an operator calls it."""

    def __init__(self, work: Path, budgets: str = "") -> None:
        self.service = Service(work, policy=POLICY, cloud=budgets)
        config = self.service.config
        config.write_text(config.read_text().replace("98.32", "3600"))
        self.puppets: list[Puppet] = []

    def join(self, run: str, **labels: str) -> Puppet:
        puppet = Puppet(self.service.work / "run" / "trainer.sock")
        self.puppets.append(puppet)
        answer = puppet.hello(run=run, stage=labels.pop("stage", None), labels=labels)
        assert answer["kind"] == "confirm", answer
        puppet.steps(1, 5)
        return puppet

    def costgov(self, *words: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "COSTGOV_CONTROL": str(self.service.work / "run" / "control.sock")}
        done = subprocess.run([COSTGOV, *words], env=environ, capture_output=True, text=True, timeout=BOUND_S)
        assert "Traceback" not in done.stderr
        return done

    def budgets(self) -> dict[str, dict[str, Any]]:
        [governor] = json.loads(self.costgov("budget", "list", "--json").stdout)
        return {row["scope"]: row for row in governor["budgets"]}

    def set(self, scope: str, usd: float) -> subprocess.CompletedProcess[str]:
        return self.costgov("budget", "set", scope, str(usd), "--reason", "a drill")

    def lower(self, scope: str) -> None:
        """To four seconds above what is spent and reserved: at once, for a command takes a second to start or more."""
        rows = self.service.ask({"cmd": "status"})["governor"]["budgets"]
        known = next(row for row in rows if row["scope"] == scope)
        ceiling = round((known["spend_usd"] + known["reserve_usd"] + 4) * 1_000_000)
        self.service.ask({"cmd": "budget_set", "scope": scope, "ceiling_usd_micros": ceiling, "reason": "a drill"})

    def halted(self) -> dict[str, Any]:
        """The evidence of each run's halt, once it is over."""
        found = [one for one in self.service.incidents() if one["halt_stage"] == "HALTED"]
        return {one["run"]: one for one in found}

    def end(self) -> None:
        for puppet in self.puppets:
            puppet.end()
        self.service.end()


@pytest.fixture
def node(short_tmp: Path) -> Iterator[Callable[..., Node]]:
    made: list[Node] = []

    def make(budgets: str = "") -> Node:
        made.append(Node(short_tmp, budgets))
        made[-1].service.start()
        return made[-1]

    yield make
    for one in made:
        one.end()


def settled(node: Node) -> None:
    """The rank has been heard, and its money is known to a tick."""

    def known() -> bool:
        runs = node.service.ask({"cmd": "status"})["runs"]
        return bool(runs) and all(run["step"] == 5 and run["spend_usd"] > 0 for run in runs)

    node.service.until(known, "every run has spent something")


def test_a_ceiling_lowered_to_just_above_what_is_spent_halts_the_live_run(node: Callable[..., Node]) -> None:
    here = node()
    rank = here.join("llama")
    settled(here)
    assert here.set("llama", 5000).returncode == 0
    told = here.set("llama", 4000)
    assert (told.returncode, told.stderr) == (0, "")
    assert "(was $5,000.00); spent $" in told.stdout
    assert "live runs under it now: llama" in told.stdout
    here.lower("run:llama")
    assert rank.process.wait(BOUND_S) == -signal.SIGTERM
    here.service.until(lambda: "llama" in here.halted(), "the halt is over")
    incident = here.halted()["llama"]
    assert (incident["reason"], incident["trigger"]) == ("ceiling_reached", "budget")
    assert incident["evidence"]["scope"] == "run:llama"
    assert incident["spend_usd_micros"] <= incident["evidence"]["ceiling_usd_micros"]


def test_a_stages_ceiling_halts_both_of_its_runs_and_leaves_the_third_alone(node: Callable[..., Node]) -> None:
    here = node()
    one, other = here.join("llama", stage="s1"), here.join("mistral", stage="s1", team="nlp")
    third = here.join("gemma", stage="s2")
    settled(here)
    assert here.set("stage:s1", 5000).returncode == 0
    here.lower("stage:s1")
    assert {one.process.wait(BOUND_S), other.process.wait(BOUND_S)} == {-signal.SIGTERM}
    here.service.until(lambda: len(here.halted()) == 2, "both halts are over")
    assert {incident["evidence"]["scope"] for incident in here.halted().values()} == {"stage:s1"}
    assert third.process.poll() is None
    audited = here.service.ask({"cmd": "status"})["governor"]["budgets"]
    assert [row["reason"] for row in audited] == ["a drill"]


def test_a_ceiling_raised_before_it_is_hit_keeps_the_run_alive_also_over_a_crash(node: Callable[..., Node]) -> None:
    here = node(BUDGETS)
    rank = here.join("llama", team="nlp")
    settled(here)
    assert here.set("label:team=nlp", 5000).returncode == 0
    shown = here.budgets()["label:team=nlp"]
    low = round(shown["spend_usd"] + shown["reserve_usd"] + 20, 2)
    assert here.set("label:team=nlp", low).returncode == 0
    assert here.set("label:team=nlp", 4000).returncode == 0
    here.service.kill9()
    here.service.start()
    kept = here.budgets()
    assert (kept["label:team=nlp"]["ceiling_usd"], kept["label:team=nlp"]["reason"]) == (4000, "a drill")
    assert kept["label:team=nlp"]["spend_usd"] >= shown["spend_usd"]
    assert (kept["day"]["ceiling_usd"], kept["day"]["source"]) == (5000, "costgov.toml")

    def past() -> bool:
        row = here.budgets()["label:team=nlp"]
        return bool(row["spend_usd"] + row["reserve_usd"] > low)

    here.service.until(past, "the old ceiling is behind")
    assert here.service.incidents() == []
    assert rank.process.poll() is None
    cleared = here.costgov("budget", "clear", "label:team=nlp", "--reason", "enough")
    assert "cleared (was $4,000.00); no ceiling of this scope is left" in cleared.stdout
    assert "label:team=nlp" not in here.budgets()


def test_what_cannot_be_set_is_said_in_one_line_with_the_numbers(node: Callable[..., Node]) -> None:
    here = node(BUDGETS)
    here.join("llama", stage="s1")
    settled(here)
    here.service.until(lambda: here.budgets()["node"]["spend_usd"] > 5, "five dollars are spent")
    shown = here.budgets()["node"]
    too_low = str(round(shown["spend_usd"] + 0.5, 2))  # Its halt takes four seconds at least.
    unknown = ExitCode.UNKNOWN
    refusals = [
        (("set", "llama", "0.5"), ExitCode.FAILED, "budget run:llama: the ceiling $0.5000 is not above $"),
        (("set", "node", too_low), ExitCode.FAILED, "node has spent $"),
        (("set", "qwen", "900"), unknown, "no run 'qwen' here; known: llama"),
        (
            ("set", "stage:s2", "900"),
            unknown,
            "no run of stage:s2 was ever seen here; known: stage:s1; to set",
        ),
        (("set", "label:team=nlp", "900"), unknown, "no run of label:team=nlp was ever seen here; known: none"),
        (("clear", "node"), unknown, "no budget of node was set live here (one stands in costgov.toml: edit it there)"),
    ]
    for words, code, line in refusals:
        told = here.costgov("budget", *words, "--reason", "x")
        assert (told.returncode, told.stdout) == (code, ""), told.stderr
        assert told.stderr.startswith("costgov: " + line), told.stderr
        assert told.stderr.count("\n") == 1
    table = here.costgov("budget", "list").stdout
    assert "day" in table
    assert "costgov.toml" in table
    assert set(here.budgets()) == {"day", "node"}, "nothing of it was set"


def test_a_token_budget_that_is_trained_already_is_neither_set_nor_left_behind(node: Callable[..., Node]) -> None:
    here = node('[[budget]]\nscope = "run:llama"\nceiling_usd = 5000\ntokens = 6000\n')
    rank = here.join("llama")
    rank.steps(5, 5, tokens=1000)
    here.service.until(
        lambda: here.service.ask({"cmd": "status"})["runs"][0]["tokens_total"] == 5000, "tokens are heard"
    )
    few = here.costgov("budget", "set", "llama", "5000", "--tokens", "20", "--reason", "20B was meant")
    assert (few.returncode, few.stdout) == (ExitCode.FAILED, "")
    assert few.stderr.startswith("costgov: run:llama has trained 5,000 tokens: with a budget of 20 it would be")
    assert here.costgov("budget", "set", "llama", "5000", "--tokens", "1M", "--reason", "more").returncode == 0
    rank.steps(6, 8, tokens=1000)
    here.service.until(lambda: here.service.ask({"cmd": "status"})["runs"][0]["tokens_total"] == 8000, "more are heard")
    clear = here.costgov("budget", "clear", "llama", "--reason", "no more")
    assert clear.returncode == ExitCode.FAILED
    assert clear.stderr.startswith("costgov: run:llama has trained 8,000 tokens: with a budget of 6,000 it would be")
    assert here.budgets()["run:llama"]["tokens"] == 1_000_000
    assert here.service.incidents() == []
    assert rank.process.poll() is None


def test_a_configuration_that_cannot_hold_is_refused_at_the_start(short_tmp: Path) -> None:
    table = '[[budget]]\nscope = "stage:s1"\nceiling_usd = 3.5\n'
    here = Node(short_tmp, table)
    argv = [COSTGOV, "daemon", "--config", str(here.service.config), "--policy", str(here.service.policy)]
    told = subprocess.run(argv, capture_output=True, text=True, timeout=BOUND_S)
    assert told.returncode == 1
    [line] = [line for line in told.stderr.splitlines() if line.startswith("costgov: ")]
    assert line.startswith("costgov: budget stage:s1: the ceiling $3.50 is not above $4.00, which its halt may itself")
