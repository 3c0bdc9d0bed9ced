"""DeepSpeed ZeRO-2. One line is costgov's: attach()."""

import deepspeed
import deepspeed.ops
import torch
from tiny import NAN_AT, STEPS, Sequences, TinyModelWithLoss, break_at

from trainer_shim import attach

CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 2},
    "zero_allow_untested_optimizer": True,
    "steps_per_print": 20,
}

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # Else a machine without GPUs compiles it for minutes.
deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")
model = TinyModelWithLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
engine, _, loader, _ = deepspeed.initialize(model=model, optimizer=optimizer, training_data=Sequences(), config=CONFIG)
shim = attach(engine, checkpoint_dir="checkpoints/deepspeed", total_steps=STEPS)
shim.resume()  # Weights, optimizer, generators, step: of the newest good checkpoint. None at the first launch.
print("begins at step", shim.step)
break_at(NAN_AT, model, done=shim.step)  # To see a halt.

batches = iter(loader)
while shim.step < STEPS:
    loss = engine(next(batches).to(engine.device))
    engine.backward(loss)
    engine.step()
    if shim.step % 50 == 0:
        shim.checkpoint()  # Whole and durable, at a step that all ranks agree on.
