"""Most steps ask no rule: what is told must be what would be told if every rule were asked after every step."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from governor.core.base.findings import Reading, Response
from governor.core.base.identity import ConnectionId, Peer, ProcessId
from governor.core.base.policy import ALL, Member, Mode, Persistence, PersistenceKind, Policy, Rule, WarmUp
from governor.core.base.units import NS_PER_S, BootNs, DurationNs, MonoNs, WallNs
from governor.core.events.inputs import Disconnected, Event, Hello, Step, Tick
from governor.core.rules.condition import PersistenceTimer, condition_of
from governor.core.rules.evaluate import Attempt, Rules
from governor.core.rules.trigger import defaults, listens
from governor.core.rules.triggers import load
from governor.core.runs import intake
from governor.core.runs.state import Run
from tests.sweeps import share_of

# Those whose reading steps decide. What time decides is asked at ticks: there it is told up to one of them later.
KINDS: Final = sorted(kind for kind, trigger in load().items() if trigger.STEPPED and kind != "expression")
# Seeds, their seconds, and how often steps go back. Together they tell some five hundred verdicts, in two seconds.
LONG: Final = [(seed, 300, 1) for seed in range(share_of(34))]
SET_BACK: Final = [(seed, 60, 10) for seed in range(40, 40 + share_of(60))]  # Window of steps that repeat.
RANKS: Final = 3  # As many as a straggler is seen among.

Told = tuple[str, MonoNs, str]


class EveryoneIsAsked:
    """A rule book that knows nothing of calm rules, made of its parts."""

    def __init__(self, policy: Policy, run: Run) -> None:
        self._run = run
        self._attempt = Attempt()
        self._rules = [(rule, condition_of(rule, policy), PersistenceTimer(rule.persistence)) for rule in policy.rules]
        self._standing: set[str] = set()
        self._told_at: dict[str, MonoNs] = {}

    def observe(self, event: Event) -> None:
        self._attempt.observe(event, self._run)
        for _, condition, _ in self._rules:
            if listens(condition, type(event)):
                condition.observe(event, self._run)

    def judge(self, at: MonoNs, event: Event | None) -> list[Told]:
        told: list[Told] = []
        for rule, condition, timer in self._rules:
            finding = condition.judge(at, self._run)
            if rule.warmup is not None and not self._attempt.is_past(rule.warmup, at, self._run):
                continue
            lasted = timer.add(finding, at, event, self._run)
            if not lasted and finding.reading is Reading.QUIET:
                self._standing.discard(rule.name)
            if not lasted or finding.reading is not Reading.FIRING or rule.name in self._standing:
                continue
            if rule.name not in self._told_at or at - self._told_at[rule.name] >= rule.cooldown_ns:
                told.append((rule.name, at, finding.text))
                self._told_at[rule.name] = at
                self._standing.add(rule.name)
        return told


def a_run() -> Run:
    run = Run("r", 0, MonoNs(0))
    intake.begin_attempt(run, "a", MonoNs(0))
    for rank in range(RANKS):
        intake.apply_hello(run, a_hello(rank, MonoNs(0)))
    return run


def a_hello(rank: int, at: MonoNs) -> Hello:
    return Hello(at, ConnectionId(rank), Peer(ProcessId(100 + rank, 1, "b"), 0), 1, "r", "a", rank, rank, RANKS)


def steps(rng: random.Random, seconds: int, backs: int) -> Iterator[Step]:
    """All ranks' steps, well for a while and then ill in one way or another; sometimes they go back."""
    number, ill, loss, scale, skipped = 0, "", 2.0, 65536.0, 0
    for at in range(seconds):
        number = max(0, number + rng.choice([1] * 20 + [3, -4, -2] * backs))
        if rng.random() < 0.08:
            ill = rng.choice(["", "", "nan", "spikes", "rises", "skips", "stands", "silent", "slow"])
        loss *= 1.04 if ill == "rises" and loss < 1e6 else 1.0
        told = {"nan": math.nan, "spikes": loss * rng.choice([1, 300]), "stands": loss, "silent": None}
        skips = ill == "skips" and rng.random() < 0.8
        skipped, scale = skipped + skips, max(1e-3, scale / 2) if skips else scale
        for rank in rng.sample(range(RANKS), RANKS):
            slow = rng.choice([1, 40]) if ill == "slow" else 1
            yield Step(
                MonoNs(at * NS_PER_S + rank), ConnectionId(rank), "r", rank, number, tokens=1000,
                loss=told.get(ill, loss * (1 + rng.random() / 10)), grad_norm=rng.choice([1.0, 1.0, 90.0, math.nan]),
                loss_scale=scale, skipped_steps=skipped, step_s=0.5 * slow, data_s=0.4 if slow > 1 else 0.01,
                comm_s=0.1 if rank and slow > 1 else 0.3,
            )  # fmt: skip


