"""The checks of `costgov doctor`: everything that a start and a halt need, tried without changing anything."""

from __future__ import annotations

import os
import select
import shutil
import socket
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from governor.adapters import clouds
from governor.adapters.alerting.tables import configured_receivers
from governor.adapters.control_socket import group_id
from governor.adapters.journal.db import JournalReader
from governor.adapters.machine.clock import SystemClock
from governor.adapters.machine.nvml import NvmlSampler, absent_figures
from governor.adapters.machine.processes import LinuxProcesses, proc_advice
from governor.adapters.machine.service import run_selftest
from governor.adapters.peers import opening
from governor.adapters.plugins import ConfigError
from governor.adapters.trainers.listener import SOCKET_PATH_BYTES_MAX, SocketUnavailable
from governor.adapters.trainers.segments import MB, kept_bytes
from governor.adapters.trainers.stream_check import StreamCheck
from governor.app import fleet_view, pricing, scheduler_jobs
from governor.app.mark_requests import with_marks
from governor.app.node_facts import CannotStart, load_price_source, today
from governor.app.settings_file import Settings, load_settings
from governor.core.alerts.outbox import Delivery, Took
from governor.core.base.policy import PolicySet
from governor.core.base.units import NS_PER_S, BootNs, WallNs
from governor.core.engine.idle.limit import promises
from governor.core.engine.node import NodeFacts, new_node
from governor.core.engine.verdicts import REVERSE
from governor.core.money.prices import Chosen, RemarkKind
from governor.policies import files
from governor.policies.loading import policy_loader
from governor.remote_ports import Preflight
from governor.settings.money import lines_of
from governor.text.table import plain
from governor.wire import control_client
from governor.wire.peers import problem_above

# The journal holds about 100 MB. A disk with less room is full tomorrow.
DISK_FREE_BYTES_MIN: Final = 1 << 30
# NVML's first call loads the driver's state: a second or two on eight GPUs.
SAMPLER_WAIT_S: Final = 5.0
# 2026-01-01. A clock before this program's release is wrong.
RELEASED_WALL_S: Final = 1_767_225_600
BOOT_BEHIND_MAX_NS: Final = NS_PER_S

