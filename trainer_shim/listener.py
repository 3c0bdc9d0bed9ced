"""The daemon thread that hears the governor: checkpoint requests, confirms, the signal. It beats once a second.

It never touches the ranks' store and makes no CUDA call, so what hangs a training job does not hang it.
"""

from __future__ import annotations

import select
import threading
import time
from typing import Any, Callable, Dict, Optional

from . import wire
from .connection.outbox import RESEND_NS
from .governor_socket import GovernorSocket
from .guard import guarded
from .progress import Progress
from .saving.agreement_thread import AgreementThread
from .saving.open_requests import OpenRequests, request_of
from .sight import stack
from .signal_wakeup import SignalWakeup

_BEAT_NS = int(wire.BEAT_PERIOD_S * 1e9)
# Queued frames leave at multiples of this on CLOCK_MONOTONIC, which the ranks of a node share: the governor wakes once
# for all of them. A quarter of a second costs a cent where a node costs $144 an hour.
SEND_PERIOD_NS = 250_000_000
# A thread that sends frame after frame gives the interpreter up too briefly for another to take it: 250 frames in a
# row held the training thread for 1 ms. So a long queue leaves in portions with true pauses. Where the training thread
# never waits, each turn of ours waits 5 ms for the interpreter, and 16 turns fit into a period.
FRAMES_PER_TURN_MIN = 4
TURNS_PER_PERIOD_MAX = 16
_PORTION_PAUSE_NS = 1_000_000
# A signal with no request behind it: the governor wrote into a connection that we no longer share.
BARE_SIGNAL_NS = 200_000_000
BARE_SIGNAL_AGAIN_NS = 5_000_000_000  # Somebody else (Slurm) may send this signal often: no reconnect storm for that.
_AFTER_FAULT_S = 1.0


