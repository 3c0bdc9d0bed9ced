"""MosaicML Composer: a ComposerModel, micro-batches, an evaluation, a save folder. Two lines are costgov's.

costgov run --ceiling 300 --price 22 -- composer -n 2 examples/trainers/composer_fit.py
"""

import os

import torch
from composer import Trainer
from composer.models import ComposerModel
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from trainer_shim import attach

STEPS = int(os.environ.get("STEPS", "60"))
VOCABULARY, LENGTH, WIDTH, BATCH, RANKS = 256, 64, 64, 8, int(os.environ.get("WORLD_SIZE", "1"))


class Sequences(Dataset):
    """Counting in steps of three."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return (torch.arange(LENGTH) * 3 + index) % VOCABULARY


class Model(ComposerModel):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, VOCABULARY)
        )

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.net(batch)

    def loss(self, outputs: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs[:, :-1].flatten(0, 1), batch[:, 1:].flatten())


def loader_of(size: int) -> DataLoader:
    data = Sequences(size)
    return DataLoader(
        data,
        batch_size=BATCH,
        sampler=DistributedSampler(data, RANKS, int(os.environ.get("RANK", "0")), drop_last=True),
        drop_last=True,
    )


torch.manual_seed(3)
model = Model()
trainer = Trainer(
    model=model,
    train_dataloader=loader_of(100_000),
    eval_dataloader=loader_of(512),
    eval_interval="20ba",
    optimizers=torch.optim.AdamW(model.parameters(), lr=1e-3),
    max_duration=f"{STEPS}ba",
    device_train_microbatch_size=BATCH // 2,
    save_folder="checkpoints/composer",
    save_interval="20ba",
    save_num_checkpoints_to_keep=1,
    save_overwrite=True,
    device="gpu" if torch.cuda.is_available() else "cpu",
    progress_bar=False,
)
shim = attach(trainer)
shim.resume()  # The next fit() goes on from the newest good checkpoint. None at the first launch.
trainer.fit()
