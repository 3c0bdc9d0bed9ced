"""The watcher: all of the shim that talks to the governor and to the other ranks, behind interfaces.Watch."""

from __future__ import annotations

import atexit
import functools
import os
import threading
import time
import weakref
from typing import Any, Callable, Dict, List, Mapping, Optional

from .connection.peers import socket_paths
from .connection.starts import job_of
from .evidence.profile import StepProfile
from .evidence.shower import Shower
from .governor_socket import GovernorSocket, clip, unwatched_line
from .guard import guarded, print_line
from .interfaces import OwnMeans, OwnPlaces, Resumed, Saver
from .launch import is_required, place_of
from .listener import Listener
from .mark import join_launch, mark_this_process
from .origin import go_on
from .progress import Progress
from .saving import checkpoint, patience
from .saving.agreement_thread import AgreementThread
from .saving.facts import told_in
from .saving.open_requests import OWN, CheckpointRequest, OpenRequests
from .saving.resuming import DATA_ANEW, resume_at, resume_from
from .saving.save_at_step import SaveAtStep
from .saving.step_gate import StepGate
from .saving.store import KeyStore, connect, next_meeting
from .scalars import is_sound
from .sight.failures import Failures
from .signal_wakeup import SignalWakeup, signal_number

REQUIRED_WAIT_S = 10.0  # COSTGOV_REQUIRED: the service may be starting beside us.
BYE_WAIT_S = 0.5  # At exit, for the last acks and bye to be confirmed.
LINGER_S = 60.0  # At exit, for a checkpoint that every rank has written to become durable.
OWN_REQUEST_NS = 600_000_000_000  # As the default grace: a 70B checkpoint to shared storage takes minutes.


