"""Slurm, by its own commands: `squeue` tells of a job, `scontrol` keeps it from coming back, `scancel` ends it.

Tried with Slurm 22.05.8 (tests/drills/slurm). Only fields that no user can write are read: a job's name may hold
anything, also what looks like another field. A job's id is asked for as the user's shell has it ("4711", "4711_2" of an
array); a part of a heterogeneous job stands for the whole of it.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from governor.adapters.machine.own_process import OwnProcess
from governor.core.base.identity import SchedulerJob
from governor.core.base.printable import cut, printable
from governor.core.events.inputs import BillingAnswer, StopAnswer
from governor.remote_ports import BillingReply, StopReply

JOB_ID: Final = re.compile(r"[0-9]{1,10}(_[0-9]{1,10}|\+[0-9]{1,5})?")
# All in which a job holds no node and will get none. Of every other state, also an unknown one, it may.
FINAL: Final = frozenset({
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
})  # fmt: skip
CONFIG: Final = "/etc/slurm/slurm.conf"
CONFIGLESS: Final = "/run/slurm/conf/slurm.conf"
KILL_WAIT_S: Final = 30.0  # Slurm's default.
# From the last process's end to the controller's word of it: an epilog, and a message.
EPILOG_S: Final = 15.0
# A stop is three commands. Without a controller each of them tries for 9 s (measured), `squeue` for 18 s.
STOP_S: Final = 27.0
STATE_S: Final = 20.0
CONFIG_S: Final = 5.0
OUTPUT_BYTES_MAX: Final = 1 << 20
ROWS_MAX: Final = 4_096
_PIECE_BYTES: Final = 64 * 1024
_REAP_S: Final = 2.0
# The commands' own variables (SQUEUE_STATES, SCANCEL_USER, ...) would change what they do.
_KEPT: Final = ("PATH", "SLURM_CONF", "LD_LIBRARY_PATH", "HOME", "LANG")
_KILL_WAIT: Final = re.compile(r"^KillWait\s*=\s*([0-9]{1,6})\s*sec", re.MULTILINE)
_STATE: Final = re.compile(r"[A-Z_]{2,32}")

CONTROLLER: Final = "controller_unreachable"
UNKNOWN_JOB: Final = "unknown_job"
DENIED: Final = "permission_denied"
TIMEOUT: Final = "timeout"
UNREADABLE: Final = "unreadable_answer"
# What a command says of itself, and our name of it. The first that fits counts.
_NAMED: Final = (
    ("invalid job id", UNKNOWN_JOB),
    ("denied", DENIED),
    ("invalid user id", DENIED),
    ("munge", "authentication_failed"),
    ("authentication", "authentication_failed"),
    ("unable to contact", CONTROLLER),
    ("connect", CONTROLLER),
    ("timed out", CONTROLLER),
    ("unexpected message received", CONTROLLER),  # `scontrol`, where nobody answers.
    ("already finished", "already_ended"),
    ("already completing", "already_ended"),
)
_LASTING: Final = frozenset({DENIED, "not_found"})


@dataclass(frozen=True, slots=True)
class _Row:
    """A job, an element of an array, or a part of a heterogeneous job."""

    name: str
    uid: int
    state: str
    nodes: str

    @property
    def is_over(self) -> bool:
        return self.state in FINAL


@dataclass(slots=True)
class Slurm:
    """`node`: SLURMD_NODENAME, where this process is in a job; else this machine is known by its hostname."""

    environ: Mapping[str, str]
    node: str | None = None
    stop_bound_s: float = KILL_WAIT_S + EPILOG_S
    name: str = field(default="slurm", init=False)
    _seen: set[str] = field(default_factory=set, init=False)

    @classmethod
    def of(cls, use: str, environ: Mapping[str, str]) -> Slurm | None:
        """None where Slurm does not manage this machine. "auto": in a job, or where its configuration stands."""
        kept = {name: environ[name] for name in _KEPT if name in environ}
        is_here = any(map(os.path.exists, (CONFIG, CONFIGLESS))) or bool(
            {"SLURM_JOB_ID", "SLURM_CONF"} & environ.keys()
        )
        if use == "off" or (use == "auto" and not (is_here and shutil.which("scancel", path=kept.get("PATH")))):
            return None
        slurm = cls(kept, environ.get("SLURMD_NODENAME"))
        config = slurm._run(["scontrol", "show", "config"], time.monotonic() + CONFIG_S)
        told = _KILL_WAIT.search(config.output)
        if told is not None:
            slurm.stop_bound_s = int(told.group(1)) + EPILOG_S
        return slurm

    def node_name(self, given: str) -> str:
        """In a job Slurm says it. Else NodeName is mostly the host's name."""
        return self.node or socket.gethostname().partition(".")[0] or given

    def problems(self, job: SchedulerJob) -> tuple[str, ...]:
        rows = self._rows(job, time.monotonic() + STATE_S)
        why = rows if isinstance(rows, str) else self._not_ours(job, rows, time.monotonic() + STATE_S)
        if why is None:
            return ()
        return (f"Slurm's job {job.name} could not be ended from here: {why}; {_advice(why)}",)

    def stop(self, job: SchedulerJob, incident_id: str, rung: int) -> StopReply:
        del incident_id  # A job is cancelled once, however often it is asked for.
        deadline = time.monotonic() + STOP_S
        rows = self._rows(job, deadline)
        if isinstance(rows, str):
            if rows == UNKNOWN_JOB and self._is_seen(job):
                return StopReply(StopAnswer.ACCEPTED, False, "it has ended: the controller has forgotten it")
            return _refusal(rows)
        if all(row.is_over for row in rows):
            return StopReply(StopAnswer.ACCEPTED, False, f"it has ended: {rows[0].state}")
        why = self._not_ours(job, rows, deadline)
        if why is not None:
            return _refusal(why)
        target = _whole(rows, job.name)
        kept = self._run(["scontrol", "update", f"JobId={target}", "Requeue=0"], deadline)
        if kept.problem in (CONTROLLER, TIMEOUT):
            return _refusal(kept.problem)
        if all(row.is_over or row.state == "COMPLETING" for row in rows):
            # It was cancelled. Slurm takes no further signal; its own SIGKILL comes after KillWait.
            return StopReply(StopAnswer.ACCEPTED, False, "it is completing: SIGKILL comes after KillWait")
        requeue = "not queued again" if kept.problem is None else f"queued again, perhaps: {kept.problem}"
        if rung > 0:
            self._run(["scancel", "--full", "--signal=KILL", target], deadline)
        ended = self._run(["scancel", target], deadline)
        if ended.problem in (None, "already_ended"):
            return StopReply(StopAnswer.ACCEPTED, False, f"cancelled, {requeue}")
        return _refusal(ended.problem)

    def state(self, job: SchedulerJob) -> BillingReply:
        rows = self._rows(job, time.monotonic() + STATE_S)
        if rows == UNKNOWN_JOB and self._is_seen(job):
            return BillingReply(BillingAnswer.ENDED, "forgotten by the controller, which has known it")
        if isinstance(rows, str):
            return BillingReply(BillingAnswer.UNKNOWN, rows)
        if any(row.uid != job.uid for row in rows):
            return BillingReply(BillingAnswer.UNKNOWN, f"job_of_uid_{rows[0].uid}")
        going = [row for row in rows if not row.is_over]
        if not going:
            return BillingReply(BillingAnswer.ENDED, rows[0].state)
        again = " (it may run again)" if going[0].state == "PENDING" else ""
        return BillingReply(BillingAnswer.RUNNING, f"{going[0].state}{again}")

    def drain(self, node: str, incident_id: str) -> StopReply:
        deadline = time.monotonic() + STOP_S
        name = self._listed(node, deadline)
        if not isinstance(name, str):
            return _refusal(name.problem or "unknown_node")
        if self._is_drained(name, deadline):
            return StopReply(StopAnswer.ACCEPTED, False, f"{name} was drained before")
        words = [f"NodeName={name}", "State=DRAIN", f"Reason=costgov: {printable(cut(incident_id, 200))}"]
        done = self._run(["scontrol", "update", *words], deadline)
        if done.problem is not None:
            return _refusal(done.problem)
        if self._is_drained(name, deadline):
            return StopReply(StopAnswer.ACCEPTED, False, f"{name} drained")
        return StopReply(StopAnswer.UNKNOWN, True, "not_drained")

    def _listed(self, node: str, deadline: float) -> str | _Said:
        """The node's name as the controller has it: by that name, or by the host on which it is."""
        told = self._run(["sinfo", "-h", "-N", "-o", "%N|%n"], deadline)
        rows = [line.strip().partition("|")[::2] for line in told.output.splitlines()[:ROWS_MAX]]
        host = socket.gethostname()
        for name, at in rows:
            if name == node or (self.node is None and at in (host, host.partition(".")[0])):
                return name
        return told

    def _is_drained(self, name: str, deadline: float) -> bool:
        told = self._run(["sinfo", "-h", "-N", "-n", name, "-o", "%T"], deadline)
        return any(line.strip().lower().startswith("drain") for line in told.output.splitlines())

    def _is_seen(self, job: SchedulerJob) -> bool:
        return job.is_seen or job.name in self._seen

    def _not_ours(self, job: SchedulerJob, rows: Sequence[_Row], deadline: float) -> str | None:
        """Why this job is none that this run may end. A trainer says itself which job it is in."""
        others = [row.uid for row in rows if row.uid != job.uid]
        if others:
            return f"job_of_uid_{others[0]}"
        going = [row.nodes for row in rows if row.nodes and not row.is_over and row.state != "COMPLETING"]
        if not going:
            return None
        listed = self._run(["sinfo", "-h", "-N", "-n", ",".join(going), "-o", "%N|%n"], deadline)
        if listed.problem is not None:
            return listed.problem
        hosts = dict(line.strip().partition("|")[::2] for line in listed.output.splitlines())
        if self.node is not None:
            return None if self.node in hosts else f"job_not_on_{self.node}"
        here = socket.gethostname()
        return None if {here, here.partition(".")[0]} & {*hosts, *hosts.values()} else "job_not_on_this_node"

    def _rows(self, job: SchedulerJob, deadline: float) -> list[_Row] | str:
        """What the controller says of the job, or why it says nothing."""
        if JOB_ID.fullmatch(job.name) is None:
            return "no_job_id"
        name = job.name.partition("+")[0]
        rows = self._asked(name, deadline)
        if isinstance(rows, list) and (whole := _whole(rows, name)) != name and "_" not in whole:
            rows = self._asked(whole, deadline)  # It was a part of a heterogeneous job.
        if isinstance(rows, list) and all(row.uid == job.uid for row in rows):
            self._seen.add(job.name)
        return rows

    def _asked(self, name: str, deadline: float) -> list[_Row] | str:
        told = self._run(["squeue", "-h", "-r", "-t", "all", "-j", name, "-o", "%i|%U|%T|%N"], deadline)
        if told.problem is not None:
            return told.problem
        found = [_row(line) for line in told.output.splitlines()[:ROWS_MAX] if line.strip()]
        rows = [row for row in found if row is not None]
        if len(rows) < len(found):
            return UNREADABLE
        return rows or UNKNOWN_JOB

    def _run(self, argv: list[str], deadline: float) -> _Said:
        return _said(argv, self.environ, deadline)


