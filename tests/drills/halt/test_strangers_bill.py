"""What a stranger says of its checkpoint is charged by what it has on the disk, and ends nobody else's run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from governor.adapters.journal.reader import read_charges
from governor.core.money.charges import Charge, LineKind
from tests.drills.halt.conftest import POLICY, Service
from tests.drills.halt.puppet import Puppet
from trainer_shim import wire

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: processes of other users")

OWNER, STRANGER = 1, 12345
BYTES = 64 * 1024
MONEY = """
[[line]]
kind = "egress"
name = "to the archive"
price_usd_per_gb = 90
[[budget]]
scope = "node"
ceiling_usd = 500
"""
BUDGET_RULE = """
[[rule]]
name = "ceiling"
trigger = "budget"
response = "halt"
"""


@pytest.fixture
def governor(public: Path) -> Iterator[Service]:
    made = Service(public, cloud=MONEY, policy=POLICY + BUDGET_RULE)
    made.start()
    yield made
    made.end()


def uploads(governor: Service) -> list[Charge]:
    charges = read_charges(str(governor.work / "state" / "costgov.db"))
    return [charge for charge in charges if charge.line.kind is LineKind.EGRESS]


def test_ten_terabytes_that_nobody_has_are_charged_to_nobody(governor: Service, interpreter: str) -> None:
    path = governor.work / "home" / "cg_3"
    path.mkdir(parents=True)
    (path / "weights").write_bytes(os.urandom(BYTES))
    with (path / "holes").open("wb") as file:
        file.truncate(10**13)
    for one in (path.parent, path, *path.iterdir()):
        os.chown(one, STRANGER, STRANGER)
    path.chmod(0o700)
    with ExitStack() as ends:
        for uid, run in ((OWNER, "prod"), (STRANGER, "x")):
            prefix = ["setpriv", "--clear-groups", f"--regid={uid}", f"--reuid={uid}", interpreter]
            puppet = Puppet(governor.work / "run" / "trainer.sock", prefix=prefix)
            ends.callback(puppet.end)
            puppet.hello(run=run)
            puppet.steps(1, 3)
        # Ten times its time allows more than the file costs.
        governor.until(lambda: governor.run("x").get("spend_usd", 0) > 0.01, "the stranger's run has cost a cent")
        saved = {"path": str(path), "manifest": "m", "bytes": 10**13, "kind": "good"}
        head = {**wire.head("ack", 0, 2), "seq": 2, "incident": "none", "what": "saved", "step": 3}
        puppet.say({**head, "checkpoint": saved})
        [charge] = governor.until(lambda: uploads(governor), "the checkpoint is charged")
        assert (charge.payer.run, charge.quantity) == ("x", BYTES)
        assert (governor.step("prod"), governor.incidents()) == (3, [])
