"""One rank of a launch on several nodes: `node_rank.py PLACE`. It trains until PLACE/stop, and ends ill at PLACE/fail.

Its checkpoint is asked for by nobody but a governor. It notes each start beside its launcher's own count of restarts.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from trainer_shim import attach

place = Path(sys.argv[1])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, restarts = dist.get_rank(), os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
with (place / "starts").open("a") as starts:
    starts.write(json.dumps({"rank": rank, "restarts": restarts}) + "\n")
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
shim = attach(model, optimizer=optimizer, checkpoint_dir=str(place / "checkpoints"))
shim.resume()
while not (place / "stop").exists():
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
    # No collective: the other node's rank is well, and its agent restarts it without counting that.
    if rank == 1 and (place / "fail").exists():
        (place / "fail").unlink()
        os._exit(3)
