"""What each of two ranks reads of wrapped loaders: prepared before and behind wrap_loader(), and by nobody."""

import os

import torch
from tiny import TinyModel, write_report

os.environ["MASTER_ADDR"] = "127.0.0.1"
store = torch.distributed.FileStore(os.environ["DRILL_RENDEZVOUS"], 2)
torch.distributed.init_process_group("gloo", store=store, rank=int(os.environ["RANK"]), world_size=2)
from accelerate import Accelerator  # noqa: E402

from trainer_shim import attach, wrap_loader  # noqa: E402

torch.set_num_threads(1)


def make():
    return torch.utils.data.DataLoader(list(range(8)), batch_size=2)


def read(loader):
    return [batch.tolist() for batch in loader]


accelerator = Accelerator(cpu=True)
model, optimizer = TinyModel(), None
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
early = wrap_loader(make())
model, optimizer, prepared, unseen = accelerator.prepare(model, optimizer, make(), early)
shim = attach(accelerator)
report = {"wrapped": read(shim.wrap_loader(prepared))}
alone = shim.wrap_loader(make())
both = [shim.wrap_loader(make()), shim.wrap_loader(make())]
given = accelerator.prepare(*both)
report["same"] = [
    accelerator.prepare(alone) is alone,
    type(given) is tuple,
    *(a is b for a, b in zip(given, both, strict=True)),
]
report["prepared"] = [read(one) for one in (alone, *both)]
sampler = torch.utils.data.DistributedSampler(range(8), shuffle=False)
report["dealt"] = read(wrap_loader(torch.utils.data.DataLoader(list(range(8)), batch_size=2, sampler=sampler)))
print("only the next one is told of", flush=True)
report["unseen"] = read(unseen)
read(unseen)
shim.close()
report["left_behind"] = "prepare" in vars(accelerator)
write_report(report)
