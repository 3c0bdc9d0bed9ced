"""attach(): one line in a training script. It finds out what it can by itself, and never raises into the script."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, TypeVar, cast
from weakref import ref

from . import launch, tokens
from .any_loop import data_loader, own_saves
from .engines import hooks
from .engines.base import Kind, Options
from .engines.replicas import HINT, is_rehearsal
from .engines.save_fn import tell_misfits
from .engines.select import kind_of
from .guard import attempt, print_line
from .interfaces import Resumed, Saver, Watch
from .lifetime import keeping
from .lifetime.meeting import Way, Where
from .lifetime.turns import Turn
from .loader import WrappedLoader, wrap_loader
from .meter import StepMeter
from .phases import CURRENT, data, phase
from .progress import Progress
from .saving.store import begin_turn
from .wire import TEXT_CHARS_MAX

MakeWatch = Callable[..., Watch]


class Shim:
    """What attach() returns. Nothing on it needs to be called; every method is safe when nobody watches."""

    def __init__(self, meter: StepMeter, total_steps: Optional[int], way: Optional[Way] = None) -> None:
        self._turn: Optional[Turn] = None
        self._way = way or _WAY
        self._meter = meter
        self._total_steps = total_steps
        self._undo: Callable[[], None] = _nothing
        self._let_go: Callable[[], None] = _nothing
        self._again: Callable[[], Any] = _nothing  # Attaches the same once more, while that lives.
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
        apart = _gathered(self)
        if apart is None:
            with self._meter.progress.loading():
                return self._meter.watch.resume(directory)
        if directory:
            raise RuntimeError("resume(%r): %s, so nothing is loaded" % (directory, apart))
        print_line("resume(): %s, so nothing is loaded" % apart)
        return None

    def checkpoint(self) -> None:
        """Save a whole, durable checkpoint within the next steps, all ranks at one agreed step.

        resume() finds it, and a halt counts it as saved work. Returns at once; call it as often as you would save.
        """
        self._meter.watch.checkpoint()

    def finish(self, reason: str = "finished", completed: bool = True) -> None:
        """Tell the governor that training is over (`completed` = as planned). Idempotent."""
        self._meter.finish(reason, completed)

    def close(self) -> None:
        """Take every hook off and say bye. Nothing of ours keeps model or optimizer alive then."""
        atexit.unregister(self._at_exit)
        self.finish("closed", self._reached_the_end())
        self._undo()
        self._meter.watch.close()  # It may have a checkpoint to finish, which asks the saver.
        self._let_go()
        self._undo = self._let_go = self._again = _nothing
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

    `engine`: DeepSpeedEngine, PipelineEngine, transformers.Trainer, lightning.pytorch.Trainer, composer.Trainer,
    accelerate.Accelerator (after prepare), or a torch module (pass its `optimizer`, of torch's or megatron-core's).
    Call it once per rank, after the engine exists and before the first step.

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
    kind, error = attempt(kind_of, engine, options)
    if error is not None:
        return _unwatched(shim, error)
    known = _known(engine, kind)
    if known is not None:
        return known
    overrides = {"run": run, "stage": stage, "tokens_per_step": tokens_per_step, "total_steps": total_steps}
    overrides["data_parallel_size"] = data_parallel_size
    call = _Call(engine, options, overrides, labels or {}, signal, make_watch, tokens_fn)
    turn = _ATTACHED[0]._turn if _watched() else None
    number = _WAY.number_for(turn is None or turn.is_over(type(kind), engine))
    if number is not None:
        _begin(call, shim, number, kind)
        return shim
    _LAST[:] = [shim]
    _keep_again(call, shim, kind.keeper(), "beside")
    return _beside(shim, _ATTACHED[0], engine)


class _Call(NamedTuple):
    """What attach() was given. Only the object that is trained may keep one."""

    engine: Any
    options: Options
    overrides: Dict[str, Any]
    labels: Mapping[str, Any]
    signal: Optional[int]
    make_watch: Optional[MakeWatch]
    tokens_fn: Optional[Callable[..., int]]


def _watched() -> bool:
    return bool(_ATTACHED) and _ATTACHED[0].watching


def _known(engine: Any, kind: Kind) -> Optional[Shim]:
    """Return the handle of this very training, where it is watched already."""
    turn = _ATTACHED[0]._turn if _watched() else None
    if turn is None or not turn.is_of(engine, kind.keeper()):
        return None
    _LAST[:] = _ATTACHED
    return _ATTACHED[0]


def _begin(call: _Call, shim: Shim, number: int, kind: Optional[Kind] = None) -> None:
    """Watch in turn `number` of the job what was to be attached, in place of what was watched before."""
    if _watched():
        _ATTACHED[0].close()
    shim._meter = _handle(None, call.overrides["tokens_per_step"], call.tokens_fn)._meter
    begin_turn(number)
    _, error = attempt(_start, shim, call, kind)
    if error is not None:
        _WAY.stay_apart()
        _unwatched(shim, error)
        return
    shim.watching = True
    _ATTACHED[:] = _LAST[:] = [shim]
    CURRENT.meter = shim._meter
    _WAY.settle_in()
    atexit.register(shim._at_exit)


def _keep_again(call: _Call, shim: Shim, keeper: Any, group: str = "again") -> None:
    """In resume() this rank may learn from the others that it has to attach anew. Its own object keeps what that takes.

    The handle must keep nothing alive. `group`: of many handles for one object that are not watched the last few can.
    """
    name, error = attempt(keeping.keep_last, keeper, group, functools.partial(_begin, call))
    if error is None:
        shim._again = functools.partial(keeping.kept_at, keeping.known(keeper), name)
        shim._let_go = functools.partial(keeping.let_go_of, keeping.known(keeper), name)


def _gathered(shim: Shim) -> Optional[str]:
    """Have all ranks in one turn where they resume; return what this rank is in, if that is not to be had."""
    if not shim.watching:
        again = shim._again()
        number = shim._way.late_number() if again is not None else None
        if number is None:
            return "this handle is attached to nothing"
        again(shim, number)
    while shim.watching:
        where, other = shim._way.gather()
        if where is Where.TOGETHER:
            return None
        again = shim._again()
        if where is Where.APART or again is None:
            return "rank %d trains something else, or UNWATCHED, beside this one" % other
        number = shim._way.number_for(True)
        assert number is not None, "what is over is followed by something"
        again(shim, number)
    return "this handle is attached to nothing"


def _handle(
    total_steps: Optional[int] = None,
    tokens_per_step: Optional[int] = None,
    tokens_fn: Optional[Callable[..., int]] = None,
) -> Shim:
    progress = Progress(threading.get_ident())
    return Shim(StepMeter(progress, tokens.TokenCount(tokens_per_step, tokens_fn, 1)), total_steps)


_ATTACHED: List[Shim] = []  # What is watched, or was watched last.
_LAST: List[Shim] = []  # Of the last attach(), which may watch nothing beside that.
_WAY = Way()


def resume(directory: Optional[str] = None) -> Optional[Resumed]:
    """Continue from the newest whole checkpoint, through the handle of the last attach(); see Shim.resume."""
    if not _LAST:
        if directory:
            raise RuntimeError("resume(%r) comes after attach(): nothing is loaded" % (directory,))
        print_line("resume() comes after attach(): nothing was resumed")
        return None
    return _LAST[0].resume(directory)


def _start(shim: Shim, call: _Call, known: Optional[Kind]) -> None:
    engine, options, meter = call.engine, call.options, shim._meter
    kind = known or kind_of(engine, options)
    environ = launch.with_forwarded(os.environ)
    if call.signal is not None:
        environ["COSTGOV_SIGNAL"] = str(int(call.signal))
    keeper = kind.keeper()
    shim._turn = Turn(engine, keeper, type(kind), meter.progress)
    _keep_again(call, shim, keeper)
    attempt(keeping.keep, keeper, "kind", kind)
    shim._let_go = functools.partial(keeping.let_go, keeping.known(keeper))
    directory = options.checkpoint_dir or kind.checkpoint_dir() or environ.get("COSTGOV_CHECKPOINT_DIR")
    directory = os.path.abspath(directory) if directory else None
    saver: Saver = kind.saver(meter, directory)
    overrides = _as_json(call.overrides)
    meter.count.per_step = overrides.get("tokens_per_step")
    launched = launch.Launch(environ, directory)
    tell_misfits(options.save_fn, options.load_fn, launched.rank == 0)
    meter.progress.step = kind.step()
    # What stands at a step has trained, or was loaded, unwatched.
    of_kind = {"origin": None if meter.progress.step else {}, **kind.hello_fields()}
    hello = launch.hello_fields(launched, of_kind, overrides, call.labels, saver.directory, environ, _WAY.number)
    meter.progress.run, meter.progress.origin = hello["run"], hello.get("origin")
    meter.progress.homes = saver.homes if launch.is_unnamed(environ, hello["run"]) else None
    meter.count.ask(functools.partial(_replicas, ref(kind), meter, launched.rank, overrides.get("data_parallel_size")))
    undo = hooks.Undo()
    undo.add(kind.instrument(meter))
    data_loader.watch(meter, undo)
    own_saves.watch(meter, undo)
    attempt(saver.look_at_start)
    shim._undo = undo
    make_watch = call.make_watch or functools.partial(_watcher, shim._way)
    meter.watch = make_watch(hello, meter.progress, saver, environ=environ)
    meter.watch.start()
    missing = kind.cannot_save(directory)
    if missing is not None and launched.rank == 0:
        print_line("cannot save a checkpoint when asked: %s" % missing)


def _watcher(way: Way, *args: Any, **kwargs: Any) -> Watch:
    from .watcher import Watcher

    return Watcher(*args, absent=way.presence().absent, **kwargs)


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
