"""Checkpoints of a Trainer of Lightning: its own file in our directory when asked, and what fit() continues from.

The position in the data is there, too: Lightning keeps the state of a wrapped loader.
"""

from __future__ import annotations

import glob
import hashlib
import importlib
import json
import os
import re
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple
from weakref import ref

from trainer_shim import launch, origin
from trainer_shim.engines import base, hooks, trained
from trainer_shim.engines.background import Write, absolute
from trainer_shim.guard import attempt, guarded, print_line
from trainer_shim.lifetime import keeping
from trainer_shim.loader import WrappedLoader, position_of, prepare
from trainer_shim.meter import StepMeter
from trainer_shim.saving import checkpoint, patience, rng
from trainer_shim.saving.pickled_values import Budget, TooLargeError, values_of

CHECKPOINT_FILE = "trainer.ckpt"
STATE_KEY = "costgov"  # Of our callback's state in a checkpoint.
_CKPT_PATH = 4  # fit(model, train_dataloaders, val_dataloaders, datamodule, ckpt_path).
_SHARDS_META = "meta.pt"  # Beside the shards of a strategy that saves a directory.
_STEP = re.compile(r"step=(\d+)")  # As ModelCheckpoint names it.
_NOT_MADE_UP = "Lightning does not make up for it"
_PLATEAU_LEFT_OUT = (
    "Lightning does not step ReduceLROnPlateau at the end of the epoch in which a resume begins. "
    "The learning rate may differ from there on"
)
_OWN_MAX = 32  # The newest files that are looked into. ModelCheckpoint keeps one by default.


@guarded(fallback={})
def fit_state(meter: StepMeter) -> Dict[str, Any]:
    """Return what a checkpoint of Lightning's own lacks. {}: nothing is added to it."""
    state = {**state_of(meter.tokens_total if meter.tokens_known else None), "sound": meter.progress.is_good}
    state.update(origin.told_by(meter.progress))
    return {**state, patience.DUE: True} if meter.evaluation_due else state


def trained_in(trainer: Any) -> List[Tuple[str, Any]]:
    """Return what its optimizers train, by name. Empty before fit()."""
    module = trainer.lightning_module
    return [] if module is None else base.watched(module.named_parameters(), trainer.optimizers)


def callback_class(trainer: Any) -> Any:
    """Return Lightning's own base of callbacks, of either package."""
    packages = [one.__module__.split(".")[0] for one in type(trainer).__mro__]
    package = next(name for name in packages[::-1] if name in ("lightning", "pytorch_lightning"))
    return importlib.import_module("lightning.pytorch" if package == "lightning" else package).Callback


def prepare_inner(trainer: Any, original: Callable[..., Any], loader: Any, *args: Any, **kwargs: Any) -> Any:
    """Lightning gives ranks a sampler of their own in a DataLoader that it knows: so it gets the one inside of ours."""
    if not isinstance(loader, WrappedLoader):
        return original(loader, *args, **kwargs)
    prepare(loader, lambda inner: original(inner, *args, **kwargs))
    if getattr(trainer, "training", False):  # Not one of validation, inside of fit() either.
        known = ref(trainer)  # The script may use its loader for the next one.
        position_of(loader).hold_back(lambda: _held_back(known()))
        is_counted, _ = attempt(_is_epoch_counted, trainer)
        position_of(loader).count_epochs(bool(is_counted))
    return loader


def _held_back(trainer: Any) -> int:
    """Return how many batches wait in fit(): of a loader without a length Lightning has the next one at hand."""
    fetcher = getattr(getattr(trainer, "fit_loop", None), "_data_fetcher", None)
    return len(getattr(fetcher, "batches", ()))


def _is_epoch_counted(trainer: Any) -> bool:
    """Whether fit() goes on from the end of an epoch's last batch: it counts that epoch as done, and asks for the next.

    Behind a validation it does so at the next epoch. Where the epoch's end had begun it asks for a batch of it first,
    and learns from the loader that there is none.
    """
    loop = trainer.fit_loop
    epochs, batches = loop.epoch_progress.total, loop.epoch_loop.batch_progress
    is_in_epoch = epochs.started == epochs.ready and epochs.processed == epochs.completed == epochs.started - 1
    is_in_batch = batches.total.completed == batches.total.processed - 1
    return bool(loop.restarting and batches.is_last_batch and is_in_epoch and is_in_batch)


