"""No two modules of the shim need each other: imports inside functions and for type checkers count too."""

from __future__ import annotations

import graphlib
from pathlib import Path

import trainer_shim
from tests.tidy.sources import Source, sources


def _module(source: Source) -> str:
    return source.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imported(source: Source, known: set[str]) -> set[str]:
    """The shim's modules that this one imports, wherever the statement stands."""
    package = _module(source) if source.path.endswith("__init__.py") else _module(source).rpartition(".")[0]
    found = set()
    for node, name in source.imports():
        level = len(name) - len(name.lstrip("."))
        parts = package.split(".")
        base = ".".join([*parts[: len(parts) - level + 1], *filter(None, [name.lstrip(".")])]) if level else name
        names = {f"{base}.{alias.name}" for alias in getattr(node, "names", [])} & known
        found |= names or ({base} & known)
    return found


def test_imports_form_no_circle() -> None:
    files = sources("trainer_shim")
    known = {_module(source) for source in files}
    graph = {_module(source): _imported(source, known) for source in files}
    assert "trainer_shim.meter" in graph["trainer_shim.attach"], "relative imports are understood"
    assert "trainer_shim.engines.plain" in graph["trainer_shim.engines.select"], "imports inside functions count"
    graphlib.TopologicalSorter(graph).prepare()


def test_the_package_is_this_trees() -> None:
    assert Path(trainer_shim.__file__ or "").is_relative_to(Path(__file__).parents[3])
