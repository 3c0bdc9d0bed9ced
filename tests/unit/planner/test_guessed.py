"""How the doubt of a guessed column is measured: only rows that state it speak, and no source speaks for all."""

import pytest

from benchmarks.planner.guessed import doubt, without
from governor.planner.model.predict import Z80

ROW = {
    "model": "Llama3-8B", "gpu": "H100-SXM-80GB", "gpus": "8", "seq_len": "8192", "micro_bs": "1", "zero_stage": "3",
    "act_ckpt": "none", "framework": "DeepSpeed", "precision": "fp8", "grad_accum": "1",
}  # fmt: skip


def test_only_a_stated_column_can_be_left_out() -> None:
    assert without(ROW, "precision") == pytest.approx(-0.2, abs=0.2)  # guessed as bf16: slower
    assert without(ROW | {"precision": ""}, "precision") is None
    assert without(ROW | {"act_ckpt": ""}, "act_ckpt") is None


def test_four_of_five_errors_lie_within_the_interval_of_the_doubt() -> None:
    assert doubt([("a", error) for error in (0.1, -0.2, 0.3, -0.4, 5.0)]) == pytest.approx(0.4 / Z80)
    crowd = [("many", 0.1)] * 100 + [("few", 1.0)] * 25
    assert doubt(crowd) == pytest.approx(1.0 / Z80)