@guarded()
def give_positions(trainer: Any) -> None:
    """Give the loaders what Lightning has read and gives to none: so it does behind the end of an epoch.

    Call before the generators are put back.
    """
    loop = trainer.fit_loop
    states, loop._combined_loader_states_to_load = getattr(loop, "_combined_loader_states_to_load", ()), []
    loaders = [one for one in loop._combined_loader.flattened if hasattr(one, "load_state_dict")]
    if loop.restarting or len(states) != len(loaders) or _held_back(trainer):
        return  # Where a batch waits, of a loader without a length, the epoch has begun.
    for loader, state in zip(loaders, states):  # noqa: B905  (strict= is not in Python 3.9; the lengths are equal)
        if isinstance(loader, WrappedLoader):
            position_of(loader).count_epochs(True)
            loader.load_state_dict(state)


class OwedValidation:
    """The validation that comes next in the step that fit() goes on from, where the checkpoint was saved before it.

    Lightning counts it as made, but runs one that broke off in its middle: so it is told that this one has.
    """

    def __init__(self, trainer: Any, step: int) -> None:
        self._trainer, self._step = trainer, step
        self._is_owed = True  # Until it begins, or the training goes on or ends without it.
        self._is_arranged, _ = attempt(self._arrange)

    def _arrange(self) -> bool:
        loop = self._trainer.fit_loop.epoch_loop
        stages = importlib.import_module(type(loop.val_loop).__module__).RestartStage
        if not loop.restarted_on_train_batch_end or self._would_end_the_next_epoch():
            return False
        loop.val_loop._restart_stage = stages.RESTARTED_MID_EVALUATION
        loop._batches_that_stepped -= 1  # Lightning has counted this batch, and counts it behind a validation.
        return True

    def _would_end_the_next_epoch(self) -> bool:
        """Lightning has counted the epoch of a last batch already. Its progress it clears by the number of batches.

        Where the loader has no length, the last batch would end an epoch once more behind the validation.
        """
        progress = self._trainer.fit_loop.epoch_loop.batch_progress
        is_cleared = progress.current.completed + 1 >= self._trainer.num_training_batches
        return bool(progress.is_last_batch) and not is_cleared

    @guarded()
    def begin(self) -> None:
        """A validation begins: is it this one, it has not seen a batch."""
        if self._is_owed and self._is_arranged:
            self._is_owed = False
            self._trainer.fit_loop.epoch_loop.val_loop.restarting = False
            say_lacking(self._trainer, self._step, "it comes now")

    @guarded()
    def miss(self) -> None:
        """The next step begins, or the training is over."""
        if self._is_owed:
            self._is_owed = False
            if self._is_arranged:
                self._trainer.fit_loop.epoch_loop._batches_that_stepped += 1
            say_lacking(self._trainer, self._step)


def say_lacking(trainer: Any, step: int, what: str = _NOT_MADE_UP) -> None:
    """Say what becomes of the validation that a checkpoint lacks."""
    if trainer.global_rank == 0:
        print_line("the checkpoint lacks the validation of step %d: %s" % (step, what))


@guarded()
def tell_outside(trainer: Any, module: Any, optimizers: List[Any]) -> None:
    """Lightning saves the module that it fits, unless that adds something by itself."""
    module = getattr(module, "_orig_mod", module)
    is_own = trained.is_own(module, "on_save_checkpoint", "state_dict")
    strategy = type(trainer.strategy).__name__
    if is_own or any(name in strategy for name in ("FSDP", "DeepSpeed", "ModelParallel", "XLA")):
        return
    lost = trained.outside(trained.trained_by(optimizers), trained.parameters_of([module]))
    remedy = "make it an attribute of the LightningModule, or save it in its on_save_checkpoint()"
    trained.warn_lost(lost, "the LightningModule", remedy, bool(trainer.is_global_zero))


