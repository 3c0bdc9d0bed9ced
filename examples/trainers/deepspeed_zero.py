"""DeepSpeed ZeRO-2: accumulation, a schedule, an evaluation, save_checkpoint() of its own. Two lines are costgov's.

costgov run --ceiling 300 --price 22 -- torchrun --nproc_per_node 2 examples/trainers/deepspeed_zero.py
"""

import os

import deepspeed
import deepspeed.ops
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from trainer_shim import attach

STEPS = int(os.environ.get("STEPS", "60"))
VOCABULARY, LENGTH, WIDTH, BATCH, ACCUMULATION = 256, 64, 64, 4, 2
CONFIG = {
    "train_micro_batch_size_per_gpu": BATCH,
    "gradient_accumulation_steps": ACCUMULATION,
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 2},
    "zero_allow_untested_optimizer": True,
    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-3, "warmup_num_steps": 10}},
    "steps_per_print": 20,
}


class Sequences(Dataset):
    """Counting in steps of three."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return (torch.arange(LENGTH) * 3 + index) % VOCABULARY


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, VOCABULARY)
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.net(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # Else a machine without GPUs compiles it for minutes.
deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")
torch.manual_seed(3)
model = Model()
engine, _, loader, _ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
    training_data=Sequences(20_000),
    config=CONFIG,
)
shim = attach(engine, checkpoint_dir="checkpoints/deepspeed", total_steps=STEPS)
shim.resume()  # Weights, optimizer, schedule, generators, step. None at the first launch.

batches = iter(loader)
while shim.step < STEPS:
    for _ in range(ACCUMULATION):
        loss = engine(next(batches).to(engine.device))
        engine.backward(loss)
        engine.step()
    if shim.step % 20 == 0:
        engine.eval()
        with torch.no_grad():
            losses = [engine(batch.to(engine.device)).item() for batch in DataLoader(Sequences(64), batch_size=BATCH)]
        engine.train()
        print(f"step {shim.step}: evaluation loss {sum(losses) / len(losses):.4f}")
        engine.save_checkpoint("checkpoints/deepspeed")
