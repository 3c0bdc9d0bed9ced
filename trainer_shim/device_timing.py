"""Step parts and scalars of an asynchronous device, read only once they are known to be there.

The host runs ahead of the device, so parts by the host clock would be launch times. Instead an event is recorded on the
current stream wherever the step clock switches. Loss and norm are copied to pinned memory without blocking. A step's
frame leaves one or two steps later, when its last event is complete. Nothing here waits.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Optional, Protocol, Sequence, Tuple

from .timing import AFTER_BACKWARD, BACKWARD, CHECKPOINT, DATA, EVAL, GAP, HOLD, PARTS_TOTAL, StepTimes, put_seconds

STEPS_IN_FLIGHT_MAX = 8  # DeepSpeed synchronises every step and DDP runs at most a few ahead: eight is a stuck device.
EVENTS_PER_STEP_MAX = 1_024  # 256 micro-steps of four boundaries; beyond, host times are as good.


class Event(Protocol):
    """The part of torch.cuda.Event used here."""

    def record(self) -> None: ...

    def query(self) -> bool: ...

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to `end_event`; both complete."""


class Scalars(Protocol):
    """Carries loss, norm and the tokens that are no padding from the device to the host without blocking."""

    def put(self, slot: int, loss: Any, norm: Any, nonpad: Any) -> None:
        """Start copying; None = absent."""

    def get(self, slot: int) -> Tuple[Optional[float], Optional[float], Optional[float]]:
        """Read what was put, once the event recorded after put() is complete."""


class LateTimes(NamedTuple):
    """A step that leaves the ring. Times are None where there were too many events, or nothing of it `is_read`."""

    fields: Dict[str, Any]
    is_read: bool = False
    step_ns: Optional[int] = None
    parts_ns: Optional[List[int]] = None
    loss: Optional[float] = None
    norm: Optional[float] = None
    nonpad: Optional[float] = None


class _Open(NamedTuple):
    fields: Dict[str, Any]
    marks: List[Tuple[int, Event]]
    end: Event
    slot: int


class DeviceTimer:
    """A ring of steps in flight. Owned by the training thread."""

    def __init__(self, new_event: Callable[[], Event], scalars: Scalars, capturing: Callable[[], bool]) -> None:
        self._new_event = new_event
        self._scalars = scalars
        self._capturing = capturing
        self._free: List[Event] = []
        self._marks: List[Tuple[int, Event]] = []
        self._overfull = False
        self._open: Deque[_Open] = deque()
        self._slot = 0
        self.captured = False  # A graph was being captured: that step is a compile step.

    @property
    def in_flight(self) -> int:
        """Closed steps whose values have not arrived."""
        return len(self._open)

    def may_record(self) -> bool:
        """Whether the device may get work of ours: not inside a graph capture."""
        return not self._capturing()

    def mark(self, part: int) -> None:
        """From here on the device works on `part`. Records one event; does nothing inside a graph capture."""
        if self._capturing():
            self.captured = True
            return
        if len(self._marks) >= EVENTS_PER_STEP_MAX:
            self._overfull = True
            return
        self._marks.append((part, self._record()))

    def relabel(self, part: int) -> None:
        """What the last event began turns out to be `part`."""
        if self._marks and not self._overfull and not self._capturing():
            self._marks[-1] = (part, self._marks[-1][1])

    def close_step(self, fields: Dict[str, Any], loss: Any, norm: Any, nonpad: Any = None) -> None:
        """End the step: its `fields` come back from `arrived()` once the device has caught up."""
        slot = self._slot
        self._slot = (slot + 1) % (STEPS_IN_FLIGHT_MAX + 1)
        self._scalars.put(slot, loss, norm, nonpad)
        end = self._record()
        marks = [] if self._overfull else self._marks
        if self._overfull:
            # The first event is the end of the step before, which may still be in flight.
            self._free.extend(event for _, event in self._marks[1:])
        self._open.append(_Open(fields, marks, end, slot))
        self._marks = []
        self._overfull = False
        # The end of this step is the beginning of the next one's gap, and one event serves both.
        self._marks.append((GAP, end))

    def arrived(self) -> List[LateTimes]:
        """Return, in order, the closed steps whose values are on the host. Never waits."""
        late: List[LateTimes] = []
        while self._open and self._open[0].end.query():
            late.append(self._finish(self._open.popleft()))
        while len(self._open) > STEPS_IN_FLIGHT_MAX:
            stuck = self._open.popleft()
            # Its events are not reused: the device may still write them.
            late.append(LateTimes(stuck.fields))
        return late

    def _finish(self, step: _Open) -> LateTimes:
        loss, norm, nonpad = self._scalars.get(step.slot)
        if not step.marks or not all(event.query() for _, event in step.marks):
            return LateTimes(step.fields, True, None, None, loss, norm, nonpad)
        parts, total = split(step.marks, step.end)
        # step.end lives on as the next step's first mark; all others are free again.
        self._free.extend(event for _, event in step.marks)
        return LateTimes(step.fields, True, total, parts, loss, norm, nonpad)

    def _record(self) -> Event:
        event = self._free.pop() if self._free else self._new_event()
        event.record()
        return event