class Listener:
    """`on_beat` runs once a second on this thread. `show` gets what a governor wants to see, and returns at once."""

    def __init__(
        self,
        governor: GovernorSocket,
        signal_wakeup: SignalWakeup,
        progress: Progress,
        requests: OpenRequests,
        agreement: AgreementThread,
        on_beat: Callable[[], None],
        show: Callable[[Dict[str, Any]], None],
    ) -> None:
        self._governor = governor
        self._signal_wakeup = signal_wakeup
        self._progress = progress
        self._requests = requests
        self._agreement = agreement
        self._on_beat = on_beat
        self._show = show
        self._stop = threading.Event()
        self._beat_at_ns = time.monotonic_ns()
        self._send_at_ns = 0
        self._portion = 0  # How many frames a turn sends of the queue that is leaving; 0: none is.
        self._request_at_ns = 0
        self._reconnect_due_ns: Optional[int] = None
        self._reconnected_ns = -BARE_SIGNAL_AGAIN_NS
        self._compiling_since_ns: Optional[int] = None
        self._thread = threading.Thread(target=self._run, name="costgov-listener", daemon=True)

    def start(self) -> None:
        """Begin to listen and to beat."""
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """End the thread, waiting at most so long; True when it has ended."""
        self._stop.set()
        self._signal_wakeup.wake()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            if not self._turn():
                self._stop.wait(_AFTER_FAULT_S)

    @guarded(fallback=False)
    def _turn(self) -> bool:
        self._wait()
        now_ns = time.monotonic_ns()
        if self._signal_wakeup.drain():
            self._signalled(now_ns)
        if self._governor.connected:
            self._read(now_ns)
        if self._reconnect_due_ns is not None and now_ns >= self._reconnect_due_ns:
            self._reconnect_due_ns = None
            self._governor.disconnect(now_ns)
        if not self._governor.connected and now_ns >= self._governor.retry_at_ns:
            self._governor.connect(now_ns)
        self._governor.flush(now_ns)
        self._beat(now_ns)
        self._send(now_ns)
        return True

    @guarded()
    def _beat(self, now_ns: int) -> None:
        if now_ns < self._beat_at_ns:
            return
        # After a stall of the interpreter one beat is due, not one for each missed second.
        self._beat_at_ns = next_multiple(now_ns, _BEAT_NS)
        self._on_beat()
        self._governor.later("beat", self._beat_fields() if self._governor.connected else {})

    def due_ns(self) -> int:
        """When the next turn is due, on CLOCK_MONOTONIC, if nothing is heard before."""
        due_ns = min(self._beat_at_ns, self._send_at_ns if self._governor.connected else self._governor.retry_at_ns)
        if self._reconnect_due_ns is not None:
            due_ns = min(due_ns, self._reconnect_due_ns)
        if self._governor.connected and self._governor.unconfirmed():
            due_ns = min(due_ns, time.monotonic_ns() + RESEND_NS)
        return due_ns

    def _wait(self) -> None:
        due_ns = self.due_ns()
        poll = select.poll()  # Not select(): a trainer holds more than 1,024 descriptors.
        poll.register(self._signal_wakeup.fileno(), select.POLLIN)
        if self._governor.connected:
            poll.register(self._governor.fileno(), select.POLLIN)
        poll.poll(max(0.0, (due_ns - time.monotonic_ns()) / 1e6))

    def _send(self, now_ns: int) -> None:
        if now_ns < self._send_at_ns:
            return
        if not self._portion:
            self._portion = max(FRAMES_PER_TURN_MIN, -(-self._governor.queued // TURNS_PER_PERIOD_MAX))
        self._governor.send_queued(self._portion)
        if self._governor.queued >= self._portion:
            self._send_at_ns = now_ns + _PORTION_PAUSE_NS
        else:
            self._portion = 0
            self._send_at_ns = next_multiple(now_ns, SEND_PERIOD_NS)

    def _read(self, now_ns: int) -> None:
        for frame in self._governor.receive(now_ns):
            self._request_at_ns = now_ns
            self._reconnect_due_ns = None
            if frame["kind"] == "show":
                self._show(frame)
                continue
            self._requests.receive(request_of(frame))
            self._agreement.wake()

    def _signalled(self, now_ns: int) -> None:
        if not self._governor.connected:
            self._governor.retry_at_ns = now_ns
        elif now_ns - self._request_at_ns > BARE_SIGNAL_NS and now_ns - self._reconnected_ns > BARE_SIGNAL_AGAIN_NS:
            self._reconnected_ns = now_ns
            self._reconnect_due_ns = now_ns + BARE_SIGNAL_NS

    def _beat_fields(self) -> Dict[str, Any]:
        progress = self._progress
        seen = stack.sample(progress.main_thread_id)
        phase, since_ns = progress.phase, progress.phase_since_ns
        if seen.compiling and phase in ("init", "train", "eval"):
            self._compiling_since_ns = self._compiling_since_ns or time.monotonic_ns()
            phase, since_ns = "compile", self._compiling_since_ns
        else:
            self._compiling_since_ns = None
        fields: Dict[str, Any] = {
            "progress_seq": progress.progress_seq,
            "phase": phase,
            "phase_since_ns": since_ns,
            "step": progress.step,
            "in_step": progress.in_step,
            "last_hook": progress.last_hook,
            "last_hook_ns": progress.last_hook_ns,
            "stack": seen.frames,
            "stack_digest": seen.digest,
            "main_cpu_ns": _cpu_ns(progress.main_thread_id),
        }
        if seen.device_wait is not None:
            fields["device_wait"] = seen.device_wait
        collective = progress.collective
        if collective is not None:
            op, entered_ns, done = collective
            fields["collective"] = {
                "op": op,
                "count": progress.collectives_total,
                "entered_ns": entered_ns,
                "done": done,
            }
        if progress.is_stepless:
            seen_outputs = {"seen": progress.outputs_seen, "nonfinite": progress.outputs_nonfinite}
            fields["forwards"] = {"count": progress.forwards, **seen_outputs}
        fetch = fetch_fields(progress)
        if fetch is not None:
            fields["fetch"] = fetch
        return fields


def fetch_fields(progress: Progress) -> Optional[Dict[str, Any]]:
    """Return what the training thread's fetches of data show. None: none was seen."""
    starts, since_ns, longest_ns = progress.fetch_starts, progress.fetch_ns, progress.fetch_longest_ns
    if not since_ns:
        return {"longest_ns": longest_ns} if longest_ns else None
    fetch = {"longest_ns": longest_ns, "since_ns": since_ns}
    if starts is not None:
        fetch["starts"] = starts
    return fetch


def next_multiple(now_ns: int, period_ns: int) -> int:
    """Return the first multiple of `period_ns` after `now_ns`."""
    return (now_ns // period_ns + 1) * period_ns


def _cpu_ns(thread_id: int) -> Optional[int]:
    """CPU time of the main thread, which tells waiting from work. The main thread outlives every beat."""
    try:
        return time.clock_gettime_ns(time.pthread_getcpuclockid(thread_id))
    except OSError:
        return None
