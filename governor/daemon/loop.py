"""The loop: one thread, a selector, a 250 ms grid. Bytes become events, the engine's effects are performed.

Everything that can block runs elsewhere and comes back as an event. There is no asyncio: with one thread and one order
of events, the simulator plays what happens here.
"""

from __future__ import annotations

import contextlib
import gc
import queue
import select
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import structlog

from governor.core.base.policy import PolicySet
from governor.core.base.units import NS_PER_MS, NS_PER_S, TICK_NS, MonoNs
from governor.core.engine import step as engine
from governor.core.engine.node import Node
from governor.core.engine.node_journal import metered_row, persist
from governor.core.events.effects import Effect, Term, one_commit
from governor.core.events.inputs import Event, Hello, LauncherExited, LaunchersSeen, Tick, TrainerExited
from governor.core.events.machine import RunRecalled
from governor.core.events.peers import PeerTold
from governor.core.events.streams import StreamOpened
from governor.daemon import signals
from governor.daemon.incident_queries import IncidentQueries, MarksFile
from governor.daemon.launches import LaunchLooks, SupervisedCommand
from governor.daemon.perform import Performer
from governor.daemon.reception import Health, Reception
from governor.daemon.recorder import Recorder
from governor.daemon.request_faults import ANSWER, RequestFaults
from governor.ports import Control, ControlRequest, ServiceManager

ENDS_PER_TICK_MAX: Final = 16  # Each costs some 3 ms beside sixty live runs. The others wait for the next tick.
LAG_SMOOTHING: Final = 0.05  # An exponential mean over about 20 ticks, or five seconds.

log = structlog.get_logger("costgov")

LoadPolicies = Callable[[], tuple[PolicySet | None, list[str]]]


