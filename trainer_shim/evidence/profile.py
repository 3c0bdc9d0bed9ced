"""A few steps under torch.profiler: started and stopped on the training thread, written by another.

The profiler records the thread that starts it. A trace takes a second to write, which no step waits for.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any, Callable, Dict, Optional

from trainer_shim import wire
from trainer_shim.guard import attempt

TRACE_BYTES_MAX = 64 << 20
FOLDER = "costgov-profile"

Answer = Callable[[Dict[str, Any]], None]


def own_folder(folder: str) -> int:
    """Open this folder, made where there is none. OSError for a link, another user's, and where others may write.

    Where a script runs in a directory that is everybody's, anybody may have made it before.
    """
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    facts = os.fstat(held)
    if facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
        os.close(held)
        raise PermissionError("%s is another user's, or others may write there" % folder)
    return held


class StepProfile:
    """`wanted` is False but while steps are profiled: all that a step costs otherwise is that look."""

    def __init__(self, rank: int, directory: Callable[[], str]) -> None:
        self.wanted = False
        self._rank = rank
        self._directory = directory
        self._steps = 0
        self._answer: Optional[Answer] = None
        self._profiler: Any = None
        self._thread_id = 0
        self._lock = threading.Lock()

    def ask(self, steps: int, answer: Answer) -> Optional[str]:
        """Have the next steps profiled, or say why not. Listener thread."""
        if not 0 < steps <= wire.PROFILE_STEPS_MAX:
            return "a profile is of 1 to %d steps" % wire.PROFILE_STEPS_MAX
        if "torch" not in sys.modules:
            return "torch is not loaded"
        with self._lock:
            if self._answer is not None:
                return "this rank is profiling already"
            self._steps, self._answer = steps, answer
        self.wanted = True
        return None

    def step_passed(self, step: int) -> None:
        """A step is over. Training thread, only while `wanted`."""
        _, error = attempt(self._advance, step)
        if error is not None:
            profiler, self._profiler = self._profiler, None
            if profiler is not None:
                attempt(profiler.stop)
            self._end({"problem": ("%s: %s" % (type(error).__name__, error))[: wire.TEXT_CHARS_MAX]})

    def _advance(self, step: int) -> None:
        if self._profiler is None:
            self._begin()
        elif self._thread_id == threading.get_ident():
            self._steps -= 1
            if self._steps <= 0:
                profiler, self._profiler = self._profiler, None
                self.wanted = False
                profiler.stop()
                threading.Thread(target=self._write, args=(profiler, step), name="costgov-profile", daemon=True).start()

    def _begin(self) -> None:
        torch = sys.modules["torch"]
        if torch._C._autograd._profiler_enabled():
            raise RuntimeError("the script is under a profiler of its own")
        kinds = torch.profiler.ProfilerActivity
        activities = [kinds.CPU] + ([kinds.CUDA] if torch.cuda.is_available() else [])
        profiler = torch.profiler.profile(activities=activities)
        profiler.start()
        self._profiler, self._thread_id = profiler, threading.get_ident()

    def _write(self, profiler: Any, step: int) -> None:
        path, error = attempt(self._written, profiler, step)
        if error is not None:
            self._end({"problem": ("the trace cannot be written: %s" % error)[: wire.TEXT_CHARS_MAX]})
        elif path is None:
            self._end({"problem": "the trace has more than %d MB and was dropped" % (TRACE_BYTES_MAX >> 20)})
        else:
            self._end({"path": path, "step": step})

    def _written(self, profiler: Any, step: int) -> Optional[str]:
        folder = os.path.join(os.path.abspath(self._directory()), FOLDER)
        name = "rank%d-step%d-%d.json.gz" % (self._rank, step, time.time_ns())
        part = "." + name
        held = own_folder(folder)
        try:
            # By the descriptor: whoever may rename the folder meanwhile has no other one written to.
            profiler.export_chrome_trace("/proc/self/fd/%d/%s" % (held, part))
            if os.stat(part, dir_fd=held).st_size > TRACE_BYTES_MAX:
                return None
            os.replace(part, name, src_dir_fd=held, dst_dir_fd=held)
            return os.path.join(folder, name)
        finally:
            try:
                os.unlink(part, dir_fd=held)
            except FileNotFoundError:
                pass
            os.close(held)

    def _end(self, found: Dict[str, Any]) -> None:
        self.wanted = False
        with self._lock:
            answer, self._answer = self._answer, None
        if answer is not None:
            answer(found)
