"""What holds for every run, whatever its numbers: health never adds up to a halt, and what is judged judges nothing."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator

import pytest

from governor.core.base.findings import Reading
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.inputs import Step
from governor.core.rules.one_rank import RunningLevel
from governor.core.rules.trigger import Trigger, defaults
from governor.core.rules.trigger_state import to_json
from governor.core.rules.triggers import load
from governor.core.runs.state import Run

HALTING = {"loss_spike": {"factor": 100.0}, "loss_divergence": {}, "loss_vanished": {}, "overflow_storm": {}}
SEEDS = range(12)
STEPS = 700


def make(kind: str) -> Trigger:
    trigger = load()[kind]
    return trigger({**defaults(trigger.KEYS), **HALTING[kind]})


def healthy(rng: random.Random) -> Iterator[Step]:
    """A run that learns: noisy, up to eightfold and back within 120 steps, in fp16, logged every so many steps."""
    first, floor, noise = rng.choice([11.0, 2.0, 0.5]), rng.uniform(0.2, 0.9), rng.uniform(0.0, 0.1)
    stride = rng.choice([1, 1, 10, 100, 1000])
    spike = 0.0
    for index in range(STEPS):
        if rng.random() < 0.004 and spike < 0.01:
            spike = rng.uniform(0.5, 7.0)
        spike *= 0.5 ** (stride / 15)
        level = first * (floor + (1 - floor) * math.exp(-index / 100))
        loss = level * (1 + spike) * (1 + rng.uniform(-noise, noise))
        skips = index > 50 and index % 97 < 2
        step = index * stride
        at = MonoNs(index * NS_PER_S)
        yield Step(
            at, None, "r", 0, step, loss=loss, step_s=1.0, loss_scale=32768.0 + 32768.0 * skips, applied=not skips
        )


def fired(trigger: Trigger, steps: Iterable[Step]) -> list[str]:
    run = Run("r", 0, MonoNs(0), jsonl_only=True)
    told = []
    for step in steps:
        trigger.observe(step, run)
        finding = trigger.judge(step.at, run)
        if finding.reading is Reading.FIRING:
            told.append(finding.text)
    return told


@pytest.mark.parametrize("kind", sorted(HALTING))
def test_healthy_records_never_add_up_to_a_halt(kind: str) -> None:
    for seed in SEEDS:
        assert fired(make(kind), healthy(random.Random(seed))) == [], f"seed {seed}"


@pytest.mark.parametrize("rise", [1.5, 3.0])
def test_the_same_runs_are_caught_when_they_rise_and_stay(rise: float) -> None:
    """The property above is not one of a trigger that sees nothing."""
    for seed in SEEDS:
        steps = list(healthy(random.Random(seed)))
        for step in steps[400:]:
            assert step.loss is not None
            step.loss *= rise
        assert fired(make("loss_divergence"), steps[:400]) == []
        assert fired(make("loss_divergence"), steps), f"seed {seed}"


@pytest.mark.parametrize("kind", ["loss_spike", "loss_divergence", "loss_stall", "grad_norm"])
def test_nan_between_two_records_leaves_no_trace(kind: str) -> None:
    rng = random.Random(7)
    trigger, blinded = load()[kind], load()[kind]
    plain, mixed = trigger(defaults(trigger.KEYS)), blinded(defaults(trigger.KEYS))
    run = Run("r", 0, MonoNs(0), jsonl_only=True)
    for index in range(300):
        at, value = MonoNs(index * NS_PER_S), 2.0 + rng.random()
        for bad in rng.choices([math.nan, math.inf, -math.inf], k=rng.randrange(3)):
            mixed.observe(Step(at, None, "r", 0, index, loss=bad, grad_norm=bad), run)
        for each in (plain, mixed):
            each.observe(Step(at, None, "r", 0, index, loss=value, grad_norm=value), run)
    assert plain.snapshot() == mixed.snapshot()


@pytest.mark.parametrize("kind", ["loss_spike", "loss_divergence", "loss_stall", "grad_norm"])
def test_one_rank_is_followed_and_another_one_changes_nothing(kind: str) -> None:
    trigger = load()[kind]
    alone, among = trigger(defaults(trigger.KEYS)), trigger(defaults(trigger.KEYS))
    run = Run("r", 0, MonoNs(0), jsonl_only=True)
    for index in range(300):
        at, value = MonoNs(index * NS_PER_S), 2.0 + index % 3
        for each in (alone, among):
            each.observe(Step(at, None, "r", 0, index, loss=value, grad_norm=value), run)
        among.observe(Step(at, None, "r", 1, index, loss=500.0 * value, grad_norm=500.0), run)
    assert alone.snapshot() == among.snapshot()


def level() -> RunningLevel:
    return RunningLevel(rise=2.0, noise=4.0, floor=0.1, floor_frac=0.1, warmup=10, memory=50, adopt=20)


def test_what_stands_out_does_not_enter_the_level_that_judges_it() -> None:
    plain, spiked = level(), level()
    for index in range(200):
        value = 2.0 + index % 5 / 10
        assert not plain.stands_out(value)
        assert not spiked.stands_out(value)
        if index >= 10 and index % 7 == 0:
            assert all(spiked.stands_out(10.0**power) for power in range(2, 20))
    assert to_json(plain) == to_json(spiked)


def test_a_level_stays_a_number_whatever_it_is_fed() -> None:
    rng = random.Random(3)
    fed = level()
    for _ in range(5000):
        fed.stands_out(rng.choice([1e308, -1e308, 5e-324, 0.0, 1.0, -1.0]))
        assert fed.mean is None or math.isfinite(fed.mean)
        assert not math.isnan(fed.limit)
