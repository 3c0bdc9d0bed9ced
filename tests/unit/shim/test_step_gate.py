"""The gate between the agreement and a training thread."""

from __future__ import annotations

import queue
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_shim.saving.step_gate import RELEASE_SLACK_NS, TRANSITIONS, Event, Order, Result, State, StepGate

FAR_NS = time.monotonic_ns() + 3_600 * 10**9


def order(step: int, save: bool = True) -> Order:
    return Order(save, f"cg_{step}", "good", False, 86, FAR_NS, "i", step)


class Stander:
    """A training thread at a boundary."""

    def __init__(self, gate: StepGate, step: int) -> None:
        self.waiting = threading.Event()
        self.order: Order | None = None
        self._gate, self._step = gate, step
        gate.reach(step)
        self._thread = threading.Thread(target=self._stand, daemon=True)
        self._thread.start()

    def _stand(self) -> None:
        self.order = self._gate.stand(self._step, dict, self.waiting.set)

    def left(self) -> bool:
        self._thread.join(30)
        return not self._thread.is_alive()


def test_the_promise_holds_exactly_one_margin_further() -> None:
    gate = StepGate(5)
    assert gate.promise(1, FAR_NS) == 5
    assert gate.raised
    assert Stander(gate, 5).left(), "the step of the promise itself passes"
    held = Stander(gate, 6)
    assert held.waiting.wait(30)
    gate.aim(7)
    assert held.left(), "below the target the training thread goes on"
    assert held.order is None
    arrived = Stander(gate, 7)
    assert arrived.waiting.wait(30)
    gate.order(order(7))
    assert arrived.left()
    assert arrived.order == order(7)
    assert gate.busy()
    gate.saved(Result("/c", None))
    assert not gate.raised
    assert not gate.busy()


def test_a_release_lets_everybody_go_and_lowers_the_gate() -> None:
    gate = StepGate(0)
    gate.promise(1, FAR_NS)
    held = Stander(gate, 1)
    assert held.waiting.wait(30)
    gate.release()
    assert held.left()
    assert held.order is None
    assert not gate.raised


def test_past_the_cap_the_training_thread_leaves_by_itself() -> None:
    gate = StepGate(0)
    gate.promise(1, time.monotonic_ns() - RELEASE_SLACK_NS)
    held = Stander(gate, 1)
    assert held.left()
    assert not gate.busy()
    assert gate.arrived is None, "nobody may count on a thread that has left"


def test_past_the_cap_a_thread_at_the_target_leaves_an_open_gate() -> None:
    gate = StepGate(0)
    gate.promise(1, time.monotonic_ns() - RELEASE_SLACK_NS - 1)
    gate.aim(1)
    assert gate.stand(1, dict, lambda: None) is None
    assert not gate.busy()
    assert not gate.raised
    assert gate.arrived is None, "nobody may count on a thread that has left"


def test_the_first_boundary_from_the_target_on_is_where_it_stands_and_which_one_it_tells() -> None:
    gate = StepGate(0)
    gate.promise(1, FAR_NS)
    gate.aim(1)
    late = Stander(gate, 5)
    assert late.waiting.wait(30)
    assert gate.arrived is not None
    assert gate.arrived["step"] == 5
    gate.release()
    assert late.left()


def test_an_order_without_a_save_is_taken_at_the_next_boundary() -> None:
    gate = StepGate(3)
    gate.order(order(3, save=False))
    assert gate.raised
    assert gate.stand(4, dict, lambda: None) == order(3, save=False)
    assert not gate.raised


def test_a_save_that_outlasts_its_round_does_not_undo_the_next_promise() -> None:
    gate = StepGate(3)
    gate.order(order(3))
    assert gate.stand(3, dict, lambda: None) == order(3)
    gate.promise(1, FAR_NS)
    gate.saved(Result("/old", None))
    assert gate.raised
    assert gate.result is None


def test_a_finished_training_holds_nobody() -> None:
    gate = StepGate(3)
    gate.promise(1, FAR_NS)
    gate.finish()
    assert not gate.busy()
    assert not gate.raised


def test_an_order_that_comes_after_the_thread_left_saves_nothing_of_a_later_step() -> None:
    gate = StepGate(4)
    gate.promise(1, time.monotonic_ns() - RELEASE_SLACK_NS - 1)
    gate.aim(5)
    assert gate.stand(5, dict, lambda: None) is None, "past the cap it leaves"
    gate.order(order(5)._replace(park=True))
    late = gate.stand(6, dict, lambda: None)
    assert late is not None
    assert not late.save
    assert late.park, "nothing trains on after a halt"
    assert gate.result is not None
    assert gate.result.error == "stands at step 6, past the agreed 5"
    assert not gate.busy()


def gate_in(state: State) -> StepGate:
    """A gate at step 3 that got there as it does in a round."""
    gate = StepGate(3)
    if state in (State.HOLDING, State.AIMED):
        gate.promise(1, FAR_NS)
    if state is State.AIMED:
        gate.aim(4)
    if state in (State.ORDERED, State.SAVING):
        gate.order(order(3))
    if state is State.SAVING:
        assert gate.stand(3, dict, lambda: None) is not None
    return gate


