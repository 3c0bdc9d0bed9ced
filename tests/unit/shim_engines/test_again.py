"""What a handle that is attached to nothing keeps, so that it can begin anew where the other ranks do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

import trainer_shim
from trainer_shim.engines.base import Options
from trainer_shim.lifetime import keeping

attach_module: Any = sys.modules["trainer_shim.attach"]


class Module:
    """What is attached, and keeps what is kept for it."""


def unwatched(module: Module) -> trainer_shim.Shim:
    """As attach() leaves it beside what is watched."""
    shim = attach_module._handle()
    call = attach_module._Call(module, Options(), {"tokens_per_step": None}, {}, None, None, None)
    attach_module._keep_again(call, shim, module, "beside")
    assert isinstance(shim, trainer_shim.Shim)
    return shim


@pytest.fixture
def module() -> Iterator[Module]:
    made = Module()
    yield made
    keeping.let_go(keeping.known(made))


def test_what_is_attached_unwatched_again_and_again_keeps_a_few_calls_and_the_last_can_begin(module: Module) -> None:
    """A script that attaches a second network in its loop kept one call for each step."""
    shims = [unwatched(module) for _ in range(100)]
    (kept,) = vars(module).values()
    assert len(kept) == keeping.LAST_KEPT
    assert shims[0]._again() is None, "resume() says that it is attached to nothing"
    assert [callable(one._again()) for one in shims[-keeping.LAST_KEPT :]] == [True] * keeping.LAST_KEPT


def test_what_is_watched_keeps_its_own_beside_those(module: Module) -> None:
    watched = attach_module._handle()
    call = attach_module._Call(module, Options(), {"tokens_per_step": None}, {}, None, None, None)
    attach_module._keep_again(call, watched, module)
    for _ in range(100):
        unwatched(module)
    assert callable(watched._again())


def test_a_handle_that_is_closed_lets_go_of_its_own_alone(module: Module) -> None:
    first, second = unwatched(module), unwatched(module)
    first.close()
    assert callable(second._again())
    (kept,) = vars(module).values()
    assert len(kept) == 1
