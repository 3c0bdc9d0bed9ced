"""What the optimizers train and no checkpoint would have: with objects that look like torch's, without torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer_shim.engines import trained
from trainer_shim.engines.base import innermost
from trainer_shim.engines.plain import PlainSaver, _own_places, without_replicas
from trainer_shim.saving import checkpoint
from trainer_shim.saving.store import MemoryStore


@dataclass(eq=False)
class Tensor:
    """`address` 0: without a storage of its own."""

    address: int
    count: int = 4

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.count,)

    def numel(self) -> int:
        return self.count

    def element_size(self) -> int:
        return 4

    def data_ptr(self) -> int:
        return self.address


@dataclass(eq=False)
class Module:
    named: dict[str, Tensor] = field(default_factory=dict)

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.named.items()

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        yield from ()

    def parameters(self) -> Iterator[Tensor]:
        yield from self.named.values()

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self.named)


class Optimizer:
    def __init__(self, *groups: list[Tensor], state: dict[Any, Any] | None = None) -> None:
        self.param_groups = [{"params": group} for group in groups]
        self.state = state or {}

    def step(self) -> None:
        pass


@dataclass(eq=False)
class Scheduler:
    optimizer: Any


@dataclass(eq=False)
class Holder:
    """Of the script's own, with what it will save."""

    scheduler: Any


W, B, HEAD = Tensor(100), Tensor(200), Tensor(300)
MODEL = Module({"w": W, "b": B})


def outside(*tensors: Tensor, kept: list[Tensor] | None = None) -> list[Tensor]:
    held = trained.trained_by([Optimizer(list(tensors))])
    return list(trained.outside(held, trained.parameters_of([MODEL]) if kept is None else kept).values())


def test_each_tensor_has_one_place() -> None:
    assert trained.trained_by([Optimizer([W], [B, W]), Optimizer([HEAD])]) == {"0.0.0": W, "0.1.0": B, "1.0.0": HEAD}
    assert trained.trained_by([object()]) == {}


@pytest.mark.parametrize(
    ("tensor", "is_outside"),
    [
        (W, False),
        (HEAD, True),
        (Tensor(100), False),  # A detached one, of the same values.
        (Tensor(100, 2), False),
        (Tensor(100, 8), True),  # More than the parameter: not all of it is kept.
        (Tensor(0), True),  # Of which nobody knows where it lies.
        (Tensor(300, 0), False),
    ],
)
def test_a_tensor_is_kept_by_itself_or_by_where_its_values_lie(tensor: Tensor, is_outside: bool) -> None:
    assert outside(W, tensor, B) == ([tensor] if is_outside else [])


def test_a_state_keeps_what_it_has_and_what_it_has_copied_by_name() -> None:
    held = trained.trained_by([Optimizer([W, B, HEAD])])
    copies = {"model": {"w": Tensor(900), "b": Tensor(901)}}
    assert trained.outside(held, trained.kept_in(copies, {"model": MODEL})) == {"0.0.2": HEAD}
    left_out = {"model": {"w": W}, "holder": {"of": [{"head": HEAD}]}}
    assert trained.outside(held, trained.kept_in(left_out, {"model": MODEL})) == {"0.0.1": B}, (
        "state_dict() leaves it out"
    )


def test_what_an_optimizer_with_state_has_never_stepped_has_not_moved() -> None:
    assert trained.moved_by([Optimizer([W, B], state={W: {}})]) == {"0.0.0": W}
    assert trained.moved_by([Optimizer([W, B])]) == {"0.0.0": W, "0.0.1": B}, "plain SGD keeps no state"
    both = [Optimizer([W], [HEAD], state={W: {}}), Optimizer([B])]
    assert list(trained.moved_by(both).values()) == [W, HEAD, B], "without momentum a group has none"


@pytest.mark.parametrize(
    "kept",
    [
        {"n_iter": 2, "d": Tensor(0, 12)},  # LBFGS: one flat direction for all.
        {"n_iter": 2, "H_diag": Tensor(0, 4), "old_dirs": [Tensor(0, 12)]},
        {"step": 2},
    ],
)
def test_a_state_at_the_first_tensor_that_is_not_this_ones_alone_is_its_whole_groups(kept: dict[str, Any]) -> None:
    moved = trained.moved_by([Optimizer([W, B, HEAD], state={W: kept})])
    assert moved == {"0.0.0": W, "0.0.1": B, "0.0.2": HEAD}


