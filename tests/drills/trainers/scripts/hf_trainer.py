"""transformers.Trainer on a small Llama: one process, DDP or ZeRO, as it is started. It keeps one checkpoint."""

import torch
from common import LENGTH, VOCABULARY, Sequences, arguments, break_at, report

told = arguments(zero={"type": int, "default": 0})
if told.zero:
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # Compiling it takes half a minute.
    deepspeed.init_distributed("gloo", verbose=False)
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments  # noqa: E402

from trainer_shim import attach  # noqa: E402

BATCH = 4


class Losses(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in (logs or {}):
            report(state.global_step, logs["loss"])


def collate(sequences):
    ids = torch.stack(sequences)
    return {"input_ids": ids, "labels": ids}


ZERO = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "steps_per_print": 10**9,
    "zero_optimization": {"stage": told.zero},
    "zero_allow_untested_optimizer": True,
}
torch.manual_seed(3)
arguments_of_trainer = TrainingArguments(
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
    seed=3,
    deepspeed=ZERO if told.zero else None,
)
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
trainer = Trainer(
    model=model,
    args=arguments_of_trainer,
    train_dataset=Sequences(BATCH),
    data_collator=collate,
    callbacks=[Losses()],
)
shim = attach(trainer)
shim.resume()
trainer.train()
