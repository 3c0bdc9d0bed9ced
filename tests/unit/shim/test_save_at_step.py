"""A rank that saves for a halt and stands still, in an interpreter of its own: it is ended there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trainer_shim.saving import save_at_step

TRAINER = """
import os, signal, sys, threading, time
from trainer_shim.governor_socket import GovernorSocket
from trainer_shim.progress import Progress
from trainer_shim.saving.save_at_step import SaveAtStep
from trainer_shim.saving.step_gate import Order, StepGate

signal.signal(signal.SIGTERM, lambda number, frame: print("it waits for a next batch", flush=True))  # As Lightning.

class Saver:
    directory = sys.argv[1]
    is_asked = False

    def position(self):
        return {}

    def save(self, directory, tag, client_state):
        if "save" in sys.argv:
            os.kill(os.getpid(), signal.SIGTERM)

    def pending(self):
        # Another thread writes it: the grace ends while it does.
        if "pending" in sys.argv and not self.is_asked:
            self.is_asked = True
            os.kill(os.getpid(), signal.SIGTERM)
            return True
        print("written", flush=True)
        return False

gate = StepGate(0)
saving = SaveAtStep(0, gate, Progress(threading.get_ident()), Saver(), GovernorSocket(["/nonexistent"], 0, dict))
deadline_ns = time.monotonic_ns() + 3_600_000_000_000
gate.promise(2, deadline_ns)
gate.aim(1)
gate.order(Order(True, "cg_1", "good", True, 86, deadline_ns, "drill", 1))
gate.reach(1)

def settle():
    while gate.result is None:
        gate.nap(1)
    print("durable", flush=True)
    gate.settle()

threading.Thread(target=settle, daemon=True).start()
gate.nap = lambda seconds, nap=gate.nap: nap(min(seconds, 0.01))
if "framework" in sys.argv:
    assert saving.hold(1, True)
    os.kill(os.getpid(), signal.SIGTERM)
    print("written", flush=True)
    saving.delegate_saved(sys.argv[1], None)
saving.hold(1, False)
"""


@pytest.mark.parametrize("when", ["save", "pending", "framework"])
def test_a_sigterm_while_it_saves_ends_it_as_soon_as_that_is_durable(tmp_path: Path, when: str) -> None:
    """The governor sends it once. A framework that takes it for a wish would idle to the SIGKILL."""
    done = subprocess.run(
        [sys.executable, "-c", TRAINER, str(tmp_path), when],
        capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "written\ndurable\n"), done.stderr


class OfRanks(BaseException):
    """As torch's CheckpointException: by rank what was raised there, and its traceback."""

    def __init__(self) -> None:
        super().__init__("ranks:dict_keys([1])")
        self.failures = {1: (OSError(28, "No space left on device"), "a traceback")}


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OfRanks(), "OfRanks of rank 1: OSError: [Errno 28] No space left on device"),
        (ValueError("odd"), "ValueError: odd"),
    ],
)
def test_what_a_save_of_many_ranks_raises_is_told_by_the_first_that_failed(error: BaseException, told: str) -> None:
    assert save_at_step._worded(error) == told


def test_a_disk_is_said_to_be_full_only_where_it_is(tmp_path: Path) -> None:
    assert save_at_step._if_full(str(tmp_path)) == ""
    assert save_at_step._if_full("/proc") == "", "it has no blocks at all"
    script = f"from trainer_shim.saving import save_at_step; print(save_at_step._if_full({str(tmp_path)!r}))"
    command = f'mount -t tmpfs -o size=64k none {tmp_path} && exec {sys.executable} -c "$SCRIPT"'
    environ = {**os.environ, "SCRIPT": script, "PYTHONPATH": str(Path(__file__).parents[3])}
    argv = ["unshare", "--mount", "--map-root-user", "sh", "-c", command]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    if done.returncode and ("unshare" in done.stderr or "mount" in done.stderr):
        pytest.skip("needs permission to mount a tmpfs in a namespace: " + done.stderr.strip())
    assert done.stdout == "the disk is full: \n", done.stderr
