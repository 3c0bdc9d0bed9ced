"""One run's time and money by cause. Both sums are exact: each nanosecond and each micro-dollar has one cause.

At each tick the time that the run has held the node and what it was charged go into a pool. Ranks tell later what that
time was: a step tells of itself when it has ended. Every few seconds the pool is divided by what the ranks have told;
what no rank has told yet waits in the pool. Time in which no rank lives has its cause at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from governor.core.attribution import told as telling
from governor.core.attribution.causes import Amount, Cause, Shares, divide
from governor.core.attribution.hardware_time import HardwareTime
from governor.core.attribution.held import AWAY_NS, Held
from governor.core.attribution.loader import LoaderUse, restored_use
from governor.core.attribution.log_line import LogLine
from governor.core.attribution.open_end import OPEN_TIMES, Sight, Silences, Watch
from governor.core.attribution.rank_line import RankLine
from governor.core.base.identity import ProcessId
from governor.core.base.units import BootNs, MonoNs
from governor.core.events.inputs import Step
from governor.core.events.machine import HostSample

STARVED_FRAC: Final = 0.1  # Of a window's rank-time in waiting for data: less starves nobody.


@dataclass(slots=True)
class TimeAccount:
    """Owned by the engine. `by_cause` and the pools add up to the time the run held the node, and to its spend."""

    by_cause: dict[Cause, Amount] = field(default_factory=dict)
    pool_ns: int = 0
    pool_usd_micros: int = 0
    # While no rank lives: of the start before anybody has trained, behind that of a restart or of the end.
    between: Amount = field(default_factory=Amount)
    held: Held = field(default_factory=Held)
    spent_usd_micros: int = 0  # What the run had spent then.
    furthest_step: int | None = None
    lost_to: int | None = None  # Steps up to this one were trained before the present attempt.
    is_fresh: bool = True  # Nothing was counted yet.
    has_begun: bool = False  # A rank or a log has spoken.
    straggler_ns: dict[int, int] = field(default_factory=dict)  # By the rank for which the others waited.
    steps: int = 0
    # Rank-time of a cause as told, and what of it is weak: a bound, or not timed (see rows.py).
    told_ns: dict[Cause, int] = field(default_factory=dict)
    weak_ns: dict[Cause, int] = field(default_factory=dict)
    loader: LoaderUse = field(default_factory=LoaderUse)
    hardware: HardwareTime = field(default_factory=HardwareTime)
    _ranks: dict[int, RankLine] = field(default_factory=dict)
    _gone: dict[int, RankLine] = field(default_factory=dict)  # Told, and not yet divided.
    _is_halted: bool = False
    _closed_at: MonoNs = MonoNs(0)
    counted_at: MonoNs = MonoNs(0)  # On the clock of ranks.
    _usual: dict[Cause, int] = field(default_factory=dict)  # As the last window's steps were divided.
    _kept: Shares = field(default_factory=dict)  # Under way, as a journal's pool was shown.
    step_ns: int | None = None  # An ordinary step.
    silences: Silences = field(default_factory=Silences)
    stood: str | None = None  # Which rank stood still until it was cut, and how long.
    _is_unheard: bool = False  # Ranks trained when this governor's predecessor was heard of last, and are not back.

    @property
    def has_trained(self) -> bool:
        return self.furthest_step is not None

    # --- time and money ----------------------------------------------------------------------------------------

    def tick(
        self, at: MonoNs, boot: BootNs, since: BootNs, spent_usd_micros: int, *, holds: bool, is_unbroken: bool = False,
        is_untold: bool = False, is_alone: bool = False,
    ) -> None:  # fmt: skip
        """Count what has passed since the last call. `holds`: the run held the node meanwhile; `since`: from then.

        `is_unbroken`: nothing was missed since the last call, however long ago, as in a log that is read back.
        `is_untold`: all since then was the run's, and nobody has spoken for it. `is_alone`: nobody speaks by now.
        """
        self.counted_at = at
        if self.is_fresh or is_untold or (holds and self.held.is_taken_over(since)):
            self._begin(at, boot, since, spent_usd_micros, holds=holds or is_untold)
            self.held = Held(boot, holds, unpaid_from=None if holds or is_untold else since)
            return
        paid = spent_usd_micros - self.spent_usd_micros
        passed_ns = self.held.passed_ns(boot, holds=holds)
        paid -= self._count_owed(passed_ns, paid, is_alone=is_alone)
        self.spent_usd_micros = spent_usd_micros
        if self._is_halted:  # Whoever is away meanwhile: a halt lasts until it is closed.
            self._put(Cause.HALT, passed_ns, paid)
        elif passed_ns > AWAY_NS and not is_unbroken:
            self._put(Cause.UNKNOWN, passed_ns, paid)
        elif self._ranks:
            self.pool_ns += passed_ns
            self.pool_usd_micros += paid
            if telling.is_due(self._ranks.values(), at - self._closed_at):
                self._close(at)
        elif self._is_unheard:
            self._put(Cause.UNKNOWN, passed_ns, paid)
        else:
            self.between.add(passed_ns, paid)

    def _begin(self, at: MonoNs, boot: BootNs, since: BootNs, spent_usd_micros: int, *, holds: bool) -> None:
        """The first count, or the only one of a launch: up to the first hello the run was launched."""
        paid = spent_usd_micros - self.spent_usd_micros
        self.is_fresh, self.spent_usd_micros = False, spent_usd_micros
        passed_ns = max(0, boot - since) if holds else 0
        known_ns = min(passed_ns, max((at - line.told_to for line in self._ranks.values()), default=0))
        known_usd = paid * known_ns // passed_ns if passed_ns else 0
        self.pool_ns, self.pool_usd_micros = self.pool_ns + known_ns, self.pool_usd_micros + known_usd
        self.between.add(passed_ns - known_ns, paid - known_usd)
        if self._ranks:
            self._put_between(Cause.START_UP)

    def _count_owed(self, passed_ns: int, paid: int, *, is_alone: bool) -> int:
        """Count the time before for which the run is charged only now, and return what it has paid for that.

        Where a new attempt ends it, it was the restart. Else the command went on without ranks until it ended.
        """
        counted_ns = sum(amount.ns for amount in self.by_cause.values()) + self.pool_ns + self.between.ns
        owed = self.held.owed(paid, self.spent_usd_micros, counted_ns, passed_ns)
        if self.has_trained:
            has_come = self.held.holds and not is_alone
            cause = Cause.RESTART if has_come and not self.held.has_left else self.held.rest
            self.held.unheard_ns += owed.ns if cause is Cause.UNKNOWN else 0
            self._put(self._or_fault(cause), owed.ns, owed.usd_micros)
        elif self.held.holds:
            self._put(Cause.START_UP, owed.ns, owed.usd_micros)
        else:
            self.between.add(owed.ns, owed.usd_micros)
        return owed.usd_micros

    # --- what ranks and logs tell ------------------------------------------------------------------------------

    def attempt_begins(self, at: MonoNs, *, ended_well: bool = False, is_log: bool = False) -> None:
        """Another attempt begins. Ranks of the one before are gone, and what they had trained is lost if done again.

        `ended_well`: those had trained to their end, so what came behind it was that end. `is_log`: see log_begins().
        """
        cause = Cause.SHUT_DOWN if ended_well else Cause.RESTART
        for line in self._ranks.values():  # Nobody has said when they ended.
            healthy_to = self.hardware.until_fault(at)
            if line.is_finished:
                line.end(at)
            elif line.lost_at is not None:
                line.end(min(healthy_to, line.lost_at), is_good=ended_well)
            line.give_up(cause, healthy_to)
        self._end_all(at)
        if not is_log or ended_well:
            self._put_between(cause if ended_well else self._or_fault(cause))
        self.hardware.begin_attempt()
        self._is_halted, self._is_unheard, self.lost_to = False, False, self.furthest_step
        self.held.has_left = ended_well

    def rank_begins(self, rank: int, at: MonoNs, *, goes_on: bool = False) -> None:
        """A rank has connected. `goes_on`: it was in the midst of its attempt before, and we did not listen."""
        self._is_unheard = False
        if rank in self._ranks or self._is_halted:
            if rank in self._ranks:
                self._ranks[rank].lost_at = None
            return
        self._begins(RankLine, rank, at, goes_on=goes_on)

    def log_begins(self, rank: int, at: MonoNs, *, goes_on: bool) -> None:
        """A log's first line is about to be taken. It may tell of all since the launch: no hello has come before it."""
        if rank in self._ranks or self._is_halted:
            return
        if not goes_on and not self._ranks and self.between.ns:
            at = MonoNs(max(0, self.counted_at - self.between.ns))
            self.pool_ns += self.between.ns
            self.pool_usd_micros += self.between.usd_micros
            self.between = Amount()
        self._begins(LogLine, rank, at, goes_on=goes_on)

    def _begins(self, kind: type[RankLine], rank: int, at: MonoNs, *, goes_on: bool) -> None:
        if not self._ranks:
            self._closed_at = at
        if not self.has_trained:
            self._put_between(Cause.START_UP)
        start = self._or_fault(Cause.RESTART) if self.has_trained else Cause.START_UP
        has_stepped, watch = goes_on and self.has_trained, Watch(self.silences)
        self._ranks[rank] = kind(at, start, has_stepped=has_stepped, usual_ns=self.step_ns, watch=watch)
        self.has_begun = True

    def step(self, rank: int, step: Step, ended: MonoNs) -> None:
        if (line := self._ranks.get(rank)) is None:
            return
        if line.goes_back(step, ended):  # A checkpoint was loaded in the midst of an attempt.
            self.lost_to = self.furthest_step
        began, is_more = line.told_to, line.is_more(step, ended)
        line.step(step, ended, is_repeated=self.lost_to is not None and step.step <= self.lost_to)
        self.hardware.stepped(began)
        self.steps += not is_more
        self.furthest_step = max(step.step, self.furthest_step or 0)

    def phase(self, rank: int, at: MonoNs, name: str, step: int | None = None) -> None:
        """`step`: that a log names beside it."""
        if (line := self._ranks.get(rank)) is not None:
            line.phase(at, name, step)

    def sees(self, rank: int, sight: Sight) -> None:
        if (line := self._ranks.get(rank)) is not None:
            line.watch.see(sight)

    def rank_finishes(self, rank: int, at: MonoNs) -> None:
        """A rank has said bye. Its process lives on: the last saves come behind that."""
        if (line := self._ranks.get(rank)) is not None:
            line.finish(at)

    def rank_is_lost(self, rank: int, at: MonoNs) -> None:
        """Its connection has ended without a bye: it was killed, or comes back."""
        if (line := self._ranks.get(rank)) is not None:
            line.lost_at = at

    def rank_ends(self, rank: int, at: MonoNs) -> None:
        if (line := self._ranks.pop(rank, None)) is None:
            return
        self._end(line, line.gone_at(at))
        self._gone[rank] = line
        if not self._ranks:
            # What was counted since the last one was lost, and before that was seen, is time without ranks.
            since = max(one.told_to for one in self._gone.values())
            ns = min(self.pool_ns, max(0, self.counted_at - since))
            usd_micros = self.pool_usd_micros * ns // self.pool_ns if ns else 0
            self.pool_ns, self.pool_usd_micros = self.pool_ns - ns, self.pool_usd_micros - usd_micros
            self.between.add(ns, usd_micros)
            self._close(at)

    def look(self, sample: HostSample, ranks: Mapping[ProcessId, int]) -> None:
        """Take the processes of its ranks, and those below. Before the first step no loader is judged."""
        self.hardware.queue.see(sample, ranks)
        if any(line.has_stepped for line in self._ranks.values()):
            self.loader.look(sample)

    def halt_begins(self, at: MonoNs, *, is_hang: bool, since: MonoNs | None = None) -> None:
        """A verdict has come, and the run was charged up to it. What follows is the halt's. `since`: none moved."""
        for line in self._ranks.values():
            if is_hang:
                line.halts(healthy_to := self.hardware.until_fault(at), since)
                line.give_up(Cause.HANG, healthy_to)
        self._end_all(at)
        self._put_between(self._or_fault(Cause.HANG if is_hang else Cause.SHUT_DOWN))
        self._is_halted = True

    def over(self, at: MonoNs, *, ended_well: bool = False, has_left: bool = False) -> None:
        """The run has let go of the node. The time since its ranks have gone is its end, or of a restart.

        `ended_well`: it is its end, whatever comes. `has_left`: its ranks said bye, and none of them failed.
        """
        self.held.has_left |= ended_well or has_left
        for rank in () if ended_well else list(self._ranks):
            self.rank_ends(rank, at)
        self._end_all(at, is_good=ended_well)
        self._is_halted = self._is_unheard = False
        if ended_well or not self.has_trained:
            self._put_between(Cause.SHUT_DOWN)

    def _end_all(self, at: MonoNs, *, is_good: bool = False) -> None:
        for rank, line in list(self._ranks.items()):
            self._end(line, at, is_good=is_good)
            self._gone[rank] = line
        self._ranks.clear()
        self._close(at)

    def _end(self, line: RankLine, at: MonoNs, *, is_good: bool = False) -> None:
        """What a rank has not told since a GPU of the run broke is the fault's."""
        healthy_to = max(line.told_to, self.hardware.until_fault(at))
        line.end(healthy_to, is_good=is_good)
        line.give_up(Cause.HARDWARE, at)

    def _or_fault(self, cause: Cause) -> Cause:
        return cause if self.hardware.fault_at is None else Cause.HARDWARE

    # --- dividing the pool -------------------------------------------------------------------------------------

    def _close(self, at: MonoNs) -> None:
        """Divide of the pool what the ranks have told; all of it once no rank is left."""
        is_short, self._closed_at = telling.is_too_short(self._ranks.values(), at - self._closed_at), at
        for line in self._ranks.values():
            if line.is_finished:
                line.catch_up(at)
        lines = {**self._gone, **self._ranks}
        self.step_ns = telling.ordinary_of(lines.values()) or self.step_ns
        self.stood = telling.stood_still(lines) or self.stood
        found = telling.told_by(lines, self._usual, self.hardware, taken=True, is_short=is_short)
        told, slow, self._usual = found.by_cause, found.slow_rank, found.usual
        self._gone.clear()
        self._judge(told, found.weak)
        whole = sum(told.values())
        left = sum(max(0, at - line.told_to) + line.pending_ns for line in self._ranks.values())
        if not whole and self._ranks:
            return
        if not whole and self._kept:  # What was under way when the journal was written has not told of itself.
            told = {Cause.UNKNOWN if cause is Cause.NOT_TOLD else cause: ns for cause, ns in self._kept.items()}
        elif not whole and self.pool_ns <= OPEN_TIMES * (self.step_ns or 0):
            told = self._usual  # The rest of a step that was told, not more.
        self._kept = {}
        ns = self.pool_ns * whole // (whole + left) if self._ranks else self.pool_ns
        usd_micros = self.pool_usd_micros * whole // (whole + left) if self._ranks else self.pool_usd_micros
        self.pool_ns -= ns
        self.pool_usd_micros -= usd_micros
        time = divide(self.by_cause, ns, usd_micros, told)
        if slow is not None:
            self.straggler_ns[slow] = self.straggler_ns.get(slow, 0) + time.get(Cause.STRAGGLER, 0)

    def _judge(self, told: Shares, weak: Shares) -> None:
        """Note how sure a window is, and what the loader did if ranks waited for it."""
        telling.sum_into(self.told_ns, told.items())
        telling.sum_into(self.weak_ns, weak.items())
        if told:
            self.loader.close(starved=told.get(Cause.DATA, 0) >= STARVED_FRAC * sum(told.values()))

    def _put_between(self, cause: Cause) -> None:
        """Give the time without ranks its cause. Before anybody has trained it is the start's."""
        self._put(cause if self.has_trained else Cause.START_UP, self.between.ns, self.between.usd_micros)
        self.between = Amount()

    def _put(self, cause: Cause, ns: int, usd_micros: int) -> None:
        if ns or usd_micros:
            self.by_cause.setdefault(cause, Amount()).add(ns, usd_micros)

    # --- what is told of it ------------------------------------------------------------------------------------

    def now(self, at: MonoNs) -> dict[Cause, Amount]:
        """Every cause as of the last tick. What no rank has told yet is as its phase says, or NOT_TOLD."""
        found = {cause: Amount(amount.ns, amount.usd_micros) for cause, amount in self.by_cause.items()}
        divide(found, self.pool_ns, self.pool_usd_micros, self._shown(at))
        if self.between.ns or self.between.usd_micros:
            cause = self._or_fault(Cause.SHUT_DOWN) if self.has_trained else Cause.START_UP
            found.setdefault(cause, Amount()).add(self.between.ns, self.between.usd_micros)
        if not self.has_begun and (silent := found.pop(Cause.START_UP, None)) is not None:
            found.setdefault(Cause.UNKNOWN, Amount()).add(silent.ns, silent.usd_micros)  # Nobody has said what it does.
        return found

    def stands(self, at: MonoNs) -> tuple[str, bool] | None:
        return telling.stands_still(self._ranks, at)

    def _shown(self, at: MonoNs) -> Shares:  # What the pool is divided by in a view. Without ranks: as if now.
        found = telling.shown_by(self._ranks, self._gone, self._usual, self.hardware, at)
        return found if any(found.values()) else self._kept or {Cause.NOT_TOLD: 1}

    def snapshot(self) -> dict[str, Any]:
        """Plain JSON. `shown`: how the pool is divided by a restarted governor, but for what is under way."""
        pool = self.pool_ns or self.pool_usd_micros
        optional = {
            "step_ns": self.step_ns, "stood": self.stood, "silences": self.silences.row(), "lost_to": self.lost_to,
            "unheard": self._is_open, "halted": self._is_halted, "told": telling.told_row(self.told_ns, self.weak_ns),
            "loader": self.loader.kept, "hardware": self.hardware.snapshot(),
            "straggler_ns": {str(rank): ns for rank, ns in self.straggler_ns.items()},
        }  # fmt: skip
        return {
            "by_cause": {cause.value: [amount.ns, amount.usd_micros] for cause, amount in self.by_cause.items()},
            "pool": [self.pool_ns, self.pool_usd_micros],
            **({"shown": {cause.value: ns for cause, ns in self._shown(self.counted_at).items()}} if pool else {}),
            "between": [self.between.ns, self.between.usd_micros],
            **self.held.row(),
            "spent_usd_micros": self.spent_usd_micros,
            "furthest_step": self.furthest_step,
            "steps": self.steps,
            "is_fresh": self.is_fresh,
            "has_begun": self.has_begun,
            **{name: one for name, one in optional.items() if one not in (None, {}) and one is not False},
        }

    @property
    def _is_open(self) -> bool:
        """Ranks train, as far as is known: what follows their last word is not their end."""
        return self._is_unheard or (self.has_trained and any(not line.is_finished for line in self._ranks.values()))

    @classmethod
    def restored(cls, row: Mapping[str, Any], *, same_boot: bool) -> TimeAccount:
        """KeyError, TypeError, ValueError or AttributeError where it is not one of ours."""
        told_ns, weak_ns = telling.restored_told(row)
        account = cls(
            by_cause={Cause(name): Amount(*map(int, told)) for name, told in row["by_cause"].items()},
            pool_ns=int(row["pool"][0]),
            pool_usd_micros=int(row["pool"][1]),
            between=Amount(*map(int, row["between"])),
            held=Held.restored(row, same_boot=same_boot),
            spent_usd_micros=int(row["spent_usd_micros"]),
            furthest_step=int(furthest) if (furthest := row["furthest_step"]) is not None else None,
            lost_to=int(lost) if (lost := row.get("lost_to")) is not None else None,
            is_fresh=bool(row["is_fresh"]),
            has_begun=bool(row["has_begun"]),
            straggler_ns={int(rank): int(ns) for rank, ns in row.get("straggler_ns", {}).items()},
            steps=int(row["steps"]),
            told_ns=told_ns,
            weak_ns=weak_ns,
            loader=restored_use(row.get("loader", {})),
            hardware=HardwareTime.restored(row.get("hardware", {}), same_boot=same_boot),
            step_ns=int(step_ns) if (step_ns := row.get("step_ns")) is not None else None,
            _is_halted=bool(row.get("halted")),
            stood=str(row["stood"]) if "stood" in row else None,
            silences=Silences.restored(row.get("silences", {})),
            _is_unheard=bool(row.get("unheard")),
        )
        shown, account._kept = telling.restored_shown(row)
        divide(account.by_cause, account.pool_ns, account.pool_usd_micros, shown)
        left = account.by_cause.pop(Cause.NOT_TOLD, Amount())  # Of all else nobody tells again.
        account.pool_ns, account.pool_usd_micros = left.ns, left.usd_micros
        return account