class Watcher:
    """Implements `interfaces.Watch` for one rank. Construct and start on the main thread, one at a time per process,
    and as often on every rank: the ranks find each other by that count.

    `hello` holds the hello fields known at attach (wire.FRAMES["hello"]). `saver` is None where the loop cannot save.
    Where a framework saves by itself it only knows the position: see wants_save. `absent` says, on another thread than
    the training's, why no two ranks would save the same for the script.
    """

    def __init__(
        self,
        hello: Dict[str, Any],
        progress: Progress,
        saver: Optional[Saver],
        *,
        environ: Mapping[str, str] = os.environ,
        signal: Optional[int] = None,
        absent: Callable[[], Optional[str]] = lambda: None,
    ) -> None:
        self._environ = environ
        self._progress = progress
        self._saver = saver
        self._alive = False
        self._said_bye = False
        self._said_refused = False
        self._resumes = 0
        self._sought: List[str] = []  # Where resume() has looked; without a path also in the saver's own places.
        self._has_own_places = False
        self._own_requests = 0
        self._wanted_signal = signal_number(environ) if signal is None else signal
        self._hello = dict(hello, resume_called=False)
        place = self._place = place_of(self._hello, environ)
        progress.run = self._place.run
        self._hello_lock = threading.RLock()  # A signal handler that saves tells a hello field.
        self._signal_wakeup = SignalWakeup()
        self._failures = Failures(self._post_failure)
        paths, is_named = socket_paths(environ)
        self._governor = GovernorSocket(paths, self._place.rank, self._hello_fields, is_named)
        self._gate = StepGate(progress.step)
        self._requests = OpenRequests(lambda ack: self._governor.put("ack", ack))
        meeting = next_meeting("watch")
        prefix = "costgov/%s/%s/%s" % (place.run, place.attempt, meeting)
        self._connect = functools.partial(connect, place.world_size, prefix, meeting)
        self._save_at_step = SaveAtStep(place.rank, self._gate, progress, saver, self._governor, place.world_size == 1)
        self._agreement = AgreementThread(
            place, self._gate, self._save_at_step, self._requests, self._join_job, self._note_last_good, absent
        )
        self._profile = StepProfile(place.rank, lambda: self._save_at_step.directory() or os.getcwd())
        shower = Shower(self._governor.post, self._profile)
        self._listener = Listener(
            self._governor, self._signal_wakeup, progress, self._requests, self._agreement, self._once_a_second,
            shower.show,
        )  # fmt: skip

    def start(self) -> None:
        """Connect, take the signal, start the threads. SystemExit when COSTGOV_REQUIRED=1 and nobody listens.

        What cannot start is not watched, and attach() has to say so: so this raises.
        """
        try:
            self._begin()
        except BaseException:
            self._let_go()
            raise

    def _begin(self) -> None:
        self._signal_wakeup.install(self._wanted_signal)
        self._hello["signal"] = self._signal_wakeup.number
        self._hello["capabilities"] = self._capabilities(self._hello.get("capabilities"))
        self._hello["mark"] = mark_this_process()
        join_launch(self._environ)
        if is_required(self._environ):
            self._insist()
        elif not self._governor.connect(time.monotonic_ns()) and self._place.local_rank == 0:
            print_line(unwatched_line(self._governor.paths, None, self._governor.stranger))
        self._alive = True
        _quiet_in_children(self)
        self._listener.start()
        self._agreement.start()
        self._failures.install()
        atexit.register(_at_exit, weakref.ref(self))

    # What an engine calls: interfaces.Watch.

    @guarded()
    def hello_field(self, name: str, value: Any) -> None:
        self.hello_fields({name: self._with_place(value) if name == "last_good" else value})

    @guarded()
    def hello_fields(self, fields: Mapping[str, Any]) -> None:
        with self._hello_lock:
            if all(name in self._hello and self._hello[name] == value for name, value in fields.items()):
                return
            self._hello.update(fields)
        if self._alive and self._governor.connected:
            self._governor.put("hello", self._hello_fields())

    @guarded()
    def step_frame(self, fields: Dict[str, Any]) -> None:
        tokens_total = fields.get("tokens_total")
        if tokens_total is not None or "tokens" in fields:  # Tokens without a total: it is no longer known.
            self._save_at_step.note_tokens(tokens_total)
        if self._alive:
            self._save_at_step.step_passed(fields.get("step", 0))
            if self._said_bye:
                self._go_on()
            # A step that alone is a reason to halt leaves at once. The others can wait.
            self._progress.sound = is_sound(fields)
            send = self._governor.later if self._progress.sound else self._governor.post
            send("step", fields)
        if self._profile.wanted:
            self._profile.step_passed(fields.get("step", 0))

    @guarded()
    def phase_changed(self) -> None:
        if self._alive:
            self._governor.post_phase(self._progress)

    def _post_failure(self, failure: Dict[str, Any]) -> None:
        if self._alive:
            self._governor.post_phase(self._progress, failure)

    def step_over(self, step: int) -> None:
        if self._gate.reach(step):
            self._save_at_step.keep_generators(step)

    def at_boundary(self, step: int) -> None:
        if self._gate.reach(step):
            self._save_at_step.hold(step, False)

    def before_evaluation(self, step: int) -> None:
        if self._gate.reach(step):
            self._save_at_step.hold(step, False, evaluates=True)

    def waits_for_evaluation(self) -> bool:
        return self._save_at_step.waits_for_evaluation()

    def ends_with_save(self) -> bool:
        return self._save_at_step.ends_with_save()

    def wants_save(self, step: int) -> Optional[str]:
        self._save_at_step.delegate()
        return self._save_at_step.hold(step, True) if self._gate.reach(step) else None

    def delegate_saved(self, path: Optional[str], error: Optional[str]) -> None:
        if self._alive:
            self._save_at_step.delegate_saved(path, error)

    def resume(self, directory: Optional[str] = None) -> Optional[Resumed]:
        """Continue from the newest whole checkpoint where we save, see resume_from(), or at a path, see resume_at().

        Call on every rank after attach() and before the first step. None when there is nothing to continue from.
        """
        place, saver = self._place, self._saver
        own = saver.resume_directory() if isinstance(saver, OwnMeans) else None
        home = own or self._save_at_step.directory()
        where = directory or home
        if saver is None or where is None:
            told = None if saver is None else saver.cannot_load
            self._say(
                told or "resume(): no directory is known, so nothing is resumed; pass checkpoint_dir= to attach()"
            )
            return None
        self._sought = [where]
        self._has_own_places = not directory and isinstance(saver, OwnPlaces)
        self.hello_field("resume_called", True)
        store = self._connect()
        if store is None:
            saver.join_ranks()
            store = self._connect()
        if store is None:
            raise RuntimeError("resume() before torch.distributed is initialised")
        self._resumes += 1
        if directory:
            resumed = resume_at(saver, directory, home, place.rank, store, place.world_size, self._resumes)
        else:
            resumed = resume_from(saver, where, place.rank, store, place.world_size, self._resumes)
        if resumed is None:
            self._say("resume(): no whole good checkpoint in %s, training begins anew" % where)
        else:
            if not isinstance(saver, OwnMeans):  # These say themselves what their next training begins with.
                self._say("resume(): goes on from step %d: %s" % (resumed.step, resumed.path))
                if resumed.position is not None and not resumed.position.get("loaders"):
                    self._say(DATA_ANEW)
                if (resumed.position or {}).get(patience.DUE):
                    self._say(patience.NOT_MADE_UP)
            manifest = checkpoint.read_manifest(resumed.path) or {}
            saved_by = manifest.get("run")
            if isinstance(saved_by, str) and saved_by not in ("", place.run):
                self._say("resume(): that one was saved by run %.100r, and this is run %.100r" % (saved_by, place.run))
            self._gate.reach(resumed.step)
            self._progress.step = resumed.step
            if resumed.tokens_total is not None:
                self._save_at_step.note_tokens(resumed.tokens_total)
            go_on(self._progress, self, told_in(resumed.position, manifest), resumed.step, resumed.path)
            self.hello_field("resumed_step", resumed.step)
            mono_ns = time.monotonic_ns() - int(resumed.age_s * 1e9)
            self._report_last_good(resumed.step, resumed.path, manifest, resumed.tokens_total, mono_ns)
        return resumed

    def _say(self, line: str) -> None:
        if self._place.rank == 0:
            print_line(line)

    @property
    def hold_s(self) -> float:
        """Total time the training thread was held for agreements."""
        return self._save_at_step.hold_s

    @property
    def checkpoint_s(self) -> float:
        """Total time the training thread spent saving when asked."""
        return self._save_at_step.checkpoint_s

    @guarded()
    def finish(self, reason: str, completed: bool) -> None:
        if self._said_bye or not self._alive:
            return
        self._said_bye = True
        self._progress.finish()
        self.phase_changed()
        self._save_at_step.finish()
        self._gate.finish()
        self._agreement.wake()
        self._governor.put("bye", {"reason": clip(reason), "step": self._gate.step, "completed": completed})

    # Shared.

    def _hello_fields(self) -> Dict[str, Any]:
        with self._hello_lock:
            fields = {name: value for name, value in self._hello.items() if value is not None}
        fields["capabilities"] = self._capabilities(fields.get("capabilities"))
        fields["signal"] = 0 if self._signal_wakeup.replaced() else self._signal_wakeup.number
        fields["open_incident"] = self._requests.state()
        return fields

    def _capabilities(self, known: Optional[List[str]]) -> List[str]:
        able = ["agree", "beat", "exit_after", "show"] + (["ask", "durable"] if self._save_at_step.can_save() else [])
        return sorted(set(known or ()) | set(able))

    def _once_a_second(self) -> None:
        """On the listener thread: report that somebody took our signal, or that a framework saves by itself."""
        self.hello_field("signal", 0 if self._signal_wakeup.replaced() else self._signal_wakeup.number)
        self.hello_field("capabilities", self._capabilities(self._hello.get("capabilities")))
        if self._governor.refused is not None and self._place.local_rank == 0 and not self._said_refused:
            self._said_refused = True
            print_line(unwatched_line((self._governor.path,), self._governor.refused))

    @guarded()
    def checkpoint(self) -> None:
        """Save a whole, durable, good checkpoint soon, as if a governor had asked: all ranks at one agreed step.

        Call it on every rank or on rank 0 alone, as often as you would save. Returns at once. While an incident is
        open, a governor's or our own, it asks for nothing: that one saves, or ends the run. No governor is needed.
        """
        if self._place.rank != 0 or not self._alive or self._requests.request is not None:
            return
        deadline_ns = time.monotonic_ns() + OWN_REQUEST_NS
        self._own_requests += 1
        name = "%s%d.%d" % (OWN, self._progress.step, self._own_requests)  # A step comes again after a resume.
        request = CheckpointRequest(name, "good", deadline_ns, False, 0, "the training script asked")
        self._requests.receive(request)
        self._agreement.wake()

    def _join_job(self) -> Optional[KeyStore]:  # On the agreement's thread.
        store = self._connect()
        if store is not None and self._place.world_size > 1:
            self.hello_field("job", job_of(store, self._hello.get("job")))
        return store

    def _note_last_good(self, record: Dict[str, Any], step: int) -> None:
        if record.get("kind") == "good":
            self._report_last_good(step, str(record.get("path")), record, record.get("tokens_total"), record["mono_ns"])

    def _with_place(self, record: Dict[str, Any]) -> Dict[str, Any]:
        """Say of a checkpoint that resume(), as it is called here, or the script's own load does not look there."""
        path = os.path.realpath(str(record.get("path")))
        loaded_from = None if self._saver is None else self._saver.loaded_from
        sought = self._sought or ([loaded_from] if loaded_from else [])
        if self._has_own_places and isinstance(self._saver, OwnPlaces):
            sought = [*sought, *self._saver.resume_places()]  # As of now: loggers number a directory for each launch.
        real = [os.path.realpath(one) for one in sought]
        is_there = not real or path in real or os.path.dirname(path) in real
        return record if is_there else dict(record, sought_in=sought[0])

    def _report_last_good(
        self, step: int, path: str, saved: Mapping[str, Any], tokens_total: Optional[int], mono_ns: int
    ) -> None:
        record = {"step": step, "tokens_total": tokens_total, "path": path, "mono_ns": mono_ns}
        if saved.get("trained_finite") is True:
            record["trained_finite"] = True
        self.hello_field("last_good", record)

    def _insist(self) -> None:
        until_ns = time.monotonic_ns() + int(REQUIRED_WAIT_S * 1e9)
        pause = threading.Event()
        while time.monotonic_ns() < until_ns:
            now_ns = time.monotonic_ns()
            if self._governor.connected:
                self._governor.receive(now_ns)
                if self._governor.connected and not self._governor.unconfirmed():
                    return
            elif self._governor.refused is not None:
                break
            else:
                self._governor.connect(now_ns)
            pause.wait(0.05)
        line = unwatched_line(self._governor.paths, self._governor.refused, self._governor.stranger)
        raise SystemExit("costgov: %s (COSTGOV_REQUIRED=1: not training)" % line)

    def _go_on(self) -> None:
        """A second train() after the first one's end, in the same process."""
        self._said_bye = False
        self._gate.go_on()
        self._progress.set_phase("train")
        self._governor.put("hello", self._hello_fields())

    @guarded()
    def close(self) -> None:
        """Say bye and end: threads, socket, signal. Blocks until the governor has confirmed, half a second at most.

        Runs at the interpreter's exit too: Python would unwind our threads inside C++ code, which aborts the process.
        """
        if not self._alive:
            return
        self.finish("exit", False)
        self._agreement.stop(LINGER_S if self._requests.request is not None else 2.0)
        until_ns = time.monotonic_ns() + int(BYE_WAIT_S * 1e9)
        pause = threading.Event()
        while self._governor.connected and self._governor.unconfirmed() and time.monotonic_ns() < until_ns:
            pause.wait(0.01)
        self._let_go()

    def _let_go(self) -> None:
        self._alive = False
        self._failures.give_back()
        if self._listener.stop(2.0):
            self._governor.close()
            self._signal_wakeup.give_back()


def _at_exit(known: "weakref.ref[Watcher]") -> None:
    watcher = known()
    if watcher is not None:
        watcher.close()


def _quiet_in_children(watcher: Watcher) -> None:
    known = weakref.ref(watcher)

    def after_in_child() -> None:
        mine = known()
        if mine is not None:
            mine._alive = False
            mine._gate.let_child_pass()
            mine._hello_lock = threading.RLock()  # The parent's listener may have held it at the fork.

    os.register_at_fork(after_in_child=after_in_child)
