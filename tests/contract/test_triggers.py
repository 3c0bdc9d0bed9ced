"""What every trigger promises. A new file in governor/core/rules/triggers is judged here without an edit."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import pytest

from governor.core.base.findings import Finding, Reading
from governor.core.base.identity import ConnectionId, Peer, ProcessId
from governor.core.base.policy import Budget, Expected
from governor.core.base.units import NS_PER_HOUR, NS_PER_MS, NS_PER_S, BootNs, DurationNs, MonoNs, UsdMicros, WallNs
from governor.core.events.hardware import GpuFigures
from governor.core.events.inputs import Beat, Event, Hello, PhaseChange, Step, Tick
from governor.core.events.machine import GpuSample, HostMemory, MachineEvent, SpotNotice
from governor.core.rules.trigger import Trigger, defaults, listens
from governor.core.rules.triggers import load
from governor.core.runs import intake
from governor.core.runs.state import Run
from governor.policies.keys import RULE_KEYS
from governor.policies.words import condition_of, meanings, placeholders_in
from tests.tidy import gates

KINDS = sorted(load())
SEEDS = range(8)
DAY_NS = 24 * NS_PER_HOUR
ACROSS_ATTEMPTS = ("budget", "gate", "restart_loop", "runtime")  # What they are about does not end with an attempt.
# Since when the governor itself has looked: anew after a restart, and on over attempts.
OF_THE_GOVERNOR = {"hang": {"self._watch"}, "log_stalled": {"self._watch"}}
NAMES = ("GPU-a", "GPU-b", "GPU-c")
FIGURES = (GpuFigures(), GpuFigures(clock_reasons=0x48, xid_total=2, xids=(13, 79)), GpuFigures(is_lost=True))
HOLES = [None, float("nan"), float("inf"), float("-inf"), 0.0, -1.0, 1e308, 5e-324]


def make(kind: str, *, counts_max: int | None = None) -> Trigger:
    """With its defaults; `counts_max`: with windows so short that a short history fills them."""
    trigger = load()[kind]
    budget = Budget(UsdMicros(1_000_000), 10_000, (0.5,))
    params = defaults(trigger.KEYS)
    if counts_max is not None:
        short = [key.name for key in trigger.KEYS if key.kind == "count" and params[key.name] > counts_max]
        params |= dict.fromkeys(short, counts_max)
    return trigger({**params, "budget": budget, "expected": Expected(1)})


def history(seed: int) -> tuple[Run, Sequence[Event]]:
    """A run of two ranks and an hour of everything that they may say, sane and insane."""
    run = Run("r", 0, MonoNs(0))
    for rank in (0, 1):
        peer = Peer(ProcessId(100 + rank, 1, "b"), 0)
        hello = Hello(MonoNs(0), ConnectionId(rank), peer, 1, "r", "a", rank, rank, 2, tokens_per_step=1000)
        if not rank:
            intake.begin_attempt(run, hello.attempt, hello.at)
        intake.apply_hello(run, hello)
    return run, _events(seed)


@cache
def _events(seed: int) -> tuple[Event, ...]:
    """The same for every trigger; `_nobody_changes_an_event` holds them to it."""
    rng = random.Random(seed)
    events: list[Event] = []
    now, step = 0, 0
    for _ in range(300):
        now += rng.choice([NS_PER_MS, NS_PER_S, 30 * NS_PER_S])
        at, rank = MonoNs(now), rng.randrange(2)
        connection = ConnectionId(rank)
        phase = rng.choice(["train", "train", "eval", "compile", "checkpoint", "init"])
        match rng.randrange(6):
            case 0 | 1:
                step += rng.choice([1, 1, 1, 0, -2, 5])
                events.append(Step(at, connection, "r", rank, max(0, step), **_numbers(rng)))
            case 2:
                events.append(Beat(at, connection, "r", rank, rng.randrange(40), phase, at, in_step=rng.random() < 0.5))
            case 3:
                events.append(PhaseChange(at, connection, "r", rank, phase, progress_seq=rng.randrange(40)))
            case 4:
                events.append(_machine(rng, at))
            case _:
                events.append(Tick(at, BootNs(now), WallNs(now)))
    return tuple(events)


@pytest.fixture(autouse=True, scope="module")
def _nobody_changes_an_event() -> Iterator[None]:
    yield
    for seed in SEEDS:
        assert repr(_events(seed)) == repr(_events.__wrapped__(seed)), "an event is every rule's: who changed it?"


def _numbers(rng: random.Random) -> dict[str, Any]:
    fields: dict[str, Any] = {
        name: rng.choice([rng.random(), rng.random(), *HOLES])
        for name in ("loss", "grad_norm", "loss_scale", "step_s", "data_s", "checkpoint_s", "hold_s")
    }
    counts = {"tokens": 1000, "tokens_total": rng.randrange(9000), "skipped_steps": rng.randrange(9)}
    fields.update({name: rng.choice([None, value]) for name, value in counts.items()})
    flags = {name: rng.choice([None, True, False]) for name in ("loss_expected", "applied")}
    return {**fields, **flags}


def _machine(rng: random.Random, at: MonoNs) -> MachineEvent:
    """What the driver, the kernel and the provider may say; a log's GPU figures are anything at all."""
    busy = tuple(rng.choice([rng.random(), *HOLES]) for _ in range(rng.randrange(3)))
    used = tuple(rng.choice([None, 0, 70 << 30]) for _ in busy)
    match rng.randrange(3):
        case 0:
            told, names = rng.choice([((), ()), ((), NAMES), (FIGURES, NAMES), (FIGURES, ())])
            count = len(busy)
            size = tuple(80 << 30 for _ in busy)
            return GpuSample(at, "r", busy, names[:count], used, size, figures=told[:count])
        case 1:
            return HostMemory(at, rng.choice([0, 1 << 30]), rng.choice([0, 64 << 30]), *rng.choice([(), ("r", "/j")]))
        case _:
            return SpotNotice(at, rng.choice([None, "stop"]), rng.choice([None, DurationNs(NS_PER_S)]))