OK: Final = "ok"
WARN: Final = "warn"
FAIL: Final = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. `level`: ok, warn (works, but know this) or fail (a start or a halt would fail)."""

    level: str
    name: str
    text: str
    advice: str = ""

    def lines(self) -> list[str]:
        mark = "FAIL" if self.level == FAIL else self.level
        advice = [f"{'':>20}→ {self.advice}"] if self.advice else []
        return [f"{mark:<4}  {self.name:<12}  {self.text}", *advice]

    def document(self) -> dict[str, Any]:
        return asdict(self)


def examine(config: Path | None, control_sockets: tuple[str, ...]) -> list[Check]:
    """Check everything, in the order of a start. Without settings, nothing else can be checked."""
    settings, problems = load_settings(config)
    if settings is None:
        return [Check(FAIL, "settings", problem) for problem in problems]
    checks = [Check(WARN, "settings", problem) for problem in problems]
    read = str(config) if config else "no file: built-in defaults"
    checks += [] if problems else [Check(OK, "settings", f"{read} (checked as uid {os.geteuid()})")]
    running = control_client.ask_each(control_sockets, {"cmd": "ping"})
    is_running = any(answer.ok for answer in running)
    cloud_checks, preflight = _cloud(settings)
    return [
        *checks,
        *_governor(running),
        *_sockets(settings, is_running),
        *_state(settings),
        *_kill_path(),
        *cloud_checks,
        *(Check(*told) for told in scheduler_jobs.checks(settings)),
        *_price_and_policies(settings, preflight),
        *_streams(settings),
        _gpus(),
        _clock(),
        *_metrics(settings, is_running),
        *(Check(*found) for found in opening.findings(settings.peers, is_running=is_running)),
        *(Check(*found) for found in fleet_view.findings(settings.fleet)),
        _recording(settings),
        *_alerts(settings),
    ]


def _governor(answers: list[control_client.Answer]) -> Iterator[Check]:
    if not answers:
        yield Check(OK, "governor", "none runs: what follows is what a start would meet")
    for answer in answers:
        if answer.ok:
            yield Check(
                OK, "governor", plain(f"version {answer.data.get('version')} runs (pid {answer.data.get('pid')})")
            )
        else:
            yield Check(FAIL if answer.code != "denied" else WARN, "governor", answer.error)


def _sockets(settings: Settings, is_running: bool) -> Iterator[Check]:
    for name, path in (("trainers", settings.paths.socket), ("control", settings.paths.control_socket)):
        problem = None if is_running and path.is_socket() else _socket_problem(path)
        if problem is None:
            yield Check(OK, name, f"{path}")
        else:
            yield Check(FAIL, name, f"{path}: {problem[0]}", problem[1])
    try:
        group_id(settings.control.group)
    except SocketUnavailable as error:
        yield Check(FAIL, "control", str(error))


def _socket_problem(path: Path) -> tuple[str, str] | None:
    """What the listener would refuse, found without creating anything."""
    if len(os.fsencode(path)) + len(".new") > SOCKET_PATH_BYTES_MAX:
        return f"longer than {SOCKET_PATH_BYTES_MAX} bytes", "set a shorter paths.runtime_dir"
    directory = _nearest(path.parent)
    facts = directory.stat()
    above = problem_above(str(path.parent), os.geteuid())
    if above is not None:
        return above, "set paths.runtime_dir"
    if directory == path.parent and facts.st_uid not in (0, os.geteuid()):
        return f"{directory} belongs to uid {facts.st_uid}, who could replace the socket", "use a directory of your own"
    if directory == path.parent and facts.st_mode & stat.S_IWOTH:
        return f"others may write {directory} and replace the socket", f"chmod o-w {directory}, or use another"
    if not os.access(directory, os.W_OK | os.X_OK):
        return f"uid {os.geteuid()} may not write {directory}", "run as the governor's user, or set paths.runtime_dir"
    return None


def _state(settings: Settings) -> Iterator[Check]:
    state_dir = settings.paths.state_dir
    directory = _nearest(state_dir)
    if not os.access(directory, os.W_OK | os.X_OK):
        text = f"{state_dir}: uid {os.geteuid()} may not write {directory}"
        yield Check(FAIL, "journal", text, "run as the governor's user, or set paths.state_dir")
        return
    free = shutil.disk_usage(directory).free
    if free < DISK_FREE_BYTES_MIN:
        text = f"{state_dir}: {free / 1e6:.0f} MB free; a halt goes on without a journal, but leaves less evidence"
        yield Check(WARN, "journal", text, "make room, or set paths.state_dir to another disk")
    journal = state_dir / "costgov.db"
    if not journal.exists():
        yield Check(OK, "journal", f"{journal} will be made")
        return
    try:
        reader = JournalReader(str(journal))
        try:
            still_open = len(reader.incidents(1_000, only_open=True))
        finally:
            reader.close()
    # UnicodeDecodeError: SQLite's message about a damaged schema.
    except (sqlite3.Error, UnicodeDecodeError) as error:
        text = f"{journal}: {error}"
        yield Check(WARN, "journal", text, "a start keeps a corrupt file aside and takes over what can be read of it")
        return
    resumed = f"; {still_open} open incident(s), which a start resumes" if still_open else ""
    yield Check(OK, "journal", f"{journal}{resumed}")


def _kill_path() -> Iterator[Check]:
    try:
        processes = LinuxProcesses(SystemClock().boot_id)
        processes.require_own()
        results = run_selftest(processes)
    except OSError as error:
        text = f"{error.filename or '/proc'}: cannot be read: {error.strerror}"
        yield Check(FAIL, "kill path", text, f"{proc_advice(error)}: nothing can be identified or ended without it")
        return
    for name, ok, line in results:
        limited = ok and name == "signal_other_users" and "only" in line
        yield Check(WARN if limited else OK if ok else FAIL, "kill path", line)


def _cloud(settings: Settings) -> tuple[list[Check], Preflight | None]:
    try:
        preflight = clouds.load(settings.cloud.provider, settings.cloud.config).preflight()
    except ConfigError as error:
        return [Check(FAIL, "cloud", str(error))], None
    billed = "; ".join(preflight.stays_billed) or "nothing that is known"
    checks = [Check(OK if preflight.ok else FAIL, "cloud", f"on halt I will {preflight.will}; stays billed: {billed}")]
    level = WARN if preflight.ok else FAIL
    checks += [Check(level, "cloud", problem) for problem in preflight.problems]
    if preflight.respawners:
        text = f"what may bring the machine back: {'; '.join(preflight.respawners)}"
        checks.append(Check(WARN, "cloud", text, "suspend it before you trust a halt"))
    if preflight.survives_stop is False:
        text = "the local disk is lost when the machine stops"
        checks.append(Check(WARN, "cloud", text, "save checkpoints elsewhere, else `auto` ends processes only"))
    return checks, preflight


def _price_and_policies(settings: Settings, preflight: Preflight | None) -> Iterator[Check]:
    try:
        answer = pricing.ask(load_price_source(settings))
        price = pricing.price_of(settings, preflight, None, today(SystemClock()), answer)
    except CannotStart as error:
        price = None
        yield Check(FAIL, "price", str(error))
    if price is not None:
        yield from _price(price)
    yield from (Check(OK, "line", text) for text in lines_of(settings.line, today(SystemClock())).texts)
    directory = settings.paths.policies_dir
    paths = files.of_node(directory)
    budgets = [table.scoped() for table in settings.budget]
    priced = price is not None and price.quote is not None
    policies, problems = policy_loader(lambda: paths, None, lambda: priced, budgets=budgets)()
    if policies is None:
        yield from (Check(FAIL, "policies", problem) for problem in problems)
    elif not policies.policies:
        text = f"{directory} holds none: runs are metered and never halted"
        yield Check(WARN, "policies", text, "put a *.toml there; `costgov policy check FILE` explains one")
    else:
        names = ", ".join(policy.name for policy in policies.policies)
        observing = " (observe: nothing will be touched)" if settings.observe else ""
        packaged = f", packaged with costgov; {directory} does not exist" if paths != [directory] else ""
        yield Check(OK, "policies", f"{names}{observing}{packaged}")
        marked, told = with_marks(settings.paths.marks_dir, policies)
        yield from (Check(WARN, "halt marks", text) for text in told)
        yield from (Check(WARN, "fallen back", one.text, REVERSE) for one in marked.fallen())
        yield from _node_stop(settings, preflight, policies)


def _node_stop(settings: Settings, preflight: Preflight | None, policies: PolicySet) -> Iterator[Check]:
    """What would stop this node if it stays unused, in a start's words. Nothing if nothing would."""
    facts = NodeFacts(
        node=settings.node.name,
        boot_id="",
        cloud=settings.cloud.provider,
        instance_id=preflight.instance_id if preflight is not None else None,
        will_stop=preflight.will if preflight is not None else "",
        can_stop=preflight is not None and preflight.ok,
        survives_stop=preflight.survives_stop if preflight is not None else None,
        observe=settings.observe,
        idle_stop_ns=settings.node.idle_stop,
    )
    for line in promises(new_node(facts, policies, BootNs(0), WallNs(0))):
        is_problem = line.startswith("problem: ")
        yield Check(WARN if is_problem else OK, "idle", line.removeprefix("problem: "))


