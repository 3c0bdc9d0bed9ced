"""One rank of a tiny DDP training on nodes. Files of FLEET_PLACE steer it, so no drill guesses how long a step takes.

pace.RANK: seconds that each of its steps takes longer. nan.RANK: its loss is not finite, and its batch is left out, as
guarded loops do: no other rank sees it. nan_spreads.RANK: the batch is not left out, and every rank has it with the
next step. alone.RANK: it makes its steps without the others, as a loop does that leaves a batch out on one rank only;
so it tells of its NaN where the others hang in a collective. Each rank writes its pid there, and a line for each step.
"""

import os
import time
from pathlib import Path

import torch
from torch import nn

import trainer_shim

place = Path(os.environ["FLEET_PLACE"])
rank, name = int(os.environ["RANK"]), os.environ.get("FLEET_NAME", "")
steps = int(os.environ["FLEET_STEPS"])
torch.set_num_threads(1)
torch.manual_seed(7)
torch.distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
shim = trainer_shim.attach(
    model, optimizer=optimizer, checkpoint_dir=str(place / "checkpoints"), total_steps=steps, tokens_per_step=1024
)
torch.manual_seed(100 + rank)


def steered(what: str) -> bool:
    return (place / f"{what}.{rank}").exists()


(place / f"pid.{rank}").write_text(str(os.getpid()))
with (place / f"steps.{rank}").open("w", buffering=1) as lines:
    while shim.step < steps:
        time.sleep(float((place / f"pace.{rank}").read_text()) if steered("pace") else 0.05)
        loss = model(torch.randn(8, 32)).pow(2).mean()
        if steered("nan_spreads"):
            loss = loss * float("nan")
        shim.loss(loss * float("nan") if steered("nan") else loss)
        if not steered("alone"):
            (loss * 0.0 if steered("nan") else loss).backward()
        optimizer.step()
        optimizer.zero_grad()
        lines.write(f"{shim.step} {time.monotonic():.3f} {float(loss.detach())!r}\n")
shim.finish()
torch.distributed.barrier()
torch.distributed.destroy_process_group()
