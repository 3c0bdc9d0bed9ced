"""Plays a timeline: a few lines of text become events, the rules judge them, and what they decided comes out.

A series is a list of lines, played one after the other on a clock that starts at 0:

    hello                            every rank connects (0 .. ranks-1 of world_size)
    steps 30 every 2s loss=1.5       30 steps on every rank; a beat at each full second within a step
    steps 4 every 2s micro=128       progress inside the step as well
    steps 9 every 2s stride=10       only each tenth step is reported
    stand 29s in_step device_wait=wait   beats go on, progress_seq stands still
    stand 29s 0: phase=eval 1: in_step   the same, rank by rank; `silent`: this rank does not even beat
    work 40m phase=eval              beats go on and progress_seq with them
    phase eval 0: phase=…            a phase frame now
    quiet 90s                        nobody says anything; only ticks
    blind 90s                        the governor itself does not run
    lose 1 / bye 0                   a rank's connection is lost / it leaves
    restart                          the rules are saved, thrown away and restored
    attempt                          the run is launched again
    money spend=49.5 reserve=0.5 rate=98.32     dollars, as the ledger would say
    cap scope=day spend=9 reserve=1 ceiling=10      a budget of several runs, as the engine would put it on this one
    saved                            a good checkpoint now

Values of `steps` may be cycles: loss=2.0/nan. `absent` leaves a field out. Bookkeeping is the engine's own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from governor.core import intake
from governor.core.budgets import Cap
from governor.core.events import Beat, Bye, Disconnected, Event, Hello, PhaseChange, Step, Tick
from governor.core.identity import ConnectionId, Peer, ProcessId
from governor.core.policy import Policy
from governor.core.rules import RuleBook
from governor.core.run_state import Run
from governor.core.units import NS_PER_MS, NS_PER_S, BootNs, MonoNs, WallNs, format_duration, parse_duration, usd

TICK_NS = 250 * NS_PER_MS
BEAT_NS = NS_PER_S
Settings = dict[str, str]


class Player:
    """One run under one policy. `verdicts` fills with "AT RULE REASON" lines."""

    def __init__(self, policy: Policy, ranks: int, world_size: int, *, log: bool = False) -> None:
        self.policy = policy
        self.ranks = range(ranks)
        self.world_size = world_size
        self.now = 0
        self.run = Run("run", uid=1000, first_seen_at=MonoNs(0), jsonl_only=log)
        self.run.world_size = world_size
        self.book = RuleBook(policy, self.run)
        self.verdicts: list[str] = []
        self._log = log
        self._seq = 0
        self._step = 0
        self._tokens_total = 0
        self._skipped = 0
        self._attempt = 0

    def play(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        getattr(self, f"_do_{word}")(rest)

    # --- lines ----------------------------------------------------------------------------------------------

    def _do_hello(self, rest: str) -> None:
        for rank in self.ranks:
            peer = Peer(ProcessId(1000 + rank, 1, "boot"), 1000)
            at = MonoNs(self.now)
            hello = Hello(at, _connection(rank), peer, 1, "run", str(self._attempt), rank, rank, self.world_size)
            if self.run.attempt != hello.attempt:
                intake.begin_attempt(self.run, hello.attempt, hello.at)
            intake.apply_hello(self.run, hello)
            self.book.observe(hello)

    def _do_steps(self, rest: str) -> None:
        count, every, *given = rest.replace("every ", "").split()
        dt_ns = parse_duration(every)
        settings = _settings(given)
        micro = int(settings.pop("micro", "1"))
        for index in range(int(count)):
            self._one_step(dt_ns, micro, {name: _pick(value, index) for name, value in settings.items()})

    def _do_stand(self, rest: str) -> None:
        self._beats(rest, moves=False)

    def _do_work(self, rest: str) -> None:
        self._beats(rest, moves=True)

    def _do_phase(self, rest: str) -> None:
        phase, *given = rest.split()
        ranks = [int(word.rstrip(":")) for word in given] or list(self.ranks)
        self._seq += 1
        for rank in ranks:
            self._apply(PhaseChange(MonoNs(self.now), _connection(rank), "run", rank, phase, progress_seq=self._seq))

    def _do_quiet(self, rest: str) -> None:
        self._pass(parse_duration(rest), [])

    def _do_blind(self, rest: str) -> None:
        self.now += parse_duration(rest)

    def _do_lose(self, rest: str) -> None:
        connection = _connection(int(rest))
        intake.lose_connection(self.run, connection, MonoNs(self.now))
        self.book.observe(Disconnected(MonoNs(self.now), connection))

    def _do_bye(self, rest: str) -> None:
        self.run.ranks[int(rest)].said_bye = True
        self.book.observe(Bye(MonoNs(self.now), _connection(int(rest)), "run", int(rest), 9))

    def _do_restart(self, rest: str) -> None:
        saved = json.dumps(self.book.snapshot(), allow_nan=False)
        self.book = RuleBook(self.policy, self.run)
        self.book.restore(json.loads(saved))

    def _do_attempt(self, rest: str) -> None:
        self._attempt += 1
        self._do_hello("")
        self.book.new_attempt()

    def _do_money(self, rest: str) -> None:
        given = _settings(rest.split())
        self.run.spend_usd_micros = usd(given["spend"])
        self.run.reserve_usd_micros = usd(given["reserve"]) if "reserve" in given else None
        self.run.spend_rate_usd_micros_per_hour = usd(given["rate"]) if "rate" in given else None
        self._judge(None)

    def _do_cap(self, rest: str) -> None:
        """One line a scope; the newest counts."""
        given = _settings(rest.split())
        money = (usd(given[name]) for name in ("ceiling", "spend", "reserve"))
        cap = Cap(given["scope"], *money, rate_usd_micros_per_hour=usd(20))
        self.run.caps = (*(known for known in self.run.caps if known.scope != cap.scope), cap)
        self._judge(None)

    def _do_saved(self, rest: str) -> None:
        self.run.last_good, self.run.last_good_at = {"step": self._step}, MonoNs(self.now)

    # --- events ---------------------------------------------------------------------------------------------

    def _one_step(self, dt_ns: int, micro: int, fields: Mapping[str, str | None]) -> None:
        """Progress at the start of each micro-step, beats in between, the step frames at the end."""
        start = self.now
        events: list[Event] = []
        for at in range((start // BEAT_NS + 1) * BEAT_NS, start + dt_ns + 1, BEAT_NS):
            seq = self._seq + 1 + (at - start) * micro // dt_ns
            events.extend(self._beat(rank, at, seq, {"in_step": "true"}) for rank in self.ranks if not self._log)
        self._seq += micro + 1
        self._step += int(fields.get("stride") or 1)
        values = {name: _value(value) for name, value in fields.items() if value is not None and name != "stride"}
        self._skipped += values.pop("skipped", 0)
        tokens = values.get("tokens")
        if tokens is not None:
            self._tokens_total += tokens
            values["tokens_total"] = self._tokens_total
        if "skipped" in fields:
            values["skipped_steps"] = self._skipped
        at = MonoNs(start + dt_ns)
        for rank in self.ranks:
            common = {"step": self._step, **values}
            if self._log:
                events.append(Step(at, None, "run", 0, **common))
            else:
                common = {"step_s": dt_ns / NS_PER_S, "progress_seq": self._seq, **common}
                events.append(Step(at, _connection(rank), "run", rank, **common))
        self._pass(dt_ns, events)

    def _beats(self, rest: str, *, moves: bool) -> None:
        duration, *given = rest.split()
        duration_ns = parse_duration(duration)
        by_rank = _by_rank(given, self.ranks)
        events: list[Event] = []
        for at in range(self.now + BEAT_NS, self.now + duration_ns + 1, BEAT_NS):
            self._seq += moves
            for rank, settings in by_rank.items():
                if "silent" not in settings:
                    events.append(self._beat(rank, at, self._seq, settings))
        self._pass(duration_ns, events)

    def _beat(self, rank: int, at: int, seq: int, settings: Settings) -> Beat:
        return Beat(
            MonoNs(at),
            _connection(rank),
            "run",
            rank,
            seq,
            settings.get("phase", "train"),
            MonoNs(self.now),
            step=self._step,
            in_step="in_step" in settings,
            last_hook=settings.get("last_hook"),
            device_wait=settings.get("device_wait"),
            stack=("distributed_c10d.py:all_reduce:10",),
            collective={"op": "all_reduce", "count": int(settings.get("count", "7")), "done": False},
        )

    # --- time -----------------------------------------------------------------------------------------------

    def _pass(self, duration_ns: int, events: list[Event]) -> None:
        """Let time pass: events at their times, ticks on their grid, events first."""
        end = self.now + duration_ns
        queue = [(event.at, 0, index, event) for index, event in enumerate(events)]
        first = self.now // TICK_NS + 1
        for number in range(first, end // TICK_NS + 1):
            at = MonoNs(number * TICK_NS)
            queue.append((at, 1, number, Tick(at, BootNs(at), WallNs(at))))
        for at, _, _, event in sorted(queue, key=lambda entry: entry[:3]):
            self.now = at
            self._apply(event)
        self.now = end

    def _apply(self, event: Event) -> None:
        run = self.run
        if isinstance(event, Step):
            intake.apply_step(run, None if self._log else run.ranks[event.rank], event)
        elif isinstance(event, Beat):
            intake.apply_beat(run, run.ranks[event.rank], event)
        elif isinstance(event, PhaseChange):
            intake.apply_phase(run, None if self._log else run.ranks[event.rank], event)
        self.book.observe(event)
        if isinstance(event, Step | Tick):
            self._judge(event if isinstance(event, Step) else None)

    def _judge(self, event: Step | None) -> None:
        for verdict in self.book.judge(MonoNs(self.now), event):
            self.verdicts.append(f"{_clock(self.now)} {verdict.rule} {verdict.finding.reason}")

    def findings(self) -> dict[str, str]:
        return {name: finding.reading.value for name, finding in self.book.findings.items()}


def _clock(now_ns: int) -> str:
    return f"{now_ns / NS_PER_S:g}s" if now_ns < 600 * NS_PER_S else format_duration(now_ns).replace(" ", "")


def _connection(rank: int) -> ConnectionId:
    return ConnectionId(100 + rank)


def _settings(words: list[str]) -> Settings:
    return {name: value or "true" for name, _, value in (word.partition("=") for word in words)}


def _by_rank(words: list[str], ranks: range) -> dict[int, Settings]:
    """Settings for each rank: those before the first "N:" are everyone's."""
    common: list[str] = []
    own: dict[int, list[str]] = {}
    into = common
    for word in words:
        if word.endswith(":") and word[:-1].isdigit():
            into = own.setdefault(int(word[:-1]), [])
        else:
            into.append(word)
    return {rank: _settings([*common, *own.get(rank, [])]) for rank in ranks}


def _pick(value: str, index: int) -> str | None:
    choices = value.split("/")
    chosen = choices[index % len(choices)]
    return None if chosen == "absent" else chosen


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    number = float(text)
    return int(number) if math.isfinite(number) and number.is_integer() and "." not in text else number


def lines(series: list[str]) -> Iterator[str]:
    """The series without comments."""
    return (line.split("#")[0].strip() for line in series)
