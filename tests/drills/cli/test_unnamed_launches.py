"""The same command again under `costgov run`, without a name: a run of its own that goes on with its own checkpoint."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.drills.cli.installed import COSTGOV, Costgov
from tests.drills.components import needs

# In steps of 1,000 tokens: the end is at step 100 of the model, whichever launch trains it.
GOAL = """
[policy]
name = "goal"
[budget]
tokens = "100K"
[halt]
checkpoint = "none"
grace = "1s"
term_grace = "1s"
kill_grace = "5s"
[[rule]]
name = "budget"
trigger = "budget"
response = "halt"
"""
LOOP = str(Path(__file__).with_name("goes_on.py"))
TRAINER = str(Path(__file__).with_name("trainer_goes_on.py"))
WAIT_S = "30"  # Long enough for a halt. Without one it ends by itself.


class Launches:
    def __init__(self, costgov: Costgov, work: Path) -> None:
        self.costgov, self.work = costgov, work
        self.policy = work / "policy.toml"
        self.policy.write_text(GOAL)

    def train(
        self, place: str, *told: str, words: tuple[str, ...] = (), job: str = "", loop: str = LOOP
    ) -> tuple[int, str]:
        asked = ["run", "--policy", str(self.policy), "--ceiling", "100", "--price", "36", *words]
        ours = {"SLURM_JOB_ID": job} if job else {}
        done = self.costgov(*asked, "--", sys.executable, loop, str(self.work / place), *told, **ours)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def launches(costgov: Costgov, tmp_path: Path) -> Launches:
    return Launches(costgov, tmp_path)


@pytest.mark.parametrize("jobs", [("", ""), ("71", "72")], ids=["no name", "a chain of Slurm jobs"])
def test_a_goal_in_tokens_counts_over_the_launches_of_a_command_without_a_name(
    launches: Launches, short_tmp: Path, jobs: tuple[str, str]
) -> None:
    code, said = launches.train("ck", "60", "0", job=jobs[0])
    assert code == 0, said
    code, said = launches.train("ck", "110", WAIT_S, job=jobs[1])
    assert code == 86, said
    assert "that one was saved by run " in said
    (report,) = (short_tmp / "state" / "runs").glob("*/incidents/*.json")
    incident = json.loads(report.read_text())
    assert incident["reason"] == "tokens_reached"
    assert 100 <= incident["step"] <= 110


@pytest.mark.parametrize("is_elsewhere", [True, False], ids=["a checkpoint elsewhere", "a run that has a name"])
def test_what_another_run_has_trained_is_not_in_the_goal(launches: Launches, is_elsewhere: bool) -> None:
    words = ((), ()) if is_elsewhere else (("--name", "a"), ("--name", "b"))
    code, said = launches.train("ck", "60", "0", words=words[0])
    assert code == 0, said
    path = (str(launches.work / "ck"),) if is_elsewhere else ()
    code, said = launches.train("ft" if is_elsewhere else "ck", "110", "0", *path, words=words[1])
    assert (code, "that one was saved by run " in said) == (0, True), said


@pytest.mark.parametrize("words", [(), ("--name", "a")], ids=["no name", "a run that has a name"])
def test_a_trainer_that_resumes_from_its_own_checkpoint_has_what_it_trained_before(
    launches: Launches, words: tuple[str, ...], short_tmp: Path
) -> None:
    """`resume_from_checkpoint=True` of transformers: nobody has called shim.resume()."""
    needs("transformers", "accelerate")
    for last in (40, 80):
        code, said = launches.train("ck", str(last), "0", words=words, loop=TRAINER)
        assert code == 0, said
        assert f"step {last}/{last}; {last},000 tokens; spent" in said
    code, said = launches.train("ck", "110", WAIT_S, words=words, loop=TRAINER)
    assert code == 86, said
    (report,) = (short_tmp / "state" / "runs").glob("*/incidents/*.json")
    assert json.loads(report.read_text())["reason"] == "tokens_reached"


TOLD = 'echo "$COSTGOV_RUN $COSTGOV_UNNAMED_RUN"'


@pytest.mark.parametrize(
    ("words", "extra", "is_named"),
    [
        ((), {}, False),
        ((), {"SLURM_JOB_ID": "7"}, False),
        ((), {"COSTGOV_RUN": "r"}, True),
        (("--name", "r"), {}, True),
        (("--again", "kq-1129-141444-10082"), {}, False),
        (("--name", "slurm-finetune"), {}, True),
        (("--name", "llama-1129-154500-42"), {}, True),
    ],
    ids=[
        *("of the command", "of the scheduler", "by the environment", "by the command line"),
        *("of a command, as a halt prints it", "one as of a scheduler", "one as of a command"),
    ],
)
def test_the_trainer_learns_whether_somebody_has_named_its_run(
    costgov: Costgov, environ: dict[str, str], words: tuple[str, ...], extra: dict[str, str], is_named: bool
) -> None:
    """Also where what is around it has another name, or none."""
    del environ["COSTGOV_CONTROL"]
    inner = f"{COSTGOV} run --price 22 --name inner -- sh -c '{TOLD}'"
    told = costgov("run", "--price", "22", *words, "--", "sh", "-c", f"{TOLD}; {inner}", **extra)
    assert told.returncode == 0, told.stderr
    outer, within = told.stdout.splitlines()
    name, unnamed = outer.split(" ")
    assert unnamed == ("" if is_named else name)
    assert within == "inner "


@pytest.mark.parametrize(("words", "said"), [(("--again", "gone"), "no journal"), (("--name", "r"), "")])
def test_a_run_to_go_on_with_that_no_journal_knows_is_said(costgov: Costgov, words: tuple[str, ...], said: str) -> None:
    done = costgov("run", "--price", "22", *words, "--", "true")
    assert (done.returncode, "no journal" in done.stderr) == (0, bool(said)), done.stderr
