"""CEL expressions in policies: what is accepted, and how it is evaluated.

The library (common-expression-language, optional) defines the language and evaluates it. It checks no types before
evaluation, stops at the first operand that decides, and compares a number with a string without an error. So a mistake
could hide in a branch for months. This module therefore splits an expression at the operators that choose between
branches, and evaluates each part with values of the variables' types when the policy is read.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
from collections.abc import Collection, Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from itertools import pairwise, product
from typing import Any, Final, NamedTuple

from governor.core.rules.expression_variables import DOUBLE, INT, STRING, VARIABLES, Value

# The length bounds the work: there are no loops (macros over lists are not accepted) and variables are scalars.
CHARS_MAX: Final = 500
# The depth of brackets. The library's own parser is recursive and fails at about a hundred.
DEPTH_MAX: Final = 16
FUNCTIONS: Final = ("double", "int")
METHODS: Final = ("startsWith", "endsWith", "contains")
INSTALL: Final = "pip install 'costgov[cel]'"

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+)
      |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      |(?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)
      |(?P<name>[A-Za-z_][A-Za-z_0-9]*)
      |(?P<operator>&&|\|\||==|!=|<=|>=|[-+*/%<>!?:.,()\[\]])""",
    re.VERBOSE,
)


def _sample(kind: str, number: int, word: str) -> Value:
    return word if kind == STRING else number + 0.5 if kind == DOUBLE else number


_WORDS: Final = ("true", "false", "in")
_OPERATORS_ELSEWHERE: Final = {
    "and": "&&",
    "or": "||",
    "not": "!",
    "true": "true",
    "false": "false",
}  # By lower-case name.
_OPEN: Final = {"(": ")", "[": "]"}
# Two values of each type, so that a division by zero with one of them does not hide another error.
_SAMPLES: Final = tuple(
    {name: _sample(variable.kind, number, word) for name, variable in VARIABLES.items()}
    for number, word in ((7, "train"), (1_000, "eval"))
)
_TYPES: Final = {bool: "bool", int: INT, float: DOUBLE, str: STRING, list: "list"}


class Token(NamedTuple):
    kind: str
    text: str
    at: int  # The character's index, from 0.


@cache
def library() -> Any | None:
    """The extension module of the CEL library; None when it is not installed.

    Loaded without the package around it, which imports its own command line: 31 MB instead of 5.
    """
    package = importlib.util.find_spec("cel")
    if package is None or package.submodule_search_locations is None:
        return None
    spec = importlib.machinery.PathFinder.find_spec("cel.cel", list(package.submodule_search_locations))
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(text: str) -> str:
    """Return the expression if it is valid. ValueError says what is wrong with it."""
    tokens = tokens_of(text)
    if library() is None:
        raise ValueError(f"needs the CEL library, which is not installed: {INSTALL}")
    _check_names(tokens)
    compiled(text)
    found = _type_of(text, tokens)
    if found != "bool":
        raise ValueError(f"comes to {_article(found)}, not to true or false")
    if not variables_of(text):
        raise ValueError("names no variable: it is the same for every run")
    return text


@cache
def variables_of(text: str) -> tuple[str, ...]:
    """The variables of a checked expression, in the order of their first mention."""
    return tuple(dict.fromkeys(token.text for token in tokens_of(text) if token.text in VARIABLES))


@cache
def compiled(text: str) -> Any:
    """Compile with the library. ValueError when it does not parse."""
    cel = library()
    assert cel is not None, "the caller has looked"
    try:
        return cel.compile(text)
    except ValueError as error:
        said = re.search(r"<input>:[0-9]+:([0-9]+): (?:Syntax error: )?(.{1,60})", str(error))
        where = f"at character {said.group(1)}: {said.group(2)}" if said is not None else "it cannot be parsed"
        raise ValueError(f"is no CEL expression: {where}") from None


def tokens_of(text: str) -> list[Token]:
    """Split a text into tokens. ValueError when it is too long, too deep, or not of the language."""
    if not text.strip():
        raise ValueError('is empty; write for example "loss > 5.0 && step > 1000"')
    if len(text) > CHARS_MAX:
        raise ValueError(f"has {len(text)} characters; {CHARS_MAX} are the most")
    tokens: list[Token] = []
    at = depth = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError(f"{text[at]!r} at character {at + 1} is nothing that an expression is made of here")
        if found.lastgroup != "space":
            tokens.append(Token(str(found.lastgroup), found.group(), at))
            depth += (found.group() in _OPEN) - (found.group() in _OPEN.values())
            if depth > DEPTH_MAX:
                raise ValueError(f"is nested deeper than {DEPTH_MAX} brackets")
        at = found.end()
    return tokens


def _check_names(tokens: list[Token]) -> None:
    for index, token in enumerate(tokens):
        if token.kind != "name":
            continue
        before = tokens[index - 1].text if index else ""
        is_called = index + 1 < len(tokens) and tokens[index + 1].text == "("
        if before == ".":
            if token.text not in METHODS or not is_called:
                raise ValueError(f'".{token.text}" is not known; after a word may stand: {", ".join(METHODS)}')
        elif is_called and token.text not in _WORDS:
            if token.text not in FUNCTIONS:
                raise ValueError(f'function "{token.text[:40]}" is not known; {_meant(token.text, FUNCTIONS)}')
        elif token.text not in VARIABLES and token.text not in _WORDS:
            raise ValueError(f'variable "{token.text[:40]}" is not known; {_meant(token.text, VARIABLES)}')


