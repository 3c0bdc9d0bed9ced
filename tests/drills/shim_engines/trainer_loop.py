"""transformers.Trainer on a tiny Llama-shaped model. Options as JSON: deepspeed, attached, save_at, evaluate.

With `watched` the shim's own watch is used; `own_save` is a step that the Trainer saves unasked, `stop` a file at whose
appearance training ends, `resume` a path or "shim", `then` a checkpoint to continue from afterwards for five steps.
`holds` is a directory: step N + 1 begins when `step-N` is in it, and the evaluation of step N ends with `evaluated-N`,
where these are in `at`. `args` are further training arguments, `best` has the metric of what is evaluated by step
(training stops behind the first that is worse), and with `notes` a callback's on_save adds a file to the checkpoint.
"""

import json
import os
import sys
import time

import torch
from tiny import KeptWatch, init_deepspeed, note_fetch, write_report

options = {"deepspeed": False, "attached": True, "gas": 2, "steps": 6}
options.update(json.loads(sys.argv[1]))
if options["deepspeed"]:
    init_deepspeed()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")  # Asked for, never used: the group exists.
elif "port" in options:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(options["port"]))
else:
    # Accelerate takes any of these for a launcher's promise of a rendezvous.
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        del os.environ[name]
from transformers import (  # noqa: E402
    EarlyStoppingCallback,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_utils import get_last_checkpoint  # noqa: E402

from trainer_shim import attach  # noqa: E402


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        note_fetch()
        ids = (torch.arange(16) * 3 + index) % 128
        return {"input_ids": ids, "labels": ids}


def wait_for(what, step):
    while f"{what}-{step}" in options.get("at", ()) and not os.path.exists(f"{options['holds']}/{what}-{step}"):
        time.sleep(0.02)


class Orders(TrainerCallback):
    """A user's own: saves once, listens to saves, and ends training when told."""

    def __init__(self):
        self.saved = []

    def on_step_begin(self, args, state, control, **kwargs):
        wait_for("step", state.global_step)

    def on_prediction_step(self, args, state, control, **kwargs):
        wait_for("evaluated", state.global_step)

    def on_step_end(self, args, state, control, **kwargs):
        control.should_save = control.should_save or state.global_step == options.get("own_save")
        stop = torch.tensor([float("stop" in options and os.path.exists(options["stop"]))])
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(stop)
        control.should_training_stop = control.should_training_stop or bool(stop)

    def on_save(self, args, state, control, **kwargs):
        self.saved.append(state.global_step)
        if options.get("notes"):
            with open(f"{args.output_dir}/checkpoint-{state.global_step}/noted", "x") as stream:
                stream.write("a callback's")


class Judged(Trainer):
    def _determine_best_metric(self, metrics, trial):
        best = options.get("best", {}).get(str(self.state.global_step))
        return super()._determine_best_metric(metrics if best is None else {**metrics, "eval_loss": best}, trial)


torch.manual_seed(3)
torch.set_num_threads(1)
shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
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
if options.get("watched"):
    extra.update(save_total_limit=1, save_only_model="port" not in options, lr_scheduler_type="constant")
    shape["attention_dropout"] = 0.1
if options.get("evaluate"):
    extra.update(eval_strategy="steps", eval_steps=options.get("eval_steps", 3))
extra = {"save_strategy": "no", **extra, **options.get("args", {})}
model = LlamaForCausalLM(LlamaConfig(vocab_size=128, max_position_embeddings=32, **shape))
orders = Orders()
trainer = Judged(
    model=model,
    args=TrainingArguments(
        output_dir=options["output_dir"],
        max_steps=options["steps"],
        per_device_train_batch_size=4,
        gradient_accumulation_steps=options["gas"],
        learning_rate=1e-2,
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
    callbacks=[orders, *([EarlyStoppingCallback(1)] if "best" in options else [])],
)
kept = []


def make_watch(*args, **kwargs):
    kept.append(KeptWatch(*args, **kwargs))
    kept[0].save_at = options.get("save_at")
    return kept[0]


shim = attach(trainer, make_watch=None if options.get("watched") else make_watch) if options["attached"] else None
if options.get("resume") == "shim":
    resumed = shim.resume()
    trainer.train()
else:
    resumed = None
    trainer.train(resume_from_checkpoint=options.get("resume"))
report = kept[0].report() if kept else {}
report["logged"] = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
report["evaluated"] = [entry["step"] for entry in trainer.state.log_history if "eval_loss" in entry]
report["weights"] = [float(p.detach().double().sum()) for p in trainer.model.parameters()]
report["on_save"] = orders.saved
report["best"] = trainer.state.best_model_checkpoint
report["resumed"] = resumed and [resumed.step, resumed.path]
report["last"] = get_last_checkpoint(options["output_dir"]) if os.path.isdir(options["output_dir"]) else None
if options.get("then"):
    trainer.args.max_steps = int(options["then"].rsplit("-", 1)[1]) + 5
    trainer.train(resume_from_checkpoint=options["then"])
if options.get("watched"):
    shim.close()
write_report(report)