def does_hold(gate: StepGate, step: int) -> bool:
    """Whether a training thread that comes to this step waits there."""
    seen: queue.SimpleQueue[str] = queue.SimpleQueue()

    def stand() -> None:
        gate.stand(step, dict, lambda: seen.put("waits"))
        seen.put("left")

    gate.reach(step)
    thread = threading.Thread(target=stand, daemon=True)
    thread.start()
    first = seen.get(timeout=30)
    gate.finish()
    thread.join(30)
    assert not thread.is_alive()
    return first == "waits"


def test_the_table_is_complete_and_the_threads_own_events_come_only_where_it_can_be() -> None:
    assert set(TRANSITIONS) == {(state, event) for state in State for event in Event}
    possible = {event: {state for state in State if TRANSITIONS[state, event] is not None} for event in Event}
    assert possible.pop(Event.TIME_OUT) == {State.HOLDING, State.AIMED}, "only there it waits"
    assert possible.pop(Event.TAKE_SAVE) == possible.pop(Event.TAKE_PARK) == {State.ORDERED}
    assert all(states == set(State) for states in possible.values())


@pytest.mark.parametrize("state", State)
def test_a_promise_holds_from_every_state(state: State) -> None:
    gate = gate_in(state)
    gate.settle()
    assert gate.promise(1, FAR_NS) == 3
    assert gate.raised
    assert not gate.settled, "a round begins"
    assert (gate.result, gate.arrived) == (None, None)
    assert does_hold(gate, 4)


@pytest.mark.parametrize("state", State)
def test_an_aim_moves_a_held_thread_and_nobody_else(state: State) -> None:
    gate = gate_in(state)
    gate.aim(6)
    assert gate.raised is (state is not State.OPEN)
    if state is State.ORDERED:
        assert gate.stand(3, dict, lambda: None) == order(3), "the order stands"
    elif state is State.AIMED:
        assert does_hold(gate, 4), "the first target counts"
    elif state is State.SAVING:
        gate.saved(Result("/c", None))
        assert gate.result == Result("/c", None), "the save goes on"
    else:
        assert not does_hold(gate, 5)


@pytest.mark.parametrize("state", State)
def test_an_order_is_taken_from_every_state_and_once(state: State) -> None:
    gate = gate_in(state)
    gate.order(order(3, save=False))
    assert gate.raised
    assert gate.stand(3, dict, lambda: None) == order(3, save=False)
    assert not gate.raised
    assert gate.stand(3, dict, lambda: None) is None


@pytest.mark.parametrize("state", State)
def test_a_release_opens_what_holds_and_leaves_an_order_alone(state: State) -> None:
    gate = gate_in(state)
    gate.release()
    assert gate.busy() is gate.raised is (state in (State.ORDERED, State.SAVING))
    if state is State.ORDERED:
        assert gate.stand(3, dict, lambda: None) == order(3)
    if state is not State.OPEN:
        gate.saved(Result("/c", None))
        expected = Result("/c", None) if state in (State.ORDERED, State.SAVING) else None
        assert gate.result == expected


@pytest.mark.parametrize("state", State)
def test_a_save_is_reported_by_the_thread_that_took_the_order(state: State) -> None:
    gate = gate_in(state)
    gate.saved(Result("/c", None))
    assert gate.result == (Result("/c", None) if state is State.SAVING else None)
    assert gate.raised is (state not in (State.OPEN, State.SAVING))
    if state is State.HOLDING:
        assert does_hold(gate, 4)
    elif state is State.AIMED:
        assert not does_hold(gate, 3)
    elif state is State.ORDERED:
        assert gate.stand(3, dict, lambda: None) == order(3)


@pytest.mark.parametrize("state", State)
def test_the_end_of_training_opens_every_gate(state: State) -> None:
    gate = gate_in(state)
    gate.finish()
    assert not gate.raised
    assert not gate.busy()
    gate.go_on()
    assert not gate.busy()


def _play(gate: StepGate, event: Event, park: bool) -> None:
    """What either side does, as far as the other lets it: a thread that would wait goes elsewhere instead."""
    if event is Event.PROMISE:
        gate.promise(1, FAR_NS)
    elif event is Event.AIM:
        gate.aim(gate.step + 1)
    elif event is Event.ORDER:
        gate.order(order(gate.step, save=not park))
    elif event is Event.RELEASE:
        gate.release()
    elif event is Event.SAVED:
        gate.saved(Result("/c", None))
    elif event is Event.FINISH:
        gate.finish()
    elif event is Event.TIME_OUT:
        gate.promise(1, time.monotonic_ns() - RELEASE_SLACK_NS - 1)
        assert gate.stand(gate.step + 1, dict, lambda: None) is None
    else:
        gate.order(order(gate.step, save=event is Event.TAKE_SAVE))
        taken = gate.stand(gate.step, dict, lambda: None)
        assert taken is not None
        assert taken.save is (event is Event.TAKE_SAVE)


@given(st.lists(st.tuples(st.sampled_from(Event), st.booleans()), max_size=12))
def test_whatever_came_before_the_gate_is_raised_exactly_while_a_round_needs_the_thread(played: list) -> None:
    gate = StepGate(3)
    for event, park in played:
        _play(gate, event, park)
        assert gate.finished or gate.raised is gate.busy()
    gate.go_on()
    gate.finish()
    assert not gate.raised
    gate.promise(1, FAR_NS)
    assert gate.raised, "no state of before keeps a promise from holding"
    assert gate.result is None
