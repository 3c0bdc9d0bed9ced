"""Tokens against a count that the training script makes itself, in real gloo ranks: exact, or absent with one line."""

from __future__ import annotations

from typing import Any

import pytest

from tests.drills.shim_engines.conftest import ROOT, RunRanks

WARM = ("torch", "deepspeed", "transformers.trainer", "transformers.models.llama.modeling_llama", "lightning.pytorch")
HERE = ROOT / "tests" / "drills" / "tokens"
EXACT, ABSENT = "exact", "absent"

ROWS = (
    ("torch_loops.py", "ddp", 2, "", EXACT),
    ("torch_loops.py", "ddp_of_attached", 2, "", EXACT),
    ("torch_loops.py", "fsdp1", 2, "", EXACT),
    ("torch_loops.py", "fsdp2", 2, "", EXACT),
    ("torch_loops.py", "fsdp2_tp", 4, "", EXACT),
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
    ("deepspeed_loops.py", "autotp", 2, "", EXACT),
    ("deepspeed_loops.py", "pipeline", 2, "", EXACT),
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
    assert told == (truth if wanted == EXACT else [None] * len(truth))
    assert ("tokens are not counted" in reports[0]["log"]) == (wanted == ABSENT)


def trained(reports: list[dict[str, Any]]) -> list[int]:
    """Tokens of each step: what ranks were fed alike counts once."""
    truth = []
    for of_ranks in zip(*(report["eaten"] for report in reports), strict=True):
        parts = {name: tokens for eaten in of_ranks for name, (tokens, _) in eaten.items()}
        truth.append(sum(parts.values()))
    return truth
