"""A training process for drills, without torch: real shim, real frames, real signals; it misbehaves as told.

    python trainee.py MODE DIRECTORY [UNSAVED_S]

Trains 30 healthy steps, writes its pids to DIRECTORY/pids, then reports a NaN loss and misbehaves. It has trained for
UNSAVED_S seconds before: a halt waits for a checkpoint no longer than the work that is unsaved took. What lasts until
the drill goes on (slow_save: its save; finish: its training) lasts until there is a file DIRECTORY/go_on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from trainer_shim.launch import parse_labels, scheduler_labels
from trainer_shim.progress import Progress
from trainer_shim.watcher import Watcher

HEALTHY_STEPS = 30
STEP_S = 0.01
FOR_EVER_S = 3600
EATEN_BYTES = 64 << 20  # A step's worth.


OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 20.00 MiB (token=hf_abcdefghijklmnopqrst)\n\x1b[2Jmore"


class OutOfMemoryError(RuntimeError):
    __module__ = "torch"


class FileSaver:
    """Saves a file a rank: enough for a whole, hashed, verified checkpoint."""

    loaded_from: str | None = None
    cannot_load: str | None = None

    def __init__(self, directory: Path, until: Path | None = None) -> None:
        self.directory: str | None = str(directory)
        self.until = until

    def save(self, directory: str, tag: str, client_state: dict[str, Any]) -> None:
        while self.until is not None and not self.until.exists():
            time.sleep(STEP_S)
        target = Path(directory) / tag
        target.mkdir(parents=True, exist_ok=True)
        (target / "weights.bin").write_bytes(bytes(range(256)) * 64)
        (target / "state.json").write_text(json.dumps(client_state, default=str))

    def position(self) -> dict[str, Any]:
        return {}

    def restore_position(self, position: dict[str, Any]) -> None:
        pass

    def pending(self) -> bool:
        return False

    def load(self, directory: str, tag: str) -> dict[str, Any]:
        return dict(json.loads((Path(directory) / tag / "state.json").read_text()))

    def contents(self) -> dict[str, Any]:
        return {}

    def look_at_start(self) -> None:
        pass

    def harmed(self) -> str | None:
        return None

    def homes(self) -> list[str]:
        return [] if self.directory is None else [self.directory]

    def join_ranks(self) -> None:
        pass


class Trainee:
    def __init__(self, mode: str, work: Path, unsaved_s: int = 0) -> None:
        self.mode, self.work = mode, work
        self.steps_before = 1 if unsaved_s else 0  # Then the first step that the governor sees is not its first.
        self.children: list[subprocess.Popen[bytes]] = []
        self.progress = Progress(threading.main_thread().ident or 0)
        hello = {
            "run": os.environ.get("COSTGOV_RUN", "drill"),
            "attempt": f"a{os.getpid()}",
            "labels": {**scheduler_labels(os.environ), **parse_labels(os.environ.get("COSTGOV_LABELS", ""))},
            "rank": 0,
            "local_rank": 0,
            "world_size": 1,
            "tokens_per_step": 1000,
            "checkpoint_dir": str(work / "checkpoints"),
            "framework": "torch",
            "resume_argv": [sys.executable, *sys.argv],
            "started_mono_ns": max(1, time.monotonic_ns() - unsaved_s * 10**9),
        }
        saver = FileSaver(work / "checkpoints", work / "go_on" if mode == "slow_save" else None)
        self.watcher = Watcher(hello, self.progress, saver)

    def step(self, number: int, loss: float) -> None:
        progress = self.progress
        progress.in_step = True
        progress.bump("forward")
        time.sleep(STEP_S)
        progress.bump("backward")
        progress.step, progress.attempt_step = number, number + self.steps_before
        progress.in_step = False
        progress.bump("step")
        fields = {
            "step": number,
            "attempt_step": progress.attempt_step,
            "tokens": 1000,
            "tokens_total": number * 1000,
            "loss": loss,
            "loss_expected": True,
            "step_s": STEP_S,
            "data_s": 0.0,
            "applied": True,
            "progress_seq": progress.progress_seq,
        }
        self.watcher.step_frame(fields)
        self.watcher.at_boundary(number)

    def write_pids(self) -> None:
        pids = [os.getpid(), *(child.pid for child in self.children)]
        (self.work / "pids").write_text(json.dumps(pids))

    def run(self) -> None:
        if self.mode == "foreign":
            signal.signal(signal.SIGUSR1, lambda *_: (self.work / "foreign").write_text("rung"))
        if self.mode == "escapes":
            (self.work / "escapes").mkdir()
            early = f"setsid sleep {FOR_EVER_S} >/dev/null 2>&1 & echo $! > {self.work}/escapes/early"
            subprocess.run(["/bin/sh", "-c", early], check=True)
        if self.mode == "unmarked":
            self.let_go()
        self.watcher.start()
        self.progress.set_phase("train")
        for number in range(1, HEALTHY_STEPS + 1):
            self.step(number, 2.0)
        if self.mode in ("grandchildren", "zombie"):
            self.spawn()
        if self.mode == "escapes":
            self.let_escape()
        self.write_pids()
        if self.mode in ("deaf_term", "grandchildren"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self.mode == "stolen":
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        self.misbehave()

    def spawn(self) -> None:
        """Children that outlive their leader, or (zombie) that have died and are never reaped."""
        deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); "
        code = "print('up', flush=True)" if self.mode == "zombie" else deaf + f"time.sleep({FOR_EVER_S})"
        for _ in range(2):
            child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
            assert child.stdout is not None
            child.stdout.readline()
            self.children.append(child)

    def let_escape(self) -> None:
        """Start what leaves this process's tree, and wait until all of it has left."""
        import escapes

        argv = [sys.executable, "-S", "-E", escapes.__file__, str(self.work)]
        self.children.append(subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        while not all((self.work / "escapes" / way).exists() for way in escapes.WAYS):
            time.sleep(STEP_S)

    def let_go(self) -> None:
        """Start what drops its mark, and wait until it has."""
        import escapes

        escapes.start_unmarked(self.work)
        while not all((self.work / "escapes" / way).exists() for way in (escapes.NO_MARK, "hopping")):
            time.sleep(STEP_S)

    def eaten_bytes(self) -> int:
        return EATEN_BYTES if self.mode == "eats" and (self.work / "go_on").exists() else 0

    def misbehave(self) -> None:
        number = HEALTHY_STEPS + 1
        if self.mode == "crash":
            os._exit(3)
        if self.mode == "raises":
            raise OutOfMemoryError(OUT_OF_MEMORY)
        if self.mode == "finish":
            while not (self.work / "go_on").exists():  # Then the end, said as it should be.
                self.step(number, 2.0)
                number += 1
            self.watcher.finish("trained to the end", True)
            self.watcher.close()
            sys.exit(0)
        if self.mode in ("healthy", "eats"):
            held = []
            while True:
                self.step(number, 2.0)
                number += 1
                held.append(b"x" * self.eaten_bytes())
        if self.mode in ("deaf", "deaf_term", "stuck", "stopped", "unkillable"):
            # The frame goes out, and the training thread never comes to a boundary again.
            self.watcher.at_boundary = lambda _step: None  # type: ignore[method-assign]
            self.step(number, float("nan"))
            if self.mode == "unkillable":
                # Writing to a frozen disk waits in the kernel, where not even SIGKILL is heard.
                with (self.work / "disk" / "weights").open("wb") as weights:
                    weights.write(b"x")
            if self.mode == "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
            if self.mode == "stuck":
                lock = threading.Lock()
                lock.acquire()
                lock.acquire()  # As in a collective: the main thread waits in C and runs no handler.
            while True:
                time.sleep(FOR_EVER_S)
        while True:
            self.step(number, float("nan"))
            number += 1


if __name__ == "__main__":
    Trainee(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:])).run()
