"""The emulation of NVFP4 computes what the format and its recipe say. Nothing here is about speed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from benchmarks.low_precision.formats import (
    BITS,
    hadamard,
    mxfp4,
    mxfp8,
    nvfp4,
    relative_error,
    rotated,
    round_e2m1,
    round_e4m3,
)
from benchmarks.low_precision.linear import Linear, Recipe, Rounding, replace_linears

GRID = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads that wait for one another on a busy machine take a hundred times as long as these matrices need."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed))


def test_e2m1_rounds_to_the_nearest_of_its_eight_sizes_and_ties_to_the_even_code() -> None:
    x = torch.linspace(-7, 7, 2801)
    nearest = (x.abs()[:, None] - GRID).abs().min(1).values
    assert torch.allclose((round_e2m1(x) - x).abs(), nearest, atol=1e-6)
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert round_e2m1(ties).tolist() == [0, 1, 1, 2, 2, 4, 4]
    assert round_e2m1(-ties).tolist() == [-0.0, -1, -1, -2, -2, -4, -4]


def test_the_largest_value_is_off_by_its_scales_own_rounding_and_by_nothing_else() -> None:
    x = normal(32, 64)
    encode = 448 * 6 / x.abs().max()
    held = nvfp4(x)
    blocks, held_blocks = x.reshape(32, 4, 16), held.reshape(32, 4, 16)
    place = blocks.abs().argmax(-1, keepdim=True)
    amax = blocks.gather(-1, place).abs()
    expected = 6 * round_e4m3(amax / 6 * encode) / encode
    assert torch.equal(held_blocks.gather(-1, place).abs(), expected)
    assert float(((expected - amax).abs() / amax).max()) <= 2**-4  # Half of E4M3's last place.
    assert torch.allclose(held.abs().max(), x.abs().max(), rtol=1e-6)  # The tensor's own: 448 is one of E4M3's values.


def test_what_the_format_can_hold_it_keeps() -> None:
    x = torch.cat([GRID, -GRID]).repeat(16, 2)
    assert torch.equal(nvfp4(x), x)
    assert torch.equal(mxfp4(x), x)
    assert torch.equal(mxfp8(x), x)
    assert torch.equal(nvfp4(nvfp4(normal(16, 64))), nvfp4(normal(16, 64)))


def test_no_mx_block_saturates() -> None:
    """OCP's rounding down of the scale leaves 256 to 512 for the largest, of which E4M3 holds 448."""
    x = torch.full((1, 32), 1.0)
    x[0, 0] = 1.99
    assert float((mxfp8(x) - x).abs().max()) <= 2**-4
    assert float(mxfp8(x)[0, 0]) == 2.0
    assert float(mxfp4(x)[0, 0]) == 2.0


def test_zeros_stay_zeros_and_what_is_not_a_number_stays_so() -> None:
    x = normal(16, 32)
    x[3, :16] = 0
    assert torch.equal(nvfp4(x)[3, :16], torch.zeros(16))
    assert torch.equal(nvfp4(torch.zeros(16, 16)), torch.zeros(16, 16))
    x[5, 5] = float("nan")
    assert nvfp4(x).isnan().any()


@pytest.mark.parametrize("shape", [(16, 20), (3, 16, 16)])
def test_a_matrix_without_whole_blocks_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="it takes rows that are a multiple of 16 long"):
        nvfp4(torch.zeros(shape))
    with pytest.raises(ValueError, match="both sides multiples of 16"):
        nvfp4(torch.zeros(20, 16), square=True)
    with pytest.raises(ValueError, match="no whole blocks to rotate"):
        rotated(torch.zeros(16, 20), torch.eye(16))


def test_stochastic_rounding_is_right_on_average_and_rounding_to_nearest_is_not() -> None:
    x, draws = torch.linspace(0.01, 5.99, 400), 4000
    mean = round_e2m1(x.repeat(draws, 1), generator(1)).mean(0)
    assert float((mean - x).abs().max()) < 5 / draws**0.5  # Half the widest gap, 1, is the most that a draw deviates.
    assert float((round_e2m1(x) - x).abs().max()) > 0.9


