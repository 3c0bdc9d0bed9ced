"""Lightning: a LightningModule with a validation and a ModelCheckpoint of its own. Two lines are costgov's.

costgov run --ceiling 300 --price 22 -- torchrun --nproc_per_node 2 examples/trainers/lightning_fit.py
"""

import os

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from trainer_shim import attach

STEPS = int(os.environ.get("STEPS", "60"))
VOCABULARY, LENGTH, WIDTH, BATCH = 256, 64, 64, 8


class Sequences(Dataset):
    """Counting in steps of three."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return (torch.arange(LENGTH) * 3 + index) % VOCABULARY


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, VOCABULARY)
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.net(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    def training_step(self, ids: torch.Tensor, _: int) -> torch.Tensor:
        loss = self(ids)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, ids: torch.Tensor, _: int) -> None:
        self.log("val_loss", self(ids), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


pl.seed_everything(3, verbose=False)
ranks = int(os.environ.get("WORLD_SIZE", "1"))
trainer = pl.Trainer(
    max_steps=STEPS,
    accelerator="auto" if torch.cuda.is_available() else "cpu",
    devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
    strategy="ddp" if ranks > 1 else "auto",
    val_check_interval=20,
    limit_val_batches=4,
    gradient_clip_val=1.0,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[ModelCheckpoint(every_n_train_steps=20)],
    default_root_dir="checkpoints/lightning",
)
shim = attach(trainer)
shim.resume()  # The next fit() goes on from the newest good checkpoint. None at the first launch.
trainer.fit(Model(), DataLoader(Sequences(100_000), batch_size=BATCH), DataLoader(Sequences(512), batch_size=BATCH))
