"""Hugging Face Trainer. Two lines are costgov's: attach() and resume()."""

import torch
from tiny import LENGTH, NAN_AT, STEPS, VOCABULARY, Sequences, break_at
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from trainer_shim import attach


def collate(sequences: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    ids = torch.stack(sequences)
    return {"input_ids": ids, "labels": ids}


model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
    )
)
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="checkpoints/trainer",
        max_steps=STEPS,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        save_steps=50,
        logging_steps=50,
        report_to=[],
        disable_tqdm=True,
    ),
    train_dataset=Sequences(),
    data_collator=collate,
)
shim = attach(trainer)
shim.resume()  # The next train() continues from the newest good checkpoint. None at the first launch.
print("begins at step", shim.step)
break_at(NAN_AT, model, done=shim.step)  # To see a halt.
trainer.train()
