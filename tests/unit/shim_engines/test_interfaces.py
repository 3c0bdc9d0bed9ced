"""What attach() returns works with every watch, the one of an unwatched run included."""

from __future__ import annotations

import inspect

from trainer_shim.interfaces import NoWatch, Watch
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


def test_an_unwatched_run_is_asked_for_nothing_and_resumes_nothing() -> None:
    watch = NoWatch()
    watch.start()
    watch.checkpoint()
    assert watch.resume() is None
    assert not watch.wants_save(5)
    watch.close()
