"""A LightningModule and its Trainer, with a ModelCheckpoint of its own. Several ranks are torchrun's."""

import os

import lightning.pytorch as pl
import torch
from common import VOCABULARY, Sequences, arguments, break_at, report
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn import functional

from trainer_shim import attach

BATCH = 4


class Model(pl.LightningModule):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.drop = nn.Dropout(0.1)
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, VOCABULARY)
        self.loss = nn.Identity()

    def training_step(self, ids, index):
        logits = self.head(torch.tanh(self.hidden(self.drop(self.embed(ids)))))
        loss = self.loss(functional.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1)))
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 20)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Losses(pl.Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        report(trainer.global_step, outputs["loss"])


told = arguments()
pl.seed_everything(3, verbose=False)
model = Model()
break_at(model.loss)
ranks = int(os.environ.get("WORLD_SIZE", "1"))
trainer = pl.Trainer(
    max_steps=told.steps,
    accelerator="cpu",
    devices=ranks,
    strategy="ddp" if ranks > 1 else "auto",
    gradient_clip_val=1.0,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[Losses(), ModelCheckpoint(every_n_train_steps=10)],
    default_root_dir=told.out,
)
shim = attach(trainer)
shim.resume()
loader = torch.utils.data.DataLoader(Sequences(BATCH), batch_size=BATCH, shuffle=True)
trainer.fit(model, shim.wrap_loader(loader))
if ranks > 1:
    assert isinstance(trainer.train_dataloader.sampler, torch.utils.data.DistributedSampler), "all ranks see the same"
