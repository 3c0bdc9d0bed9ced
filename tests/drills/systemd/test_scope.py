"""A trainer in a scope of systemd's: what leaves its tree stays in the scope when the trainer is gone."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from tests.drills.halt.escapes import WAYS
from tests.drills.systemd.node import SERVICE_PYTHON, Node, Trainer

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux (Debian package tmux)")


def living(node: Node, trainer: Trainer) -> dict[str, list[int]]:
    shown = node.box.run(SERVICE_PYTHON, "/srv/escapes.py", trainer.directory, "--alive").stdout
    return {way: [int(pid) for pid in pids] for way, *pids in map(str.split, shown.splitlines())}


@pytest.mark.parametrize("when", ["before", "after"])
def test_nothing_of_a_run_in_a_scope_outlives_its_halt(
    started: Node, make_trainer: Callable[..., Trainer], when: str
) -> None:
    """By the service, which may send signals and nothing else: by the scope before attach(), by the mark after it."""
    trainer = make_trainer(f"leaves-{when}", when, scope=True)
    beside = make_trainer(f"beside-{when}", scope=True)
    assert living(started, trainer).keys() == set(WAYS)
    started.box.run("costgov", "halt", trainer.name, "--reason", "drill")
    trainer.wait_until_gone()
    incident = started.ended_incident(trainer.name)
    assert incident["halt_stage"] == "HALTED"
    assert living(started, trainer) == {}
    assert "unsure" not in [entry["what"] for entry in incident["timeline"]]
    assert started.is_alive(beside.pid)
