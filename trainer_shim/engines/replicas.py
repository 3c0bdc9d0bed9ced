"""How many ranks see different tokens: by what the training is made of, never guessed.

Ranks of data-parallel dimensions do. Ranks of tensor, pipeline and expert-parallel ones see the same. Those of context
and sequence parallelism have a part of a sequence each, where the framework cuts it before the forward pass: then the
parts add up. Where nothing shows whether it was cut, the count is unknown, as it is in a loop that shares its gradients
by itself.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

from trainer_shim.tokens import Replicas

ALONE = Replicas(1, "one rank", 0)
HINT = "pass data_parallel_size= (how many ranks see different tokens) or tokens_per_step="
# Of a mesh's dimensions, as torchtitan, transformers, Accelerate, DeepSpeed and Lightning name them.
_SAME_TOKENS = frozenset(
    ("tp", "pp", "ep", "etp", "tensor", "tensor_parallel", "pipeline", "pipe", "expert", "expert_parallel", "model")
)
_PARTS = frozenset(("cp", "sp", "context", "context_parallel", "sequence", "sequence_parallel", "ulysses", "ring"))
_REHEARSALS = frozenset(("_forward_metadata_inference", "_shape_inference"))
_STAGE_FILE = os.path.join("torch", "distributed", "pipelining", "stage.py")
_DATA = frozenset(("data", "data_parallel", "ddp", "fsdp", "hsdp", "replicate", "shard", "batch"))


def unknown(world: int, why: str = "nothing shows how many of them see different tokens") -> Replicas:
    return Replicas(None, "%d ranks, and %s: %s" % (world, why, HINT))


def of_trainer(trainer: Any) -> Replicas:
    """Return those of a transformers.Trainer: all but those of tensor parallelism.

    It feeds parts of sequences under context parallelism.
    """
    world, place = int(trainer.args.world_size), int(trainer.args.process_index)
    split_at_loading = getattr(getattr(trainer.model, "config", None), "distributed_config", None)
    if (getattr(split_at_loading, "pp_size", None) or 1) > 1:
        return unknown(world, "the Trainer does not say what its pipeline's stages see")
    parallel = getattr(trainer.accelerator, "parallelism_config", None)
    asked = getattr(trainer, "get_tp_size", None)
    told = asked() if asked is not None else getattr(trainer.model, "_tp_size", None)
    split = int(told or getattr(parallel, "tp_size", None) or 1)
    if split == 1:
        return Replicas(world, "the Trainer's world size", place)
    mesh = getattr(trainer.accelerator, "torch_device_mesh", None) or getattr(trainer.model, "_device_mesh", None)
    found = None if mesh is None else of_mesh(mesh, None, world, is_cut=True)
    place_known = found.place if found is not None and found.ranks == world // split else None
    return Replicas(world // split, "the Trainer's world size and tensor parallelism", place_known)


def of_module(model: Any, batch: Any) -> Replicas:
    """Return those of a torch module that is fed `batch` now."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return ALONE
    world = int(distributed.get_world_size())
    if world == 1:
        return ALONE
    return (
        _of_megatron()
        or _of_wrapper(distributed, model)
        or _of_fsdp1(distributed, model)
        or _of_fsdp2(model, batch, world)
        or _of_tensors(model, batch, world)
        or unknown(world)
    )


def of_group(distributed: Any, group: Any, why: str) -> Replicas:
    """Each rank of `group` sees tokens of its own."""
    return Replicas(int(distributed.get_world_size(group)), why, int(distributed.get_rank(group)))


def _of_megatron() -> Optional[Replicas]:
    state: Any = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return None
    size = int(state.get_data_parallel_world_size(with_context_parallel=True))  # It cuts sequences in its loader.
    return Replicas(size, "Megatron's groups", int(state.get_data_parallel_rank(with_context_parallel=True)))


