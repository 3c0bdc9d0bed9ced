"""Who sees different tokens, where no ranks of this machine can show it: meshes, and configurations of frameworks.

What gloo ranks can train is in tests/drills/tokens.
"""

from __future__ import annotations

import itertools
import math
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from trainer_shim.engines import replicas
from trainer_shim.engines.base import Options
from trainer_shim.engines.hf import TrainerKind
from trainer_shim.engines.lightning import LightningKind
from trainer_shim.tokens import Replicas


class Ranks:
    """The tensor of ranks of a mesh."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def flatten(self) -> Ranks:
        return self

    def tolist(self) -> list[int]:
        return list(range(math.prod(self.shape)))


class Mesh:
    """The part of a DeviceMesh that is asked."""

    def __init__(self, names: str, *shape: int, held: tuple[int, ...] | None = None) -> None:
        self.mesh = Ranks(*shape)
        self.mesh_dim_names = tuple(names.split()) or None
        self.held = held or tuple(size - 1 for size in shape)

    def get_coordinate(self) -> list[int]:
        return list(self.held)

    def _get_root_mesh(self) -> Mesh:
        return self


@pytest.mark.parametrize(
    ("mesh", "ranks", "place"),
    [
        (Mesh("dp_replicate dp_shard tp", 2, 4, 2), 8, 7),  # Accelerate, transformers.
        (Mesh("dp_replicate dp_shard tp", 2, 4, 2, held=(1, 0, 1)), 8, 4),
        (Mesh("pp dp_replicate fsdp tp", 2, 1, 2, 4), 2, 1),  # transformers.
        (Mesh("data_parallel tensor_parallel", 4, 2), 4, 3),  # Lightning, DeepSpeed.
        (Mesh("tp", 8), 1, 0),
        (Mesh("pp dp_replicate dp_shard cp tp", 1, 1, 4, 1, 2), 4, 3),  # torchtitan, without context parallelism.
    ],
)
def test_data_dimensions_of_a_mesh_count(mesh: Mesh, ranks: int, place: int) -> None:
    found = replicas.of_mesh(mesh, None, math.prod(mesh.mesh.shape))
    assert (found.ranks, found.place) == (ranks, place)


def test_all_ranks_of_a_mesh_have_the_place_of_their_batch() -> None:
    held = itertools.product(range(2), range(2), range(2))
    places = [replicas.of_mesh(Mesh("dp_shard cp tp", 2, 2, 2, held=one), None, 8, is_cut=True).place for one in held]
    assert places == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    "mesh",
    [
        Mesh("", 4, 2),
        Mesh("dp mystery", 4, 2),
        Mesh("dp tp", 2, 2),  # Of 8 ranks: the others may be anything.
        Mesh("dp cp", 4, 2),  # Nothing shows that sequences are cut.
    ],
)
def test_what_a_mesh_does_not_show_is_unknown_and_the_line_says_what_to_pass(mesh: Mesh) -> None:
    found = replicas.of_mesh(mesh, None, 8)
    assert (found.ranks, found.place) == (None, None)
    assert found.why.startswith("8 ranks, and nothing shows")
    assert found.why.endswith(replicas.HINT)


def a_trainer(world: int, rank: int, *, split: int = 1, mesh: Mesh | None = None, **sizes: int) -> Any:
    return SimpleNamespace(
        args=SimpleNamespace(world_size=world, process_index=rank),
        accelerator=SimpleNamespace(parallelism_config=SimpleNamespace(tp_size=split, **sizes), torch_device_mesh=mesh),
        model=SimpleNamespace(),
        model_wrapped=SimpleNamespace(),
        get_tp_size=lambda: split,
    )


def test_the_trainers_tensor_parallel_ranks_see_the_same_and_its_context_parallel_ones_parts() -> None:
    assert TrainerKind(a_trainer(8, 5)).replicas(None)[::2] == (8, 5)
    of_context = Mesh("dp_shard cp", 4, 2, held=(2, 1))
    assert TrainerKind(a_trainer(8, 5, mesh=of_context, cp_size=2)).replicas(None)[::2] == (8, 5)
    both = Mesh("dp_shard cp tp", 2, 2, 2, held=(1, 0, 1))
    assert TrainerKind(a_trainer(8, 5, split=2, mesh=both, cp_size=2)).replicas(None)[::2] == (4, 2)
    assert TrainerKind(a_trainer(8, 5, split=2)).replicas(None)[::2] == (4, None), "its place is not known"


def test_an_older_trainer_is_asked_by_its_model() -> None:
    trainer = a_trainer(8, 5)
    del trainer.get_tp_size
    trainer.accelerator = SimpleNamespace()
    assert TrainerKind(trainer).replicas(None)[::2] == (8, 5)
    trainer.model._tp_size = 4
    assert TrainerKind(trainer).replicas(None).ranks == 2


def a_fit(world: int, dealt: dict[str, int] | None) -> LightningKind:
    strategy = SimpleNamespace(distributed_sampler_kwargs=dealt)
    return LightningKind(SimpleNamespace(world_size=world, strategy=strategy), Options())


def test_lightning_is_believed_about_the_samples_that_it_deals_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    assert a_fit(8, {"num_replicas": 4, "rank": 1}).replicas(None)[::2] == (4, 1)
    assert a_fit(1, None).replicas(None) == replicas.ALONE
    assert a_fit(8, None).replicas(None).ranks is None


def test_megatrons_groups_count_with_their_context_parallel_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    state = SimpleNamespace(
        model_parallel_is_initialized=lambda: True,
        get_data_parallel_world_size=lambda with_context_parallel: 8 if with_context_parallel else 4,
        get_data_parallel_rank=lambda with_context_parallel: 5 if with_context_parallel else 2,
    )
    distributed = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, get_world_size=lambda: 32)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=distributed))
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", state)
    assert replicas.of_module(None, None) == Replicas(8, "Megatron's groups", 5)


def test_one_rank_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=distributed))
    assert replicas.of_module(None, None) == replicas.ALONE
