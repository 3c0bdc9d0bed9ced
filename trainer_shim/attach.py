"""attach(): one line in a training script. It finds out what it can by itself, and never raises into the script."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, TypeVar, cast
from weakref import ref

from . import launch, tokens
from .engines import data_loader, hooks
from .engines.base import Kind, Options
from .engines.replicas import HINT, is_rehearsal
from .engines.save_fn import tell_misfits
from .engines.select import kind_of
from .guard import attempt, print_line
from .interfaces import Resumed, Saver, Watch
from .lifetime import keeping, turns
from .lifetime.turns import Turn
from .loader import WrappedLoader, wrap_loader
from .meter import StepMeter
from .phases import CURRENT, data, phase
from .progress import Progress
from .version import __version__
from .wire import TEXT_CHARS_MAX

MakeWatch = Callable[..., Watch]


class Shim:
    """What attach() returns. Nothing on it needs to be called; every method is safe when nobody watches."""

    def __init__(self, meter: StepMeter, total_steps: Optional[int]) -> None:
        self._turn: Optional[Turn] = None
        self._meter = meter
        self._total_steps = total_steps
        self._undo: Callable[[], None] = _nothing
        self._let_go: Callable[[], None] = _nothing
        self.watching = False

    @property
    def step(self) -> int:
        """Optimizer updates completed, absolute over the run."""
        return self._meter.progress.step

    @property
    def tokens_total(self) -> int:
        """Tokens trained on, absolute over the run; 0 where they cannot be counted."""
        return self._meter.tokens_total

    def loss(self, loss: Any) -> Any:
        """Plain loops: note this micro-step's loss just before backward(), and return it unchanged."""
        self._meter.enter_backward(loss)
        return loss

    def wrap_loader(self, loader: Any) -> WrappedLoader[Any]:
        """Time the waits of `loader` and keep its position in checkpoints."""
        return wrap_loader(loader)

    def phase(self, name: str) -> phase:
        """Name a pause: `with shim.phase("eval"):`."""
        return phase(name)

    def data(self) -> data:
        """Loops without a DataLoader: `with shim.data(): x, y = get_batch("train")`."""
        return data()

    def resume(self, directory: Optional[str] = None) -> Optional[Resumed]:
        """Continue from the newest whole checkpoint (default: in `checkpoint_dir`), or from the one at `directory`.

        Collective: call on every rank before the first step. Returns what it found (step, tokens_total, path,
        position), or None. Raises FileNotFoundError where you name a path that holds nothing to go on from: training
        anew is what costs.
        """
        if not self.watching:
            if directory:
                raise RuntimeError(
                    "resume(%r): this handle is attached to nothing, so nothing is loaded" % (directory,)
                )
            print_line("resume(): this handle is attached to nothing, so nothing is loaded")
            return None
        return self._meter.watch.resume(directory)

    def checkpoint(self) -> None:
        """Save a whole, durable checkpoint within the next steps, all ranks at one agreed step.

        resume() finds it, and a halt counts it as saved work. Returns at once; call it as often as you would save.
        """
        self._meter.watch.checkpoint()

    def finish(self, reason: str = "finished", completed: bool = True) -> None:
        """Tell the governor that training is over (`completed` = as planned). Idempotent."""
        if self._meter.device is not None:
            attempt(self._meter.send_arrived)
        self._meter.watch.finish(reason, completed)

    def close(self) -> None:
        """Take every hook off and say bye. Nothing of ours keeps model or optimizer alive then."""
        atexit.unregister(self._at_exit)
        self.finish("closed", self._reached_the_end())
        self._undo()
        self._meter.watch.close()  # It may have a checkpoint to finish, which asks the saver.
        self._let_go()
        self._undo = self._let_go = _nothing
        self.watching = False
        if CURRENT.meter is self._meter:
            CURRENT.meter = None

    def _reached_the_end(self) -> bool:
        return self._total_steps is not None and self.step >= self._total_steps

    def _at_exit(self) -> None:
        if self.watching:
            self.finish("exit", self._reached_the_end())


_Attach = TypeVar("_Attach", bound=Callable[..., Shim])


def _taking_any_call(function: _Attach) -> _Attach:
    """A call that the signature refuses trains on unwatched, like any other that cannot be attached."""

    @functools.wraps(function)
    def take(*args: Any, **kwargs: Any) -> Shim:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            by_place = TypeError("one object is given by its place, all else by name, as in optimizer=optimizer")
            return _unwatched(_handle(), by_place if len(args) > 1 else error)

    return cast(_Attach, take)


