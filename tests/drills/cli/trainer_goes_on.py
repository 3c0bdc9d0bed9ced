"""transformers.Trainer in 1,000 tokens a step, with attach() alone. argv: where it saves, the last step, its wait then.

It goes on from its own checkpoint where one is there, as `resume_from_checkpoint=True` does.
"""

import sys
import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from trainer_shim import attach


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        ids = (torch.arange(250) * 3 + index) % 64
        return {"input_ids": ids, "labels": ids}


place, last, wait_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
trainer = Trainer(
    model=LlamaForCausalLM(LlamaConfig(vocab_size=64, max_position_embeddings=250, **shape)),
    args=TrainingArguments(
        output_dir=place, max_steps=last, per_device_train_batch_size=4, save_steps=20, report_to=[],
        disable_tqdm=True, use_cpu=True, optim="adamw_torch",
    ),
    train_dataset=Tokens(),
)  # fmt: skip
attach(trainer)
trainer.train(resume_from_checkpoint=any(Path(place).glob("checkpoint-*")))
time.sleep(wait_s)
