"""A path that the script names to resume(): taken for what it is, or refused by every rank alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.shim.test_resuming import Loader, on_ranks, write
from tests.unit.shim.weights_files import COUNT, NAN
from trainer_shim.interfaces import Resumed
from trainer_shim.saving import checkpoint
from trainer_shim.saving.resuming import resume_at
from trainer_shim.saving.store import MemoryStore


class OwnLoader(Loader):
    """Of a framework with files of its own: a directory with `own` in it, whose step is known once it is loaded."""

    def named_checkpoint(self, path: str) -> dict[str, Any] | None:
        if (Path(path) / "objects").exists():
            raise ValueError("cannot be read")
        return {"step": None, "path": path} if (Path(path) / "own").exists() else None

    def position(self) -> dict[str, Any]:
        return {"step": 70}


def resume_all(
    paths: list[Path], home: Path | None = None, make: Callable[[], Loader] = Loader
) -> tuple[list[Loader], list[Resumed | Exception | None]]:
    """Each rank has its own view of the path."""
    store, loaders, told = MemoryStore(), [make() for _ in paths], None if home is None else str(home)

    def resume(rank: int) -> Resumed | Exception | None:
        try:
            return resume_at(loaders[rank], str(paths[rank]), told, rank, store, len(paths))
        except FileNotFoundError as error:
            return error

    return loaders, on_ranks(len(paths), resume)


@pytest.mark.parametrize(("below", "step"), [("cg_5", 5), ("cg_9_suspect", 9), ("cg_5/shard", 5), ("", 7)])
def test_one_of_ours_is_loaded_by_its_path_an_older_and_a_suspect_one_too(
    tmp_path: Path, below: str, step: int, capfd: pytest.CaptureFixture[str]
) -> None:
    for good in (5, 7):
        write(tmp_path, good)
    write(tmp_path, 9, kind="suspect", shards={"state.pt": NAN["F32"] * COUNT})
    loaders, results = resume_all([tmp_path / below] * 2)
    tag = checkpoint.tag_of(step, "suspect" if step == 9 else "good")
    for rank, result in enumerate(results):
        assert isinstance(result, Resumed)
        assert (result.step, result.tokens_total, result.path) == (step, step * 100, str(tmp_path / tag))
        assert loaders[rank].loaded == [tag]
        assert loaders[rank].position_restored == {"rank": rank, "step": step}
    said = capfd.readouterr().err
    assert said.count("is not finite: state.pt") == (1 if step == 9 else 0)


def test_a_framework_s_own_one_is_loaded_and_says_its_step(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "global_step70").mkdir()
    (tmp_path / "global_step70" / "own").touch()
    loaders, results = resume_all([tmp_path / "global_step70"] * 2, make=OwnLoader)
    assert [loader.loaded for loader in loaders] == [["global_step70"]] * 2
    assert [result.step for result in results if isinstance(result, Resumed)] == [70, 70]


def absent(path: Path) -> str:
    return f"{path} does not exist"


def empty(path: Path) -> str:
    path.mkdir()
    return f"{path} is no checkpoint that this loop can load, and no whole good one is in it"


def some_file(path: Path) -> str:
    path.touch()
    return f"{path} is no checkpoint that this loop can load"


def torn(path: Path) -> str:
    write(path.parent, 5).rename(path)
    (path / "shard").write_bytes(b"")
    return f"{path} is not whole: shard has 0 bytes instead of 10"


def broken(path: Path) -> str:
    path.mkdir()
    (path / checkpoint.MANIFEST).write_text("{")
    return f"{path} is not whole: no readable manifest"


def unreadable(path: Path) -> str:
    path.mkdir()
    (path / "objects").touch()
    return f"{path}: cannot be read"


@pytest.mark.parametrize("make", [absent, empty, some_file, torn, broken, unreadable])
def test_a_named_path_that_holds_nothing_ends_every_rank_with_one_line(
    tmp_path: Path, make: Callable[[Path], str]
) -> None:
    line = make(tmp_path / "named")
    loaders, results = resume_all([tmp_path / "named"] * 2, make=OwnLoader)
    for result in results:
        assert isinstance(result, FileNotFoundError)
        assert str(result).startswith(f"resume(): {line}")
        assert "\n" not in str(result)
    assert [loader.loaded for loader in loaders] == [[], []]


@pytest.mark.parametrize("there", [True, False])
def test_where_the_run_saves_nothing_is_the_first_launch(tmp_path: Path, there: bool) -> None:
    home = tmp_path / "home"
    if there:
        home.mkdir()
    assert resume_all([home / "." / ""] * 2, home=home)[1] == [None, None]


def test_what_one_node_lacks_is_refused_by_all(tmp_path: Path) -> None:
    whole = write(tmp_path / "a", 5)
    torn(tmp_path / "b")
    (tmp_path / "c").mkdir()
    for other, said in (
        (tmp_path / "b", "is not whole"),
        (tmp_path / "c", "is a checkpoint to rank 0 and a directory"),
    ):
        loaders, results = resume_all([whole, other])
        assert [said in str(result) for result in results] == [True, True]
        assert [loader.loaded for loader in loaders] == [[], []]
