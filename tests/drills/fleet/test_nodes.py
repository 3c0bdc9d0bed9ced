"""The nodes of these drills do what they say: what is killed, frozen, cut or deaf is so, and nothing else is."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from governor.adapters import clouds
from governor.core.events.inputs import StopAnswer
from tests.drills.fleet.conftest import MakeFleet
from tests.drills.fleet.governors import COMPILER, NO_COMPILER, off_by
from tests.drills.fleet.network import BRIDGE
from tests.drills.fleet.nodes import Fleet, Node, until
from tests.drills.halt.conftest import SAFETY_S, is_alive

PORT = 4000  # In a network of its own every port is free.
PATIENCE_S = 1.0  # A datagram on a bridge takes far below a millisecond; one that is lost never comes.
TELL = """
import os, socket, time
print(os.getpid() > 1, socket.gethostname(), socket.gethostbyname("node2"), sorted(os.listdir("/run")))
print(time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME))
"""
COUNT = """
import time
number = 0
while True:
    number += 1
    print(number, flush=True)
    time.sleep(0.005)
"""


def listening(node: Node) -> socket.socket:
    def bound() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.bind((node.address, PORT))
        return made

    return node.inside(bound)


def arrives(sender: socket.socket, receiver: socket.socket) -> bool:
    """Whether a datagram does. What came before is left out; and the sender hears no error."""
    while select.select([receiver], [], [], 0)[0]:
        receiver.recv(100)
    sender.sendto(b"hello", receiver.getsockname())
    return bool(select.select([receiver], [], [], PATIENCE_S)[0])


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-E", "-c", code]


def wait_for_lines(node: Node, log: str, more_than: int = 0) -> int:
    path = node.place / log
    return int(until(lambda: path.exists() and (n := path.read_text().count("\n")) > more_than and n, "it counts"))


def test_a_node_has_its_own_name_run_and_processes_and_knows_the_others(fleet: MakeFleet) -> None:
    made = fleet(2)
    who, _ = made[1].run(python(TELL)).splitlines()
    assert who == "True node1 10.77.0.2 ['costgov']"
    started = made[1].start(python(COUNT))
    assert list(made[1].processes()) == [started.pid]
    assert made[2].processes() == {}
    started.kill()
    assert started.wait() == -9


def test_what_is_killed_takes_all_along_and_leaves_the_others(fleet: MakeFleet) -> None:
    made = fleet(2)
    gone, stays = made[1].start(python(COUNT)), made[2].start(python(COUNT))
    made[1].kill()
    assert gone.wait() == -9
    assert not is_alive(gone.pid)
    assert made[1].processes() == {}
    at = wait_for_lines(made[2], "log")
    wait_for_lines(made[2], "log", more_than=at)
    assert stays.poll() is None


def test_what_is_frozen_stands_still_until_it_is_thawed(fleet: MakeFleet) -> None:
    made = fleet(2)
    for node in made:
        node.start(python(COUNT))
        wait_for_lines(node, "log")
    made[1].freeze()
    stood, other = (wait_for_lines(node, "log") for node in made)
    wait_for_lines(made[2], "log", more_than=other + 50)
    assert wait_for_lines(made[1], "log") == stood
    made[1].thaw()
    wait_for_lines(made[1], "log", more_than=stood + 5)


def test_a_cut_is_a_black_hole_until_it_is_healed(fleet: MakeFleet) -> None:
    made = fleet(3)
    one, two, three = (listening(node) for node in made)
    assert [arrives(one, two), arrives(two, one), arrives(three, one)] == [True, True, True]
    made[1].cut()
    assert [arrives(one, two), arrives(two, one), arrives(three, two)] == [False, False, True]
    assert (Path("/proc") / str(made[1].init)).exists()
    made[1].heal()
    assert [arrives(one, two), arrives(two, one)] == [True, True]
    made[1].one_way(made[2])
    assert [arrives(one, two), arrives(two, one), arrives(one, three)] == [False, True, True]
    made[1].heal()
    assert arrives(one, two)
    for each in (one, two, three):
        each.close()


@pytest.mark.skipif(COMPILER is None, reason=NO_COMPILER)
def test_a_clock_that_is_off_is_the_wall_clock_alone(fleet: MakeFleet) -> None:
    made = fleet(2)
    argv = python(TELL)
    before = time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)
    wall, mono, boot = map(float, made[1].run(argv, off_by(3600, made[1].place)).splitlines()[1].split())
    assert 3600 <= wall - before[0] < 3600 + SAFETY_S
    assert 0 <= mono - before[1] < SAFETY_S
    assert 0 <= boot - before[2] < SAFETY_S


def test_each_governor_has_an_instance_of_its_own_and_a_wrong_clock_is_its_own(fleet: MakeFleet) -> None:
    made = fleet(2)
    made[1].new_governor()
    made[2].new_governor(clock_off_s=3600 if COMPILER else 0)
    for node in made:
        node.governors[0].begin()
    for node in made:
        node.governors[0].await_answer()
        said = node.governors[0].status()["governor"]
        assert said["node"] == node.name
        assert node.cloud.instance_id in said["cloud"]["will"]
    assert made[1].cloud.instance_id != made[2].cloud.instance_id
    made[1].kill()
    assert made[2].governors[0].ask({"cmd": "ping"}) is not None
    assert made[1].governors[0].ask({"cmd": "ping"}) is None


def test_a_machine_whose_instance_is_stopped_goes_off_where_a_drill_wants_that(fleet: MakeFleet) -> None:
    made = fleet(2)
    made.machines_go_off()
    programs = [node.start(python(COUNT)) for node in made]
    ready = made[1].cloud.ready()
    config = {name: ready[name] for name in ("endpoint", "metadata_endpoint", "instance_id")}
    answer = made[1].inside(lambda: clouds.load("aws", config).stop("run-7-1", 0))
    assert answer.answer is StopAnswer.ACCEPTED
    assert programs[0].wait() == -9
    assert programs[1].poll() is None
    assert [made.stops(node) for node in made] == [1, 0]


DIES = """
import os, sys, tempfile
from pathlib import Path
from examples.demo_cloud import moto
from tests.drills.fleet.nodes import nodes
place = Path(sys.argv[1])
with moto() as port, nodes(2, place, port) as fleet:
    started = [node.start(["sleep", "1000"]) for node in fleet]
    print(*[process.pid for process in started], flush=True)
    os.kill(os.getpid(), 9)
"""


def test_a_fleet_whose_maker_is_killed_leaves_nothing(fleet: Callable[[int], Fleet], short_tmp: Path) -> None:
    argv = [sys.executable, "-c", DIES, str(short_tmp)]
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.getcwd()})
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2, done.stderr
    until(lambda: not any(map(is_alive, pids)), "all that ran on its nodes is gone")
    assert BRIDGE not in [name for _, name in socket.if_nameindex()], "its network was never this machine's"
