"""The first line of a log with a total: what it had trained itself counts, what was trained before does not.

A step of ten seconds trains a million tokens for a cent.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from governor.core.base.policy import Budget
from governor.core.base.units import MTOK, MonoNs
from governor.core.events.inputs import CommandLaunched, TrainerExited
from governor.core.events.streams import StreamOpened
from tests.unit.core.engine.test_launched_command import COMMAND
from tests.unit.core.engine.test_line_times import CENT, Log
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import a_step, make_node
from tests.unit.core.money.test_waste import until


def counted(*records: dict[str, Any]) -> tuple[int, int, list[tuple[int, int, int]]]:
    """A line each ten seconds. Tokens since metering began, those twice too; the windows as from, to, micro-dollars."""
    log = Log()
    for place, record in enumerate(records, 1):
        until(log.world, 10 * place)
        events = log.reader.read_line(json.dumps({"loss": 2.0} | record).encode(), MonoNs(log.world.mono))
        assert isinstance(events, tuple)
        for event in events:
            log.world.play(event)
    meter = log.world.node.runs["log"].history.meter
    assert meter is not None
    windows = [(one.from_tokens // MTOK, one.to_tokens // MTOK, one.usd_micros) for one in log.windows]
    return meter.useful_tokens // MTOK, meter.trained_tokens // MTOK, windows


@pytest.mark.parametrize("stride", [1, 10, 500])
def test_a_run_that_began_with_its_log_has_the_tokens_of_the_first_line(stride: int) -> None:
    told = counted(*({"step": stride * n, "tokens_total": n * MTOK} for n in (1, 2, 3, 4)))
    assert told == (4, 4, [(0, 2, 2 * CENT), (2, 3, CENT), (3, 4, CENT)])


@pytest.mark.parametrize(("second", "tokens"), [(3.0, 3.0), (2.9, 0.9)])
def test_a_first_step_may_have_twice_as_many_tokens_as_the_second_and_no_more(second: float, tokens: float) -> None:
    log = Log()
    for step, total in ((1, 2.0), (2, second)):
        until(log.world, 10 * step)
        record = {"step": step, "loss": 2.0, "tokens_total": round(total * MTOK)}
        for event in log.reader.read(record, MonoNs(log.world.mono)):
            log.world.play(event)  # type: ignore[arg-type]
    meter = log.world.node.runs["log"].history.meter
    assert meter is not None
    assert meter.useful_tokens == round(tokens * MTOK)


@pytest.mark.parametrize("before", [1000, 20, 3])
def test_what_was_trained_before_is_of_no_window(before: int) -> None:
    """The first line comes after ten seconds: its own tokens are not known, and no more is counted than is."""
    told = counted(*({"step": before + n, "tokens_total": (before + n) * MTOK} for n in (1, 2, 3)))
    assert told == (2, 2, [(before + 1, before + 2, 2 * CENT), (before + 2, before + 3, CENT)])


def test_the_first_step_of_another_epoch_has_no_tokens_of_the_epochs_before() -> None:
    told = counted(*({"step": n, "tokens_total": (900 + n) * MTOK} for n in (1, 2, 3)))
    assert told == (2, 2, [(901, 902, 2 * CENT), (902, 903, CENT)])


def test_what_may_be_a_total_is_no_step_of_eight_hundred_million_tokens() -> None:
    """A bare "tokens" that has risen eight times is a total: from there its tokens count."""
    useful, trained, windows = counted(*({"step": 1000 + n, "tokens": (800 + n) * MTOK} for n in range(1, 12)))
    assert (useful, trained) == (2, 2)
    assert windows == [(809, 810, 10 * CENT), (810, 811, CENT)]


def test_a_log_with_both_counts_its_first_line() -> None:
    told = counted(*({"step": 1000 + n, "tokens": MTOK, "tokens_total": (1000 + n) * MTOK} for n in (1, 2)))
    assert told == (2, 2, [(1000, 1001, CENT), (1001, 1002, CENT)])


@pytest.mark.parametrize("paid_from", [1, 2, 3])
def test_a_first_line_for_which_another_log_has_paid_is_of_no_window(paid_from: int) -> None:
    """A command of two logs. The other one pays until this line of the run has come; a line a second."""
    world = World(make_node(cloud="none", budget=Budget(), exclusive=True))
    world.play(CommandLaunched(MonoNs(0), "job", 1000, (COMMAND,)))
    world.tick()
    for name in ("other", "log"):
        world.play(StreamOpened(MonoNs(0), name, 1000, of_command=True))
    until(world, 1)
    world.play(a_step(1, run="other", when=1, connection=None, attempt_step=None))
    for number in range(1, 6):
        until(world, 1 + number)
        world.play(
            a_step(number, run="log", when=1 + number, connection=None, attempt_step=None, tokens_total=number * MTOK)
        )
        if number == paid_from:
            world.play(TrainerExited(MonoNs(world.mono), "other", 0))
    meter = world.node.runs["log"].history.meter
    assert meter is not None
    assert (meter.began_tokens, meter.useful_tokens) == (paid_from * MTOK, (5 - paid_from) * MTOK)