@dataclass(slots=True)
class Daemon:
    node: Node
    performer: Performer
    service: ServiceManager
    load_policies: LoadPolicies
    control: Control | None = None
    # The answer to a control request; None: `reply` sends it later.
    answer: Callable[[Daemon, ControlRequest], dict[str, Any] | None] | None = None
    # Past halts, which the loop itself never reads.
    incident_queries: IncidentQueries = field(init=False)
    request_faults: RequestFaults = field(default_factory=RequestFaults)
    halt_marks: MarksFile | None = None  # The loop itself never touches it.
    control_is_private: bool = False  # The control socket's mode admits only its owner and group.
    extra: Callable[[], dict[str, Any]] = dict  # Further parts of `status`: cloud, self-test, GPU sampler.
    supervised: SupervisedCommand | None = None  # `costgov run`.
    sources: Sequence[Any] = ()  # Streams, samplers: poll(at) -> events, without waiting.
    recorder: Recorder | None = None
    health: Health = field(default_factory=Health)
    reception: Reception = field(init=False)
    looks: LaunchLooks = field(init=False)
    _queue: Any = field(default_factory=queue.SimpleQueue)
    _epoll: Any = field(default_factory=select.epoll)
    _ready: dict[int, Callable[[], None]] = field(default_factory=dict)  # By descriptor: what to do when it is ready.
    _wake: Any = field(default_factory=socket.socketpair)
    _stopping: bool = False
    _acting: int = 0  # Events being applied: not 0 after one that failed.
    _ignored: set[signal.Signals] = field(default_factory=set)  # Logged once each.
    _next_tick: MonoNs = MonoNs(0)
    _is_new_to_journal: bool = False  # A rank has sent a hello since the runs were last persisted.
    _notify_every_ns: int = 0
    _notified_at: int = 0

    def __post_init__(self) -> None:
        self.incident_queries = IncidentQueries(self.request_faults)
        self.looks = LaunchLooks(self.performer, lambda: self.supervised, self.soon, self._launch_seen)
        self.reception = Reception(
            self.performer, self.health, self.apply, self._welcome, self.looks.introduced, lambda: self.recorder
        )

    # --- from other threads and signal handlers ----------------------------------------------------------

    def post(self, event: Event) -> None:
        """Hand an event to the loop. Safe from any thread."""
        self._queue.put(event)
        self._ping()

    def soon(self, call: Callable[[], None]) -> None:
        """Have the loop call this. Safe from any thread."""
        self._queue.put(call)
        self._ping()

    def _ping(self) -> None:
        with contextlib.suppress(BlockingIOError):  # A full pipe has woken the loop already.
            self._wake[1].send(b"\0")

    def install_signals(self) -> None:
        """Answer signals: SIGTERM and SIGINT end the governor (never a run), SIGHUP reloads the policies."""
        for end in self._wake:
            end.setblocking(False)
        signal.set_wakeup_fd(self._wake[1].fileno(), warn_on_full_buffer=False)
        signals.install(self._queue.put)

    def _let_go_of_signals(self) -> None:
        """Stop the wake-up pipe: its descriptor may be a journal's next, and a signal's byte would be written there.

        The handlers stay and their queue is not read: a signal must not cut short the governor's end.
        """
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(-1)

    # --- the loop ----------------------------------------------------------------------------------------

    def run(self, begin: Sequence[Effect] = ()) -> bool:
        """Serve until asked to end. False: a fault of our own ended it. `begin`: effects of resumed halts."""
        try:
            self._serve(begin)
        except Exception:  # noqa: BLE001 - the main guard.
            # Log all of it, and let the governor be started again: the journal resumes the halt.
            log.critical("crashed", traceback=traceback.format_exc())
            return False
        finally:
            self._let_go_of_signals()
        return True

    def _serve(self, begin: Sequence[Effect]) -> None:
        self._register()
        self._next_tick = self.performer.clock.mono()
        self._tick()  # Labels and meters must be right before the first effect.
        self.performer.perform(begin)
        self.service.notify("READY=1", f"STATUS={self._status_line()}")
        # The objects of now (modules, policies, metric families) live until the end. A full pass of the collector over
        # them takes 15 ms and may come between a verdict and its signal.
        gc.collect()
        gc.freeze()
        while not self._stopping and not self._is_over():
            for fd, _ in self._epoll.poll(self._timeout_s()):
                # Only the ready ones: most wake-ups are for one frame, and other calls cost more.
                self._ready[fd]()
            self._drain_queue()
            at = self.performer.clock.mono()
            for seen in self.performer.scan(at):
                self.apply(seen)
            self.performer.calls.begin_due(at)
            if at >= self._next_tick:
                self._tick()
        self.service.notify("STOPPING=1")
        self.persist_runs()

    def _is_over(self) -> bool:
        """Whether the command is over. An answer that a call has given since the queue was drained is taken first."""
        return self.supervised is not None and self.supervised.should_end() and self._queue.empty()

    def _register(self) -> None:
        self._ready = {self._wake[0].fileno(): self._drain_wake, self.performer.inbox.fileno(): self.reception.drain}
        if self.control is not None:
            self._ready[self.control.fileno()] = self._drain_control
        if self.performer.peers is not None:
            self._ready[self.performer.peers.fileno()] = self._drain_peers
        for fd in self._ready:
            self._epoll.register(fd, select.EPOLLIN)
        period_s = self.service.watchdog_period_s
        self._notify_every_ns = round(period_s / 2 * NS_PER_S) if period_s else 0

    def _timeout_s(self) -> float:
        due = [self._next_tick]
        if self.performer.process_killer:
            due.append(self.performer.process_killer.next_at())
        later = self.performer.calls.next_due()
        if later is not None:
            due.append(later)
        return max(0.0, (min(due) - self.performer.clock.mono()) / NS_PER_S)

    def apply(self, event: Event) -> list[Effect]:
        """Put one event through the engine and perform what follows."""
        self._acting += 1
        effects = engine.step(self.node, event)
        if any(isinstance(effect, Term) for effect in effects):
            self.looks.before_end()
        if effects:
            self.performer.perform(effects)
        self._acting -= 1
        return effects

    def persist_runs(self) -> None:
        """Persist owners, money, holds and counts. The engine does so in its time; a new run or hold does not wait."""
        self._is_new_to_journal = False
        self.performer.perform([persist(self.node, self.performer.clock.mono())])

    # --- sources of events -------------------------------------------------------------------------------

    def _drain_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake[0].recv(4096):
                pass

    def _drain_peers(self) -> None:
        assert self.performer.peers is not None
        for told in self.performer.peers.receive():
            self.apply(PeerTold(self.performer.clock.mono(), told))

    def _drain_queue(self) -> None:
        for _ in range(self._queue.qsize()):
            item = self._queue.get_nowait()
            if isinstance(item, signal.Signals):
                self._on_signal(item)
            elif callable(item):
                item()
            else:
                self.apply(item)
                if isinstance(item, RunRecalled):
                    self.reception.let_in(item.run)

    def _on_signal(self, signum: signal.Signals) -> None:
        if signum is signals.RELOADING:
            self.reload()
        elif self.supervised is not None:
            self._stopping = not self.supervised.on_signal(signum)
        elif signum in signals.ENDING:
            self._stopping = True
        elif signum not in self._ignored:  # SIGXCPU comes once a second.
            self._ignored.add(signum)
            log.warning("signal_ignored", signal=signum.name)

    def _welcome(self, hello: Hello) -> None:
        """A rank's hello was accepted."""
        self._is_new_to_journal = True
        self.looks.welcome(hello)

    def _launch_seen(self, hello: Hello, seen: LaunchersSeen) -> None:
        held = self.node.connections.get(hello.connection)  # It may be watched under another name, or be gone.
        if held is not None:
            self.apply(replace(seen, run=held[0]))

    def _drain_control(self) -> None:
        if self.control is None or self.answer is None:
            return
        for request in self.control.poll():
            conn = request.conn
            self.request_faults.guarded(
                partial(self._answer, request), partial(self.control.reply, conn, ANSWER), lambda: self._acting > 0
            )

    def _answer(self, request: ControlRequest) -> None:
        assert self.answer is not None
        assert self.control is not None
        answered = self.answer(self, request)
        if answered is not None:
            self.control.reply(request.conn, answered)

    def reply(self, conn: int, line: bytes) -> None:
        """Answer a deferred control request. Only for the loop's thread: other threads use `soon`."""
        if self.control is not None:
            self.control.reply(conn, line)

    def hear(self, poll: Callable[[MonoNs], Sequence[Event]]) -> None:
        """Apply what a source has. Only for the loop's thread: other threads use `soon`."""
        for event in poll(self.performer.clock.mono()):
            self.apply(self.looks.attributed(event) if isinstance(event, StreamOpened) else event)
            if self.recorder is not None:
                self.recorder.record_sample(event)

    # --- time --------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        clock = self.performer.clock
        at = clock.mono()
        lag_ms = max(0.0, (at - self._next_tick) / NS_PER_MS)
        self.health.loop_lag_ms += (lag_ms - self.health.loop_lag_ms) * LAG_SMOOTHING
        self._next_tick = MonoNs(at + TICK_NS - (at % TICK_NS))
        for source in self.sources:
            self.hear(source.poll)
        self._drain_control()  # Ready or not: this ends connections that are too old.
        # Likewise: this accepts connections that earlier lacked a descriptor.
        self.reception.drain()
        self.reception.tick(at)
        self.performer.rank_looks.forget(at)
        self.looks.tick()
        self._notice_exits(at)
        tick = Tick(clock.mono(), clock.boot(), clock.wall())
        self.apply(tick)
        if self.recorder is not None:
            self.performer.perform(self.recorder.tick(tick.at))
        if self._is_new_to_journal:
            self.persist_runs()
        metered = metered_row(self.node)
        if metered is not None:
            self.performer.journal.note_metered(metered)
        self.performer.observer.tick(self.node, at)
        if self._notify_every_ns and at - self._notified_at >= self._notify_every_ns:
            self._notified_at = at
            self.service.notify("WATCHDOG=1", f"STATUS={self._status_line()}")

    def _notice_exits(self, at: MonoNs) -> None:
        """Report runs whose announced ranks have all exited, and the exit of the launched command."""
        is_read = self.supervised is None or self.supervised.is_read()
        launched = self.node.launched if is_read else None
        if launched is not None and all(self.performer.processes.is_gone(process) for process in launched.processes):
            self.apply(LauncherExited(at))
        effects: list[Effect] = []
        ended = 0
        for managed in list(self.node.runs.values()):
            run = managed.run
            # A log's processes are looked for by its stream, and a command's end is seen.
            is_log = run.jsonl_only and not (self.node.launched is None and managed.launch.launchers)
            is_early = is_log or (managed.is_unattached and not is_read)
            if ended >= ENDS_PER_TICK_MAX or not run.alive or is_early or run.connected_ranks():
                continue
            # Ranks that ended while no governor ran never send a hello again. The journal knows their processes.
            if all(self.performer.processes.is_gone(process) for process in managed.processes()):
                effects += engine.step(self.node, TrainerExited(at, run.run, None))
                ended += 1
        self.performer.perform(one_commit(effects))

    # --- policies ----------------------------------------------------------------------------------------

    def supervise(self, supervised: SupervisedCommand, *sources: Any) -> None:
        """Attend to one command. `sources` are more of them: poll(at) -> events."""
        self.supervised = supervised
        self.performer.process_killer.attend(
            supervised.group, supervised.surroundings, supervised.adoption
        )  # fmt: skip
        self.sources = [*self.sources, *sources]

    def reload(self) -> bool:
        """Read the policies again. An invalid file changes nothing and is logged."""
        clock = self.performer.clock
        self.service.notify("RELOADING=1", f"MONOTONIC_USEC={clock.mono() // 1000}")
        policies, problems = self.load_policies()
        self.health.last_reload_ok = policies is not None
        if policies is None:
            self.health.reload_error = "; ".join(problems)[:1000]
            log.error("reload_refused", problems=problems, keeping=self.node.policies.digest)
        else:
            self.health.reload_error = None
            self.health.loaded(clock.wall())
            self._acting += 1
            self.performer.perform(engine.reload(self.node, policies))
            self._acting -= 1
            log.info("reloaded", policies=[policy.name for policy in policies.policies], digest=policies.digest)
        self.service.notify("READY=1", f"STATUS={self._status_line()}")
        return policies is not None

    def _status_line(self) -> str:
        live = [managed.run.run for managed in self.node.runs.values() if managed.run.alive]
        return f"watching {len(live)} run(s): {', '.join(live[:3])}" if live else "no run yet"
