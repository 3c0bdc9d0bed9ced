"""TRL's SFTTrainer on a small Llama and a data set of token ids: one process or DDP, as it is started."""

import torch
from common import LENGTH, VOCABULARY, arguments, break_at, read, report
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import SFTConfig, SFTTrainer

from trainer_shim import attach

BATCH = 4


class Losses(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in (logs or {}):
            report(state.global_step, logs["loss"])


told = arguments()
torch.manual_seed(3)
rows = [[(3 * at + first) % VOCABULARY for at in range(LENGTH)] for first in range(2000)]
words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(VOCABULARY)}, unk_token="w0"))
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=LENGTH,
        attention_dropout=0.1,
    )
)
break_at(model)
trainer = SFTTrainer(
    model=model,
    args=SFTConfig(
        output_dir=told.out,
        max_steps=told.steps,
        per_device_train_batch_size=BATCH,
        learning_rate=1e-3,
        warmup_steps=20,
        save_steps=10,
        save_total_limit=1,
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        seed=3,
    ),
    train_dataset=Dataset.from_dict({"input_ids": rows}),
    processing_class=PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", eos_token="w1"),
    callbacks=[Losses()],
)
trainer.train_dataset = trainer.train_dataset.with_transform(read)
shim = attach(trainer)
shim.resume()
trainer.train()
