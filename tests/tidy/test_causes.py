"""The causes: something puts time under each of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from governor.core.attribution.causes import Cause
from governor.core.attribution.split import _NAMED
from governor.core.events.step_parts import PARTS
from governor.reports.run.document import _PART_OF
from tests.tidy.sources import Source, sources

# Where causes are named, advised and told; nothing is put under one there.
TELLING = ("governor/core/attribution/causes.py", "governor/core/attribution/rows.py")
# The parts that training itself is made of.
WORK = {"forward", "backward", "optimizer"}


def _asked(source: Source) -> Iterator[ast.AST]:
    """What stands in a comparison, or is looked up: such a name puts nothing."""
    for node in source.named(ast.Compare):
        yield from ast.walk(node)
    for one in source.named(ast.Call):
        if isinstance(one.func, ast.Attribute) and one.func.attr == "get" and one.args:
            yield from ast.walk(one.args[0])


def _put(source: Source) -> Iterator[str]:
    asked = {id(node) for node in _asked(source)}
    for node in source.named(ast.Attribute):
        if isinstance(node.value, ast.Name) and node.value.id == "Cause" and id(node) not in asked:
            yield node.attr


def test_something_puts_time_under_each_cause() -> None:
    meters = [one for one in sources("governor/core/attribution") if one.path not in TELLING]
    assert len(meters) > 3, "the search finds them"
    put = {name for source in meters for name in _put(source)}
    missing = {cause.name for cause in Cause} - put
    assert not missing, f"no module of governor/core/attribution puts anything under {sorted(missing)}"


def test_each_part_of_a_step_is_work_or_has_its_cause() -> None:
    told = set(_PART_OF.values())
    assert PARTS.keys() - told == WORK, "governor/reports/run/document.py: _PART_OF"
    assert {*_PART_OF} >= {cause.value for cause in _NAMED.values()} - {Cause.UNKNOWN.value}