def split(marks: Sequence[Tuple[int, Event]], end: Event) -> Tuple[List[int], int]:
    """Return nanoseconds per part, and of the whole, between consecutive completed events."""
    parts = [0] * PARTS_TOTAL
    total = 0
    for index, (part, begun) in enumerate(marks):
        ended = marks[index + 1][1] if index + 1 < len(marks) else end
        elapsed_ns = int(begun.elapsed_time(ended) * 1e6)
        parts[part] += elapsed_ns
        total += elapsed_ns
    return parts, total


def felt_data_wait(parts_ns: List[int], host_data_ns: int) -> int:
    """Return the data wait that the device felt: a loader that is slow behind running kernels starves nobody."""
    return min(host_data_ns, parts_ns[GAP] + parts_ns[DATA])


class CudaScalars:
    """Loss, norm and tokens in host memory, one row per step in flight; only into pinned memory do copies not wait."""

    def __init__(self, torch: Any, pinned: bool) -> None:
        self._torch = torch
        self._rows = torch.zeros((STEPS_IN_FLIGHT_MAX + 1, 3), dtype=torch.float64, pin_memory=pinned)
        self._present: List[Tuple[bool, ...]] = [(False, False, False)] * (STEPS_IN_FLIGHT_MAX + 1)

    def put(self, slot: int, loss: Any, norm: Any, nonpad: Any = None) -> None:
        """Start the copies on the current stream."""
        row = self._rows[slot]
        for column, value in enumerate((loss, norm, nonpad)):
            if self._torch.is_tensor(value):
                # Converted on its device: between two dtypes copy_() goes through pageable memory, and that waits.
                row[column].copy_(value.detach().reshape(()).to(row.dtype), non_blocking=True)
            elif value is not None:
                row[column] = value
        self._present[slot] = (loss is not None, norm is not None, nonpad is not None)

    def get(self, slot: int) -> Tuple[Optional[float], Optional[float], Optional[float]]:
        """Read host memory."""
        loss, norm, nonpad = self._rows[slot].tolist()
        has_loss, has_norm, has_nonpad = self._present[slot]
        return (loss if has_loss else None, norm if has_norm else None, nonpad if has_nonpad else None)


def for_device(torch: Any, device_type: str) -> Optional[DeviceTimer]:
    """Return a timer for an asynchronous device that has events, None where the host clock tells the truth."""
    if device_type != "cuda" or not torch.cuda.is_initialized():
        return None
    return DeviceTimer(
        lambda: torch.cuda.Event(enable_timing=True),
        CudaScalars(torch, pinned=True),
        torch.cuda.is_current_stream_capturing,
    )


def completed(late: LateTimes) -> Dict[str, Any]:
    """Return the frame's fields with what the device has measured."""
    if late.parts_ns is not None and late.step_ns is not None:
        _put_times(late.fields, late.parts_ns, late.step_ns)
    if not late.is_read:
        late.fields["loss_expected"] = False  # The loss did not vanish: the device never answered.
    return late.fields


def _put_times(fields: Dict[str, Any], parts_ns: Any, step_ns: int) -> None:
    """Replace a step frame's times on the host by the device's; not where no forward pass divides them."""
    if "forward_s" not in fields:
        return
    # What the host does between the passes: the device has felt of it what it stood idle, and no more.
    idle_ns = sum(parts_ns[part] for part in (GAP, DATA, AFTER_BACKWARD))
    for part, name in ((HOLD, "hold_s"), (CHECKPOINT, "checkpoint_s"), (EVAL, "eval_s"), (DATA, "data_s")):
        parts_ns[part] = min(int(fields.get(name, 0.0) * 1e9), idle_ns)
        idle_ns -= parts_ns[part]
    parts_ns[GAP], parts_ns[AFTER_BACKWARD] = idle_ns, 0
    is_bound = fields.pop("data_bound", False)
    for name in ("eval_s", "bubble_s"):
        fields.pop(name, None)
    put_seconds(fields, StepTimes(step_ns, parts_ns, 0), True, parts_ns[BACKWARD] > 0)
    if is_bound:
        fields["data_bound"] = True
        del fields["loop_s"]
    # The host times the launch only of a collective, or of a recomputation: no figure is better than that one.
    fields.pop("comm_s", None)
    fields.pop("comm_between_s", None)
    fields.pop("recompute_s", None)
    if "offload_s" in fields:  # The host itself computes then: its clock is right. Before that it may have waited.
        fields["offload_s"] = min(fields["offload_s"], fields["optimizer_s"])
    fields["device_timed"] = True
