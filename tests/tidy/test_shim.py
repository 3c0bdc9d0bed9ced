"""The shim lives in other people's images: any Python from 3.9 on, nothing installed beside it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from tests.tidy.sources import Source, dotted, imported_by, sources

# Newer than Python 3.9, so not to be counted on although today's interpreter has them.
TOO_NEW = {"tomllib"}
# What a trainer may have; looked for inside functions, when it is there already.
FOUND_LAZILY = {"torch", "deepspeed", "transformers", "accelerate", "numpy", "safetensors"}
TOO_NEW_ARGUMENTS = {"dataclass": {"slots", "kw_only", "match_args", "weakref_slot"}, "zip": {"strict"}}
TOO_NEW_CALLS = {
    "anext",
    "aiter",
    "itertools.pairwise",
    "itertools.batched",
    "os.pidfd_open",
    "signal.pidfd_send_signal",
}


def _at_import(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that importing the module runs, left out what only a type checker reads."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and dotted(node.test).endswith("TYPE_CHECKING"):
            waiting += node.orelse
            continue
        yield node
        for _, value in ast.iter_fields(node):
            if isinstance(value, list):
                waiting += [child for child in value if isinstance(child, ast.stmt)]
                waiting += [s for child in value if isinstance(child, ast.ExceptHandler) for s in child.body]


def _is_stdlib(name: str) -> bool:
    top = name.split(".")[0]
    return name.startswith(".") or top == "trainer_shim" or (top in sys.stdlib_module_names and top not in TOO_NEW)


def test_importing_it_needs_the_standard_library_only() -> None:
    wrong = []
    for source in sources("trainer_shim"):
        for statement in _at_import(source.tree):
            wrong += [f"{source.at(n)} {name}" for n, name in imported_by(statement) if not _is_stdlib(name)]
    assert not wrong, f"import a framework in the function that needs it, and nothing else: {wrong}"


def test_what_it_finds_lazily_is_the_trainers() -> None:
    wrong = [
        f"{source.at(node)} {name}"
        for source in sources("trainer_shim")
        for node, name in source.imports()
        if not _is_stdlib(name) and name.split(".")[0] not in FOUND_LAZILY
    ]
    assert not wrong, f"no trainer has these; if one does, FOUND_LAZILY names it: {wrong}"


def test_its_grammar_is_python_3_9() -> None:
    for source in sources("trainer_shim"):
        ast.parse(source.text, source.path, feature_version=(3, 9))


def test_its_annotations_are_never_evaluated() -> None:
    """`int | None` is an error at run time on 3.9; with the future import it is only text."""
    without = [
        source.path
        for source in sources("trainer_shim")
        if any(not isinstance(a, ast.Name) for a in _annotations(source))
        and "from __future__ import annotations" not in source.text
    ]
    assert not without, without


def test_it_calls_nothing_newer_than_3_9() -> None:
    wrong = [finding for source in sources("trainer_shim") for finding in _too_new(source)]
    assert not wrong, wrong


def _too_new(source: Source) -> Iterator[str]:
    quoted = {id(n) for a in _annotations(source) for n in ast.walk(a)}
    for node in source.named(ast.Call, ast.BinOp):
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            used = {keyword.arg for keyword in node.keywords}
            if name in TOO_NEW_CALLS or used & TOO_NEW_ARGUMENTS.get(name.split(".")[-1], set()):
                yield f"{source.at(node)} {name}"
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and id(node) not in quoted:
            sides = (node.left, node.right)
            if any(isinstance(side, ast.Constant) and side.value is None for side in sides):
                yield f"{source.at(node)} a union evaluated at run time"


def _annotations(source: Source) -> Iterator[ast.expr]:
    for node in source.named(ast.AnnAssign, ast.arg, ast.FunctionDef, ast.AsyncFunctionDef):
        for field in ("annotation", "returns"):
            value = getattr(node, field, None)
            if isinstance(value, ast.expr):
                yield value
