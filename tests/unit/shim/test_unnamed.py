"""A run that nobody has named: each launch has another name, and its checkpoints are known by their place."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.shim.test_origin import ALPHA, metered, saved
from trainer_shim import launch, origin
from trainer_shim.engines import base
from trainer_shim.engines.frameworks.hf_checkpoints import TrainerSaver
from trainer_shim.engines.frameworks.lightning_checkpoints import LightningSaver
from trainer_shim.progress import Progress


@pytest.mark.parametrize(
    ("told", "began"),
    [
        ({"run": "alpha", "step": 41, "origin": {}}, {}),
        ({"run": "alpha", "step": 41, "origin": ALPHA}, ALPHA),
        ({"run": "alpha", "step": 41}, None),
        ({"run": "alpha", "step": 0}, {}),
        ({"step": 41, "origin": {}}, None),
    ],
    ids=["from nothing", "from another run's", "of an older version", "of step 0", "one that tells no run"],
)
def test_at_home_another_runs_checkpoint_is_as_our_own(told: dict[str, Any], began: dict[str, Any] | None) -> None:
    assert origin.after(told, "beta", 41, True) == began


@pytest.mark.parametrize(
    ("environ", "is_unnamed"),
    [
        ({}, False), ({"COSTGOV_UNNAMED_RUN": ""}, False), ({"COSTGOV_UNNAMED_RUN": "beta"}, True),
        ({"COSTGOV_UNNAMED_RUN": "around-it"}, False),
    ],
)  # fmt: skip
def test_a_script_that_names_its_run_under_one_without_a_name_has_named_it(
    environ: dict[str, str], is_unnamed: bool
) -> None:
    assert launch.is_unnamed(environ, "beta") == is_unnamed


@pytest.mark.parametrize(
    ("place", "is_ours"),
    [("ck/cg_9", True), ("ck", True), ("link/cg_9", True), ("base/cg_9", False), ("ck/a/b", False)],
)
def test_home_is_where_it_saves_by_whatever_path(tmp_path: Path, place: str, is_ours: bool) -> None:
    (tmp_path / "ck").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "ck")
    progress, path = Progress(1), str(tmp_path / place)
    assert not origin.is_at_home(progress, path), "a run that has a name"
    progress.homes = lambda: [str(tmp_path / "ck")]
    assert origin.is_at_home(progress, path) == is_ours
    assert not origin.is_at_home(progress, None)
    progress.homes = list
    assert origin.is_at_home(progress, path), "nobody knows where it saves"


def broken() -> list[str]:
    raise OSError("gone")


def test_homes_that_cannot_be_asked_for_are_none(tmp_path: Path) -> None:
    progress = Progress(1)
    progress.homes = broken
    assert not origin.is_at_home(progress, str(tmp_path))


@pytest.mark.parametrize("is_named", [True, False])
def test_a_launch_without_a_name_goes_on_with_what_is_at_home_as_its_own(tmp_path: Path, is_named: bool) -> None:
    """As DeepSpeed loads it, and as resume() restores it. The chain goes on: what is saved then says the same."""
    path = saved(tmp_path, run="alpha", origin={})
    meter, _ = metered("beta")
    saver = base.PositionSaver(meter)
    saver.learn_directory(str(path.parent))
    meter.progress.homes = None if is_named else saver.homes
    began = ALPHA if is_named else {}
    base.go_on_from(meter, 41, str(path), 0)
    assert (meter.progress.origin, saver.position()["run"]) == (began, "beta")
    noted = {"run": "alpha", "step": 41, "tokens_total": 4100, "origin": {}, "path": str(path)}
    saver.restore_position(noted)
    assert saver.position()["origin"] == began
    saver.restore_position({**noted, "path": str(tmp_path.parent / "base" / "cg_41")})
    assert saver.position()["origin"] == ALPHA, "a checkpoint elsewhere is another run's"


def test_frameworks_have_their_own_home(tmp_path: Path) -> None:
    meter, _ = metered("beta")
    arguments = SimpleNamespace(output_dir=str(tmp_path / "out"))
    assert TrainerSaver(meter, SimpleNamespace(args=arguments)).homes() == [str(tmp_path / "out")]
    (tmp_path / "lightning_logs" / "version_0" / "checkpoints").mkdir(parents=True)
    callbacks = [SimpleNamespace(dirpath=str(tmp_path / "best"))]
    trainer = SimpleNamespace(default_root_dir=str(tmp_path), loggers=[], checkpoint_callbacks=callbacks)
    below = tmp_path / "lightning_logs" / "version_0" / "checkpoints"
    assert LightningSaver(meter, None, trainer).homes() == [str(tmp_path), str(below), str(tmp_path / "best")]
