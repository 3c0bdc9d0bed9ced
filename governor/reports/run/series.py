"""What a recording tells of a run, taken event by event. Bounded: a run of any length takes as much as a short one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from governor.core.attribution.parts import DATA, LOOP, RankSums, parts_of, whole_ns
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.inputs import Ack, Bye, Disconnected, Event, Hello, PhaseChange, Step
from governor.core.events.machine import GpuSample
from governor.core.events.step_parts import told_parts
from governor.core.runs.own_time import StepEnds
from governor.reports.run.left_out import LeftOut
from governor.reports.run.stability import Spread, Stability
from governor.reports.run.windows import COMMUNICATION, PARTS, StepFigures, Windows
from governor.text.binned import Line
from governor.wire.recorded import is_exit, is_gap, is_halt, read_step
from governor.wire.recordings.speaker import Speaker

DURABLE: Final = "whole and durable"
MARKS_MAX: Final = 200  # A reader does not read a thousand saves.
RANKS_SHOWN_MAX: Final = 64
SAVE_STEPS_APART: Final = 2
GPUS_MAX: Final = 64


class Mark(NamedTuple):
    """Something on the time line. `at_s` since the recording's begin."""

    at_s: float
    kind: str  # attempt, save, evaluation, halt, exit, gap.
    text: str
    step: int | None = None


@dataclass(slots=True)
class OfRank:
    """One rank's steps: seconds."""

    seconds: float = 0.0
    account: RankSums = field(default_factory=lambda: RankSums(by_step=None))

    @property
    def steps(self) -> int:
        return self.account.steps

    @property
    def own_s(self) -> float:
        """What it computes by itself, as the account knows it."""
        return self.account.own_ns / NS_PER_S

    @property
    def comm_s(self) -> float | None:
        return self.account.communication_ns / NS_PER_S if self.account.tells_communication else None

    @property
    def other_s(self) -> float:
        """All but its data, its loop, what it computes by itself, and communication that it tells."""
        account = self.account
        told = account.parts[DATA] + account.parts[LOOP] + account.own_ns
        told += account.communication_ns if account.tells_communication else 0
        return max(0, account.total_ns - told) / NS_PER_S

    def part_s(self, name: str) -> float:
        """What went to one of a step's parts, or to one of what lies within them."""
        account = self.account
        within = {
            COMMUNICATION: account.communication_ns, "offload": account.offload_ns, "recompute": account.recompute_ns,
        }  # fmt: skip
        return (within[name] if name in within else account.parts[PARTS.index(name)]) / NS_PER_S


@dataclass(slots=True)
class Busy:
    samples: int = 0
    total: float = 0.0


class Told(NamedTuple):
    """A step of one rank. `record`: its line in the recording, where no frame was made of it."""

    step: Step
    is_first: bool  # Of its rank, in its attempt.
    record: Mapping[str, Any] | None = None