@pytest.mark.parametrize("state", [{W: {"exp_avg": Tensor(0), "step": Tensor(0, 1)}}, {B: {"step": 2}}])
def test_a_state_of_one_tensors_own_says_that_the_others_have_not_moved(state: dict[Tensor, Any]) -> None:
    assert list(trained.moved_by([Optimizer([W, B], state=state)]).values()) == list(state)


OWN: dict[str, Any] = {"0.1.0": [[4], [0.5, -1.0, 2.0, 0.1]]}


@pytest.mark.parametrize(
    ("other", "is_unlike"),
    [
        ([[4], [0.5, -1.0, 2.0, 0.1]], False),
        ([[4], [0.5001, -1.0, 1.9999, 0.1]], False),  # Rounding.
        ([[4], [0.5, -1.0, None, 0.1]], False),  # A NaN is no other tensor.
        ([[4], [0.5, -0.9, 2.0, 0.1]], True),
        ([[4], [0.0, 0.0, 0.0, 0.0]], True),
        ([[3], [0.5, -1.0, 2.0, 0.1]], True),  # Uneven parts.
    ],
)
def test_a_copy_is_known_from_another_tensor(other: Any, is_unlike: bool) -> None:
    assert trained.unlike(OWN, {"0.1.0": other}) == (["0.1.0"] if is_unlike else [])
    assert trained.unlike(OWN, {}) == [], "nobody knows"


def test_zeros_are_copies_of_each_other() -> None:
    zeros = {"0.1.0": [[2], [0.0, 0.0]]}
    assert trained.unlike(zeros, zeros) == []


def test_the_rank_that_posts_last_learns_what_is_each_ranks_own() -> None:
    store, shared = MemoryStore(), {"0.0.2": [[1], [7.0]]}
    other = {"0.1.0": [[4], [9.0, 1.0, -2.0, 0.1]]}
    assert trained.unlike_ranks(store, 2, 3, {**shared, **other}) == []
    assert trained.unlike_ranks(store, 0, 3, {**shared, **OWN}) == []
    assert trained.unlike_ranks(store, 1, 3, {**shared, **OWN}) == ["0.1.0"]


class Row(list[float]):
    """A tensor with values."""

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self),)

    def numel(self) -> int:
        return len(self)

    def reshape(self, _: int) -> Row:
        return self

    def __getitem__(self, key: Any) -> Any:
        return Row(super().__getitem__(key))

    def copy_(self, other: Row) -> None:
        self[:] = other

    def tolist(self) -> list[float]:
        return list(self)

    detach = double = lambda self: self


def ranks(rank: int) -> Any:
    facts = {"is_available": True, "is_initialized": True, "get_rank": rank, "get_world_size": 2}
    distributed = SimpleNamespace(**{name: lambda v=v: v for name, v in facts.items()})
    return SimpleNamespace(distributed=distributed, no_grad=contextlib.nullcontext)