def apply(run: Run, event: Event) -> None:
    if isinstance(event, Step):
        intake.apply_step(run, run.ranks[event.rank], event)
    elif isinstance(event, Beat):
        intake.apply_beat(run, run.ranks[event.rank], event)
    elif isinstance(event, PhaseChange):
        intake.apply_phase(run, run.ranks[event.rank], event)
    elif isinstance(event, MachineEvent):
        intake.apply_machine(run, event)


@pytest.mark.parametrize("kind", KINDS)
def test_is_documented(kind: str) -> None:
    trigger = load()[kind]
    assert trigger.__doc__, "the docstring is its documentation"
    names = [key.name for key in trigger.KEYS]
    assert len(set(names)) == len(names)
    assert not set(names) & {*RULE_KEYS, "budget"}, "these words are the rule's own"
    for key in trigger.KEYS:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", key.name)
        assert key.meaning.endswith("."), key.name
        assert key.parse(key.default) is not None


@pytest.mark.parametrize("kind", KINDS)
def test_says_its_condition_with_the_value_of_every_key(kind: str) -> None:
    """What `costgov policy explain` shows: half a sentence to follow "when", then whole ones."""
    trigger = load()[kind]
    texts = meanings(trigger)
    names = {key.name for key in trigger.KEYS}
    assert names <= placeholders_in(texts), f"not said: {names - placeholders_in(texts)}"
    condition, *more = condition_of(kind, {}, Budget())
    assert re.fullmatch(r"[a-z\d].*[^.]", condition), 'it stands between "Halts when" and what follows'
    assert all(re.fullmatch(r"[A-Z].*\.", sentence) for sentence in more)


@pytest.mark.parametrize("kind", KINDS)
def test_its_limits_are_keys_that_can_be_moved(kind: str) -> None:
    """What `costgov policy tune` moves: numbers above zero."""
    keys = {key.name: key for key in load()[kind].KEYS}
    for name in vars(load()[kind]).get("LIMITS", ()):
        assert keys[name].kind in ("duration", "count", "number", "frac")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", [k for k in KINDS if load()[k].STEPPED and not listens(load()[k], Tick)])
