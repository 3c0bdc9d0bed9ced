"""A trainer without torch: the real shim around a loop that counts. Runs inside the box, under a user of its own.

Lines on stdin: "hold" stops stepping before the next boundary, "go" steps on. Each is answered by a line on stdout.
With a third argument, "before" or "after", it starts what leaves its process tree before or after it attaches.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from trainer_shim.progress import Progress
from trainer_shim.watcher import Watcher

STEP_S = 0.02
TOKENS_PER_STEP = 4096
# Work worth waiting for: without it a halt's grace would be over in a moment.
UNSAVED_NS = 600 * 10**9


class CountSaver:
    """interfaces.Saver for a model that is one number."""

    loaded_from: str | None = None
    cannot_load: str | None = None

    def __init__(self, directory: str, progress: Progress) -> None:
        self.directory: str | None = directory
        self._progress = progress

    def save(self, directory: str, tag: str, client_state: dict[str, Any]) -> None:
        path = Path(directory, tag)
        path.mkdir(parents=True, exist_ok=True)
        state = {"step": self._progress.step, "client_state": client_state}
        (path / "count.json").write_text(json.dumps(state))

    def pending(self) -> bool:
        return False

    def load(self, directory: str, tag: str) -> dict[str, Any]:
        state = json.loads(Path(directory, tag, "count.json").read_text())
        self._progress.step = state["step"]
        return dict(state["client_state"])

    def position(self) -> dict[str, Any]:
        return {"batch": self._progress.step}

    def restore_position(self, position: dict[str, Any]) -> None:
        self._progress.step = position["batch"]

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


def let_escape(directory: str) -> None:
    """Start what leaves our process tree (escapes.py beside us), and go on when all of it has left."""
    import escapes

    argv = [sys.executable, "-S", "-E", escapes.__file__, directory]
    subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not all(Path(directory, "escapes", way).exists() for way in escapes.WAYS):
        time.sleep(STEP_S)


def main(run: str, directory: str, escapes_at: str = "") -> None:
    if escapes_at == "before":
        let_escape(directory)
    progress = Progress(threading.get_ident())
    began_ns = max(1, time.monotonic_ns() - UNSAVED_NS)
    progress.attempt_step = 1  # It has trained since: the first step that the governor sees is not its first.
    hello = {
        "rank": 0,
        "local_rank": 0,
        "world_size": 1,
        "run": run,
        "attempt": "1",
        "tokens_per_step": TOKENS_PER_STEP,
        "resume_argv": [sys.executable, *sys.argv],
        "checkpoint_dir": directory,
        "last_good": {"step": 0, "path": f"{directory}/cg_0", "mono_ns": began_ns},
        "started_mono_ns": began_ns,
    }
    watcher = Watcher(hello, progress, CountSaver(directory, progress))
    watcher.start()
    if escapes_at == "after":
        let_escape(directory)
    progress.set_phase("train")
    watcher.phase_changed()
    print(f"pid {os.getpid()}", flush=True)
    held = False
    while True:
        ready, _, _ = select.select([sys.stdin], [], [], STEP_S)
        if ready:
            line = sys.stdin.readline().strip()
            if not line:
                return
            held = line == "hold"
            print(line, flush=True)
        if not held:
            step(watcher, progress)


def step(watcher: Watcher, progress: Progress) -> None:
    progress.in_step = True
    progress.bump("forward")
    progress.bump("backward")
    progress.step += 1
    progress.attempt_step += 1
    progress.bump("step")
    progress.in_step = False
    watcher.step_frame(
        {
            "step": progress.step,
            "attempt_step": progress.attempt_step,
            "tokens": TOKENS_PER_STEP,
            "tokens_total": progress.step * TOKENS_PER_STEP,
            "loss": 2.0 + 1.0 / progress.step,
            "loss_expected": True,
            "applied": True,
            "step_s": STEP_S,
            "progress_seq": progress.progress_seq,
        }
    )
    watcher.at_boundary(progress.step)


if __name__ == "__main__":
    main(*sys.argv[1:])
