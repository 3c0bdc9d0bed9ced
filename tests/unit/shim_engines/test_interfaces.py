"""What attach() returns works with every watch, the one of an unwatched run included."""

from __future__ import annotations

import inspect

import pytest

from tests.unit.shim.ranks import OneFileSaver
from tests.unit.shim.test_resuming import Loader
from trainer_shim.engines.deepspeed_engine import DeepSpeedSaver
from trainer_shim.engines.frameworks.accelerate_loops import AccelerateSaver
from trainer_shim.engines.frameworks.hf_checkpoints import TrainerSaver
from trainer_shim.engines.frameworks.lightning_checkpoints import LightningSaver
from trainer_shim.engines.plain import PlainSaver
from trainer_shim.interfaces import NoWatch, Saver, Watch
from trainer_shim.watcher import Watcher


def _methods(of: type) -> dict[str, list[str]]:
    functions = inspect.getmembers(of, inspect.isfunction)
    return {name: list(inspect.signature(f).parameters) for name, f in functions if not name.startswith("_")}


def test_both_watches_have_every_method_of_the_interface() -> None:
    asked = _methods(Watch)
    assert {"start", "resume", "checkpoint", "close"} <= asked.keys()
    for watch in (NoWatch, Watcher):
        given = _methods(watch)
        assert {name: given.get(name) for name in asked} == asked, watch


SAVERS = [PlainSaver, DeepSpeedSaver, AccelerateSaver, TrainerSaver, LightningSaver, OneFileSaver, Loader]


@pytest.mark.parametrize("saver", SAVERS)
def test_every_kind_of_saver_answers_what_judges_its_checkpoints(saver: type) -> None:
    """A kind without harmed() was one whose checkpoints nobody looks at, and nothing said so."""
    asked, given = _methods(Saver), _methods(saver)
    assert {"contents", "harmed", "look_at_start", "join_ranks"} <= asked.keys()
    assert {name: given.get(name) for name in asked} == asked
    assert {"loaded_from", "cannot_load", "directory"} <= Saver.__annotations__.keys()


def test_an_unwatched_run_is_asked_for_nothing_and_resumes_nothing() -> None:
    watch = NoWatch()
    watch.start()
    watch.checkpoint()
    assert watch.resume() is None
    assert not watch.wants_save(5)
    watch.close()