@guarded()
def tell_plateau(trainer: Any) -> None:
    """Lightning updates no scheduler by a metric at the end of the epoch that a resume begins in."""
    if trainer.global_rank or not trainer.lightning_module.automatic_optimization:
        return
    if any(one.reduce_on_plateau and one.interval == "epoch" for one in trainer.lr_scheduler_configs):
        print_line(_PLATEAU_LEFT_OUT)


class LightningSaver(base.PositionSaver):
    """The Trainer writes one file, or a directory where its strategy shards; every rank calls it.

    It has what interfaces.OwnMeans has: fit() loads, and Lightning saves unasked, too.
    """

    _trainer, _write = (keeping.Of() for _ in range(2))

    def __init__(self, meter: StepMeter, directory: Optional[str], trainer: Any) -> None:
        super().__init__(meter)
        keeping.keep_at(trainer, self)
        self.directory = directory
        self._trainer = trainer
        self._resuming = hooks.Undo()
        self._write = None

    def contents(self) -> Dict[str, Any]:
        return base.counted(self._trainer.lightning_module.parameters(), self._trainer.optimizers)

    def trained(self) -> Iterable[Tuple[str, Any]]:
        return trained_in(self._trainer)

    def save(self, directory: str, tag: str, client_state: Dict[str, Any]) -> None:
        self.begin_save()
        path = os.path.join(directory, tag)
        os.makedirs(path, exist_ok=True)
        file = os.path.join(path, CHECKPOINT_FILE)
        self._write = None
        write = Write(self._trainer, file)
        with self._meter.unannounced():
            _, error = attempt(self._trainer.save_checkpoint, file)
            if error is not None:
                self._meet_the_others()
                raise error
        write.returned()
        self._write = write

    def _meet_the_others(self) -> None:
        """Under DDP one rank writes, and all come to a barrier behind that: who fails before it would leave them there.

        A strategy in which all write has collectives of its own, and nobody knows in which the others are.
        """
        strategy = self._trainer.strategy
        if type(strategy).__name__ == "DDPStrategy":
            attempt(strategy.barrier, "Trainer.save_checkpoint")

    def pending(self) -> bool:
        if self._write is None or not self._trainer.is_global_zero:
            return False  # Where all ranks write, they have.
        return not self._write.is_over()

    def final_path(self, path: str, step: int, kind: str) -> str:
        """It is written where it stays."""
        return path

    def discard(self, step: int) -> None:
        """Nothing is staged."""

    def join_ranks(self) -> None:
        """Let the ranks meet: fit() would do that, and passes over what is done."""
        self._trainer.strategy.setup_environment()

    def resume_directory(self) -> str:
        return str(self.directory)

    def load(self, directory: str, tag: str) -> Dict[str, Any]:
        """Let the next fit() continue from there, unless the script names another checkpoint itself."""
        path = os.path.normpath(os.path.join(directory, tag))
        if os.path.lexists(os.path.join(path, checkpoint.MANIFEST)):
            path = os.path.join(path, CHECKPOINT_FILE)
        self.forget_resume()
        hooks.give_once(self._resuming, self._trainer, "fit", _CKPT_PATH, "ckpt_path", path)
        if self._trainer.global_rank == 0:
            print_line("trainer.fit() continues from %s, unless it is told ckpt_path=" % path)
            objects, _ = attempt(_objects_in, _file_of(path))
            if objects:
                print_line(
                    "it holds objects (%s): where torch refuses them, pass weights_only=False to fit()" % objects
                )
        return {}

    def forget_resume(self) -> None:
        """Let fit() begin where the script says."""
        self._resuming()

    def own_checkpoints(self, directory: str) -> List[Dict[str, Any]]:
        """Return the files that Lightning saved unasked.

        Loggers number their directories at every launch and for every script: there, only what the same command has
        saved is taken.
        """
        return list(self._own())

    def named_checkpoint(self, path: str) -> Optional[Dict[str, Any]]:
        """Return a file of Lightning's own, or the directory of a strategy that shards."""
        file = _file_of(path)
        if not os.path.isfile(file):
            return None
        loaded, error = attempt(values_of, file)
        unfit = _unfit(loaded, error, is_alone=file == path)
        if loaded is None or unfit is not None:
            raise ValueError(unfit)
        return base.own_manifest(loaded["global_step"], path, file)

    def _own(self) -> Iterator[Dict[str, Any]]:
        files = dict.fromkeys(_files_in(self._below_roots("*", "*", "checkpoints")), False)
        files.update(dict.fromkeys(_files_in([*self._below_roots("checkpoints"), *self._dirpaths()]), True))
        there = {path: _file_of(path) for path in files if os.path.isfile(_file_of(path))}
        newest = sorted(there, key=lambda path: os.path.getmtime(there[path]), reverse=True)
        budget = Budget()
        for path in newest[:_OWN_MAX]:
            loaded, error = attempt(budget.values_of, there[path])
            named = _STEP.search(os.path.basename(path))
            if isinstance(error, TooLargeError) and named is not None and files[path]:
                if self._trainer.global_rank == 0:
                    print_line("%s: its step is known by its name alone, since %s" % (path, error))
                yield base.own_manifest(int(named[1]), path, there[path])
                continue
            ours = _ours(loaded or {})
            if loaded is not None and not files[path] and ours.get("command") != _command():
                continue  # Another script's.
            unfit = _unfit(loaded, error, is_alone=there[path] == path)
            if ours.get("sound") is False:
                unfit = "was saved after a loss that was not finite"
            if loaded is not None and unfit is None:
                yield base.own_manifest(loaded["global_step"], path, there[path])
            elif self._trainer.global_rank == 0:
                print_line("passing over %s: it %s" % (path, unfit))

    def resume_places(self) -> List[str]:
        """Return where Lightning saves unasked."""
        below = [*self._below_roots("checkpoints"), *self._below_roots("*", "*", "checkpoints")]
        return below + self._dirpaths()

    def homes(self) -> List[str]:
        return [*super().homes(), *self._below_roots(), *self.resume_places()]

    def _dirpaths(self) -> List[str]:
        told = (getattr(one, "dirpath", None) for one in self._trainer.checkpoint_callbacks)
        return [absolute(str(dirpath)) for dirpath in told if dirpath]

    def _below_roots(self, *below: str) -> List[str]:
        trainer = self._trainer
        roots = {str(trainer.default_root_dir)}
        roots.update(str(logger.save_dir) for logger in trainer.loggers if getattr(logger, "save_dir", None))
        folders = [glob.escape(absolute(root)) for root in sorted(roots)]
        return [path for folder in folders for path in glob.glob(os.path.join(folder, *below))]


