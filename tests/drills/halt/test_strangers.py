"""What users do to each other under one root daemon, on purpose or by a leak: names, connections, lines of the log."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from governor.adapters.journal.writer import open_journal
from governor.core.engine.node import RUNS_MAX
from governor.core.money.group_totals import PAST_MAX
from governor.daemon.log_quota import LINES_AT_ONCE
from governor.wire.control_client import ask
from tests.drills.halt.conftest import BIN, SAFETY_S, Service, begin, end_of
from tests.drills.halt.puppet import Puppet
from trainer_shim import wire

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: processes of other users")

STRANGER, OTHER = 12345, 1

# Hellos with a new name each. A run has ended once its process is gone, so children say them and exit.
CHURN = """
import json, os, select, socket, sys
path, prefix, count, hello = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
def says_hello(name):
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.connect(path)
            sock.send(json.dumps({**hello, "run": name}).encode())
            if b"confirm" in sock.recv(65536):
                return sock
        except OSError:
            pass
        sock.close()  # As many runs are alive as may be. Those of the child before are seen to end within a tick.
        select.select([], [], [], 0.02)
for first in range(0, count, 30):
    child = os.fork()
    if child == 0:
        links = [says_hello(f"{prefix}{n}") for n in range(first, min(count, first + 30))]
        os._exit(0)
    os.waitpid(child, 0)
"""


def as_uid(uid: int, interpreter: str) -> list[str]:
    return ["setpriv", "--clear-groups", f"--regid={uid}", f"--reuid={uid}", interpreter]


@pytest.fixture
def governor(public: Path) -> Iterator[Service]:
    one = Service(public)
    one.start()
    yield one
    one.end()


@pytest.fixture
def rank(governor: Service, interpreter: str) -> Iterator[Callable[..., Puppet]]:
    started: list[Puppet] = []

    def make(uid: int = OTHER, run: str = "prod", attempt: str = "a") -> Puppet:
        started.append(Puppet(governor.work / "run" / "trainer.sock", prefix=as_uid(uid, interpreter)))
        assert started[-1].hello(run=run, attempt=attempt)["kind"] == "confirm"
        return started[-1]

    yield make
    for puppet in started:
        puppet.end()


def hello_frame() -> dict[str, Any]:
    return {**wire.head("hello", 0, 1), "seq": 1, "attempt": "a", "local_rank": 0, "world_size": 1, "signal": 0}


def halted(governor: Service, rank: Puppet, run: str, attempt: str = "a") -> list[dict[str, Any]]:
    """All halts of the run, once this rank's NaN has led to one."""
    rank.steps(1, 3)
    rank.steps(4, 4, loss="nan")

    def done() -> list[dict[str, Any]]:
        found = [one for one in governor.incidents() if one["run"] == run]
        is_over = any((one["attempt"], one["halt_stage"]) == (attempt, "HALTED") for one in found)
        return found if is_over else []

    return list(governor.until(done, f"attempt {attempt} of run {run} is halted"))


def seen_before(governor: Service, count: int, uid: int) -> None:
    """The journal of a node that has seen so many runs of one user since then."""
    journal, problem = open_journal(str(governor.work / "state" / "costgov.db"), str(governor.work / "run"))
    assert problem is None
    known = journal.runs()["prod"]
    journal.save_runs({f"old{n}": {**known, "run": f"old{n}", "uid": uid, "alive": False} for n in range(count)})
    journal.close()


@pytest.mark.parametrize("copies_mark", [False, True])
def test_a_stranger_who_says_the_commands_name_is_not_the_command(
    copies_mark: bool, public: Path, interpreter: str
) -> None:
    """While the command imports, no rank of its own has said hello: anybody knows its name, and may read its mark."""
    for name in ("socket", "go"):
        os.mkfifo(public / name)
    waits = f'echo "$COSTGOV_SOCKET $COSTGOV_MARK" > {public}/socket; read line < {public}/go; exit 7'
    command = begin(public, ["sh", "-c", waits])
    try:
        socket, mark = (public / "socket").read_text().split()
        prefix = [*as_uid(STRANGER, "prlimit"), f"--locks={mark}:", interpreter] if copies_mark else []
        stranger = Puppet(Path(socket), prefix=prefix or as_uid(STRANGER, interpreter))
        said: dict[str, Any] = {"mark": int(mark)} if copies_mark else {}
        assert stranger.hello(run="drill", **said)["kind"] == "confirm"
        stranger.steps(1, 3)
        stranger.steps(4, 4, loss="nan")
        stranger.process.wait(SAFETY_S)
        (public / "go").write_text("on\n")
    finally:
        done = end_of(command, public)
    assert done.code == 7, done.output
    assert [one["run"] for one in done.incidents] == [f"drill@{STRANGER}"]
    stranger.end()


