"""A Trainer of Composer, or of its stand-in, with and without the shim. argv: JSON."""

import json
import sys
import warnings

import composer_standin
import torch
from tiny import KeptWatch, TinyModel, Toy, write_report

from trainer_shim import attach

warnings.simplefilter("ignore")
told = json.loads(sys.argv[1])
if told["standin"]:
    composer_standin.install()

from composer import Trainer  # noqa: E402
from composer.models import ComposerModel  # noqa: E402

torch.set_num_threads(1)
torch.manual_seed(7)
kept, losses, folder = [], [], told["directory"] + "/own"


class Model(ComposerModel):
    def __init__(self):
        super().__init__()
        self.model = TinyModel()

    def forward(self, batch):
        return self.model(*batch) * (1 + torch.rand(()))

    def loss(self, outputs, batch):
        step = len(losses) // 2 + 1
        losses.append(outputs.item())
        return outputs * float("nan") if step == told.get("broken") else outputs


def make_watch(*args, **kwargs):
    kept.append(KeptWatch(*args, **kwargs))
    kept[0].save_at = told.get("save_at")
    return kept[0]


def resume(path):
    """As the watcher does, with what it finds."""
    saver = kept[0].saver
    if path.endswith(".pt"):
        assert saver.named_checkpoint(path) in saver.own_checkpoints(folder)
    saver.load(*path.rsplit("/", 1))


model = Model()
loaders = [torch.utils.data.DataLoader(Toy(size), batch_size=8) for size in (512, 16)]
trainer = Trainer(
    model=model,
    train_dataloader=loaders[0],
    eval_dataloader=loaders[1],
    eval_interval="4ba",
    optimizers=torch.optim.AdamW(model.parameters(), lr=1e-2),
    max_duration=f"{told['steps']}ba",
    device_train_microbatch_size=4,
    save_folder=folder,
    save_interval="4ba",
    save_overwrite=True,
    device="cpu",
    progress_bar=False,
    seed=7,
)
if told["attached"]:
    shim = attach(trainer, make_watch=make_watch)
    assert shim.watching
    if told.get("resume"):
        resume(told["resume"])
trainer.fit()
report = {
    "losses": losses,
    "weights": [float(p.double().sum()) for p in model.parameters()],
    "own": composer_standin.saved_in(folder),
}
if told["attached"]:
    shim.close()
    report |= kept[0].report()
    assert not any(type(one).__name__ == "CostgovCallback" for one in trainer.state.callbacks)
write_report(report)
