"""A trainer in a scope or a unit of systemd's: what leaves its tree stays in there when the trainer is gone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.drills.halt import escapes
from tests.drills.halt.conftest import POLICY
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


CONFIG = """
[node]
price_usd_per_hour = 98.32
[paths]
state_dir = "/srv/delegated/state"
runtime_dir = "/srv/delegated/run"
[metrics]
enabled = false
"""
# Asked inside the unit: its end would be the end of whatever is left.
WITHIN = """
cat /proc/self/cgroup > before
costgov run --config costgov.toml --policy policy.toml --name delegated -- {python} trainee.py unmarked /srv/delegated
echo code $?
{python} escapes.py /srv/delegated --alive
flock --nonblock escapes/hopping echo nobody hops
ls -d /sys/fs/cgroup$(sed -n s/^0:://p before)/costgov-*
"""


def test_nothing_leaves_the_control_group_that_a_delegated_unit_lets_a_user_make(started: Node) -> None:
    """By a user without any right but that of Delegate=yes: what drops its mark, and what hops from fork to fork."""
    box, halt = started.box, Path(escapes.__file__).parent
    box.run("install", "-d", "-o", "alice", "/srv/delegated")
    for name, text in (
        ("trainee.py", (halt / "trainee.py").read_text()),
        ("escapes.py", (halt / "escapes.py").read_text()),
        ("policy.toml", POLICY.format(stop="processes")),
        ("costgov.toml", CONFIG),
        ("within.sh", WITHIN.format(python=SERVICE_PYTHON)),
    ):
        box.write(f"/srv/delegated/{name}", text)
    unit = ("systemd-run", "--quiet", "--collect", "--wait", "--pipe", "--uid=alice", "--property=Delegate=yes")
    said = box.run(*unit, "--working-directory=/srv/delegated", "sh", "within.sh", check=False)
    assert "the halt is complete" in said.stderr, said.stdout + said.stderr
    assert said.stdout.splitlines() == ["code 86", "nobody hops"], "none lives, and its group is removed"
