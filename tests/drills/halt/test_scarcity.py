"""No descriptor, no thread: said once, without a crash or a spin, and a decided halt ends all the same."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from examples.demo_cloud import DemoCloud
from tests.drills.halt.conftest import BIN, POLICY, SAFETY_S, Service, cloud_table, configuration
from tests.drills.halt.puppet import Puppet

GOVERNOR_UID = 54_321  # Nobody else's: RLIMIT_NPROC counts every process of a user.
AS_GOVERNOR = ("setpriv", "--clear-groups", f"--regid={GOVERNOR_UID}", f"--reuid={GOVERNOR_UID}")
BUSY_WINDOW_S = 2.0
SPIN_SHARE = 0.25  # Of one core. A loop that spins takes what it gets; a governor that waits takes a fiftieth.
SOCKETS = {"trainer.sock": socket.SOCK_SEQPACKET, "control.sock": socket.SOCK_STREAM}
DESCRIPTORS = 64  # Room for the governor itself and some twenty connections.

Make = Callable[..., Service]
PuppetOf = Callable[[Service], Puppet]


@pytest.fixture
def puppet_of() -> Iterator[PuppetOf]:
    started: list[Puppet] = []

    def make(governor: Service) -> Puppet:
        started.append(Puppet(governor.work / "run" / "trainer.sock"))
        assert started[-1].hello()["kind"] == "confirm"
        started[-1].steps(1, 30)
        governor.until(lambda: governor.step() == 30, "it trains")
        return started[-1]

    yield make
    for puppet in started:
        puppet.end()


def _busy(governor: Service) -> float:
    """How much of a core it takes. CPU time is told in hundredths of a second: less than seconds says nothing."""
    used_s, since_s = governor.cpu_s(), time.monotonic()
    ended = os.pidfd_open(governor.process.pid)
    try:
        assert not select.select([ended], [], [], BUSY_WINDOW_S)[0], "it has ended"
    finally:
        os.close(ended)
    return (governor.cpu_s() - used_s) / (time.monotonic() - since_s)


def _gone(puppet: Puppet) -> None:
    assert select.select([puppet.pidfd], [], [], SAFETY_S)[0], "the halted process lives"


def _connected(governor: Service, name: str, kind: socket.SocketKind) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, kind)
    client.settimeout(SAFETY_S)
    client.connect(str(governor.work / "run" / name))
    return client


def test_where_too_few_files_may_be_open_it_says_so_and_starts_nothing(tmp_path: Path) -> None:
    argv = [str(BIN / "costgov"), "run", "--config", str(configuration(tmp_path)), "--", "touch", str(tmp_path / "ran")]
    asked = ["sh", "-c", 'ulimit -n 24; exec "$@"', "sh", *argv]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=SAFETY_S, check=False)
    assert done.returncode == 1
    told = [line for line in done.stderr.splitlines() if "--policy" not in line]
    assert [line.partition(":")[0] for line in told] == ["costgov"], done.stderr
    assert "at most 24 files may be open here" in told[0]
    assert not (tmp_path / "ran").exists()


def test_connections_never_take_the_descriptors_that_a_halt_needs(service: Make, puppet_of: PuppetOf) -> None:
    governor = service()
    governor.start()
    rank = puppet_of(governor)
    governor.limit(resource.RLIMIT_NOFILE, DESCRIPTORS)
    with contextlib.ExitStack() as connected:
        for name, kind in SOCKETS.items():
            hogs = [connected.enter_context(_connected(governor, name, kind)) for _ in range(DESCRIPTORS)]
            assert select.select(hogs[-1:], [], [], SAFETY_S)[0], "the last of them is turned away"
        governor.until_said("the governor is out of file descriptors: raise its LimitNOFILE")
        rank.steps(31, 31, loss="nan")
        _gone(rank)
    governor.until(lambda: governor.stage() == "HALTED", "the halt is complete")
    (incident,) = governor.incidents()
    assert "page" not in [entry["what"] for entry in incident["timeline"]], "no person was needed for it"
    log = governor.log_at_end()
    assert "unreadable" not in log
    assert "Traceback" not in log


def test_without_one_free_descriptor_it_says_so_once_and_halts_as_soon_as_it_can(
    service: Make, puppet_of: PuppetOf
) -> None:
    governor = service(policy=POLICY.replace('kill_grace = "5s"', 'kill_grace = "2s"'))
    governor.start()
    rank = puppet_of(governor)
    governor.limit(resource.RLIMIT_NOFILE, 3)
    with contextlib.ExitStack() as connected:
        # Two who wait to be let in: a loop that cannot accept them must not turn for them.
        for name, kind in SOCKETS.items():
            connected.enter_context(_connected(governor, name, kind))
        rank.steps(31, 31, loss="nan")
        governor.until_said("process_table_unreadable")
        governor.until_said("needs_human")
        assert _busy(governor) < SPIN_SHARE
        assert rank.process.poll() is None, "it could not be ended, and nobody says that it was"

        governor.limit(resource.RLIMIT_NOFILE, 1024)
        _gone(rank)
    governor.until(lambda: governor.stage() == "HALTED", "the halt is complete")
    log = governor.log_at_end()
    assert log.count('"event": "process_table_unreadable"') == 1
    assert "Traceback" not in log


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: RLIMIT_NPROC binds other users only")
def test_without_a_thread_the_processes_end_and_the_stop_is_asked_until_it_can_be_sent(
    public: Path, cloud: DemoCloud, puppet_of: PuppetOf
) -> None:
    # As the service runs: its own user and CAP_KILL. The other one lets it read the sources, wherever they lie.
    capabilities = "+kill,+dac_read_search"
    as_service = [*AS_GOVERNOR, f"--inh-caps={capabilities}", f"--ambient-caps={capabilities}"]
    work = public / "service"
    work.mkdir()
    governor = Service(work, stop="instance", cloud=cloud_table(cloud), prefix=as_service)
    os.chown(work, GOVERNOR_UID, GOVERNOR_UID)
    governor.start()
    try:
        rank = puppet_of(governor)
        _limit_threads(governor, 1)
        rank.steps(31, 31, loss="nan")
        _gone(rank)
        governor.until_said("can't start new thread: raise the governor's TasksMax")
        assert (governor.stage(), cloud.state()) == ("STOPPING", "running")
        assert _busy(governor) < SPIN_SHARE

        _limit_threads(governor, 1024)
        governor.until(lambda: governor.stage() == "HALTED", "the halt is complete")
        (incident,) = governor.incidents()
        assert "stop_unknown" in [entry["what"] for entry in incident["timeline"]], "not sent, and not believed"
        assert (cloud.state(), cloud.times_ended) == ("stopped", 1)
        assert "Traceback" not in governor.log_at_end()
    finally:
        governor.end()


def _limit_threads(governor: Service, soft: int) -> None:
    assert governor.process is not None
    command = [*AS_GOVERNOR, "prlimit", f"--pid={governor.process.pid}", f"--nproc={soft}:"]
    subprocess.run(command, check=True, timeout=SAFETY_S)
