"""A loop that spends known times on data, loss, evaluation, saves and its own code: argv[1] says under which engine.

Beside each frame stands what the script's own timers say until then. Nothing is told to the shim but attach().
"""

import contextlib
import os
import sys
import time

import torch
from tiny import KeptWatch, TinyModel, Toy, init_deepspeed, write_report
from torch.nn import functional

from trainer_shim import attach

engine_kind = sys.argv[1]
GAS, WORKERS = map(int, sys.argv[2:] or (2, 0))
STEPS, EVERY = 12, 4  # Evaluated and saved behind each fourth step, the last one included.
SAMPLE_S, LOSS_S, LOOP_S, SAVE_S, EVAL_S, BEHIND_S = 0.004, 0.01, 0.02, 0.05, 0.03, 0.08
spent = dict.fromkeys(("data", "loss", "loop", "eval", "save", "last"), 0.0)
torch.set_num_threads(1)
torch.manual_seed(7)
kept, changes = [], []


@contextlib.contextmanager
def timed(part, least_s=0.0):
    began = time.monotonic()
    time.sleep(least_s)
    yield
    spent[part] += time.monotonic() - began


class Slow(Toy):
    """Each sample takes its time; of an evaluation's that is not data's."""

    def __init__(self, size, part):
        super().__init__(size)
        self.part = part

    def __getitem__(self, index):
        with timed(self.part, SAMPLE_S):
            return super().__getitem__(index)


class SlowToSave:
    """What it takes to write a checkpoint, whoever pickles it."""

    def __getstate__(self):
        time.sleep(SAVE_S)
        return {"saved": True}


class SlowModel(TinyModel):
    """Where the loss is told, it takes its time; so does an evaluation."""

    def forward(self, input_ids, labels):
        with contextlib.nullcontext() if self.training else timed("eval", EVAL_S):
            return super().forward(input_ids, labels)


class Headless(SlowModel):
    """Returns logits: the loop computes the loss."""

    def forward(self, input_ids, labels):
        with contextlib.nullcontext() if self.training else timed("eval", EVAL_S):
            return self.head(torch.tanh(self.hidden(self.embed(input_ids))))


class Watch(KeptWatch):
    def step_frame(self, fields):
        super().step_frame({**fields, "at": time.monotonic(), "spent": dict(spent)})

    def finish(self, reason, completed):
        if not self.finished:
            self.progress.set_phase("finish")  # As watcher.py does.
            self.phase_changed()
        super().finish(reason, completed)

    def phase_changed(self):
        super().phase_changed()
        changes.append((time.monotonic(), self.progress.phase))


def make_watch(*args, **kwargs):
    kept.append(Watch(*args, **kwargs))
    return kept[0]


def loader(part, size=4 * GAS * STEPS, **kwargs):
    return torch.utils.data.DataLoader(Slow(size, part), batch_size=4, num_workers=WORKERS, **kwargs)


def evaluate(model):
    """As loops do: another mode, no gradients, a loader of its own."""
    model.eval()
    with torch.no_grad():
        for x, y in loader("eval", 8):
            model(x, y)
    if engine_kind != "late":
        model.train()


def save(what):
    with timed("save"):
        torch.save(what, "own.pt")


def draws():
    """A loop's own batches, without any loader."""
    data = Slow(4 * GAS * STEPS, "data")
    for first in range(0, len(data), 4):
        batch = [data[index] for index in range(first, first + 4)]
        yield tuple(torch.stack(column) for column in zip(*batch, strict=True))


def plain():
    model = Headless() if engine_kind == "headless" else SlowModel()
    if engine_kind in ("ddp", "inner"):
        store = torch.distributed.FileStore(os.environ["DRILL_RENDEZVOUS"], 2)
        torch.distributed.init_process_group("gloo", store=store, rank=int(os.environ["RANK"]), world_size=2)
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    shim = attach(model, optimizer=optimizer, make_watch=make_watch)
    for index, (x, y) in enumerate(draws() if engine_kind == "drawn" else loader("data")):
        model.train()  # "late" has only this one, behind the fetch.
        if engine_kind == "headless":
            logits = model(x, y)
            with timed("loss", LOSS_S):
                loss = functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        else:
            loss = model(x, y)
        loss.backward()
        if index % GAS == GAS - 1:
            optimizer.step()
            optimizer.zero_grad()
            with timed("loop", LOOP_S):
                step = (index + 1) // GAS
            if step % EVERY == 0:
                evaluate(model.module if engine_kind == "inner" else model)
                with timed("loop", BEHIND_S):  # It uploads its report, say.
                    pass
                save({"model": model.state_dict(), "slow": SlowToSave()})
    return shim


