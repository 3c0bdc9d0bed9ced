"""Where the training thread is: written by it alone, read by the listener thread without a lock.

The interpreter makes single attribute stores atomic. A beat that mixes two neighbouring values is harmless: the
governor judges stillness over many beats.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, Optional, Tuple

PASSES_MIN = 16
STEPS_OF_PASSES = 4
_TIMED = ("eval", "checkpoint")  # What a save may have to wait for, and what it may take.


class Progress:
    """The training thread's position. `bump` costs well under a microsecond."""

    __slots__ = (
        "_began_ns",
        "attempt_step",
        "collective",
        "collectives_total",
        "fetch_longest_ns",
        "fetch_ns",
        "fetch_starts",
        "forwards",
        "forwards_longest",
        "has_looked",
        "homes",
        "in_step",
        "last_hook",
        "last_hook_ns",
        "longest_ns",
        "main_thread_id",
        "meant_nonfinite",
        "origin",
        "outputs_nonfinite",
        "outputs_seen",
        "phase",
        "phase_from_ns",
        "phase_since_ns",
        "phases",
        "progress_seq",
        "run",
        "sound",
        "step",
        "weights_finite",
    )

    def __init__(self, main_thread_id: int) -> None:
        now = time.monotonic_ns()
        self.main_thread_id = main_thread_id
        self.progress_seq = 0
        self.step = 0  # Absolute optimizer updates completed.
        self.run = ""  # As in hello.
        self.origin: Optional[Dict[str, Any]] = {}  # Where what it trains began: origin.py.
        # Where a checkpoint is our own whoever has saved it, of a run that nobody named. None: it is named.
        self.homes: Optional[Callable[[], List[str]]] = None
        self.has_looked = False  # For a checkpoint to go on from.
        self.attempt_step = 0
        self.in_step = False
        self.last_hook = "attach"
        self.last_hook_ns = now
        self.phases: List[str] = ["init"]  # Innermost last.
        self.phase = "init"
        self.phase_since_ns = now
        self.phase_from_ns = 0  # The phase that it shows began then already, which was not seen at once. 0: it was.
        self._began_ns: Dict[str, int] = {}  # Of the timed phases it is in, by the outermost of each.
        self.longest_ns: Dict[str, int] = {}  # Of whole ones. Replaced as a whole: the agreement reads it.
        self.sound = True  # The last step that was reported had a finite loss and gradient, as far as they are known.
        # As the trained ones were when the framework last saved, in this rank's part. None: nobody knows.
        self.weights_finite: Optional[bool] = None
        self.meant_nonfinite: FrozenSet[str] = frozenset()  # Names of parameters that were so before the first step.
        self.collectives_total = 0
        # (op, entered_ns, done): replaced as a whole so that a reader never sees half of it.
        self.collective: Optional[Tuple[str, int, bool]] = None
        self.fetch_ns = 0  # Since when the training thread is inside a fetch of data; 0: it is not.
        # Only for the first batch after a loader was started: how often that loader had been started before.
        self.fetch_starts: Optional[int] = None
        self.fetch_longest_ns = 0
        self.forwards = 0  # Forward passes in training since the last optimizer step.
        self.forwards_longest = 0  # The most that a step has taken.
        self.outputs_seen = self.outputs_nonfinite = 0  # Of those passes, where no step comes: sight/outputs.py.

    @property
    def is_stepless(self) -> bool:
        """Whether more forward passes went by since the last step than several of the longest steps take."""
        return self.forwards > PASSES_MIN and self.forwards > STEPS_OF_PASSES * self.forwards_longest

    def saw_output(self, is_finite: bool) -> None:
        """Note whether an output, or a loss, of a forward pass without a step is finite."""
        self.outputs_seen += 1
        if not is_finite:
            self.outputs_nonfinite += 1

    def end_passes(self) -> None:
        """An optimizer step was made of the forward passes since the last one."""
        if self.forwards > self.forwards_longest:
            self.forwards_longest = self.forwards
        self.forwards = self.outputs_seen = self.outputs_nonfinite = 0

    @property
    def is_finished(self) -> bool:
        """Whether the training has said bye, and no step came since."""
        return self.phases[0] == "finish"

    @property
    def is_good(self) -> bool:
        """Whether what the framework saves now, or has just saved, is worth going on from, as far as it is known."""
        return self.sound and self.weights_finite is not False

    def saw_weights(self, are_finite: Optional[bool]) -> None:
        """Note what a look at the weights has shown where the framework saves."""
        self.weights_finite = are_finite

    def saw_start(self, nonfinite: FrozenSet[str]) -> None:
        """Note which parameters are not finite before the first step."""
        self.meant_nonfinite = nonfinite

    def bump(self, hook: str) -> None:
        """Note that the training thread passed a hook."""
        self.progress_seq += 1
        self.last_hook = hook
        self.last_hook_ns = time.monotonic_ns()

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """A load passes no hook. That it began and ended is progress: who stands still behind it hung there.

        The first time alone: a loop that asks again and again, and finds nothing, stands still.
        """
        more = int(not self.has_looked)
        self.has_looked = True
        self.progress_seq += more
        try:
            yield
        finally:
            self.progress_seq += more

    def enter_collective(self, op: str) -> None:
        """Note that the training thread enters the collective `op`."""
        now = time.monotonic_ns()
        self.collective = (op, now, False)
        self.collectives_total += 1
        self.progress_seq += 1
        self.last_hook = "comm:" + op
        self.last_hook_ns = now

    def leave_collective(self, op: str, entered_ns: int) -> int:
        """Note that the training thread left `op`, which it entered at `entered_ns`. Return how long it was inside."""
        now = time.monotonic_ns()
        self.collective = (op, entered_ns, True)
        self.progress_seq += 1
        self.last_hook_ns = now
        return now - entered_ns

    def enter_fetch(self, now_ns: int, starts: Optional[int]) -> None:
        """Note that the training thread asks for a batch; `starts` as in `fetch_starts`."""
        self.fetch_starts = starts
        self.fetch_ns = now_ns

    def leave_fetch(self, now_ns: int) -> None:
        """Note that the training thread has its batch. Without enter_fetch() this does nothing."""
        since_ns = self.fetch_ns
        self.fetch_ns = 0
        if since_ns and now_ns - since_ns > self.fetch_longest_ns:
            self.fetch_longest_ns = now_ns - since_ns

    def set_phase(self, phase: str) -> None:
        """Replace the outermost phase, e.g. init -> train, leaving nested ones alone."""
        self.phases[0] = phase
        self._show()

    def push_phase(self, phase: str) -> None:
        """Enter a nested phase, e.g. checkpoint inside train."""
        is_outermost = phase in _TIMED and phase not in self.phases
        self.phases.append(phase)
        self._show()
        if is_outermost:
            self._began_ns[phase] = self.phase_since_ns

    def finish(self) -> None:
        """The training is over. What the thread did behind its last step or pause was of the end, unless it steps."""
        is_behind = self.phase == "train" and not self.in_step
        since_ns = self.phase_from_ns or self.phase_since_ns
        self.set_phase("finish")
        self.phase_from_ns = since_ns if is_behind else 0

    def pop_phase(self, over_ns: int = 0) -> None:
        """Leave the innermost nested phase. `over_ns`: it was over then, and that is seen only now."""
        assert len(self.phases) > 1, "pop_phase without push_phase"
        left = self.phases.pop()
        self._show()
        self.phase_from_ns = over_ns
        if left in self._began_ns and left not in self.phases:
            took_ns = (over_ns or self.phase_since_ns) - self._began_ns.pop(left)
            self.longest_ns = {**self.longest_ns, left: max(took_ns, self.longest_ns.get(left, 0))}

    def forget_longest(self, phase: str) -> None:
        """What was so named until now was another thing, as the check that Lightning makes before it trains."""
        self.longest_ns = {name: took_ns for name, took_ns in self.longest_ns.items() if name != phase}

    def _show(self) -> None:
        self.phase = self.phases[-1]
        self.phase_since_ns = time.monotonic_ns()
        self.phase_from_ns = 0
        self.progress_seq += 1