def test_time_alone_does_not_move_what_is_about_steps(kind: str, seed: int) -> None:
    """While such a rule is calm, ticks do not ask it."""
    trigger = make(kind, counts_max=4)
    run, events = history(seed)
    for event in events:
        apply(run, event)
        trigger.observe(event, run)
        assert trigger.judge(event.at, run).reading is trigger.judge(MonoNs(event.at + DAY_NS), run).reading


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_takes_anything_and_says_the_same_when_asked_again(kind: str, seed: int) -> None:
    trigger = make(kind)
    run, events = history(seed)
    for event in events:
        apply(run, event)
        trigger.observe(event, run)
        finding = trigger.judge(event.at, run)
        assert trigger.judge(event.at, run) == finding
        if finding.reading is Reading.FIRING:
            assert re.fullmatch(r"[a-z][a-z0-9_]*", finding.reason)
            assert finding.text
        json.dumps(dict(finding.evidence), allow_nan=False)


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("kind", [kind for kind in KINDS if load()[kind].STEPPED])
def test_a_step_that_is_said_not_to_concern_it_makes_nothing_fire(kind: str, seed: int) -> None:
    """After such a step nobody asks before the next tick: the verdict would be late, or of the wrong step."""
    trigger = make(kind, counts_max=1 + seed % 4)
    run, events = history(seed)
    for event in events:
        before = trigger.judge(event.at, run).reading
        apply(run, event)
        concerns = trigger.observe(event, run) if listens(trigger, type(event)) else False
        if isinstance(event, Step) and concerns is False and before is not Reading.FIRING:
            assert trigger.judge(event.at, run).reading is not Reading.FIRING


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_trigger_holds_no_less_of_the_past(kind: str, seed: int) -> None:
    """After a restart it may need new evidence, but it never invents any: the snapshot round-trips."""
    trigger = make(kind)
    run, events = history(seed)
    for event in events:
        apply(run, event)
        trigger.observe(event, run)
    saved = json.dumps(trigger.snapshot(), allow_nan=False)
    restored = make(kind)
    restored.restore(json.loads(saved))
    assert json.loads(json.dumps(restored.snapshot())) == json.loads(saved)


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_it_has_seen_is_in_its_state(kind: str) -> None:
    """What it kept elsewhere would be lost at a restart, and stay when an attempt begins."""
    trigger = make(kind, counts_max=4)
    before = gates.held_outside(trigger)
    run, events = history(0)
    for event in events:
        apply(run, event)
        trigger.observe(event, run)
        trigger.judge(event.at, run)
    after = gates.held_outside(trigger)
    known = OF_THE_GOVERNOR.get(kind, set())
    assert known <= after.keys()
    gates.nothing_missing(gates.kept_outside(kind, before, {**after, **{name: before[name] for name in known}}))


@pytest.mark.parametrize("kind", KINDS)
def test_who_reads_the_policys_plan_says_so(kind: str) -> None:
    """Whoever does not goes on untouched when the policy is reloaded with another budget."""
    trigger = load()[kind]
    if vars(trigger).get("PLANNED", False):
        with pytest.raises(KeyError):
            trigger(defaults(trigger.KEYS))
    else:
        trigger(defaults(trigger.KEYS))


@pytest.mark.parametrize("kind", KINDS)
def test_knows_nothing_of_an_empty_run(kind: str) -> None:
    run = Run("r", 0, MonoNs(0))
    finding = make(kind).judge(MonoNs(0), run)
    assert isinstance(finding, Finding)
    assert finding.reading is Reading.UNKNOWN, "no data is not health"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ACROSS_ATTEMPTS])
def test_a_new_attempt_starts_anew(kind: str) -> None:
    trigger = make(kind)
    run, events = history(1)
    for event in events:
        apply(run, event)
        trigger.observe(event, run)
    trigger.new_attempt(run)
    assert trigger.snapshot() == make(kind).snapshot()
