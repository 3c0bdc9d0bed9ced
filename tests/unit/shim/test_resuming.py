"""Which checkpoint several ranks continue from."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.unit.shim.weights_files import COUNT, NAN, ONE, dcp_metadata, distcp, safetensors, torch_zip
from trainer_shim.interfaces import Resumed
from trainer_shim.saving import checkpoint, rng
from trainer_shim.saving.manifest import Entry
from trainer_shim.saving.resuming import CANDIDATES_MAX, harm_of, resume_from
from trainer_shim.saving.store import MemoryStore
from trainer_shim.saving.weights_sample import FILES_MAX

FAR_NS = time.monotonic_ns() + 3_600 * 10**9
RANKS = 2


class Loader:
    """interfaces.Saver that only loads."""

    directory: str | None = None
    loaded_from: str | None = None
    cannot_load: str | None = None

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.position_restored: Any = None
        self.path_restored: str | None = None

    def load(self, directory: str, tag: str) -> dict[str, Any]:
        self.loaded.append(tag)
        random.random()  # Engines draw numbers while they load: generators come after.
        return {}

    def homes(self) -> list[str]:
        return [] if self.directory is None else [self.directory]

    def restore_position(self, position: dict[str, Any]) -> None:
        self.path_restored = position["path"]
        self.position_restored = {name: value for name, value in position.items() if name != "path"}

    def save(self, directory: str, tag: str, client_state: dict[str, Any]) -> None:
        raise NotImplementedError

    def pending(self) -> bool:
        raise NotImplementedError

    def position(self) -> dict[str, Any]:
        raise NotImplementedError

    def contents(self) -> dict[str, Any]:
        raise NotImplementedError

    def look_at_start(self) -> None:
        raise NotImplementedError

    def harmed(self) -> str | None:
        raise NotImplementedError

    def join_ranks(self) -> None:
        raise NotImplementedError


# As DeepSpeed names the partitions of ZeRO-3, which have all that it saves of the weights, and as DCP names its files.
SHARDS = ("zero_pp_rank_%d_mp_rank_00_optim_states.pt", "__%d_0.distcp")


def write(
    directory: Path, step: int, kind: str = "good", shards: dict[str, bytes] | None = None, ranks: int = RANKS
) -> Path:
    path = directory / checkpoint.tag_of(step, kind)
    path.mkdir(parents=True)
    (path / "shard").write_bytes(bytes(10))
    for name, raw in (shards or {}).items():
        (torch_zip if name.endswith(".pt") else distcp)(path / name, "F32", raw)
        if name.startswith("zero_pp_"):  # Beside each stands one with the names of the parameters.
            torch_zip(path / name.replace("optim", "model"), "F32")
    places = {one.name: [(0, one.stat().st_size)] for one in path.glob("*.distcp")}
    if places:
        (path / ".metadata").write_bytes(dcp_metadata(places))
    for rank in range(ranks):
        state = {"v": 1, "rng": rng.capture(), "position": {"rank": rank, "step": step}}
        checkpoint.write_rank_file(str(path), rank, state)
    parts = checkpoint.secure(str(path), 0, 1, 0, 1, FAR_NS)
    facts = {"step": step, "tokens_total": step * 100, "kind": kind, "created_unix_s": time.time() - 50}
    facts["world_size"] = ranks
    checkpoint.commit(str(path), parts, facts, move_latest=True)
    return path


T = TypeVar("T")


def on_ranks(count: int, call: Callable[[int], T]) -> list[T]:
    """What `call(rank)` returns for each rank, each on a thread of its own: they wait for one another.

    TimeoutError where one does not come back. Nothing waits for that one.
    """
    ends: list[Future[T]] = [Future() for _ in range(count)]

    def run(rank: int) -> None:
        try:
            ends[rank].set_result(call(rank))
        except Exception as error:  # noqa: BLE001  Whoever waits raises it.
            ends[rank].set_exception(error)

    for rank in range(count):
        threading.Thread(target=run, args=(rank,), daemon=True).start()
    return [end.result(timeout=60) for end in ends]


def resume_all(directories: list[Path]) -> tuple[list[Loader], list[Resumed | None]]:
    """Each rank has its own view of the directory."""
    store, count, loaders = MemoryStore(), len(directories), [Loader() for _ in directories]
    return loaders, on_ranks(count, lambda rank: resume_from(loaders[rank], str(directories[rank]), rank, store, count))


def test_all_ranks_load_the_newest_good_one_and_get_their_own_state_back(tmp_path: Path) -> None:
    for step in (5, 9):
        write(tmp_path, step)
    write(tmp_path, 12, kind="suspect")
    loaders, results = resume_all([tmp_path] * RANKS)
    for rank, result in enumerate(results):
        assert result is not None
        assert (result.step, result.tokens_total, result.path) == (9, 900, str(tmp_path / "cg_9"))
        assert 50 <= result.age_s < 1_000
        assert loaders[rank].loaded == ["cg_9"]
        assert loaders[rank].position_restored == {"rank": rank, "step": 9} == result.position
        assert loaders[rank].path_restored == result.path


@pytest.mark.parametrize("saved_by", [1, 2, 4])
def test_with_another_number_of_ranks_none_goes_on_in_the_data(
    tmp_path: Path, saved_by: int, capfd: pytest.CaptureFixture
) -> None:
    path = write(tmp_path, 9, ranks=saved_by)
    loaders, _ = resume_all([tmp_path] * RANKS)
    known = {0: {"rank": 0, "step": 9}, 1: {"rank": 1, "step": 9}}
    said = capfd.readouterr().err
    if saved_by == RANKS:
        assert [one.position_restored for one in loaders] == [known[0], known[1]]
        assert said == ""
    else:
        restored = [{**known[rank], "loaders": []} if rank < saved_by else None for rank in range(RANKS)]
        assert [one.position_restored for one in loaders] == restored
        assert said.count("costgov:") == 1
        assert f"{path} was saved by {saved_by} ranks, and these are 2: wrapped loaders begin anew" in said


def test_a_shard_torn_on_one_node_makes_all_take_the_older_one(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    for node in ("a", "b"):
        for step in (5, 9):
            write(tmp_path / node, step)
    (tmp_path / "b" / "cg_9" / "shard").write_bytes(b"")
    loaders, _ = resume_all([tmp_path / "a", tmp_path / "b"])
    assert [loader.loaded for loader in loaders] == [["cg_5"], ["cg_5"]]


@pytest.mark.parametrize("name", SHARDS)
def test_one_whose_shard_on_any_rank_is_not_finite_is_passed_over_by_all(
    tmp_path: Path, name: str, capfd: pytest.CaptureFixture
) -> None:
    """A loop that hides its loss: nobody saw the NaN, and the checkpoint was saved as good."""
    whole = {name % shard: ONE["F32"] * COUNT for shard in range(8)}
    write(tmp_path, 5, shards=whole)
    for harmed in range(8):  # Whichever rank it is that looks into it.
        step = 9 + harmed
        write(tmp_path, step, shards={**whole, name % harmed: NAN["F32"] * COUNT})
        loaders, results = resume_all([tmp_path] * RANKS)
        assert [loader.loaded for loader in loaders] == [["cg_5"], ["cg_5"]]
        assert [result.step for result in results if result] == [5, 5]
        assert f"passing over {tmp_path}/cg_{step}: not finite: {name % harmed}" in capfd.readouterr().err
        shutil.rmtree(tmp_path / f"cg_{step}")


def write_apart(directory: Path, rank: int, step: int, shards: dict[str, bytes]) -> None:
    """What the only rank of a node leaves where each node has a directory of its own."""
    path = directory / checkpoint.tag_of(step, "good")
    path.mkdir(parents=True)
    for name, raw in shards.items():
        torch_zip(path / name, "F32", raw)
    checkpoint.write_rank_file(str(path), rank, {"v": 1, "rng": rng.capture(), "position": {}})
    parts = checkpoint.secure(str(path), rank, RANKS, 0, 1, FAR_NS)
    assert {part.node for part in parts} == {socket.gethostname()}
    facts = {"step": step, "kind": "good", "created_unix_s": time.time()}
    checkpoint.commit(str(path), parts, facts, move_latest=True)


@pytest.mark.parametrize("harmed", range(RANKS))
def test_where_each_node_has_a_directory_of_its_own_its_rank_looks_into_all_of_it(
    tmp_path: Path, harmed: int, capfd: pytest.CaptureFixture
) -> None:
    names = {checkpoint.owner(name, RANKS): name for name in (SHARDS[0] % shard for shard in range(8))}
    assert names.keys() == set(range(RANKS)), "one of each rank's share, were the directory shared"
    whole = dict.fromkeys(names.values(), ONE["F32"] * COUNT)
    for rank in range(RANKS):
        write_apart(tmp_path / str(rank), rank, 5, whole)
    for step, name in enumerate(names.values(), 9):
        for rank in range(RANKS):
            broken = {name: NAN["F32"] * COUNT} if rank == harmed else {}
            write_apart(tmp_path / str(rank), rank, step, {**whole, **broken})
        loaders, _ = resume_all([tmp_path / str(rank) for rank in range(RANKS)])
        assert [loader.loaded for loader in loaders] == [["cg_5"], ["cg_5"]], name


def test_where_nothing_older_is_finite_the_newest_is_taken(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    """A buffer may be infinite by its meaning. To begin anew for it would lose the run."""
    for step in (5, 9):
        write(tmp_path, step, shards={"state.pt": NAN["F32"] * COUNT})
    loaders, _ = resume_all([tmp_path] * RANKS)
    assert [loader.loaded for loader in loaders] == [["cg_9"], ["cg_9"]]
    said = capfd.readouterr().err
    assert said.count("passing over") == 2
    assert f"going on from {tmp_path}/cg_9 all the same" in said


def write_masked(directory: Path, step: int, **broken: bytes) -> None:
    """With a buffer that is not finite, as no loss needs it, and weights some of which may be `broken`."""
    path = write(directory, step)
    raws = {"a": ONE["F32"] * COUNT, "b": ONE["F32"] * COUNT, "mask": NAN["F32"] * COUNT, **broken}
    safetensors(path / "model.safetensors", {name: ("F32", raw) for name, raw in raws.items()})
    parts = checkpoint.secure(str(path), 0, 1, 0, 1, FAR_NS)
    facts = {"step": step, "kind": "good", "created_unix_s": time.time()}
    checkpoint.commit(str(path), parts, facts, move_latest=True)


@pytest.mark.parametrize("broken", [["a"], ["a", "b"]])
def test_of_none_that_is_finite_the_newest_is_taken_that_is_like_the_oldest(tmp_path: Path, broken: list[str]) -> None:
    """As the governor has it: training went on over the buffer, and the weights broke at the last save."""
    for step in (5, 7):
        write_masked(tmp_path, step)
    write_masked(tmp_path, 9, **dict.fromkeys(broken, NAN["F32"] * COUNT))
    loaders, _ = resume_all([tmp_path] * RANKS)
    assert [loader.loaded for loader in loaders] == [["cg_7"], ["cg_7"]]


def test_of_many_that_are_alike_the_newest_is_taken_whatever_is_older(tmp_path: Path) -> None:
    for step in range(1, CANDIDATES_MAX + 2):
        write_masked(tmp_path, step)
    loader = Loader()
    assert resume_from(loader, str(tmp_path), 0, MemoryStore(), 1) is not None
    assert loader.loaded == [f"cg_{CANDIDATES_MAX + 1}"]


def cut(directory: Path, step: int, shards: dict[str, bytes]) -> None:
    """The last shard ends too early, and the manifest has its size as it is: the disk was full."""
    path = write(directory, step, shards=shards)
    shard = path / list(shards)[-1]
    os.truncate(shard, shard.stat().st_size // 2)
    parts = checkpoint.secure(str(path), 0, 1, 0, 1, FAR_NS)
    facts = {"step": step, "kind": "good", "created_unix_s": time.time()}
    checkpoint.commit(str(path), parts, facts, move_latest=True)


@pytest.mark.parametrize("name", SHARDS)
def test_one_with_a_shard_that_was_saved_cut_is_passed_over_by_all(
    tmp_path: Path, name: str, capfd: pytest.CaptureFixture
) -> None:
    shards = {name % shard: ONE["F32"] * COUNT for shard in range(8)}
    write(tmp_path, 5, shards=shards)
    cut(tmp_path, 9, shards)
    loaders, _ = resume_all([tmp_path] * RANKS)
    assert [loader.loaded for loader in loaders] == [["cg_5"], ["cg_5"]]
    assert f"passing over {tmp_path}/cg_9: not whole: {name % 7} " in capfd.readouterr().err


def test_of_none_that_is_fit_a_whole_one_is_taken(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    write(tmp_path, 5, shards={"state.pt": NAN["F32"] * COUNT})
    for step in (7, 9):
        cut(tmp_path, step, {"state.pt": ONE["F32"] * COUNT})
    loaders, _ = resume_all([tmp_path] * RANKS)
    assert [loader.loaded for loader in loaders] == [["cg_5"], ["cg_5"]]
    assert f"going on from {tmp_path}/cg_5 all the same" in capfd.readouterr().err


def test_an_empty_file_of_a_rank_that_had_nothing_to_save_is_no_harm_to_whoever_looks(tmp_path: Path) -> None:
    path = write(tmp_path, 5, shards={"__0_0.distcp": ONE["F32"] * COUNT})
    for rank in range(1, 8):  # Most likely one of the two ranks has empty ones alone for its share.
        (path / f"__{rank}_0.distcp").touch()
    parts = checkpoint.secure(str(path), 0, 1, 0, 1, FAR_NS)
    checkpoint.commit(str(path), parts, {"step": 9, "kind": "good", "created_unix_s": time.time()}, move_latest=True)
    write(tmp_path, 3)
    loaders, _ = resume_all([tmp_path] * RANKS)
    assert [loader.loaded for loader in loaders] == [["cg_5"], ["cg_5"]]


def test_where_older_ones_were_not_looked_at_a_person_decides(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    write(tmp_path, 1, shards={"state.pt": ONE["F32"] * COUNT})
    for step in range(2, CANDIDATES_MAX + 2):
        write(tmp_path, step, shards={"state.pt": NAN["F32"] * COUNT})
    loader = Loader()
    with pytest.raises(RuntimeError, match="name the one to go on from"):
        resume_from(loader, str(tmp_path), 0, MemoryStore(), 1)
    assert loader.loaded == []


def test_generators_continue_as_they_were_at_the_save(tmp_path: Path) -> None:
    random.seed(3)
    write(tmp_path, 5)
    expected = random.random()
    assert resume_from(Loader(), str(tmp_path), 0, MemoryStore(), 1) is not None
    assert random.random() == expected


def test_nothing_to_continue_from_is_none(tmp_path: Path) -> None:
    loaders, results = resume_all([tmp_path / "absent"] * RANKS)
    assert results == [None] * RANKS
    assert all(loader.loaded == [] for loader in loaders)


def test_more_ranks_than_before_start_their_generators_anew(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    path = write(tmp_path, 5)
    (path / checkpoint.rank_file(1)).unlink()
    manifest = json.loads((path / checkpoint.MANIFEST).read_text())
    manifest["files"] = [entry for entry in manifest["files"] if entry["path"] != checkpoint.rank_file(1)]
    (path / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    _, results = resume_all([tmp_path] * RANKS)
    assert [result.position if result else None for result in results] == [{"rank": 0, "step": 5}, None]
    assert "no state of rank 1" in capfd.readouterr().err


@pytest.mark.parametrize("way", ["another kind of file", "without generators", "no JSON that anybody reads"])
def test_a_rank_file_that_is_none_starts_the_generators_anew_and_holds_up_nobody(
    way: str, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    path = write(tmp_path, 5)
    manifest = json.loads((path / checkpoint.MANIFEST).read_text())
    manifest["files"] = [entry for entry in manifest["files"] if entry["path"] != checkpoint.rank_file(1)]
    (path / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    (path / checkpoint.rank_file(1)).unlink()
    if way == "another kind of file":
        os.mkfifo(path / checkpoint.rank_file(1))
    else:
        text = "{}" if way == "without generators" else "[" * 100_000
        (path / checkpoint.rank_file(1)).write_text(text)
    _, results = resume_all([tmp_path] * RANKS)
    assert [result.position if result else None for result in results] == [{"rank": 0, "step": 5}, None]
    assert "no state of rank 1" in capfd.readouterr().err


@pytest.mark.parametrize(("own", "total"), [({"tokens_own": {"total": 250}}, 500), ({}, 250)])
def test_a_rank_that_counts_its_own_tokens_goes_on_from_the_total_of_all(
    tmp_path: Path, own: dict[str, Any], total: int
) -> None:
    path = write(tmp_path, 5)
    state = {"v": 1, "rng": rng.capture(), "position": {"tokens_total": 250, **own}}
    checkpoint.write_rank_file(str(path), 0, state)
    parts = checkpoint.secure(str(path), 0, 1, 0, 1, FAR_NS)
    facts = {"step": 5, "tokens_total": 500, "kind": "good", "created_unix_s": time.time()}
    checkpoint.commit(str(path), parts, facts, move_latest=True)
    loader = Loader()
    assert resume_from(loader, str(tmp_path), 0, MemoryStore(), 1) is not None
    assert loader.position_restored == {"tokens_total": total, **own}


def test_the_files_of_other_nodes_are_no_part_of_what_a_node_looks_into(tmp_path: Path) -> None:
    """There are more of them than a look takes."""
    safetensors(tmp_path / "model.safetensors", {"w": ("F32", NAN["F32"] * COUNT)})
    own = Entry("model.safetensors", 12_000, None, socket.gethostname())
    theirs = [Entry(f"{number:05}.safetensors", 12_000, None, "another") for number in range(2 * FILES_MAX)]
    last = [one._replace(path=f"z{one.path}") for one in theirs]
    manifest = {"path": str(tmp_path), "files": [*theirs, own, *last]}
    assert harm_of(manifest, 0, RANKS) == "not finite: model.safetensors: w"
