"""Apply what ranks report to the state of their run. Nothing is judged here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from governor.core.base.identity import ConnectionId
from governor.core.base.model_speed import Peak
from governor.core.base.units import MonoNs
from governor.core.events.checkpoints import NamedCheckpoint
from governor.core.events.ends import RunEnd
from governor.core.events.inputs import Beat, Hello, PhaseChange, Step
from governor.core.events.machine import GpuSample, HostMemory, HostSample, MachineEvent
from governor.core.events.step_parts import SECONDS_MAX
from governor.core.runs.counting import count_step
from governor.core.runs.last_good import LastGood, is_news
from governor.core.runs.life import LifeFact
from governor.core.runs.own_time import of_frame
from governor.core.runs.pace import Pace
from governor.core.runs.speakers import forget_ranks, relabel
from governor.core.runs.state import Rank, Run, Trained, is_finite

# Phases in which a rank does not train. Step times around them do not show its speed.
PAUSES = frozenset({"init", "compile", "eval", "checkpoint", "agree"})


def is_paused(run: Run) -> bool:
    """Whether a rank or the log has reported another phase than training, and no step since."""
    if run.jsonl_only:
        return run.stream.phase in PAUSES
    return any(
        rank.connected and rank.phase in PAUSES and (rank.step_at is None or rank.step_at < rank.phase_at)
        for rank in run.ranks.values()
    )


def begin_attempt(run: Run, attempt: str, at: MonoNs, *, trains_again: bool = False) -> None:
    """Begin a new launch of the run: the old one's ranks and speeds go, money and checkpoints stay.

    `trains_again`: a process of the attempt before begins another training, which goes on from none of its checkpoints.
    """
    run.attempt = attempt
    run.attempt_at = at
    run.job = run.master = None
    run.trains_again, run.saves_in = trains_again, None
    if trains_again:
        run.take_last_good(None, None)
    forget_ranks(run)
    run.trained_count.begin_attempt(run.last_trained)
    run.attempt_step = 0
    run.first_step_at = None
    run.working_since = None
    run.step = run.step_at = run.first_step_ended_at = run.step_ended_at = None
    run.step_gap_ns = 0
    run.pace = Pace()
    run.saves.new_attempt()
    run.tokens_per_s = None
    run.loss = run.grad_norm = run.finite_step = None
    run.loss_rhythm.begin()
    run.skipped_steps = None
    run.completed = False
    run.failures.clear()
    run.oom_kills, run.oom_kill_at = 0, None
    run.end = None
    run.gpus = run.group_memory = None  # These are the old processes'. The machine's own figures stay.
    run.stream.phase, run.stream.phase_at, run.stream.paused = "train", at, False
    run.stream.has_record = False


def apply_log_state(run: Run, problem: str | None, at: MonoNs, *, is_foreign: bool = False) -> None:
    """Note whether the log can be read. `problem`: one line while it cannot, or nothing in it is understood."""
    log = run.stream
    log.problem, log.is_foreign = problem, is_foreign
    if problem is None and log.lost_at is not None:
        log.lost_at, log.back_at = None, at
    elif problem is not None and log.lost_at is None:
        log.lost_at = at


def apply_bye(run: Run, rank: Rank, step: int | None = None) -> None:
    """`step`: its last one. Steps before it may have gone unheard."""
    rank.said_bye = True
    if is_lead(run, rank) and step is not None:
        run.trained_count.end_training(step, run.counted_step)


def complete(run: Run, rank: Rank) -> None:
    """Note that the rank has reported that it trained to the end."""
    rank.completed = run.completed = True


def note_log_line(run: Run, at: MonoNs, wall_ns: int) -> None:
    """Note a log line that is not a step."""
    run.last_frame_at, run.last_frame_wall_ns = at, wall_ns


def note_frame_wall(run: Run, wall_ns: int) -> None:
    run.last_frame_wall_ns = wall_ns


def restored(snapshot: Mapping[str, Any], at: MonoNs, *, same_boot: bool) -> Run:
    """Rebuild a run from the journal. KeyError, TypeError or ValueError when the snapshot is not one of ours.

    After an earlier boot, its processes are gone and its monotonic times mean nothing.
    """
    run = Run(run=str(snapshot["run"]), uid=int(snapshot["uid"]), first_seen_at=at)
    run.attempt, run.attempt_at = str(snapshot["attempt"]), at
    run.trains_again = bool(snapshot.get("trains_again"))  # An older journal has none.
    run.stage, run.labels = snapshot["stage"], dict(snapshot["labels"])
    furthest = None
    if snapshot.get("furthest") is not None:
        step, total = snapshot["furthest"]
        furthest = int(step), int(total)
    run.take_up(
        Trained(
            step=snapshot["step"],
            tokens_total=snapshot["tokens_total"],
            counted_step=snapshot.get("counted_step", snapshot["step"]),  # An older journal has none.
            furthest=furthest,
            # An older journal has none.
            log_totals=tuple(sorted((int(step), int(total)) for step, total in snapshot.get("log_totals", ()))),
            is_beyond=bool(snapshot.get("tokens_beyond")),
            count=snapshot.get("trained_count"),  # An older journal has none.
        )
    )
    run.belief.largest = int(snapshot.get("largest_step", 0))  # An older journal has none.
    nonpad = snapshot.get("nonpad")  # An older journal has none.
    if nonpad is not None:
        run.nonpad_tokens, run.nonpad_of_tokens = (int(tokens) for tokens in nonpad)
    run.stream.has_record = run.step is not None
    run.completed = bool(snapshot.get("completed", False))  # An older journal has none.
    run.save_longest_ns = snapshot["save_longest_ns"]
    rows = snapshot.get("named_before", ())  # An older journal has none.
    before = (LastGood.of(row, same_boot=same_boot) for row in rows)
    run.take_last_good(
        LastGood.of(snapshot["last_good"], same_boot=same_boot),
        snapshot["last_good_at"] if same_boot else None,
        tuple(one for one in before if one is not None),
    )
    end = snapshot.get("end")  # An older journal has none.
    if isinstance(end, Mapping):
        code, cause = end.get("exit_code"), end.get("cause")
        run.end = RunEnd(int(code) if code is not None else None, str(cause) if cause is not None else None)
    if same_boot:
        run.first_step_at, run.working_since = snapshot["first_step_at"], snapshot["working_since"]
        run.first_step_ended_at = snapshot.get("first_step_ended_at", run.first_step_at)  # An older journal has none.
        # An older journal has neither. After a halt no rank says them again, and the other nodes still ask.
        run.job, run.world_size = snapshot.get("job"), int(snapshot.get("world_size", 1))
        run.ranks_before = frozenset(int(rank) for rank in snapshot.get("ranks", ()))  # An older journal has none.
        run.last_frame_at = at  # Silence counts from our restart: before it no governor listened.
    if not (same_boot and snapshot["alive"]):
        run.move(LifeFact.GONE, at)
    return run


def apply_hello(run: Run, hello: Hello) -> Rank:
    """Enter a rank, or its new connection. The caller has made sure that this is allowed."""
    relabel(run, hello.stage, hello.labels)
    run.world_size = hello.world_size
    run.job, run.master = hello.job or run.job, hello.master or run.master
    run.framework = hello.framework or run.framework
    run.checkpoint_dir = hello.checkpoint_dir or run.checkpoint_dir
    run.saves_in = hello.checkpoint_dir or run.saves_in
    run.tokens_per_step = hello.tokens_per_step or run.tokens_per_step
    run.total_steps = hello.total_steps or run.total_steps
    run.parameters = hello.parameters or run.parameters
    run.data_parallel_size = hello.data_parallel_size or run.data_parallel_size
    if hello.rank == 0 or not run.resume_argv:
        run.resume_argv = hello.resume_argv
        run.cwd = hello.cwd or run.cwd
        run.resumes, run.has_loaded = hello.resumes, hello.resumed_step is not None
    known = run.ranks.get(hello.rank)
    if known is not None and known.peer.process == hello.peer.process:
        known.connection = hello.connection
        known.lost_at = None
        known.said_bye = False
        known.last_frame_at = hello.at
        known.capabilities = hello.capabilities
        known.signal = hello.signal
        rank = known
    else:
        rank = Rank(
            rank=hello.rank,
            local_rank=hello.local_rank,
            peer=hello.peer,
            connection=hello.connection,
            signal=hello.signal,
            capabilities=hello.capabilities,
            hello_at=hello.at,
            last_frame_at=hello.at,
            gpu_uuids=hello.gpu_uuids,
            progress_at=hello.at,
            phase_at=hello.at,
        )
        run.ranks[hello.rank] = rank
    rank.data_parallel_rank, rank.beside = hello.data_parallel_rank, hello.beside
    if hello.sent is not None:  # Its frames may have waited for us longer.
        rank.clock_behind_ns = min(rank.clock_behind_ns, hello.at - hello.sent)
    if is_lead(run, rank):  # Each of them says it, one a little later than another.
        run.trained_count.hear(hello.origin, hello.loaded_at, hello.at)
    named = hello.last_good
    rank.vouched = (named.path, named.step) if named is not None and named.own_finite else None
    harmed = hello.harmed_save
    rank.harmed = (harmed.path, harmed.step) if harmed is not None else None
    if named is not None and _all_vouch(run, named):
        named = replace(named, trained_finite=True)
    if named is not None and is_news(run.last_good, named, is_timed=run.last_good_at is not None):
        run.name_last_good(named, hello.at)
    run.last_frame_at = hello.at
    return rank


def _all_vouch(run: Run, named: NamedCheckpoint) -> bool:
    """Whether every rank has said of that checkpoint that all trained parameters were finite in its part."""
    return sum(rank.vouched == (named.path, named.step) for rank in run.ranks.values()) >= run.world_size


def note_frame(rank: Rank, at: MonoNs, progress_seq: int | None) -> None:
    """Note a frame. Progress counts from the moment at which the sequence number last changed."""
    rank.last_frame_at = at
    if progress_seq is not None and progress_seq != rank.progress_seq:
        # The time of a compilation, a save or a fetch of data does not show how long a step may be silent.
        if rank.in_step and rank.progress_seq >= 0 and rank.phase not in PAUSES:
            until = rank.fetching_since
            silence_ns = (at if until is None else until) - rank.progress_at
            rank.silence_longest_ns = max(rank.silence_longest_ns, silence_ns)
        rank.progress_seq = progress_seq
        rank.progress_at = at


def apply_beat(run: Run, rank: Rank, beat: Beat) -> None:
    note_frame(rank, beat.at, beat.progress_seq)
    rank.beat_at = beat.at
    rank.phase = beat.phase
    rank.paused = rank.paused or beat.phase in PAUSES
    rank.phase_at = MonoNs(min(beat.phase_since, beat.at))
    rank.in_step = beat.in_step
    rank.last_hook = beat.last_hook
    rank.device_wait = beat.device_wait
    rank.stack = beat.stack
    rank.collective = beat.collective
    rank.fetch = beat.fetch
    rank.forwards = beat.forwards
    run.last_frame_at = beat.at


def apply_phase(run: Run, rank: Rank | None, change: PhaseChange) -> None:
    """Enter a phase. Without a rank, it is a mark in a JSONL stream."""
    if rank is None:
        run.stream.has_record = True
        run.stream.paused = run.stream.paused or change.phase in PAUSES
        run.stream.phase, run.stream.phase_at = change.phase, change.at
        run.last_frame_at = change.at
        return
    note_frame(rank, change.at, change.progress_seq)
    rank.paused = rank.paused or change.phase in PAUSES
    if change.phase != rank.phase:
        rank.phase = change.phase
        rank.phase_at = change.at
    run.last_frame_at = change.at


def note_peak(run: Run, peak: Peak | str) -> None:
    """`peak`, a text: why none is known of its GPUs."""
    run.peak = peak


def apply_machine(run: Run, event: MachineEvent) -> None:
    """Note a machine sample for the run. A GPU sample has only the run's own GPUs."""
    if isinstance(event, GpuSample):
        run.gpus = event
    elif isinstance(event, HostSample):
        run.host_use = event
    elif not isinstance(event, HostMemory):
        run.spot_notice = event
    elif event.run is None:
        run.host_memory = event
    else:
        run.group_memory = event