def test_stochastic_rounding_is_right_on_average_below_the_largest_of_a_block() -> None:
    """The largest itself may lie above 6 once its scale is rounded, and saturates: no rounding mends that."""
    x, draws = normal(16, 64).clamp(-2, 2), 2000
    x[:, ::16] = 3.0
    others = torch.ones(64, dtype=torch.bool)
    others[::16] = False
    mean = nvfp4(x.repeat(draws, 1), generator=generator(1)).reshape(draws, 16, 64).mean(0)
    assert float((mean - x)[:, others].abs().max()) < 5 * 0.5 / draws**0.5  # 2 of 3: gaps of 1 at most, scaled by half.
    assert float((nvfp4(x) - x)[:, others].abs().max()) > 0.1


def test_stochastic_rounding_costs_error_and_gives_only_neighbours() -> None:
    x = torch.linspace(0, 6, 997)
    rounded = round_e2m1(x, generator())
    lower = torch.where(x[:, None] >= GRID, GRID, -1).amax(1)
    upper = torch.where(x[:, None] <= GRID, GRID, 9).amin(1)
    assert bool(((rounded == lower) | (rounded == upper)).all())
    y = normal(64, 64)
    assert relative_error(y, nvfp4(y, generator=generator())) > 1.3 * relative_error(y, nvfp4(y))


def test_the_hadamard_rotation_cancels_in_the_weight_gradient() -> None:
    matrix = Rounding(0).matrix.double()
    assert torch.allclose(matrix @ matrix.T, torch.eye(16, dtype=torch.float64), atol=1e-12)
    assert set(matrix.abs().flatten().tolist()) == {0.25}
    left, right = normal(48, 64).double(), normal(80, 64, seed=1).double()
    assert torch.allclose(rotated(left, matrix) @ rotated(right, matrix).T, left @ right.T, atol=1e-10)
    assert not torch.equal(Rounding(0).matrix, Rounding(1).matrix)


def test_the_rotation_spreads_an_outlier_over_its_block() -> None:
    """Rounded alone, one large value among small ones wipes them out; spread, all are off a little."""
    x = 0.01 * normal(64, 16)
    x[:, 3] = 1.0
    matrix = hadamard(torch.ones(16))
    small = torch.ones(16, dtype=torch.bool)
    small[3] = False
    back = rotated(nvfp4(rotated(x, matrix)), matrix.T)
    assert float(nvfp4(x)[:, small].abs().max()) == 0
    assert float(back[:, small].abs().max()) > 0


def test_square_scales_are_the_same_for_the_transpose_and_rows_are_not() -> None:
    weight = normal(48, 64)
    assert torch.equal(nvfp4(weight, square=True).T, nvfp4(weight.T.contiguous(), square=True))
    assert not torch.equal(nvfp4(weight).T, nvfp4(weight.T.contiguous()))


def test_finer_scales_are_nearer() -> None:
    """Why NVFP4 and not MXFP4: blocks of 16 for 32, and scales that are not only powers of two."""
    x = normal(256, 256)
    error = {
        name: relative_error(x, held) for name, held in [("mxfp8", mxfp8(x)), ("nvfp4", nvfp4(x)), ("mxfp4", mxfp4(x))]
    }
    assert error["mxfp8"] < error["nvfp4"] / 3
    assert error["nvfp4"] < 0.9 * error["mxfp4"]
    assert BITS["nvfp4"] == 4.5


def layer(recipe: Recipe, seed: int = 0) -> Linear:
    torch.manual_seed(seed)
    return Linear(nn.Linear(64, 48), recipe, Rounding(seed))


def passed(recipe: Recipe) -> tuple[Tensor, Tensor, Tensor]:
    """Output, gradient of the input, gradient of the weight."""
    one = layer(recipe)
    x = normal(2, 16, 64).requires_grad_()
    out = one(x)
    (out * normal(2, 16, 48, seed=2)).sum().backward()
    assert x.grad is not None
    assert one.weight.grad is not None
    return out.detach(), x.grad, one.weight.grad


