"""One name is one run, whatever its launches: what of an earlier launch still trains, and the command that goes on."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from governor.adapters.command import launch_lock
from governor.adapters.command.child import INSIDE, Command
from governor.adapters.command.surroundings import Surroundings, here
from governor.adapters.journal.writer import JournalLocked
from governor.adapters.machine.control_group import OwnGroup, left_group
from governor.app.earlier_launch import holds_here, lives_elsewhere, lives_here
from governor.app.node_facts import NO_ROOM, CannotStart
from governor.app.settings_file import paths_of_run
from governor.app.wiring import Governor
from governor.cli.common import ExitCode
from governor.cli.run.own_runs import ended_by_halts, of_command, watched
from governor.core.base.identity import ProcessFacts, ProcessId
from governor.core.base.run_names import names_of
from governor.core.base.secrets import command_text, redacted
from governor.core.engine.alarms import PIDS_NAMED_MAX
from governor.core.engine.halt_plan import RUNG_DESTROY
from governor.core.engine.managed_run import ManagedRun, announced_by_others
from governor.core.engine.node import RUNS_MAX, Node
from governor.core.events.ends import CommandLeft
from governor.core.events.inputs import CommandLaunched, LauncherExited
from governor.core.halt.incident import Incident
from governor.core.halt.left_launch import LeftLaunch, process_of
from governor.core.halt.state import HaltState, StopTarget
from governor.daemon import signals
from governor.daemon.launches import SupervisedCommand
from governor.ports import Sent
from governor.reports.terminal import resume_lines
from governor.settings.model import Paths
from governor.text.table import plain

COMMAND_CHARS_MAX: Final = 80
_DOING: Final = {
    StopTarget.PROCESSES: ("ending its processes", "what they hold"),
    StopTarget.JOB: ("stopping this job", "the job"),
    StopTarget.INSTANCE: ("stopping this machine", "the machine"),
}
ALSO_NAMED_MAX: Final = RUNS_MAX  # In one line: a process of every run that there can be.


def own_argv(name: str, argv: Sequence[str]) -> tuple[str, ...]:
    """The command that resumes this run: our own arguments with the same run name, so that the budget continues."""
    is_ours = Path(sys.argv[0]).name in ("costgov", "__main__.py", "cli.py")
    given = sys.argv[1 : len(sys.argv) - len(argv)] if is_ours else ["run", "--"]
    if any(word.partition("=")[0] in ("--name", "--again") for word in given):
        return ("costgov", *given, *argv)
    is_given = os.environ.get("COSTGOV_RUN") == name != os.environ.get(INSIDE)
    return ("costgov", *given[:1], "--name" if is_given else "--again", name, *given[1:], *argv)


def note_launch(
    governor: Governor, name: str, argv: Sequence[str], pid: int, mark: int | None, group: OwnGroup | None,
    *, say: Callable[[str], None] | None = None,
) -> None:  # fmt: skip
    """Have the command in the journal: a launch of this name after our `kill -9` must know it.

    `say`: told where that cannot be, for /proc does not show it.
    """
    why = "is not shown in /proc"
    try:
        facts = governor.processes.facts(pid)
    except OSError as error:  # No free descriptors.
        facts, why = None, f"cannot be looked at in /proc ({error.strerror})"
    if facts is None and say is not None:
        say(
            f"costgov: pid {pid} {why}, and is not noted: if costgov is killed, the next launch of {name} may start "
            "beside it"
        )
    if facts is not None:
        marks, cgroups = () if mark is None else (mark,), () if group is None else (group.path,)
        at, own = governor.clock.mono(), own_argv(name, argv)
        launched = CommandLaunched(at, name, os.getuid(), (facts.process,), own, marks, cgroups, here())
        governor.daemon.apply(launched)


def cannot_run(governor: Governor, program: str, error: Exception) -> int:
    """Say so, and that this launch is over: its process was there perhaps, and ran nothing."""
    if governor.node.launched is not None:
        governor.daemon.apply(LauncherExited(governor.clock.mono()))
        note_left(governor)
    why = error.strerror if isinstance(error, OSError) and error.strerror else error
    why = NO_ROOM if isinstance(error, BlockingIOError) else why
    sys.stderr.write(f"costgov: {plain(program)}: cannot be run: {plain(str(why))}\n")
    return ExitCode.NOT_FOUND if isinstance(error, FileNotFoundError) else ExitCode.CANNOT_EXECUTE


def note_left(governor: Governor, *, is_seen: bool = True) -> None:
    """Nobody waits any more for what the launch has left. `is_seen`: its end was, so no holder of its lock trains."""
    lock = launch_lock.stamp(governor.settings.paths.state_dir) if is_seen else None
    governor.daemon.apply(CommandLeft(governor.clock.mono(), lock))


def launched_before(governor: Governor, name: str) -> str | None:
    """Why the command is not started: an earlier launch of this name trains on, and writes the same checkpoints.

    The journal has its processes, and by what others are known that the command has started, while it was not seen to
    end. Those of a followed log are the log's own, if it is not the command's (--log-format). An open halt that ends
    them goes on now.
    """
    node = governor.node
    logs = {stream.run for stream in governor.settings.jsonl if stream.run != name or stream.ended_by is not None}
    runs = [t for t in watched(node) if t.run.alive and t.run.run not in logs]
    known = [process for managed in runs for process in managed.processes()]
    known += node.previous_command.processes if node.previous_command is not None else ()
    alive = [facts for process in dict.fromkeys(known) if (facts := still_there(governor, process)) is not None]
    ended, known = ended_by_halts(node), [facts.process for facts in alive]
    its = [facts for facts in _of_previous(governor) if facts.process not in known]
    if not its and set(known) <= ended:
        state_dir = governor.settings.paths.state_dir
        return lives_elsewhere(name, governor.elsewhere, state_dir) or _holds_lock(governor, name, state_dir, ended)
    left = (*alive, *its)
    what = command_text(redacted([*its[:1], *alive][-1].argv, node.facts.redact_keys))[:COMMAND_CHARS_MAX]
    return (
        f"not launched: an earlier launch of {name} still runs, unwatched (pid {_named(left)}: "
        f"{what}), and two trainers would write the same checkpoints; end it with {_how_to_end(left)}, "
        "or launch under another --name"
    )


def _named(left: Sequence[ProcessFacts]) -> str:
    more = f" and {len(left) - PIDS_NAMED_MAX} more" if len(left) > PIDS_NAMED_MAX else ""
    return ", ".join(str(facts.process.pid) for facts in left[:PIDS_NAMED_MAX]) + more


def _how_to_end(left: Sequence[ProcessFacts]) -> str:
    more = len(left) - ALSO_NAMED_MAX
    pids = " ".join(str(facts.process.pid) for facts in left[:ALSO_NAMED_MAX])
    return f"`kill {pids}`" + (f" and launch again: {more} more are named then" if more > 0 else "")


def _holds_lock(governor: Governor, name: str, state_dir: Path, ended: Collection[ProcessId]) -> str | None:
    """Why the command is not started: what nothing else ties to an earlier launch holds that one's lock.

    `ended`: by an open halt, with what stands below them.
    """
    told = _told_of_holders(governor, ended) if not _is_seen_to_end(governor) else None
    if told is None:
        return None
    who, ends = told
    is_unknown = governor.node.previous_command is None and governor.node.left is None
    why = ", the journal does not know how that launch ended" if is_unknown else ""
    return (
        f"not launched: somebody of an earlier launch of {name} still lives and holds "
        f"{launch_lock.path_of(state_dir)} ({who}){why}, and two trainers would write the same checkpoints; {ends}, or "
        "launch under another --name; if you know that none of them trains, remove that file and launch again"
    )


def taken_for_no_trainer(governor: Governor, name: str) -> str | None:
    """What is told where the command is started although somebody holds the lock: the launch was seen to its end.

    A rank that had attached would be known, and the silent ones were told of then: it is a terminal server, a
    tracker's service, a daemon that has become another user.
    """
    told = _told_of_holders(governor, ()) if _is_seen_to_end(governor) else None
    path = launch_lock.path_of(governor.settings.paths.state_dir)
    if told is None:
        return None
    return f"what an earlier launch of {name} has left still holds {path} ({told[0]}): it is taken for no trainer"


def without_lock(command: Command, name: str, paths: Paths) -> list[str]:
    if command.has_lock:
        return []
    told = (
        f"{launch_lock.path_of(paths.state_dir)} cannot be taken: if costgov is killed, the next launch of {name} "
        "does not see by it what this one has left, and may start beside that"
    )
    return [told]


def _is_seen_to_end(governor: Governor) -> bool:
    """Whether the journal says so of the launch that took the lock last. It may be fresh, damaged, or an older copy."""
    node = governor.node
    is_known = node.ended_lock is not None and node.ended_lock == launch_lock.stamp(governor.settings.paths.state_dir)
    return is_known and node.previous_command is None and node.left is None


def _told_of_holders(governor: Governor, ended: Collection[ProcessId]) -> tuple[str, str] | None:
    """Who holds an earlier launch's lock, or perhaps is of that launch, and how to end them. None: nobody does."""
    node, killer = governor.node, governor.daemon.performer.process_killer
    strangers = [*ended, *(process for t in node.runs.values() if t.is_strangers for process in t.processes())]
    launch = _last_launch(node)
    is_held, seen, spared = holds_here(governor.settings.paths.state_dir, killer, strangers, launch)
    if not is_held:
        return None
    marked = lives_here(launch, killer, (), strangers, perhaps=True) if launch is not None else ()
    known = {facts.process for facts in seen}
    left = (*seen, *(facts for facts in marked if facts.process not in known))
    who = ", ".join(f"pid {facts.process.pid} of uid {facts.uid}" for facts in left[:PIDS_NAMED_MAX])
    more = f" and {len(left) - PIDS_NAMED_MAX} more" if len(left) > PIDS_NAMED_MAX else ""
    what = f": {command_text(redacted(left[0].argv, node.facts.redact_keys))[:COMMAND_CHARS_MAX]}" if left else ""
    too = f"; pid {spared[0].process.pid}, which holds it too, is above this launch or apart from it" if spared else ""
    told = f"perhaps of it: {who}{more}{what}" if left else f"who that is cannot be seen from here{too}"
    return told, f"end it with {_how_to_end(left)}" if left else "end it"


