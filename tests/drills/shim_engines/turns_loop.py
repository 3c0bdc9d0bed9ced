"""Trainings one after the other in one process, each of which ends with the function that it is local to.

argv: JSON with `kind`, `directory` and `trainings`; `ends`: how a loop of one's own says that it is over, if it does.
"""

import gc
import json
import os
import sys
import weakref

import torch
from tiny import TinyModel, Toy, init_deepspeed, write_report

told = json.loads(sys.argv[1])
if told["kind"] in ("hf", "accelerate"):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        del os.environ[name]  # Accelerate takes any of these for a launcher's promise of a rendezvous.

from trainer_shim import attach  # noqa: E402

STEPS = 4
torch.set_num_threads(1)
handles, resumed, kept = [], [], []


def batches():
    return torch.utils.data.DataLoader(Toy(4 * STEPS), batch_size=4)


def note(shim):
    """The script keeps its handle, which must keep nothing else alive."""
    handles.append(shim)
    found = shim.resume()
    resumed.append(None if found is None else found.step)


def plain(directory):
    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters())
    note(attach(model, optimizer=optimizer, checkpoint_dir=directory))
    for x, y in batches():
        model(x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def accelerate(directory):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = TinyModel()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    note(attach(accelerator, checkpoint_dir=directory))
    for x, y in batches():
        accelerator.backward(model(x, y))
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer.optimizer


def hf(directory):
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=256, max_position_embeddings=32, **shape))
    data = [{"input_ids": Toy()[index][0], "labels": Toy()[index][0]} for index in range(16)]
    arguments = TrainingArguments(
        output_dir=directory, max_steps=STEPS, per_device_train_batch_size=4, report_to=[], disable_tqdm=True,
        use_cpu=True, save_strategy="no", optim="adamw_torch",
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    note(attach(trainer))
    trainer.train()
    return model, trainer.optimizer.optimizer


def lightning(directory):
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = TinyModel()

        def training_step(self, batch, batch_idx):
            return self.model(*batch)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        max_steps=STEPS, accelerator="cpu", devices=1, default_root_dir=directory, enable_checkpointing=False, **quiet
    )
    note(attach(trainer))
    module = Module()
    trainer.fit(module, batches())
    return module, trainer.optimizers[0]


def deepspeed(directory):
    import deepspeed as library

    model = TinyModel()
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "steps_per_print": 10**9,
    }
    engine, optimizer, *_ = library.initialize(model=model, model_parameters=model.parameters(), config=config)
    note(attach(engine, checkpoint_dir=directory))
    for x, y in batches():
        engine.backward(engine(x, y))
        engine.step()
    engine.destroy()
    return model, optimizer


if told["kind"] == "deepspeed":
    init_deepspeed()
alive = []
for number in range(told["trainings"]):
    things = globals()[told["kind"]](os.path.join(told["directory"], str(number)))
    known = [weakref.ref(one) for one in things]
    if told.get("keeps"):
        kept.append(things)
    ends = told.get("ends")
    if ends is not None:
        getattr(handles[-1], ends)()
    del things
    gc.collect()
    alive.append([one() is not None for one in known])
handles[-1].close()
write_report(
    {
        "alive": alive,
        "resumed": resumed,
        "steps": [shim.step for shim in handles],
        "watching": [shim.watching for shim in handles],
        "handles": len(set(map(id, handles))),
    }
)
