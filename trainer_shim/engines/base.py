"""What the kinds of engines share: what attach() asks of each, what the user told it, and the part of every saver."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Protocol, Tuple

from trainer_shim import origin, timing
from trainer_shim.guard import attempt
from trainer_shim.interfaces import Saver
from trainer_shim.loader import load_loader_states, loader_states
from trainer_shim.meter import StepMeter
from trainer_shim.saving import checkpoint, patience
from trainer_shim.saving.facts import all_tokens, told_in
from trainer_shim.saving.manifest import is_count
from trainer_shim.saving.newest_good import SPARED_MAX
from trainer_shim.sight import weights
from trainer_shim.tokens import Replicas

_LAYERS_MAX = 8  # Two are usual.


class Options(NamedTuple):
    """What the user told attach() about saving and stepping."""

    checkpoint_dir: Optional[str] = None
    optimizer: Any = None
    stateful: Mapping[str, Any] = {}
    save_fn: Optional[Callable[..., Any]] = None
    load_fn: Optional[Callable[..., Any]] = None


class Kind(Protocol):
    """One kind of engine."""

    def checkpoint_dir(self) -> Optional[str]:
        """Return the directory that the engine's own configuration names, if any."""

    def saver(self, meter: StepMeter, directory: Optional[str]) -> Saver:
        """Return how this engine saves into `directory`."""

    def cannot_save(self, directory: Optional[str]) -> Optional[str]:
        """Say why this engine cannot save into `directory`, and what to pass. None where it can, or will learn how."""

    def hello_fields(self) -> Dict[str, Any]:
        """Return hello fields: framework, zero_stage, parameters."""

    def replicas(self, batch: Any) -> Replicas:
        """Return how many ranks see different tokens. Asked once, with the first batch (None: tokens_fn counts)."""

    def step(self) -> int:
        """Return the absolute step it stands at."""

    def keeper(self) -> Any:
        """Return the object without which it cannot train on: what we keep for it hangs there (keeping.py)."""

    def instrument(self, meter: StepMeter) -> Callable[[], None]:
        """Hook it. Returns what takes the hooks off, and keeps nothing of it alive."""


class PositionSaver:
    """The part of interfaces.Saver that is the same for every engine."""

    directory: Optional[str] = None
    loaded_from: Optional[str] = None
    cannot_load: Optional[str] = None

    def __init__(self, meter: StepMeter) -> None:
        self._meter = meter
        meter.teach_directory(self.learn_directory)

    def learn_directory(self, directory: str, is_loaded: bool = False) -> None:
        """The script saved there by itself, or loaded: without other orders, that is where checkpoints go."""
        if is_loaded:
            self.loaded_from = os.path.abspath(directory)
        if self.directory is None:
            self.directory = os.path.abspath(directory)
            self._meter.watch.hello_field("checkpoint_dir", self.directory)

    def homes(self) -> List[str]:
        return [] if self.directory is None else [self.directory]

    def begin_save(self) -> None:
        """From here to the end of the boundary the time belongs to the checkpoint, fsync and votes included."""
        self._meter.clock.switch(timing.CHECKPOINT)

    def pending(self) -> bool:
        return False

    def position(self) -> Dict[str, Any]:
        position = {**counted_by(self._meter), "loaders": loader_states()}
        return {**position, patience.DUE: True} if self._meter.evaluation_due else position

    def contents(self) -> Dict[str, Any]:
        return {}

    def trained(self) -> Iterable[Tuple[str, Any]]:
        """Return what is trained and saved, by name: what watched() chooses, no more. Empty: it is not known."""
        return ()

    def look_at_start(self) -> None:
        weights.look_at_start(self._meter.progress, self.trained)

    def harmed(self) -> Optional[str]:
        return weights.first_harmed(self.trained(), self._meter.progress.meant_nonfinite)

    def join_ranks(self) -> None:
        """They have met: the script, or its launcher, does that."""

    def restore_position(self, position: Dict[str, Any]) -> None:
        load_loader_states(position.get("loaders") or [])
        step = int(position.get("step", self._meter.progress.step))
        go_on(self._meter, step, position, position.get("tokens_total"), position.get("path"))


