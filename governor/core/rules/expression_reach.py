"""Whether expressions can ever be true together: what a person who wrote `loss > 5.0 && loss < 3.0` should hear."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from typing import Final

from governor.core.rules.expression_variables import DOUBLE, INT, STRING, VARIABLES, Value
from governor.core.rules.expressions import Token, compiled, tokens_of, variables_of

POINTS_MAX: Final = 20_000  # Values tried: a tenth of a second. Beyond it nobody can say.
_COMPUTES: Final = frozenset({"+", "*", "/", "%", "?", ".", "["})


def never_true(texts: Sequence[str]) -> bool:
    """Whether no values make all of these checked expressions true. False where that cannot be told.

    It can where variables are only compared, with numbers, words and each other: then only the order of the values
    counts, and all orders are tried. Arithmetic, functions and lists are left alone.
    """
    tokens = [token for text in texts for token in tokens_of(text)]
    if any(token.text in _COMPUTES or token.text in ("double", "int", "in") for token in tokens):
        return False
    names = sorted({name for text in texts for name in variables_of(text)})
    columns = [_values(VARIABLES[name].kind, tokens, len(names)) for name in names]
    count = 1
    for column in columns:
        count *= len(column)
    if count > POINTS_MAX:
        return False
    programs = [compiled(text) for text in texts]
    for point in product(*columns):
        values = dict(zip(names, point, strict=True))
        if all(program.execute(values) is True for program in programs):
            return False
    return True


def _values(kind: str, tokens: Sequence[Token], places: int) -> list[Value]:
    """One value on each number or word of the expressions, and as many between any two as there are variables."""
    if kind == STRING:
        words = sorted({token.text[1:-1] for token in tokens if token.kind == "string"})
        return [*words, *(f"other {index}" for index in range(places))]
    numbers = sorted({sign * float(token.text) for token in tokens if token.kind == "number" for sign in (1, -1)})
    if kind == INT:
        near = {round(number) + step for number in numbers or [0.0] for step in range(-places, places + 1)}
        return sorted(near)
    assert kind == DOUBLE
    return [*numbers, *_between(numbers, places)]


def _between(numbers: Sequence[float], places: int) -> Iterator[float]:
    if not numbers:
        yield from (float(index) for index in range(places))
        return
    yield from (numbers[0] - index for index in range(1, places + 1))
    yield from (numbers[-1] + index for index in range(1, places + 1))
    for low, high in pairwise(numbers):
        yield from (low + (high - low) * index / (places + 1) for index in range(1, places + 1))
