"""The command that a report has people copy: after a ceiling or a gate it goes on, and raises nothing unsaid."""

from __future__ import annotations

import click
import pytest

from governor.cli.run.command import run
from governor.reports.incident import incident_document, incident_markdown, timeline_lines
from governor.reports.resume_text import BEGINS_ANEW, FLAGS, command_to_copy, resume_command, resume_with, steps_behind
from governor.reports.terminal import resume_lines
from tests.golden.report_cases import ceiling_of_a_trainer, nan_halt

OURS = ceiling_of_a_trainer()["evidence"]


@pytest.mark.parametrize(
    ("command", "ceiling_usd_micros", "copied"),
    [
        ("costgov run --ceiling 0.25 -- python t.py", 250_000, "costgov run --ceiling 0.50 -- python t.py"),
        (
            "cd '/data/my run' && costgov run --name a --price 22 --ceiling=1000 -- python t.py --ceiling 1000",
            1_000_000_000,
            "cd '/data/my run' && costgov run --name a --price 22 --ceiling=2000 -- python t.py --ceiling 1000",
        ),
        (
            "costgov run --observe --policy 'my p.toml' --ceiling 0.000001 -- sh",
            1,
            "costgov run --observe --policy 'my p.toml' --ceiling 0.000002 -- sh",
        ),
        ("costgov run --ceiling '$30' -- sh", 30_000_000, "costgov run --ceiling 60 -- sh"),
        ("costgov run '--ceiling=$1,000.50' -- sh", 1_000_500_000, "costgov run --ceiling=2001 -- sh"),
        (
            "costgov run --ceiling 5 --json --ceiling 7 -- sh",
            7_000_000,
            "costgov run --ceiling 5 --json --ceiling 14 -- sh",
        ),
        (
            """cd /d && costgov run --log 'it'"'"'s' --name --ceiling --ceiling 1,000 train.sh --ceiling 1000""",
            1_000_000_000,
            """cd /d && costgov run --log 'it'"'"'s' --name --ceiling --ceiling 2000 train.sh --ceiling 1000""",
        ),
    ],
)
def test_the_copied_command_has_the_old_ceiling_and_as_much_again_and_says_so(
    command: str, ceiling_usd_micros: int, copied: str
) -> None:
    halted = ceiling_of_a_trainer() | {
        "resume": command,
        "evidence": OURS | {"ceiling_usd_micros": ceiling_usd_micros, "reserve_usd_micros": 0, "spend_usd_micros": 0},
        "spend_usd_micros": 0,
    }
    assert command_to_copy(halted) == copied
    for shown in ("\n".join(timeline_lines(halted)), incident_markdown(halted)):
        assert copied in shown
        assert "that and the old ceiling again" in shown
    assert incident_document(halted)["resume"] == command, "no program raises a ceiling by itself"


@pytest.mark.parametrize(
    ("command", "evidence"),
    [
        ("costgov run --ceiling 30 -- python t.py", {}),  # Another ceiling than the command's has halted it.
        ("costgov run --ceiling 25 -- python t.py", {"scope": "node"}),
        ("costgov run --price 2 python t.py --ceiling 25", {}),  # The script's own option.
        ("costgov run --json python --ceiling 25", {}),
        ("costgov run --name --ceiling 25", {}),
        ("costgov run --ceiling", {}),
        ("costgov run --ceiling much -- python t.py", {}),
        ("costgov run --price 2 -- python t.py --ceiling 25", {}),
        ("costgov run --price 2 -- ./train.sh --ceiling 25", {}),
        ("python t.py --ceiling 25", {}),
    ],
)
def test_another_ceiling_is_only_named(command: str, evidence: dict[str, str]) -> None:
    halted = ceiling_of_a_trainer() | {"resume": command, "evidence": OURS | evidence}
    assert command_to_copy(halted) == command
    told = resume_with(halted)
    assert told is not None
    assert "again" not in told


@pytest.mark.parametrize(
    ("ceiling_usd", "spent_usd", "reserve_usd", "copied"),
    [
        ("24", 60.70, 22, "107"),  # The name has spent more than its newest ceiling.
        ("45", 23.41, 22, "91"),
        ("0.25", 0.2512, 0, "0.51"),
        ("0.03", 0.030004, 0, "0.060004"),
    ],
)
def test_the_copied_command_pays_for_what_is_spent_and_reserved_and_the_old_ceiling_again(
    ceiling_usd: str, spent_usd: float, reserve_usd: int, copied: str
) -> None:
    micros = round(float(ceiling_usd) * 1_000_000)
    known = {"spend_usd_micros": round(spent_usd * 1_000_000), "reserve_usd_micros": reserve_usd * 1_000_000}
    halted = ceiling_of_a_trainer() | {
        "resume": f"costgov run --ceiling {ceiling_usd} -- sh",
        "evidence": OURS | known | {"ceiling_usd_micros": micros},
        "spend_usd_micros": 0,
    }
    assert command_to_copy(halted) == f"costgov run --ceiling {copied} -- sh"
    told = resume_with(halted)
    assert told is not None
    assert f"The command has {copied}, that and the old ceiling again" in told


