"""One rank of transformers.Trainer over DeepSpeed, told by DRILL (JSON): steps, place, stage, own_save, resumes.

`own_save` is a step that the Trainer saves unasked. With `resumes`, shim.resume() comes before a plain train().
"""

import json
import os
import time

import deepspeed
import deepspeed.ops
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # Compiling it takes half a minute; gloo needs none.
deepspeed.init_distributed(dist_backend="gloo", verbose=False)
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments  # noqa: E402

import trainer_shim  # noqa: E402

options = json.loads(os.environ["DRILL"])
torch.set_num_threads(1)
torch.manual_seed(3)


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        ids = (torch.arange(16) * 3 + index) % 128
        return {"input_ids": ids, "labels": ids}


class Pace(TrainerCallback):
    def on_step_begin(self, *_, **__):
        time.sleep(options.get("pace_s", 0.02))

    def on_step_end(self, args, state, control, **kwargs):
        control.should_save = control.should_save or state.global_step == options.get("own_save")


shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
trainer = Trainer(
    model=LlamaForCausalLM(LlamaConfig(vocab_size=128, max_position_embeddings=32, attention_dropout=0.1, **shape)),
    args=TrainingArguments(
        output_dir=os.path.join(options["place"], "output"),
        max_steps=options["steps"],
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        save_strategy="no",
        save_total_limit=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        optim="adamw_torch",
        seed=3,
        deepspeed={
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
            "steps_per_print": 10**9,
            "zero_optimization": {"stage": options["stage"]},
            "zero_allow_untested_optimizer": True,
        },
    ),
    train_dataset=Tokens(),
    callbacks=[Pace()],
)
shim = trainer_shim.attach(trainer)
if options.get("resumes"):
    shim.resume()
trainer.train()
torch.distributed.barrier()
torch.distributed.destroy_process_group()