def _last_launch(node: Node) -> LeftLaunch | None:
    """The launch whose end was not seen, as the journal has it."""
    return node.previous_command.launch if node.previous_command is not None else node.left


def _of_previous(governor: Governor) -> tuple[ProcessFacts, ...]:
    """Who lives of a launch whose end was not seen. Nobody where an open halt ends it, and no stranger (a sandbox)."""
    node = governor.node
    launch = _last_launch(node)
    if launch is None or not ended_by_halts(node).isdisjoint(launch.processes):
        return ()
    strangers = [process for t in node.runs.values() if t.is_strangers for process in t.processes()]
    uids = [managed.run.uid for managed in watched(node) if managed.run.alive]
    return lives_here(launch, governor.daemon.performer.process_killer, uids, strangers)


def finish_halt(governor: Governor, name: str, argv: Sequence[str], print_line: Callable[[str], None]) -> int | None:
    """Serve a halt of an earlier launch to its end; None: the command may start.

    Under the halted run's name nothing starts while it is open: the halt would take the new ranks for the run's and
    end them, and would count what they save. Nor under another name while it stops the machine where the disk may go
    with it, until a person is called. Only its own run's halt gives it a halt's exit code.
    """
    node = governor.node
    found = [(t, t.incident) for t in watched(node) if t.incident is not None and not t.incident.is_closed]
    own = [incident for managed, incident in found if _has_name(managed, name) and _holds(governor, managed, incident)]
    incidents = own or [incident for _, incident in found if _stops_machine(incident)]
    if not incidents:
        return None
    doing, of_what = _DOING[incidents[0].plan.stop]
    told = f"the halt of an earlier launch (incident {incidents[0].incident_id}) is {doing}, and goes on"
    may_destroy = any(incident.plan.rung_max >= RUNG_DESTROY for incident in incidents)
    is_cheap = all(incident.plan.stop is StopTarget.PROCESSES for incident in incidents)
    keeps_disk = is_cheap or (node.facts.survives_stop is True and not may_destroy)
    if keeps_disk and not own:
        print_line(f"costgov: {told} beside this command, which may end with {of_what}")
        return None
    beside = ", or under another --name " + ("now" if keeps_disk else "once a person is called") if own else ""
    print_line(f"costgov: not launched: {told} now; launch again when it is over{beside}")

    def on_signal(signum: signal.Signals) -> bool:
        return signum not in signals.PASSED_ON  # There is nobody to pass it on to: its sender wants us to leave.

    made = [cgroup for incident in own if incident.launch is not None for cgroup in incident.launch.cgroups]
    group, last = left_group(made[0]) if made else None, _last_launch(node)
    governor.daemon.supervise(
        SupervisedCommand(
            run=name, argv=own_argv(name, argv), processes=(), on_signal=on_signal, surroundings=Surroundings(),
            group=group,
            should_end=lambda: all(one.is_closed or not (own or _stops_machine(one)) for one in incidents),
        )
    )  # fmt: skip
    governor.daemon.run(governor.begin)
    if group is not None:
        group.remove()
    left = next((incident for incident in incidents if not incident.is_closed), None)
    if left is not None:
        may_start = keeps_disk or not any(map(_stops_machine, incidents))
        again = (", or launch under another --name" if own else ", or launch again") if may_start else ""
        remedy = (
            f"look at it with `costgov incident show {left.incident_id}`" if is_cheap else "stop it at its provider"
        )
        print_line(
            f"costgov: incident {left.incident_id} was not seen to end, and {of_what} may still be billed: "
            f"{remedy}{again}"
        )
    if not own:
        return ExitCode.FAILED
    unended = [line for managed, incident in found if incident in own for line in _left_of(governor, managed, incident)]
    for line in dict.fromkeys(unended):
        print_line(f"costgov: {line}")
    if left is not None or unended:
        return ExitCode.NEEDS_HUMAN
    if last is not None and {one.launch and one.launch.processes for one in own} == {last.processes}:
        note_left(governor)
    return ExitCode.HALTED