def gate_halt(command: str, **evidence: object) -> dict[str, object]:
    seen = {"ceiling_usd_micros": 8_000_000, "reserve_usd_micros": 300_000, "enough_usd_micros": 10_300_000}
    fits = {"would_fit": 770_000, "goal_unit": "steps"}
    of_gate = {"resume": command, "trigger": "gate", "reason": "gate", "evidence": seen | fits | evidence}
    return ceiling_of_a_trainer() | of_gate


@pytest.mark.parametrize(
    ("ceiling", "enough_usd_micros", "copied"),
    [("8", 10_300_000, "11"), ("8.00", 8_750_000, "9.05"), ("$8", 123_600_001, "124"), ("8", 123_800_000, "125")],
)
def test_after_a_gate_the_copied_command_has_the_ceiling_that_lets_it_pass_and_says_so(
    ceiling: str, enough_usd_micros: int, copied: str
) -> None:
    command = f"costgov run --ceiling '{ceiling}' --gate 20steps -- python t.py --ceiling 8"
    halted = gate_halt(command, enough_usd_micros=enough_usd_micros)
    raised = f"costgov run --ceiling {copied} --gate 20steps -- python t.py --ceiling 8"
    assert command_to_copy(halted) == raised
    for shown in ("\n".join(timeline_lines(halted)), incident_markdown(halted)):
        assert raised in shown
        assert f"The command has {copied} in place of 8: that and what was reserved for this halt" in shown


def test_after_a_gate_with_another_ceiling_what_lets_it_pass_is_only_named() -> None:
    command = "costgov run --policy p.toml --gate 20steps -- python t.py"
    halted = gate_halt(command)
    assert command_to_copy(halted) == command
    assert resume_with(halted) == "a ceiling from $10.30 on, or a goal of 770,000 steps: else its gate halts it again"
    halted = gate_halt(command, would_fit=None)
    assert resume_with(halted) == "a ceiling from $10.30 on: else its gate halts it again"
    halted = gate_halt(command, ceiling_usd_micros=None, enough_usd_micros=None)
    assert resume_with(halted) == (
        "a plan ([expected]) that allows for where it lands, or no gate: else its gate halts it again"
    ), "a plan is no option of the command"


def test_programs_find_the_raised_command_and_what_it_needs_beside_the_command_as_it_was() -> None:
    gate = "costgov run --ceiling 8 --gate 20steps -- python t.py"
    for halted in (ceiling_of_a_trainer(), gate_halt(gate)):
        document = incident_document(halted)
        assert document["resume"] == halted["resume"]
        assert document["resume_raised"] == command_to_copy(halted) != halted["resume"]
        assert document["resume_needs"] == resume_with(halted)
    for halted in (nan_halt(), gate_halt(gate.replace("8", "9"))):
        document = incident_document(halted)
        assert document["resume_raised"] is None, "nothing is to be raised, or nobody knows where"
        assert document["resume_needs"] == resume_with(halted)
    torn = ceiling_of_a_trainer()
    saved = torn["checkpoint"] | {"kind": "good", "nonfinite": "a.weight"}
    document = incident_document(torn | {"last_good": None, "checkpoint": saved})
    assert [document[name] for name in ("resume", "resume_raised", "resume_needs")] == [None] * 3


def test_the_options_that_take_no_value_are_those_of_the_command() -> None:
    flags = {
        name for option in run.params if isinstance(option, click.Option) and option.is_flag for name in option.opts
    }
    assert flags == set(FLAGS)


@pytest.mark.parametrize(
    ("framework", "resumes", "told"),
    [
        ("torch", "never", BEGINS_ANEW),
        ("torch", "called", None),
        ("torch", "loaded", None),
        ("torch", None, None),  # An older shim, or a log, does not say.
        ("hf", "never", "resume_from_checkpoint="),
        ("hf", "loaded", "resume_from_checkpoint="),  # Perhaps by a path that it has fixed.
        ("hf", None, "resume_from_checkpoint="),
        ("hf", "called", None),
    ],
)
def test_a_script_that_would_begin_anew_is_told_what_to_add(
    framework: str, resumes: str | None, told: str | None
) -> None:
    good = {"step": 40, "path": "/ck/cg_40"}
    halted = nan_halt() | {"framework": framework, "resumes": resumes, "last_good": good}
    lines = [line for line in timeline_lines(halted) if line.startswith("resume from")]
    assert len(lines) == (1 if told is not None else 0)
    if told is not None:
        assert "/ck/cg_40: " in lines[0]
        assert told in lines[0]
        assert told in incident_markdown(halted)


