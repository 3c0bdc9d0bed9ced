"""What others than ranks report: the machine's samples, a run's log, a source's trouble, and a command's end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from governor.core.base.identity import RUN_NAME
from governor.core.base.model_speed import SLICED, Peak, peak_of_names
from governor.core.base.units import NS_PER_S, MonoNs, format_duration
from governor.core.engine import budgeting, charging, incidents, launched_command, names
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.metering import close_gap, hand_over
from governor.core.engine.node import Node
from governor.core.engine.node_journal import persist
from governor.core.engine.spent import time
from governor.core.engine.spent.marks import line_ended
from governor.core.engine.spent.tokens import end_stage, meter_tokens
from governor.core.events.effects import Alarm, Effect, Record
from governor.core.events.inputs import Step
from governor.core.events.machine import (
    FilesLost,
    GpuSample,
    HostMemory,
    HostSample,
    MachineEvent,
    ProcessUse,
    SourceTrouble,
    SpotNotice,
)
from governor.core.events.streams import StreamOpened, StreamRead, StreamState, TokensSettled
from governor.core.rules.gpu_idle_since import STALE_NS
from governor.core.runs import intake, speakers
from governor.core.runs.counting import count_settled
from governor.core.runs.life import LifeFact
from governor.core.runs.line_steps import of_all_its_steps

# A driver uses some of a GPU's memory itself (below 1 GB), and a container does not see others' processes.
HELD_BYTES_MIN: Final = 4_000_000_000
# A log is looked at four times a second. Its writer may flush late.
LATE_LINES_NS: Final = 10 * NS_PER_S


def on_gpu_sample(node: Node, sample: GpuSample) -> list[Effect]:
    if sample.run is not None:
        managed = node.runs.get(sample.run)
        if managed is not None and managed.run.alive:
            node.frames_total += 1
            intake.note_log_line(managed.run, sample.at, node.wall(sample.at))
            asked_at = managed.gpus_asked_at
            # Otherwise log and driver would report the same GPUs under different names.
            if asked_at is None or sample.at - asked_at > STALE_NS:
                _show(managed, sample)
        return []
    live = _live(node)
    for managed in live:
        below = node.gpu_pids_own if managed.is_unattached else frozenset()
        places, is_certain = own_places(sample, managed, below, is_alone=len(live) == 1)
        if places:
            managed.gpus_asked_at = sample.at
            shown = of_places(sample, places, managed.run.run)
            intake.note_peak(managed.run, peak_of(shown, node.facts.gpu_peaks))
            if is_certain:
                time.on_gpus(managed, shown, places)
            _show(managed, shown if is_certain else replace(shown, uuids=()))
    return []


def _show(managed: ManagedRun, event: MachineEvent) -> None:
    intake.apply_machine(managed.run, event)
    managed.rules.observe(event)


def own_places(
    sample: GpuSample, managed: ManagedRun, below: frozenset[int], *, is_alone: bool
) -> tuple[list[int], bool]:
    """Return the places of the run's own GPUs in a node's sample, and whether they are certain. No places: unknown.

    The surest source comes first: the GPUs on which the driver shows the run's processes, then the GPUs that its ranks
    announced. The only run of the node gets all GPUs whose users the driver does not name. A neighbour's may be among
    them, so they are shown without names, like a log's: no run is judged by the idlest of them. An unused GPU belongs
    to no run. A GPU that has fallen off the bus shows no process: it stays with the run that had it. `below`: the GPU
    processes below the run's command, if nothing else is known of the run.
    """
    own = below | {process.pid for process in managed.processes()}
    places = range(len(sample.busy_frac))
    computing = [place for place in places if sample.pids and own & (sample.pids[place] or frozenset())]
    announced = {uuid for rank in managed.run.ranks.values() for uuid in rank.gpu_uuids}
    had = announced | set(managed.run.gpus.uuids if managed.run.gpus is not None else ())
    if computing:
        lost = [place for place in places if sample.is_lost(place) and sample.uuids[place] in had]
        return sorted({*computing, *lost}), True
    named = [place for place in places if sample.uuids and sample.uuids[place] in announced]
    if named or not is_alone:
        return named, True
    return [place for place in places if _may_be_its_own(sample, place, knows_own=bool(own))], False


def _may_be_its_own(sample: GpuSample, place: int, *, knows_own: bool) -> bool:
    pids = sample.pids[place] if sample.pids else None
    if pids:
        return not knows_own  # Named processes, none of them the run's: somebody else's GPU.
    if sample.is_lost(place):
        return True  # Whose it was can no longer be seen.
    used = sample.memory_used_bytes[place] if sample.memory_used_bytes else None
    return (used or 0) >= HELD_BYTES_MIN


def of_places(sample: GpuSample, places: list[int], run: str) -> GpuSample:
    return GpuSample(
        sample.at,
        run,
        tuple(sample.busy_frac[place] for place in places),
        uuids=tuple(sample.uuids[place] for place in places if sample.uuids),
        memory_used_bytes=tuple(sample.memory_used_bytes[place] for place in places if sample.memory_used_bytes),
        memory_total_bytes=tuple(sample.memory_total_bytes[place] for place in places if sample.memory_total_bytes),
        pids=tuple(sample.pids[place] for place in places if sample.pids),
        figures=tuple(sample.figures[place] for place in places if sample.figures),
        names=tuple(sample.names[place] for place in places if sample.names),
    )


def peak_of(shown: GpuSample, peaks: Mapping[str, Peak]) -> Peak | str:
    """The peak of a run's GPUs, or why none is known."""
    if any(figures.is_mig for figures in shown.figures):
        return SLICED
    return peak_of_names(frozenset(shown.names), peaks)


