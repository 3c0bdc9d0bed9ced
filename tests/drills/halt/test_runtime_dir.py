"""The runtime directory is removed while the governor runs, as by a logout: a trainer that starts later is watched."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from governor.wire.control_client import Answer, ask_first, socket_paths
from tests.drills.halt.conftest import BIN, HERE, POLICY, SAFETY_S, Service

LAUNCHER = """
import subprocess, sys, time
from pathlib import Path
trainee, work = sys.argv[1], Path(sys.argv[2])
first = subprocess.Popen([sys.executable, trainee, "finish", str(work)])
while first.poll() is None:
    time.sleep(0.01)
sys.exit(subprocess.call([sys.executable, trainee, "polite", str(work)]))
"""
UID = 12345 if os.geteuid() == 0 else os.geteuid()
# Without root, but able to read the interpreter wherever root keeps it.
UNPRIVILEGED = (
    "setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--inh-caps=+dac_read_search",
    "--ambient-caps=+dac_read_search",
) if os.geteuid() == 0 else ()  # fmt: skip


def test_sockets_come_back_and_open_connections_stay(service: Callable[..., Service]) -> None:
    governor = service()
    governor.start()
    governor.trainee("healthy")
    governor.until(lambda: governor.step() > 30, "the first trains")
    run = governor.work / "run"
    run.chmod(0o711)
    before = stat.S_IMODE((run / "trainer.sock").stat().st_mode)
    shutil.rmtree(run.rename(governor.work / "gone"))  # At one moment, whichever socket is looked at first.
    governor.until(lambda: governor.ask({"cmd": "ping"}) is not None, "the control socket is back")
    governor.until((run / "trainer.sock").is_socket, "the trainer socket is back")
    assert stat.S_IMODE((run / "trainer.sock").stat().st_mode) == before
    went_on = governor.step()
    governor.until(lambda: governor.step() > went_on, "its connection is the old one")
    governor.trainees[0].kill()
    governor.trainees[0].wait(SAFETY_S)
    governor.go_on()
    governor.trainee("polite")
    assert governor.until_stage("HALTED")["halt_stage"] == "HALTED"
    log = governor.log_at_end()
    assert "socket_gone" in log
    assert f"the directory {run} of the socket {run}/" in log, "said of the socket that was looked at first"
    assert f"the socket {run / 'trainer.sock'} was removed" in log, "said of the other, or of it"


def test_a_socket_that_was_replaced_is_ours_again(service: Callable[..., Service]) -> None:
    governor = service()
    governor.start()
    path = governor.work / "run" / "trainer.sock"
    path.unlink()
    path.write_text("not a socket")
    governor.until_said("exists and is not a socket; move it away")
    path.unlink()
    governor.until(path.is_socket, "it is back")
    governor.trainee("polite")
    governor.until_stage("HALTED")


def test_a_logout_leaves_a_restarted_trainer_watched(public: Path) -> None:
    """Without root: what was $XDG_RUNTIME_DIR cannot be made again, as nobody may in /run/user."""
    home, runtime = public / "h", public / "r" / "7"
    home.mkdir()
    runtime.mkdir(parents=True)
    work = public / "w"
    work.mkdir()
    for directory in (home, runtime, work):
        os.chown(directory, UID, -1)
    (work / "launcher.py").write_text(LAUNCHER)
    (work / "policy.toml").write_text(POLICY.format(stop="processes"))
    environ = {
        **os.environ, "HOME": str(home), "XDG_RUNTIME_DIR": str(runtime), "PATH": f"{BIN}:{os.environ['PATH']}",
        "XDG_STATE_HOME": str(home / "s"), "COSTGOV_METRICS__ENABLED": "false",
    }  # fmt: skip
    argv = [
        *UNPRIVILEGED, str(BIN / "costgov"), "run", "--policy", str(work / "policy.toml"), "--name", "drill",
        "--price", "9", "--", sys.executable, str(work / "launcher.py"), str(HERE / "trainee.py"), str(work),
    ]  # fmt: skip
    with (work / "log").open("wb") as log:
        process = subprocess.Popen(argv, env=environ, stdout=log, stderr=log)
    try:
        one = Service(work)
        one.process = process
        one.log = work / "log"
        one.until((work / "pids").exists, "the first attempt trains")
        shutil.rmtree(runtime.parent.rename(public / "gone"))  # At one moment: the governor writes there.
        runtime.parent.write_text("")  # Not even root makes a directory below it.
        one.until_said("it cannot be bound again")
        one.go_on()
        assert process.wait(SAFETY_S) == 86, one.log.read_text()
    finally:
        process.kill()
        process.wait(SAFETY_S)
    assert list((home / "s").rglob("incidents/*.json"))


def test_a_users_daemon_is_found_after_a_logout(public: Path) -> None:
    """By commands and by trainers that start later, in its state directory; after the next login where it was."""
    home, runtime, work = public / "h", public / "r" / "7", public / "w"
    for directory in (home, runtime, work):
        directory.mkdir(parents=True)
        os.chown(directory, UID, -1)
    (work / "policy.toml").write_text(POLICY.format(stop="processes"))
    environ = {
        **os.environ, "HOME": str(home), "XDG_RUNTIME_DIR": str(runtime), "XDG_STATE_HOME": str(home / "s"),
        "COSTGOV_METRICS__ENABLED": "false", "COSTGOV_RUN": "drill",
    }  # fmt: skip
    argv = [*UNPRIVILEGED, str(BIN / "costgov"), "daemon", "--policy", str(work / "policy.toml")]
    one = Service(work)
    with one.log.open("wb") as log:
        one.process = subprocess.Popen(argv, env=environ, stdout=log, stderr=log)

    def asked(**request: Any) -> Answer:
        was = os.geteuid()
        os.seteuid(UID)  # To root it is another user's, unless he names its socket.
        try:
            return ask_first(socket_paths(environ), request)
        finally:
            os.seteuid(was)

    def incidents() -> list[dict[str, Any]]:
        answer = asked(cmd="incidents", last=9)
        return answer.data if answer.ok else []

    def is_there() -> bool:
        return asked(cmd="ping").ok

    try:
        # Both: between the two it starts yet, and where it cannot, it ends with one line.
        one.until(lambda: is_there() and (runtime / "costgov/trainer.sock").is_socket(), "it is there")
        shutil.rmtree(runtime.parent.rename(public / "gone"))  # At one moment: the governor writes there.
        runtime.parent.write_text("")
        one.until(lambda: is_there() and (home / "s/costgov/trainer.sock").is_socket(), "both sockets have moved")
        trainee = [*UNPRIVILEGED, sys.executable, str(HERE / "trainee.py"), "polite", str(work)]
        with one.log.open("ab") as log:
            one.trainees.append(subprocess.Popen(trainee, env=environ, stdout=log, stderr=log))
        one.until(
            lambda: [i for i in incidents() if i["halt_stage"] == "HALTED"], "a trainer that starts now is halted"
        )
        runtime.parent.unlink()
        runtime.mkdir(parents=True)
        os.chown(runtime, UID, -1)
        sockets = [runtime / "costgov" / name for name in ("control.sock", "trainer.sock")]
        one.until(lambda: all(path.is_socket() for path in sockets) and is_there(), "they are back")
        one.until(lambda: not list((home / "s/costgov").glob("*.sock")), "and nowhere else")
        one.process.terminate()
        assert one.process.wait(SAFETY_S) == 0
        assert not any(path.exists() for path in sockets)
    finally:
        one.process.kill()
        one.end()
