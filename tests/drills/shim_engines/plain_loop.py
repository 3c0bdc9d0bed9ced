"""A plain PyTorch loop, with and without the shim."""

import copy
import io
import math
import sys

import torch
from tiny import KeptWatch, TinyModel, Toy, write_report
from torch.utils._python_dispatch import TorchDispatchMode

from trainer_shim import attach, wrap_loader
from trainer_shim.sight.weights import first_harmed

attached = sys.argv[1] != "bare"
torch.manual_seed(7)
torch.set_num_threads(1)
model = TinyModel()
model.bound = torch.nn.Parameter(torch.full((4,), float("inf")))  # Trained, and meant so until it learns a value.
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model.unused = torch.nn.Parameter(torch.zeros(4))  # In no optimizer.
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
loader = torch.utils.data.DataLoader(Toy(), batch_size=4, shuffle=True)
kept = []


class Copies(TorchDispatchMode):
    """`largest`: how many elements in full precision an operation has made at once."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.dtype == torch.float32:
            self.largest = max(self.largest, made.numel())
        return made


def make_watch(*args, **kwargs):
    kept.append(KeptWatch(*args, **kwargs))
    kept[0].save_at = 5
    return kept[0]


if attached:
    directory = sys.argv[2]
    shim = attach(
        model,
        optimizer=optimizer,
        stateful={"scheduler": scheduler},
        checkpoint_dir=directory,
        total_steps=8,
        make_watch=make_watch,
    )
    assert attach(model, optimizer=optimizer) is shim
    loader = wrap_loader(loader)

losses, resumed_losses = [], []
micro_steps = 2
for index, (x, y) in enumerate(loader):
    if index == 16:
        break
    loss = model(x, y) / micro_steps
    (shim.loss(loss) if attached and sys.argv[1] == "told" else loss).backward()
    losses.append(loss.item())
    if index % micro_steps == 1:
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()

report = kept[0].report() if attached else {}
report["losses"] = losses
report["last_parameter"] = [name for name, _ in model.named_parameters()][-1]
report["weights"] = [float(p.double().sum()) for p in model.parameters()]
if attached:
    # A copy and a pickle of an attached model are ordinary models, whose forward passes nobody counts.
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    bumps = kept[0].progress.progress_seq
    ids = torch.zeros((1, 16), dtype=torch.long)
    for other in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
        other(ids, ids)
    report["copies_counted"] = kept[0].progress.progress_seq - bumps
    # Resume at step 5 and train the same three steps again.
    saver = kept[0].saver
    report["client_state"] = saver.load(directory, KeptWatch.tag)
    saver.restore_position(kept[0].position)
    for index, (x, y) in enumerate(loader):
        if index == 6:
            break
        loss = model(x, y) / micro_steps
        loss.backward()
        resumed_losses.append(loss.item())
        if index % micro_steps == 1:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    report["resumed_losses"] = resumed_losses
    report["resumed_step"] = kept[0].frames[8]["step"]
    report["resumed_tokens_total"] = kept[0].frames[8]["tokens_total"]
    # What is looked at where it saves: all of what is trained, and that alone.
    report["harmed"] = [saver.harmed()]
    model.register_buffer("mask", torch.full((64,), float("nan")))
    first, last = model.embed.weight, model.head.weight
    with torch.no_grad():
        model.unused[0] = float("nan")
        first.view(-1)[0] = float("-inf")
        report["harmed"].append(saver.harmed())
        last.view(-1)[-1] = float("nan")
        report["harmed"].append(saver.harmed())
        last.requires_grad_(False)
        report["harmed"].append(saver.harmed())
        last.view(-1)[-1] = model.unused[0] = 0.0  # Beside what is outside it might be a copy of that.
        optimizer.add_param_group({"params": [torch.full((4,), float("inf"), requires_grad=True)]})
        report["harmed"].append(saver.harmed())
    report["eight_bits"], report["copied"] = [], 0
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"):
        every = torch.arange(256, dtype=torch.uint8).view(getattr(torch, name))
        for one in every.split(1):
            value = one.float().item()
            if bool(first_harmed([("one", one)])) != (math.isnan(value) or value == math.inf):
                report["eight_bits"].append([name, one.view(torch.uint8).item()])
        with Copies() as copies:
            assert first_harmed([("all", every.repeat(2**14))])
        report["copied"] = max(report["copied"], copies.largest)
    # What has no values here nobody has looked at. What is seen to be harmed beside it is.
    away, here = ("away", torch.empty(4, device="meta")), torch.zeros(4)
    harmed = ("harmed", torch.tensor([float("nan")]))
    looks = ([], [away], [("here", here), away], [away, harmed], [("here", here)], [("none", here[:0])])
    report["looks"] = [first_harmed(one) for one in looks]
    shim.close()
    report["finished"] = kept[0].finished
write_report(report)