@_taking_any_call
def attach(
    engine: Any,
    *,
    run: Optional[str] = None,
    stage: Optional[str] = None,
    labels: Optional[Mapping[str, Any]] = None,
    checkpoint_dir: Optional[str] = None,
    tokens_per_step: Optional[int] = None,
    tokens_fn: Optional[Callable[..., int]] = None,
    data_parallel_size: Optional[int] = None,
    total_steps: Optional[int] = None,
    signal: Optional[int] = None,
    optimizer: Any = None,
    stateful: Optional[Mapping[str, Any]] = None,
    save_fn: Optional[Callable[..., Any]] = None,
    load_fn: Optional[Callable[..., Any]] = None,
    make_watch: Optional[MakeWatch] = None,
) -> Shim:
    """Let the costgov governor of this node see the training of `engine` and ask it for checkpoints.

    `engine`: DeepSpeedEngine, PipelineEngine, transformers.Trainer, lightning.pytorch.Trainer, accelerate.Accelerator
    (after prepare), or a torch module (pass its `optimizer`). Call it once per rank, after the engine exists and
    before the first step.

    Everything else is optional. `run`, `stage`, `labels` default to COSTGOV_RUN, COSTGOV_STAGE and COSTGOV_LABELS
    ("a=b,c=d"); without a run name one is derived from the script and its directories. `tokens_per_step` is for the
    whole global batch; `tokens_fn` gets the forward pass's arguments and returns this rank's micro-batch tokens;
    with neither, tokens are counted from the first [batch, sequence] integer tensor. `data_parallel_size`: how many
    ranks see different tokens, where neither engine nor model shows it. `signal` overrides SIGUSR1 (0 = none).
    Plain loops are saved as model, optimizer and `stateful` (name -> anything with state_dict);
    `save_fn(directory, tag, client_state)` and `load_fn(directory, tag)` replace that, and Accelerate's save_state.
    A sharded (FSDP) model needs them: what cannot be saved is said on rank 0's terminal, once.
    `make_watch` makes another transport than ours: see interfaces.Watch.

    Attaching the same engine again returns the same handle. Another engine begins the next training of this process,
    an attempt of its own, and ends the watch of the one before: once train() or fit() has returned, finish() or close()
    was called, or the script has dropped the earlier one. While that trains, the second is not watched: it gets a
    handle with `watching` False, which loads nothing, and the governor raises an alarm that stays.
    Never raises; with COSTGOV_REQUIRED=1 it ends a process that it cannot watch.
    """
    options = Options(checkpoint_dir, optimizer, stateful or {}, save_fn, load_fn)
    shim = _handle(total_steps, tokens_per_step, tokens_fn)
    meter = shim._meter
    kind, error = attempt(kind_of, engine, options)
    if error is not None:
        return _unwatched(shim, error)
    known = _in_its_place(shim, engine, kind)
    if known is not None:
        return known
    overrides = {"run": run, "stage": stage, "tokens_per_step": tokens_per_step, "total_steps": total_steps}
    overrides["data_parallel_size"] = data_parallel_size
    _, error = attempt(_start, shim, meter, engine, kind, options, overrides, labels or {}, signal, make_watch)
    if error is not None:
        return _unwatched(shim, error)
    shim.watching = True
    _ATTACHED[:] = _LAST[:] = [shim]
    _TRAININGS[0] += 1
    CURRENT.meter = meter
    atexit.register(shim._at_exit)
    return shim


def _in_its_place(shim: Shim, engine: Any, kind: Kind) -> Optional[Shim]:
    """Return the handle that `engine` gets since something is watched already. None: it is over, and is closed now."""
    known = _ATTACHED[0] if _ATTACHED else None
    if known is None or not known.watching or known._turn is None:
        return None
    if known._turn.is_of(engine, kind.keeper()):
        _LAST[:] = [known]
        return known
    is_over = known._turn.is_over(type(kind), engine)
    is_over_for_all, error = attempt(turns.on_all_ranks, is_over)
    if is_over if error is not None else is_over_for_all:
        known.close()
        return None
    _LAST[:] = [shim]
    return _beside(shim, known, engine)


def _handle(
    total_steps: Optional[int] = None,
    tokens_per_step: Optional[int] = None,
    tokens_fn: Optional[Callable[..., int]] = None,
) -> Shim:
    progress = Progress(threading.get_ident())
    return Shim(StepMeter(progress, tokens.TokenCount(tokens_per_step, tokens_fn, 1)), total_steps)


_ATTACHED: List[Shim] = []  # What is watched, or was watched last.
_LAST: List[Shim] = []  # Of the last attach(), which may watch nothing beside that.
_TRAININGS = [0]  # That were watched in this process, the one at hand included.


def resume(directory: Optional[str] = None) -> Optional[Resumed]:
    """Continue from the newest whole checkpoint, through the handle of the last attach(); see Shim.resume."""
    if not _LAST:
        if directory:
            raise RuntimeError("resume(%r) comes after attach(): nothing is loaded" % (directory,))
        print_line("resume() comes after attach(): nothing was resumed")
        return None
    return _LAST[0].resume(directory)


