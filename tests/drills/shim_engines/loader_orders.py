"""The batches of real DataLoaders, and those of a second one that goes on in their third epoch. argv: JSON."""

import json
import os
import sys

import torch
from tiny import write_report
from torch.utils.data import DataLoader, DistributedSampler

from trainer_shim.loader import wrap_loader
from trainer_shim.saving import rng

kind = json.loads(sys.argv[1])["kind"]
data = list(range(24))


def make():
    torch.manual_seed(7)
    if kind == "generator":
        return wrap_loader(DataLoader(data, 4, shuffle=True, generator=torch.Generator().manual_seed(1)))
    if kind == "workers":
        return wrap_loader(DataLoader(data, 4, shuffle=True, num_workers=1, persistent_workers=True))
    if kind == "seedable":
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
            os.environ.pop(name, None)  # Accelerate takes any of these for a launcher's promise of a rendezvous.
        from accelerate import Accelerator
        from accelerate.utils import DataLoaderConfiguration

        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
        return wrap_loader(accelerator.prepare(DataLoader(data, 4, shuffle=True)))
    return wrap_loader(DataLoader(data, 4, sampler=DistributedSampler(data, num_replicas=1, rank=0)))


def epoch_of(loader, epoch, left):
    """The next `left` batches of one epoch, and the iterator."""
    if kind == "set_epoch":
        loader.sampler.set_epoch(epoch)
    batches = iter(loader)
    return [next(batches).tolist() for _ in range(left)], batches


first = make()
for epoch in range(2):
    list(epoch_of(first, epoch, 6)[1])  # To its end, as a loop goes.
_, batches = epoch_of(first, 2, 3)
state = json.loads(json.dumps({"loader": first.state_dict(), "rng": rng.capture()}))
whole = [[one.tolist() for one in batches], epoch_of(first, 3, 6)[0]]
second = make()
rng.restore(state["rng"])
second.load_state_dict(state["loader"])
begun = 0 if kind == "set_epoch" else second.epoch  # A loop that begins at epoch 0, where that is told at all.
rest, batches = epoch_of(second, begun, 3)
assert list(batches) == []
again = [rest]
again.append(epoch_of(second, 3, 6)[0])
write_report({"whole": whole, "again": again, "epoch": second.epoch})