def _price(price: Chosen) -> Iterator[Check]:
    if price.quote is None:
        advice = "set node.price_usd_per_hour; until then spend is unknown, and a ceiling refuses to start"
        yield Check(WARN, "price", "unknown", advice)
    else:
        yield Check(OK, "price", price.text)
    for remark in price.remarks:
        if remark.kind is not RemarkKind.UNKNOWN:
            yield Check(WARN if remark.is_alarm else OK, "price", remark.text, remark.advice)


def _streams(settings: Settings) -> Iterator[Check]:
    if not settings.jsonl:
        return
    try:
        processes = LinuxProcesses(SystemClock().boot_id)
    except OSError:
        return  # Without /proc there is no watch at all: the kill path's check says so.
    for stream in settings.jsonl:
        look = StreamCheck(stream, processes)
        look.run()
        yield from (Check(FAIL, "logs", fault.text, fault.advice) for fault in look.faults)
        waits = "" if look.is_there or look.faults else " (not there yet: waited for)"
        if stream.ended_by is None:
            text = f"{stream.path}{waits}: run {stream.run} names no processes: a halt can stop only the instance"
            yield Check(WARN, "logs", text, "add pidfile, unit, cgroup or job to its [[log]] table")
        elif not look.faults:
            yield Check(OK, "logs", f"{stream.path}: run {stream.run}, ended by {stream.ended_by[0]}{waits}")


