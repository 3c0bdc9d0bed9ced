"""A rank's own timers: what it did with its time, whatever the shim says. No timer counts what an inner one counts."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch._C import _distributed_c10d as c10d

# What Python code calls of a process group, under the names that torch 2.1 to 2.13 have.
COLLECTIVES = (
    "allreduce", "allreduce_coalesced", "allgather", "_allgather_base", "all_gather_single", "reduce",
    "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter", "broadcast", "barrier",
)  # fmt: skip


def queued_s() -> float:
    """How long the main thread has had no core although it could have run."""
    told = Path("/proc/self/schedstat").read_text(encoding="ascii").split()
    return int(told[1]) / 1e9


class Truth:
    """Seconds by name, of one rank and one attempt. Written whenever the loop says so: a rank may end at any moment."""

    def __init__(self, pause: Callable[[float], object]) -> None:
        """`pause`: takes so many seconds, where a collective is to be late."""
        self._pause = pause
        self.spent: dict[str, float] = {}
        self.steps: list[tuple[int, float, float]] = []  # Number, and when it began and ended by CLOCK_MONOTONIC.
        self.in_backward = False
        self.is_training = True  # Else collectives are a part of an evaluation or a save.
        self._began = time.monotonic()
        self._inside = ""
        self._late = 0.0  # Seconds that the next collective takes longer.
        self._ready = 0.0
        self._queued, self._cpu = queued_s(), time.thread_time()

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Count the time inside, unless it is inside another one's already."""
        if self._inside:
            yield
            return
        self._inside, began = name, time.monotonic()
        try:
            yield
        finally:
            self._inside = ""
            self.add(name, time.monotonic() - began)

    def add(self, name: str, seconds: float) -> None:
        self.spent[name] = self.spent.get(name, 0.0) + seconds

    def step_ended(self, step: int, late: float = 0.0) -> None:
        """`late`: the next step's first collective takes so many seconds longer."""
        now = time.monotonic()
        self.steps.append((step, self._began, now))
        self.spent["queued"] = queued_s() - self._queued
        self.spent["cpu"] = time.thread_time() - self._cpu
        self._began, self._late = now, late

    def loop_begins(self, late: float = 0.0) -> None:
        self._began, self._late = time.monotonic(), late
        self._queued, self._cpu = queued_s(), time.thread_time()

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({"spent": self.spent, "steps": self.steps}))

    # --- collectives --------------------------------------------------------------------------------------------

    def time_collectives(self) -> None:
        """Time those that Python code calls. Before the shim is attached: what it wraps is then ours."""
        for owner, names in ((c10d.ProcessGroup, COLLECTIVES), (c10d.Work, ("wait",))):
            for name in names:
                if callable(vars(owner).get(name)):
                    setattr(owner, name, self._collective(getattr(owner, name), is_first=owner is c10d.ProcessGroup))

    def _collective(self, original: Callable[..., Any], *, is_first: bool) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.is_training or self._inside:
                return original(*args, **kwargs)
            with self.timed("communication"):
                if is_first:
                    self._sleep_late()
                return original(*args, **kwargs)

        return call

    def _sleep_late(self) -> None:
        late, self._late = self._late, 0.0
        self._pause(late)

    def time_ddp(self, model: Any) -> None:
        """Of DDP, whose reducer is C++: from the last gradient until backward() returns; late by its hook."""
        from torch import distributed

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self._is_ready)

        def reduce(_: Any, bucket: Any) -> Any:
            pending = distributed.all_reduce(bucket.buffer(), async_op=True).get_future()

            def arrived(future: Any) -> Any:
                self._sleep_late()
                return future.value()[0] / distributed.get_world_size()

            return pending.then(arrived)

        reduce.__annotations__.clear()  # torch looks at them, and these are strings.
        if self._late:  # Else DDP as everyone has it.
            model.register_comm_hook(None, reduce)

    def _is_ready(self, _: Any) -> None:
        self._ready = time.monotonic()

    def backward_ended(self, *, is_ddp: bool) -> None:
        if is_ddp:
            self.add("communication", time.monotonic() - self._ready)
