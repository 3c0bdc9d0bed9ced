"""No rank makes progress for longer than its activity allows; the evidence decides how long that is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from governor.core.base.findings import QUIET, Finding, firing, unknown
from governor.core.base.printable import after_step
from governor.core.base.reservoir import Reservoir
from governor.core.base.units import NS_PER_S, MonoNs, format_duration
from governor.core.events.inputs import Beat, Event, PhaseChange, Step, Tick
from governor.core.rules import log_rhythm, stillness
from governor.core.rules.trigger import FOREVER, STEP_S_MAX, Key, Trigger
from governor.core.runs.other_nodes import excused, last_moved, ranks_of, say_silent, silent, silent_since
from governor.core.runs.state import RANKS_MAX, Rank, Run

# The number of intervals between a log's records that are kept: an hour of records at one a minute.
LOG_GAPS_KEPT = 64

# What follows these phases compiles again, so the next step is slower than the others.
_RESTARTERS = frozenset({"init", "eval"})


_LOOSE = ("eval_limit", "checkpoint_limit", "between_limit", "start_limit", "start_limit_without_beats")


@dataclass(frozen=True, slots=True)
class _Limit:
    """How long one rank may stand still, and why so long."""

    ns: int
    reason: str
    rank: int | None
    since: MonoNs = MonoNs(0)  # Stillness counts from here at the earliest.
    sleep: stillness.DataSleep | None = None


@dataclass(slots=True)
class _State(log_rhythm.LogPauses):
    """Ticks and stillness are not stored: silence while the governor is down is no evidence."""

    restarted: set[int] = field(default_factory=set)  # Ranks whose next step is their first since evaluation.
    log_gaps_s: Reservoir = field(default_factory=lambda: Reservoir(LOG_GAPS_KEPT))


class Hang(Trigger):
    """Every rank stands still for longer than the limit of the slowest rank.

    Stillness is counted from the last change of any rank's `progress_seq`; the training thread increases it at every
    hook. The limit that holds is the longest of all ranks: one rank that evaluates, saves or logs excuses the others,
    which wait for it in a collective, until its own limit.

    *Tight limit*: for a rank whose last hook was inside a step, but for its fetches of data, or whose innermost call
    waits for a device. It is `max(p99_times x p99 step, silence_times x longest silence inside a step that ended well,
    tight_min, min(worth_max, start-up + unsaved work))`: a halt is decided after about the time that a wrong halt would
    cost. It needs connections that cover the whole world size, and `armed_after` steps. The stack is reported; it is
    never sufficient evidence.

    *A rank asleep in its data*: some ranks are inside a fetch of data, and all others wait for them, inside a step or
    in a call that waits for a device or for other ranks. The limit is `max(p99_times x p99 step, silence_times x
    longest fetch that ended, data_min)`, at most the loose one; the cost of a wrong halt does not lengthen it. It needs
    what the tight limit needs, beats of every rank, and a shim that reports fetches, between steps and micro-steps:
    those of a torch DataLoader in any engine, of `wrap_loader()` and of `with shim.data():`. The stack is reported; it
    is never sufficient evidence. Where more than half of the ranks sleep, what they all read from is slow: the tight
    limit holds at least. A rank that fetches while nobody waits, as a run's only one, has the loose limit. So has a
    loader's first batch (of an epoch, of an evaluation), when workers start and buffers fill, until the data set's
    loader has been started twice.

    *Silent rank*: its connection is open, its beats (1 Hz, from their own thread) have stopped and all other ranks
    stand still. It is stopped (SIGSTOP, cgroup freezer), or a native call holds the interpreter lock. The limit is the
    tight one, at least `silent_min`; in a phase with a loose limit, the loose one.

    *Loose limits* hold everywhere else. Starting and compiling (the first steps, the first step after evaluation, and
    whatever the shim's stack sample shows as a compiler): `start_limit` or `start_limit_without_beats`. Evaluation:
    `eval_limit`. Saving: `checkpoint_limit` or `checkpoint_times` the longest save seen. Everything else, and runs with
    a lost rank: `between_limit` or `p99_times x p99 step`.

    *Ranks on other nodes* count as their governors tell: a rank that moves there excuses all, one that starts,
    evaluates, saves or waits for its data has the longest of these limits, and with all of them the world is covered.
    A node whose governor is silent is like a silent rank: the tight limit, at least `silent_min`, since its last word.
    Of ranks of which no governor has told, nothing is known, and the loose limits hold.

    *A log without ranks*: the longest of three. One is `between_limit`. One is `log_gap_times` its median rhythm, at
    most `start_limit_without_beats` plus one median. One is `silence_times` its longest pause that ended well, at most
    `start_limit_without_beats`. Until a second record shows a rhythm, the limit is `start_limit_without_beats`: some
    logs write every 500 steps. After a mark in the log that it evaluates, saves or starts, the loose limit of that
    phase holds at least.

    UNKNOWN while a log cannot be read, while a connection is lost and the loose limit is not reached, and always when
    all connections are lost. Time in which the governor itself did not run is not counted. Resets at each attempt.
    """

    KIND: ClassVar[str] = "hang"
    KEYS: ClassVar[tuple[Key, ...]] = (
        Key("armed_after", "count", 20, "Steps of an attempt before the tight limit applies."),
        Key("p99_times", "number", 3, "Tight limit: at least so many times the 99th percentile of the step times.", 1),
        Key(
            "silence_times",
            "number",
            2,
            "Tight limit: at least so many times the longest silence inside a step; in a log, the longest pause.",
            1,
        ),
        Key("tight_min", "duration", "30s", "Tight limit: at least this.", "1s", not_above="worth_max"),
        Key(
            "worth_max", "duration", "10m", "Tight limit: cap on start-up plus unsaved work, the cost of a wrong halt."
        ),
        Key(
            "data_min",
            "duration",
            "60s",
            "At least this where a rank is inside a fetch of data and the others wait for it.",
            "1s",
        ),
        Key(
            "beat_fresh", "duration", "5s", "A rank whose last beat is older is silent. Beats come every second.", "2s"
        ),
        Key(
            "silent_min",
            "duration",
            "2m",
            "At least this for a silent rank: native calls can hold the lock for long.",
            "1s",
        ),
        Key(
            "start_limit",
            "duration",
            "45m",
            "Start-up and compilation, with beats.",
            "1s",
            not_above="start_limit_without_beats",
        ),
        Key(
            "start_limit_without_beats",
            "duration",
            "3h",
            "Start-up without beats. Healthy runs took up to 2.5 h.",
            "1s",
        ),
        Key("between_limit", "duration", "35m", "Outside a step. Healthy runs paused for up to 33 minutes.", "1s"),
        Key("eval_limit", "duration", "75m", "Evaluation without any progress: healthy ones have taken 41 min.", "1s"),
        # Equal to between_limit: a run that reports a save must not get less time than one that reports nothing.
        Key("checkpoint_limit", "duration", "35m", "Saving a checkpoint, up to where its own history tells.", "1s"),
        Key("checkpoint_times", "number", 5, "Saving may also take so many times the longest save seen.", 1),
        Key("log_gap_times", "number", 10, "A log without ranks may also pause so many times its median rhythm.", 2),
    )
    STEPPED: ClassVar[bool] = False
    LISTENS: ClassVar[frozenset[type]] = frozenset({Step, Beat, PhaseChange, Tick})
    LIMITS: ClassVar[tuple[str, ...]] = (
        "tight_min",
        "data_min",
        "start_limit",
        "start_limit_without_beats",
        "between_limit",
        "eval_limit",
        "checkpoint_limit",
        "log_gap_times",
    )
    MEANING: ClassVar[tuple[str, ...]] = (
        "no rank makes progress for longer than what the slowest of them is doing may take",
        "In a step, but for fetches of data, once {armed_after} are done: the longest of {p99_times} times the 99th "
        "percentile of step times, {silence_times} times the longest silence that ended well, {tight_min}, and what a "
        "wrong halt would cost in time, of which at most {worth_max} counts; at least {silent_min} for a rank without "
        "a beat for {beat_fresh}.",
        "Where a rank is inside a fetch of data and the others wait for it: the longest of {p99_times} times that "
        "percentile, {silence_times} times the longest fetch that ended, and {data_min}; at most what holds elsewhere, "
        "and where most ranks fetch at least what holds in a step.",
        "Elsewhere: starting and compiling {start_limit} ({start_limit_without_beats} without beats), evaluating "
        "{eval_limit}, saving {checkpoint_limit} or {checkpoint_times} times the longest save, anything else, as a "
        "fetch for which nobody waits, {between_limit} or {p99_times} times that percentile; a log without ranks at "
        "least {log_gap_times} times its own rhythm and {silence_times} times its longest pause.",
    )

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._ns: dict[str, int] = {key.name: params[key.name] for key in self.KEYS if key.kind == "duration"}
        self._times: dict[str, float] = {key.name: params[key.name] for key in self.KEYS if key.kind == "number"}
        self._armed_after: int = params["armed_after"]
        # Lower than every limit: if a rank moved since then, the other ranks need no check.
        self._limit_min = min(ns for name, ns in self._ns.items() if name not in ("worth_max", "beat_fresh"))
        self._watch = log_rhythm.Watch()
        self._state: _State = self._fresh()

    def _fresh(self) -> _State:
        return _State()

    def observe(self, event: Event, run: Run) -> bool | None:
        if isinstance(event, Step):
            restarted = self._state.restarted
            if restarted:
                restarted.discard(event.rank)
            if event.connection is None:
                gap_ns = self._state.see_record(event.at, run)
                if gap_ns is not None:
                    self._state.log_gaps_s.add(gap_ns / NS_PER_S)
            return False  # Stillness is counted at ticks.
        if isinstance(event, Beat | PhaseChange):
            if event.phase in _RESTARTERS and len(self._state.restarted) < RANKS_MAX:
                self._state.restarted.add(event.rank)
        elif isinstance(event, Tick) and self._watch.see(event):
            self._state.log_at = None  # The gap is no part of the log's rhythm.
        return None

    def judge(self, at: MonoNs, run: Run) -> Finding:
        if not run.alive:
            return QUIET
        if run.jsonl_only:
            return self._judge_log(at, run)
        ranks = []
        for rank in run.ranks.values():
            if not rank.connected or rank.said_bye:
                continue
            if at - rank.progress_at < self._limit_min:
                return QUIET
            ranks.append(rank)
        if not ranks:
            done = bool(run.ranks) and all(rank.said_bye for rank in run.ranks.values())
            return QUIET if done else unknown("no_connection")
        return self._judge_ranks(at, run, ranks)

    def _judge_ranks(self, at: MonoNs, run: Run, ranks: list[Rank]) -> Finding:
        moved_at = last_moved(stillness.moved_at(ranks), run.other_nodes)
        limit, tight_ns = self._limit_of(ranks, moved_at, at, run)
        still_ns = at - max(moved_at, self._watch.since, limit.since)
        if still_ns >= limit.ns:
            return self._finding(at, run, ranks, limit, still_ns, tight_ns)
        if any(not rank.connected and not rank.said_bye for rank in run.ranks.values()):
            return unknown("connection_lost")
        return QUIET

    def _limit_of(self, ranks: list[Rank], moved_at: MonoNs, at: MonoNs, run: Run) -> tuple[_Limit, int | None]:
        """The limit that holds, and the tight one if it can be told."""
        is_covered = len(ranks) + ranks_of(run.other_nodes) >= run.world_size
        tight_ns = self._tight_ns(run, ranks, moved_at) if is_covered else None
        limits = [self._rank_limit(rank, at, run, tight_ns) for rank in ranks]
        limits.extend(self._elsewhere(run, tight_ns))
        slowest = max(limits, key=lambda limit: max(moved_at, limit.since) + limit.ns)
        data = self._data_limit(ranks, at, run, tight_ns)
        if data is not None and max(moved_at, data.since) + data.ns <= max(moved_at, slowest.since) + slowest.ns:
            return data, tight_ns
        return slowest, tight_ns

    def _elsewhere(self, run: Run, tight_ns: int | None) -> Iterator[_Limit]:
        """The limits of ranks on other nodes."""
        if excused(run.other_nodes):
            longest = max(self._ns[name] for name in _LOOSE)
            yield _Limit(longest, "overdue_elsewhere", None)
        if tight_ns is not None and silent(run.other_nodes):
            limit_ns = max(tight_ns, self._ns["silent_min"])
            yield _Limit(limit_ns, "node_silent", None, silent_since(run.other_nodes))

    def _data_limit(self, ranks: list[Rank], at: MonoNs, run: Run, tight_ns: int | None) -> _Limit | None:
        """The limit while some ranks sleep in their data and all others wait for them."""
        if tight_ns is None or run.attempt_step < self._armed_after or run.other_nodes:
            return None  # Who sleeps on other nodes, and who waits there, is not told.
        if not all(rank.phase == "train" and self._beats(rank, at) for rank in ranks):
            return None
        sleep = None if self._state.restarted else stillness.data_sleep(ranks)
        if sleep is None:
            return None
        limit_ns = max(self._p99_ns(run), int(self._times["silence_times"] * sleep.longest_ns), self._ns["data_min"])
        # Where most ranks sleep, what they all read from is slow, and that may pass.
        if 2 * len(sleep.asleep) > len(ranks):
            limit_ns = max(limit_ns, tight_ns)
        return _Limit(limit_ns, "rank_waits_for_data", sleep.asleep[0].rank, sleep.since, sleep)

    def _beats(self, rank: Rank, at: MonoNs) -> bool:
        return rank.beat_at is not None and at - rank.beat_at < self._ns["beat_fresh"]

    def _p99_ns(self, run: Run) -> int:
        p99_s = min(STEP_S_MAX, run.step_times.quantile(0.99) or 0.0)
        return int(self._times["p99_times"] * p99_s * NS_PER_S)

    def _tight_ns(self, run: Run, ranks: list[Rank], moved_at: MonoNs) -> int:
        """The present tight limit. Unsaved work ends at the last progress, or the limit would outgrow the stillness."""
        startup_ns = run.first_step_at - run.attempt_at if run.first_step_at is not None else 0
        wrong_halt_ns = max(0, startup_ns) + run.unsaved_ns(moved_at)
        return max(
            self._p99_ns(run),
            int(self._times["silence_times"] * max(rank.silence_longest_ns for rank in ranks)),
            self._ns["tight_min"],
            min(self._ns["worth_max"], wrong_halt_ns),
        )

    def _rank_limit(self, rank: Rank, at: MonoNs, run: Run, tight_ns: int | None) -> _Limit:
        beating = self._beats(rank, at)
        if rank.phase == "eval":
            return _Limit(self._ns["eval_limit"], "overdue_eval", rank.rank)
        if rank.phase in ("checkpoint", "agree"):
            longest = int(self._times["checkpoint_times"] * (run.save_longest_ns or 0))
            return _Limit(max(self._ns["checkpoint_limit"], longest), f"overdue_{rank.phase}", rank.rank)
        starting = rank.phase in ("init", "compile")
        if starting or rank.rank in self._state.restarted or run.attempt_step < self._armed_after:
            phase = rank.phase if starting else "first_steps"
            return _Limit(
                self._ns["start_limit" if beating else "start_limit_without_beats"], f"overdue_{phase}", rank.rank
            )
        if rank.phase == "train" and tight_ns is not None:
            if not beating and rank.beat_at is not None:
                return _Limit(max(tight_ns, self._ns["silent_min"]), "rank_silent", rank.rank)
            if stillness.computes(rank):
                return _Limit(tight_ns, "no_progress_in_step", rank.rank)
        # A step that is itself slower than the loose limit is no hang.
        return _Limit(max(self._ns["between_limit"], self._p99_ns(run)), "overdue_step", rank.rank)

    def _judge_log(self, at: MonoNs, run: Run) -> Finding:
        """Judge a log: it shows only that records come, so their absence is held against the log's own rhythm."""
        if run.stream.lost_at is not None:
            return unknown("log_unreadable")
        still_ns = at - log_rhythm.silent_since(run, self._watch.since)
        # The usual case: the rhythm need not be sorted.
        if still_ns < self._limit_min or (run.step_at is not None and still_ns < self._marked_ns(run)):
            return QUIET
        limit = self._log_limit(run)
        if still_ns < limit.ns:
            return QUIET
        return self._finding(at, run, [], limit, still_ns, None)

    def _marked_ns(self, run: Run) -> int:
        return max(self._ns["between_limit"], log_rhythm.mark_limit_ns(run, self._ns))

    def _log_limit(self, run: Run) -> _Limit:
        if run.step_at is None:
            return _Limit(self._ns["start_limit_without_beats"], "overdue_init", None)
        what = run.stream.phase if run.stream.phase in log_rhythm.LIMIT_OF_MARK else "step"
        return _Limit(max(self._rhythm_ns(), self._marked_ns(run)), f"overdue_{what}", None)

    def fires_at(self, at: MonoNs, run: Run) -> MonoNs | None:
        if not run.alive or (run.jsonl_only and run.stream.lost_at is not None):
            return None
        if run.jsonl_only:
            return MonoNs(log_rhythm.silent_since(run, self._watch.since) + self._log_limit(run).ns)
        ranks = stillness.judged(run)
        if not ranks:
            return None
        moved_at = last_moved(stillness.moved_at(ranks), run.other_nodes)
        limit, _ = self._limit_of(ranks, moved_at, at, run)
        return MonoNs(max(moved_at, self._watch.since, limit.since) + limit.ns)

    def steady_until(self, at: MonoNs, run: Run) -> MonoNs:
        """Stillness is compared with limits, and limits change when beats grow old. Ticks left out blind nobody."""
        if not run.alive:
            return FOREVER
        if run.jsonl_only:
            if run.stream.lost_at is not None:
                return FOREVER
            overdue_at = MonoNs(log_rhythm.silent_since(run, self._watch.since) + self._log_limit(run).ns)
            return overdue_at if at < overdue_at else FOREVER
        ranks = stillness.judged(run)
        if not ranks:
            return FOREVER
        moved_at = last_moved(stillness.moved_at(ranks), run.other_nodes)
        if at - moved_at < self._limit_min:
            return MonoNs(moved_at + self._limit_min)
        limit, _ = self._limit_of(ranks, moved_at, at, run)
        changes = [rank.beat_at + self._ns["beat_fresh"] for rank in ranks if rank.beat_at is not None]
        changes.append(max(moved_at, self._watch.since, limit.since) + limit.ns)
        return MonoNs(min((change for change in changes if at < change), default=FOREVER))

    def _rhythm_ns(self) -> int:
        """How long a log may pause by its own rhythm, which needs two records."""
        median_s = self._state.log_gaps_s.median()
        if median_s is None:
            return self._ns["start_limit_without_beats"]
        start_ns, usual_ns = self._ns["start_limit_without_beats"], int(median_s * NS_PER_S)
        pause_ns = min(int(self._times["silence_times"] * self._state.log_pause_ns), start_ns)
        # Any pause, a start included, is over after start_ns; one more record then takes its usual time.
        return max(min(int(self._times["log_gap_times"] * usual_ns), start_ns + usual_ns), pause_ns)

    def _finding(
        self, at: MonoNs, run: Run, ranks: list[Rank], limit: _Limit, still_ns: int, tight_ns: int | None
    ) -> Finding:
        if limit.sleep is None:
            suspects = stillness.suspects(ranks, at, self._ns["beat_fresh"])
            named = stillness.say_where(ranks, suspects, at, self._ns["beat_fresh"])
            what = stillness.say_stillness(ranks, still_ns)
            named = say_silent(run.other_nodes) + named
        else:
            suspects, named = [rank.rank for rank in limit.sleep.asleep], ""
            what = stillness.say_data_sleep(limit.sleep, at)
        return firing(
            limit.reason,
            f"{what} {after_step(run.step)} (limit {format_duration(limit.ns)}){named}",
            {
                "still_s": round(still_ns / NS_PER_S, 3),
                "limit_s": round(limit.ns / NS_PER_S, 3),
                "limit_of_rank": limit.rank,
                "tight_s": round(tight_ns / NS_PER_S, 3) if tight_ns is not None else None,
                "covers_world": len(ranks) + ranks_of(run.other_nodes) >= run.world_size,
                **({"silent_nodes": quiet} if (quiet := silent(run.other_nodes)) else {}),
                "suspects": suspects,
                **({"waiting": [rank.rank for rank in limit.sleep.waiting]} if limit.sleep is not None else {}),
                "ranks": [stillness.describe(rank, at) for rank in ranks],
            },
        )