def _gpus() -> Check:
    sampler = NvmlSampler()
    try:
        _wait_until(lambda: sampler.read() is not None or sampler.fileno() is None, SAMPLER_WAIT_S)
        # Rates are known from the second sample on.
        first = sampler.read()
        _wait_until(lambda: first is None or sampler.read() is not first, SAMPLER_WAIT_S)
        status, readings = sampler.status, sampler.read()
    finally:
        sampler.close()
    if readings is not None:
        lost = [reading.uuid for reading in readings if reading.figures.is_lost]
        if lost:
            text = f"{status}; lost, fallen off the bus: {', '.join(lost)}"
            return Check(FAIL, "gpus", text, "restart the machine; if it stays lost, it is the provider's to replace")
        absent = absent_figures(readings)
        return Check(OK, "gpus", f"{status}{'; not told: ' + ', '.join(absent) if absent else ''}")
    advice = "runs are judged all the same; GPU processes that nobody announced stay invisible"
    return Check(WARN, "gpus", status, advice)


def _clock() -> Check:
    clock = SystemClock()
    if clock.wall() < RELEASED_WALL_S * NS_PER_S:
        text = f"the wall clock says {time.strftime('%Y-%m-%d', time.gmtime())}"
        return Check(FAIL, "clock", text, "set it (NTP): clouds refuse requests that are five minutes off")
    if clock.boot() + BOOT_BEHIND_MAX_NS < clock.mono():
        text = "CLOCK_BOOTTIME runs behind CLOCK_MONOTONIC: a time namespace?"
        return Check(WARN, "clock", text, "money is counted on CLOCK_BOOTTIME; run outside of the time namespace")
    return Check(OK, "clock", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()))


def _metrics(settings: Settings, is_running: bool) -> Iterator[Check]:
    metrics = settings.metrics
    if not metrics.enabled:
        yield Check(OK, "metrics", "disabled")
        return
    url = f"http://{metrics.address}:{metrics.port}/metrics"
    if not is_running and metrics.port:
        try:
            _try_port(metrics.address, metrics.port)
        except OSError as error:
            advice = "set metrics.port to another, or metrics.enabled = false"
            yield Check(FAIL, "metrics", f"{url}: {error.strerror or error}", advice)
            return
    if metrics.address not in ("127.0.0.1", "::1", "localhost"):
        yield Check(WARN, "metrics", f"{url} answers the network, without a password")
    else:
        yield Check(OK, "metrics", url)


def _recording(settings: Settings) -> Check:
    """Where recordings of runs are stored. A fault here costs later replays only."""
    if not settings.record.enabled:
        return Check(OK, "recordings", "off: no run of this node can be replayed later")
    root = settings.paths.recordings_dir
    directory = _nearest(root)
    if not os.access(directory, os.W_OK | os.X_OK):
        why = f"uid {os.geteuid()} may not write {directory}" if directory.is_dir() else f"{directory} is no directory"
        text = f"{root}: {why}; nothing is recorded"
        return Check(WARN, "recordings", text, "set paths.recordings_dir, or record.enabled = false")
    record, free_mb = settings.record, shutil.disk_usage(directory).free // MB
    text = f"{root}: {kept_bytes(root) // MB} of at most {record.node_max_mb} MB"
    if free_mb < record.leave_free_mb:
        text = f"{text}; {free_mb} MB are free and {record.leave_free_mb} are left alone: nothing is recorded"
        return Check(WARN, "recordings", text, "make room, or set paths.recordings_dir to another disk")
    return Check(OK, "recordings", text)


def _alerts(settings: Settings) -> Iterator[Check]:
    """Whether alerts could be sent, as far as this machine shows. Nothing is sent; `costgov alert test` does that."""
    if not settings.alert:
        yield Check(OK, "alerts", "no [[alert]] receiver: alarms and halts go to the log and the metrics alone")
    for one, table in zip(configured_receivers(settings.alert), settings.alert, strict=True):
        told, problem = f"{one.name}: {one.kind} at {one.receiver.where}", one.receiver.problem()
        if problem is not None:
            text, advice = f"{told}: {Delivery(Took.BUSY, problem).line}", "correct it, then run `costgov alert test`"
            yield Check(FAIL, "alerts", text, advice)
        elif table.config.get("insecure"):
            yield Check(WARN, "alerts", f"{told}: insecure, as configured", "everybody on the way can read alerts")
        else:
            yield Check(OK, "alerts", f"{told}; nothing was sent: `costgov alert test` does")


def _try_port(address: str, port: int) -> None:
    found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, target = found[0]
    with socket.socket(family, kind, protocol) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(target)


def _nearest(directory: Path) -> Path:
    """The directory, or the part of its path that exists. If a file is in the way, that file."""
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    return directory


def _wait_until(is_so: Callable[[], bool], bound_s: float) -> None:
    deadline_s = time.monotonic() + bound_s
    while not is_so() and time.monotonic() < deadline_s:
        select.select([], [], [], 0.05)