def apply_step(run: Run, rank: Rank | None, step: Step, ended: MonoNs | None = None) -> Step | None:
    """Enter one optimizer step. Return the step whose tokens count by now: of the lead rank or of a log.

    Where ranks count tokens for themselves, that is the lead rank's step once all have told. `ended`: of a line.
    """
    if rank is not None:
        note_frame(rank, step.at, step.progress_seq)
        rank.step = step.step
        rank.step_at = step.at
        rank.forwards = None
        rank.loss = step.loss
        if step.loss is not None and math.isfinite(step.loss):  # Of every rank's step: no call to is_finite().
            rank.finite_step = step.step
        rank.skipped_steps = step.skipped_steps
    run.last_frame_at = step.at
    # A step's wall time begins at the last step's end and so includes an evaluation in between.
    paused = run.stream.paused if rank is None else rank.paused or rank.phase in PAUSES
    if rank is not None:
        rank.paused = False
    else:
        # A step ends a phase that a mark began: many logs write no second mark.
        run.stream.phase, run.stream.paused, run.stream.has_record = "train", False, True
    leads = rank is None or is_lead(run, rank)
    if not leads and step.tokens_own_total is None:
        return None
    is_first = run.first_step_at is None
    if leads:
        _apply_lead_step(run, step, paused)
        own = ended if ended is not None else step.at
        if rank is not None:
            own = of_frame(rank, step, run.began_at)
        # Another rank may lead now, whose step ended a little sooner.
        run.step_ended_at = own if run.step_ended_at is None else max(own, run.step_ended_at)
        if run.first_step_ended_at is None:
            run.first_step_ended_at = run.step_ended_at
    return count_step(run, rank, step, leads=leads, is_first=is_first)


