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
from trainer_shim.engines.frameworks.hf import TrainerKind
from trainer_shim.engines.frameworks.lightning import LightningKind
from trainer_shim.tokens import Replicas


class Ranks:
    """The tensor of ranks of a mesh."""

    def __init__(self, *shape: int, taken: tuple[int | slice, ...] = ()) -> None:
        self.shape, self.taken = shape, taken or (slice(None),) * len(shape)

    def __getitem__(self, index: tuple[int | slice, ...]) -> Ranks:
        return Ranks(*self.shape, taken=index)

    def flatten(self) -> Ranks:
        return self

    def tolist(self) -> list[int]:
        places = itertools.product(*(range(size) for size in self.shape))
        return [rank for rank, place in enumerate(places) if self._takes(place)]

    def _takes(self, place: tuple[int, ...]) -> bool:
        return all(isinstance(one, slice) or one == at for one, at in zip(self.taken, place, strict=True))


class Mesh:
    """The part of a DeviceMesh that is asked."""

    def __init__(self, names: str, *shape: int, held: tuple[int, ...] | None = None) -> None:
        self.mesh = Ranks(*shape)
        self.mesh_dim_names = tuple(names.split()) or None
        self.held = held or tuple(size - 1 for size in shape)

    def get_coordinate(self) -> list[int]:
        return list(self.held)

    @property
    def ndim(self) -> int:
        return len(self.mesh.shape)

    def size(self) -> int:
        return math.prod(self.mesh.shape)

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


SAME = "tp pp ep etp tensor tensor_parallel pipeline pipe expert expert_parallel model"
PARTS = "cp sp context context_parallel sequence sequence_parallel ulysses ring"
DATA = "data data_parallel ddp fsdp hsdp replicate shard batch dp dp_shard_mod_ep"


@pytest.mark.parametrize("name", [*SAME.split(), *PARTS.split(), *DATA.split()])
def test_every_usual_name_of_a_dimension_is_known(name: str) -> None:
    ranks = 4 if name in SAME.split() else 8
    assert replicas.of_mesh(Mesh(f"dp {name}", 4, 2), None, 8, is_cut=True).ranks == ranks
    is_part = name in PARTS.split()
    assert replicas.of_mesh(Mesh(f"dp {name}", 4, 2), None, 8).ranks == (None if is_part else ranks)


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
    other = Mesh("dp tp", 2, 4, held=(1, 1))
    assert TrainerKind(a_trainer(8, 5, split=2, mesh=other)).replicas(None)[::2] == (4, None), "a mesh of another split"


def test_a_trainer_does_not_say_what_the_stages_of_its_pipeline_see() -> None:
    trainer = a_trainer(8, 5)
    trainer.model.config = SimpleNamespace(distributed_config=SimpleNamespace(pp_size=2))
    assert TrainerKind(trainer).replicas(None)[::2] == (None, None)
    trainer.model.config.distributed_config.pp_size = 1
    assert TrainerKind(trainer).replicas(None)[::2] == (8, 5)


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


# --- torch's wrappers ---------------------------------------------------------------------------------------------


def of_torch(name: str, **attributes: Any) -> Any:
    """An object whose class has this name in torch."""
    return type(name, (SimpleNamespace,), {"__module__": "torch.x"})(**attributes)


class Groups:
    """torch.distributed. A group is its size and our place in it."""

    def __init__(self, world: int = 8, rank: int = 5) -> None:
        self.all = (world, rank)

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def get_world_size(self, group: tuple[int, int] | None = None) -> int:
        return (group or self.all)[0]

    def get_rank(self, group: tuple[int, int] | None = None) -> int:
        return (group or self.all)[1]


def a_model(*modules: Any, parameters: tuple[Any, ...] = (), **attributes: Any) -> Any:
    model = SimpleNamespace(parameters=lambda: list(parameters), **attributes)
    model.modules = lambda: [*modules, model]
    return model


def found_for(
    monkeypatch: pytest.MonkeyPatch, model: Any, batch: Any = None, world: int = 8, rank: int = 5
) -> Replicas:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=Groups(world, rank)))
    states = SimpleNamespace(_get_module_state=lambda module: getattr(module, "state", None))
    monkeypatch.setitem(sys.modules, "torch.distributed._composable_state", states)
    return replicas.of_module(model, batch)


