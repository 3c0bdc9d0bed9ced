"""What the tidy tests read: the tree's own Python files, each parsed when first asked about, and walked once."""

from __future__ import annotations

import ast
import gc
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("governor", "trainer_shim")
Node = TypeVar("Node", bound=ast.AST)


# What holds statements of its own: a statement, or a part of one that is none.
_BLOCKS = (ast.stmt, ast.ExceptHandler, ast.match_case)


@dataclass(frozen=True)
class Source:
    path: str  # Relative to the root, with slashes.
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        tree = ast.parse(self.text, self.path)
        gc.freeze()  # Half a million nodes that live to the end: the collector took half the time of all these tests.
        return tree

    def at(self, node: ast.AST) -> str:
        return f"{self.path}:{getattr(node, 'lineno', 1)}"

    @cached_property
    def _blocks(self) -> dict[type[ast.AST], list[ast.AST]]:
        return _by_kind(self.tree, _BLOCKS)

    @cached_property
    def _nodes(self) -> dict[type[ast.AST], list[ast.AST]]:
        return _by_kind(self.tree, ast.AST)

    def named(self, *kinds: type[Node]) -> Iterator[Node]:
        """Every node of exactly these kinds: each kind in the order of the text, one kind after the other."""
        found = self._blocks if all(issubclass(kind, _BLOCKS) for kind in kinds) else self._nodes
        for kind in kinds:
            for node in found.get(kind, ()):
                assert isinstance(node, kind)
                yield node

    def imports(self) -> Iterator[tuple[ast.stmt, str]]:
        """(node, absolute module) of every import statement; relative ones begin with a dot."""
        for node in self.named(ast.Import, ast.ImportFrom):
            yield from imported_by(node)


@cache
def sources(*tops: str) -> tuple[Source, ...]:
    """Every .py file below these directories, sorted. Builds left by packaging are not ours to judge."""
    found = (path.relative_to(ROOT) for top in tops for path in sorted((ROOT / top).rglob("*.py")))
    return tuple(_read(path) for path in found if "build" not in path.parts)


@cache
def _read(path: Path) -> Source:
    return Source(str(path), (ROOT / path).read_text(encoding="utf-8"))


def _by_kind(tree: ast.AST, within: type[ast.AST] | tuple[type[ast.AST], ...]) -> dict[type[ast.AST], list[ast.AST]]:
    """The nodes of a tree that are reached through nodes of these kinds. Statements alone are a tenth of all."""
    kinds: dict[type[ast.AST], list[ast.AST]] = {}
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        kinds.setdefault(type(node), []).append(node)
        below: list[ast.AST] = []
        for value in vars(node).values():
            if isinstance(value, list):
                below += [one for one in value if isinstance(one, within)]
            elif isinstance(value, within):
                below.append(value)
        waiting += reversed(below)
    return kinds


@cache
def text_files() -> tuple[tuple[str, str], ...]:
    """Every text file that is, or is about to be, in version control, beside its content. Without git: none."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True
    )
    found = []
    for name in sorted(filter(None, listed.stdout.decode().split("\0"))):
        path = ROOT / name
        if path.is_file():
            data = path.read_bytes()
            if b"\0" not in data:
                found.append((name, data.decode("utf-8", errors="replace")))
    return tuple(found)


def dotted(node: ast.AST) -> str:
    """`time.sleep` for that expression, "" for what is not a chain of names."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def imported_by(node: ast.stmt) -> Iterator[tuple[ast.stmt, str]]:
    """What this statement imports, each name beside it; nothing where it is no import."""
    if isinstance(node, ast.Import):
        yield from ((node, alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield node, "." * node.level + (node.module or "")
