"""Where the training thread is held at a step boundary. The one object that the two sides of an agreement share.

The open gate costs the training thread one store and one load per step, no lock: it writes its step, then reads
`raised`; the agreement writes `raised`, then reads the step. Whichever comes second sees the other, so no rank can
slip past a promise made in its name.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Dict, NamedTuple, Optional

# Past the deadline by this much the training thread leaves on its own: the store's host may be frozen, and with it
# the thread that would have let us go.
RELEASE_SLACK_NS = 10_000_000_000
_POLL_S = 0.5


class Order(NamedTuple):
    """What the training thread does at the boundary it stands at."""

    save: bool
    tag: str
    kind: str
    park: bool
    exit_code: int
    deadline_ns: int
    incident: str
    step: int


class Result(NamedTuple):
    """What came of an order to save. `path` is the whole checkpoint directory."""

    path: Optional[str]
    error: Optional[str]


class StepGate:
    """States: open -> holding (promise) -> aimed (target known) -> ordered -> saving -> open."""

    def __init__(self, step: int) -> None:
        self.step = step  # Written by the training thread alone.
        self.raised = False
        self.finished = False  # The training loop ended: no further boundary comes.
        self.arrived: Optional[Dict[str, Any]] = None  # Set at the target: what only the training thread may read.
        self.result: Optional[Result] = None
        self.settled = False  # Nothing of the round is left to do: a parked rank may go when nobody ends it.
        self._condition = threading.Condition()
        self._state = "open"
        self._hold_step = 0
        self._target = 0
        self._cap_ns = 0
        self._order: Optional[Order] = None

    # The agreement's side.

    def promise(self, margin: int, cap_ns: int) -> int:
        """Bind the training thread not to pass its present step + margin; return that step."""
        with self._condition:
            self.raised = True  # Before the step is read: see the module's first lines.
            self._state = "holding"
            self._cap_ns = cap_ns
            self.arrived = self.result = None
            self.settled = False
            step = self.step
            self._hold_step = step + margin
            return step

    def aim(self, target: int) -> None:
        """Let the training thread go on up to the agreed step."""
        with self._condition:
            if self._state == "holding":
                self._state, self._target = "aimed", target
                self._condition.notify_all()

    def order(self, order: Order) -> None:
        """Tell the arrived training thread what to do; without a save, at the next boundary it reaches."""
        with self._condition:
            self._order = order
            self._state = "ordered"
            self.raised = True
            self._condition.notify_all()

    def release(self) -> None:
        """Open the gate: nothing was agreed."""
        with self._condition:
            if self._state in ("holding", "aimed"):
                self._open()

    def busy(self) -> bool:
        """False once the training thread is free of the present round, for whatever reason."""
        return self._state != "open" and not self.finished

    # The training thread's side.

    def stand(self, step: int, arrival: Callable[[], Dict[str, Any]], waiting: Callable[[], None]) -> Optional[Order]:
        """Hold as promised and return the order, or None to train on. `arrival` is called at the target,
        `waiting` at most once, before the first real wait."""
        with self._condition:
            told = False
            while self._must_wait(step, arrival):
                if not told:
                    told = True
                    waiting()
                if time.monotonic_ns() > self._cap_ns + RELEASE_SLACK_NS:
                    self.arrived = None
                    self._open()
                    return None
                self._condition.wait(_POLL_S)
            if self._state != "ordered":
                return None
            order, self._order = self._order, None
            self._state = "saving"
            if order is not None and order.save and step != order.step:
                # It had left by itself before the order came: its part would be of another step than the tag says.
                self.result = Result(None, "stands at step %d, past the agreed %d" % (step, order.step))
                order = order._replace(save=False)
            if order is not None and not order.save:
                self._open()
            return order

    def saved(self, result: Result) -> None:
        """Report what came of the order and open the gate. Too late for its round, it leaves the next one's promise."""
        with self._condition:
            if self._state == "saving":
                self.result = result
                self._open()

    def finish(self) -> None:
        """No further boundary comes."""
        with self._condition:
            self.finished = True
            self._open()

    def nap(self, seconds: float) -> None:
        """Sleep on the training thread until something changes, at most so long."""
        with self._condition:
            self._condition.wait(seconds)

    def _must_wait(self, step: int, arrival: Callable[[], Dict[str, Any]]) -> bool:
        if self._state == "holding":
            return step >= self._hold_step
        if self._state == "aimed":
            if step < self._target:
                return False
            if self.arrived is None:
                # Past the target only if steps were skipped, e.g. by a load: then there is no common step.
                late = "stands at step %d, past the agreed %d" % (step, self._target)
                self.arrived = {"error": late} if step > self._target else arrival()
            return True
        return False

    def _open(self) -> None:
        self._state = "open"
        self._order = None
        self.raised = False
        self._condition.notify_all()
