"""A plain loop whose loader has a worker: three epochs, kept workers, a copied loader, and a worker that dies."""

import copy
import os
import pickle
import sys
import time

import torch
from tiny import KeptWatch, TinyModel, Toy, write_report

from trainer_shim import attach

SLOW_AT = 9
kept = []


class Slow(Toy):
    def __getitem__(self, index):
        if index == SLOW_AT:
            time.sleep(0.5)
        return super().__getitem__(index)


class Dead(Toy):
    def __getitem__(self, index):
        os._exit(1)


def make_watch(*args, **kwargs):
    kept.append(KeptWatch(*args, **kwargs))
    return kept[0]


torch.set_num_threads(1)
model = TinyModel()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
attach(model, optimizer=optimizer, make_watch=make_watch)
progress = kept[0].progress
starts, steps, between = [], 0, set()
for is_kept in (False, True):
    loader = torch.utils.data.DataLoader(Slow(12), batch_size=4, num_workers=1, persistent_workers=is_kept)
    for _ in range(3):
        for index, (x, y) in enumerate(loader):
            between.add(progress.fetch_ns)
            if index == 0:
                starts.append(progress.fetch_starts)
            else:
                assert progress.fetch_starts is None
            model(x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
report = {"starts": starts, "steps": steps, "between": sorted(between), "longest_ns": progress.fetch_longest_ns}
plain = torch.utils.data.DataLoader(Slow(8), batch_size=4)
copies = (copy.deepcopy(plain), pickle.loads(pickle.dumps(plain)))
report["copied"] = [len(list(one)) for one in copies]
try:
    list(torch.utils.data.DataLoader(Dead(), num_workers=1))
except RuntimeError as error:
    report["died"] = str(error)
report["after"] = progress.fetch_ns
report |= kept[0].report()
sys.stdout.flush()
write_report(report)
