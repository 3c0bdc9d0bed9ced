"""Holds the training thread at a step boundary. The agreement thread and the training thread share this object only.

An open gate costs the training thread one store and one load per step, and no lock: it writes its step, then reads
`raised`. The agreement writes `raised`, then reads the step. Whichever comes second sees the other, so no rank passes
a step that was promised in its name.
"""

from __future__ import annotations

import threading
import time
from enum import Enum
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

# The training thread leaves by itself so long after the deadline. The process that hosts the store may be frozen, and
# with it the thread that would have opened the gate.
RELEASE_SLACK_NS = 10_000_000_000
_POLL_S = 0.5


class State(Enum):
    """What the gate does with the training thread."""

    OPEN = "open"  # It passes.
    HOLDING = "holding"  # It stops at the promised step.
    AIMED = "aimed"  # It goes on to the first boundary from the agreed step on, and stops there.
    ORDERED = "ordered"  # An order waits for it.
    SAVING = "saving"  # It has taken an order to save.


class Event(Enum):
    """What moves the gate: the first four come from the agreement, the others from the training thread."""

    PROMISE = "promise"
    AIM = "aim"
    ORDER = "order"
    RELEASE = "release"
    TAKE_SAVE = "take_save"  # It takes an order to save.
    TAKE_PARK = "take_park"  # It takes an order without a save, or one that came too late to save.
    SAVED = "saved"
    TIME_OUT = "time_out"  # It has waited past the cap.
    FINISH = "finish"  # The training loop ended.


def _table(*rows: Tuple[Event, Tuple[Optional[State], ...]]) -> Dict[Tuple[State, Event], Optional[State]]:
    assert {event for event, _ in rows} == set(Event), "every event has a row"
    assert all(len(states) == len(State) for _, states in rows), "every state has a column"
    # strict= is not in Python 3.9, and the lengths are equal.
    return {(state, event): after for event, states in rows for state, after in zip(State, states)}  # noqa: B905


_O, _H, _A, _D, _S = State
_NO = None  # It cannot come: only the training thread brings it, which is elsewhere then.

TRANSITIONS = _table(
    # In state         OPEN HOLDING AIMED ORDERED SAVING
    (Event.PROMISE, (_H, _H, _H, _H, _H)),  # A save that outlasted its round does not keep the next one waiting.
    (Event.AIM, (_O, _A, _A, _D, _S)),  # Too late where the thread has left by itself.
    (Event.ORDER, (_D, _D, _D, _D, _D)),  # An open gate takes one too: park at the next boundary.
    (Event.RELEASE, (_O, _O, _O, _D, _S)),  # An order that was given is carried out.
    (Event.TAKE_SAVE, (_NO, _NO, _NO, _S, _NO)),
    (Event.TAKE_PARK, (_NO, _NO, _NO, _O, _NO)),
    (Event.SAVED, (_O, _H, _A, _D, _O)),  # Too late for its round, a save leaves the next one's promise alone.
    (Event.TIME_OUT, (_NO, _O, _O, _NO, _NO)),
    (Event.FINISH, (_O, _O, _O, _O, _O)),
)


class Order(NamedTuple):
    """What the training thread does at the boundary where it stands."""

    save: bool
    tag: str
    kind: str
    park: bool
    exit_code: int
    deadline_ns: int
    incident: str
    step: int
    waits: bool = False  # Where the step's evaluation comes next: the save may come behind it.


class Result(NamedTuple):
    """What came of an order to save. `path` is the whole checkpoint directory."""

    path: Optional[str]
    error: Optional[str]