def _left_of(governor: Governor, managed: ManagedRun, incident: Incident) -> list[str]:
    """Who lives of the halted launch, or is perhaps of it. It is not below us: see core/halt/inherited.py."""
    if incident.launch is None:
        return []
    own, others = (*incident.launchers, *incident.rank_processes), announced_by_others(governor.node.runs, incident.run)
    killer, uids = governor.daemon.performer.process_killer, (managed.run.uid, *incident.named_uids)
    try:
        left = killer.left_of(incident.launch, uids, own, others)
    except OSError as error:
        return [f"what is left of the halted launch cannot be seen: {error.strerror}"]
    lines = [
        f"pid {facts.process.pid} of uid {facts.uid} still runs, perhaps of the halted launch, and was not ended: "
        f"{command_text(redacted(facts.argv, governor.node.facts.redact_keys))[:COMMAND_CHARS_MAX]}"
        for facts in left[:PIDS_NAMED_MAX]
    ]
    lines += also([f"pid {facts.process.pid}" for facts in left[PIDS_NAMED_MAX:]], "not ended either")
    return lines + _unlisted(incident)


def _unlisted(incident: Incident) -> list[str]:
    """What was not written down of the halted launch, before its governor was killed."""
    if not incident.is_in_doubt:
        return []
    if not incident.below.is_looked:
        return ["what the halted launch had below it was never looked at: whether all of it has ended is not known"]
    many = incident.below.missed
    return [f"the halted launch had {many} more process(es) than were noted: whether these have ended is not known"]