def is_rehearsal() -> bool:
    """Whether torch's pipelining makes the forward pass under way to learn shapes, before the first step."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name in _REHEARSALS and code.co_filename.endswith(_STAGE_FILE):
            return True
        frame = frame.f_back
    return False


# -- torch's wrappers -------------------------------------------------------------------------------------------------


def _is_a(module: Any, name: str) -> bool:
    return any(one.__name__ == name and one.__module__.startswith("torch.") for one in type(module).__mro__)


def _of_wrapper(distributed: Any, model: Any) -> Optional[Replicas]:
    """DistributedDataParallel: the module itself, or the one whose forward pass runs it now."""
    for module in model.modules():
        if _is_a(module, "DistributedDataParallel"):
            return of_group(distributed, module.process_group, "DistributedDataParallel's group")
    parallel: Any = sys.modules.get("torch.nn.parallel.distributed")
    active = getattr(getattr(parallel, "DistributedDataParallel", None), "_active_ddp_module", None)
    if active is not None and any(module is model for module in active.modules()):
        return of_group(distributed, active.process_group, "DistributedDataParallel's group")
    return None


def _of_fsdp1(distributed: Any, model: Any) -> Optional[Replicas]:
    found: Set[Tuple[int, int]] = set()
    for module in model.modules():
        if not _is_a(module, "FullyShardedDataParallel"):
            continue
        size, place = int(distributed.get_world_size(module.process_group)), distributed.get_rank(module.process_group)
        across = getattr(module, "_inter_node_pg", None)
        if across is not None and "HYBRID" in str(getattr(module, "sharding_strategy", "")):
            place += size * distributed.get_rank(across)
            size *= int(distributed.get_world_size(across))
        if not found and module is model:
            return Replicas(size, "FSDP's groups", int(place))  # Parts of it may have smaller ones: experts.
        found.add((size, int(place)))
    if not found:
        return None
    if len(found) > 1:
        return unknown(int(distributed.get_world_size()), "its FSDP modules have different groups")
    size, place = found.pop()
    return Replicas(size, "FSDP's groups", place)


def _of_fsdp2(model: Any, batch: Any, world: int) -> Optional[Replicas]:
    """fully_shard(): all dimensions over which a part of the model is sharded or replicated, as the root names them."""
    infos = list(_mesh_infos(model))
    if not infos:
        return None
    roots = [_root_of(info.mesh) for info in infos]
    groups = [_ranks_of(info) for info in infos]
    root = roots[0]
    names = root.mesh_dim_names
    if any(other != root for other in roots[1:]):
        return unknown(world, "its parts are sharded over meshes that have nothing in common")
    grid = _Grid(root)
    if any(not grid.knows(ranks) for ranks in groups):
        return _of_equal(groups, world)
    varying: Set[int] = set()
    for ranks in groups:
        varying |= grid.varying(ranks)
    if not names:
        return grid.replicas(sorted(varying), "FSDP's mesh") if len({tuple(ranks) for ranks in groups}) == 1 else None
    data = [dim for dim in sorted(varying) if names[dim] not in _SAME_TOKENS | _PARTS]
    return _with_parts(grid, names, data, batch, world, "FSDP's mesh")


def _of_equal(groups: Sequence[Sequence[int]], world: int) -> Replicas:
    """Meshes that their root does not show: known where all parts of the model have the same group."""
    if len({tuple(ranks) for ranks in groups}) > 1:
        return unknown(world, "its FSDP modules have different groups")
    ranks = list(groups[0])
    distributed: Any = sys.modules["torch"].distributed
    return Replicas(len(ranks), "FSDP's mesh", ranks.index(int(distributed.get_rank())))


def _mesh_infos(model: Any) -> Iterator[Any]:
    states: Any = sys.modules.get("torch.distributed._composable_state")
    if states is None:
        return
    for module in model.modules():
        state = states._get_module_state(module)
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:
            groups = [getattr(state, "_fsdp_param_group", None)]
        for group in groups:
            info = getattr(group, "mesh_info", None)
            if info is not None:
                yield info


def _ranks_of(info: Any) -> List[int]:
    """Return the ranks over which FSDP has sharded and replicated, ours among them."""
    mesh = info.mesh
    held = mesh.get_coordinate()
    dims = [dim for dim in (info.replicate_mesh_dim, info.shard_mesh_dim) if dim is not None]
    if held is None:
        return []
    index = tuple(slice(None) if dim in dims else held[dim] for dim in range(mesh.ndim))
    return sorted(int(rank) for rank in mesh.mesh[index].flatten().tolist())


# -- meshes -----------------------------------------------------------------------------------------------------------


def _root_of(mesh: Any) -> Any:
    if hasattr(mesh, "_get_root_mesh"):
        return mesh._get_root_mesh()
    resources = getattr(sys.modules.get("torch.distributed.device_mesh"), "_mesh_resources", None)
    return resources.get_root_mesh(mesh) if resources is not None else mesh


class _Grid:
    """The ranks of a mesh by their places in it. Built once a run."""

    def __init__(self, mesh: Any) -> None:
        self.shape = [int(size) for size in mesh.mesh.shape]
        self.held = mesh.get_coordinate()
        self._places: Dict[int, Tuple[int, ...]] = {}
        for number, rank in enumerate(mesh.mesh.flatten().tolist()):
            place: List[int] = []
            for size in reversed(self.shape):
                number, digit = divmod(number, size)
                place.insert(0, digit)
            self._places[int(rank)] = tuple(place)

    @property
    def size(self) -> int:
        return len(self._places)

    def knows(self, ranks: Sequence[int]) -> bool:
        """Whether `ranks` are all ranks along some dimensions."""
        if self.held is None or not ranks or any(rank not in self._places for rank in ranks):
            return False
        size = 1
        for dim in self.varying(ranks):
            size *= self.shape[dim]
        return size == len(ranks)

    def varying(self, ranks: Sequence[int]) -> Set[int]:
        """Return the dimensions along which `ranks` differ."""
        places = [self._places[rank] for rank in ranks]
        return {dim for dim in range(len(self.shape)) if len({place[dim] for place in places}) > 1}

    def replicas(self, dims: Iterable[int], why: str) -> Replicas:
        count, place = 1, 0
        for dim in dims:
            count *= self.shape[dim]
            place = place * self.shape[dim] + int(self.held[dim])
        return Replicas(count, why, place)


def of_mesh(mesh: Any, batch: Any, world: int, is_cut: bool = False) -> Replicas:
    """Those along the data dimensions of a named mesh. `is_cut`: the framework feeds parts of sequences, if any."""
    root = _root_of(mesh)
    names = root.mesh_dim_names
    grid = _Grid(root)
    if not names or grid.size != world or grid.held is None:
        return unknown(world)
    wide = [dim for dim, size in enumerate(grid.shape) if size > 1]
    data = [dim for dim in wide if names[dim] in _DATA or names[dim].startswith("dp")]
    strange = [names[dim] for dim in wide if dim not in data and names[dim] not in _SAME_TOKENS | _PARTS]
    if strange:
        return unknown(world, "nothing shows what the dimension %r of its mesh is" % strange[0])
    return _with_parts(grid, names, data, batch, world, "the model's mesh", is_cut)


def _with_parts(
    grid: _Grid, names: Sequence[str], data: List[int], batch: Any, world: int, why: str, is_cut: bool = False
) -> Replicas:
    parts = [dim for dim, size in enumerate(grid.shape) if size > 1 and names[dim] in _PARTS]
    if not parts:
        return grid.replicas(data, why)
    cut = 1
    for dim in parts:
        cut *= grid.shape[dim]
    if is_cut or _is_cut(batch, cut):
        return grid.replicas(sorted(data + parts), why)
    return unknown(world, "nothing shows whether each has a part of a sequence (%s)" % names[parts[0]])


def _is_cut(batch: Any, parts: int) -> bool:
    """Whether context_parallel() has cut `batch` in place: its memory is that of the whole sequences still."""
    functional: Any = sys.modules.get("torch.nn.functional")
    attention = getattr(functional, "scaled_dot_product_attention", None)
    if batch is None or not hasattr(attention, "__code__"):  # Inside of it, torch's own is replaced.
        return False
    whole = batch.untyped_storage().nbytes() // batch.element_size()
    return bool(batch.storage_offset() == 0 and batch.is_contiguous() and whole == parts * batch.numel())


def _of_tensors(model: Any, batch: Any, world: int) -> Optional[Replicas]:
    """Tensor parallelism without a wrapper: parameters that are DTensors, or the mesh of a model of transformers."""
    meshes: List[Any] = []
    is_split = False
    for parameter in model.parameters():
        if _is_a(parameter, "DTensor"):
            if all(parameter.device_mesh is not mesh for mesh in meshes):
                meshes.append(parameter.device_mesh)
            is_split = is_split or any(placement.is_shard() for placement in parameter.placements)
    if not meshes:
        meshes = [mesh for mesh in (getattr(model, "_device_mesh", None),) if mesh is not None]
    if not meshes:
        return None
    roots = [_root_of(mesh) for mesh in meshes]
    if any(other != roots[0] for other in roots[1:]):
        return None
    if roots[0].mesh_dim_names:
        return of_mesh(roots[0], batch, world)
    is_whole = len(roots[0].mesh.shape) == 1 and int(roots[0].size()) == world
    return Replicas(1, "the model is split over all ranks", 0) if is_whole and is_split else None
