"""A Slurm of its own on this machine: munged, slurmctld and several slurmd, all below one directory and in no other."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.drills.halt.conftest import BIN

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "sinfo")
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
BOUND_S = 60.0
KILL_WAIT_S = 4
CONFIG = """
ClusterName=drill
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket
CryptoType=crypto/munge
SlurmUser=root
SlurmctldPort={port}
StateSaveLocation={root}/state
SlurmctldPidFile={root}/slurmctld.pid
SlurmdSpoolDir={root}/spool/%n
SlurmdPidFile={root}/%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
KillWait={kill_wait}
MessageTimeout=2
MinJobAge={min_job_age}
JobRequeue=1
ReturnToService=2
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=1,bf_hetjob_immediate
{more}
{nodes}
PartitionName=p Nodes=n[1-{count}] Default=YES State=UP MaxTime=INFINITE
"""


def needs_slurm() -> None:
    """Skip the file that says so where Slurm is not installed, or may not be started."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if missing:
        pytest.skip(f"needs Slurm ({', '.join(missing)}): .ci/system-packages drills", allow_module_level=True)
    if os.geteuid() != 0:
        pytest.skip("needs root: slurmd starts jobs of several users", allow_module_level=True)


def shown(work: Path, environ: dict[str, str]) -> tuple[dict[str, Any], str]:
    """The incident as the journal has it, and as `costgov incident show` tells of it."""
    argv = [f"{BIN}/costgov", "incident", "show", "last", "--config", str(work / "costgov.toml")]
    told = [
        subprocess.run(words, env={**environ, "HOME": str(work), "COLUMNS": "300"}, capture_output=True, text=True,
                       timeout=60, check=False)
        for words in ([*argv, "--json"], argv)
    ]  # fmt: skip
    assert told[0].returncode == 0, told[0].stderr + (work / "out").read_text()
    return json.loads(told[0].stdout), told[1].stdout + told[1].stderr


def until(is_so: Callable[[], bool], what: str, bound_s: float = BOUND_S) -> None:
    deadline = time.monotonic() + bound_s
    while not is_so():
        assert time.monotonic() < deadline, f"{what}: not within {bound_s:g} s"
        _pause()


def _pause() -> None:
    """Until a moment has passed: what is asked for is another process's, which nobody can wait on."""
    socket_pair = socket.socketpair()
    socket_pair[0].settimeout(0.05)
    try:
        socket_pair[0].recv(1)
    except TimeoutError:
        pass
    finally:
        for end in socket_pair:
            end.close()