def _stops_machine(incident: Incident) -> bool:
    under_way = incident.halt.stage in (HaltState.STOPPING, HaltState.VERIFYING)
    return under_way and incident.plan.stop is not StopTarget.PROCESSES


def _holds(governor: Governor, managed: ManagedRun, incident: Incident) -> bool:
    """Whether an open halt of this name has something to end yet: the machine, or a process that lives."""
    signalled = (process_of(row) for row in incident.targets if row.get("sent") == Sent.SENT.value)
    named = (*managed.processes(), *managed.launch.launchers, *incident.rank_processes, *incident.launchers)
    named = (*named, *incident.below.processes)
    stops = incident.plan.stop is not StopTarget.PROCESSES
    if stops or incident.is_in_doubt or any(still_there(governor, one) is not None for one in (*named, *signalled)):
        return True
    others, killer = announced_by_others(governor.node.runs, incident.run), governor.daemon.performer.process_killer
    uids = (managed.run.uid, *incident.named_uids)
    return incident.launch is not None and bool(lives_here(incident.launch, killer, uids, others))


def _has_name(managed: ManagedRun, name: str) -> bool:
    """Whether the run is of a launch of this name: a script may choose its own."""
    return managed.run.run in names_of(name, managed.run.uid) or managed.history.command == name


