"""Calls that are wrong here, whatever they would do."""

from __future__ import annotations

import ast
from collections import Counter

from tests.tidy.sources import PRODUCT, Source, dotted, sources

BROAD = {"Exception", "BaseException"}
# The guard around the daemon, the one around who only watches it, and the one around every hook of the shim in the
# training thread.
BROAD_ALLOWED = Counter({"governor/daemon/loop.py": 1, "governor/daemon/observers.py": 1, "trainer_shim/guard.py": 1})

# Everything pure that the core has a use for. A clock, a file or a random number is not in it, and a new name is a
# decision somebody takes here.
CORE_MAY_IMPORT = {
    *("__future__", "abc", "bisect", "collections", "dataclasses", "difflib", "enum", "fractions", "functools"),
    *("hashlib", "heapq", "itertools", "json", "math", "operator", "re", "shlex", "statistics", "string"),
    *("types", "typing"),
    *("importlib", "pkgutil"),  # The sorted directory scan that finds triggers.
}
CORE_MUST_NOT_CALL = {"open", "print", "input", "eval", "exec", "compile", "__import__", "breakpoint", "id", "hash"}


def _is_broad(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(dotted(kind) in BROAD for kind in caught)


def _only_cleans_up(handler: ast.ExceptHandler) -> bool:
    """`except BaseException: undo(); raise`, as before a rollback: it handles nothing."""
    last = handler.body[-1]
    everything = handler.type is not None and dotted(handler.type) == "BaseException"
    return everything and isinstance(last, ast.Raise) and last.exc is None


def _broad_excepts(source: Source) -> int:
    handlers = source.named(ast.ExceptHandler)
    suppressed = [
        node
        for node in source.named(ast.Call)
        if dotted(node.func).endswith("suppress") and any(dotted(argument) in BROAD for argument in node.args)
    ]
    return sum(_is_broad(handler) and not _only_cleans_up(handler) for handler in handlers) + len(suppressed)


def test_broad_excepts_are_exactly_the_guards() -> None:
    found = Counter({source.path: count for source in sources(*PRODUCT) if (count := _broad_excepts(source))})
    assert found == BROAD_ALLOWED


def test_the_core_imports_nothing_that_could_be_impure() -> None:
    wrong = [
        f"{source.at(node)} imports {name}"
        for source in sources("governor/core")
        for node, name in source.imports()
        if name.split(".")[0] not in CORE_MAY_IMPORT and not name.startswith(("governor.core", "."))
    ]
    assert not wrong, wrong


def test_the_core_calls_nothing_that_could_be_impure() -> None:
    """`id` and `hash` too: they differ from process to process, and a replay must not."""
    wrong = [
        f"{source.at(node)} calls {node.func.id}"
        for source in sources("governor/core")
        for node in source.named(ast.Call)
        if isinstance(node.func, ast.Name) and node.func.id in CORE_MUST_NOT_CALL
    ]
    assert not wrong, wrong


def test_one_place_says_why_a_run_ended() -> None:
    """Three look at an end, one after another. What each may overwrite, and whose alarm it is, is decided once."""
    noted = [
        source.path
        for source in sources("governor/core")
        for node in source.named(ast.Call)
        if dotted(node.func).rpartition(".")[2] in {"note_end", "RunEnd"}
        and source.path != "governor/core/runs/intake.py"
    ]
    assert noted == ["governor/core/engine/run_ends.py"] * 2


def test_text_is_made_printable_in_one_place() -> None:
    """Each maker of its own had other exceptions. A command line is quoted for a shell, which is another thing."""
    allowed = {"governor/core/base/printable.py", "governor/core/base/secrets.py"}
    made = [
        source.at(loop)
        for source in sources(*PRODUCT)
        if "isprintable" in source.text and source.path not in allowed
        for loop in source.named(ast.GeneratorExp, ast.ListComp)
        if isinstance(loop, ast.GeneratorExp | ast.ListComp) and isinstance(loop.elt, ast.IfExp)
        if any(isinstance(node, ast.Attribute) and node.attr == "isprintable" for node in ast.walk(loop.elt))
    ]
    assert not made, f"call core.base.printable: {made}"


def test_nothing_is_parsed_by_running_it() -> None:
    unsafe = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    wrong = [
        f"{source.at(node)} imports {name}"
        for source in sources(*PRODUCT)
        for node, name in source.imports()
        if name.split(".")[0] in unsafe
    ]
    wrong += [
        f"{source.at(node)} calls {dotted(node.func)}"
        for source in sources(*PRODUCT)
        for node in source.named(ast.Call)
        if dotted(node.func) in {"eval", "exec", "os.system", "os.popen"}
    ]
    assert not wrong, wrong


def test_tests_wait_on_something_and_never_sleep() -> None:
    """Programs that a drill starts as a trainer may: a step takes time. Nobody imports those."""
    imported = {name for source in sources("tests") for _, name in source.imports()}
    wrong = []
    for source in sources("tests"):
        name = source.path.removesuffix(".py").replace("/", ".")
        if name not in imported and not name.rpartition(".")[2].startswith(("test_", "conftest")):
            continue
        if "sleep" not in source.text:
            continue
        slept = {"time.sleep", "asyncio.sleep"}
        for node in source.named(ast.ImportFrom):
            slept |= {a.asname or a.name for a in node.names if (node.module, a.name) == ("time", "sleep")}
        wrong += [source.at(call) for call in source.named(ast.Call) if dotted(call.func) in slept]
    assert not wrong, f"wait on a pidfd, a socket or a condition instead: {wrong}"


def test_tests_use_no_mocks() -> None:
    """A mock agrees with everything. Fakes here pass the contract suite of the real thing."""
    wrong = []
    for source in sources("tests"):
        wrong += [f"{source.at(node)} {name}" for node, name in source.imports() if name in {"unittest.mock", "mock"}]
        for node in source.named(ast.ImportFrom):
            wrong += [source.at(node) for a in node.names if (node.module, a.name) == ("unittest", "mock")]
        wrong += [
            f"{source.at(node)} {dotted(node)}"
            for node in (source.named(ast.Attribute) if "setattr" in source.text else ())
            if dotted(node) == "monkeypatch.setattr"
        ]
    assert not wrong, wrong
