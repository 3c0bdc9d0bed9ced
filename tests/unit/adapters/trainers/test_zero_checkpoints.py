"""ZeRO checkpoints of DeepSpeed: a partition that is missing tears them where their names show it."""

from __future__ import annotations

from pathlib import Path

import pytest

from governor.adapters.trainers.checkpoint_reader import FindAnswer
from tests.unit.adapters.trainers.test_named_checkpoints import commit, find, look
from tests.unit.shim.weights_files import COUNT, ONE, text, torch_zip
from trainer_shim.saving.resuming import harm_of
from trainer_shim.saving.weights_indexes import partitions

WHOLE = FindAnswer(True, "is there")
OPTIM, MODEL = "zero_pp_rank_{}_mp_rank_{:02}_optim_states.pt", "zero_pp_rank_{}_mp_rank_{:02}_model_states.pt"
ALONE = "mp_rank_{:02}_model_states.pt"


def names(stage: int, ranks: range, models: int = 1) -> list[str]:
    """As DeepSpeed writes them: `ranks` of data parallelism, for each of model parallelism."""
    found = []
    for model in range(models):
        found += [OPTIM.format(rank, model) for rank in ranks]
        found += [MODEL.format(rank, model) for rank in ranks] if stage == 3 else [ALONE.format(model)]
    return found


def saved(folder: Path, these: list[str], values: bytes = b"", kind: str = "optim") -> Path:
    """`values`: what each file of the kind says of all."""
    folder.mkdir(parents=True)
    for name in these:
        torch_zip(folder / name, "F32", ONE["F32"] * COUNT, values=values if kind in name else b"")
    return folder


def told(*opcodes: bytes, by_node: bool | None = None) -> bytes:
    """As DeepSpeed's state is pickled: a number under ZeRO-3, else a list of one for each group of parameters."""
    count = b"".join(opcodes) if len(opcodes) == 1 else b"]q\x0a(" + b"".join(opcodes) + b"e"
    flag = (
        b""
        if by_node is None
        else text(b"use_node_local_storage") + b"q\x0b" + (b"\x88" if by_node else b"\x89") + b"00"
    )
    return text(b"partition_count") + b"q\x09" + count + b"00" + flag


def torn(path: Path) -> str | None:
    """What the look for a named one, the halt's own and resume() say, to each rank."""
    found = find(path).torn
    assert {harm_of({"path": str(path), "step": 9}, rank, 2) for rank in range(2)} == {found and f"not whole: {found}"}
    commit(path)
    assert (look(path).whole, look(path).reason) == (False, found) if found else look(path).whole
    return found


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("models", [1, 2])
def test_all_partitions_are_whole(tmp_path: Path, stage: int, models: int) -> None:
    path = saved(tmp_path / "global_step9", names(stage, range(4), models))
    assert find(path) == WHOLE
    assert torn(path) is None
    assert find(tmp_path) == WHOLE, "as the Trainer has it, in a directory below its own"


GONE = [
    (2, OPTIM.format(0, 0), OPTIM.format(1, 0)),
    (2, OPTIM.format(1, 0), OPTIM.format(0, 0)),
    (2, ALONE.format(0), OPTIM.format(0, 0)),
    (3, OPTIM.format(2, 0), OPTIM.format(0, 0)),
    (3, OPTIM.format(3, 0), OPTIM.format(0, 0)),
    (3, MODEL.format(0, 0), MODEL.format(1, 0)),
    (3, MODEL.format(3, 0), MODEL.format(0, 0)),
]


@pytest.mark.parametrize(("stage", "name", "beside"), GONE)
@pytest.mark.parametrize("models", [1, 2])
def test_one_that_is_missing_tears_it(tmp_path: Path, stage: int, name: str, beside: str, models: int) -> None:
    path = saved(tmp_path / "global_step9", [one for one in names(stage, range(4), models) if one != name])
    assert torn(path) == f"{name} is missing beside {beside}"
    assert find(tmp_path).torn == f"global_step9/{name} is missing beside {beside}"


FOUR = b"K\x04"
SAID = [(2, told(FOUR, FOUR)), (2, told(b"]q\x0a" + FOUR + b"a")), (2, told(b"M\x04\x00", b"K\x02")), (3, told(FOUR))]


