"""The watcher: everything of the shim that talks to the governor and to the other ranks, behind the `Watch` seam."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from typing import Any, Dict, Mapping, Optional, Tuple

from . import checkpoint, rng, wire
from .conductor import Conductor, Place
from .doorbell import Doorbell, signal_number
from .gate import Gate, Order, Result
from .guard import attempt, guarded, say
from .incidents import Incidents
from .link import Link, clip, unwatched_line
from .listener import Listener
from .progress import Progress
from .seam import Saver

REQUIRED_WAIT_S = 10.0  # COSTGOV_REQUIRED: the service may be starting beside us.
BYE_WAIT_S = 0.5  # At exit, for the last acks and bye to be confirmed.
LINGER_S = 60.0  # At exit, for a checkpoint that every rank has written to become durable.
GONE_NS = 30_000_000_000  # Without a governor for so long, nobody will come to end a parked rank.
OVERDUE_NS = 60_000_000_000  # After the deadline plus this, likewise.
_NAP_S = 0.25


class Watcher:
    """Implements `seam.Watch` for one rank. Construct and start on the main thread; one per process.

    `hello` holds the hello fields known at attach (wire.FRAMES["hello"]); run and attempt must be the same text on
    every rank of the job, or the ranks cannot find each other. `saver` is None where the loop cannot save, or where
    a framework saves by itself (delegate mode, see wants_save).
    """

    def __init__(
        self,
        hello: Dict[str, Any],
        progress: Progress,
        saver: Optional[Saver],
        *,
        environ: Mapping[str, str] = os.environ,
        signal: Optional[int] = None,
    ) -> None:
        self._environ = environ
        self._progress = progress
        self._saver = saver
        self.hold_s = 0.0  # Total time this rank's training thread was held for an agreement.
        self.checkpoint_s = 0.0  # Total time it spent saving for us.
        self._tokens_total: Optional[int] = None
        self._delegate = False
        self._delegated: Optional[Order] = None
        self._draining: Optional[Tuple[Order, Result]] = None  # Saved by an asynchronous writer, not yet durable.
        self._alive = False
        self._said_bye = False
        self._wanted_signal = signal_number(environ) if signal is None else signal
        self._place = _place(hello, environ)
        self._hello = dict(hello)
        self._hello_lock = threading.Lock()
        self._doorbell = Doorbell()
        self._link = Link(wire.split_socket_paths(dict(environ)), self._place.rank, self._hello_fields)
        self._gate = Gate(progress.step)
        self._incidents = Incidents(lambda ack: self._link.put("ack", ack))
        place = self._place
        restart = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._conductor = Conductor(
            place,
            self._gate,
            self._incidents,
            prefix="costgov/%s/%s/%s" % (place.run, place.attempt, restart),
            describe=lambda: {"tokens_total": self._tokens_total, "created_unix_s": int(time.time())},
            can_save=lambda: self._delegate or self._directory() is not None,
            directory=self._directory,
            on_saved=self._note_last_good,
        )
        self._listener = Listener(
            self._link, self._doorbell, progress, self._incidents, self._conductor, self._once_a_second
        )

    @guarded()
    def start(self) -> None:
        """Connect, install the doorbell, start the threads. SystemExit when COSTGOV_REQUIRED=1 and nobody listens."""
        self._doorbell.install(self._wanted_signal)
        self._hello["signal"] = self._doorbell.number
        if self._environ.get("COSTGOV_REQUIRED") == "1":
            self._insist()
        elif not self._link.connect(time.monotonic_ns()) and self._place.local_rank == 0:
            say(unwatched_line(self._link.paths, None))
        self._alive = True
        _quiet_in_children(self)
        self._listener.start()
        self._conductor.start()
        atexit.register(_at_exit, weakref.ref(self))

    # What an engine calls: seam.Watch.

    @guarded()
    def hello_field(self, name: str, value: Any) -> None:
        with self._hello_lock:
            if self._hello.get(name) == value and name in self._hello:
                return
            self._hello[name] = value
        if self._alive and self._link.connected:
            self._link.put("hello", self._hello_fields())

    @guarded()
    def step_frame(self, fields: Dict[str, Any]) -> None:
        tokens_total = fields.get("tokens_total")
        if tokens_total is not None:
            self._tokens_total = tokens_total
        if self._alive:
            self._link.post("step", fields)

    @guarded()
    def phase_changed(self) -> None:
        if self._alive:
            self._send_phase()

    def at_boundary(self, step: int) -> None:
        gate = self._gate
        gate.step = step
        if gate.raised:
            self._hold(step, False)

    def wants_save(self, step: int) -> bool:
        self._delegate = True
        gate = self._gate
        gate.step = step
        return bool(gate.raised and self._hold(step, True))

    @guarded()
    def delegate_saved(self, path: Optional[str], error: Optional[str]) -> None:
        order, self._delegated = self._delegated, None
        if order is None or not self._alive:
            return
        if error is None and path is not None:
            # The framework keeps its own generator states; tokens and data position are ours.
            _, failure = attempt(checkpoint.write_rank_file, path, self._place.rank, self._rank_state())
            error = None if failure is None else _worded(failure)
        self._gate.saved(Result(path, error or (None if path else "the framework did not say where it saved")))
        if order.park:
            self._park(order)

    @guarded()
    def finish(self, reason: str, completed: bool) -> None:
        if self._said_bye or not self._alive:
            return
        self._said_bye = True
        self._gate.finish()
        self._conductor.wake()
        self._link.put("bye", {"reason": clip(reason), "step": self._gate.step, "completed": completed})

    # The training thread at a raised gate.

    @guarded(fallback=False)
    def _hold(self, step: int, delegate: bool) -> bool:
        if not self._alive:
            return False
        if self._delegated is not None:
            self._delegated = None
            self._gate.saved(Result(None, "the framework did not save when asked"))
        if self._draining is not None:
            self._drain(*self._draining)
            return False
        order = self._stand(step)
        if order is None:
            return False
        if order.save and delegate:
            self._delegated = order
            return True
        if order.save:
            self._save(order)
        if order.park:
            self._park(order)
        return False

    def _stand(self, step: int) -> Optional[Order]:
        held_from_ns: Optional[int] = None

        def waiting() -> None:
            nonlocal held_from_ns
            held_from_ns = time.monotonic_ns()
            self._enter("agree")

        try:
            return self._gate.stand(step, self._arrival, waiting)
        finally:
            if held_from_ns is not None:
                self.hold_s += (time.monotonic_ns() - held_from_ns) / 1e9
                self._leave()

    def _arrival(self) -> Dict[str, Any]:
        self._conductor.wake()
        state, error = attempt(self._rank_state)
        return {"rank_state": state} if error is None else {"error": _worded(error)}

    def _rank_state(self) -> Dict[str, Any]:
        position = None if self._saver is None else self._saver.position()
        return {"v": 1, "rng": rng.capture(), "position": position}

    def _save(self, order: Order) -> None:
        began_ns = time.monotonic_ns()
        self._enter("checkpoint")
        result = Result(None, "the save was interrupted")
        try:
            result = self._saved(order)
        finally:
            self._leave()
            self.checkpoint_s += (time.monotonic_ns() - began_ns) / 1e9
            self._drain(order, result)

    def _drain(self, order: Order, result: Result) -> None:
        """Report a save once its files are written. An asynchronous engine needs further steps to get there."""
        while result.error is None and self._pending():
            # Parked ranks take no further step; what is not out by then is reported as failed.
            if not order.park:
                self._draining = (order, result)
                return
            if time.monotonic_ns() > order.deadline_ns + OVERDUE_NS:
                result = Result(None, "the asynchronous checkpoint engine did not finish")
            self._gate.nap(_NAP_S)
        self._draining = None
        self._gate.saved(result)
        self._conductor.wake()

    def _saved(self, order: Order) -> Result:
        saver, directory = self._saver, self._directory()
        if saver is None or directory is None:
            return Result(None, "this loop has no way to save")
        path = os.path.join(directory, order.tag)
        # The trial before the agreement wrote it already, unless a letter changed the kind, and the tag, since.
        failure = None
        if not os.path.exists(os.path.join(path, checkpoint.rank_file(self._place.rank))):
            _, failure = attempt(self._write_rank_file, path)
        facts = {"step": order.step, "tokens_total": self._tokens_total, "kind": order.kind, "incident": order.incident}
        # Collective: this rank takes part even if its own small file failed, or the others would wait for it for ever.
        _, error = attempt(saver.save, directory, order.tag, {"costgov": facts})
        error = error or failure
        return Result(path, None if error is None else _worded(error))

    def _write_rank_file(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)
        checkpoint.write_rank_file(path, self._place.rank, self._rank_state())

    def _pending(self) -> bool:
        if self._saver is None:
            return False
        pending, error = attempt(self._saver.pending)
        return error is None and bool(pending)

    def _park(self, order: Order) -> None:
        """Stand still until somebody ends this process; when nobody will, end it: nothing trains on after a halt."""
        self._enter("idle")
        began_ns = time.monotonic_ns()
        while not self._may_leave(order, began_ns):
            self._gate.nap(_NAP_S)
        say("halted by %s: exit %d with nobody left to end this rank" % (order.incident, order.exit_code))
        sys.stdout.flush()
        os._exit(order.exit_code)

    def _may_leave(self, order: Order, began_ns: int) -> bool:
        now_ns = time.monotonic_ns()
        lost_ns = self._link.lost_since_ns
        gone = lost_ns is not None and now_ns - max(lost_ns, began_ns) > GONE_NS
        overdue = now_ns > max(order.deadline_ns, began_ns) + OVERDUE_NS
        return (gone or overdue) and self._gate.settled

    def _enter(self, phase: str) -> None:
        self._progress.push_phase(phase)
        self._send_phase()

    def _leave(self) -> None:
        self._progress.pop_phase()
        self._send_phase()

    # Shared.

    def _send_phase(self) -> None:
        progress = self._progress
        self._link.post(
            "phase", {"phase": progress.phase, "step": progress.step, "progress_seq": progress.progress_seq}
        )

    def _directory(self) -> Optional[str]:
        """Where we save; None also in delegate mode, where the framework knows the place and tells it afterwards."""
        return None if self._saver is None or self._delegate else self._saver.directory

    def _hello_fields(self) -> Dict[str, Any]:
        with self._hello_lock:
            fields = dict(self._hello)
        able = ["beat", "exit_after", "agree"]
        if self._directory() is not None or self._delegate:
            able += ["ask", "durable"]
        fields["capabilities"] = sorted(set(fields.get("capabilities") or ()) | set(able))
        fields["signal"] = 0 if self._doorbell.stolen() else self._doorbell.number
        fields["open_incident"] = self._incidents.state()
        return fields

    def _once_a_second(self) -> None:
        """On the listener thread: tell when somebody took our signal, so that a ring does not hit their handler."""
        self.hello_field("signal", 0 if self._doorbell.stolen() else self._doorbell.number)
        if self._link.refused is not None and self._place.local_rank == 0 and not self._said_refused:
            self._said_refused = True
            say(unwatched_line((self._link.path,), self._link.refused))

    _said_refused = False

    def _note_last_good(self, record: Dict[str, Any], step: int) -> None:
        if record.get("kind") == "good":
            self.hello_field(
                "last_good",
                {
                    "step": step,
                    "tokens_total": record.get("tokens_total"),
                    "path": record.get("path"),
                    "mono_ns": time.monotonic_ns(),
                },
            )

    def _insist(self) -> None:
        until_ns = time.monotonic_ns() + int(REQUIRED_WAIT_S * 1e9)
        pause = threading.Event()
        while time.monotonic_ns() < until_ns:
            now_ns = time.monotonic_ns()
            if self._link.connected:
                self._link.receive(now_ns)
                if self._link.connected and not self._link.unconfirmed():
                    return
            elif self._link.refused is not None:
                break
            else:
                self._link.connect(now_ns)
            pause.wait(0.05)
        line = unwatched_line(self._link.paths, self._link.refused)
        raise SystemExit("costgov: %s (COSTGOV_REQUIRED=1: not training)" % line)

    def _end(self) -> None:
        """At interpreter exit: end our threads before Python unwinds them inside C++ code, which aborts."""
        if not self._alive:
            return
        self.finish("exit", False)
        self._conductor.stop(LINGER_S if self._incidents.ask is not None else 2.0)
        until_ns = time.monotonic_ns() + int(BYE_WAIT_S * 1e9)
        pause = threading.Event()
        while self._link.connected and self._link.unconfirmed() and time.monotonic_ns() < until_ns:
            pause.wait(0.01)
        self._alive = False
        self._listener.stop(2.0)


def _place(hello: Dict[str, Any], environ: Mapping[str, str]) -> Place:
    """Complete the hello in place with what the launcher's environment says, and return who we are."""

    def number(*names: str, fallback: int) -> int:
        for name in names:
            text = environ.get(name, "")
            if text.isdigit():
                return int(text)
        return fallback

    rank = int(hello.pop("rank", number("RANK", fallback=0)))
    world_size = int(hello.setdefault("world_size", number("WORLD_SIZE", fallback=1)))
    local_rank = int(hello.setdefault("local_rank", number("LOCAL_RANK", fallback=0)))
    run = str(hello.setdefault("run", environ.get("COSTGOV_RUN") or "run"))
    attempt_name = str(hello.setdefault("attempt", environ.get("TORCHELASTIC_RUN_ID") or "0"))
    local_world_size = number("LOCAL_WORLD_SIZE", "LOCAL_SIZE", fallback=1)
    return Place(run, attempt_name, rank, world_size, local_rank, local_world_size)


def _worded(error: BaseException) -> str:
    return clip("%s: %s" % (type(error).__name__, error))


def _at_exit(known: "weakref.ref[Watcher]") -> None:
    watcher = known()
    if watcher is not None:
        watcher._end()


def _quiet_in_children(watcher: Watcher) -> None:
    known = weakref.ref(watcher)

    def after_in_child() -> None:
        mine = known()
        if mine is not None:
            mine._alive = False
            mine._gate.raised = False

    os.register_at_fork(after_in_child=after_in_child)