def test_a_rank_that_had_its_own_does_not_take_rank_0s(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, saved = str(tmp_path / "state.pt"), {"0.0.2": Row([7.0]), "0.1.0": Row([0.5, -1.0])}
    assert _own_places(ranks(1), path, saved) == [], "an older version took no sample"
    sample = trained.sampled({"0.0.2": Row([7.0]), "0.1.0": Row([3.0, float("nan")])})
    checkpoint.write_rank_file(str(tmp_path), 1, {"position": {"outside": sample}})
    assert _own_places(ranks(0), path, saved) == []
    assert capsys.readouterr().err == ""
    assert _own_places(ranks(1), path, saved) == ["0.1.0"]
    assert "rank 0's values of 1 tensor (2: 2 elements), and those of rank 1 were others" in capsys.readouterr().err


@pytest.mark.parametrize(("rank", "own"), [(0, [0.5, -1.0]), (1, [9.0, 9.0])])
def test_at_resume_a_rank_keeps_the_values_that_were_its_own(tmp_path: Path, rank: int, own: list[float]) -> None:
    """They begin anew, as it is told: rank 0's would be neither what it had nor what the script has made."""
    saved = {"0.0.0": Row([7.0]), "0.0.1": Row([0.5, -1.0])}
    sample = trained.sampled({"0.0.0": Row([7.0]), "0.0.1": Row([3.0, 4.0])})
    checkpoint.write_rank_file(str(tmp_path), 1, {"position": {"outside": sample}})
    shared, mine = Row([1.0]), Row([9.0, 9.0])
    saver: Any = SimpleNamespace(_optimizers=[SimpleNamespace(param_groups=[{"params": [shared, mine]}])], _stateful={})
    PlainSaver._load_outside(saver, ranks(rank), str(tmp_path / "state.pt"), saved)
    assert (shared, mine) == ([7.0], own)


def test_only_what_has_everything_takes_the_place_of_what_is_attached() -> None:
    assert trained.covers(MODEL, MODEL)
    assert trained.covers(Module({"x": W, "y": B, "z": HEAD}), MODEL)
    assert not trained.covers(Module({"w": Tensor(400), "b": B}), MODEL)
    assert not trained.covers(Scheduler(None), Optimizer([W]))


class Reporting(Module):
    def get_extra_state(self) -> None:
        pass


@dataclass(eq=False)
class Wrapper(Module):
    module: Any = None


@dataclass(eq=False)
class Compiled(Module):
    _orig_mod: Any = None


def test_only_a_wrapper_that_has_nothing_else_is_taken_off() -> None:
    inner = Module({"w": W})
    replicated = Wrapper({"module.w": W}, inner)
    assert without_replicas(replicated) is inner
    assert without_replicas(Compiled({"_orig_mod.module.w": W}, replicated)) is inner
    adapter = Wrapper({"module.w": W, "adapter": B}, inner)
    assert without_replicas(adapter) is adapter, "a part of the script's own model may be called module"
    assert without_replicas(MODEL) is MODEL
    compiled = Compiled({"_orig_mod.w": W}, MODEL)
    assert without_replicas(compiled) is compiled
    called_so = Wrapper({"module.w": W}, W)
    assert without_replicas(called_so) is called_so, "it is no module"


def test_what_no_checkpoint_has_is_told_and_refused_where_watching_is_required(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COSTGOV_REQUIRED", raising=False)
    trained.warn_lost({"0.0.2": HEAD, "0.0.3": Tensor(0, 1000)}, "the prepared models", "prepare() it", True)
    said = capsys.readouterr().err
    assert "NOT SAVED: the optimizer trains 2 tensors (4, 1000: 1,004 elements) outside of the prepared models" in said
    assert "prepare() it" in said
    monkeypatch.setenv("COSTGOV_REQUIRED", "1")
    trained.warn_lost({}, "the prepared models", "prepare() it", True)
    with pytest.raises(SystemExit):
        trained.warn_lost({"0.0.2": HEAD}, "the prepared models", "prepare() it", False)
    assert capsys.readouterr().err == "", "the first rank says it for all"


def scheduled() -> Optimizer:
    optimizer = Optimizer([W])

    def step() -> None:
        pass

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = step  # type: ignore[method-assign]
    return optimizer


def test_a_scheduler_that_no_checkpoint_has_is_missed() -> None:
    optimizer = scheduled()
    assert trained.lacks_schedule([optimizer], [MODEL, object()])
    assert trained.lacks_schedule([optimizer], [Scheduler(Optimizer([W]))])
    assert not trained.lacks_schedule([optimizer], [Scheduler(optimizer)])
    assert not trained.lacks_schedule([optimizer], [Scheduler(Scheduler(optimizer))]), (
        "a framework's optimizer is around it"
    )
    assert not trained.lacks_schedule([optimizer], [Holder([Scheduler(optimizer)])])
    assert not trained.lacks_schedule([Optimizer([W])], [])


def test_wrappers_of_an_optimizer_that_hold_each_other_are_left() -> None:
    one = Scheduler(None)
    other = Scheduler(one)
    assert innermost(Scheduler(HEAD)) is HEAD
    one.optimizer = other
    assert innermost(one) in (one, other)


def test_a_method_of_the_scripts_is_known_from_a_frameworks() -> None:
    assert trained.is_own(Reporting(), "get_extra_state")
    assert not trained.is_own(MODEL, "get_extra_state")
    framework = type("Base", (), {"__module__": "lightning.pytorch", "state_dict": None})
    assert not trained.is_own(type("Mine", (framework,), {})(), "state_dict")
