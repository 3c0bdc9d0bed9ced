"""Eight ranks as threads over one store: the whole agreement, from a request on one rank to one manifest."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from tests.unit.shim.ranks import RANKS, SAFETY_S, OneFileSaver, Rank, start
from tests.unit.shim.test_checkpoint import whole
from trainer_shim.governor_socket import GovernorSocket
from trainer_shim.progress import Progress
from trainer_shim.saving import checkpoint, rng
from trainer_shim.saving.open_requests import OWN
from trainer_shim.saving.save_at_step import PENDING_NS, SaveAtStep
from trainer_shim.saving.step_gate import Order, StepGate
from trainer_shim.saving.store import MemoryStore, StoreLostError
from trainer_shim.wire import REASONS_OF_VALUES


def test_what_the_next_step_has_drawn_before_its_boundary_it_draws_again(tmp_path: Path) -> None:
    """A loop that draws its batches itself (nanoGPT's) has drawn the next one when its model is called."""
    rank = Rank(0, MemoryStore(), tmp_path, 0.0)
    rank.gate.promise(1, time.monotonic_ns())
    rank.progress.step = 1
    random.seed(11)
    assert rank.gate.reach(1)
    rank.save_at_step.keep_generators(1)
    drawn = random.random()
    rank.gate.order(Order(True, "cg_1", "good", False, 86, time.monotonic_ns(), "own:1.1", 1))
    rank.save_at_step.hold(1, False)
    state = checkpoint.read_rank_file(str(tmp_path / "cg_1"), 0)
    assert state is not None
    rng.restore(state["rng"])
    assert random.random() == drawn


def test_round_after_round_every_rank_saves_the_same_step(ranks: list[Rank], tmp_path: Path) -> None:
    start(ranks)
    chosen = random.Random(7)
    for number in range(6):
        incident = str(number)
        ranks[chosen.randrange(RANKS)].ask(incident)
        endings = [rank.ack(incident, "saved", "failed", "aborted") for rank in ranks]
        assert [ending["what"] for ending in endings] == ["saved"] * RANKS, endings
        assert len({ending["step"] for ending in endings}) == 1
        assert len({ending["checkpoint"]["path"] for ending in endings}) == 1
        assert endings[0]["checkpoint"]["files"] == 2 * RANKS
        assert checkpoint.verify_manifest(endings[0]["checkpoint"]["path"], hashes=True) == []
    assert all(rank.saver.steps == ranks[0].saver.steps for rank in ranks)
    assert whole(tmp_path)[0]["step"] == ranks[0].saver.steps[-1]


def test_what_the_script_asks_for_is_not_saved_while_a_rank_has_a_trained_parameter_that_is_not_finite(
    ranks: list[Rank], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that keeps its newest checkpoint would delete the last good one for it."""
    start(ranks)
    for rank in ranks:
        rank.saver.harm = ""
    ranks[0].ask(f"{OWN}1.1")
    good = ranks[5].ack(f"{OWN}1.1", "saved")["checkpoint"]
    assert (good["kind"], good["trained_finite"]) == ("good", True)
    ranks[5].saver.harm = "experts.7.weight"
    ranks[0].ask(f"{OWN}2.2")
    for rank in ranks:
        assert rank.ack(f"{OWN}2.2", "failed")["reason"] == "rank 5: parameter experts.7.weight is not finite"
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [Path(good["path"]).name]
    assert "parameter experts.7.weight is not finite: nothing is saved" in capsys.readouterr().err
    ranks[5].saver.harm = ""
    ranks[0].ask(f"{OWN}3.3")
    assert ranks[0].ack(f"{OWN}3.3", "saved", "failed")["what"] == "saved"


def test_what_a_save_that_failed_has_left_goes_with_the_next_one(ranks: list[Rank], tmp_path: Path) -> None:
    """A half-written checkpoint on a full disk left no room for any later one."""
    ranks[3].saver.full = True
    start(ranks)
    ranks[0].ask(f"{OWN}1.1")
    for rank in ranks:
        assert "No space left" in rank.ack(f"{OWN}1.1", "failed")["reason"]
    ranks[3].saver.full = False
    ranks[0].ask(f"{OWN}2.2")
    saved = ranks[0].ack(f"{OWN}2.2", "saved")["checkpoint"]["path"]
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [Path(saved).name]


def test_what_the_script_asks_for_and_a_disk_does_not_take_is_said_where_it_runs(
    ranks: list[Rank], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """26 checkpoints in a row failed on a full disk, and the first word of it was the halt's."""
    (tmp_path / "full").write_text("")
    ranks[3].saver.directory = str(tmp_path / "full")
    start(ranks)
    ranks[0].ask(f"{OWN}1.1")
    reason = ranks[0].ack(f"{OWN}1.1", "failed", "aborted")["reason"]
    assert reason.startswith(f"rank 3: cannot write to {tmp_path}/full/cg_")
    assert capsys.readouterr().err == f"costgov: checkpoint(): {reason}: nothing is saved\n"
    for again in (f"{OWN}2.2", "i"):
        ranks[0].ask(again)
        ranks[0].ack(again, "failed", "aborted")
        assert capsys.readouterr().err == "", "at another step; and the report of a halt says it"


def test_what_a_governor_asks_for_is_suspect_where_a_rank_has_a_trained_parameter_that_is_not_finite(
    ranks: list[Rank],
) -> None:
    start(ranks)
    ranks[5].saver.harm = "experts.7.weight"
    ranks[2].ask("i")
    for rank in ranks:
        saved = rank.ack("i", "saved", "failed")["checkpoint"]
        assert (saved["kind"], saved["trained_finite"]) == ("suspect", False)
        assert saved["path"].endswith("_suspect")


def test_where_one_rank_cannot_look_at_its_weights_nobody_says_that_all_are_finite(ranks: list[Rank]) -> None:
    start(ranks)
    for rank in ranks[1:]:
        rank.saver.harm = ""
    ranks[2].ask("i")
    saved = ranks[0].ack("i", "saved", "failed")["checkpoint"]
    assert (saved["kind"], saved["trained_finite"]) == ("good", False)


def test_a_checkpoint_with_nothing_in_it_is_not_saved_and_says_why(ranks: list[Rank], tmp_path: Path) -> None:
    """save_fn() has left the writing to somebody of whom nobody knows."""
    start(ranks)
    for rank in ranks:
        rank.saver.writes = False
    ranks[2].ask("i")
    for rank in ranks:
        assert "or return the future of what writes: nothing is in" in rank.ack("i", "failed", "saved")["reason"]
    assert whole(tmp_path) == []


def test_what_is_written_when_the_loop_ends_is_saved(tmp_path: Path) -> None:
    """Scripts wait for their last asynchronous save before they end."""
    rank = Rank(0, MemoryStore(), tmp_path, 0.0)
    rank.saver.is_pending = True
    rank.gate.promise(1, time.monotonic_ns())
    assert rank.gate.reach(1)
    rank.gate.order(Order(True, "cg_1", "good", False, 86, time.monotonic_ns(), "own:1.1", 1))
    rank.save_at_step.hold(1, False)
    assert rank.gate.result is None
    rank.saver.is_pending = False
    rank.save_at_step.finish()
    assert rank.gate.result == (str(tmp_path / "cg_1"), None)


@pytest.mark.parametrize(
    ("reason", "harm", "kind"),
    [
        *((reason, "", "good") for reason in REASONS_OF_VALUES),
        ("loss_nan", None, "suspect"),  # This loop cannot look at its weights.
        ("loss_climbs", "", "suspect"),  # It may have begun to before the save.
    ],
)
def test_a_nan_while_a_good_checkpoint_is_written_makes_it_no_suspect_one(
    ranks: list[Rank], reason: str, harm: str | None, kind: str
) -> None:
    """A save behind the training thread takes minutes: all that was trained since the one before it was lost."""
    for rank in ranks:
        rank.saver.is_pending, rank.saver.harm = True, harm
    start(ranks)
    ranks[0].ask(f"{OWN}1.1")
    for rank in ranks:
        rank.ack(f"{OWN}1.1", "saving")
        while not rank.saver.steps:
            rank.halt.wait(0.001)
    for rank in ranks:
        rank.ask("nan-1", "suspect", reason=reason)
    for rank in ranks:
        rank.saver.is_pending = False
    saved = ranks[0].ack("nan-1", "saved", "failed")
    assert (saved["checkpoint"]["kind"], saved["step"]) == (kind, ranks[0].saver.steps[0])


def test_a_checkpoint_that_resume_would_refuse_is_not_said_to_be_saved(ranks: list[Rank], tmp_path: Path) -> None:
    """save_fn has begun threads that it did not return, and all that is there is a small file."""
    for rank in ranks:
        rank.saver.says = {"parameters": 2_561, "bytes_min": 5_100_000}
    start(ranks)
    ranks[0].ask(f"{OWN}1.1")
    assert "2,561 parameters" in ranks[0].ack(f"{OWN}1.1", "saved", "failed")["reason"]
    assert not list(tmp_path.rglob(checkpoint.MANIFEST))


def test_what_never_gets_written_fails_and_the_next_save_is_another(tmp_path: Path) -> None:
    """Else no save would ever end, nor a halt's begin."""
    rank = Rank(0, MemoryStore(), tmp_path, 0.0)
    rank.saver.is_pending = True
    due_ns = time.monotonic_ns() - PENDING_NS
    for step, deadline_ns in ((1, due_ns), (2, time.monotonic_ns())):
        rank.gate.promise(0, deadline_ns)
        rank.gate.order(Order(True, f"cg_{step}", "good", False, 86, deadline_ns, f"own:{step}.1", step))
        rank.gate.reach(step)
        rank.save_at_step.hold(step, False)
        rank.saver.is_pending = False
        assert rank.gate.result is not None
        assert ("has not ended 600 s after" in (rank.gate.result.error or "")) == (step == 1)


def test_a_save_that_cannot_begin_leaves_no_empty_directory(tmp_path: Path) -> None:
    rank = 10**250  # Its file has too long a name.
    saver, governor = OneFileSaver(tmp_path, rank), GovernorSocket(["/nonexistent/costgov"], rank, dict)
    saving = SaveAtStep(rank, StepGate(0), Progress(threading.get_ident()), saver, governor)
    assert saving.try_disk(7, "good", {}) == f"cannot write to {tmp_path}/cg_7: File name too long"
    assert list(tmp_path.iterdir()) == []


def test_an_aborted_round_leaves_an_older_checkpoint_of_that_step_whole(ranks: list[Rank], tmp_path: Path) -> None:
    """A run that went back saves steps again that an earlier attempt had saved."""
    old = tmp_path / "cg_1"
    old.mkdir()
    (old / "weights.bin").write_bytes(bytes(10))
    parts = [checkpoint.Part("weights.bin", 10, None)]
    for rank in range(RANKS):
        checkpoint.write_rank_file(str(old), rank, {"old": "x" * 100_000})
        size_bytes = (old / checkpoint.rank_file(rank)).stat().st_size
        parts.append(checkpoint.Part(checkpoint.rank_file(rank), size_bytes, None))
    checkpoint.commit(str(old), parts, {"step": 1, "kind": "good", "world_size": RANKS}, move_latest=True)
    start(ranks, training=range(0))
    ranks[3].ask("i")
    for rank in ranks[1:]:
        rank.ack("i", "agreed")
        rank.thread.start()
    began = time.monotonic()
    while len(list(old.glob("*.costgov-tmp"))) < RANKS - 1:  # All but rank 0, which never comes, try the disk.
        assert time.monotonic() < began + SAFETY_S, list(old.iterdir())
        ranks[0].halt.wait(0.001)
    ranks[0].ask("at once", grace_s=0.0)
    for rank in ranks:
        assert "time ran out before step" in rank.ack("i", "aborted")["reason"]
    assert checkpoint.verify_manifest(str(old)) == []
    assert not [path for path in old.iterdir() if path.suffix == ".costgov-tmp"]


def test_every_rank_asked_at_once_by_another_incident_is_one_save(ranks: list[Rank]) -> None:
    start(ranks)
    for number, rank in enumerate(ranks):
        rank.ask(str(number), "suspect" if number == RANKS - 1 else "good")
    with ranks[0].changed:
        assert ranks[0].changed.wait_for(lambda: any(a["what"] == "saved" for a in ranks[0].acks), SAFETY_S)
    winner = next(a for a in ranks[0].acks if a["what"] == "saved")
    for number, rank in enumerate(ranks):
        ending = rank.ack(winner["incident"], "saved")
        assert ending["step"] == winner["step"]
        assert ending["checkpoint"]["kind"] == winner["checkpoint"]["kind"]
        if str(number) != winner["incident"]:
            # Merged into the winner, or, where its request came after the end, a round of its own.
            rank.ack(str(number), "merged", "saved")


class FlickeringStore(MemoryStore):
    """One rank's connection breaks once, while nobody is asked anything."""

    def __init__(self, shared: MemoryStore) -> None:
        self._shared = shared
        self.broke = threading.Event()

    def get(self, key: str) -> str | None:
        if not self.broke.is_set():
            self.broke.set()
            raise StoreLostError("connection reset")
        return self._shared.get(key)

    def set(self, key: str, value: str) -> None:
        self._shared.set(key, value)

    def add(self, key: str, amount: int) -> int:
        return self._shared.add(key, amount)

    def settle(self, key: str, value: str) -> str:
        return self._shared.settle(key, value)


def test_a_rank_that_lost_the_store_between_two_rounds_is_found_in_the_next(tmp_path: Path) -> None:
    shared = MemoryStore()
    flickering = FlickeringStore(shared)
    ranks = [Rank(rank, flickering if rank == 2 else shared, tmp_path, 0.001) for rank in range(RANKS)]
    ranks[2].agreement.reconnect_s = 0.2  # Long enough for the others to begin without it.
    start(ranks)
    assert flickering.broke.wait(SAFETY_S)
    ranks[0].ask("i")
    assert {rank.ack("i", "saved", "failed", "aborted")["what"] for rank in ranks} == {"saved"}
    for rank in ranks:
        rank.halt.set()
        rank.agreement.stop(SAFETY_S)
        rank.thread.join(SAFETY_S)


class LosableStore(MemoryStore):
    """The process that hosts the store can go away."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = False

    def get(self, key: str) -> str | None:
        if self.lost:
            raise StoreLostError("connection reset")
        return super().get(key)


def test_a_lost_store_lets_everybody_train_on(tmp_path: Path) -> None:
    store = LosableStore()
    rank = Rank(0, store, tmp_path, 0.001)
    start([rank], range(1))
    # Seven ranks never come: this one holds for them when the store goes.
    rank.ask("i")
    rank.ack("i", "received")
    while not rank.gate.raised:
        rank.halt.wait(0.001)
    store.lost = True
    assert "store is gone" in rank.ack("i", "failed")["reason"]
    stood_at = rank.gate.step
    while rank.gate.step < stood_at + 5:
        rank.halt.wait(0.001)
    rank.halt.set()
    rank.agreement.stop(SAFETY_S)
    rank.thread.join(SAFETY_S)
