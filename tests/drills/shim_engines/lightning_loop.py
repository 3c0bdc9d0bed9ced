"""A Trainer of Lightning, with and without the shim. argv: JSON.

With `watched` the shim's own watch is used. `holds` is a directory: step N + 1 begins when `step-N` is in it, and the
validation of step N ends with `evaluated-N`, where these are in `at`.
"""

import json
import os
import sys
import time
import warnings

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from tiny import KeptWatch, TinyModel, Toy, write_report

from trainer_shim import attach, wrap_loader
from trainer_shim.scalars import is_sound

warnings.simplefilter("ignore")
told = json.loads(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(7)
kept, losses, validations = [], [], []
seen_at = {}  # By the step of a boundary: that of the last validation before it.


def wait_for(what, step):
    while f"{what}-{step}" in told.get("at", ()) and not os.path.exists(f"{told['holds']}/{what}-{step}"):
        time.sleep(0.02)


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = TinyModel()

    def training_step(self, batch, batch_idx):
        wait_for("step", self.global_step)
        loss = self.model(*batch)
        if told.get("watched"):
            loss = loss * (1 + torch.rand(()))
        if self.global_step + 1 == told.get("broken"):
            loss = loss * float("nan")
        losses.append(loss.item())
        return loss

    def validation_step(self, batch, batch_idx):
        if not self.trainer.sanity_checking:
            wait_for("evaluated", self.global_step)
        self.log("seen", self.model(*batch))
        torch.rand(())
        validations.append(self.global_step)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        if not told.get("plateau"):
            return optimizer
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
        chosen = {"scheduler": scheduler, "monitor": "seen", "interval": told["plateau"], "strict": False}
        return {"optimizer": optimizer, "lr_scheduler": chosen}


class Watch(KeptWatch):
    def step_frame(self, fields):
        self.progress.sound = is_sound(fields)  # As watcher.py does.
        super().step_frame(fields)

    def at_boundary(self, step):
        seen_at[step] = validations[-1] if validations else None
        super().at_boundary(step)


def make_watch(*args, **kwargs):
    kept.append(Watch(*args, **kwargs))
    kept[0].save_at = told.get("save_at")
    return kept[0]


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from (Toy(size)[index] for index in range(size))


module = Module()
size = told.get("size", 512)  # Where it is told: shuffled, and every second step and every end of an epoch is saved.
ordered = {"shuffle": "size" in told and not told.get("stream")}
if told.get("seed"):
    ordered["generator"] = torch.Generator().manual_seed(told["seed"])
if told.get("workers"):
    ordered.update(num_workers=told["workers"], persistent_workers=True)
data = torch.utils.data.DataLoader(Stream() if told.get("stream") else Toy(size), batch_size=4, **ordered)
every = {
    "steps": {"every_n_train_steps": 2},
    "epochs": {"save_on_train_epoch_end": True},
    "validations": {"save_on_train_epoch_end": False},
}
saves = [
    ModelCheckpoint(dirpath=told["directory"] + "/" + kind, filename="{step}", save_top_k=-1, **every[kind])
    for kind in told.get("saves", ())
]
trainer = pl.Trainer(
    max_steps=told["steps"] if "epochs" not in told else -1,
    max_epochs=told.get("epochs"),
    accelerator="cpu",
    devices=1,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    enable_checkpointing=bool(saves),
    callbacks=saves,
    accumulate_grad_batches=2,
    gradient_clip_val=told.get("clip"),
    val_check_interval=told.get("interval", 4 if "size" in told else 8),
    check_val_every_n_epoch=told.get("every", 1),
    limit_val_batches=told.get("validates", 1),
    default_root_dir=told["directory"],
)
batches = data
if told["attached"]:
    shim = attach(trainer, make_watch=None if told.get("watched") else make_watch)
    assert shim.watching
    batches = wrap_loader(data)
if told.get("resume") == "shim":
    shim.resume()
    trainer.fit(module, batches, data)
else:
    trainer.fit(module, batches, data, ckpt_path=told.get("resume"))
report = {
    "losses": losses,
    "validations": validations,
    "seen_at": seen_at,
    "weights": [float(p.double().sum()) for p in module.parameters()],
}
if told["attached"]:
    shim.close()
    report |= kept[0].report() if kept else {}
    assert not any(type(one).__name__ == "CostgovCallback" for one in trainer.callbacks)
write_report(report)
