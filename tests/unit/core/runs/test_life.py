"""The table of a run's life: whole, and true to what the rest of the engine takes for granted."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.base.units import MonoNs
from governor.core.runs.life import TRANSITIONS, Life, LifeFact
from governor.core.runs.state import Run

HELLOS = (LifeFact.RANK, LifeFact.RANK_OF_NEW_ATTEMPT)


def a_run(life: Life) -> Run:
    run = Run("llama", 1000, MonoNs(0))
    if life is Life.STANDS_IN:
        run.move(LifeFact.COMMAND_BEGINS, MonoNs(1))
    elif life is Life.ENDED:
        run.move(LifeFact.GONE, MonoNs(1))
    assert run.life is life
    return run


def test_every_fact_has_a_cell_in_every_state_and_each_says_why() -> None:
    assert set(TRANSITIONS) == set(product(Life, LifeFact))
    assert all(cell.why for cell in TRANSITIONS.values())


@pytest.mark.parametrize("fact", HELLOS)
@pytest.mark.parametrize("life", Life)
def test_whoever_says_hello_lives(life: Life, fact: LifeFact) -> None:
    run = a_run(life)
    begins = run.move(fact, MonoNs(5)).begins
    assert (run.life, run.ended_at) == (Life.LIVE, None)
    assert begins is (life is not Life.LIVE or fact is LifeFact.RANK_OF_NEW_ATTEMPT)


@pytest.mark.parametrize("fact", [LifeFact.GONE, LifeFact.REPLACED, LifeFact.HALT_RESUMED])
def test_only_a_launch_or_a_line_begins_an_attempt(fact: LifeFact) -> None:
    assert not any(TRANSITIONS[life, fact].begins for life in Life)


def test_only_a_run_that_stands_in_is_replaced() -> None:
    assert [TRANSITIONS[life, LifeFact.REPLACED].to for life in Life] == [Life.ENDED, Life.LIVE, Life.ENDED]


@given(st.lists(st.sampled_from(LifeFact), max_size=30))
def test_a_run_has_a_moment_of_its_end_only_while_it_is_over(facts: list[LifeFact]) -> None:
    run = Run("llama", 1000, MonoNs(0))
    for number, fact in enumerate(facts):
        if TRANSITIONS[run.life, fact].cannot_come:
            continue
        run.move(fact, MonoNs(number))
        assert (run.ended_at is not None) == (run.life is Life.ENDED) == (not run.alive)
