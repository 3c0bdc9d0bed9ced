"""Plain loops that show their loss in other ways than by returning it: argv is the way, and the step that breaks."""

import dataclasses
import sys
from typing import Any

import torch
from tiny import VOCAB, KeptWatch, TinyModel, Toy, write_report
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from trainer_shim import attach

how, broken = sys.argv[1], int(sys.argv[2])
ACCUMULATED = 2 if how in ("tuple", "scaler") else 1
CLIPS = how in ("tuple", "clip")
OUTSIDE = ("outside", "autograd", "scaler", "clip", "aux", "checkpoint")


@dataclasses.dataclass
class Output:
    logits: Any
    objective: Any


class Model(TinyModel):
    """nanoGPT's: (logits, loss) out of ids and targets; or logits alone."""

    def forward(self, input_ids, labels=None):
        hidden = self.hidden(self.embed(input_ids))
        if how == "checkpoint":  # Calls torch.autograd.backward() inside of the backward pass.
            hidden = torch.utils.checkpoint.checkpoint(torch.tanh, hidden, use_reentrant=True)
        logits = self.head(torch.tanh(hidden)).float()
        if how in OUTSIDE:
            return (logits, hidden.pow(2).mean()) if how == "aux" else logits
        loss = functional.cross_entropy(logits.view(-1, VOCAB), labels.reshape(-1))
        return {"tuple": (logits, loss), "dict": {"loss": loss}, "dataclass": Output(logits, loss), "vector": logits}[
            how
        ]


def loss_of(output, labels):
    if how in OUTSIDE:
        logits, extra = output if how == "aux" else (output, 0.0)
        return functional.cross_entropy(logits.view(-1, VOCAB), labels.reshape(-1)) + 0.1 * extra
    if how == "vector":
        return None
    return {"tuple": lambda: output[1], "dict": lambda: output["loss"], "dataclass": lambda: output.objective}[how]()


attached = sys.argv[3] != "bare"
torch.manual_seed(7)
torch.set_num_threads(1)
before = torch.autograd.backward, torch.amp.GradScaler.scale, torch.nn.utils.clip_grad._clip_grads_with_norm_
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", enabled=how == "scaler", init_scale=1024.0)
kept = []


def make_watch(*args, **kwargs):
    kept.append(KeptWatch(*args, **kwargs))
    return kept[0]


if attached:
    shim = attach(model, optimizer=optimizer, checkpoint_dir=sys.argv[4], make_watch=make_watch)
losses, norms = [], []
loader = torch.utils.data.DataLoader(Toy(), batch_size=4)
for index, (x, y) in enumerate(loader):
    step = index // ACCUMULATED + 1
    if step > 20:
        break
    output = model(x, y)
    if how == "vector":
        logits = output * float("nan") if step == broken else output
        logits.backward(torch.ones_like(logits))
    else:
        loss = loss_of(output, y) / ACCUMULATED
        loss = loss * float("nan") if step == broken else loss
        losses.append(loss.item())
        (torch.autograd.backward if how == "autograd" else torch.Tensor.backward)(scaler.scale(loss))
    if index % ACCUMULATED == ACCUMULATED - 1:
        scaler.unscale_(optimizer)
        if CLIPS:
            norms.append(clip_grad_norm_(model.parameters(), 1.0).item())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
report = {"losses": losses, "norms": norms, "weights": [float(p.double().sum()) for p in model.parameters()]}
if attached:
    shim.close()
    report["frames"] = kept[0].frames
after = torch.autograd.backward, torch.amp.GradScaler.scale, torch.nn.utils.clip_grad._clip_grads_with_norm_
assert after == before, "everything is put back"
write_report(report)