def test_the_group_of_ddp_is_that_of_the_wrapper_or_of_the_one_that_runs_the_module(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inner = a_model()
    wrapper = of_torch("DistributedDataParallel", process_group=(4, 2), modules=lambda: [inner])
    assert found_for(monkeypatch, a_model(wrapper))[::2] == (4, 2)
    assert found_for(monkeypatch, inner).ranks is None
    assert found_for(monkeypatch, inner, world=1) == replicas.ALONE
    running = SimpleNamespace(DistributedDataParallel=SimpleNamespace(_active_ddp_module=wrapper))
    monkeypatch.setitem(sys.modules, "torch.nn.parallel.distributed", running)
    assert found_for(monkeypatch, inner)[::2] == (4, 2)
    assert found_for(monkeypatch, a_model()).ranks is None, "another module than that which runs"


def fsdp1(size: int, place: int, across: tuple[int, int] | None = None, how: str = "FULL_SHARD") -> Any:
    return of_torch(
        "FullyShardedDataParallel", process_group=(size, place), _inter_node_pg=across, sharding_strategy=how
    )


def test_hybrid_shards_of_fsdp_are_replicated_over_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    hybrid = fsdp1(4, 1, (2, 1), "ShardingStrategy.HYBRID_SHARD")
    assert found_for(monkeypatch, a_model(hybrid))[::2] == (8, 5)
    assert found_for(monkeypatch, a_model(fsdp1(4, 1, (2, 1))))[::2] == (4, 1), "not replicated"


def test_fsdp_modules_with_different_groups_are_unknown_unless_the_root_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    experts = fsdp1(2, 1)
    assert found_for(monkeypatch, a_model(fsdp1(8, 5), experts)).ranks is None
    assert found_for(monkeypatch, a_model(fsdp1(8, 5), fsdp1(8, 5)))[::2] == (8, 5)
    root = fsdp1(8, 5)
    root.modules = lambda: [root, experts]
    assert found_for(monkeypatch, root)[::2] == (8, 5)


class Batch:
    """Tokens of four bytes, a view of `whole` of them."""

    def __init__(self, tokens: int, whole: int, offset: int = 0, *, contiguous: bool = True) -> None:
        self.tokens, self.whole, self.offset, self.contiguous = tokens, whole, offset, contiguous

    def untyped_storage(self) -> Any:
        return SimpleNamespace(nbytes=lambda: 4 * self.whole)

    def element_size(self) -> int:
        return 4

    def storage_offset(self) -> int:
        return self.offset

    def is_contiguous(self) -> bool:
        return self.contiguous

    def numel(self) -> int:
        return self.tokens


def shards(mesh: Mesh, shard: int | None = 0, replicate: int | None = None) -> Any:
    """A module to which fully_shard() was applied."""
    info = SimpleNamespace(mesh=mesh, shard_mesh_dim=shard, replicate_mesh_dim=replicate)
    return SimpleNamespace(state=SimpleNamespace(_fsdp_param_group=SimpleNamespace(mesh_info=info)))


def test_a_mesh_without_names_is_known_where_all_parts_have_the_same_group(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = Mesh("", 4, 2, held=(2, 1))
    assert found_for(monkeypatch, a_model(shards(mesh), shards(mesh)))[::2] == (4, 2)
    assert found_for(monkeypatch, a_model(shards(mesh, shard=1)))[::2] == (2, 1)
    assert found_for(monkeypatch, a_model(shards(mesh, shard=1, replicate=0)))[::2] == (8, 5)


def test_a_mesh_without_names_over_which_parts_have_different_groups_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of its dimensions may be tensor parallelism: nothing tells which."""
    mesh = Mesh("", 4, 2, held=(2, 1))
    found = found_for(monkeypatch, a_model(shards(mesh), shards(mesh, shard=1)))
    assert (found.ranks, found.place) == (None, None)


def test_of_a_named_mesh_every_dimension_that_a_part_is_sharded_over_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = Mesh("dp_replicate dp_shard tp", 2, 2, 2, held=(1, 0, 1))
    assert found_for(monkeypatch, a_model(shards(mesh, shard=1, replicate=0)))[::2] == (4, 2)
    assert found_for(monkeypatch, a_model(shards(mesh, shard=1), shards(mesh, shard=0)))[::2] == (4, 2)
    assert found_for(monkeypatch, a_model(shards(mesh, shard=1), shards(mesh, shard=2)))[::2] == (2, 0), "tp is none"


def test_parts_of_sequences_count_where_the_batch_is_cut_and_are_unknown_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """context_parallel() shrinks a batch in place, and replaces torch's attention while it holds."""
    model = a_model(shards(Mesh("dp_shard cp", 4, 2, held=(2, 1))))

    def found(batch: Batch | None, attention: Any = found_for) -> int | None:
        functional = SimpleNamespace(scaled_dot_product_attention=attention)
        monkeypatch.setitem(sys.modules, "torch.nn.functional", functional)
        return found_for(monkeypatch, model, batch).ranks

    assert found(Batch(512, 1024)) == 8
    mesh = Mesh("dp_shard cp", 4, 2, held=(2, 1))
    assert found_for(monkeypatch, a_model(shards(mesh, shard=1, replicate=0)), Batch(512, 1024)).ranks == 8, "over both"
    assert found(Batch(512, 1024), len) is None, "torch's own attention: nobody has cut it"
    assert found(Batch(512, 512)) is None
    assert found(Batch(256, 1024)) is None, "cut in four, by two ranks"
    assert found(Batch(512, 1024, offset=512)) is None, "the second half of what the script has sliced"
    assert found(Batch(512, 1024, contiguous=False)) is None, "every other column of it"
    assert found(None) is None


def test_meshes_with_nothing_in_common_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    meshes = Mesh("dp_shard", 8, held=(5,)), Mesh("tp", 8, held=(5,))
    assert found_for(monkeypatch, a_model(*map(shards, meshes))).ranks is None


class Some(Ranks):
    """Some ranks, in a mesh of one dimension."""

    def __init__(self, *ranks: int) -> None:
        super().__init__(len(ranks))
        self.ranks = list(ranks)

    def __getitem__(self, _index: Any) -> Some:
        return self

    def tolist(self) -> list[int]:
        return self.ranks


def flat(root: Mesh, *ranks: int) -> Any:
    """A part that is sharded over a mesh that its root does not show."""
    mesh = SimpleNamespace(mesh=Some(*ranks), ndim=1, get_coordinate=lambda: [0], _get_root_mesh=lambda: root)
    return shards(mesh)  # type: ignore[arg-type]


def test_a_mesh_that_its_root_does_not_show_is_known_where_all_parts_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Mesh("dp tp", 4, 2, held=(2, 1))
    model = a_model(flat(root, 4, 5, 6, 7), flat(root, 4, 5, 6, 7))
    assert found_for(monkeypatch, model)[::2] == (4, 1)
    found = found_for(monkeypatch, a_model(flat(root, 4, 5, 6, 7), shards(root)))
    assert (found.ranks, found.place) == (None, None)


def a_dtensor(mesh: Mesh, *, is_shard: bool = True) -> Any:
    return of_torch("DTensor", device_mesh=mesh, placements=[SimpleNamespace(is_shard=lambda: is_shard)])


def test_a_model_that_is_split_over_all_ranks_sees_the_same_tokens_on_each(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Mesh("", 8, held=(5,))
    assert found_for(monkeypatch, a_model(parameters=(a_dtensor(alone),)))[::2] == (1, 0)
    assert found_for(monkeypatch, a_model(parameters=(a_dtensor(alone, is_shard=False),))).ranks is None, "a copy each"
    assert found_for(monkeypatch, a_model(parameters=(a_dtensor(alone),)), world=16).ranks is None, "of half of them"
    pair = Mesh("", 4, 2)
    assert found_for(monkeypatch, a_model(parameters=(a_dtensor(pair),))).ranks is None
    assert found_for(monkeypatch, a_model(parameters=(a_dtensor(alone), a_dtensor(pair)))).ranks is None


def test_a_models_own_mesh_is_asked_where_no_parameter_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found_for(monkeypatch, a_model(_device_mesh=Mesh("dp tp", 4, 2, held=(2, 1))))[::2] == (4, 2)
    split = a_dtensor(Mesh("tp", 8, held=(5,)))
    assert found_for(monkeypatch, a_model(parameters=(split,)))[::2] == (1, 0)


def test_only_torchs_own_pass_over_a_stages_shapes_is_a_rehearsal() -> None:
    def passing(name: str, file: str) -> bool:
        source = f"def {name}(): return is_rehearsal()"
        space: dict[str, Any] = {"is_rehearsal": replicas.is_rehearsal}
        exec(compile(source, file, "exec"), space)
        return bool(space[name]())

    stage = "/lib/torch/distributed/pipelining/stage.py"
    assert passing("_shape_inference", stage)
    assert passing("_forward_metadata_inference", stage)
    assert not passing("_shape_inference", "/home/me/stage.py")
    assert not passing("forward_one_chunk", stage)