@dataclass(frozen=True, slots=True)
class _Said:
    output: str = ""
    problem: str | None = None  # None: it has ended with 0.


def _row(line: str) -> _Row | None:
    parts = line.strip().split("|")
    if len(parts) != 4 or JOB_ID.fullmatch(parts[0]) is None or not re.fullmatch(r"[0-9]{1,10}", parts[1]):
        return None
    return _Row(parts[0], int(parts[1]), parts[2], parts[3]) if _STATE.fullmatch(parts[2]) else None


def _whole(rows: Sequence[_Row], name: str) -> str:
    """The job to end: an element of an array alone, and all of a heterogeneous job."""
    first = rows[0].name
    if "+" in first:
        return first.partition("+")[0]
    return first if len(rows) == 1 else name


def _refusal(why: str) -> StopReply:
    if why == TIMEOUT:
        return StopReply(StopAnswer.UNKNOWN, True, why)
    is_lasting = why in _LASTING or why.startswith(("job_", "no_job_id"))
    return StopReply(StopAnswer.REFUSED, not is_lasting, why)


def _advice(why: str) -> str:
    if why == DENIED:
        return "run as the job's user, or as root or Slurm's operator"
    if why.startswith("job_"):
        return "the label scheduler_job names a job that is not this run's"
    return "see `scontrol ping` and `squeue --me`"