def on_host_memory(node: Node, event: HostMemory) -> list[Effect]:
    for managed in _live(node):
        if event.run is None or event.run == managed.run.run:
            _show(managed, event)
    return []


def on_host_sample(node: Node, event: HostSample) -> list[Effect]:
    for managed in _live(node):
        if event.run is not None:  # Recorded: it has only this run's.
            own: tuple[ProcessUse, ...] | None = event.processes if event.run == managed.run.run else None
            cut = event.cut
        else:
            ranks = set(managed.processes())
            own, cut = tuple(one for one in event.processes if one.rank in ranks), event.cut & ranks
        if own is not None:
            shown = replace(event, processes=own, run=managed.run.run, cut=cut)
            time.on_host(managed, shown)
            _show(managed, shown)
    return []


def on_spot_notice(node: Node, event: SpotNotice) -> list[Effect]:
    """Show the notice to the runs' rules, which answer with a checkpoint. Report it once, also without a run."""
    was = node.spot_notice.action if node.spot_notice is not None else None
    node.spot_notice = event
    for managed in _live(node):
        _show(managed, event)
    if event.action is None or event.action == was:
        return []
    left = f"in {format_duration(event.left)}" if event.left is not None else "soon"
    text = f"the provider takes this spot machine back {left} ({event.action})"
    data = {"action": event.action, "left_ns": event.left}
    return [Alarm("spot_notice", None, text), Record("spot_notice", None, None, data)]


def on_files_lost(_node: Node, event: FilesLost) -> list[Effect]:
    return [Alarm(event.alarm, None, event.text)]


def _live(node: Node) -> list[ManagedRun]:
    return [managed for managed in node.runs.values() if managed.run.alive]


def on_trouble(_node: Node, event: SourceTrouble) -> list[Effect]:
    return [Alarm(event.alarm, event.run, event.text)]


def run_of_log(node: Node, run: str, step: int | None, at: MonoNs) -> ManagedRun | None:
    """The run that a record of its log is about. None: there is none, or its ranks speak for it.

    They tell the same steps. A step that both count would be trained twice. A rank that tells no step speaks for
    nobody, nor does one that has gone: its last lines may come after it, for a moment, and what they tell is known.
    """
    managed = node.runs.get(run)
    if managed is None or not managed.run.ranks:
        return managed
    ranks = managed.run.ranks.values()
    if any(rank.connected and rank.step is not None for rank in ranks):
        return None
    told = max((rank.step for rank in ranks if rank.step is not None), default=None)
    is_late = any(rank.lost_at is not None and at - rank.lost_at < LATE_LINES_NS for rank in ranks)
    return managed if told is None or not is_late or (step is not None and step > told) else None


# --- a run's log: that it is written, by which processes, and whether it can be read ---------------------------