@dataclass(slots=True)
class RunSeries:
    """Pass each event to `see` and each of the recording's own notes to `note`, in their order.

    All ranks of one step tell nearly the same, so one speaks for the run (wire.recordings.speaker). What it tells, and
    nothing else, is in the lines, the windows, the stability and the saves: each step once. `ranks`: each one's own.
    """

    began: MonoNs | None = None
    ended: MonoNs | None = None
    wall_ahead_ns: int = 0  # The wall clock minus the recording's.
    spoke: list[int] = field(default_factory=list)  # The ranks whose steps these are, the first one first.
    lines: dict[str, Line] = field(default_factory=dict)
    windows: Windows = field(default_factory=Windows)
    stability: Stability = field(default_factory=Stability)
    step_times: Spread = field(default_factory=Spread)
    ranks: dict[int, OfRank] = field(default_factory=dict)
    gpus: dict[str, Busy] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    marks_left_out: int = 0
    left_out: LeftOut = field(default_factory=LeftOut)
    attempts: int = 0
    gaps: int = 0
    is_halted: bool = False  # Its last attempt: behind the verdict no step is recorded.
    lost_lines: int = 0
    saves: int = 0
    save_s: float = 0.0
    evaluations: int = 0
    tokens: int = 0
    paced_tokens: int = 0  # Without the first step of each attempt: what that took is no pace.
    step_s: float = 0.0  # Of the steps with these.
    gpu_s: float = 0.0  # The same, times the ranks of each one's attempt.
    last_step: int | None = None
    hello: Hello | None = None
    world_size: int | None = None
    parameters: int | None = None
    has_gpus: bool = False
    gpu_names: set[str] = field(default_factory=set)  # As the driver calls their kinds.
    has_slices: bool = False  # MIG.
    # Of the ranks that are shown, and of the lead: who has stepped in this attempt. Of no other anything is told by it,
    # and a file may hold any number as a rank.
    _stepped: set[int] = field(default_factory=set)
    _ends: StepEnds = field(default_factory=StepEnds)
    _speaker: Speaker[Told] = field(default_factory=Speaker)
    _tokens_per_step: int | None = None
    _piece: int = 0
    _save_began: MonoNs | None = None
    _untimed_s: float = 0.0  # Of the saves that no step has told the time of.
    _is_save_told: bool = False  # Since the last step.

    def see(self, event: Event) -> None:
        if isinstance(event, Step):
            self._step(self.left_out.believed(event))
        elif isinstance(event, Hello):
            self._hello(event)
        elif isinstance(event, GpuSample):
            self._gpus(event)
        elif isinstance(event, PhaseChange):
            if self._speaker.leads(event.rank):
                self._phase(event)
        elif isinstance(event, Disconnected):
            self._follow_all(self._speaker.lost(event.connection))
        elif isinstance(event, Bye) and self._speaker.leads(event.rank):
            self._end_save(event.at)
        elif isinstance(event, Ack) and event.what == "saved" and self._speaker.leads(event.rank):
            self._saved(event.at, event.step, DURABLE)
        if self.began is None:
            self.began = event.at
        self.ended = event.at

    def _phase(self, phase: PhaseChange) -> None:
        """A save is told as it begins, with its step. The next step, if one comes, has its time."""
        self._end_save(phase.at)
        if phase.phase == "eval":
            self.evaluations += 1
            self._mark(phase.at, "evaluation", "an evaluation began", phase.step)
        elif phase.phase == "checkpoint":
            self._save_began = phase.at
            if not self._is_save_told:
                self.saves += 1
                self._is_save_told = True
                self._mark(phase.at, "save", "a save", phase.step)

    def _end_save(self, at: MonoNs) -> None:
        if self._save_began is not None:
            save_s = max(0, at - self._save_began) / NS_PER_S  # A step that was kept may be older.
            self._untimed_s += save_s
            self.save_s += save_s
            self._save_began = None

    def _save_of(self, step: Step, checkpoint_s: float) -> None:
        """What it tells of the time since the step before is exact: the time between frames is not counted again."""
        self._end_save(step.at)
        if not self._is_save_told and checkpoint_s:
            self.saves += 1
            self._saved(step.at, step.step, f"{checkpoint_s:.3g} s in the step")
        elif checkpoint_s:
            self._time_mark(checkpoint_s)
        self.save_s += checkpoint_s - self._untimed_s
        self._untimed_s, self._is_save_told = 0.0, False

    def _time_mark(self, checkpoint_s: float) -> None:
        for place in range(len(self.marks) - 1, max(-1, len(self.marks) - 4), -1):
            if self.marks[place].kind == "save":
                mark = self.marks[place]
                self.marks[place] = mark._replace(text=_in_order(mark.text, f"{checkpoint_s:.3g} s"))
                return

    def note(self, record: Mapping[str, Any], at: MonoNs) -> None:
        """A line of the recorder's own."""
        if self.began is None:
            self.began = at
        told = dict(record)
        if is_gap(told):
            self._follow_all(self._speaker.break_off())
            self._gap(told.get("lines"), at)
        elif is_halt(told):
            self._follow_all(self._speaker.verdict(at))
            self._mark(at, "halt", f"halt {record.get('incident', '')}", self.last_step)
            self.is_halted = True
        elif is_exit(told):
            self._mark(at, "exit", "the run's processes were gone", self.last_step)
            self._speaker.exited()
        self.ended = at

    def _gap(self, lines: object, at: MonoNs) -> None:
        """Behind the end of an attempt no governor has to run: nothing is missed until the next launch."""
        lost = lines if type(lines) is int and 0 < lines < 2**40 else 0
        if self._speaker.is_over and not lost:
            return
        self.gaps += 1
        self.lost_lines += lost
        self._mark(at, "gap", "nothing was recorded from here until the next mark")

    def set_clock(self, wall_ahead_ns: int) -> None:
        """The wall clock minus the recording's, at its begin."""
        self.wall_ahead_ns = wall_ahead_ns

    @property
    def length_s(self) -> float:
        return (self.ended - self.began) / NS_PER_S if self.began is not None and self.ended is not None else 0.0

    @property
    def tokens_per_s(self) -> float | None:
        """While it steps: over the time of the steps whose tokens are known."""
        return self.paced_tokens / self.step_s if self.paced_tokens and self.step_s > 0 else None

    @property
    def ranks_usual(self) -> float | None:
        """While it stepped: of an elastic run, the mean over the time of its steps."""
        return self.gpu_s / self.step_s if self.gpu_s and self.step_s > 0 else self.world_size

    def _hello(self, hello: Hello) -> None:
        self.left_out.hello(hello)
        self.is_halted = False
        is_new = hello.attempt != self._speaker.attempt
        self._follow_all(self._speaker.hello(hello.attempt, hello.rank, hello.connection))
        if is_new:
            self._save_began, self._untimed_s, self._is_save_told = None, 0.0, False
            self.attempts += 1
            self._stepped.clear()
            self.stability.new_attempt()
            self._piece += 1
            ranks = f"{hello.world_size} rank{'' if hello.world_size == 1 else 's'}"
            self._mark(hello.at, "attempt", f"attempt {self.attempts} began, {ranks}")
        self._ends.begin(hello.rank)
        self.hello, self.world_size = hello, hello.world_size
        self.parameters = hello.parameters or self.parameters
        self._tokens_per_step = hello.tokens_per_step or self._tokens_per_step
        self.has_gpus = self.has_gpus or bool(hello.gpu_uuids)

    def _step(self, step: Step) -> None:
        is_first = self._account(step)
        number = step.step if step.attempt_step is None else step.attempt_step
        is_shown = self._speaker.step(step.rank, number, step.at, Told(step, is_first))
        # A log's steps may go back.
        if is_shown or (step.attempt_step is None and self._speaker.leads(step.rank)):
            self._follow(step, is_first)

    def _follow_all(self, told: Iterable[Told]) -> None:
        """Steps that another rank had told, and the one that spoke for the run could tell no more."""
        for line, is_first, record in told:
            step: Step | None = line
            if record is not None:
                step = read_step(dict(record), line.at, self.hello.run if self.hello is not None else "")
                step = self.left_out.whole(step, line) if step is not None else None
            if step is not None:
                self._follow(step, is_first)

    def _follow(self, step: Step, is_first: bool) -> None:
        """Draw, judge and add up one step of the run."""
        if step.rank not in self.spoke and len(self.spoke) < RANKS_SHOWN_MAX:
            self.spoke.append(step.rank)
        ended = self._ends.of(step.rank, step.ended, step.at)
        at_s = max(0, ended - (step.at if self.began is None else self.began)) / NS_PER_S
        if self.last_step is not None and step.step <= self.last_step:
            self._piece += 1
        self.last_step = step.step
        self.stability.see(step)
        drawn = {"loss": step.loss, "gradient norm": step.grad_norm, "loss scale": step.loss_scale}
        for name, value in drawn.items():
            if value is not None:
                self._draw(name, at_s, value)
        if step.checkpoint_s is not None:
            self._save_of(step, min(step.checkpoint_s, step.step_s or step.checkpoint_s))
        if step.step_s is None:
            return
        self._draw("step time, s", at_s, step.step_s)
        self.step_times.add(step.step_s)
        tokens = self._tokens_of(step)
        if tokens is not None and whole_ns(step.step_s):
            self.tokens += tokens
            if not is_first:
                self.paced_tokens += tokens
                self.step_s += step.step_s
                self.gpu_s += step.step_s * (self.world_size or 0)
            self._draw("tokens per second", at_s, tokens / step.step_s)
        if not is_first:
            self.windows.add(_figures(step, step.step_s, tokens))

    def _tokens_of(self, step: Step) -> int | None:
        return step.tokens if step.tokens is not None else self._tokens_per_step

    def see_other(self, record: Mapping[str, Any]) -> bool:
        """A step of another rank than the lead, as it stands in the recording. False: it may be the lead's, or is none.

        They are most of a recording, and of their figures times alone are told: no frame is made of them.
        """
        rank, step = record.get("rank"), record.get("step")
        lead = self._speaker.lead
        if type(rank) is not int or type(step) is not int or lead is None or rank <= lead:
            return False
        loss = record.get("loss")
        if isinstance(loss, str):
            self.stability.see_broken(step)
        line = self.left_out.line(record, rank, step)
        is_first, number = self._account(line), record.get("attempt_step")
        self._speaker.step(rank, number if type(number) is int else step, line.at, Told(line, is_first, record))
        return True

    def _account(self, step: Step) -> bool:
        """Add it to its rank's sums, the same way whoever told it. Returns whether it is its attempt's first."""
        is_first = step.rank not in self._stepped
        sums = self._of_rank(step.rank)
        if is_first and (sums is not None or self._speaker.leads(step.rank)):
            if sums is None:
                self._stepped &= self.ranks.keys()
            self._stepped.add(step.rank)
        if sums is not None and step.step_s is not None and not is_first:
            sums.seconds += step.step_s
            sums.account.add(parts_of(step, whole_ns(step.step_s)), step)
        return is_first

    def _of_rank(self, rank: int) -> OfRank | None:
        """None: more ranks are shown already than a reader looks at."""
        sums = self.ranks.get(rank)
        if sums is None and len(self.ranks) < RANKS_SHOWN_MAX:
            sums = self.ranks[rank] = OfRank()
        return sums

    def _gpus(self, sample: GpuSample) -> None:
        self.gpu_names.update(sample.names[: GPUS_MAX - len(self.gpu_names)])
        self.has_slices = self.has_slices or any(one.is_mig for one in sample.figures)
        known = [one for one in sample.busy_frac if one is not None]
        if known and self.began is not None:
            self._draw("GPU busy", (sample.at - self.began) / NS_PER_S, sum(known) / len(known))
        for place, busy in enumerate(sample.busy_frac[:GPUS_MAX]):
            if busy is not None:
                one = self.gpus.setdefault(sample.uuids[place] if sample.uuids else str(place), Busy())
                one.samples += 1
                one.total += busy

    def _saved(self, at: MonoNs, step: int | None, text: str) -> None:
        """A save is told twice: by its acknowledgement, and by the time in its step. It is one mark."""
        last = self.marks[-1] if self.marks else None
        if last is not None and last.kind == "save" and _is_near(last.step, step):
            self.marks[-1] = last._replace(text=_in_order(last.text, text))
        else:
            self._mark(at, "save", text, step)

    def _draw(self, name: str, at_s: float, value: float) -> None:
        line = self.lines.get(name)
        if line is None:
            line = self.lines[name] = Line()
        line.add(at_s, value, self._piece)

    def _mark(self, at: MonoNs, kind: str, text: str, step: int | None = None) -> None:
        at_s = (at - (self.began if self.began is not None else at)) / NS_PER_S
        # Saves come by the thousand. What is rare is always kept.
        if len(self.marks) >= (MARKS_MAX if kind in ("save", "evaluation") else 2 * MARKS_MAX):
            self.marks_left_out += 1
            return
        self.marks.append(Mark(at_s, kind, text, step))


def _figures(step: Step, step_s: float, tokens: int | None) -> StepFigures:
    return StepFigures(
        step.step, step_s, tokens, told_parts(step), step.comm_s, step.loss, step.grad_norm,
        step.comm_between_s,
    )  # fmt: skip


def _in_order(text: str, more: str) -> str:
    """What was told of a save, its seconds first: its acknowledgement comes before them, or behind."""
    return ", ".join(sorted([*text.split(", "), more], key=DURABLE.__eq__))


def _is_near(step: int | None, other: int | None) -> bool:
    return step is not None and other is not None and abs(step - other) <= SAVE_STEPS_APART
