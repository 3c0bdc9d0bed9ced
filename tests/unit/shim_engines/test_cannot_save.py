"""Which loops cannot save when asked, and what their owner is told to pass. No framework is needed to say it."""

from __future__ import annotations

from typing import Any

import pytest

from trainer_shim.engines.base import Options
from trainer_shim.engines.deepspeed_engine import DeepSpeedKind
from trainer_shim.engines.frameworks.accelerate_loops import AcceleratePlainKind
from trainer_shim.engines.frameworks.hf import TrainerKind
from trainer_shim.engines.plain import PlainKind


class Dense:
    """Known by name only, as torch's classes are."""


class FSDPModule:
    """The base that torch's fully_shard() gives a module."""


class Sharded(FSDPModule):
    pass


class Accelerator:
    def __init__(self) -> None:
        self._models = [Sharded()]


def _save(*_: Any) -> None:
    pass


def options(**given: Any) -> Options:
    return Options(optimizer=object(), **given)


@pytest.mark.parametrize(
    ("kind", "directory", "named"),
    [
        (PlainKind(Dense(), options()), "/c", None),
        (PlainKind(Dense(), options()), None, ["checkpoint_dir="]),
        (PlainKind(Dense(), options(save_fn=_save)), None, ["checkpoint_dir="]),
        (PlainKind(Sharded(), options()), "/c", ["save_fn=", "load_fn=", "FSDP"]),
        (PlainKind(Sharded(), options()), None, ["save_fn=", "checkpoint_dir=", "load_fn="]),
        (PlainKind(Sharded(), options(save_fn=_save)), "/c", None),
        (AcceleratePlainKind(Accelerator(), options()), "/c", None),
        (AcceleratePlainKind(Accelerator(), options()), None, ["checkpoint_dir=", "project_dir="]),
        (DeepSpeedKind(object()), None, None),
        (TrainerKind(object()), None, None),
    ],
)
def test_a_loop_that_cannot_save_names_what_to_pass(kind: Any, directory: str | None, named: list[str] | None) -> None:
    missing = kind.cannot_save(directory)
    assert (missing is None) is (named is None), missing
    assert all(name in (missing or "") for name in named or [])
