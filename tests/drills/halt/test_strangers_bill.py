"""What a stranger says of its checkpoint is charged by what it has on the disk, and ends nobody else's run."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from governor.adapters.journal.reader import read_charges
from governor.core.money.charges import Charge, LineKind
from tests.drills.halt.conftest import BIN, POLICY, SAFETY_S, Service, configuration
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


CEILING = 34  # Dollars, at one a second. A commit every ten seconds tells how much there is.
# Says hello and stays.
SANDBOX = """
import json, os, socket, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(os.environ["COSTGOV_SOCKET"])
sock.send(json.dumps({**json.loads(sys.argv[1]), "run": sys.argv[2]}).encode())
while sock.recv(65536):
    pass
"""


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


def spent(work: Path, by: str = "") -> float:
    """By the runs whose names begin so."""
    journal = work / "state" / "costgov.db"
    charges = read_charges(str(journal)) if journal.exists() else ()
    return sum(charge.usd_micros for charge in charges if charge.payer.run.startswith(by)) / 1e6


def test_a_command_that_is_requeued_with_sandboxes_below_it_stays_below_its_ceiling(
    public: Path, interpreter: str
) -> None:
    """Root's command. In each launch sandboxes of two users have new names; the second dies with its governor."""
    said = {**wire.head("hello", 0, 1), "seq": 1, "attempt": "a", "local_rank": 0, "world_size": 1, "signal": 0}
    asked = ["--config", str(configuration(public)), "--ceiling", str(CEILING), "--price", "3600", "--name", "drill"]
    os.mkfifo(public / "go")
    go = os.open(public / "go", os.O_RDWR)
    told: list[str] = []
    while not (told and "not launched: run:drill has spent" in told[-1]):
        boxes = ""
        for uid in (STRANGER, STRANGER + 1):
            boxes += f"setpriv --clear-groups --regid={uid} --reuid={uid} {interpreter} -S -c '{SANDBOX}' "
            boxes += f"'{json.dumps(said)}' box{len(told)}-{uid} & boxes=\"$boxes $!\"; "
        argv = [str(BIN / "costgov"), "run", *asked, "--", "sh", "-c", boxes + f"read l < {public}/go; kill -9 $boxes"]
        with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            pidfd, deadline = os.pidfd_open(process.pid), time.monotonic() + SAFETY_S
            while not select.select([pidfd], [], [], 0.2)[0] and spent(public, f"box{len(told)}-") < 3:
                assert time.monotonic() < deadline
            os.close(pidfd)
            if len(told) == 1:
                process.kill()
            os.write(go, b"on\n")
            told.append(process.communicate(timeout=SAFETY_S)[1])  # All below it have ended, too.
        assert len(told) < 9, told
    os.close(go)
    assert len(told) > 3, told
    assert CEILING * 0.6 < spent(public) <= CEILING
