"""What DeepSpeed's engines and Accelerate say about who sees different tokens, and which stage of a pipeline counts."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.shim_engines import test_replicas as replicas
from tests.unit.shim_engines.test_replicas import Groups, Mesh
from tests.unit.shim_engines.test_tokens import Batch
from trainer_shim.engines.deepspeed_engine import replicas_of
from trainer_shim.engines.frameworks.accelerate_loops import AcceleratePlainKind
from trainer_shim.engines.pipeline_engine import _count_tokens
from trainer_shim.tokens import TokenCount

DATA, SEQUENCE, BOTH = (4, 2), (2, 1), (8, 3)  # Groups: how many ranks, and our place.


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed", Groups(16, 11))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=sys.modules["torch.distributed"]))


def an_engine(**has: Any) -> Any:
    own = {
        "dp_world_size": 4,
        "data_parallel_group": DATA,
        "seq_parallel_group": SEQUENCE,
        "seq_data_parallel_group": BOTH,
    }
    return SimpleNamespace(**{**own, **has})


@pytest.mark.usefixtures("groups")
def test_deepspeeds_data_group_counts_and_neither_tensor_nor_pipeline_ranks_do() -> None:
    assert replicas_of(an_engine(seq_data_parallel_group=DATA))[::2] == (4, 2)
    assert replicas_of(an_engine(seq_data_parallel_group=DATA, sequence_parallel_size=1))[::2] == (4, 2)


@pytest.mark.usefixtures("groups")
def test_ulysses_ranks_have_a_part_of_a_sequence_each() -> None:
    assert replicas_of(an_engine(sequence_parallel_size=2))[::2] == (8, 2 * 2 + 1)
    alone = an_engine(sequence_parallel_size=8, dp_world_size=None)
    assert replicas_of(alone)[::2] == BOTH, "without a data group of its own"


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize(("is_automatic", "ranks"), [(True, None), (False, 8)])
def test_sequences_that_a_graph_cuts_are_unknown(is_automatic: bool, ranks: int | None) -> None:
    assert replicas_of(an_engine(compile_autosp=lambda: is_automatic)).ranks == ranks


@pytest.mark.parametrize(
    ("stage", "evaluates", "tokens"),
    [("first", False, 300), ("last", False, 200), ("between", False, None), ("first", True, None)],
)
def test_the_first_stage_counts_inputs_the_last_one_labels_and_no_other_does(
    stage: str, evaluates: bool, tokens: int | None
) -> None:
    engine = SimpleNamespace(
        pipe_buffers={"inputs": [None, Batch(3, 100)], "labels": [None, Batch(2, 100)]},
        is_first_stage=lambda: stage == "first", is_last_stage=lambda: stage == "last",
    )  # fmt: skip
    meter: Any = SimpleNamespace(evaluating=evaluates, count=TokenCount(None, None, 1))
    _count_tokens(engine, meter, {"buffer_id": 1})
    assert meter.count.take() == tokens


def test_accelerates_mesh_counts_where_it_was_asked_for_parallelism(monkeypatch: pytest.MonkeyPatch) -> None:
    kind: Any = AcceleratePlainKind.__new__(AcceleratePlainKind)
    mesh = Mesh("dp_replicate dp_shard tp", 2, 2, 2, held=(1, 0, 1))
    kind._accelerator = SimpleNamespace(parallelism_config=object(), torch_device_mesh=mesh, num_processes=8)
    assert kind.replicas(None)[::2] == (4, 2)
    cut, mesh = replicas.Batch(512, 1024), Mesh("dp_shard cp", 4, 2, held=(2, 1))
    functional = SimpleNamespace(scaled_dot_product_attention=an_engine)
    monkeypatch.setitem(sys.modules, "torch.nn.functional", functional)
    kind._accelerator.torch_device_mesh = mesh
    assert (kind.replicas(cut).ranks, kind.replicas(None).ranks) == (8, None)
    kind._accelerator.num_processes = 16
    assert kind.replicas(cut).ranks is None, "the other half may be anything"