def test_a_strangers_run_beside_a_command_keeps_nothing_open_and_closes_no_line_of_it(
    public: Path, interpreter: str
) -> None:
    """It trains on. The command's end, what it resumes from, and its next launch are its own."""
    for name in ("socket", "go"):
        os.mkfifo(public / name)
    waits = f'echo "$COSTGOV_SOCKET" > {public}/socket; read line < {public}/go; exit 7'
    command = begin(public, ["sh", "-c", waits])
    stranger = None
    try:
        socket = (public / "socket").read_text().strip()
        stranger = Puppet(Path(socket), prefix=as_uid(STRANGER, interpreter))
        evil = {"step": 900, "path": "/tmp/evil", "tokens_total": 1, "mono_ns": time.monotonic_ns()}
        for _ in range(2):  # It comes again, and stays what it was.
            assert stranger.hello(run="other", resume_called=False, last_good=evil)["kind"] == "confirm"
        stranger.steps(1, 3)
        (public / "go").write_text("on\n")
        done = end_of(command, public)
        assert done.code == 7, done.output
        closing = done.output[done.output.index("ended with exit code 7") :]
        assert "resume  " in closing
        for theirs in ("other", "/tmp/evil", "resume from"):
            assert theirs not in closing
        again = end_of(begin(public, ["true"]), public)
        assert again.code == 0, again.output
        assert stranger.process.poll() is None
    finally:
        command.kill()
        if stranger is not None:
            stranger.end()


# Of the run's own user, too: memory has dropped the run then, and the journal is asked.
@pytest.mark.parametrize("uid", [STRANGER, OTHER])
def test_new_names_take_neither_a_ceiling_nor_a_halt_from_a_run(
    uid: int, governor: Service, rank: Callable[..., Puppet], interpreter: str
) -> None:
    early = rank()
    spent = governor.until(lambda: governor.run("prod").get("spend_usd"), "the run costs something")
    [first] = halted(governor, early, "prod")
    governor.kill9()
    seen_before(governor, PAST_MAX + RUNS_MAX, uid)
    governor.start()
    path = str(governor.work / "run" / "trainer.sock")
    argv = [*as_uid(STRANGER, interpreter), "-S", "-c", CHURN, path, "new", "30", json.dumps(hello_frame())]
    assert subprocess.run(argv, timeout=SAFETY_S).returncode == 0

    again = rank(attempt="b")
    governor.until(lambda: governor.run("prod").get("spend_usd", 0.0) >= spent, "what it has spent counts on")
    both = halted(governor, again, "prod", attempt="b")
    assert [one["incident_id"] for one in both] == ["prod.drill.1", "prod.drill.2"]
    assert both[0] == first, "nothing of the first halt is overwritten"
    report = governor.work / "state" / "incidents" / "prod.drill.1.json"
    assert json.loads(report.read_text())["opened_wall_ns"] == first["opened_wall_ns"]


def test_a_name_that_another_user_has_refuses_nobody_and_both_are_watched(
    governor: Service, rank: Callable[..., Puppet]
) -> None:
    squatter = rank(STRANGER, "llama-70b")
    own = rank(0, "llama-70b")
    [halt] = halted(governor, own, "llama-70b@0")
    assert (halt["uid"], halt["incident_id"]) == (0, "llama-70b@0.drill.1")
    assert squatter.process.poll() is None
    governor.until_said("name_taken")


def test_a_name_whose_run_never_trained_is_free_when_its_process_is_gone(
    governor: Service, rank: Callable[..., Puppet]
) -> None:
    rank(STRANGER, "llama-70b").process.kill()
    governor.until(lambda: governor.run("llama-70b").get("state") == "finished", "the stranger's run has ended")
    rank(0, "llama-70b")
    assert governor.run("llama-70b")["uid"] == 0


