"""What the tidy tests read: the tree's own Python files, parsed once."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("governor", "trainer_shim")


@dataclass(frozen=True)
class Source:
    path: str  # Relative to the root, with slashes.
    text: str
    tree: ast.Module

    def at(self, node: ast.AST) -> str:
        return f"{self.path}:{getattr(node, 'lineno', 1)}"

    def named(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        return (node for node in ast.walk(self.tree) if isinstance(node, kinds))


@cache
def sources(*tops: str) -> tuple[Source, ...]:
    """Every .py file below these directories, sorted. Builds left by packaging are not ours to judge."""
    found = []
    for top in tops:
        for path in sorted((ROOT / top).rglob("*.py")):
            relative = path.relative_to(ROOT)
            if "build" in relative.parts:
                continue
            text = path.read_text(encoding="utf-8")
            found.append(Source(str(relative), text, ast.parse(text, str(relative))))
    return tuple(found)


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


def imports(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """(node, absolute module) of every import statement below `tree`; relative ones begin with a dot."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node, "." * node.level + (node.module or "")
