"""Where a plain loop's step ends, and what is told of a checkpoint that would hold half of one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trainer_shim.engines.plain import PlainSaver, _StepOrder


@pytest.mark.parametrize(
    ("listed", "calls", "is_told"),
    [
        ("DG", "DGDGDG", False),
        ("GD", "DGDGDG", True),  # A GAN's discriminator steps first, and was listed last.
        ("DG", "DDDDGDDDDG", False),
        ("GD", "DDDDGDDDDG", True),
        ("D", "DDD", False),
        ("UD", "DDD", False),  # The first one never steps.
    ],
)
def test_the_last_optimizer_of_the_list_has_to_be_the_last_that_steps(
    listed: str, calls: str, is_told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    optimizers = {name: SimpleNamespace() for name in listed}
    order = _StepOrder(optimizers[listed[-1]])
    for name in calls:
        order.note(optimizers[name])
    assert capsys.readouterr().err.count("list them in the order in which they step") == is_told


@pytest.mark.parametrize(
    ("stateful", "can_defer", "is_told"),
    [
        (("model", "optimizer_0", "scheduler"), False, True),
        (("model", "optimizer_0", "scheduler"), True, False),
        (("model", "optimizer_0"), False, False),
    ],
)
def test_a_checkpoint_without_what_the_loop_does_behind_the_optimizers_step_is_told_once(
    stateful: tuple[str, ...], can_defer: bool, is_told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    saver: Any = SimpleNamespace(_stateful=stateful, _meter=SimpleNamespace(can_defer=can_defer), _told=[])
    for _ in range(3):
        PlainSaver._tell_half_step(saver)
    assert capsys.readouterr().err.count("what the loop does behind it in a step") == is_told
