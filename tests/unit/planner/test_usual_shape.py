"""A dense model of any size: near the size asked for, and for known sizes as Llama has them."""

import pytest

from governor.planner.catalog import model_named
from governor.planner.model.scaling_law import usual_shape


@pytest.mark.parametrize("params", [1e8, 5e8, 1e9, 3e9, 8e9, 2e10, 7e10, 4e11, 1e12])
def test_it_has_nearly_as_many_parameters(params: float) -> None:
    assert usual_shape(params).params == pytest.approx(params, rel=0.07)


@pytest.mark.parametrize("name", ["llama3-8b", "llama3-70b"])
def test_of_a_llamas_size_it_is_that_llama(name: str) -> None:
    known = model_named(name)
    shape = usual_shape(known.params)
    assert (shape.layers, shape.hidden, shape.kv_heads) == (known.layers, known.hidden, known.kv_heads)
    assert shape.ffn == pytest.approx(known.ffn, rel=0.01)
