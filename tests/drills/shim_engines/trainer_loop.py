"""transformers.Trainer on a tiny Llama-shaped model. Options as JSON: deepspeed, attached, save_at, evaluate."""

import json
import os
import sys

import torch
from tiny import KeptWatch, init_deepspeed, write_report

options = {"deepspeed": False, "attached": True, "gas": 2, "steps": 6}
options.update(json.loads(sys.argv[1]))
if options["deepspeed"]:
    init_deepspeed()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")  # Asked for, never used: the group exists.
else:
    # Accelerate takes any of these for a launcher's promise of a rendezvous.
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        del os.environ[name]
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments  # noqa: E402

from trainer_shim import attach  # noqa: E402


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = (torch.arange(16) * 3 + index) % 128
        return {"input_ids": ids, "labels": ids}


torch.manual_seed(3)
torch.set_num_threads(1)
shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=128, max_position_embeddings=32, **shape))
extra = {}
if options["deepspeed"]:
    extra["deepspeed"] = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": 1.0,
        "steps_per_print": 10**9,
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
    }
if options.get("evaluate"):
    extra.update(eval_strategy="steps", eval_steps=3)
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir=options["output_dir"],
        max_steps=options["steps"],
        per_device_train_batch_size=4,
        gradient_accumulation_steps=options["gas"],
        learning_rate=1e-2,
        save_strategy="no",
        report_to=[],
        logging_steps=1,
        disable_tqdm=True,
        use_cpu=True,
        optim="adamw_torch",
        seed=3,
        **extra,
    ),
    train_dataset=Tokens(),
    eval_dataset=Tokens() if options.get("evaluate") else None,
)
kept = []


def make_watch(*args, **kwargs):
    kept.append(KeptWatch(*args, **kwargs))
    kept[0].save_at = options.get("save_at")
    return kept[0]


if options["attached"]:
    shim = attach(trainer, make_watch=make_watch)
trainer.train(resume_from_checkpoint=options.get("resume"))
report = kept[0].report() if options["attached"] else {}
report["logged"] = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
report["weights"] = [float(p.detach().double().sum()) for p in trainer.model.parameters()]
write_report(report)
