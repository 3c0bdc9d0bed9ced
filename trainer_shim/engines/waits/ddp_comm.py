"""What DistributedDataParallel's gradients cost a step beyond its backward pass, as its reducer's logger times them.

The reducer (C++) reduces buckets while the backward pass goes on. Its timer notes, on gloo by the host's clock, when
the first bucket was launched, when the last gradient was there, and when the last bucket was. From the second to the
third the step waits: for the wire, or for a rank that came later. That is the exposed part; the step would be shorter
by it.

Measured in torch 2.13: nanoseconds of wall time; figures of a pass appear when the next one begins, unless
set_runtime_stats_and_log() is called before, which this does; a pass whose gradients were not reduced leaves the
figures of the one before, and its end tells them apart.
"""

from __future__ import annotations

import math
import sys
import time
from typing import Any, Callable, List, Optional, Tuple

from trainer_shim.engines import compiling, hooks
from trainer_shim.guard import guarded
from trainer_shim.lifetime import keeping
from trainer_shim.meter import StepMeter

_RATE_DEFAULT = 100  # torch's kDDPRuntimeLoggingSampleRate, to which it goes back: what it was cannot be asked.
COST_FRAC = 0.01  # Of a step: to be timed and read costs 80 to 130 us.
READS_MIN = 3  # So many are read before their least cost counts: one alone may have been another process's turn.
STEPS_BETWEEN_MAX = 50  # Of steps so short that reading each would cost more.


class DdpComm:
    """The exposed communication of one model's DistributedDataParallel modules. Keeps none of them alive."""

    def __init__(self, torch: Any, model: Any, meter: StepMeter, undo: hooks.Undo) -> None:
        self._is_compiling = compiling.is_compiling_of(torch)
        self._class: Any = torch.nn.parallel.DistributedDataParallel
        self._modules: List[_Module] = []
        self._undo = undo
        self._wait = 0  # Steps until the next one is read.
        self._cost_ns = sys.maxsize
        self._reads = 0
        for module in model.modules():
            if isinstance(module, self._class):
                self._add(module, is_running=False)
        if not self._modules:
            self._seek(model)
        undo.add(self._close)

    @property
    def is_there(self) -> bool:
        """Whether there is one, timed in this step or not."""
        return bool(self._modules)

    def take(self, step_ns: int) -> Optional[int]:
        """Return nanoseconds of the step that ends now and took `step_ns`. None where it was not timed.

        0 where it was watched and reduced no gradients, as under no_sync().
        """
        if self._wait > 0:
            self._wait -= 1
            if not self._wait:
                self._arm(True)
            return None
        began_ns = time.monotonic_ns()
        for module in self._modules:
            module.read()
        exposed = [module.take() for module in self._modules]
        # The least that it has cost: more was another process's turn. And DDP does as much before its next pass.
        self._cost_ns = min(self._cost_ns, 2 * (time.monotonic_ns() - began_ns))
        self._reads += 1
        if self._reads >= READS_MIN and step_ns:
            self._wait = min(math.ceil(self._cost_ns / (COST_FRAC * step_ns)), STEPS_BETWEEN_MAX) - 1
        if self._wait > 0:
            self._arm(False)
        known = [one for one in exposed if one is not None]
        return sum(known) if known and len(known) == len(exposed) else None

    def _arm(self, is_on: bool) -> None:
        for module in self._modules:
            module.arm(is_on)

    def _add(self, ddp: Any, *, is_running: bool) -> None:
        if getattr(ddp, "logger", None) is None or getattr(ddp, "reducer", None) is None:
            return  # Its gradients are reduced in Python: torch_comm.py sees that.
        module = _Module(ddp, is_running=is_running)
        self._modules.append(module)
        self._undo.add(ddp.register_forward_pre_hook(_BeforePass(self._is_compiling, module.before_pass)).remove)
        module.arm(True)

    def _seek(self, model: Any) -> None:
        """The loop may call a DistributedDataParallel around `model`: it is known while its forward pass runs."""
        handles: List[Any] = []

        def seek() -> None:
            active = getattr(self._class, "_active_ddp_module", None)
            if active is not None and any(module is known() for module in active.modules()):
                self._add(active, is_running=True)
            for handle in handles:
                handle.remove()

        known = keeping.known(model)
        handles.append(model.register_forward_pre_hook(_BeforePass(self._is_compiling, guarded()(seek))))
        self._undo.add(handles[0].remove)

    def _close(self) -> None:
        modules, self._modules = self._modules, []
        for module in modules:
            module.arm(False)


class _Module:
    """One DistributedDataParallel."""

    def __init__(self, ddp: Any, *, is_running: bool) -> None:
        """`is_running`: its forward pass is under way, and may not be timed any more."""
        self._known: Callable[[], Any] = keeping.known(ddp)
        self._seen_end = 0  # Of the newest pass that was read, which is none of ours yet.
        self._exposed_ns: Optional[int] = None
        self._is_armed = False
        self._unread = False  # A pass that reduces its gradients went by.
        self._began = is_running  # Such a pass began in this step.
        self._seen_end = self._figures(ddp)[1]

    @guarded()
    def arm(self, is_on: bool) -> None:
        """Have the reducer time each pass from now on, or no more than it does by itself."""
        ddp = self._known()
        self._is_armed = is_on
        self._unread = False
        if ddp is not None:
            ddp._set_ddp_runtime_logging_sample_rate(1 if is_on else _RATE_DEFAULT)

    @guarded()
    def before_pass(self) -> None:
        """A forward pass begins: what the one before has cost is read before its timer starts anew."""
        if self._unread:
            self.read()
        ddp = self._known()
        self._unread = self._is_armed and ddp is not None and bool(ddp.require_backward_grad_sync)
        self._began = self._began or self._unread

    @guarded()
    def read(self) -> None:
        """Add what the last pass has cost, unless that was added."""
        self._unread = False
        ddp = self._known()
        if ddp is None:
            return
        ddp.logger.set_runtime_stats_and_log()
        exposed_ns, end = self._figures(ddp)
        if end != self._seen_end:
            self._seen_end = end
            self._exposed_ns = (self._exposed_ns or 0) + exposed_ns

    def take(self) -> Optional[int]:
        """Return nanoseconds since the last call; None: a pass was not timed."""
        exposed_ns, self._exposed_ns = self._exposed_ns, None
        began, self._began = self._began, False
        return 0 if exposed_ns is None and not began else exposed_ns

    @staticmethod
    def _figures(ddp: Any) -> Tuple[int, int]:
        """Return the exposed time of the newest pass that was timed, and when it ended. (0, 0): there is none."""
        told = ddp.logger._get_ddp_logging_data().ints_map
        return (
            max(0, told.get("backward_comm_time", 0) - told.get("backward_compute_comm_overlap_time", 0)),
            told.get("backward_comm_time_end", 0),
        )


class _BeforePass(hooks.ModelHook):
    __slots__ = ("_call", "_is_compiling")

    def __init__(self, is_compiling: Callable[[], bool], call: Callable[[], None]) -> None:
        self._is_compiling, self._call = is_compiling, call

    def __call__(self, _module: Any, _args: Any) -> None:
        if not self._is_compiling():
            self._call()
