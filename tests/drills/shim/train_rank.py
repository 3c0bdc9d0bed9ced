"""One rank of a tiny training that takes its settings from DRILL (JSON) and writes each step's loss to a file.

kind: zero0 | zero2 | zero3 | pipe | accelerate (its DeepSpeed plugin, ZeRO-2) | drift (no collectives at all: every
rank runs at its own speed).
Dropout and a shuffled, worker-less loader make the losses depend on generator states and on the data position.
"""

import json
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import trainer_shim

VOCAB, WIDTH, LENGTH, BATCH = 256, 32, 16, 4
options = json.loads(os.environ["DRILL"])
kind, steps, place = options["kind"], options["steps"], Path(options["place"])
rank = int(os.environ["RANK"])
torch.set_num_threads(1)


class Toy(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = (torch.arange(LENGTH + 1) * 3 + index) % VOCAB
        return ids[:-1], ids[1:]


def cross_entropy(logits, labels):
    return functional.cross_entropy(logits.float().view(-1, VOCAB), labels.reshape(-1))


def layers():
    return [nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2), nn.Linear(WIDTH, VOCAB)]


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*layers())

    def forward(self, ids, labels):
        return cross_entropy(self.layers(ids), labels)


def batches(loader):
    while True:
        yield from loader


def init_deepspeed():
    import deepspeed
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # Compiling it takes half a minute; gloo needs none.
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    torch.manual_seed(7)
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "steps_per_print": 10**9,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    }
    return deepspeed, config


def accelerated():
    """An Accelerator over DeepSpeed, and what it prepared: model, optimizer, scheduler."""
    _, config = init_deepspeed()
    from accelerate import Accelerator
    from accelerate.utils import DeepSpeedPlugin, InitProcessGroupKwargs

    del config["optimizer"]  # The script's own, and its scheduler, which DeepSpeed does not step: the usual case.
    config.update(zero_optimization={"stage": 2}, zero_allow_untested_optimizer=True)
    plugin = DeepSpeedPlugin(hf_ds_config=config)
    accelerator = Accelerator(deepspeed_plugin=plugin, kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")])
    assert accelerator.num_processes == torch.distributed.get_world_size()
    model = Tiny()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    return accelerator, *accelerator.prepare(model, optimizer, scheduler)


def deepspeed_engine():
    deepspeed, config = init_deepspeed()
    if kind == "pipe":
        from deepspeed.pipe import PipelineModule

        model = PipelineModule(layers=layers(), num_stages=2, loss_fn=cross_entropy, partition_method="uniform")
        config["gradient_accumulation_steps"] = 2
    else:
        model = Tiny()
        config["zero_optimization"] = {"stage": int(kind[-1])}
    parameters = [p for p in model.parameters() if p.requires_grad]
    return deepspeed.initialize(model=model, model_parameters=parameters, config=config)[0]


def plain_model():
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(7)
    return Tiny()


if kind == "accelerate":
    attached, engine, optimizer, scheduler = accelerated()
else:
    attached = engine = plain_model() if kind == "drift" else deepspeed_engine()
    optimizer = torch.optim.AdamW(engine.parameters(), 1e-2) if kind == "drift" else None
replicas = 1 if kind == "pipe" else torch.distributed.get_world_size()
sampler = torch.utils.data.RandomSampler(Toy())
loader = trainer_shim.wrap_loader(torch.utils.data.DataLoader(Toy(), batch_size=BATCH, sampler=sampler))
shim = trainer_shim.attach(attached, checkpoint_dir=str(place / "checkpoints"), optimizer=optimizer, total_steps=steps)
resumed = shim.resume() if options.get("resume") else None
torch.manual_seed(100 + rank) if resumed is None else None
feed = batches(loader)


def update(loss):
    """One optimizer update from this loss, as the users of each kind write it."""
    if kind == "accelerate":
        attached.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    elif kind == "drift":
        shim.loss(loss).backward()
        optimizer.step()
        optimizer.zero_grad()
    else:
        engine.backward(loss)
        engine.step()


losses = (place / f"losses.{options['name']}.{rank}").open("w", buffering=1)
if resumed is not None:
    print(f"resumed rank {rank} at {resumed.step} from {resumed.path}", flush=True)
while shim.step < steps:
    # The file is how a test steers the speed: no drill has to guess how long a step takes.
    pace = place / f"pace.{rank}"
    time.sleep(float(pace.read_text()) if pace.exists() else options.get("pace_s", 0.02))
    if kind == "pipe":
        loss = engine.train_batch(data_iter=feed)
    else:
        ids, labels = next(feed)
        loss = engine(ids, labels)
        update(loss)
    losses.write(f"{shim.step} {float(loss).hex()}\n")
shim.finish()
torch.distributed.barrier()
torch.distributed.destroy_process_group()