class Cluster:
    """Use as a context manager. `more`: lines for slurm.conf, such as a Prolog."""

    def __init__(self, root: Path, count: int = 3, more: str = "", min_job_age: int = 60) -> None:
        self.root, self.count, self.more, self.min_job_age = root, count, more, min_job_age
        self.conf = root / "slurm.conf"
        self.environ = {"PATH": PATH, "SLURM_CONF": str(self.conf), "HOME": "/", "LANG": "C"}
        self._controller: subprocess.Popen[bytes] | None = None
        self._others: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Cluster:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        root = self.root
        root.chmod(0o755)
        for name in ("munge", "state", "spool"):
            (root / name).mkdir()
        (root / "munge").chmod(0o755)
        key = root / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        host, (controller, *ports) = socket.gethostname().partition(".")[0], _ports(1 + self.count)
        nodes = "\n".join(
            f"NodeName=n{i} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 State=UNKNOWN"
            for i, port in enumerate(ports, 1)
        )
        self.conf.write_text(
            CONFIG.format(
                root=root, host=host, port=controller, nodes=nodes, count=self.count, kill_wait=KILL_WAIT_S,
                more=self.more, min_job_age=self.min_job_age,
            )
        )  # fmt: skip
        munge = root / "munge"
        files = [f"--key-file={key}", f"--socket={munge}/socket", f"--pid-file={munge}/pid", f"--log-file={munge}/log"]
        self._others.append(self._daemon("munged", "--foreground", "--force", f"--seed-file={munge}/seed", *files))
        until((munge / "socket").exists, "munged listens")
        self.start_controller()
        for i in range(1, self.count + 1):
            self._others.append(self._daemon("slurmd", "-D", "-N", f"n{i}", "-f", str(self.conf)))
        until(lambda: self.said("sinfo", "-h", "-t", "idle", "-o", "%D") == str(self.count), "the nodes are idle")

    def start_controller(self) -> None:
        self._controller = self._daemon("slurmctld", "-D", "-f", str(self.conf))
        until(lambda: self.run("scontrol", "ping").returncode == 0, "slurmctld answers")

    def stop_controller(self) -> None:
        """As for an upgrade. A killed one forgets the jobs of its last seconds, and their nodes end them later."""
        assert self._controller is not None
        self._controller.terminate()
        self._controller.wait(BOUND_S)

    def _daemon(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        with (self.root / f"{name}.log").open("ab") as log:
            program = shutil.which(name, path=PATH) or name
            return subprocess.Popen([program, *words], env=self.environ, stdout=log, stderr=log, cwd="/")

    def run(self, *argv: str, uid: int = 0) -> subprocess.CompletedProcess[str]:
        become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"] if uid else []
        return subprocess.run(
            [*become, *argv], env=self.environ, capture_output=True, text=True, timeout=BOUND_S, check=False, cwd="/"
        )

    def said(self, *argv: str, uid: int = 0) -> str:
        return self.run(*argv, uid=uid).stdout.strip()

    def submit(self, script: str, *options: str, uid: int = 0, runs: bool = True) -> str:
        """Returns the job's id once it runs."""
        path = self.root / f"job{secrets.token_hex(4)}.sh"
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)
        output = () if any(option.startswith("--output") for option in options) else ("--output=/dev/null",)
        done = self.run("sbatch", "--parsable", "--requeue", *output, *options, str(path), uid=uid)
        assert done.returncode == 0, done.stderr
        job = done.stdout.strip()
        if runs:
            until(lambda: self.states(job) == {"RUNNING"}, f"job {job} runs")
        return job

    def states(self, job: str) -> set[str]:
        return set(self.said("squeue", "-h", "-r", "-t", "all", "-j", job, "-o", "%T").split())

    def shown(self, job: str) -> str:
        return self.said("scontrol", "-o", "show", "job", job)

    def commands_of(self, uid: int, folder: Path) -> dict[str, str]:
        """An environment in which Slurm's commands run as another user: munge tells slurmctld who calls."""
        folder.mkdir()
        for name in ("squeue", "scontrol", "scancel", "sinfo"):
            wrapper = folder / name
            real = shutil.which(name, path=PATH)
            wrapper.write_text(f'#!/bin/sh\nexec setpriv --reuid={uid} --regid={uid} --clear-groups {real} "$@"\n')
            wrapper.chmod(0o755)
        return {**self.environ, "PATH": f"{folder}:{PATH}"}

    def __exit__(self, *_exc: object) -> None:
        controller = self._controller
        if controller is not None and controller.poll() is not None and self._others:
            self.start_controller()  # A drill has killed it: without it, jobs would outlive their Slurm.
        if self._controller is not None and self._controller.poll() is None:
            jobs = self.said("squeue", "-h", "-r", "-o", "%i").split()
            if jobs:
                self.run("scancel", *jobs)
                until(lambda: self.said("squeue", "-h", "-o", "%i") == "", "all jobs are gone")
        daemons: Sequence[subprocess.Popen[bytes]] = [*filter(None, [self._controller]), *reversed(self._others)]
        for daemon in daemons:
            if daemon.poll() is None:
                daemon.terminate()
            try:
                daemon.wait(10.0)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait(BOUND_S)


def _ports(count: int) -> list[int]:
    """Free ones, from the kernel."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in held]
    for one in held:
        one.close()
    return ports