def test_in_fp32_it_is_an_ordinary_layer() -> None:
    torch.manual_seed(0)
    plain = nn.Linear(64, 48)
    x = normal(2, 16, 64).requires_grad_()
    (plain(x) * normal(2, 16, 48, seed=2)).sum().backward()
    out, to_x, to_weight = passed(Recipe("fp32", "fp32"))
    assert torch.allclose(out, plain(x).detach(), atol=1e-6)
    assert torch.allclose(to_x, x.grad, atol=1e-6)
    assert torch.allclose(to_weight, plain.weight.grad, atol=1e-5)


def test_each_part_of_the_recipe_touches_its_own_matmul() -> None:
    whole = passed(Recipe())
    changes = {
        "hadamard": (Recipe(has_hadamard=False), (True, True, False)),
        "stochastic": (Recipe(has_stochastic_gradients=False), (True, False, False)),
        "backward": (Recipe(backward="bf16"), (True, False, False)),
        # Square weights leave the weight gradient alone, which has no weight in it.
        "square": (Recipe(has_square_weights=False), (False, False, True)),
        "forward": (Recipe(forward="bf16"), (False, True, True)),
    }
    for name, (recipe, same) in changes.items():
        assert tuple(torch.equal(a, b) for a, b in zip(whole, passed(recipe), strict=True)) == same, name


def test_the_late_switch_gives_the_forward_pass_of_bf16() -> None:
    assert torch.equal(passed(Recipe(forward="bf16"))[0], passed(Recipe("bf16", "bf16"))[0])


def test_bf16_keeps_eight_bits_of_each_input() -> None:
    one = layer(Recipe("bf16", "bf16"))
    x = normal(2, 16, 64)
    rounded = x.bfloat16().float() @ one.weight.detach().bfloat16().float().T + one.bias.detach()
    assert torch.allclose(passed(Recipe("bf16", "bf16"))[0], rounded, atol=1e-6)
    assert not torch.equal(passed(Recipe("bf16", "bf16"))[0], passed(Recipe("fp32", "fp32"))[0])


def test_gradients_point_where_they_should() -> None:
    for exact, found in zip(passed(Recipe("fp32", "fp32")), passed(Recipe()), strict=True):
        cosine = nn.functional.cosine_similarity(exact.flatten(), found.flatten(), dim=0)
        assert 0.95 < float(cosine) < 0.9999


def test_only_what_is_a_linear_layer_is_replaced() -> None:
    model = nn.Sequential(nn.Embedding(16, 16), nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)), nn.Linear(16, 32))
    assert replace_linears(model, Recipe(), Rounding(0)) == 2
    assert [type(one).__name__ for one in model.modules() if not list(one.children())] == [
        "Embedding", "Linear", "LayerNorm", "Linear",
    ]  # fmt: skip
    assert isinstance(model[2], Linear)


def test_a_small_model_learns_through_it() -> None:
    """A line through noise: NVFP4 ends near what FP32 reaches, from a loss four times as high."""
    x, truth = normal(512, 32), normal(32, 16, seed=3)
    ends = {}
    for precision in ("fp32", "nvfp4"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 16))
        replace_linears(model, Recipe(precision, precision), Rounding(0))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        losses = []
        for _ in range(60):
            loss = nn.functional.mse_loss(model(x), x @ truth)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        ends[precision] = losses[-1] / losses[0]
    assert ends["fp32"] < ends["nvfp4"] < 0.25


def test_the_demos_model_switches_late_and_keeps_its_last_block() -> None:
    from benchmarks.low_precision.loss_gap import FULL, Variant, model_of, train
    from examples.train_bytes import Sources

    kept, _ = model_of(Variant("", FULL, blocks_kept=1), seed=0)
    assert [{one.recipe.forward for one in block.modules() if isinstance(one, Linear)} for block in kept.blocks] == [
        {"nvfp4"}, {"bf16"},
    ]  # fmt: skip
    assert type(kept.head) is nn.Linear
    sources = Sources()
    variants = Variant("", FULL), Variant("", FULL, late_forward="bf16"), Variant("", Recipe("bf16"))
    plain, late, early = (train(one, 0, 3, sources) for one in variants)
    assert late[:2] == plain[:2]  # 82 % of three steps are two.
    assert late[2] != plain[2]
    assert early[0] != plain[0]
    assert Recipe() == FULL  # The switch is each run's own.
