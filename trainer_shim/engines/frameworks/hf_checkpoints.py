"""Checkpoints of transformers.Trainer: written by its own means, beside its own ones, and continued from by train().

What the shim asks for must not cost what the Trainer has. So the Trainer's `_save_checkpoint` is called for a staging
directory: its rotation (`save_total_limit`) finds nothing to delete there, and nothing is pushed to the hub. Callbacks'
`on_save` is not called: they look for `checkpoint-N` and would upload it. The Trainer's state names no staging
directory, in memory or on disk: that is gone when train() looks for its best checkpoint.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

from trainer_shim.engines import base, hooks
from trainer_shim.guard import attempt, guarded, print_line
from trainer_shim.lifetime import keeping
from trainer_shim.meter import StepMeter
from trainer_shim.saving import checkpoint, patience, publish, store

_OWN = re.compile(r"^checkpoint-(\d+)$")  # What transformers' get_last_checkpoint() looks for.
_STATE = "trainer_state.json"  # The last file that the Trainer writes.
_LOAD = "_load_optimizer_and_scheduler"  # What the Trainer calls for any checkpoint that it goes on from.
_WHOLE, _LACKS, _FAILED = "whole", "lacks", "failed"  # What the first rank has found of the script's own save.
_STATE_WAIT_S = 600.0  # For the first rank, which may write alone.
_STATE_POLL_S = 0.02
_numbers = itertools.count(1)  # Of the saves in this process: the same on all ranks.


class TrainerSaver(base.PositionSaver):
    """interfaces.OwnMeans: the Trainer saves and loads."""

    directory: Optional[str] = None
    _trainer = keeping.Of()

    def __init__(
        self,
        meter: StepMeter,
        trainer: Any,
        connect: Callable[[int, str, str], Optional[store.KeyStore]] = store.connect,
        numbers: Iterator[int] = _numbers,
    ) -> None:
        super().__init__(meter)
        keeping.keep_at(trainer, self)
        self._trainer = trainer
        self._connect = connect
        self._numbers = numbers
        self._output_dir = ""
        self._resuming = hooks.Undo()
        self._loaded: Optional[str] = None  # What train() has loaded and has not gone on from yet.

    def contents(self) -> Dict[str, Any]:
        return base.counted(self._trainer.model.parameters(), (self._trainer.optimizer,))

    def trained(self) -> Iterable[Tuple[str, Any]]:
        return base.watched(self._trainer.model_wrapped.named_parameters(), [getattr(self._trainer, "optimizer", None)])

    def learn_directory(self, directory: str, is_loaded: bool = False) -> None:
        """The engine inside saves into the Trainer's checkpoints: no place of its own."""

    def resume_directory(self) -> str:
        trainer = self._trainer
        if trainer is not None:  # Else it is gone, and its last checkpoint is being published.
            self._output_dir = os.path.abspath(str(trainer.args.output_dir))
        return self._output_dir

    def homes(self) -> List[str]:
        return [self.resume_directory()]

    def path_of(self, step: int) -> str:
        """Return where the Trainer itself saves that step."""
        return os.path.join(self.resume_directory(), "checkpoint-%d" % step)

    def save(self, directory: str, tag: str, client_state: Dict[str, Any]) -> None:
        raise NotImplementedError("the Trainer saves by itself")

    def save_aside(self, step: int) -> str:
        """Have the Trainer save now, on every rank, and return the staged directory. Raises whatever it raises."""
        trainer = self._trainer
        staging = publish.staging_directory(self.resume_directory(), step)
        path = os.path.join(staging, "checkpoint-%d" % step)
        os.makedirs(path, exist_ok=True)
        if trainer.is_local_process_zero():
            attempt(publish.sign, staging)  # All ranks go on into the save, or all would wait.
        if trainer.is_world_process_zero():
            checkpoint.discard_manifest(path)  # An attempt that died here may have left one.
        undo = hooks.Undo()
        hooks.replace(undo, trainer, "_get_output_dir", _returns(staging))
        hooks.replace(undo, trainer, "_push_from_checkpoint", _returns(None))
        only_model = getattr(trainer.args, "save_only_model", False)
        try:
            trainer.args.save_only_model = False  # Without the optimizer it is not the work of the run.
            with self._meter.unannounced(), self._keeping_best(step):
                self._save_whole(path)
        finally:
            trainer.args.save_only_model = only_model
            undo()
        if trainer.is_world_process_zero() and not self.has_state(path):
            raise FileNotFoundError("_save_checkpoint() has left no %s, without which train() cannot go on" % _STATE)
        return path

    @contextlib.contextmanager
    def _keeping_best(self, step: int) -> Iterator[None]:
        """Around a staged save of `step`: the best checkpoint stays the one that it is without us.

        `_save_checkpoint` names the one in the directory that it writes to. In the file stands where the best one is.
        """
        state, undo = self._trainer.state, hooks.Undo()
        if not hasattr(state, "best_model_checkpoint"):
            yield
            return
        kept = state.best_model_checkpoint

        def written(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            state.best_model_checkpoint = self._best_checkpoint(step) or kept
            return original(*args, **kwargs)

        if hasattr(state, "save_to_json"):
            hooks.replace(undo, state, "save_to_json", hooks.around(written))
        try:
            yield
        finally:
            undo()
            state.best_model_checkpoint = kept

    def _best_checkpoint(self, step: int) -> Optional[str]:
        """Where the weights of the best step are once `step` is published, None where no checkpoint has them.

        In the form that the Trainer gives it: its rotation compares texts.
        """
        best = getattr(self._trainer.state, "best_global_step", None)
        if not best or (best != step and not os.path.isdir(self.path_of(best))):
            return None
        return os.path.join(str(self._trainer.args.output_dir), "checkpoint-%d" % best)

    def add_own_files(self, step: int, path: str) -> None:
        """Add to a staged checkpoint what the Trainer's own of that step has besides, of callbacks. Raises OSError.

        The staged one takes its place.
        """
        own = self.path_of(step)
        if not self._trainer.is_local_process_zero() or not os.path.isdir(own):
            return
        for name in sorted(set(os.listdir(own)) - set(os.listdir(path))):
            if name.startswith("costgov_"):  # Of an earlier attempt's save of that step.
                continue
            source, target = os.path.join(own, name), os.path.join(path, name)
            if os.path.isdir(source) and not os.path.islink(source):
                _tree_linked(source, target)
            else:
                _linked(source, target)

    def saves_whole(self) -> bool:
        """Whether what the Trainer saves by itself is what we would: with the optimizer, in the place we look in."""
        trainer = self._trainer
        makers = sum("_save_checkpoint" in vars(one) for one in type(trainer).__mro__)
        is_searching = getattr(trainer, "hp_search_backend", None) is not None
        return makers < 2 and not is_searching and not getattr(trainer.args, "save_only_model", False)

    def _save_whole(self, path: str) -> None:
        """Call the trainer's own `_save_checkpoint`, and transformers' where a subclass saves only adapters (LLaVA).

        Every rank comes to the generators' states in transformers' own. A subclass that does not may still save all.
        """
        trainer, calls = self._trainer, hooks.Undo()
        arrived: List[bool] = []
        made = [vars(one)["_save_checkpoint"] for one in type(trainer).__mro__ if "_save_checkpoint" in vars(one)]
        if len(made) < 2 or not hasattr(trainer, "_save_rng_state"):
            trainer._save_checkpoint(trainer.model, None)
            return
        number = next(self._numbers)
        hooks.replace(calls, trainer, "_save_rng_state", hooks.around(_noted, arrived))
        try:
            trainer._save_checkpoint(trainer.model, None)
        except BaseException:
            attempt(self._lacks_state, path, number, True)
            raise
        finally:
            calls()
        if not arrived and self._lacks_state(path, number, False):
            made[-1](trainer, trainer.model, None)

    def _lacks_state(self, path: str, number: int, has_failed: bool) -> bool:
        """Whether transformers' own has to save as well: all ranks or none, so the first one looks for all.

        No collective: a rank whose save has failed takes part in no further one, and says so.
        """
        trainer = self._trainer
        world_size = int(getattr(trainer.args, "world_size", 1))
        ranks = self._connect(world_size, "costgov-saves", "costgov-saves-at") if world_size > 1 else None
        key = str(number)
        verdict = _WHOLE if self.has_state(path) else _LACKS
        if ranks is None:
            return verdict == _LACKS
        if has_failed or trainer.is_world_process_zero():
            return ranks.settle(key, _FAILED if has_failed else verdict) == _LACKS
        until = time.monotonic() + _STATE_WAIT_S
        while time.monotonic() < until:
            said = ranks.get(key)
            if said is not None:
                return said == _LACKS
            time.sleep(_STATE_POLL_S)
        return False

    def discard(self, step: int) -> None:
        """Remove what is staged of a save that has failed: the Trainer's own next save needs the room."""
        if self._trainer.is_local_process_zero():
            publish.discard(publish.staging_directory(self.resume_directory(), step))

    def has_state(self, path: str) -> bool:
        """Whether train() can go on from a checkpoint of the Trainer's, as far as its own last file shows."""
        return _step_of(path) is not None

    def remove_abandoned(self) -> None:
        """Remove what earlier launches have begun to save there and have not finished. Raises OSError."""
        if self._trainer.is_local_process_zero():
            publish.remove_abandoned(self.resume_directory())

    def final_path(self, path: str, step: int, kind: str) -> str:
        """Where get_last_checkpoint() finds a good one, and does not find a suspect one."""
        if kind == "good":
            return self.path_of(step)
        return os.path.join(self.resume_directory(), "%s%d" % (publish.SUSPECT, step))

    def forget(self, step: int, is_ours_alike: bool = False) -> None:
        """The Trainer writes `checkpoint-STEP` itself, and perhaps over ours: what we noted there is not of its files.

        Nor is an older last file. Without it a save that breaks off counts as none. But where ours has that same work
        (`is_ours_alike`), and the Trainer writes less than all, train() still goes on from there: the last file stays.
        """
        path, noted = self.path_of(step), [checkpoint.rank_file(self._trainer.args.process_index)]
        if self._trainer.is_world_process_zero() and os.path.lexists(os.path.join(path, checkpoint.MANIFEST)):
            noted.append(checkpoint.MANIFEST)
            if not is_ours_alike or self.saves_whole():
                noted.append(_STATE)
        for name in noted:
            if os.path.lexists(os.path.join(path, name)):
                os.unlink(os.path.join(path, name))

    @contextlib.contextmanager
    def noting(self, step: int) -> Iterator[None]:
        """Around a save of the Trainer's own: beside its files stands whose it is, and how many tokens went before.

        Where this rank writes the last file, before that: no whole one lacks it, whatever breaks off behind it.
        """
        noted: List[str] = []
        undo, _ = attempt(self._before_last_file, step, noted)
        try:
            yield
        finally:
            attempt(undo or _nothing)
        if not noted and os.path.isdir(self.path_of(step)):
            self._note(step, self.path_of(step))

    def _before_last_file(self, step: int, noted: List[str]) -> hooks.Undo:
        state, undo = self._trainer.state, hooks.Undo()

        def written(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            for file in (*args, *kwargs.values())[:1]:  # Its name, which the Trainer knows.
                noted.append(str(file))
                self._note(step, os.path.dirname(os.path.abspath(str(file))))
            return original(*args, **kwargs)

        if hasattr(state, "save_to_json"):
            hooks.replace(undo, state, "save_to_json", hooks.around(written))
        return undo

    @guarded()
    def _note(self, step: int, path: str) -> None:
        state = {"v": 1, "position": {**base.counted_by(self._meter), "step": step}}
        checkpoint.write_rank_file(path, int(self._trainer.args.process_index), state)

    def load(self, directory: str, tag: str) -> Dict[str, Any]:
        """Let the next train() continue from there, unless the script names another checkpoint itself."""
        path = os.path.join(directory, tag)
        self.forget_resume()
        hooks.give_once(self._resuming, self._trainer, "train", 0, "resume_from_checkpoint", path)
        if self._trainer.is_world_process_zero():
            print_line("trainer.train() continues from %s, unless it is told resume_from_checkpoint=" % path)
        return {}

    def forget_resume(self) -> None:
        """Let train() begin where the script says."""
        self._resuming()

    def see_loads(self, undo: hooks.Undo) -> None:
        """See which checkpoint train() loads: the script may name one in another directory."""
        if hasattr(self._trainer, _LOAD):
            hooks.replace(undo, self._trainer, _LOAD, hooks.around(self._load_state))

    def _load_state(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        path = args[0] if args else kwargs.get("checkpoint")
        self._loaded = None if path is None else os.path.abspath(str(path))
        return original(*args, **kwargs)

    def loaded_place(self, step: int) -> str:
        """Return the checkpoint of `step` from which train() goes on."""
        loaded, self._loaded = self._loaded, None
        return loaded or self.path_of(step)

    def own_checkpoints(self, directory: str) -> List[Dict[str, Any]]:
        """Return the whole ones that the Trainer saved without us: they have no manifest of ours."""
        return list(self._own(directory))

    def named_checkpoint(self, path: str) -> Optional[Dict[str, Any]]:
        """Return a checkpoint of the Trainer's own, whatever it is named."""
        step = _step_in(path)
        return None if step is None else base.own_manifest(step, path, os.path.join(path, _STATE))

    def _own(self, directory: str) -> Iterator[Dict[str, Any]]:
        for name in sorted(os.listdir(directory)) if os.path.isdir(directory) else []:
            path = os.path.join(directory, name)
            if _OWN.match(name) is None or os.path.lexists(os.path.join(path, checkpoint.MANIFEST)):
                continue
            step = _step_of(path)
            if step is not None:
                yield base.own_manifest(step, path, os.path.join(path, _STATE))
            elif self._trainer.is_world_process_zero():
                print_line("passing over %s: %s is missing, or of another step" % (path, _STATE))


@guarded(fallback=False)
def lacks_evaluation(place: str) -> bool:
    """Whether the step that train() goes on from was saved by us before its evaluation."""
    noted = checkpoint.read_rank_file(place, 0) or {}
    return bool((noted.get("position") or {}).get(patience.DUE))


def _nothing() -> None:
    return None


def _linked(source: str, target: str) -> None:
    """Have a file in both places, without a second copy where the file system can."""
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:  # Another rank's save has written it since.
        return
    except OSError:
        try:
            shutil.copy2(source, target, follow_symlinks=False)
        except FileNotFoundError:
            if os.path.lexists(source):
                raise  # Else an uploader, say, has removed its lock meanwhile: it is in neither.


def _tree_linked(source: str, target: str) -> None:
    try:
        shutil.copytree(source, target, symlinks=True, copy_function=_linked, dirs_exist_ok=True)
    except (shutil.Error, FileNotFoundError) as error:
        failed = [str(one[0]) for one in error.args[0]] if isinstance(error, shutil.Error) else [source]
        if any(os.path.lexists(path) for path in failed):
            raise


def _noted(calls: List[bool], original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    calls.append(True)
    return original(*args, **kwargs)


def _returns(value: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def instead(*_args: Any, **_kwargs: Any) -> Any:
        return value

    return lambda _: instead


def _step_of(path: str) -> Optional[int]:
    """Return the step of a whole checkpoint of the Trainer's by its name, None where that says another."""
    step = _step_in(path)
    return step if step is not None and path.endswith("-%d" % step) else None


def _step_in(path: str) -> Optional[int]:
    """Return the step of a whole checkpoint of the Trainer's, None where its last file is not there."""
    try:
        with open(os.path.join(path, _STATE), encoding="utf-8") as stream:
            step = json.load(stream).get("global_step")
    except (OSError, ValueError, AttributeError):
        return None
    return step if isinstance(step, int) else None
