"""How long deaf ranks take to end: `python -m benchmarks.bench_kill`.

Every rank ignores SIGTERM, SIGINT, SIGHUP and the doorbell's letter: only SIGKILL ends it. Ours: eight ranks attached
to a real `costgov daemon`, from the operator's halt (the verdict) until the kernel says that all are gone, with a
grace of two seconds. Peers, measured in the same minute: torchrun with eight such ranks and DeepSpeed's launcher with
two, from SIGTERM to the launcher until all are gone. DeepSpeed's launcher waits for one rank after the other, so that
eight would take four times as long as two.
"""

from __future__ import annotations

import base64
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.service import BIN, ROOT, SAFETY_S, Service, end, free_port, nonfinite_policy
from benchmarks.table import Row, program, row

RANKS = 8
RANKS_DEEPSPEED = 2
REPEATS = 5
GRACE_S = 2.0
PEER_BOUND_S = 150.0


def rank(directory: str) -> None:
    """One deaf rank: writes its pid to the directory, then sleeps for ever. Attaches where a governor is named."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    own = int(os.environ.get("RANK", "0"))
    if "COSTGOV_RUN" in os.environ:
        _attach(own)
    path = Path(directory) / f"rank-{own}"
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").rename(path)
    while True:
        time.sleep(3600)


def _attach(own: int) -> None:
    from trainer_shim.progress import Progress
    from trainer_shim.watcher import Watcher

    hello = {
        "run": os.environ["COSTGOV_RUN"], "attempt": "1", "rank": own, "local_rank": own, "world_size": RANKS,
    }  # fmt: skip
    Watcher(hello, Progress(threading.main_thread().ident or 0), None).start()


def ours(service: Service, number: int) -> float:
    """Seconds from the verdict until eight attached ranks are gone."""
    run, directory = f"deaf-{number}", service.work / f"deaf-{number}"
    directory.mkdir()
    ranks = [
        # A session of its own: a halt ends the session's processes too, and we are not of the run.
        subprocess.Popen(
            _argv(directory), env={**service.environ(run), "RANK": str(own)}, cwd=ROOT, start_new_session=True
        )
        for own in range(RANKS)
    ]
    try:
        pids = _pids(directory, RANKS)
        service.until(lambda: _connected(service, run) == RANKS, "all ranks are connected")
        begun_s = time.monotonic()
        service.ask({"cmd": "halt", "run": run, "reason": "bench"})
        assert _all_gone(pids, SAFETY_S), f"ranks outlived a halt by {SAFETY_S:.0f} s"
        return time.monotonic() - begun_s
    finally:
        for one in ranks:
            one.kill()
            end(one)


class Launched:
    """Deaf ranks under somebody else's launcher, which is told to end."""

    def __init__(self, name: str, argv: Sequence[str], count: int, directory: Path) -> None:
        self.name, self.seconds, self.is_bound = name, PEER_BOUND_S, True
        directory.mkdir()
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "PYTHONPATH": str(ROOT)}
        self._pids: list[int] = []
        with (directory / "log").open("wb") as log:
            self._launcher = subprocess.Popen(
                [*argv, *_argv(directory)[1:]], env=environ, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )
        try:
            self._pids = _pids(directory, count)
        except RuntimeError:
            self._launcher.terminate()  # It ends what it has started.
            raise
        self._thread = threading.Thread(target=self._end)

    def begin(self) -> None:
        self._thread.start()

    def _end(self) -> None:
        begun_s = time.monotonic()
        self._launcher.terminate()
        if _all_gone(self._pids, PEER_BOUND_S):
            self.seconds, self.is_bound = time.monotonic() - begun_s, False

    def wait(self) -> None:
        self._thread.join()
        self.kill()

    def kill(self) -> None:
        for pid in self._pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._launcher.kill()
        end(self._launcher)


def commands() -> dict[str, tuple[list[str], int]]:
    """What each peer is called, its command up to the script, and for how many ranks."""
    torchrun = [str(BIN / "torchrun"), "--standalone", "--nproc_per_node", str(RANKS)]
    world = base64.urlsafe_b64encode(json.dumps({"localhost": list(range(RANKS_DEEPSPEED))}).encode()).decode()
    deepspeed = [
        sys.executable, "-m", "deepspeed.launcher.launch", f"--world_info={world}", "--node_rank=0",
        "--no_local_rank", "--master_addr=127.0.0.1", f"--master_port={free_port()}",
    ]  # fmt: skip
    return {
        f"torchrun, {RANKS} ranks": (torchrun, RANKS),
        f"DeepSpeed launcher, {RANKS_DEEPSPEED} ranks": (deepspeed, RANKS_DEEPSPEED),
    }


def _argv(directory: Path) -> list[str]:
    return [sys.executable, str(Path(__file__).resolve()), "--rank", str(directory)]


def _pids(directory: Path, count: int) -> list[int]:
    deadline_s = time.monotonic() + SAFETY_S
    while time.monotonic() < deadline_s:
        found = [path for path in directory.glob("rank-*") if not path.suffix]
        if len(found) == count:
            return [int(path.read_text()) for path in found]
        time.sleep(0.02)
    log = directory / "log"
    raise RuntimeError(f"{count} ranks did not start in {SAFETY_S:.0f} s\n{log.read_text() if log.exists() else ''}")


def _all_gone(pids: Sequence[int], timeout_s: float) -> bool:
    """Wait for the end of all, on pidfds."""
    fds = []
    for pid in pids:
        try:
            fds.append(os.pidfd_open(pid))
        except ProcessLookupError:
            continue
    deadline_s = time.monotonic() + timeout_s
    try:
        return all(select.select([fd], [], [], max(0.0, deadline_s - time.monotonic()))[0] for fd in fds)
    finally:
        for fd in fds:
            os.close(fd)


def _connected(service: Service, run: str) -> int:
    runs: list[dict[str, Any]] = (service.ask({"cmd": "status"}) or {"runs": []})["runs"]
    return next((int(one["ranks_connected"]) for one in runs if one["run"] == run), 0)


def measure() -> list[Row]:
    with Service(nonfinite_policy("none", GRACE_S, ends=True)) as service:
        peers: list[Launched] = []
        try:
            for number, (name, (argv, count)) in enumerate(commands().items()):
                peers.append(Launched(name, argv, count, service.work / f"peer-{number}"))
                peers[-1].begin()
            seconds = [ours(service, number) for number in range(REPEATS)]
            for peer in peers:
                peer.wait()
        finally:
            for peer in peers:
                peer.kill()
    what = f"{RANKS} deaf ranks: verdict to all gone, grace {GRACE_S:.0f} s"
    aim = f"< {GRACE_S + 1:.0f}"
    return [
        row(what, "s", seconds, aim=aim, peer=one.name, peer_samples=[one.seconds], peer_at_least=one.is_bound)
        for one in peers
    ]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank(sys.argv[2])
    else:
        program(__doc__, measure)