def _start(
    shim: Shim,
    meter: StepMeter,
    engine: Any,
    kind: Kind,
    options: Options,
    overrides: Dict[str, Any],
    labels: Mapping[str, Any],
    signal: Optional[int],
    make_watch: Optional[MakeWatch],
) -> None:
    environ = dict(os.environ)
    if signal is not None:
        environ["COSTGOV_SIGNAL"] = str(int(signal))
    keeper = kind.keeper()
    shim._turn = Turn(engine, keeper, type(kind), meter.progress)
    attempt(keeping.keep, keeper, "kind", kind)
    shim._let_go = functools.partial(keeping.let_go, keeping.known(keeper))
    directory = options.checkpoint_dir or kind.checkpoint_dir() or environ.get("COSTGOV_CHECKPOINT_DIR")
    directory = os.path.abspath(directory) if directory else None
    saver: Saver = kind.saver(meter, directory)
    overrides = _as_json(overrides)
    meter.count.per_step = overrides.get("tokens_per_step")
    launched = launch.Launch(environ, directory)
    tell_misfits(options.save_fn, options.load_fn, launched.rank == 0)
    hello = _hello(launched, kind, overrides, labels, saver, environ)
    meter.count.ask(functools.partial(_replicas, ref(kind), meter, launched.rank, overrides.get("data_parallel_size")))
    meter.progress.step = kind.step()
    undo = hooks.Undo()
    undo.add(kind.instrument(meter))
    data_loader.watch(meter, undo)
    attempt(saver.look_at_start)
    shim._undo = undo
    watch: Watch = (make_watch or _watcher)(hello, meter.progress, saver, environ=environ)
    meter.watch = watch
    watch.start()
    missing = kind.cannot_save(directory)
    if missing is not None and launched.rank == 0:
        print_line("cannot save a checkpoint when asked: %s" % missing)


def _watcher(*args: Any, **kwargs: Any) -> Watch:
    from .watcher import Watcher

    return Watcher(*args, **kwargs)


def _replicas(
    known: Callable[[], Optional[Kind]], meter: StepMeter, rank: int, given: Optional[int], batch: Any
) -> Optional[tokens.Replicas]:
    """Return how many ranks see different tokens: the user's word, else what the engine shows. Tell the governor."""
    kind = known()
    if kind is None or is_rehearsal():
        return None
    asked, error = attempt(kind.replicas, batch)
    found: tokens.Replicas = asked if asked is not None else tokens.Replicas(None, "")
    if error is not None:
        found = tokens.Replicas(None, "%s: %s; %s" % (type(error).__name__, error, HINT))
    if given:
        found = tokens.Replicas(given, "data_parallel_size=", found.place if found.ranks == given else None)
    if found.ranks is None:
        if rank == 0:
            print_line("tokens are not counted: %.300s" % found.why)
    elif found.ranks > 1 and found.place is not None:
        meter.watch.hello_field("data_parallel_size", found.ranks)
        meter.watch.hello_field("data_parallel_rank", found.place)
    return found


def _hello(
    launched: launch.Launch,
    kind: Kind,
    overrides: Dict[str, Any],
    labels: Mapping[str, Any],
    saver: Saver,
    environ: Mapping[str, str],
) -> Dict[str, Any]:
    hello: Dict[str, Any] = {
        "rank": launched.rank,
        "local_rank": launched.local_rank,
        "world_size": launched.world_size,
        "run": launched.run,
        # Each training of one process is an attempt of its own: its steps and losses begin anew.
        "attempt": launched.attempt + ("+%d" % _TRAININGS[0] if _TRAININGS[0] else ""),
        "stage": launched.stage,
        "labels": launch.clean_labels({**launched.labels, **labels}),
        "gpu_uuids": launch.gpu_uuids(environ),
        "checkpoint_dir": saver.directory,
        "resume_argv": launch.resume_argv(),
        "cwd": launch.working_directory(),
        "shim_version": __version__,
        "started_mono_ns": time.monotonic_ns(),
    }
    hello.update(kind.hello_fields())
    hello.update(overrides)
    return {name: value for name, value in hello.items() if value is not None}


def _as_json(overrides: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the overrides as JSON values: a run's name may be a path, a size numpy's. Raises ValueError."""
    given: Dict[str, Any] = {name: value for name, value in overrides.items() if value is not None}
    for name, value in given.items():
        given[name] = str(value)[:TEXT_CHARS_MAX] if name in ("run", "stage") else int(value)
    return given


def _beside(shim: Shim, known: Shim, engine: Any) -> Shim:
    """Leave `engine` unwatched beside what `known` watches. The governor hears of it through that one."""
    name = type(engine).__name__[:TEXT_CHARS_MAX]
    known._meter.watch.hello_field("beside", name)
    print_line(
        "UNWATCHED: attach(%s): another training of this process is watched and not over: something (a variable, a "
        "scheduler) holds its model and optimizer yet; finish() or close() its handle first, or attach one module "
        "with the optimizers of both" % name
    )
    return _refused(shim)


def _unwatched(shim: Shim, error: Exception) -> Shim:
    print_line("attach() failed, training goes on unwatched: %s: %.300s" % (type(error).__name__, error))
    attempt(shim._undo)
    return _refused(shim)


def _refused(shim: Shim) -> Shim:
    if launch.is_required(os.environ):
        sys.exit("costgov: COSTGOV_REQUIRED=1 refuses to train unwatched")
    return shim


def _nothing() -> None:
    return None