def test_a_name_that_was_trained_under_is_released_by_hand_and_its_money_stays(
    governor: Service, rank: Callable[..., Puppet]
) -> None:
    squatter = rank(STRANGER, "llama-70b")
    squatter.steps(1, 3)
    spent = governor.until(lambda: governor.run("llama-70b").get("spend_usd"), "the run costs something")
    refused = ask(str(governor.work / "run" / "control.sock"), {"cmd": "forget", "run": "llama-70b"})
    assert (refused.code, "is alive" in refused.error) == ("refused", True)
    squatter.process.kill()
    governor.until(lambda: governor.run("llama-70b").get("state") == "finished", "the stranger's run has ended")
    told = governor.ask({"cmd": "forget", "run": "llama-70b"})
    assert (told["owner_uid"], told["spend_usd"] >= spent) == (STRANGER, True)
    governor.kill9()
    governor.start()
    rank(0, "llama-70b")
    governor.until(lambda: governor.run("llama-70b").get("spend_usd", 0.0) >= spent, "no money is forgotten")
    assert governor.run("llama-70b")["uid"] == 0


# Holds all the connections that it gets: half of them silent, half with a hello and a step of a run each, and goes on.
HOLD = """
import json, select, socket, sys
path, uid, hello, step = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4])
links = []
for n in range(160):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.connect(path)
        if n % 2:
            sock.send(json.dumps({**hello, "run": f"u{uid}-{n}"}).encode())
            sock.send(json.dumps(step).encode())
        links.append(sock)
    except OSError:
        pass
print("holding", flush=True)
select.select([sys.stdin], [], [])
"""


def test_three_users_who_hold_all_that_they_can_keep_a_fourth_ones_nan_from_nothing(
    governor: Service, rank: Callable[..., Puppet], interpreter: str
) -> None:
    path = str(governor.work / "run" / "trainer.sock")
    step = {**wire.head("step", 0, 1), "step": 1, "attempt_step": 1, "loss": 2.0}
    with contextlib.ExitStack() as holders:
        for uid in (STRANGER, STRANGER + 1, STRANGER + 2):
            argv = [*as_uid(uid, interpreter), "-S", "-c", HOLD, path, str(uid)]
            frames = [json.dumps(hello_frame()), json.dumps(step)]
            holder = subprocess.Popen([*argv, *frames], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            holders.enter_context(holder)
            holders.callback(holder.kill)
            assert holder.stdout is not None
            assert holder.stdout.readline() == "holding\n"
        governor.until(lambda: len(governor.ask({"cmd": "status"})["governor"]["refused"]) >= 3, "they are refused")
        [halt] = halted(governor, rank(), "prod")
        assert halt["uid"] == OTHER
        refused = governor.ask({"cmd": "status"})["governor"]["refused"]
        assert {one["uid"] for one in refused} <= {STRANGER, STRANGER + 1, STRANGER + 2}
        argv = [str(BIN / "costgov"), "status", "--control", str(governor.work / "run" / "control.sock")]
        shown = subprocess.run(argv, capture_output=True, text=True, timeout=SAFETY_S, check=True).stdout
        assert f"of uid {STRANGER}, " in shown
    governor.until_said("uid 12345 has")


# Hellos that are refused, each on a connection of its own, by a process of its own.
FLOOD = """
import json, os, socket, sys
path, hello = sys.argv[1], json.loads(sys.argv[2])
for n in range(1500):
    if n % 25 == 0 and os.fork() == 0:
        for _ in range(25):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sock.connect(path)
            sock.send(json.dumps({**hello, "run": "not a name", "rank": n}).encode())
            sock.send(b"no frame")
            sock.recv(65536)
            sock.close()
        os._exit(0)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
"""


def test_one_users_lines_take_no_room_in_the_log_from_a_halts(
    governor: Service, rank: Callable[..., Puppet], interpreter: str
) -> None:
    argv = [*as_uid(STRANGER, interpreter), "-S", "-c", FLOOD, str(governor.work / "run" / "trainer.sock")]
    with subprocess.Popen([*argv, json.dumps(hello_frame())]) as flood:
        halted(governor, rank(), "prod")
        assert flood.wait(SAFETY_S) == 0
    lines = governor.log_at_end().splitlines()
    assert sum("bad_frame" in line or "hello_refused" in line for line in lines) <= 4 * LINES_AT_ONCE
    assert any('"halted"' in line and '"prod"' in line for line in lines)
