"""Launches on several nodes: all ranks call theirs the same, and are told by whoever starts them what they are part of.

The nodes are agents on loopback. Where a launcher goes by ssh, ssh is a fake: it runs the command by a shell of this
machine, with no more of an environment than a login has, as it cannot be asked for another machine here.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.drills.shim.conftest import HERE, REPOSITORY, SCRIPTS, free_port
from tests.drills.shim.fake_governor import SAFETY_S, FakeGovernor
from trainer_shim.connection import forwarded

Start = Callable[..., subprocess.Popen[bytes]]
# What a shell would do with it shows as a file.
LABELS = 'team=$(touch ran),owner=`touch ran`"; touch ran; "'
SAID = {"COSTGOV_RUN": "night", "COSTGOV_STAGE": "stage1", "COSTGOV_LABELS": LABELS}
KNOWN = ("PATH", "HOME", "LD_LIBRARY_PATH", "LANG")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[subprocess.Popen[bytes]] = []

    def begin(*command: str, **environ: str) -> subprocess.Popen[bytes]:
        known = {name: os.environ[name] for name in KNOWN if name in os.environ}
        own = {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        with (tmp_path / f"log.{len(made)}").open("wb") as log:
            made.append(subprocess.Popen(
                command, env={**known, **own, **environ}, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            ))  # fmt: skip
        return made[-1]

    yield begin
    for process in made:
        if process.poll() is None:
            process.terminate()  # Launchers end what they have started, on other "nodes" too.
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(SAFETY_S)
    for number in range(len(made)):
        print(f"--- {number}\n{(tmp_path / f'log.{number}').read_text(errors='replace')[-3000:]}")


def two_ranks(governor: FakeGovernor, before: str | None = None) -> dict[int, dict[str, Any]]:
    """The last hello of each of two ranks, once both have said a job that is not the one before."""

    def found() -> dict[int, dict[str, Any]] | None:
        told = [hello for hello in governor.frames if hello.get("job", before) != before]
        last = {hello["rank"]: hello for hello in told}
        return last if len(last) == 2 else None

    return governor.until(found, "a job of both ranks")


def of_both(hellos: dict[int, dict[str, Any]], field: str) -> str:
    (told,) = {str(hello[field]) for hello in hellos.values()}
    return told


def saved_by_both(governor: FakeGovernor, incident: str) -> int:
    """The step that both have saved, asked by one request to one of them."""
    governor.ask(1, incident)
    steps = {governor.frame("ack", rank, incident=incident, what="saved")["step"] for rank in (0, 1)}
    (step,) = steps
    return int(step)


def test_two_agents_of_torchrun_and_a_restart_that_one_of_them_does_not_count(
    start: Start, governor: FakeGovernor, tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="needs torch")
    port = free_port()
    agent = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "night", "--max-restarts", "2",
        "--monitor-interval", "0.2", str(HERE / "node_rank.py"), str(tmp_path),
    ]  # fmt: skip
    # In a store that is kept, torch 2.13 itself may read where a rank of the former start was.
    told = {"COSTGOV_SOCKET": str(governor.path), "COSTGOV_RUN": "night", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    agents = [start(*agent, **told) for _ in range(2)]
    first = two_ranks(governor)
    job, attempt = of_both(first, "job"), of_both(first, "attempt")
    governor.frame("step", 0)
    saved = saved_by_both(governor, "night.1")

    (tmp_path / "fail").touch()
    again = two_ranks(governor, job)
    governor.frames.clear()
    starts = [json.loads(line) for line in (tmp_path / "starts").read_text().splitlines()]
    assert sorted(one["restarts"] for one in starts[2:]) == ["0", "1"], "this drill is about agents that count unlike"
    assert of_both(again, "job")
    assert of_both(again, "attempt") != attempt
    assert governor.frame("step", 0)["step"] > saved, "resume() had them together"
    assert saved_by_both(governor, "night.2") > saved
    (tmp_path / "stop").touch()
    assert [one.wait(SAFETY_S) for one in agents] == [0, 0]


def test_two_machines_of_accelerate(start: Start, governor: FakeGovernor, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="needs accelerate")
    port = str(free_port())
    for machine in ("0", "1"):
        start(
            str(SCRIPTS / "accelerate"), "launch", "--num_machines", "2", "--num_processes", "2",
            "--machine_rank", machine, "--main_process_ip", "127.0.0.1", "--main_process_port", port,
            "--rdzv_backend", "static", "--mixed_precision", "no", "--dynamo_backend", "no", "--multi_gpu",
            str(HERE / "node_rank.py"), str(tmp_path), COSTGOV_SOCKET=str(governor.path), COSTGOV_RUN="night",
        )  # fmt: skip
    hellos = two_ranks(governor)
    assert of_both(hellos, "job")
    assert of_both(hellos, "run") == "night"
    assert all("master" not in hello for hello in hellos.values()), "nobody finds another node at 127.0.0.1"
    (tmp_path / "stop").touch()


# --- launchers that go to other nodes


@pytest.fixture
def fake_ssh(tmp_path: Path) -> str:
    """Return a PATH on which ssh runs its last words by a shell, as a login on a node that knows nothing of us."""
    script = tmp_path / "bin" / "ssh"
    script.parent.mkdir()
    script.write_text(
        "#!/bin/sh\n# A fake: the words behind the options and the host, by a shell of this machine.\n"
        'while [ "${1#-}" != "$1" ]; do shift; done\nshift\n'
        'exec env -i PATH="$PATH" HOME="$HOME" DS_ACCELERATOR=cpu OMP_NUM_THREADS=1 /bin/sh -c "$*"\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return f"{script.parent}:{SCRIPTS}:{os.environ['PATH']}"


def told_by(place: Path, process: subprocess.Popen[bytes]) -> list[dict[str, Any]]:
    process.wait(SAFETY_S)
    assert not (place / "ran").exists(), "a shell has run what stood in a label"
    return [json.loads(note.read_text()) for note in sorted(place.glob("told.*"))]


def inherited() -> dict[str, str]:
    """What `costgov run` sets for its command; tests/unit/adapters/command has that it does."""
    environ = {**SAID, "COSTGOV_SOCKET": "/home/a/s", forwarded.INSIDE: "night"}
    value = forwarded.told(environ)
    assert value is not None
    return {**environ, forwarded.VARIABLE: value}


EXPECTED = {
    "run": "night", "stage": "stage1", "socket": None,
    "labels": {"team": "$(touch ran)", "owner": '`touch ran`"; touch ran; "'},
}  # fmt: skip


def test_deepspeed_takes_along_what_costgov_run_was_told(start: Start, fake_ssh: str, tmp_path: Path) -> None:
    pytest.importorskip("deepspeed", reason="needs deepspeed")
    if shutil.which("pdsh") is None:
        pytest.skip("needs pdsh")
    (tmp_path / "hosts").write_text("node-a slots=1\nnode-b slots=1\n")
    (tmp_path / ".deepspeed_env").write_text("OWN=kept\n")
    launcher = start(
        str(SCRIPTS / "deepspeed"), "--hostfile", "hosts", "--no_ssh_check", "--master_addr", "127.0.0.1",
        "--master_port", str(free_port()), "--no_local_rank", str(HERE / "told_rank.py"), str(tmp_path),
        **inherited(), PATH=fake_ssh, DS_ACCELERATOR="cpu",
    )  # fmt: skip
    assert told_by(tmp_path, launcher) == [EXPECTED, EXPECTED]
    assert (tmp_path / ".deepspeed_env").read_text() == "OWN=kept\n"


@pytest.mark.parametrize("is_passed", [True, False])
def test_mpirun_takes_along_what_x_names(is_passed: bool, start: Start, fake_ssh: str, tmp_path: Path) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("needs mpirun")
    launcher = start(
        "mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "plm_rsh_agent", fake_ssh.split(":")[0] + "/ssh",
        "--host", "node-a:1,node-b:1", "-n", "2", "-x", "PYTHONPATH", *(("-x", "PYTHON_COSTGOV") if is_passed else ()),
        sys.executable, str(HERE / "told_rank.py"), str(tmp_path), **inherited(), PATH=fake_ssh,
    )  # fmt: skip
    told = told_by(tmp_path, launcher)
    assert len(told) == 2
    assert all((one == EXPECTED) is is_passed for one in told)