def _said(argv: list[str], environ: Mapping[str, str], deadline: float) -> _Said:
    """Run a command without a shell until it ends, says too much or is late. It and its children are over then."""
    program = shutil.which(argv[0], path=environ.get("PATH"))
    if program is None:
        return _Said(problem="not_found")
    if time.monotonic() >= deadline:
        return _Said(problem=TIMEOUT)
    try:
        child = OwnProcess(
            [program, *argv[1:]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=dict(environ), start_new_session=True,
        )  # fmt: skip
    except OSError:
        return _Said(problem="not_started")
    output, complaint = bytearray(), bytearray()
    assert child.stdout is not None, "a pipe"
    assert child.stderr is not None, "a pipe"
    with child.stdout, child.stderr, selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ, output)
        selector.register(child.stderr, selectors.EVENT_READ, complaint)
        while selector.get_map() and (left_s := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                key.data.extend(piece := os.read(key.fd, _PIECE_BYTES))
                if not piece or len(key.data) > OUTPUT_BYTES_MAX:
                    selector.unregister(key.fileobj)
        is_too_much = max(len(output), len(complaint)) > OUTPUT_BYTES_MAX
        try:
            code = None if is_too_much else child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            code = None
        if code is None:
            # The leader is our child and not yet reaped, so its group's number is its own.
            os.killpg(child.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # In uninterruptible sleep: reaped at a later call.
                child.wait(_REAP_S)
    if code is None:
        return _Said(problem=UNREADABLE if is_too_much else TIMEOUT)
    told = complaint.decode(errors="replace").lower()
    problem = None if code == 0 else next((name for words, name in _NAMED if words in told), f"exit_{code}")
    return _Said(output.decode(errors="replace"), problem)
