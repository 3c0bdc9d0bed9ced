"""The compute-optimal model, against the table that the authors of the law published from their other approach."""

import math

import pytest

from governor.planner.model.scaling_law import CHINCHILLA


# Hoffmann et al. 2022, Table 3 (approach 1, which the corrected constants of approach 3 agree with).
@pytest.mark.parametrize(
    ("flops", "params", "tokens"),
    [
        (1.92e19, 0.4e9, 8.0e9),
        (1.21e20, 1e9, 20.2e9),
        (1.23e22, 10e9, 205.1e9),
        (5.76e23, 67e9, 1.5e12),
        (3.85e24, 175e9, 3.7e12),
    ],
)
def test_the_published_table_of_optimal_models(flops: float, params: float, tokens: float) -> None:
    assert CHINCHILLA.best_params(flops) == pytest.approx(params, rel=0.13)
    assert CHINCHILLA.best_tokens(flops) == pytest.approx(tokens, rel=0.13)


def test_the_optimum_is_one() -> None:
    flops = 1e22
    best = CHINCHILLA.best_params(flops)
    least = CHINCHILLA.loss(best, flops / 6 / best)
    for factor in (0.5, 0.9, 1.1, 2.0):
        assert CHINCHILLA.loss(best * factor, flops / 6 / best / factor) > least
    assert CHINCHILLA.tokens_for(best) == pytest.approx(CHINCHILLA.best_tokens(flops))


def test_a_smaller_model_needs_more_tokens_for_the_same_loss_and_at_last_never_has_it() -> None:
    loss = CHINCHILLA.loss(8e9, 160e9)
    assert CHINCHILLA.equal_tokens(8e9, loss) == pytest.approx(160e9)
    assert CHINCHILLA.equal_tokens(6e9, loss) > 160e9
    assert CHINCHILLA.equal_tokens(1e8, loss) == math.inf
