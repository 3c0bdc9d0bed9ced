"""A rank that saves for a halt and stands still, in an interpreter of its own: it is ended there."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.shim.ranks import Rank
from trainer_shim.governor_socket import GovernorSocket
from trainer_shim.progress import Progress
from trainer_shim.saving import checkpoint, rng, save_at_step
from trainer_shim.saving.save_at_step import GONE_NS, OVERDUE_NS, SaveAtStep
from trainer_shim.saving.step_gate import Order, StepGate
from trainer_shim.saving.store import MemoryStore

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

    def contents(self):
        return {}

    def harmed(self):
        return None

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


def next_save_after_one_failed(rank: Rank, made_before: bool = False, is_committed: bool = False) -> set[str]:
    """Step 7 fails for this rank, and step 8 is tried: return whose directories there are then."""
    assert rank.saver.directory is not None
    seven = Path(rank.saver.directory) / "cg_7"
    if made_before:
        seven.mkdir()
    assert rank.save_at_step.try_disk(7, "good", {}) is None
    if is_committed:
        (seven / checkpoint.MANIFEST).write_text("{}")
    rank.save_at_step.note_end(has_failed=True)
    assert rank.save_at_step.try_disk(8, "good", {}) is None
    return {path.name for path in seven.parent.iterdir()}


def test_what_this_rank_has_begun_and_what_failed_goes(tmp_path: Path) -> None:
    assert next_save_after_one_failed(Rank(0, MemoryStore(), tmp_path, 0.0)) == {"cg_8"}


@pytest.mark.parametrize(("step", "left"), [(7, {"cg_7"}), (8, set[str]())])
def test_what_failed_goes_once_every_rank_has_left_it(tmp_path: Path, step: int, left: set[str]) -> None:
    """What the script saves next needs the room. A frame of step 7 may come late, while others still write."""
    rank = Rank(0, MemoryStore(), tmp_path, 0.0)
    rank.progress.step = 7
    assert rank.save_at_step.try_disk(7, "good", {}) is None
    rank.save_at_step.note_end(has_failed=True)
    rank.save_at_step.step_passed(step)
    assert {path.name for path in Path(str(rank.saver.directory)).iterdir()} == left


@pytest.mark.parametrize("is_alone", [True, False])
def test_what_a_process_alone_has_failed_to_save_goes_before_it_goes_on(tmp_path: Path, is_alone: bool) -> None:
    rank = Rank(0, MemoryStore(), tmp_path, 0.0)
    rank.saver.full = True
    governor = GovernorSocket(["/nonexistent"], 0, dict)
    saving = SaveAtStep(0, rank.gate, rank.progress, rank.saver, governor, is_alone=is_alone)
    assert saving.try_disk(1, "good", {}) is None
    rank.gate.promise(2, time.monotonic_ns() + 10**12)
    rank.gate.aim(1)
    rank.gate.order(Order(True, "cg_1", "good", False, 86, time.monotonic_ns() + 10**12, "own.1", 1))
    rank.gate.reach(1)
    saving.hold(1, False)
    assert rank.gate.result is not None
    assert (rank.gate.result.error is None, (tmp_path / "cg_1").exists()) == (False, not is_alone)


def test_what_was_committed_stays_whatever_this_rank_was_told_of_it(tmp_path: Path) -> None:
    rank = Rank(0, MemoryStore(), tmp_path, 0.0)
    assert next_save_after_one_failed(rank, is_committed=True) == {"cg_7", "cg_8"}


def test_what_another_has_made_is_not_this_ranks_to_remove(tmp_path: Path) -> None:
    """A directory of that step is there already: an earlier attempt's, or a save of the script's own."""
    rank = Rank(0, MemoryStore(), tmp_path, 0.0)
    assert next_save_after_one_failed(rank, made_before=True) == {"cg_7", "cg_8"}


def test_what_is_still_being_written_is_not_removed_from_below_its_writer(tmp_path: Path) -> None:
    rank = Rank(0, MemoryStore(), tmp_path, 0.0)
    rank.saver.is_pending = True
    assert next_save_after_one_failed(rank) == {"cg_7", "cg_8"}


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


def saving_nothing(gate: StepGate, progress: Progress) -> tuple[SaveAtStep, GovernorSocket]:
    governor = GovernorSocket(["/nonexistent"], 0, dict)
    return SaveAtStep(0, gate, progress, None, governor), governor


def test_the_generators_are_those_of_the_end_of_the_step_that_is_saved_or_of_now() -> None:
    progress = Progress(0)
    saving, _ = saving_nothing(StepGate(0), progress)
    random.seed(3)
    progress.step = 5
    saving.keep_generators(5)
    kept = rng.capture()
    random.random()  # A loader that has begun the next step.
    assert saving._rank_state()["rng"] == kept != rng.capture()
    progress.step = 6
    assert saving._rank_state()["rng"] == rng.capture()


HOUR_NS = 3_600 * 10**9


@pytest.mark.parametrize(
    ("lost_ns", "due_ns", "parked_ns", "leaves"),
    [
        (HOUR_NS, -HOUR_NS, GONE_NS, True),
        (HOUR_NS, -HOUR_NS, 0, False),  # It has lost the governor long before it was parked.
        (0, -HOUR_NS, HOUR_NS, False),
        (None, -HOUR_NS, HOUR_NS, False),
        (None, OVERDUE_NS + 1, HOUR_NS, True),
        (None, HOUR_NS, 0, False),  # The order came late.
    ],
)
def test_a_parked_rank_leaves_a_time_after_it_was_parked_and_when_the_round_is_settled(
    lost_ns: int | None, due_ns: int, parked_ns: int, leaves: bool
) -> None:
    gate, now_ns = StepGate(0), time.monotonic_ns()
    saving, governor = saving_nothing(gate, Progress(0))
    governor.lost_since_ns = None if lost_ns is None else now_ns - lost_ns
    order = Order(False, "", "good", True, 86, now_ns - due_ns, "i", 1)
    assert not saving._may_leave(order, now_ns - parked_ns - 1), "other ranks may wait for it yet"
    gate.settle()
    assert saving._may_leave(order, now_ns - parked_ns - 1) is leaves


def test_what_was_tried_before_an_evaluation_is_not_what_is_saved_behind_it(tmp_path: Path) -> None:
    """The generators are others there: what was staged is of before."""
    rank = Rank(0, MemoryStore(), tmp_path, 0.0)
    rank.gate.promise(1, time.monotonic_ns())
    assert rank.save_at_step.try_disk(1, "good", {}) is None
    assert len(list(tmp_path.rglob("*.costgov-tmp"))) == 1
    rank.gate.order(Order(True, "cg_1", "good", False, 86, time.monotonic_ns() + HOUR_NS, "i", 1, True))
    assert rank.gate.reach(1)
    rank.save_at_step.hold(1, False, evaluates=True)
    assert (rank.saver.steps, list(tmp_path.rglob("*.costgov-tmp"))) == ([], [])
    rank.save_at_step.hold(1, False)
    assert rank.saver.steps == [1]