def also(rest: Sequence[str], how: str = "UNWATCHED too") -> list[str]:
    """One line for those that have none of their own: whoever comes first must not push the others out."""
    more = f" and {len(rest) - ALSO_NAMED_MAX} more" if len(rest) > ALSO_NAMED_MAX else ""
    return [f"so do {', '.join(rest[:ALSO_NAMED_MAX])}{more}, {how}"] if rest else []


def still_there(governor: Governor, process: ProcessId) -> ProcessFacts | None:
    """What is seen of a process that lives."""
    try:
        facts = governor.processes.facts(process.pid)
    except OSError:  # No free descriptors.
        return None
    if facts is None or facts.process != process or governor.processes.is_gone(process):
        return None
    return facts


def how_to_resume(
    governor: Governor, command: Command, name: str, argv: Sequence[str], *, is_halted: bool
) -> list[str]:
    """The command that goes on with this run and its budget, after a bad end. A halt's report has its own."""
    announced = [managed for managed in of_command(governor.node) if managed.was_announced]
    ours = next((t for t in announced if t.run.run == name), announced[0] if announced else None)
    code, end = command.poll(), ours.run.end if ours is not None else None
    if is_halted or code is None or (code == 0 and end is None and command.sent_to_left is None):
        return []
    saved, directory = ours.run.last_good if ours is not None else None, here()
    again = command_text(redacted(own_argv(name, argv), governor.node.facts.redact_keys))
    return resume_lines(
        {
            "run": name,
            "resume": f"cd {command_text([directory])} && {again}" if directory else again,
            "last_good": saved.row() if saved is not None else None,
            "framework": ours.run.framework if ours is not None else None,
            "resumes": ours.run.resumes if ours is not None else None,
        }
    )


def is_running(error: CannotStart, name: str, paths: Paths) -> str | None:
    """What to do where another `costgov run` of this name is alive: its journal is this run's own. None elsewhere."""
    held = error.__cause__
    if not isinstance(held, JournalLocked) or made_for(name, paths)[0] is None:
        return None
    return (
        f"not launched: the run {name} is running already, under costgov run (pid {held.holder}); wait for its end, "
        "or launch under another --name"
    )


def made_for(name: str, paths: Paths, environ: Mapping[str, str] | None = None) -> tuple[Path | None, Path | None]:
    """The state and the runtime directory for `prune`. None for one that `costgov run` did not create for `name`.

    Directories beside a configured directory belong to its owner, whatever their names are.
    """
    made = paths_of_run(os.environ if environ is None else environ, name)
    return (
        paths.state_dir if paths.state_dir == Path(made["state_dir"]) else None,
        paths.runtime_dir if paths.runtime_dir == Path(made["runtime_dir"]) else None,
    )
