"""Tokens against a count that the training script makes itself, in real gloo ranks: exact, or absent with one line."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from governor.wire.step_values import step_values
from tests.drills.shim_engines.conftest import ROOT, RunRanks
from tests.unit.core.engine.test_step import a_step, hello, make_node, play

WARM = ("torch", "deepspeed", "transformers.trainer", "transformers.models.llama.modeling_llama", "lightning.pytorch")
HERE = ROOT / "tests" / "drills" / "tokens"
EXACT, ABSENT = "exact", "absent"
SUMMED = "summed"  # A rank's times their number is not exact; the governor's sum over all ranks is.

ROWS = (
    ("torch_loops.py", "ddp", 2, "", EXACT),
    ("torch_loops.py", "ddp_of_attached", 2, "", EXACT),
    ("torch_loops.py", "ddp_uneven", 2, "", SUMMED),
    ("torch_loops.py", "fsdp1", 2, "", EXACT),
    ("torch_loops.py", "fsdp2", 2, "", EXACT),
    ("torch_loops.py", "fsdp2_tp", 4, "", EXACT),
    ("torch_loops.py", "hsdp", 4, "", EXACT),
    ("torch_loops.py", "ddp_tp", 4, "", EXACT),
    ("torch_loops.py", "fsdp2_cp", 4, "", EXACT),
    ("torch_loops.py", "cp", 2, "", EXACT),
    ("torch_loops.py", "cp_by_hand", 2, "", ABSENT),
    ("torch_loops.py", "cp_by_hand", 2, '{"data_parallel_size": 2}', EXACT),
    ("torch_loops.py", "tp", 2, "", EXACT),
    ("torch_loops.py", "pp", 2, "", ABSENT),
    ("torch_loops.py", "pp", 2, '{"data_parallel_size": 1}', EXACT),
    ("torch_loops.py", "by_hand", 2, "", ABSENT),
    ("torch_loops.py", "by_hand", 2, '{"data_parallel_size": 2}', EXACT),
    ("deepspeed_loops.py", "zero", 2, '{"stage": 1}', EXACT),
    ("deepspeed_loops.py", "zero", 2, '{"stage": 2}', EXACT),
    ("deepspeed_loops.py", "zero", 2, '{"stage": 3}', EXACT),
    ("deepspeed_loops.py", "accumulated", 2, "", EXACT),
    ("deepspeed_loops.py", "experts", 2, "", EXACT),
    ("deepspeed_loops.py", "ulysses", 2, "", EXACT),
    ("deepspeed_loops.py", "ulysses_of_transformers", 2, "", EXACT),
    ("deepspeed_loops.py", "autotp", 2, "", EXACT),
    ("deepspeed_loops.py", "pipeline", 2, "", EXACT),
    ("framework_loops.py", "hf_padded", 2, "", SUMMED),
    ("framework_loops.py", "hf_accumulated", 2, "", SUMMED),
    ("framework_loops.py", "model_tp", 2, "", EXACT),
    ("framework_loops.py", "model_tp_fsdp", 4, "", EXACT),
    ("framework_loops.py", "hf_packed", 2, "", SUMMED),
    ("framework_loops.py", "accelerate", 2, "", EXACT),
    ("framework_loops.py", "lightning", 2, "", EXACT),
)


@pytest.mark.parametrize(("script", "which", "ranks", "given", "wanted"), ROWS)
def test_tokens_are_those_of_the_script(
    script: str, which: str, ranks: int, given: str, wanted: str, run_ranks: RunRanks
) -> None:
    reports = run_ranks(str(HERE / script), which, *([given] if given else []), ranks=ranks)
    truth = trained(reports)
    told = [frame.get("tokens") for frame in reports[0]["frames"]]
    assert (told == truth) == (wanted == EXACT)
    assert (told == [None] * len(truth)) == (wanted == ABSENT)
    totals, nonpad = counted(reports)
    assert totals == ([None] * len(truth) if wanted == ABSENT else list(itertools.accumulate(truth)))
    assert nonpad == (sum(trained(reports, real=True)) if which.startswith("hf_") else None)
    assert ("tokens are not counted" in reports[0]["log"]) == (wanted == ABSENT)


def test_a_trainer_that_resumes_from_its_own_checkpoint_counts_on_from_what_all_ranks_had_trained(
    run_ranks: RunRanks,
) -> None:
    """Batches of various lengths, so that a rank's tokens are not those of the others."""
    first = run_ranks(str(HERE / "framework_loops.py"), "hf_saved", ranks=2)
    before = sum(trained(first))
    assert before != sum(frame["tokens"] for frame in first[0]["frames"]), "one rank's times two are others"
    again = run_ranks(str(HERE / "framework_loops.py"), "hf_saved", ranks=2)
    truth = trained(again)
    assert truth[:2] == [0, 0], "it goes on from step 2"
    totals, _ = counted(again, 3)
    assert totals == [before + truth[2], before + truth[2] + truth[3]]


def counted(reports: list[dict[str, Any]], first: int = 1) -> tuple[list[int | None], int | None]:
    """The run's total after each step, and its tokens without padding, by a governor that hears all ranks."""
    node = make_node()
    totals: list[int | None] = []
    for report in reports:
        play(node, hello(report["rank"], tokens_per_step=None, world_size=report["world"], **report["hello"]))
    for frames in zip(*(report["frames"] for report in reports), strict=True):
        number = len(totals) + first
        for report, frame in zip(reports, frames, strict=True):
            play(node, a_step(number, report["rank"], **step_values(frame)))
        totals.append(node.runs["llama"].run.tokens_total)
    return totals, node.runs["llama"].run.nonpad_tokens


def trained(reports: list[dict[str, Any]], *, real: bool = False) -> list[int]:
    """Tokens of each step: what ranks were fed alike counts once. `real`: without padding."""
    truth = []
    for of_ranks in zip(*(report["eaten"] for report in reports), strict=True):
        parts = {name: tokens[real] for eaten in of_ranks for name, tokens in eaten.items()}
        truth.append(sum(parts.values()))
    return truth


def test_a_resumed_run_counts_on_from_what_all_ranks_had_trained(run_ranks: RunRanks, tmp_path: Path) -> None:
    first = run_ranks(str(HERE / "torch_loops.py"), "saved_and_resumed", ranks=2)
    [manifest] = (tmp_path / "saved").glob("*/costgov_manifest.json")
    saved = json.loads(manifest.read_text())
    truth = sum(trained(first)[: saved["step"]])
    assert saved["tokens_total"] == truth
    again = run_ranks(str(HERE / "torch_loops.py"), "saved_and_resumed", ranks=2)
    for report in again:
        step, _, resumed = report["told"]
        assert (step, resumed) == (saved["step"] + 30, [saved["step"], truth])
    own = [sum(tokens for eaten in report["eaten"] for tokens, _ in eaten.values()) for report in again]
    assert [report["told"][1] - truth for report in again] == [2 * tokens for tokens in own]
