"""DeepSpeed's collectives, timed where all of them pass: the backend object `deepspeed.comm.comm.cdb`.

The hooks are instance attributes of that one object. Its own methods call each other (all_gather_coalesced and such):
only the outermost call counts.
"""

from __future__ import annotations

import functools
import time
from typing import Any, Callable, Iterator, Optional, Sequence, Set, Tuple

from trainer_shim.guard import guarded
from trainer_shim.meter import StepMeter
from trainer_shim.timing import BUBBLE, NOT_TRAINING, put_comm

COLLECTIVES = (
    "all_reduce",
    "all_reduce_coalesced",
    "inference_all_reduce",
    "broadcast",
    "broadcast_object_list",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_base",
    "all_gather_coalesced",
    "all_gather_object",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_to_all",
    "all_to_all_single",
    "gather",
    "scatter",
    "barrier",
    "monitored_barrier",
    "send",
    "recv",
    "isend",
    "irecv",
    "batch_isend_irecv",
)


class CommMeter:
    """Times collective calls and the waits on asynchronous ones."""

    def __init__(self, meter: StepMeter, stages: Sequence[Any] = ()) -> None:
        """`stages`: process groups that span stages of a pipeline."""
        self.meter = meter
        self.depth = 0
        self._stages = stages

    @guarded()
    def enter(self, op: str, args: Any, kwargs: Any) -> Optional[int]:
        """The training thread enters `op`; returns the part to hand to exit(), where other stages are waited for."""
        meter = self.meter
        meter.progress.enter_collective(op)
        given = (*args, kwargs.get("group"))  # deepspeed.comm passes the group by its place, or by name.
        if meter.clock.part in NOT_TRAINING or not any(group is one for group in self._stages for one in given):
            return None
        return meter.enter_instruction("pipe:" + op, BUBBLE)

    @guarded()
    def exit(self, op: str, entered_ns: int, part: Optional[int]) -> None:
        """The training thread left `op`, which it entered at `entered_ns`."""
        meter = self.meter
        meter.clock.add_comm(meter.progress.leave_collective(op, entered_ns))
        if part is not None:
            meter.exit_instruction("pipe:" + op, part)


class TimedWork:
    """Stands for an asynchronous collective's Work, which refuses attributes; times wait()."""

    __slots__ = ("_comm", "_op", "_work")

    def __init__(self, work: Any, op: str, comm: CommMeter) -> None:
        self._work = work
        self._op = op
        self._comm = comm

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        """Wait as the Work does."""
        comm = self._comm
        if comm.depth:
            return self._work.wait(*args, **kwargs)
        return _timed_call(comm, self._op, self._work.wait, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def wrap_backend(backend: Any, meter: StepMeter, stages: Sequence[Any] = ()) -> Callable[[], None]:
    """Time the collectives of `backend` from now on. Returns what undoes it."""
    comm = CommMeter(meter, stages)
    wrapped: Set[str] = set()
    for op, original in _collectives(backend):
        setattr(backend, op, _timed(comm, op, original))
        wrapped.add(op)
    end = meter.overlapping.add(put_comm) if wrapped else None

    def unwrap() -> None:
        for op in wrapped:
            vars(backend).pop(op, None)
        if end is not None:
            end()

    return unwrap


def _collectives(backend: Any) -> Iterator[Tuple[str, Callable[..., Any]]]:
    for op in COLLECTIVES:
        original = getattr(backend, op, None)
        # One backend outlives many engines: a second attach() must not time the first one's wrapper.
        if callable(original) and op not in vars(backend):
            yield op, original


def _timed(comm: CommMeter, op: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def timed(*args: Any, **kwargs: Any) -> Any:
        if comm.depth:
            return original(*args, **kwargs)
        result = _timed_call(comm, op, original, args, kwargs)
        if result is None or not hasattr(result, "wait"):
            return result
        return TimedWork(result, op, comm)

    return timed


def _timed_call(comm: CommMeter, op: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    comm.depth += 1
    entered_ns = time.monotonic_ns()
    part = comm.enter(op, args, kwargs)
    try:
        return call(*args, **kwargs)
    finally:
        comm.depth -= 1
        comm.exit(op, entered_ns, part)