@pytest.mark.parametrize("name", ["torn", "fault"])  # "fault": as rows of older governors have it.
@pytest.mark.parametrize(("kind", "is_shown"), [("good", False), ("suspect", True)])
def test_the_command_is_not_shown_where_a_halt_moved_latest_to_a_torn_checkpoint(
    name: str, kind: str, is_shown: bool
) -> None:
    torn = {"path": "/ck/cg_33", "kind": kind, "verified_by": "nobody", name: "rank1.pt is missing"}
    halted = nan_halt() | {"checkpoint": torn, "last_good": None}
    assert (resume_command(halted) is not None) == is_shown
    assert ("(NOT WHOLE: rank1.pt is missing)" in incident_markdown(halted)) != is_shown
    assert "NOT known to be whole: rank1.pt is missing." in incident_markdown(halted)


def test_no_words_in_a_path_decide_what_a_checkpoint_lacks() -> None:
    torn = {"path": "/ck/NOT FINITE", "step": 40, "torn": "rank1.pt is missing"}
    lines = timeline_lines(nan_halt() | {"last_good": torn})
    assert [line for line in lines if line.startswith("resume ")] == [
        "resume        not shown: no known checkpoint is whole, and the command might take one that is not"
    ]


@pytest.mark.parametrize(
    ("resumes", "unless"),
    [
        ("called", " unless shim.resume() finds one"),
        ("never", " unless the script loads one itself"),
        ("loaded", " unless the script loads one itself"),
        (None, " unless the script loads one itself"),
    ],
)
def test_a_command_that_begins_at_step_0_says_so_in_all_views(resumes: str | None, unless: str) -> None:
    halted = nan_halt() | {"last_good": None, "resumes": resumes}
    told = f"none known: this begins at step 0{unless}"
    assert f"last good     {told}" in timeline_lines(halted)
    report = incident_markdown(halted)
    assert f"| Last good | {told} |" in report
    assert f"no good one before it is {told.removeprefix('none ')}." in report
    unsaved = incident_markdown(halted | {"checkpoint": None})
    assert f"No good checkpoint is {told.removeprefix('none ')}." in unsaved
    assert "whatever `latest` names" not in unsaved
    crashed = [line for line in resume_lines(halted) if line.startswith("last good")]
    assert crashed == ([] if resumes is None else [f"last good     {told}"])


def test_without_a_command_nothing_begins() -> None:
    halted = nan_halt() | {"last_good": None, "resumes": "called", "resume": None}
    assert "last good     none known" in timeline_lines(halted)
    assert "| Last good | none known |" in incident_markdown(halted)
    assert not [line for line in timeline_lines(nan_halt() | {"resumes": "called"}) if "none known" in line]


@pytest.mark.parametrize(
    ("resumes", "told"),
    [
        ("called", 'shim.resume("/ck/theirs/step_40") in the script: as it is called it looks in /ck/ours, where this'),
        ("loaded", "the script loads from /ck/ours, where this is not: load this one"),
        ("never", "call shim.resume() after attach("),
    ],
)
@pytest.mark.parametrize("framework", ["deepspeed", "hf"])
def test_a_last_good_one_that_the_script_does_not_look_for_is_told_with_how_to_have_it(
    resumes: str, told: str, framework: str
) -> None:
    """The command alone would begin anew, or go on from an older one."""
    good = {"step": 40, "path": "/ck/theirs/step_40", "sought_in": "/ck/ours"}
    halted = nan_halt() | {"framework": framework, "resumes": resumes, "last_good": good}
    if (framework, resumes) == ("hf", "never"):
        told = "shim.resume() in the script, or trainer.train("
    (line,) = [line for line in timeline_lines(halted) if line.startswith("resume from")]
    assert f"/ck/theirs/step_40: {told}" in line
    assert f"go on from /ck/theirs/step_40: {told}" in incident_markdown(halted)
    assert f"/ck/theirs/step_40: {told}" in "\n".join(resume_lines(halted))


@pytest.mark.parametrize("kind", ["good", "suspect"])
def test_of_a_script_that_loads_by_its_own_means_nothing_is_promised(kind: str) -> None:
    good = {"step": 40, "path": "/ck/theirs/step_40"}
    halted = nan_halt() | {"resumes": "loaded", "last_good": good, "checkpoint": {"kind": kind, "path": "/ck/cg_41"}}
    report = incident_markdown(halted)
    assert (
        "The script loads by its own means. The last good one that was seen is step 40, `/ck/theirs/step_40`." in report
    )
    assert "this resumes from" not in report
    assert "It resumes from" not in report


@pytest.mark.parametrize(
    ("saved", "at", "told"),
    [(21, 54, "33"), (54, 54, ""), (55, 54, ""), (None, 54, ""), (21, None, ""), ("21", 54, "")],
)
def test_a_checkpoint_that_is_older_than_its_verdict_says_by_how_many_steps(
    saved: object, at: object, told: str
) -> None:
    """A save that was under way became the halt's: what was trained since is in no checkpoint."""
    said = steps_behind({"step": at, "checkpoint": {"step": saved}})
    assert (told in said) if told else not said
    assert not steps_behind({"step": at, "checkpoint": None})
