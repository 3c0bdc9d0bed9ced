"""A loop of the user's own around an Accelerator, without DeepSpeed. Argument: "bare", or a directory to save into."""

import os
import sys

import torch
from tiny import KeptWatch, TinyModel, Toy, write_report

for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
    del os.environ[name]  # Accelerate takes any of these for a launcher's promise of a rendezvous.
from accelerate import Accelerator  # noqa: E402

from trainer_shim import attach, wrap_loader  # noqa: E402

attached = sys.argv[1] != "bare"
torch.manual_seed(7)
torch.set_num_threads(1)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = TinyModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
loader = torch.utils.data.DataLoader(Toy(), batch_size=4)
model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
kept = []


def make_watch(*args, **kwargs):
    kept.append(KeptWatch(*args, **kwargs))
    kept[0].save_at = 4
    return kept[0]


if attached:
    shim = attach(accelerator, checkpoint_dir=sys.argv[1], make_watch=make_watch)
    loader = wrap_loader(loader)


def train(micro_steps, into):
    for index, (x, y) in enumerate(loader):
        if index == micro_steps:
            break
        with accelerator.accumulate(model):
            loss = model(x, y)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        into.append(loss.item())


losses, again = [], []
train(12, losses)
report = kept[0].report() if attached else {}
report["weights"] = [float(p.detach().double().sum()) for p in model.parameters()]
if attached:
    kept[0].saver.load(sys.argv[1], KeptWatch.tag)
    kept[0].saver.restore_position(kept[0].position)
    train(4, again)
    shim.close()
    report["left_behind"] = "backward" in vars(accelerator)
write_report({**report, "losses": losses, "again": again})
