"""Two ranks attach unlike, then both the same training, and save it. argv: in what unlike, and a directory."""

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist
from tiny import TinyModel, Toy, write_report
from torch.nn.parallel import DistributedDataParallel

from trainer_shim import attach

unlike, directory = sys.argv[1:]
torch.set_num_threads(1)
rank = int(os.environ["RANK"])
store = dist.FileStore(os.environ["DRILL_RENDEZVOUS"], 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=60))
waited_s = 0.0


def made():
    model = DistributedDataParallel(TinyModel())
    return model, torch.optim.AdamW(model.parameters())


def watched(model, optimizer, name):
    global waited_s
    began = time.monotonic()
    shim = attach(model, optimizer=optimizer, checkpoint_dir=os.path.join(directory, name))
    if name == "next":
        shim.resume()
    waited_s = max(waited_s, time.monotonic() - began)
    return shim


def steps(model, optimizer, count):
    for x, y in torch.utils.data.DataLoader(Toy(4 * count), batch_size=4):
        model(x, y).backward()
        optimizer.step()
        optimizer.zero_grad()


teacher, optimizer = made()
first = watched(teacher, optimizer, "first")
steps(teacher, optimizer, 4)
if rank == 0:
    if unlike == "close":
        first.close()
    elif unlike == "probe":
        probe = TinyModel()
        watched(probe, torch.optim.AdamW(probe.parameters()), "probe")
        first.finish()
    else:
        optimizer = torch.optim.SGD(teacher.parameters(), lr=0.1)
        watched(teacher, optimizer, "stage").checkpoint()
        steps(teacher.module, optimizer, 4)
        first.finish()
student, optimizer = made()
if unlike == "stage" and rank == 0:
    del teacher, first
shim = watched(student, optimizer, "next")
path = os.path.join(directory, "next")
for _ in range(500):
    steps(student, optimizer, 1)
    if shim.step == 2:
        shim.checkpoint()
    has_saved = torch.tensor([os.path.lexists(os.path.join(path, "latest")) * 1.0])
    dist.all_reduce(has_saved)
    if has_saved.item() == 2:
        break
    time.sleep(0.01)
from trainer_shim.attach import _WAY  # noqa: E402

report = {"watching": shim.watching, "number": _WAY.number, "saved": os.path.lexists(os.path.join(path, "latest"))}
shim.close()
write_report({**report, "waited_s": waited_s})
dist.destroy_process_group()