@pytest.mark.parametrize(("stage", "values"), SAID, ids=["groups", "one group", "experts", "stage 3"])
@pytest.mark.parametrize("models", [1, 2])
def test_the_last_ones_that_are_missing_tear_it_too(tmp_path: Path, stage: int, values: bytes, models: int) -> None:
    """Their names cannot show it. Each of the others says how many there are."""
    path = saved(tmp_path / "whole", names(stage, range(4), models), values)
    assert torn(path) is None
    path = saved(tmp_path / "global_step9", names(stage, range(3), models), values)
    assert torn(path) == f"{OPTIM.format(3, 0)} is missing beside {OPTIM.format(0, 0)}"


@pytest.mark.parametrize("stage", [2, 3])
def test_where_they_do_not_say_so_the_models_state_does(tmp_path: Path, stage: int) -> None:
    values = text(b"dp_world_size") + b"q\x09" + FOUR + b"00"
    path = saved(tmp_path / "whole", names(stage, range(4)), values, "model")
    assert torn(path) is None
    path = saved(tmp_path / "global_step9", names(stage, range(3)), values, "model")
    assert torn(path) == f"{OPTIM.format(3, 0)} is missing beside {OPTIM.format(0, 0)}"


@pytest.mark.parametrize("by_node", [None, False])
@pytest.mark.parametrize("count", [1, 2])
def test_half_of_them_are_no_node_where_all_share_a_directory(tmp_path: Path, count: int, by_node: bool | None) -> None:
    path = saved(tmp_path / "global_step9", names(2, range(count)), told(FOUR, FOUR, by_node=by_node))
    assert torn(path) == f"{OPTIM.format(count, 0)} is missing beside {OPTIM.format(0, 0)}"


@pytest.mark.parametrize(("stage", "values"), [(2, told(b"K\x10", b"K\x10", by_node=True)), (3, told(b"K\x10"))])
def test_another_node_may_have_those_that_follow(tmp_path: Path, stage: int, values: bytes) -> None:
    """DeepSpeed was told so, or each rank has all that it loads."""
    path = saved(tmp_path / "node-0", names(stage, range(8)), values)
    assert (find(path).torn, str(find(path).unsampled).split(", ")[-1]) == (None, OPTIM.format(8, 0))
    path = saved(tmp_path / "node-1", names(stage, range(8, 16)), values)
    assert (find(path).torn, str(find(path).unsampled).split(", ")[-1]) == (None, OPTIM.format(0, 0))
    path = saved(tmp_path / "cut", names(stage, range(7)), values)
    assert find(path).torn == f"{OPTIM.format(7, 0)} is missing beside {OPTIM.format(0, 0)}"


@pytest.mark.parametrize(
    "values",
    [
        b"",
        text(b"zero_partition_count") + b"q\x09" + FOUR + b"00",
        told(b"N"),
        told(b"]q\x0a"),
        told(b"J\xff\xff\xff\xff"),
        told(b"K\x02"),
    ],
)
def test_what_says_no_more_tears_nothing(tmp_path: Path, values: bytes) -> None:
    assert torn(saved(tmp_path / "global_step9", names(2, range(3)), values)) is None


def test_of_a_node_with_a_disk_of_its_own_the_others_are_not_looked_into(tmp_path: Path) -> None:
    path = saved(tmp_path / "node-1", names(2, range(8, 16)))
    assert find(path) == FindAnswer(True, "is there", unsampled=OPTIM.format(0, 0))
    path = saved(tmp_path / "node-2", [one for one in names(2, range(8, 16)) if one != OPTIM.format(11, 0)])
    assert str(find(path).torn).startswith(OPTIM.format(0, 0)), "neither node has that one"


@pytest.mark.parametrize(
    "these",
    [
        ["mp_rank_00_model_states.pt"],
        ["zero_pp_rank_0_mp_rank_00_model_states.pt", "zero_pp_rank_1_mp_rank_00_model_states.pt"],
        ["expp_rank_1_mp_rank_00_optim_states.pt", "layer_0_expert_3_mp_rank_00_model_states.pt"],
        ["zero_pp_rank_0_mp_rank_00optim_states.pt", "mp_rank_00_model_states.pt"],
        ["bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "mp_rank_00_model_states.pt"],
        ["zero_pp_rank_5_mp_rank_00_optim_states.pt.old", "x_zero_pp_rank_7_mp_rank_00_optim_states.pt"],
    ],
    ids=["weights", "weights of ZeRO-3", "experts", "old", "bf16", "others"],
)
def test_what_proves_nothing_tears_nothing(tmp_path: Path, these: list[str]) -> None:
    assert partitions(str(tmp_path), these) == (None, [])