def params_of(rng: random.Random, kind: str) -> Mapping[str, Any]:
    """With windows that a short history fills."""
    keys = [key for key in load()[kind].KEYS if key.kind == "count"]
    short = {key.name: max(int(key.least), rng.choice([1, 2, 4, 8])) for key in keys}
    return {**defaults(load()[kind].KEYS), **short}


def a_rule(rng: random.Random, name: str) -> Rule:
    members = tuple(Member(kind, params_of(rng, kind)) for kind in rng.sample(KINDS, 2)) if rng.random() < 0.3 else ()
    kind = ALL if members else rng.choice(KINDS)
    need = rng.choice([1, 1, 2, 3])
    holds = [
        Persistence(PersistenceKind.STEPS, need, need + rng.choice([0, 2, 4])),
        Persistence(PersistenceKind.DURATION, rng.choice([0, 2, 40]) * NS_PER_S),
        Persistence(PersistenceKind.TOKENS, 2000),
    ]
    return Rule(
        name,
        kind,
        {} if members else params_of(rng, kind),
        rng.choice(holds),
        Response.WARN,
        Mode.ENFORCE,
        "good",
        members=members,
        warmup=rng.choice(
            [None, None, WarmUp(PersistenceKind.STEPS, 10), WarmUp(PersistenceKind.DURATION, 60 * NS_PER_S)]
        ),
        cooldown_ns=DurationNs(rng.choice([0, 0, 30]) * NS_PER_S),
    )


@pytest.mark.parametrize(("seed", "seconds", "backs"), LONG + SET_BACK)
def test_no_verdict_is_missed_moved_or_made_by_not_asking(seed: int, seconds: int, backs: int) -> None:
    rng = random.Random(seed)
    run = a_run()
    policy = Policy("p", rules=tuple(a_rule(rng, f"rule {index}") for index in range(6)))
    book, everyone = Rules(policy, run), EveryoneIsAsked(policy, run)

    def tell(event: Step | Tick) -> None:
        book.observe(event)
        everyone.observe(event)
        step = event if isinstance(event, Step) else None
        told = [(verdict.rule, event.at, verdict.finding.text) for verdict in book.judge(event.at, step)]
        assert told == everyone.judge(event.at, step)

    for step in steps(rng, seconds, backs):
        intake.apply_step(run, run.ranks[step.rank], step)
        tell(step)
        if rng.random() < 0.2:
            tell(Tick(step.at, BootNs(step.at), WallNs(step.at)))


def test_a_calm_rule_is_asked_at_a_tick_when_a_lost_rank_is_back() -> None:
    """Starved at its last step, unknown while it is lost, starved again without another step."""
    run = a_run()
    starved = {**defaults(load()["data_starvation"].KEYS), "window_steps": 1, "warmup_steps": 0}
    hold = Persistence(PersistenceKind.DURATION, 2 * NS_PER_S)
    rule = Rule("starved", "data_starvation", starved, hold, Response.WARN, Mode.ENFORCE, "good")
    book = Rules(Policy("p", rules=(rule,)), run)

    def tick(second: int) -> list[int]:
        at = second * NS_PER_S
        book.observe(Tick(MonoNs(at), BootNs(at), WallNs(at)))
        return [second for _ in book.judge(MonoNs(at))]

    step = Step(MonoNs(0), ConnectionId(0), "r", 0, 1, step_s=1.0, data_s=0.9)
    intake.apply_step(run, run.ranks[0], step)
    book.observe(step)
    assert not book.judge(step.at, step)
    for rank in range(RANKS):
        intake.lose_connection(run, ConnectionId(rank), MonoNs(0))
        book.observe(Disconnected(MonoNs(0), ConnectionId(rank)))
    assert [told for second in (1, 2, 3) for told in tick(second)] == []
    hello = a_hello(0, MonoNs(3 * NS_PER_S))
    intake.apply_hello(run, hello)
    book.observe(hello)
    assert [told for second in (4, 5, 6, 7) for told in tick(second)] == [6]
