"""An Accelerate loop that is saved when asked. Options as JSON: project, naming, checkpoint_dir, stop, resumes.

With `naming` Accelerate numbers its checkpoints by itself and keeps one; the loop saves one unasked after step 2.
`stop` is a file at whose appearance training ends; with `resumes` five steps follow what shim.resume() finds.
"""

import json
import os
import sys
import threading

import torch
from tiny import TinyModel, Toy, write_report

for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
    del os.environ[name]  # Accelerate takes any of these for a launcher's promise of a rendezvous.
from accelerate import Accelerator  # noqa: E402
from accelerate.utils import ProjectConfiguration  # noqa: E402

from trainer_shim import attach, wrap_loader  # noqa: E402

options = json.loads(sys.argv[1])
torch.manual_seed(7)
torch.set_num_threads(1)
project = ProjectConfiguration(options["project"], automatic_checkpoint_naming=options["naming"], total_limit=1)
accelerator = Accelerator(cpu=True, project_config=project)
model = TinyModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = torch.utils.data.DataLoader(Toy(10**6), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
shim = attach(accelerator, checkpoint_dir=options["checkpoint_dir"])
loader = wrap_loader(loader)
resumed = shim.resume() if options["resumes"] else None
last = shim.step + 5 if options["resumes"] else 10**6
pace = threading.Event()
for x, y in loader:
    loss = model(x, y)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    if shim.step == 2 and options["naming"]:
        accelerator.save_state()
    if shim.step >= last or os.path.exists(options["stop"]):
        break
    pace.wait(0.005)
report = {"resumed": resumed and [resumed.step, resumed.path], "iteration": project.iteration}
if options["naming"]:
    accelerator.load_state()
shim.close()
write_report(report)