class Sparing:
    """After a NaN so many of a framework's own saves delete no older checkpoint to make room: until a halt is there."""

    def __init__(self) -> None:
        self._saves = 0  # Since the last good one.

    @property
    def is_first(self) -> bool:
        """Whether the last save is the first one that is not good."""
        return self._saves == 1

    @contextlib.contextmanager
    def around_save(self, is_good: bool, owner: Any, limit: str) -> Iterator[None]:
        """Around one save: `owner` has the number that the framework keeps, None where it keeps all, as its `limit`."""
        self._saves = 0 if is_good else self._saves + 1
        spares = owner is not None and 0 < self._saves <= SPARED_MAX
        before = getattr(owner, limit, None)
        try:
            if spares:
                setattr(owner, limit, None)
            yield
        finally:
            if spares:
                setattr(owner, limit, before)


def report_last_good(meter: StepMeter, step: int, path: str) -> None:
    """Announce a whole checkpoint that the script saved by itself. One saved after a NaN is no good one."""
    record = good_record(meter, step, path)
    if record is not None:
        meter.watch.hello_field("last_good", record)
    elif meter.announces_saves and meter.progress.weights_finite is False:
        meter.watch.hello_field("harmed_save", {"step": step, "path": path})  # Another rank's part may be finite.


def good_record(meter: StepMeter, step: int, path: str) -> Optional[Dict[str, Any]]:
    """Return what is announced of what the script saves now; None for what is no good one."""
    if not meter.announces_saves or not meter.progress.is_good:
        return None
    record: Dict[str, Any] = {"step": step, "path": path, "mono_ns": time.monotonic_ns()}
    if meter.tokens_total and meter.tokens_known:
        record["tokens_total"] = meter.tokens_total
    if meter.progress.weights_finite:
        record["own_finite"] = True
    return record


def watched(named: Iterable[Tuple[str, Any]], optimizers: Iterable[Any]) -> List[Tuple[str, Any]]:
    """Return those that an optimizer holds, whether or not they require a gradient just now.

    What requires one and is held by none is not trained: a sentinel's NaN is no harm. Where optimizers hold copies, as
    masters in full precision or flat ones, or nobody knows what they hold, it is what requires a gradient as well.
    """
    chosen = list(named)
    held = {id(one) for of in optimizers for one in _held_by(of)}
    has_all = bool(held) and held <= {id(one) for _, one in chosen}
    return [(name, one) for name, one in chosen if id(one) in held or (one.requires_grad and not has_all)]


def counted(parameters: Iterable[Any], optimizers: Iterable[Any], has_state: bool = True) -> Dict[str, Any]:
    """Return what a checkpoint of these holds at least: each trained parameter, and this rank's optimizer state.

    Trained is what an optimizer holds and, once it keeps state, has state of: a judge of the outputs may require a
    gradient, and be left out of what is saved. Where optimizers hold flat copies, it is what requires a gradient.
    Weights may be saved at half width, and other ranks' state is not seen from here: a bound that a whole checkpoint
    never misses.
    """
    inner = [innermost(one) for one in optimizers]
    kept = [one for one in map(_state_of, inner) if one]
    held = [{id(one) for of in optimizers for one in _held_by(of)}, {id(one) for state in kept for one in state}]
    chosen = list(parameters)
    count = needed = 0
    trained = [one for one in chosen if id(one) in held[0]] or [one for one in chosen if one.requires_grad]
    for parameter in [one for one in trained if id(one) in held[1]] or trained:
        numel = int(getattr(parameter, "ds_numel", None) or parameter.numel())
        count += numel
        needed += numel * min(2, int(parameter.element_size()))
    for values in (one for state in kept if has_state for one in state.values()):
        tensors = [value for value in values.values() if hasattr(value, "element_size")]
        needed += sum(int(tensor.numel()) * int(tensor.element_size()) for tensor in tensors)
    return {"parameters": count, "bytes_min": needed} if count else {}


