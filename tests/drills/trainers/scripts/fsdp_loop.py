"""A loop of one's own under FSDP2 (fully_shard); with --version 1 under FullyShardedDataParallel.

The loss is computed outside of the model, and torch.distributed.checkpoint saves the shards.
"""

import os

import torch
from common import VOCABULARY, Sequences, arguments, break_at, report
from torch import distributed, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler

from trainer_shim import attach

told = arguments(version={"type": int, "default": 2})
BATCH = 4


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.drop = nn.Dropout(0.1)
        self.layers = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids):
        x = self.drop(self.embed(ids))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def sharded(model):
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    if told.version == 1:
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        return FullyShardedDataParallel(
            model, auto_wrap_policy=ModuleWrapPolicy({Block}), device_mesh=mesh, use_orig_params=True,
            device_id=torch.device("cpu"),
        )  # fmt: skip
    from torch.distributed.fsdp import fully_shard

    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def save(directory, tag, _client_state):
    weights, states = get_state_dict(model, optimizer)
    checkpoint.save({"model": weights, "optimizer": states}, checkpoint_id=os.path.join(directory, tag))


def load(directory, tag):
    weights, states = get_state_dict(model, optimizer)
    checkpoint.load({"model": weights, "optimizer": states}, checkpoint_id=os.path.join(directory, tag))
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states)


distributed.init_process_group("gloo")
torch.manual_seed(3)
model = Model()
break_at(model)
model = sharded(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = Sequences(BATCH)
loader = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data))
shim = attach(
    model, optimizer=optimizer, checkpoint_dir=os.path.join(told.out, "checkpoints"), save_fn=save, load_fn=load,
    total_steps=told.steps,
)  # fmt: skip
loader = shim.wrap_loader(loader)
shim.resume()

batches = iter(loader)
while shim.step < told.steps:
    ids = next(batches)
    logits = model(ids)
    loss = functional.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))
    shim.loss(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    report(shim.step, loss.item())
    if shim.step % 10 == 0:
        shim.checkpoint()
distributed.destroy_process_group()