def on_stream(node: Node, event: StreamOpened) -> list[Effect]:
    """Enter a run without ranks. Its log is judged; a halt ends the processes that its owner named."""
    if asked := names.ask_first(node, event):
        return asked
    names.free_for_stream(node, event)
    managed = node.runs.get(event.run)
    if managed is None and (RUN_NAME.fullmatch(event.run) is None or not names.has_room(node, event.uid)):
        return [Alarm("stream_refused", None, f"stream {event.run[:40]!r} is not watched: name or number of runs")]
    begins, displaced = True, list[Effect]()
    close_gap(node, managed)
    charging.charge_before(node, event.run, event.at)
    if managed is None:
        managed, displaced = names.enter(node, event.run, event.uid, event.stage, event.labels, event.at)
        intake.begin_attempt(managed.run, "stream", event.at)
    elif begins := managed.run.move(_what_opened(managed, event), event.at).begins:
        managed.drop_latch()  # The latch was the old attempt's.
        end_stage(node, managed, event.stage)
        speakers.relabel(managed.run, event.stage, event.labels)
        budgeting.refit(node, managed)  # A stand-in for a command had no stage and no labels.
        managed.launch.forget_places(is_over=not managed.run.ranks)
        intake.begin_attempt(managed.run, "stream", event.at)
        managed.rules.new_attempt()
    managed.has_fresh_log = event.is_fresh
    launched_command.on_log(node, managed, event)
    hand_over(node, managed, event.at, begins=begins)
    if begins and not managed.awaits_line:
        charging.charge_launch(node, managed, event.at)
        charging.note_shares(node, event.at)
        node.request_persist()  # From here on it holds the node.
    speakers.set_jsonl_only(managed.run, only=not managed.run.ranks)
    if event.processes and managed.run.jsonl_only:
        # Until its processes are known, the run belongs to the file's owner.
        speakers.set_uid(managed.run, event.uid)
    return [*displaced, *incidents.name_at_last(node, managed, event)]


def _what_opened(managed: ManagedRun, event: StreamOpened) -> LifeFact:
    """Which fact an opened stream is. An open halt goes on, whichever processes have the run's name now."""
    if not event.processes:
        return LifeFact.LOG
    known = managed.launch.remembered if managed.incident is None and not managed.launch.named else ()
    is_new = bool(known) and not set(known) & set(event.processes)
    return LifeFact.LOG_OF_NEW_PROCESSES if is_new else LifeFact.LOG_OF_PROCESSES


def take_line(node: Node, managed: ManagedRun, line: Step) -> tuple[Step, MonoNs | None]:
    """A log's step as that of all its line, and when the line was written, where it says so."""
    if managed.awaits_line or not managed.run.alive:
        on_line(node, managed, line.at)
    time.on_log_line(node, managed, line.at)
    line = of_all_its_steps(managed.run, line)
    return line, line_ended(node, managed, line) if line.written is not None else None


def on_line(node: Node, managed: ManagedRun, at: MonoNs) -> None:
    """A line with a step: somebody writes the log. The launched command, where nobody else was named."""
    is_taken = launched_command.may_take(node, managed)
    is_back = not managed.run.alive and not managed.processes() and managed.incident is None
    if not is_taken and not is_back:
        return
    close_gap(node, managed)
    charging.charge_before(node, managed.run.run, at)
    begins = not managed.run.alive and managed.run.move(LifeFact.LINE, at).begins
    if begins:
        managed.drop_latch()
        intake.begin_attempt(managed.run, "stream", at)
        managed.rules.new_attempt()
    if is_taken:
        launched_command.take(node, managed)
        hand_over(node, managed, at, begins=True)
    if begins if not is_taken else node.account.run == managed.run.run:  # One launch, however many logs.
        charging.charge_launch(node, managed, at)
    charging.note_shares(node, at)
    node.request_persist()


def on_stream_read(node: Node, event: StreamRead) -> list[Effect]:
    managed = node.runs.get(event.run)
    if managed is not None:
        managed.stream_position, managed.is_left = event.position, False  # Somebody writes the log all the same.
    return []


def on_tokens_settled(node: Node, event: TokensSettled) -> list[Effect]:
    """Count what a log that goes on no further has held back. Its run may have ended by now."""
    managed = node.runs.get(event.run)
    if managed is None:
        return []
    step = count_settled(managed.run, event)
    if managed.run.tokens_total is not None:
        meter_tokens(node, managed, step, step.at)
    return [persist(node, event.at, managed)]


def on_stream_state(node: Node, event: StreamState) -> list[Effect]:
    """Note whether the file can be read. An unreadable file is missing data, and the tick judges that."""
    managed = node.runs.get(event.run)
    if managed is None:
        return []
    intake.apply_log_state(managed.run, event.problem, event.at, is_foreign=event.is_foreign)
    return []
