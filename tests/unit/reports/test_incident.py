"""What a report promises whatever happened: bounds, honesty, and no way into the reader's terminal."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from governor.cli.status_table import render_status
from governor.core.base.units import MonoNs
from governor.core.events.inputs import TrainerExited
from governor.core.halt.state import GivenUp
from governor.core.runs.last_good import PENDING
from governor.core.views.status import run_status
from governor.reports.incident import (
    incident_document,
    incident_json,
    incident_markdown,
    live_line,
    summary,
    timeline_lines,
)
from governor.reports.terminal import LINES_MAX, LIVE_COLUMNS_MAX, closing_line
from governor.text.moments import moments, since_text, size_text
from governor.text.screen import Screen
from tests.golden.report_cases import CASES, MS, OPENED_MONO, S, entry, hang_deaf, nan_halt, operator_halt_torn
from tests.paths import ROOT
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import make_node

RUN = {
    "run": "run7", "state": "training", "step": 41, "total_steps": 200, "loss": 3.21034, "tokens_per_s": 51_234.4,
    "spend_usd": 0.0123, "spend_rate_usd_per_hour": 22.0, "usd_per_mtok": 0.1194, "hold": None, "halt": None,
    "usd_per_mtok_all_in": 0.1194, "usd_per_mtok_useful": 0.1194,
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_timeline_is_bounded_and_printable(case: str) -> None:
    lines = timeline_lines(CASES[case]())
    assert len(lines) <= LINES_MAX
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("given_up", GivenUp)
def test_an_end_that_was_not_seen_has_words_of_its_own_kind(given_up: GivenUp) -> None:
    """Of a halt whose processes another container has, the machine was said to have gone down."""
    told = summary(nan_halt() | {"halt_stage": given_up.value})
    others = [summary(nan_halt() | {"halt_stage": other.value}) for other in GivenUp if other is not given_up]
    assert told not in [summary(nan_halt()), *others]


@pytest.mark.parametrize(
    ("left", "told"), [({"below_missed": 64}, "64 more process(es)"), ({"below_never_looked": True}, "had looked")]
)
def test_processes_that_were_not_noted_before_a_restart_are_not_said_to_have_ended(
    left: dict[str, Any], told: str
) -> None:
    """In no line of any report. What one governor has seen from its begin to its end it has seen all of."""
    closes = [entry(9 * S, "exited"), entry(9 * S, GivenUp.LEFT_UNNOTED.value)]
    goes_on = entry(5 * S, "restored", stage="TERMED")
    halt = operator_halt_torn() | {"launch": left, "halt_stage": GivenUp.LEFT_UNNOTED.value}
    before = [one for one in halt["timeline"] if one["what"] not in ("exited", "halted")]
    doubt = {"in_doubt": True}
    for timeline, said in (([*before, goes_on, *closes], doubt), ([*before, *closes[:1]], dict[str, Any]())):
        shown, is_in_doubt = halt | {"timeline": timeline} | said, bool(said)
        texts = (incident_markdown(shown), "\n".join(timeline_lines(shown)))
        assert all((told in text) == is_in_doubt for text in texts), texts
        assert all(("no process of the run is left" in text) != is_in_doubt for text in texts), texts
        assert ("those of its processes that were noted were gone" in summary(shown)) == is_in_doubt
        assert not any("the halt is complete" in text for text in texts)


def noted() -> Iterator[str]:
    """Every kind of entry that the core writes into a timeline, from its source."""
    for path in sorted((ROOT / "governor" / "core").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if ".note(" not in text:
            continue
        for function in ast.walk(ast.parse(text)):
            if not isinstance(function, ast.FunctionDef):
                continue
            calls = [node for node in ast.walk(function) if isinstance(node, ast.Call) and len(node.args) > 2]
            kinds = [
                call.args[2] for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "note"
            ]
            named = {kind.id for kind in kinds if isinstance(kind, ast.Name)}
            for node in ast.walk(function):
                if isinstance(node, ast.Assign) and {ast.unparse(target) for target in node.targets} & named:
                    kinds.append(node.value)
            branches = [[kind.body, kind.orelse] if isinstance(kind, ast.IfExp) else [kind] for kind in kinds]
            for branch in [part for parts in branches for part in parts]:
                if isinstance(branch, ast.Constant):
                    yield str(branch.value)


def test_every_kind_of_entry_has_words_of_its_own() -> None:
    kinds = set(noted())
    assert {"verdict", "ranks_exited", "exited", "nobody_named", "verified"} <= kinds, "the search finds what is there"
    told = moments(nan_halt() | {"timeline": [entry(0, kind) for kind in sorted(kinds)]})
    assert [moment.label for moment in told if "_" in moment.label] == []
    assert [moment.what for moment in told if not moment.text and moment.what not in ("received", "saving")] == []


def test_a_long_quarrel_keeps_its_beginning_and_its_end() -> None:
    lines = timeline_lines(operator_halt_torn())
    assert "verdict" in lines[1]
    assert any("more in the incident report" in line for line in lines)
    assert any("VERIFIED" in line for line in lines)


def test_paths_and_commands_are_never_cut() -> None:
    command = "deepspeed train.py " + "--flag " * 40
    assert any(line.endswith(command.strip()) for line in timeline_lines(nan_halt() | {"resume": command.strip()}))


def test_times_count_from_the_fault_when_it_is_known() -> None:
    since = [moment.since_ns for moment in moments(nan_halt(), OPENED_MONO - 12 * MS)]
    assert since[0] == 12 * MS
    assert since == sorted(since)


def test_ranks_are_told_together_at_the_last_ones_time() -> None:
    (received,) = [moment for moment in moments(nan_halt()) if moment.what == "received"]
    assert (received.since_ns, received.text) == (4 * MS, "ranks 0, 1")


def test_a_proven_halt_leaves_nothing_unobserved() -> None:
    assert incident_document(nan_halt())["not_observed"] == []


def without(what: str) -> dict[str, Any]:
    case = nan_halt()
    return case | {"timeline": [told for told in case["timeline"] if told["what"] != what]}


def failed_save() -> dict[str, Any]:
    case = without("saved") | {"checkpoint": None}
    return case | {"timeline": [*case["timeline"], entry(2 * S, "save_failed", rank=0, reason="no space left")]}


@pytest.mark.parametrize(
    ("snapshot", "expected"),
    [
        (without("verified"), 'The provider never confirmed that billing ended (last: read back: provider says "stopp'),
        (without("exited"), "The end of the run's processes was not observed, but the machine's was."),
        (nan_halt() | {"undurable": True}, "Some records were not on disk when they were acted upon"),
        (
            nan_halt() | {"spend_rate_usd_micros_per_hour": None, "spend_usd_micros": 0},
            "The price of this machine is unknown, so what was",
        ),
        (nan_halt() | {"checkpoint": None}, "No checkpoint: the trainer received it but saved nothing in time."),
        (failed_save(), "No checkpoint: the trainer could not save one (see the timeline)."),
        (nan_halt() | {"checkpoint": None, "kind": "none"}, "No checkpoint: none was asked for."),
        (hang_deaf(), "No checkpoint: the trainer never acknowledged the request."),
        (hang_deaf(), "No machine was stopped, by plan: it stays billed until somebody stops it."),
        (hang_deaf(), "Not connected at the verdict, so their position is old: rank 0."),
        (
            nan_halt() | {"closed_wall_ns": None, "halt_stage": "VERIFYING"},
            "The halt is not finished: stage VERIFYING.",
        ),
    ],
)
def test_what_nobody_saw_is_said(snapshot: dict[str, Any], expected: str) -> None:
    assert any(line.startswith(expected) for line in incident_document(snapshot)["not_observed"])
    assert expected.split(" (")[0] in incident_markdown(snapshot)


def test_an_unverified_stop_never_reads_as_the_end_of_billing() -> None:
    report = incident_markdown(without("verified"))
    assert "the end of billing is NOT confirmed" in report
    assert "the machine itself, as far as anyone has observed" in report


def test_resume_promises_no_checkpoint_that_nobody_knows() -> None:
    assert "no good one before it is known" in incident_markdown(nan_halt() | {"last_good": None})
    assert "this resumes from the last good one" in incident_markdown(nan_halt())


def test_the_json_is_strict_and_keeps_every_word_of_the_snapshot() -> None:
    document = json.loads(incident_json(nan_halt()), parse_constant=lambda word: pytest.fail(f"bare {word}"))
    assert (document["loss"], document["evidence"]["loss"]) == ("nan", "nan")
    assert set(nan_halt()) <= set(document)
    assert document["spend_usd"] == pytest.approx(1.234567)


def test_a_hostile_reason_stays_text() -> None:
    report = incident_markdown(operator_halt_torn())
    assert "\x1b" not in report
    rows = [line.replace("\\|", "") for line in report.splitlines() if line.startswith("| 0.0")]
    assert [line.count("|") for line in rows] == [4] * len(rows)


HOSTILE = "\x1b]0;x\x07\n```\n# h\r\u2028\x9b2J`````"
# Texts that are the governor's own words or numbers, of which the report's shape depends.
OWN_WORDS = frozenset({"what", "halt_stage", "stop", "kind", "verified_by", "run", "stage", "clock", "boot_id", "name"})


def hostile(value: Any, key: str = "") -> Any:
    """The snapshot with every text of a trainer or a user, wherever it is, turned into an attack."""
    if isinstance(value, dict):
        return {name: hostile(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [hostile(one, key) for one in value]
    return HOSTILE if isinstance(value, str) and key not in OWN_WORDS else value


@pytest.mark.parametrize("case", CASES)
def test_no_text_of_a_snapshot_steers_a_terminal_or_leaves_its_block(case: str) -> None:
    snapshot = CASES[case]()
    text = incident_markdown(hostile(snapshot))
    assert all(char.isprintable() or char == "\n" for char in text)
    headings = [line for line in incident_markdown(snapshot).splitlines() if line.startswith("#")]
    headings = [line for line in headings if "Failure mode: " not in line or "halt-not-finished" in line]  # By trigger.
    assert [line for line in text.splitlines() if line.startswith("#")][1:] == headings[1:]
    fence = ""
    for line in text.splitlines():
        ticks = line[: len(line) - len(line.lstrip(" `"))].strip()
        if fence:
            fence = "" if line == fence else fence
        elif len(ticks) >= 3:  # Elsewhere in a line they begin no block.
            assert line.strip("`") in ("", "json"), "only ours opens a block"
            fence = ticks
    assert not fence
    assert json.loads(incident_json(hostile(snapshot)))
    assert incident_json(hostile(snapshot)).isascii()


def test_an_entry_of_a_newer_governor_is_still_told() -> None:
    snapshot = nan_halt()
    snapshot["timeline"].append(entry(8 * S, "danced", floor="2nd"))
    assert moments(snapshot)[-1].text == "floor 2nd"


def test_the_live_line_is_one_bounded_line() -> None:
    assert live_line(RUN) == "training    step 41/200   loss 3.2103  51,234 tok/s  $0.0123  $0.119400/1M now"
    halting = RUN | {"halt": {"stage": "SAVING", "incident_id": "i", "reason": "loss_nan " * 20}}
    assert len(live_line(halting)) <= LIVE_COLUMNS_MAX


def test_a_narrow_live_line_leaves_out_what_matters_least() -> None:
    halting = RUN | {"halt": {"stage": "SAVING", "incident_id": "i", "reason": "loss_nan"}}
    whole = live_line(halting)
    assert whole.endswith("51,234 tok/s  $0.0123  $0.119400/1M now  SAVING: loss_nan")
    assert live_line(halting, 79) == whole.replace("  $0.119400/1M now", "")
    assert live_line(halting, 60) == "training    step 41/200   $0.0123  SAVING: loss_nan"
    assert [len(live_line(halting, columns)) <= columns for columns in (20, 40, 60, 79)] == [True] * 4


def test_a_line_of_a_file_is_not_cut_before_what_is_not_finite() -> None:
    harm = entry(2 * S, "checkpoint_read", whole=True, files=7, hashed=7, reason="", nonfinite="model.safetensors: lm")
    lines = timeline_lines(nan_halt() | {"timeline": [*without("checkpoint_read")["timeline"], harm]})
    [told] = [line for line in lines if "checked" in line]
    assert "checked    NOT FINITE: model.safetensors: lm; all 7 files are there in full size" in told


def test_a_look_that_goes_on_is_no_doubt_of_the_checkpoint() -> None:
    """Its end is the next line of the same label on the terminal of `costgov run`."""
    good = {"step": 20, "path": "/ck/20", "unseen": PENDING}
    [line] = [line for line in timeline_lines(nan_halt() | {"last_good": good}) if line.startswith("last good")]
    assert line == "last good     step 20: /ck/20 (it is still being looked at)"


def test_on_a_terminal_a_moment_goes_on_below_its_text_and_a_command_stays_whole() -> None:
    snapshot = nan_halt() | {"resume": "costgov run -- " + "x" * 100}
    lines = timeline_lines(snapshot, screen=Screen(60, False))
    assert not [line for line in lines if len(line) > 60 and not line.startswith(("checkpoint", "last good", "resume"))]
    assert "resume        costgov run -- " + "x" * 100 in lines
    joined = "".join("".join(lines).split())
    assert all("".join(moment.text.split()) in joined for moment in moments(snapshot))


@pytest.mark.parametrize(("loss", "shown"), [(math.nan, "NaN"), ("nan", "NaN"), ("-inf", "-Inf"), (math.inf, "Inf")])
def test_a_nonfinite_loss_is_shown_as_such(loss: object, shown: str) -> None:
    assert f"loss {shown} " in live_line(RUN | {"loss": loss})


def test_the_live_line_tells_absent_from_zero() -> None:
    line = live_line({"state": "starting", "spend_usd": 0.0})
    assert line == "starting    step -        loss -  - tok/s  $ - (no price)  $ -/1M now"


def test_the_live_line_shows_no_speed_of_a_run_that_makes_no_step_and_names_what_it_cannot_judge() -> None:
    frozen = live_line(RUN | {"tokens_per_s": None, "stepless_s": 244.2, "loss_unseen_steps": 41})
    told = "training    step 41/200   loss 3.2103  no step for 4m 4s  $0.0123  $0.119400/1M now  NO LOSS SEEN"
    assert frozen == told


def test_what_a_run_spent_before_the_governor_started_is_known_in_every_view() -> None:
    world = World(make_node(cloud="none"))
    world.tick()
    world.hear()
    world.at(3600)
    world.play(TrainerExited(MonoNs(world.mono), "llama", 0))
    world.restart()
    world.at(3610)
    ended = run_status(world.node.runs["llama"], MonoNs(world.mono))
    governor = {"node": "n", "mode": "enforce", "policies": [], "alerts": {}, "cloud": {}}
    assert "$98.32" in render_status({"governor": governor, "runs": [ended]}, Screen(100, False))
    assert "$98.32" in live_line(ended)
    assert "spent $98.32" in closing_line(ended, "ended")


def test_quantities_read_well() -> None:
    assert [since_text(ns) for ns in (400_000, 12 * MS, 7_410 * MS, 71 * S, -2 * MS)] == [
        "0.4 ms", "12 ms", "7.41 s", "1m 11s", "-2.0 ms"
    ]  # fmt: skip
    assert [size_text(n) for n in (12, 2_500, 12_345_678)] == ["12 B", "2.5 kB", "12.3 MB"]


def test_a_run_closes_with_what_it_came_to() -> None:
    ended = RUN | {"tokens_total": 1_679_360, "last_good": {"step": 40, "path": "/ckpt/step40"}}
    assert closing_line(ended, "ended with exit code 0") == (
        "run7: ended with exit code 0; step 41/200; 1,679,360 tokens; spent $0.0123; $0.119400/1M tokens all-in; "
        "last checkpoint: step 40, /ckpt/step40"
    )
    behind = closing_line(ended | {"tokens_at": 1_000_000, "tokens_wasted": 41_984}, "ended")
    assert "; 1,679,360 tokens (and 41,984 trained again), last at 1,000,000; " in behind
    bare = RUN | {
        "step": None,
        "usd_per_mtok": None,
        "usd_per_mtok_all_in": None,
        "spend_rate_usd_per_hour": None,
        "spend_usd": 0.0,
    }
    assert closing_line(bare, "halted") == "run7: halted; no step was seen; spent $ - (no price); no checkpoint seen"


HARM = "model.safetensors: lm_head"
OLD = {"step": 20, "path": "/ck/checkpoint-20"}
HARMED = {"step": 30, "path": "/ck/checkpoint-30", "nonfinite": HARM}


@pytest.mark.parametrize("framework", ["hf", "deepspeed"])
def test_who_resumes_is_told_which_is_finite_and_which_is_not(framework: str) -> None:
    halted = nan_halt() | {"framework": framework, "last_good": OLD | {"passed_over": [HARMED]}}
    report, lines = incident_markdown(halted), "\n".join(timeline_lines(halted))
    for text in (report, lines):
        assert f"/ck/checkpoint-20; passed over: step 30, /ck/checkpoint-30 (NOT FINITE: {HARM})" in text
        assert 'resume_from_checkpoint="/ck/checkpoint-30' not in text
    assert incident_document(halted)["resume"] == halted["resume"]
    assert "not /ck/checkpoint-30 (NOT FINITE" in report, "a script that takes the newest shall be told"


@pytest.mark.parametrize("framework", ["hf", "deepspeed"])
@pytest.mark.parametrize(
    "last_good",
    [
        HARMED,
        HARMED | {"passed_over": [OLD | {"nonfinite": HARM}]},
        OLD | {"gone": "is no longer there", "passed_over": [HARMED]},
    ],
)
def test_where_nothing_finite_is_left_no_command_is_shown(framework: str, last_good: dict[str, Any]) -> None:
    halted = nan_halt() | {"framework": framework, "last_good": last_good}
    report, lines = incident_markdown(halted), "\n".join(timeline_lines(halted))
    for text in (report, lines):
        assert "NONE IS LEFT; step " in text
        assert str(halted["resume"]) not in text
        assert "resume_from_checkpoint" not in text
    assert "Nothing is known to resume from: /ck/checkpoint-30 (NOT FINITE: model.safetensors: lm_head)" in report
    assert incident_document(halted)["resume"] is None


TORN = {"step": 30, "path": "/ck/checkpoint-30", "torn": "model.safetensors is empty"}


@pytest.mark.parametrize("framework", ["hf", "deepspeed"])
def test_a_script_that_takes_the_newest_is_told_that_it_is_not_whole(framework: str) -> None:
    halted = nan_halt() | {"framework": framework, "last_good": OLD | {"passed_over": [TORN]}}
    assert "not /ck/checkpoint-30 (NOT WHOLE: model.safetensors is empty)" in incident_markdown(halted)
    halted = nan_halt() | {"framework": framework, "last_good": TORN, "checkpoint": None}
    assert incident_document(halted)["resume"] is None
    assert any("not shown: no known checkpoint is whole" in line for line in timeline_lines(halted))


def test_a_halts_own_checkpoint_that_is_not_finite_and_has_none_before_it_is_not_resumed_from() -> None:
    checkpoint = {**nan_halt()["checkpoint"], "kind": "suspect", "nonfinite": HARM}
    halted = nan_halt() | {"checkpoint": checkpoint, "last_good": None}
    assert incident_document(halted)["resume"] is None
    assert str(halted["resume"]) not in incident_markdown(halted)


def test_what_was_not_looked_into_is_not_called_finite() -> None:
    halted = nan_halt() | {"last_good": OLD | {"unsampled": "most of its bytes: model.npz"}}
    assert "/ck/checkpoint-20 (its weights were not looked into: most of its bytes" in incident_markdown(halted)
    assert any(line.startswith("The weights of the last good") for line in incident_document(halted)["not_observed"])