def layers(optimizer: Any) -> List[Any]:
    """Return the optimizer as the framework wraps it, layer by layer, itself last."""
    found = [optimizer]
    while hasattr(found[-1], "optimizer") and len(found) < _LAYERS_MAX:
        found.append(found[-1].optimizer)
    return found


def innermost(optimizer: Any) -> Any:
    """Return the optimizer itself: AcceleratedOptimizer steps it only when gradients are synchronised."""
    return layers(optimizer)[-1]


def _state_of(optimizer: Any) -> Dict[Any, Any]:
    return dict(getattr(optimizer, "state", {}))


def _held_by(optimizer: Any) -> Iterator[Any]:
    """Return what it trains. DeepSpeed's keep the model's parameters beside the flat ones that torch's get."""
    for layer in layers(optimizer):
        for group in getattr(layer, "param_groups", ()):
            yield from group["params"]
        for name in ("bit16_groups", "fp16_groups", "bf16_groups"):
            for listed in getattr(layer, name, None) or ():
                yield from listed if isinstance(listed, (list, tuple)) else ()


def go_on(
    meter: StepMeter, step: int, saved: Mapping[str, Any], tokens_total: Optional[int], path: Optional[str]
) -> None:
    """Training goes on from the checkpoint of step `step` at `path`. `saved`: what is noted in it, or beside it."""
    origin.go_on(meter.progress, meter.watch, told_in(saved), step, path)
    meter.resumed(step, tokens_total)


def go_on_from(meter: StepMeter, step: int, path: str, rank: int) -> None:
    """As go_on(), from checkpoint directory `path`, which may be none of ours."""
    go_on(meter, step, origin.told_beside(path, rank), tokens_before(path, rank), path)


def counted_by(meter: StepMeter) -> Dict[str, Any]:
    """Return what is noted beside a checkpoint of the present step: whose it is, and what went before."""
    counted: Dict[str, Any] = {
        "step": meter.progress.step,
        "tokens_total": meter.tokens_total if meter.tokens_known else None,
        **origin.told_by(meter.progress),
    }
    share = meter.count.share
    if share is not None:
        counted["tokens_own"] = {"total": meter.count.own_total, "place": share.place, "size": share.ranks}
    return counted


def tokens_before(path: str, rank: int) -> Optional[int]:
    """Return how many tokens went before checkpoint directory `path`, None where it is not one of ours.

    Its manifest has what all ranks counted. A rank's own file has what that one counted, times their number: it counts
    where another rank's is missing.
    """
    told = (checkpoint.read_manifest(path) or {}).get("tokens_total")
    if isinstance(told, int):
        return told
    position = checkpoint.position_in(path, rank)
    total = told_in(position).get("tokens_total")
    if total is None or "tokens_own" not in position:
        return total
    of_all, _ = attempt(_of_all, position, checkpoint.positions_in(path))
    return total if of_all is None else int(of_all)


def _of_all(position: Mapping[str, Any], noted: List[Dict[str, Any]]) -> Optional[int]:
    """Return the tokens of all ranks, None where one has noted none of this step. Raises on nonsense."""
    told = [one.get("tokens_own") for one in noted if one["step"] == position["step"]]
    posts = [one for one in told if one is not None and is_count(one["total"])]
    return all_tokens(position["tokens_total"], position["tokens_own"], posts)


def own_manifest(step: Optional[int], path: str, last_file: str) -> Dict[str, Any]:
    """Return the manifest of a checkpoint that the framework or the script saved without us, as resume() is told of it.

    It is without files: nobody has listed them. Whether it is fit to go on from resume() itself judges, as the governor
    does: by saving/weights_sample.py. `last_file`: written last, its time is the checkpoint's.
    """
    return {"step": step, "path": path, "kind": "good", "created_unix_s": os.path.getmtime(last_file)}


def in_phase(meter: StepMeter, phase: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call `original` in this phase: for hooks.around()."""
    part = meter.enter_phase(phase)
    try:
        return original(*args, **kwargs)
    finally:
        meter.exit_phase(part)
