"""Two gloo ranks of a model under fully_shard(): what attach() says on the terminal, and one step of training."""

import contextlib
import io
import os
import sys

import torch
from tiny import KeptWatch, TinyModel, write_report
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard

from trainer_shim import attach

torch.set_num_threads(1)
torch.distributed.init_process_group(
    "gloo",
    init_method="file://" + os.environ["DRILL_RENDEZVOUS"],
    rank=int(os.environ["RANK"]),
    world_size=int(os.environ["WORLD_SIZE"]),
)
model = TinyModel()
mesh = torch.distributed.init_device_mesh("cpu", (torch.distributed.get_world_size(),))
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
kept = []


def make_watch(*args, **kwargs):
    kept.append(KeptWatch(*args, **kwargs))
    return kept[0]


def save(directory, tag, client_state):
    """A loop of the user's own would save its shards here."""


given = {"save_fn": save} if sys.argv[1] == "save_fn" else {}
said = io.StringIO()
with contextlib.redirect_stderr(said):
    for _ in range(2):  # Attaching again says nothing more.
        shim = attach(model, optimizer=optimizer, checkpoint_dir=sys.argv[2], make_watch=make_watch, **given)
get_state_dict(model, optimizer)  # As a load begins: torch steps the optimizer to make its state.
ids = torch.zeros((2, 16), dtype=torch.long)
shim.loss(model(ids, ids)).backward()
optimizer.step()
shim.close()
write_report({"said": said.getvalue(), "frames": kept[0].frames, "directory": kept[0].saver.directory})
