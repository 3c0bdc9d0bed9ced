"""Trainings in one process come one after the other: whose turn it is, and whether the one before has had its own.

A training is over where its loop said so (train() or fit() returned, finish()), where what it cannot do without is
gone, and where an exception has ended its train() or fit(). A loop of the script's own says nothing, so it counts as
under way while its object lives.
"""

from __future__ import annotations

import gc
import sys
from typing import Any, Callable

from trainer_shim.progress import Progress

from .keeping import known

_LOOPS = ("train", "fit")  # Methods of a Trainer that are on the stack while it trains.
_STACK_MAX = 2_000  # Python's own limit is 1,000, unless a script has raised it.


class Turn:
    """One training, known without keeping it alive. `kind`: the class of engines/ that hooks it."""

    def __init__(self, engine: Any, keeper: Any, kind: type, progress: Progress) -> None:
        self._engine: Callable[[], Any] = known(engine)
        self._keeper: Callable[[], Any] = known(keeper)
        self._kind = kind
        self._progress = progress

    def is_of(self, engine: Any, keeper: Any) -> bool:
        """Whether that is the same training: the same object, and the same optimizer where the loop is its own."""
        return self._engine() is engine and self._keeper() is keeper

    def is_over(self, kind: type, engine: Any = None) -> bool:
        """Whether the training of this engine, of this kind, may take its place.

        A loop of the script's own that attaches its module again with another optimizer is in its next stage.
        """
        if self._progress.is_finished or self._is_gone():
            return True
        gc.collect()  # Engines and their hooks hold each other. It costs a moment, between two trainings.
        if self._is_gone():
            return True
        is_other, has_begun = kind is not self._kind, self._progress.last_hook != "attach"
        before = self._engine()
        if _is_trainer(before):
            return (is_other or has_begun) and not self._is_running(before)
        return (is_other or (has_begun and before is engine)) and not self._progress.in_step

    def _is_gone(self) -> bool:
        return self._engine() is None or self._keeper() is None

    def _is_running(self, engine: Any) -> bool:
        frame = sys._current_frames().get(self._progress.main_thread_id)
        for _ in range(_STACK_MAX):
            if frame is None:
                return False
            if frame.f_code.co_name in _LOOPS and frame.f_locals.get("self") is engine:
                return True
            frame = frame.f_back
        return True


def _is_trainer(engine: Any) -> bool:
    """Whether its own method is the loop: Module.train() is none."""
    return any(one.__name__ == "Trainer" for one in type(engine).__mro__)
