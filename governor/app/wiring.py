"""The one place that constructs adapters: settings in, a running governor out."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import structlog

from governor import __version__
from governor.adapters.alerting.dispatch import alert_dispatcher
from governor.adapters.control_socket import ControlServer
from governor.adapters.exporters.prometheus import MetricsUnavailable, PrometheusExporter
from governor.adapters.exporters.report_files import ReportFiles
from governor.adapters.journal.writer import JournalLocked, open_journal
from governor.adapters.machine.clock import SystemClock, boot_of_ticks
from governor.adapters.machine.host_watch import OwnFileWatch
from governor.adapters.machine.nvml import NvmlSampler
from governor.adapters.machine.own_process import own_processes
from governor.adapters.machine.processes import LinuxProcesses, proc_advice
from governor.adapters.machine.service import SystemdNotifier, has_cap_kill, run_selftest, selftest_lines
from governor.adapters.trainers.checkpoints import DiskCheckpoints
from governor.adapters.trainers.inbox import SeqpacketInbox
from governor.adapters.trainers.listener import SocketUnavailable
from governor.adapters.trainers.recordings import RecordingFiles
from governor.adapters.trainers.segments import limits_of
from governor.adapters.trainers.streams import SavedStream, Stream
from governor.app import mark_requests, pricing, requests
from governor.app.earlier_launch import take_up
from governor.app.fleet import fleet_part
from governor.app.machine_watch import MachineWatch
from governor.app.node_facts import (
    CannotStart,
    load_cloud,
    load_price_source,
    load_scheduler,
    make_directory,
    needs_room,
    node_facts,
    raise_descriptor_limit,
    start_report,
    today,
)
from governor.app.peers import PeersPart
from governor.app.pricing import PriceWatch
from governor.app.settings_file import places_told, second_place
from governor.core.base.identity import ProcessId
from governor.core.base.policy import WarmUp
from governor.core.base.units import MICROS_PER_USD, TICK_NS, BootNs, UsdMicros, WallNs
from governor.core.engine.node import Node, NodeFacts, new_node
from governor.core.engine.node_journal import begins_at, own_start
from governor.core.engine.verdicts import tell_fall_backs
from governor.core.events.effects import Alarm
from governor.core.events.inputs import Event
from governor.core.money.charges import UNALLOCATED
from governor.core.views.metrics import GovernorHealth
from governor.daemon.logs import configure
from governor.daemon.loop import Daemon
from governor.daemon.observers import Observers
from governor.daemon.perform import Performer
from governor.daemon.process_killer import ProcessKiller
from governor.daemon.recorder import Recorder
from governor.policies import files
from governor.policies.loading import policy_loader
from governor.ports import Observer
from governor.settings.model import TRAINER_SOCKET, Settings
from governor.settings.money import lines_of
from governor.settings.streams import Jsonl
from governor.wire.peers import problem_above

log = structlog.get_logger("costgov")

# An API across an ocean answers in 0.3 s. A halt's own graces are longer than this.
RESUMED_PRICE_S = 2.0
# A local disk answers in a millisecond, and a start may take a second.
FIRST_LOOK_S = 1.0


class Governor:
    """Everything of one running governor, built and taken down in order. Use as a context manager."""

    @needs_room()
    def __init__(
        self, settings: Settings, policy_paths: Sequence[Path] | None, *, ceiling: UsdMicros | None = None,
        price: UsdMicros | None = None, exclusive: bool = False, watchers: Sequence[Observer] = (),
        entered: tuple[int, int] | None = None, gate: WarmUp | None = None,
    ) -> None:  # fmt: skip
        """`entered`: our first moment, and the CPU time until then. The node's time is ours since costgov began so."""
        self.settings = settings
        raise_descriptor_limit()
        self.clock = SystemClock()
        try:
            self.processes = LinuxProcesses(self.clock.boot_id)
            self.processes.require_own()
        except OSError as error:
            raise CannotStart(f"{error.filename}: cannot be read: {error.strerror}; {proc_advice(error)}") from error
        self._closers: list[Callable[[], object]] = []
        paths = settings.paths
        make_directory(paths.state_dir)
        make_directory(paths.runtime_dir, problem_above(str(paths.runtime_dir), os.geteuid()))
        self.scheduler = load_scheduler(settings)
        self.cloud, self.preflight = load_cloud(settings)
        price_source = load_price_source(settings)
        self.journal, self.journal_problem = self._open_journal()
        # An open halt resumes whatever the price is now, and waits no longer for it than this.
        resumes = bool(self.journal.open_incidents())
        answer = pricing.ask(price_source, RESUMED_PRICE_S if resumes else None)
        left = pricing.price_left(settings, answer, self.journal.runs().get(UNALLOCATED), self.clock.boot_id)
        self.price = pricing.price_of(settings, self.preflight, price, today(self.clock), answer, left)
        self.prices = PriceWatch(settings, self.clock, price_source, self.preflight, price, self.price, answer)
        facts = self._facts(is_run=exclusive)
        may_start = resumes or self.price.quote is not None
        # Without paths, each reload reads the node's policies again.
        self.policy_paths: Callable[[], Sequence[Path]] = lambda: policy_paths or files.of_node(paths.policies_dir)
        budgets = [table.scoped() for table in settings.budget]
        self.load = policy_loader(self.policy_paths, ceiling, lambda: may_start, facts, budgets, gate)
        policies, problems = self.load()
        if policies is None:
            self.close()
            raise CannotStart("\n".join(problems))
        self.halt_marks, policies, unread = mark_requests.begin(paths.marks_dir, policies)
        now, wall = self.clock.boot(), self.clock.wall()
        began = self._began(now, *entered) if entered is not None else now
        self.fleet, shared = fleet_part(settings, facts, self.clock, self._post, self.cloud)
        self.node: Node = new_node(facts, policies, began, WallNs(wall - (now - began)), budgets, shared)
        # A resumed halt acts first; alarms about the price follow.
        reports = paths.state_dir / "incidents"
        taken, self.elsewhere = take_up(self.node, self.journal, self.processes, self.clock, reports)
        alarms = (Alarm(one.kind.value, None, one.line) for one in self.price.alarms)
        self.begin = [*taken, *alarms, *self.others.alarms(), *tell_fall_backs(self.node, ()), *unread]
        # The service watches every user's trainers, `costgov run` only its own user's.
        self.selftest = run_selftest(self.processes, other_uids=not exclusive)
        self.gpus = NvmlSampler()
        self.metrics_places: str | None = None
        self.metrics_problem: str | None = None
        self.checkpoints = DiskCheckpoints()
        # One stands ready: a small halt is over sooner than an interpreter starts.
        self.checkpoints.prepare()
        self._closers += [self.gpus.close, self.checkpoints.close, self.halt_marks.close]
        self.recordings = self._recordings()
        self.daemon = self._build(watchers)
        self._begin_streams()

    def _facts(self, *, is_run: bool) -> NodeFacts:
        self.others = PeersPart(self.settings.peers, self.settings.node.name, self.clock, is_run=is_run)
        self._closers.append(self.others.close)
        known = self.settings, self.cloud, self.preflight, self.scheduler, self.price, self.clock.boot_id
        lines, has_peers = lines_of(self.settings.line, today(self.clock)), self.others.peers is not None
        return node_facts(*known, lines, exclusive=is_run, has_peers=has_peers)

    def _post(self, event: Event) -> None:
        self.daemon.post(event)  # It is built last.

    def _attended(self) -> tuple[ProcessId, ...]:
        return self.daemon.supervised.processes if self.daemon.supervised is not None else ()

    def _open_journal(self) -> Any:
        paths = self.settings.paths
        try:
            journal, problem = open_journal(str(paths.state_dir / "costgov.db"), str(paths.runtime_dir))
        except JournalLocked as error:
            raise CannotStart(str(error)) from error
        self._closers.append(journal.close)
        return journal, problem

    def _recordings(self) -> RecordingFiles | None:
        """Built before the sockets, so that it is closed after them and takes their last lines."""
        if not self.settings.record.enabled:
            return None
        facts = {"node": self.node.facts.node, "boot_id": self.clock.boot_id, "costgov": __version__}
        recordings = RecordingFiles(self.settings.paths.recordings_dir, limits_of(self.settings.record), facts)
        self._closers.append(recordings.close)
        recordings.begin()
        return recordings

    def _began(self, now: BootNs, first: int, cpu_ns: int) -> BootNs:
        own = self.processes.facts(os.getpid())
        started = own_start(boot_of_ticks(own.process.start_ticks if own is not None else 0), BootNs(first), cpu_ns)
        return begins_at(now, started, self.clock.boot_id, self.journal.runs().values(), self.journal.metered())

    def _build(self, watchers: Sequence[Observer]) -> Daemon:
        settings, paths, facts = self.settings, self.settings.paths, self.node.facts
        try:
            inbox = self._inbox()
            self._closers.append(inbox.close_all)
            server = self._control()
            self._closers.append(server.close)
        except SocketUnavailable as error:
            self.close()
            raise CannotStart(str(error)) from error
        self.alerts = alert_dispatcher(settings.alert, self.node, self.clock)
        self._closers.append(self.alerts.close)
        fleet, reports = [self.fleet.presence] if self.fleet else [], ReportFiles(paths.state_dir / "incidents")
        observers = Observers([*watchers, reports, self.alerts, *fleet, *self._exporters()])
        self.streams = [self._stream(entry) for entry in settings.jsonl]
        self._closers += [stream.close for stream in self.streams]
        own_files = [OwnFileWatch("socket_gone", inbox.restore), OwnFileWatch("socket_gone", server.restore)]
        own_files.append(OwnFileWatch("journal_gone", self.journal.take_loss))
        self.machine = MachineWatch(
            self.node, self.gpus, self.processes, self.clock, self.cloud, self._attended, own_files
        )
        self._closers.append(self.machine.close)
        performer = Performer(
            node=self.node,
            clock=self.clock,
            inbox=inbox,
            processes=self.processes,
            journal=self.journal,
            checkpoints=self.checkpoints,
            observer=observers,
            process_killer=ProcessKiller(self.processes, os.getpid(), facts.redact_keys, own_processes, has_cap_kill()),
            post=self._post,
            cloud=self.cloud,
            peers=self.others.peers,
            scheduler=self.scheduler,
        )
        daemon = Daemon(
            node=self.node,
            performer=performer,
            service=SystemdNotifier(),
            load_policies=self.load,
            control=server,
            answer=requests.answer,
            recorder=Recorder(self.node, self.recordings) if self.recordings is not None else None,
            halt_marks=self.halt_marks.file,
            control_is_private=settings.control.mode & 0o006 == 0,
            extra=self._extra,
            sources=[*self.streams, *self.machine.sources(), self.prices, self.halt_marks, self.others],
        )
        if self.fleet is not None:
            performer.calls.ask_by(self.fleet.worker.ask)
            self._closers.append(self.fleet.begin())
        daemon.health.loaded(self.clock.wall())
        return daemon

    def _control(self) -> ControlServer:
        paths, control = self.settings.paths, self.settings.control
        second = second_place(paths, paths.control_socket, os.environ)
        return ControlServer(str(paths.control_socket), control.mode, control.group, second=second)

    def _inbox(self) -> SeqpacketInbox:
        """The trainer socket. A home directory may be on a file system that takes no sockets."""
        settings, paths = self.settings, self.settings.paths
        places = [paths.socket]
        if paths.socket == paths.state_dir / TRAINER_SOCKET:  # The default of a rootless `costgov run`.
            places.append(paths.runtime_dir / TRAINER_SOCKET)
        for self.trainer_socket in places:
            try:
                return SeqpacketInbox(
                    str(self.trainer_socket), self.processes, self.clock.boot_id,
                    mode=settings.trainer.socket_mode, allow_uids=settings.trainer.allow_uids,
                    is_known=lambda connection: connection in self.node.connections,
                    second=second_place(paths, self.trainer_socket, os.environ),
                )  # fmt: skip
            except SocketUnavailable:
                if self.trainer_socket == places[-1]:
                    raise
        raise AssertionError("there is always a last place")

    def _begin_streams(self) -> None:
        """Look at every log now: what is written from here on is news. One that does not answer is not waited for."""
        for stream in self.streams:
            stream.begin(self.clock.mono())
        deadline_s = time.monotonic() + FIRST_LOOK_S
        for stream in self.streams:
            stream.wait(max(0.0, deadline_s - time.monotonic()))

    def _stream(self, entry: Jsonl) -> Stream:
        def wake() -> None:
            self.daemon.soon(lambda: self.daemon.hear(stream.take))

        stream = Stream(entry, self.processes, self._saved_stream(entry.run), wake, launches=self.node.facts.exclusive)
        return stream

    def _saved_stream(self, run: str) -> SavedStream | None:
        managed = self.node.runs.get(run)
        if managed is None:
            return None
        return SavedStream(managed.stream_position, managed.launch.remembered, managed.run.stream.has_record)

    def _exporters(self) -> list[Observer]:
        metrics, node = self.settings.metrics, self.settings.node
        if not metrics.enabled:
            return []
        try:
            exporter = PrometheusExporter(
                metrics.address, metrics.port, health=self._health, tick_ns=TICK_NS, fleet=self.settings.fleet.label,
                scheduler_job=node.scheduler_job or "", past=self.journal.incidents if metrics.has_page else None,
            )  # fmt: skip
        except MetricsUnavailable as error:
            self.metrics_problem = str(error)
            return []
        self._closers.append(exporter.close)
        self.metrics_places = exporter.places
        return [exporter]

    def _health(self) -> GovernorHealth:
        health = self.daemon.health
        return GovernorHealth(
            journal_errors_total=self.journal.errors_total,
            observer_errors_total=self.daemon.performer.observer.errors_total,
            frames_malformed_total=health.frames_malformed_total,
            request_errors_total=self.daemon.request_faults.total,
            config_last_reload_ok=health.last_reload_ok,
            config_last_reload_wall=WallNs(health.last_reload_wall_ns),
            unattached_gpu_processes=len(self.unwatched()) if self.gpus.read() is not None else None,
            alerts=self.alerts.counts(),
            recording_lost_total=self.recordings.lost_total if self.recordings is not None else None,
            machine=self.machine.metrics(),
        )

    def _extra(self) -> dict[str, Any]:
        preflight = self.preflight
        cloud = {
            "name": self.node.facts.cloud,
            "instance_id": self.node.facts.instance_id,
            "will": self.node.facts.will_stop,
            "stays_billed": list(self.node.facts.stays_billed),
            "problems": list(preflight.problems) if preflight is not None else [],
            "ok": self.node.facts.can_stop,
        }
        selftest = [{"name": name, "ok": ok, "line": line} for name, ok, line in self.selftest]
        return {
            "governor": {
                "state_dir": str(self.settings.paths.state_dir),  # Another one's run may have the same name.
                "journal_problem": self.journal.problem,
                "recording": self.recordings.document() if self.recordings is not None else None,
                "processes_stuck": self.processes.is_stuck,
                "cloud": cloud,
                "selftest": selftest,
                "price": self.prices.chosen.document(),
                "alerts": self.alerts.document(),
                "gpu_status": self.gpus.status,
                "peers": self.others.document(),
                "fleet": self.fleet.document() if self.fleet is not None else None,
                "gpus_unread": self.machine.gpu_watch.unread,
            },
            "unwatched_gpu_processes": self.unwatched(),
        }

    def unwatched(self) -> list[dict[str, Any]]:
        """GPU processes of no announced run, with the price of the GPUs that they hold."""
        readings = self.gpus.read() or ()
        unannounced_gpu_pids = self.node.unannounced_gpu_pids()
        price = self.node.ledger.price_usd_micros_per_hour
        share = price / MICROS_PER_USD / len(readings) if price is not None and readings else None
        return [
            {"pid": pid, "gpu": reading.uuid, "usd_per_hour": share}
            for reading in readings
            for pid in reading.pids or ()
            if pid in unannounced_gpu_pids
        ]

    def lines(self) -> list[str]:
        """What start-up reports: what a halt does, what stays billed, what is wrong."""
        fleet_problem = self.fleet.problem if self.fleet is not None else None
        found = (self.journal_problem, self.metrics_problem, self.others.problem, fleet_problem)
        return start_report(
            self.node, self.preflight, self.scheduler, self.price,
            remarks=files.remarks(
                self.policy_paths(), self.settings.paths.policies_dir, [one.name for one in self.node.policies.policies]
            ),
            shared=[(one.scope, one.ceiling_usd) for one in self.settings.fleet.budget],
            problems=[*(problem for problem in found if problem), *self.alerts.problems()],
            metrics_places=self.metrics_places, selftest=selftest_lines(self.selftest),
        )  # fmt: skip

    def close(self) -> None:
        while self._closers:
            self._closers.pop()()

    def __enter__(self) -> Governor:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def run_daemon(settings: Settings, policy_paths: Sequence[Path] | None = None) -> int:
    """The service. Returns an exit code; start-up problems are one line on stderr."""
    configure(settings.log.level)
    try:
        governor = Governor(settings, policy_paths)
    except CannotStart as error:
        sys.stderr.write(f"costgov: {error}\n")
        return 1
    with governor:
        for line in (*places_told(settings.paths, os.environ), *governor.lines()):
            tell = log.warning if line.startswith("problem:") else log.info
            tell("start", line=line, pid=os.getpid())
        governor.daemon.install_signals()
        return 0 if governor.daemon.run(governor.begin) else 1