def _files_in(folders: List[str]) -> List[str]:
    return [path for folder in folders for path in glob.glob(os.path.join(glob.escape(folder), "*.ckpt"))]


def state_of(tokens_total: Optional[int]) -> Dict[str, Any]:
    """Return this rank's generators, their seed, and by which command it was started: plain values."""
    import torch

    seed = int(torch.initial_seed())
    return {"v": 1, "rng": rng.capture(), "seed": seed, "tokens_total": tokens_total, "command": _command()}


def _command() -> str:
    """Return a digest: arguments may be secret."""
    told = json.dumps([launch.working_directory(), launch.resume_argv()])
    return hashlib.sha256(told.encode("utf-8", "surrogateescape")).hexdigest()


def _file_of(path: str) -> str:
    """Return the file that says of which step it is."""
    return os.path.join(path, _SHARDS_META) if os.path.isdir(path) else path


def _ours(loaded: Dict[str, Any]) -> Dict[str, Any]:
    """Return what our callback has put into a file of Lightning's."""
    callbacks = loaded.get("callbacks")
    ours = callbacks.get(STATE_KEY) if isinstance(callbacks, dict) else None
    return ours if isinstance(ours, dict) else {}


def _unfit(loaded: Optional[Dict[str, Any]], error: Optional[BaseException], is_alone: bool) -> Optional[str]:
    """Why nobody can go on from it, by its plain values. `is_alone`: no shards are beside it."""
    if loaded is None:
        return "cannot be read (%.200s)" % error
    if not isinstance(loaded.get("global_step"), int) or (is_alone and "optimizer_states" not in loaded):
        return "holds weights alone, and no state of a training to go on from"
    return None


def _objects_in(path: str) -> str:
    """Name the classes that torch makes with code of theirs alone. Nothing of it is run."""
    import torch

    return ", ".join(sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path))[:3])