def _meant(name: str, known: Collection[str]) -> str:
    operator = _OPERATORS_ELSEWHERE.get(name.lower())
    if operator is not None:
        return f"here it is written {operator}"
    close = get_close_matches(name, known, n=1)
    return f'did you mean "{close[0]}"?' if close else f"known: {', '.join(known)}"


# --- types ---------------------------------------------------------------------------------------------------


def _type_of(text: str, tokens: list[Token]) -> str:
    """The type of an expression whose parts all have one. ValueError names the part that has none."""
    choice = _top(tokens, "?")
    if choice:
        return _type_of_choice(text, tokens, choice[0])
    for operator in ("||", "&&"):
        places = _top(tokens, operator)
        if places:
            for part in _parts(tokens, places):
                found = _type_of(text, part)
                if found != "bool":
                    raise ValueError(f'"{_cut(text, part)}" is {_article(found)}: {operator} takes true and false')
            return "bool"
    for inner in _brackets(tokens):
        for part in _parts(inner, _top(inner, ",")):
            if part:
                _type_of(text, part)
    _check_compared(text, tokens)
    return _evaluated(text, tokens)


def _type_of_choice(text: str, tokens: list[Token], question: int) -> str:
    """The type of `condition ? one : other`. "?" and ":" pair as brackets do."""
    open_choices = 0
    for place in sorted([*_top(tokens, "?"), *_top(tokens, ":")]):
        open_choices += 1 if tokens[place].text == "?" else -1
        if open_choices == 0:
            break
    else:
        raise ValueError('has a "?" without its ":"')
    condition, one, other = tokens[:question], tokens[question + 1 : place], tokens[place + 1 :]
    if _type_of(text, condition) != "bool":
        raise ValueError(f'"{_cut(text, condition)}" stands before "?" and is not true or false')
    first, second = _type_of(text, one), _type_of(text, other)
    if first != second:
        raise ValueError(f'"{_cut(text, one)}" is {_article(first)} and "{_cut(text, other)}" {_article(second)}')
    return first


def _check_compared(text: str, tokens: list[Token]) -> None:
    """Check the two sides: in CEL a number and a string are never equal, and comparing them is no error."""
    places = [place for operator in ("==", "!=", "in") for place in _top(tokens, operator)]
    if len(places) != 1:
        # A chain of comparisons compares truth values: evaluation decides.
        return
    left, right = tokens[: places[0]], tokens[places[0] + 1 :]
    kinds = {_type_of(text, left)}
    if tokens[places[0]].text == "in":
        for inner in _brackets(right):
            kinds |= {_type_of(text, part) for part in _parts(inner, _top(inner, ",")) if part}
    else:
        kinds.add(_type_of(text, right))
    if len(kinds) > 1 and not kinds <= {INT, DOUBLE}:
        raise ValueError(f'"{_cut(text, tokens)}" compares {" with ".join(_article(kind) for kind in sorted(kinds))}')


def _evaluated(text: str, tokens: list[Token]) -> str:
    """The type of a part without branches."""
    part = _cut(text, tokens)
    if not part:
        raise ValueError("has an operator with nothing beside it")
    program = compiled(part)
    for sample in _SAMPLES:
        try:
            return _TYPES.get(type(program.execute(dict(sample))), "nothing that a policy judges by")
        except TypeError:
            kinds = {name: VARIABLES[name].kind for name in variables_of(part)}
            named = ", ".join(f"{name} is {_article(kind)}" for name, kind in kinds.items())
            hint = 'CEL does not mix them: write 1.0 for a double, 1 for an int, or "double(step)"'
            raise ValueError(f'types do not go together in "{part}"{f" ({named})" if named else ""}; {hint}') from None
        except (ArithmeticError, LookupError, ValueError, RuntimeError) as error:
            problem = error
    raise ValueError(f'"{part}" cannot be computed: {str(problem)[:80]}')


def _top(tokens: list[Token], text: str) -> list[int]:
    """The places of this operator outside all brackets."""
    places = []
    depth = 0
    for index, token in enumerate(tokens):
        depth += (token.text in _OPEN) - (token.text in _OPEN.values())
        if depth == 0 and token.text == text and token.kind != "string":
            places.append(index)
    return places


def _parts(tokens: list[Token], places: list[int]) -> Iterator[list[Token]]:
    begin = 0
    for place in (*places, len(tokens)):
        yield tokens[begin:place]
        begin = place + 1


def _brackets(tokens: list[Token]) -> Iterator[list[Token]]:
    """The tokens in each outermost pair of brackets."""
    depth = begin = 0
    for index, token in enumerate(tokens):
        if token.text in _OPEN:
            begin = index + 1 if depth == 0 else begin
            depth += 1
        elif token.text in _OPEN.values():
            depth -= 1
            if depth == 0:
                yield tokens[begin:index]


def _cut(text: str, tokens: list[Token]) -> str:
    return text[tokens[0].at : tokens[-1].at + len(tokens[-1].text)] if tokens else ""


def _article(kind: str) -> str:
    return f"an {kind}" if kind == INT else kind if " " in kind else f"a {kind}"


# Whether expressions can ever be true together: a warning for the author of `loss > 5.0 && loss < 3.0`.


# The most combinations that are tried: a tenth of a second. Beyond it the answer is unknown.
POINTS_MAX: Final = 20_000
_COMPUTES: Final = frozenset({"+", "*", "/", "%", "?", ".", "["})


def never_true(texts: Sequence[str]) -> bool:
    """Whether no values make all of these checked expressions true. False when that is unknown.

    It is known when variables are only compared, with numbers, strings and each other: then only the order of the
    values matters, and all orders are tried. Expressions with arithmetic, functions or lists are not judged.
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
    """One value on each number or string of the expressions, and as many between any two as there are variables."""
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