def _apply_lead_step(run: Run, step: Step, paused: bool) -> None:
    if run.step is None or step.step != run.step:
        run.attempt_step = step.attempt_step if step.attempt_step is not None else run.attempt_step + 1
    run.pace.see(step, run.step_at, trains=not paused and run.attempt_step > 1)
    if step.checkpoint_s is not None and step.checkpoint_s < SECONDS_MAX:
        run.saves.observe(step.at, step.checkpoint_s)
    run.step = step.step
    if run.step_at is not None:
        run.step_gap_ns = max(step.at - run.step_at, run.step_gap_ns - run.step_gap_ns // 64)
    run.step_at = step.at
    if run.first_step_at is None:
        run.first_step_at = step.at
        # The governor may have come hours after the training began. Then all work since attach() is unsaved.
        late = step.attempt_step is not None and step.attempt_step > 1
        run.working_since = min(run.attempt_at, step.at) if late else step.at
    run.loss = step.loss if step.loss is not None or step.loss_expected is not False else _loss_of_another(run)
    if step.loss is not None and step.connection is None:
        run.loss_rhythm.see(run.attempt_step)
    run.finite_step = step.step if is_finite(step.loss) else run.finite_step
    run.grad_norm = step.grad_norm
    run.lr = step.lr if step.lr is not None else run.lr
    run.loss_scale = step.loss_scale
    run.skipped_steps = step.skipped_steps if step.skipped_steps is not None else run.skipped_steps


def _loss_of_another(run: Run) -> float | None:
    """Return the newest loss of the lowest rank that has one: of a pipeline the last stage alone may know it."""
    return next((run.ranks[rank].loss for rank in sorted(run.ranks) if run.ranks[rank].loss is not None), None)


def is_lead(run: Run, rank: Rank) -> bool:
    """Whether this connected rank is the lowest connected one. Called for every step frame, so rank 0 must be fast."""
    lowest = rank.rank
    for number, other in run.ranks.items():  # noqa: SIM110 - a generator costs more than the loop.
        if number < lowest and other.connection is not None:
            return False
    return True


def lose_connection(run: Run, connection: ConnectionId, at: MonoNs) -> Rank | None:
    for rank in run.ranks.values():
        if rank.connection == connection:
            rank.connection = None
            rank.lost_at = at
            return rank
    return None
