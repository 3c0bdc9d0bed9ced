"""What the time of one recorded log went to: the engine's own TimeAccount, on the clock that the log drives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from governor.core.attribution.account import TimeAccount
from governor.core.attribution.log_line import OF_LOG
from governor.core.attribution.log_pace import lasted_ns, of_steps, paused_ns
from governor.core.attribution.parts import whole_ns
from governor.core.attribution.rows import Whole, whole_of
from governor.core.base.identity import ConnectionId
from governor.core.base.units import NS_PER_HOUR, NS_PER_S, BootNs, MonoNs, UsdMicros
from governor.core.events.inputs import Bye, Disconnected, Event, Hello, PhaseChange, Step, TrainerExited
from governor.core.events.step_parts import EACH_STEP_FIELDS, PART_FIELDS
from governor.replay.launches import Launches
from governor.replay.logs import STATES, Place, records
from governor.replay.play import RUN, LogClock
from governor.replay.readers.lines import LogUnreadable
from governor.replay.readers.text import TextOptions
from governor.replay.retold import CHANGED, FIELDS, Retold
from governor.wire.jsonl import DEFAULT_FIELDS, timed
from governor.wire.recorded import RecordedRanks, is_frame, is_gap, is_halt, is_note
from governor.wire.records import RecordReader

STEP_NS_MAX: Final = 24 * 3600 * NS_PER_S  # Of a log without times: a longer step is none.
Fields = Mapping[str, Sequence[str]]


@dataclass
class LogTime:
    """Feed the records of one log in order, then call `end`. `price`: of the node, in micro-dollars per hour.

    `paid`, in the place of a price: micro-dollars since the log began, as of a moment of its clock.
    """

    price: UsdMicros | None = None
    fields: Fields = field(default_factory=lambda: DEFAULT_FIELDS)
    account: TimeAccount = field(default_factory=TimeAccount)
    records: int = 0
    steps: int = 0
    paid: Callable[[MonoNs], int] | None = None

    def __post_init__(self) -> None:
        self.clock = LogClock()
        self._reader = RecordReader(RUN, {**self.fields, "t": ()})
        self._ranks: RecordedRanks | None = None
        self._of: dict[ConnectionId, int] = {}  # The rank of each recorded connection.
        self._completed: dict[int, bool] = {}  # By rank of the attempt: it said that it trained to the end.
        self._meta: Mapping[str, Any] = {}
        self._now = MonoNs(0)
        self._is_gap = False
        self._is_coarse = True  # So far its time stamps are whole seconds. Several steps may have the same.
        self._before = MonoNs(0)  # Until when its time was told before this record.
        self._last: Step | None = None
        self._step_ns = 0  # Of a line without a save or an evaluation.
        self._paused_ns = 0  # By which this record has moved the clock, where it has no time.
        self._number: int | None = None  # Of the last record that has one.
        self._attempt: str | None = None
        self._told: set[str] = set()
        self._evaluates_first = False  # Before the first step, and nothing says for how long.
        self._eval_at: MonoNs | None = None  # The first one that is named before the first step.

    def read(self, record: dict[str, Any]) -> str | None:
        """Count one record. Returns what is wrong with it."""
        if not self.records and isinstance(record.get("meta"), dict):
            self._meta = record["meta"]
            return None
        self.records += 1
        self._paused_ns = 0
        own = "v" in record and (is_frame(record) or is_note(record))
        if not own and self.fields["t"]:
            record = timed(record, self.fields["t"])
        fault = self.clock.read_frame(record) if own else self.clock.read(record)
        if self.records == 1:
            self._open(record)
        self._before = self._now
        self._is_coarse = self._is_coarse and not own and self._is_whole()
        now = max(self._now, self.clock.now)
        self._tick(now)
        if own and is_halt(record):
            self.account.halt_begins(now, is_hang=False)
        self._is_gap = own and is_gap(record)
        reader = self._reader if self._ranks is None or not own else self._ranks
        events = reader.read(record, now)
        if isinstance(events, list):
            return "; ".join(events)
        for event in events:
            self._see(event)
        return fault

    def end(self) -> None:
        """The log has ended, and with it the run's time."""
        for event in self._reader.end(self._now):
            self._see(event)
        self.account.over(self._now)

    @property
    def whole(self) -> Whole:
        return whole_of(self.account)

    def missing(self) -> list[str]:
        """What the log does not tell of its time, in sentences."""
        told = [_AT_START] if self._evaluates_first else []
        told += [] if self.clock.is_timed else ["its records have no time: pauses between steps are not seen"]
        if times := self.clock.went_back:
            how = "is taken to be as usual between two lines" if self.clock.is_wall else "is not in it"
            told.append(f"its clock went back {times} time{'s' * (times > 1)}: what passed meanwhile {how}")
        if not self._told & {"data_s", "forward_s", "backward_s"}:
            told.append(
                "it tells no parts of a step: waits and communication count as productive, and so do saves and "
                "evaluations that no line names, or whose time no line shows"
            )
        elif not {"forward_s", "backward_s"} <= self._told and self._ranks is None:
            told.append("it does not tell both passes of a step: what it does not name of one counts as productive")
        elif "comm_s" not in self._told:
            told.append("it tells no time in collectives: exposed communication counts as productive")
        return told

    def _open(self, first: Mapping[str, Any]) -> None:
        run = first.get("run") if first.get("kind") == "hello" else self._meta.get("run")
        self._now = self.clock.began
        if isinstance(run, str) and (first.get("kind") == "hello" or "recording" in self._meta):
            self._ranks = RecordedRanks(run)
        else:
            self.account.log_begins(OF_LOG, self._now, goes_on=False)
        self.account.tick(self._now, BootNs(self._now), BootNs(self._now), 0, holds=True)

    def _tick(self, now: MonoNs) -> None:
        self._now = now
        begun = BootNs(self.clock.began)
        self.account.tick(now, BootNs(now), begun, self._spent(now), holds=True, is_unbroken=not self._is_gap)

    def _spent(self, now: MonoNs) -> int:
        if self.paid is not None:
            return self.paid(now)
        return self.price * (now - self.clock.began) // NS_PER_HOUR if self.price is not None else 0

    def _see(self, event: Event) -> None:
        account = self.account
        match event:
            case Step():
                self._step(event)
            case PhaseChange():
                self._phase(event)
            case Hello():
                if event.attempt != self._attempt:
                    if self._attempt is not None:
                        ended_well = bool(self._completed) and all(self._completed.values())
                        account.attempt_begins(event.at, ended_well=ended_well)
                        self._completed.clear()
                    self._attempt = event.attempt
                self._completed[event.rank] = False
                self._of[event.connection] = event.rank
                account.rank_begins(event.rank, event.at)
            case Bye():
                self._completed[event.rank] = event.completed
                account.rank_finishes(event.rank, event.at)
            case Disconnected():
                if (rank := self._of.pop(event.connection, None)) is not None:
                    account.rank_ends(rank, event.at)
            case TrainerExited():
                account.over(event.at)
            case _:
                pass

    def _phase(self, phase: PhaseChange) -> None:
        """A line that says that the run begins, behind steps, is another attempt's. Ranks say that by their hello."""
        if phase.phase == "init" and self._ranks is None and self._last is not None:
            self.account.attempt_begins(phase.at)
            self.account.log_begins(OF_LOG, phase.at, goes_on=False)
        if self._last is None and self._ranks is None and (phase.phase == "eval" or self._eval_at is not None):
            self._eval_at = phase.at if self._eval_at is None else self._eval_at
            # By two moments, or by its seconds, the account has its time.
            self._evaluates_first = phase.began == phase.at == self._eval_at
        began = phase.began
        if not self.clock.is_timed and self._ranks is None:  # Its seconds are all that is known of when it was.
            lasted_ns = min(phase.at - began, STEP_NS_MAX)
            self._tick(MonoNs(self._now + max(0, lasted_ns - self._paused_ns)))
            self._paused_ns = max(lasted_ns, self._paused_ns)
            began = MonoNs(self._now - lasted_ns)
        self.account.phase(phase.rank, began, phase.phase, phase.step)

    def _is_step(self, step: Step) -> bool:
        """Whether a record with a step is of one. Of a line without a figure of it, the number must go on.

        Between the steps a log tells of GPUs, money or events, beside the number of the step before.
        """
        before, self._number = self._number, step.step
        if step.connection is not None or any(getattr(step, name) is not None for name in _FIGURES):
            return True
        return before is not None and step.step > before

    def _step(self, step: Step) -> None:
        if not self._is_step(step):
            return
        self.steps += step.rank == OF_LOG and (self._last is None or self._last.step != step.step)
        if self._last is None and paused_ns(step):
            self._evaluates_first = False
        self._told.update(name for name in _TOLD if getattr(step, name) is not None)
        if not self.clock.is_timed and self._ranks is None:
            self._tick(MonoNs(self._now + self._length_ns(step)))
        elif self._is_coarse and self._last is not None and self._last.step != step.step:
            # It ended within the second of its stamp: its own time tells where.
            ended = min(self._before + self._length_ns(step), self.clock.now + NS_PER_S - 1)
            self._tick(MonoNs(max(self._now, ended)))
        self._last = step
        ended = step.ended if step.ended is not None else self._now
        self.account.step(step.rank, step, MonoNs(min(ended, self._now)))

    def _length_ns(self, step: Step) -> int:
        """How long all since the last line took, as this one tells. Another record of its step tells pauses alone."""
        before = self._last
        steps = step.step - before.step if before is not None and step.step > before.step else 1
        if before is not None and step.step == before.step:
            return min(paused_ns(step), STEP_NS_MAX)
        length_ns = lasted_ns(of_steps(step, steps), self._step_ns * steps)
        if not length_ns and self.clock.is_timed:
            length_ns = sum(whole_ns(getattr(step, name)) for name in EACH_STEP_FIELDS) * steps + paused_ns(step)
        if not 0 < length_ns <= STEP_NS_MAX * steps:
            return 0
        if not paused_ns(step):
            self._step_ns = length_ns // steps
        return length_ns

    def _is_whole(self) -> bool:
        """Whether the record's own time has no fraction of a second."""
        return self.clock.first_s % 1 == 0 and self.clock.now % NS_PER_S == 0