class StepGate:
    """One rank's gate. `step` and `raised` are read without a lock, everything else under it."""

    def __init__(self, step: int) -> None:
        self.step = step  # Written by the training thread alone.
        self.raised = False  # True in every state but OPEN.
        self.finished = False  # The training loop ended: no further boundary comes.
        self.arrived: Optional[Dict[str, Any]] = None  # Set at the target: what only the training thread may read.
        self.result: Optional[Result] = None
        self.settled = False  # Nothing of the round is left to do: a parked rank may go when nobody ends it.
        self._condition = threading.Condition()
        self._state = State.OPEN
        self._hold_step = 0
        self._target = 0
        self._cap_ns = 0
        self._order: Optional[Order] = None

    # The agreement's side.

    def promise(self, margin: int, cap_ns: int) -> int:
        """Bind the training thread not to pass its present step + margin; return that step."""
        with self._condition:
            self._move(Event.PROMISE)  # Raises the gate before the step is read: see the module's first lines.
            self._cap_ns = cap_ns
            self.arrived = self.result = None
            self.settled = False
            step = self.step
            self._hold_step = step + margin
            return step

    def aim(self, target: int) -> None:
        """Let the training thread go on to the first boundary that is not before the agreed step."""
        with self._condition:
            if self._move(Event.AIM):
                self._target = target

    def order(self, order: Order) -> None:
        """Tell the arrived training thread what to do; without a save, at the next boundary it reaches."""
        with self._condition:
            self._order = order
            self._move(Event.ORDER)

    def release(self) -> None:
        """Open the gate: nothing was agreed."""
        with self._condition:
            self._move(Event.RELEASE)

    def settle(self) -> None:
        """Nothing of the round is left to do."""
        self.settled = True

    def busy(self) -> bool:
        """False once the training thread is free of the present round, for whatever reason."""
        return self._state is not State.OPEN and not self.finished

    # The training thread's side.

    def reach(self, step: int) -> bool:
        """The training thread is at the boundary after `step`. Return whether the gate is raised.

        The store comes before the load: see the module's first lines.
        """
        self.step = step
        return self.raised

    def let_child_pass(self) -> None:
        """A fork's child has no agreement thread. The parent's may have held the lock, so none is taken."""
        self.raised = False

    def stand(self, step: int, arrival: Callable[[], Dict[str, Any]], waiting: Callable[[], None]) -> Optional[Order]:
        """Hold as promised and return the order, or None to train on.

        `arrival` is called at the target, `waiting` at most once, before the first real wait.
        """
        with self._condition:
            waited = False
            while self._must_wait(step, arrival):
                if not waited:
                    waited = True
                    waiting()
                if time.monotonic_ns() > self._cap_ns + RELEASE_SLACK_NS:
                    self.arrived = None  # Nobody may count on a thread that has left.
                    self._move(Event.TIME_OUT)
                    return None
                self._condition.wait(_POLL_S)
            return self._taken(step) if self._state is State.ORDERED else None

    def saved(self, result: Result) -> None:
        """Report what came of the order to save."""
        with self._condition:
            if self._move(Event.SAVED):
                self.result = result

    def finish(self) -> None:
        """No further boundary comes."""
        with self._condition:
            self.finished = True
            self._move(Event.FINISH)

    def go_on(self) -> None:
        """Another training loop begins in this process."""
        self.finished = False

    def nap(self, seconds: float) -> None:
        """Sleep on the training thread until something changes, at most so long."""
        with self._condition:
            self._condition.wait(seconds)

    def _must_wait(self, step: int, arrival: Callable[[], Dict[str, Any]]) -> bool:
        if self._state is State.HOLDING:
            return step >= self._hold_step
        if self._state is not State.AIMED or step < self._target:
            return False
        if self.arrived is None:
            # Past the target where a boundary has several steps. A load may have skipped some on one rank alone: the
            # ranks compare where they stand.
            self.arrived = dict(arrival(), step=step)
        return True

    def _taken(self, step: int) -> Order:
        order = self._order
        assert order is not None, "an ordered gate has an order"
        if order.save and step != order.step:
            # It had left by itself before the order came: its part would be of another step than the tag says.
            self.result = Result(None, "stands at step %d, past the agreed %d" % (step, order.step))
            order = order._replace(save=False)
        self._move(Event.TAKE_SAVE if order.save else Event.TAKE_PARK)
        self._order = None
        return order

    def _move(self, event: Event) -> bool:
        """Go where the table says, under the lock; True when that is another state."""
        before = self._state
        after = TRANSITIONS[before, event]
        assert after is not None, "%s while %s" % (event, before)
        self._state = after
        self.raised = after is not State.OPEN
        if after is State.OPEN:
            self._order = None
        self._condition.notify_all()
        return after is not before
