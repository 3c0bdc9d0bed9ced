"""Hugging Face Trainer: accumulation, evaluations, one checkpoint kept. Two lines are costgov's.

costgov run --ceiling 300 --price 22 -- python examples/trainers/hf_trainer.py
"""

import os

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

from trainer_shim import attach

STEPS = int(os.environ.get("STEPS", "60"))
VOCABULARY, LENGTH, BATCH, ACCUMULATION = 128, 32, 4, 2


class Sequences(Dataset):
    """Counting in steps of three."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = (torch.arange(LENGTH) * 3 + index) % VOCABULARY
        return {"input_ids": ids, "labels": ids}


set_seed(3)
trainer = Trainer(
    model=LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=LENGTH,
        )
    ),
    args=TrainingArguments(
        output_dir="checkpoints/hf",
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATION,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        warmup_steps=5,
        eval_strategy="steps",
        eval_steps=20,
        save_steps=20,
        save_total_limit=1,
        logging_steps=10,
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    ),
    train_dataset=Sequences(20_000),
    eval_dataset=Sequences(64),
)
shim = attach(trainer)
shim.resume()  # The next train() goes on from the newest good checkpoint. None at the first launch.
trainer.train()
