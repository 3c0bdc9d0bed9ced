"""TRL's SFTTrainer on a small Llama, from token ids: nothing is downloaded. Two lines are costgov's.

costgov run --ceiling 300 --price 22 -- python examples/trainers/trl_sft.py
"""

import os

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from trainer_shim import attach

STEPS = int(os.environ.get("STEPS", "60"))
VOCABULARY, LENGTH, BATCH = 128, 32, 8

words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(VOCABULARY)}, unk_token="w0"))
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
trainer = SFTTrainer(
    model=model,
    args=SFTConfig(
        output_dir="checkpoints/trl",
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        learning_rate=1e-3,
        save_steps=20,
        logging_steps=20,
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        bf16=torch.cuda.is_available(),
    ),
    train_dataset=Dataset.from_dict(
        {"input_ids": [[(3 * at + first) % VOCABULARY for at in range(LENGTH)] for first in range(2000)]}
    ),
    processing_class=PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", eos_token="w1"),
)
shim = attach(trainer)
shim.resume()  # The next train() goes on from the newest good checkpoint. None at the first launch.
trainer.train()
