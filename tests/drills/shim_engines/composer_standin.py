"""A stand-in for MosaicML Composer where it is not installed: not Composer.

It calls a callback at the events of composer 0.32.1's training loop, in their order, and saves what that saves in the
places that the shim reads. A test that plays it says so; the same test plays Composer itself where it is installed.
"""

import glob
import os
import sys
import types

import torch


class Callback:
    def run_event(self, event, state, logger):
        getattr(self, event)(state, logger)

    def __getattr__(self, name):
        return lambda _state, _logger: None


class Saver(Callback):
    def __init__(self, folder, every):
        self.folder, self._every = folder, every
        self.weights_only, self.all_saved_checkpoints_to_timestamp = False, {}

    def batch_checkpoint(self, state, logger):
        if state.timestamp.batch % self._every == 0:
            self._save_checkpoint(state, logger)

    def _save_checkpoint(self, state, _logger):
        os.makedirs(self.folder, exist_ok=True)
        path = f"{self.folder}/ep0-ba{state.timestamp.batch}-rank0.pt"
        self.all_saved_checkpoints_to_timestamp[path] = state.timestamp
        state.save(path)


class State:
    def __init__(self, model, optimizers, steps):
        self.model, self.optimizers, self.callbacks = model, [optimizers], []
        self.timestamp = types.SimpleNamespace(batch=0)
        self.max_duration = types.SimpleNamespace(value=steps, unit=types.SimpleNamespace(value="ba"))
        self.batch = self.outputs = self.loss = None

    def save(self, path):
        optimizers = [one.state_dict() for one in self.optimizers]
        stamp = {"Timestamp": {"batch": self.timestamp.batch}}
        state = {"model": self.model.state_dict(), "optimizers": optimizers, "timestamp": stamp}
        torch.save({"state": state, "rng": torch.get_rng_state()}, path)


def load_checkpoint(path, state, logger, *, progress_bar, algorithm_passes):
    loaded = torch.load(path)
    state.model.load_state_dict(loaded["state"]["model"])
    for one, told in zip(state.optimizers, loaded["state"]["optimizers"], strict=True):
        one.load_state_dict(told)
    state.timestamp.batch = loaded["state"]["timestamp"]["Timestamp"]["batch"]
    return loaded["rng"]


class Trainer:
    def __init__(self, *, model, train_dataloader, eval_dataloader, optimizers, max_duration, save_folder, **told):
        self.state = State(model, optimizers, int(max_duration.removesuffix("ba")))
        self._loaders = train_dataloader, eval_dataloader
        self._micro, self._interval = told["device_train_microbatch_size"], int(told["eval_interval"][:-2])
        self._checkpoint_saver = Saver(save_folder, int(told["save_interval"][:-2]))
        self.state.callbacks.append(self._checkpoint_saver)
        self.logger, self._rng_state = object(), None
        self.engine = types.SimpleNamespace(algorithm_passes=[])

    def save_checkpoint(self, name):
        self.state.save(name.format())

    def _run(self, event):
        for one in list(self.state.callbacks):
            one.run_event(event, self.state, self.logger)

    def fit(self):
        state = self.state
        self._run("fit_start")
        for index, whole in enumerate(self._loaders[0]):
            if index < state.timestamp.batch:  # It reads up to where the checkpoint stands.
                continue
            if self._rng_state is not None:
                torch.set_rng_state(self._rng_state)
                self._rng_state = None
            self._run("batch_start")
            self._train(whole)
            state.timestamp = types.SimpleNamespace(batch=state.timestamp.batch + 1)
            self._run("batch_end")
            if state.timestamp.batch % self._interval == 0:
                self._evaluate()
            self._run("batch_checkpoint")
            if state.timestamp.batch == state.max_duration.value:
                break
        self._run("fit_end")

    def _train(self, whole):
        state = self.state
        state.optimizers[0].zero_grad()
        for batch in zip(*(one.split(self._micro) for one in whole), strict=True):
            state.batch = batch
            self._run("before_forward")
            state.outputs = state.model(batch)
            self._run("after_forward")
            state.loss = state.model.loss(state.outputs, batch)
            self._run("before_backward")
            (state.loss * len(batch[0]) / len(whole[0])).backward()
            self._run("after_backward")
        self._run("after_train_batch")
        state.optimizers[0].step()

    def _evaluate(self):
        self._run("eval_start")
        self.state.model.eval()
        with torch.no_grad():
            for batch in self._loaders[1]:
                self.state.model(batch)
        self.state.model.train()
        self._run("eval_end")


def install():
    """Make `import composer` find this."""
    package, core, models = (types.ModuleType(name) for name in ("composer", "composer.core", "composer.models"))
    utils, files = types.ModuleType("composer.utils"), types.ModuleType("composer.utils.checkpoint")
    core.Callback, files.load_checkpoint, package.Trainer = Callback, load_checkpoint, Trainer
    models.ComposerModel = torch.nn.Module
    for one in (package, core, models, utils, files):
        sys.modules[one.__name__] = one
    Trainer.__module__, State.__module__ = "composer.trainer", "composer.core.state"


def saved_in(folder):
    return sorted(os.path.basename(path) for path in glob.glob(folder + "/*.pt") if not os.path.islink(path))
