"""No module, and no room, needs itself: imports inside functions and for the type checker count as well.

`lint-imports` holds the floors. Below them, two modules of one room could still need each other.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Mapping

from tests.tidy.sources import PRODUCT, Source, sources


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imports(source: Source, known: Mapping[str, object]) -> set[str]:
    """The modules of the product that this one imports. `from a.b import c` is a.b.c where that is a module."""
    package = _module(source.path).split(".")
    if not source.path.endswith("/__init__.py"):
        package.pop()
    found = set()
    for node in source.named(ast.Import, ast.ImportFrom):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            names = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base for alias in node.names]
        found |= {name for name in names if name in known}
    return found


def circles(read: Iterable[Source]) -> list[list[str]]:
    """Every set of modules in which each reaches each other one, and every such set of rooms beside another."""
    named = {_module(source.path): source for source in read}
    needs = {name: _imports(source, named) for name, source in named.items()}
    modules = _circles(needs)
    return [*modules, *(circle for circle in _circles(_rooms(needs)) if circle not in modules)]


def _rooms(needs: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Folders that stand side by side, and the arrows between them: a.b.c that needs a.d.e is a.b that needs a.d."""
    found: dict[str, set[str]] = {}
    for name, others in needs.items():
        for other in others:
            mine, its = name.split("."), other.split(".")
            same = next((i for i, (a, b) in enumerate(zip(mine, its, strict=False)) if a != b), None)
            if same is not None and same < min(len(mine), len(its)):
                room, beside = ".".join(mine[: same + 1]), ".".join(its[: same + 1])
                found.setdefault(room, set()).add(beside)
                found.setdefault(beside, set())
    return found


def _circles(needs: Mapping[str, set[str]]) -> list[list[str]]:
    reached = {name: _reached(name, needs) for name in needs}
    found = {frozenset(o for o in reached[name] if name in reached[o]) for name in needs if name in reached[name]}
    return sorted(sorted(circle) for circle in found)


def _reached(start: str, needs: Mapping[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = [*needs[start]]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += needs[name]
    return seen


def test_no_module_and_no_room_needs_itself() -> None:
    found = circles(sources(*PRODUCT))
    assert not found, f"one of each circle's arrows must go: {found}"


def _with(path: str, line: str) -> list[Source]:
    return [_planted(source, line) if source.path == path else source for source in sources(*PRODUCT)]


def _planted(source: Source, line: str) -> Source:
    return dataclasses.replace(source, text=f"{source.text}\n{line}\n")


def test_a_circle_of_modules_is_found_although_only_the_type_checker_reads_the_import() -> None:
    line = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from governor.core.runs.state import Run"
    assert circles(_with("governor/core/runs/life.py", line)) == [
        ["governor.core.runs.life", "governor.core.runs.state"]
    ]


def test_a_circle_of_rooms_is_found_although_no_module_needs_itself() -> None:
    line = "def late() -> None:\n    from governor.adapters.alerting import tables"
    rooms = [f"governor.adapters.{name}" for name in ("alerting", "alerts", "http")]
    assert circles(_with("governor/adapters/http/price_lookup.py", line)) == [rooms]