def deepspeed():
    made = init_deepspeed()
    model = SlowModel()
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": GAS,
        "steps_per_print": 10**9,
        "zero_optimization": {"stage": 2},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    }
    engine, *_ = made.initialize(model=model, model_parameters=model.parameters(), config=config)
    shim = attach(engine, make_watch=make_watch)
    for index, (x, y) in enumerate(loader("data")):
        engine.backward(engine(x, y))
        engine.step()
        if index % GAS == GAS - 1:
            with timed("loop", LOOP_S):
                step = (index + 1) // GAS
            if step % EVERY == 0:
                evaluate(engine)
                if step == STEPS:
                    save(SlowToSave())
                else:
                    with timed("save"):
                        engine.save_checkpoint("own", client_state={"slow": SlowToSave()})
    return shim


def hf():
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Loop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            with timed("loop", LOOP_S):
                pass

    class Told(SlowModel):
        def forward(self, input_ids, labels):
            return {"loss": super().forward(input_ids, labels)}

    class Timed(Trainer):
        def _save_checkpoint(self, *args, **kwargs):
            with timed("save", SAVE_S):
                return super()._save_checkpoint(*args, **kwargs)

        def _save(self, *args, **kwargs):
            time.sleep(SAVE_S)  # Of save_model(), and of no function that is known to save.
            super()._save(*args, **kwargs)

    class Named(Slow):
        def __getitem__(self, index):
            return dict(zip(("input_ids", "labels"), super().__getitem__(index), strict=True))

    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        del os.environ[name]
    args = TrainingArguments(
        "own", max_steps=STEPS, per_device_train_batch_size=4, per_device_eval_batch_size=4,
        gradient_accumulation_steps=GAS, eval_strategy="steps", eval_steps=EVERY, save_steps=EVERY, report_to=[],
        disable_tqdm=True, use_cpu=True, logging_steps=1000, dataloader_num_workers=WORKERS,
    )  # fmt: skip
    data = [Named(4 * GAS * STEPS, "data"), Named(8, "eval")]
    trainer = Timed(Told(), args, train_dataset=data[0], eval_dataset=data[1], callbacks=[Loop()])
    shim = attach(trainer, make_watch=make_watch)
    trainer.train()
    with timed("last"):
        trainer.save_model("own-last")
    return shim


def lightning():
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = SlowModel()

        def training_step(self, batch, batch_idx):
            return self.model(*batch)

        def validation_step(self, batch, batch_idx):
            self.model(*batch)

        def on_save_checkpoint(self, checkpoint):
            time.sleep(SAVE_S)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

        def on_train_batch_end(self, outputs, batch, batch_idx):
            if batch_idx % GAS == GAS - 1:
                with timed("loop", LOOP_S):
                    pass

    class Saves(ModelCheckpoint):
        def _save_checkpoint(self, trainer, filepath):
            with timed("save"):
                super()._save_checkpoint(trainer, filepath)

    class Last(ModelCheckpoint):
        """Saves behind the training, as save_last does where the last step was not saved."""

        def on_train_end(self, trainer, pl_module):
            with timed("last"):
                trainer.save_checkpoint("last.ckpt")

        def on_train_batch_end(self, *args):
            pass

        on_train_epoch_end = on_validation_end = on_train_batch_end

    trainer = pl.Trainer(
        max_steps=STEPS, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, accumulate_grad_batches=GAS, val_check_interval=EVERY * GAS,
        num_sanity_val_steps=0, default_root_dir="own",
        callbacks=[Saves(dirpath="own", every_n_train_steps=EVERY, save_top_k=-1), Last(dirpath="last")],
    )  # fmt: skip
    shim = attach(trainer, make_watch=make_watch)
    trainer.fit(Module(), loader("data"), loader("eval", 8))
    return shim


shim = {"deepspeed": deepspeed, "hf": hf, "lightning": lightning}.get(engine_kind, plain)()
shim.finish()
write_report({**kept[0].report(), "changes": changes, "last_phase": kept[0].progress.phases, "spent": spent})