_AT_START: Final = (
    "it names an evaluation before its first step, and not how long it took: that is in start up, or in compile and "
    "warm up"
)
_FIGURES: Final = (
    "loss", "grad_norm", "lr", "loss_scale", "tokens", "tokens_total", "skipped_steps", "step_s", *PART_FIELDS,
)  # fmt: skip
_TOLD: Final = ("step_s", "data_s", "forward_s", "backward_s", "comm_s", "checkpoint_s", "eval_s", "tokens")


@dataclass(frozen=True, slots=True)
class LogGoodput:
    """What became of one log. `problem`: its first unreadable place, in one line. `is_priced`: dollars are known."""

    path: Path
    whole: Whole
    steps: int
    missing: tuple[str, ...]
    problem: str | None
    is_priced: bool = False

    @property
    def is_told(self) -> bool:
        """Whether its time is known."""
        return self.whole.wall_ns > 0


class _Problems:
    """The first one of a log, and how many there were."""

    def __init__(self) -> None:
        self._first: str | None = None
        self._faulty = 0

    def skip(self, path: Path, place: Place, fault: str) -> None:
        self._faulty += 1
        self.say(f"{path}:{place}: {fault}; skipped")

    def say(self, problem: str) -> None:
        self._first = self._first or problem

    def line(self) -> str | None:
        more = self._faulty - 1
        return f"{self._first}, as {'was' if more == 1 else 'were'} {more} more" if more > 0 else self._first


