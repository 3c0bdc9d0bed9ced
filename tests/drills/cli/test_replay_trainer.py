"""What Hugging Face's Trainer writes by itself, its checkpoints and TensorBoard's files, as logs of a replay."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.drills.components import needs
from tests.unit.replayed import rows, run

needs("transformers")

STEPS, BROKEN = 15, 12
TRAINING = f"""
import sys
import torch
from transformers import Trainer, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)
        self.calls = 0

    def forward(self, x, labels=None):
        self.calls += 1
        loss = ((self.linear(x) - labels) ** 2).mean()
        return {{"loss": loss * float("nan") if self.calls == {BROKEN} else loss}}

rows = [{{"x": torch.ones(4), "labels": torch.ones(1)}} for _ in range(40)]
arguments = TrainingArguments(
    output_dir=sys.argv[1], max_steps={STEPS}, per_device_train_batch_size=2, save_steps=5, logging_steps=1,
    logging_nan_inf_filter=False, report_to=["tensorboard"], use_cpu=True, disable_tqdm=True,
)
Trainer(model=Model(), args=arguments, train_dataset=rows).train()
"""


def test_both_of_its_logs_tell_the_step_that_broke_and_old_checkpoints_tell_it_not_again(tmp_path: Path) -> None:
    training = subprocess.run(
        [sys.executable, "-c", TRAINING, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert training.returncode == 0, training.stderr
    assert len([*tmp_path.glob("checkpoint-*/trainer_state.json")]) == 3
    result = run(tmp_path, "--json")
    (untimed,) = result.stderr.splitlines()
    assert result.exit_code == 0
    assert untimed.startswith(f"costgov: {tmp_path}/checkpoint-{STEPS}/trainer_state.json: ")
    state, first, events, second = sorted(rows(result), key=lambda row: (row["log"], "records" in row))
    assert state["log"] == str(tmp_path / f"checkpoint-{STEPS}" / "trainer_state.json")
    assert Path(events["log"]).parent == tmp_path / "runs"
    assert [row["step"] for row in (state, events)] == [BROKEN, BROKEN]
    assert [row["t"] is None for row in (state, events)] == [True, False]
    assert [row["records"] for row in (first, second)] == [STEPS, STEPS]
