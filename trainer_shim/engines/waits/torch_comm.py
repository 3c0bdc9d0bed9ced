"""The time that torch's own collectives take from a step, where the host waits for them: gloo, MPI.

Two sources. Collectives that are called from Python (FSDP1, FSDP2, a loop's own) pass through the methods of torch's
ProcessGroup, and whoever waits for one calls Work.wait(): these are wrapped, for the process, and so is the broadcast
of DDP's buffers. FSDP2 looks at the class of what it waits for: nothing may stand in for a Work. The gradients of
DistributedDataParallel are reduced in C++: ddp_comm.py asks its logger.

A figure is a lower bound: functional collectives (DTensor's, a compiler's) and another library's are not in it. So
there is none before the first that was seen. From then on a step without one says 0, and absent is a step whose
collectives were not all read: a reader takes it to be like those that were. On a device behind the host these would
be launch times: nothing is hooked.
"""

from __future__ import annotations

import functools
import threading
import time
from typing import Any, Callable, Dict, Iterator, Optional, Set, Tuple

from trainer_shim.engines import hooks
from trainer_shim.guard import guarded
from trainer_shim.meter import StepMeter
from trainer_shim.timing import StepTimes, put_comm_between, seconds

from .ddp_comm import DdpComm

# Methods of ProcessGroup, as torch 2.1 to 2.13 name them, by what torch.distributed calls them.
COLLECTIVES = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "allgather": "all_gather",
    "_allgather_base": "all_gather_into_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "all_gather_single_coalesced": "all_gather_into_tensor_coalesced",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor_coalesced",
    "allgather_coalesced": "all_gather_coalesced",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor_coalesced",
    "broadcast": "broadcast",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "all_to_all_single": "all_to_all_single",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "recv": "recv",
    "recv_anysource": "recv",
    "barrier": "barrier",
    "monitored_barrier": "monitored_barrier",
    "_end_coalescing": "coalesced",
}
BUFFERS = "_broadcast_coalesced"  # DDP calls it by this name of torch.distributed, before a forward pass.


class TorchComm:
    """Counts the time in collectives of the training thread, and of autograd's threads while that waits for them."""

    def __init__(self, torch: Any, meter: StepMeter, ddp: Optional[DdpComm] = None) -> None:
        self._meter = meter
        self._ddp = ddp
        self._main = meter.progress.main_thread_id
        # Which backward pass this thread is in. A thread of the script's own is in none, and its waits cost no step.
        self._pass: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)
        self._inside: Set[int] = set()  # Threads in a collective: some call each other.
        self._lock = threading.Lock()
        self._calls = 0  # In this step.
        self._has_stepped = self._reads = False  # Whether a step without a collective is known to have none.
        self._open = True

    def close(self) -> None:
        """Count nothing any more: somebody may have wrapped our wrappers, and these stay."""
        self._open = False

    def counts(self, thread: int) -> bool:
        """Whether a collective that `thread` enters now is one of the training's, and no part of another."""
        return self._open and thread not in self._inside and (thread == self._main or self._pass() != -1)

    @guarded(fallback=0)
    def enter(self, thread: int, op: str) -> int:
        """`thread` enters `op`; returns when."""
        self._inside.add(thread)
        if thread == self._main:
            self._meter.progress.enter_collective(op)
        return time.monotonic_ns()

    @guarded()
    def leave(self, thread: int, op: str, entered_ns: int) -> None:
        """`thread` left `op`, which it entered at `entered_ns`."""
        self._inside.discard(thread)
        if thread == self._main:
            took_ns = self._meter.progress.leave_collective(op, entered_ns)
        else:
            took_ns = time.monotonic_ns() - entered_ns
        with self._lock:
            self._meter.clock.add_comm(took_ns)
            self._calls += 1

    def call(self, thread: int, op: str, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call `original`, timed."""
        entered_ns = self.enter(thread, op)
        try:
            return original(*args, **kwargs)
        finally:
            self.leave(thread, op, entered_ns)

    @guarded()
    def put(self, fields: Dict[str, Any], times: StepTimes) -> None:
        """Put `comm_s`, where all of this step's communication that can be seen was seen.

        Not in the first step with a collective behind steps without one: those told nothing, and are none like it.
        """
        calls, self._calls = self._calls, 0
        had_stepped, self._has_stepped = self._has_stepped, True
        ns = times.comm_ns
        if self._ddp is not None and self._ddp.is_there:
            exposed_ns = self._ddp.take(times.step_ns)
            if exposed_ns is None:
                return  # Its gradients were not timed in this step: the rest alone would mislead.
            ns += exposed_ns
        elif not self._reads:
            self._reads = calls > 0
            if not calls or had_stepped:
                return
        fields["comm_s"] = seconds(min(ns, times.step_ns))
        put_comm_between(fields, times)


def watch(torch: Any, model: Any, meter: StepMeter, undo: hooks.Undo) -> None:
    """Time the collectives of the process until `undo`, and report them with the steps of `model`."""
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available():
        return
    from torch._C import _distributed_c10d as c10d

    ddp = DdpComm(torch, model, meter, undo)
    comm = TorchComm(torch, meter, ddp)
    for name, op in _methods(c10d.ProcessGroup):
        hooks.replace(undo, c10d.ProcessGroup, name, _timed(comm, op))
    hooks.replace(undo, c10d.Work, "wait", _timed(comm, "wait"))
    if hasattr(distributed, BUFFERS):
        hooks.replace(undo, distributed, BUFFERS, _timed(comm, "broadcast"))
    undo.add(comm.close)
    undo.add(meter.overlapping.add(comm.put))


def _methods(group: Any) -> Iterator[Tuple[str, str]]:
    for name, op in COLLECTIVES.items():
        if callable(vars(group).get(name)):
            yield name, op


def _timed(comm: TorchComm, op: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            thread = threading.get_ident()
            if not comm.counts(thread):
                return original(*args, **kwargs)
            return comm.call(thread, op, original, args, kwargs)

        return timed

    return make