def goodput_of(
    path: Path, price: UsdMicros | None, fields: Fields, text: TextOptions, causes: Path | None = None, *,
    is_changed: bool | None = None,
) -> LogGoodput:  # fmt: skip
    """The account of one log: that of its run where it is an export that has it, else the one of its steps.

    `causes`: the file of the same export that has causes alone. It may be `path` itself. `is_changed`: the file that
    has the account is not as it was exported: lines of it may be gone, so its last point is not the run's. None:
    nothing says it.
    """
    log, retold, problems = LogTime(price, fields), Retold(), _Problems()
    if causes is not None:
        _read_causes(causes, retold, problems)
        if is_changed:
            retold.lose(CHANGED)
    if causes == path and retold.by_cause is None and not is_changed:
        problems = _Problems()  # It may be any log that has the name.
    if causes != path or (retold.by_cause is None and not is_changed):
        _read(path, log, retold, problems, text)
        if is_changed:
            retold.lose(CHANGED)
    log.end()
    whole = retold.whole(price, log.steps if log.records else retold.step)
    if whole is not None and whole.wall_ns:
        is_priced = price is not None or retold.has_usd
        missing = retold.missing(is_changed=is_changed)
        return LogGoodput(causes or path, whole, whole.steps, missing, problems.line(), is_priced)
    whole, missing = log.whole, tuple(log.missing())
    if retold.why_not is not None and not (causes == path and whole.wall_ns):
        untold = f"the account of its run, as {retold.why_not}"
        missing = (untold, *missing)
        if causes is not None:
            problems.say(f"{causes}: does not tell {untold}" + (f"; {path.name} is read" if causes != path else ""))
    if problems.line() is None and not whole.wall_ns:
        problems.say(f"{path}: {_why_none(path, log)}")
    return LogGoodput(path, whole, log.steps, missing, problems.line(), price is not None)


def _read(path: Path, log: LogTime, retold: Retold, problems: _Problems, text: TextOptions) -> None:
    """All of a log: steps, and points of causes among them."""
    has_own = retold.by_cause is not None  # Of another file: no fault of this one's is in it.
    launches = Launches(log)
    try:
        for place, record in records(path, {**log.fields, **FIELDS}, text):
            if isinstance(record, list):
                fault: str | None = "; ".join(record)
            else:
                times = retold.take(record)
                fault = launches.read(record if times is None else times)
            if fault is None:
                continue
            problems.skip(path, place, fault)
            if isinstance(record, list) and not has_own:
                retold.lose("it may be in what cannot be read")
    except LogUnreadable as error:
        problems.say(str(error))
        if not has_own:
            retold.lose("it may be in what cannot be read")


def _read_causes(path: Path, retold: Retold, problems: _Problems) -> None:
    """All of a file of causes alone."""
    try:
        for place, record in records(path):
            if isinstance(record, list):
                problems.skip(path, place, "; ".join(record))
                retold.lose("its last point cannot be read")
            else:
                retold.take(record, prefix="")
    except LogUnreadable as error:
        problems.say(str(error))
        retold.lose("its last point cannot be read")


def _why_none(path: Path, log: LogTime) -> str:
    if not log.records:
        return "holds no record"
    if not log.steps:
        return "no record in it is of a step; name its fields with --map FIELD=NAME"
    if path.name in STATES:
        return (
            "a trainer_state.json has no times; give what the training printed with times, or TensorBoard's event "
            "files of the same Trainer"
        )
    return "its records have neither times nor step times; name them with --map t=NAME or --map step_s=NAME"
