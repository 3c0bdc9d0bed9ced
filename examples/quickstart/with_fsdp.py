"""A plain PyTorch loop under FSDP2. Only the loop knows how its shards are saved: two functions say it."""

import os

import torch
from tiny import NAN_AT, STEPS, Sequences, TinyModel, break_at, loss_of
from torch import distributed
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler

from trainer_shim import attach


def save(directory, tag, _client_state):
    weights, states = get_state_dict(model, optimizer)
    checkpoint.save({"model": weights, "optimizer": states}, checkpoint_id=os.path.join(directory, tag))


def load(directory, tag):
    weights, states = get_state_dict(model, optimizer)
    checkpoint.load({"model": weights, "optimizer": states}, checkpoint_id=os.path.join(directory, tag))
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states)


kind = "cuda" if torch.cuda.is_available() else "cpu"
if kind == "cuda":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
distributed.init_process_group("nccl" if kind == "cuda" else "gloo")
model = TinyModel().to(kind)
fully_shard(model, mesh=init_device_mesh(kind, (distributed.get_world_size(),)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = Sequences()
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
shim = attach(
    model, optimizer=optimizer, checkpoint_dir="checkpoints/fsdp", save_fn=save, load_fn=load, total_steps=STEPS
)
shim.resume()  # Weights, optimizer, generators, step: of the newest good checkpoint. None at the first launch.
print("begins at step", shim.step)
break_at(NAN_AT, model, done=shim.step)  # To see a halt.

batches = iter(loader)
while shim.step < STEPS:
    ids = next(batches).to(kind)
    loss = loss_of(model(ids), ids)
    shim.loss(loss).backward()  # Leave shim.loss() out where the model returns the loss itself.
    optimizer.step()
    optimizer.zero_grad()
    if shim.step % 50 == 0:
        shim.checkpoint()  # Whole and durable, at a step that all ranks agree on.
distributed.destroy_process_group()
