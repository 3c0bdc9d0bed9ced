"""Calls that are wrong here, whatever they would do."""

from __future__ import annotations

import ast
import re
from collections import Counter

import pytest

from tests.tidy.sources import PRODUCT, Source, dotted, sources

BROAD = {"Exception", "BaseException"}
# The guard around the daemon, the ones around its threads that ask etcd, the one around who only watches it, the one
# around one request of anyone, and the one around every hook of the shim in the training thread. The gate's, which
# hands what its thread has raised to who waits for that. And two around what is only said: one run's account, beside
# which other runs have theirs, and the closing line, which is no exit code.
BROAD_ALLOWED = Counter(
    {
        "governor/adapters/command/gate.py": 1,
        "governor/cli/run/supervise.py": 1,
        "governor/core/attribution/rows.py": 1,
        "governor/daemon/loop.py": 1,
        "governor/daemon/observers.py": 1,
        "governor/daemon/request_faults.py": 1,
        "governor/daemon/fleet/orders.py": 1,
        "governor/daemon/fleet/worker.py": 1,
        "trainer_shim/guard.py": 1,
    }
)

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


# They read what the kernel or we have written, or look for secrets, where more digits hide more.
KNOW_MORE_DIGITS = (
    "governor/adapters/machine/", "governor/adapters/command/", "governor/adapters/trainers/deciders.py",
    "governor/core/base/secret", "governor/core/engine/", "governor/core/halt/programs.py",
)  # fmt: skip


def _digits_of_all_scripts(source: Source) -> list[str]:
    found = [
        source.at(node)
        for node in source.named(ast.Constant)
        if isinstance(node.value, str) and "\\d" in node.value and "re.ASCII" not in source.text
    ]
    asked = {"isdigit", "isdecimal", "isnumeric"}
    return found + [source.at(node) for node in source.named(ast.Attribute) if node.attr in asked]


def test_a_strangers_digits_are_those_of_ascii() -> None:
    """`\\d`, isdecimal() and int() know the digits of every script: "\N{ARABIC-INDIC DIGIT TWO}" is no price.

    A number from text is asked for by `is_whole`, `read_float`, `read_amount`, or a pattern of [0-9].
    """
    wrong = [
        place
        for source in sources("governor")
        if not source.path.startswith(KNOW_MORE_DIGITS) and source.path != "governor/core/base/units.py"
        for place in _digits_of_all_scripts(source)
    ]
    assert not wrong, wrong


# They show or keep text by other rules: a command line is quoted for a shell, a drawing has the signs of its font.
MAKERS = {"governor/core/base/printable.py", "governor/core/base/secrets.py", "governor/replay/output/picture.py"}


def _made_text(source: Source) -> list[str]:
    """Where text is made printable or storable: by character, by a pattern, or by an encoding that escapes.

    A question about a whole text that is then refused makes none. Not seen: a table for `translate`, a character that
    is handed to a function of its own.
    """
    if not re.search(r"isprintable|\bord\(|backslashreplace|\bre\.", source.text):
        return []
    whole: set[ast.AST] = set()  # Questions about a text of many: all(... for text in texts).
    for call in source.named(ast.Call):
        if dotted(call.func) in {"all", "any"}:
            whole |= {node for argument in call.args for node in ast.walk(argument)}
    made: list[ast.AST] = [call for call in source.named(ast.Call) if _is_code_point(call) or _escapes(call)]
    parts: list[ast.AST] = [
        *(part for kind in (ast.GeneratorExp, ast.ListComp) for part in source.named(kind) if part not in whole),
        *source.named(ast.Lambda),
        *(choice.test for choice in source.named(ast.IfExp) if not _refuses(choice)),
    ]
    for loop in source.named(ast.For):
        names = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
        parts += [node for node in ast.walk(loop) if _asks(node) & names]
    made += [node for part in parts for node in ast.walk(part) if _is_question(node)]
    called = {call.func for call in source.named(ast.Call) if not call.args}
    made += [node for node in source.named(ast.Attribute) if _is_question(node) and node not in called]
    return sorted({source.at(node) for node in made})


def _is_question(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "isprintable"


def _refuses(choice: ast.IfExp) -> bool:
    return any(isinstance(one, ast.Constant) and one.value is None for one in (choice.body, choice.orelse))


def _asks(node: ast.AST) -> set[str]:
    is_call = isinstance(node, ast.Call) and _is_question(node.func)
    return {name.id for name in ast.walk(node) if isinstance(name, ast.Name)} if is_call else set()


def _is_code_point(call: ast.Call) -> bool:
    return dotted(call.func) == "ord"


def _escapes(call: ast.Call) -> bool:
    """`text.encode(..., "backslashreplace").decode()`, or a pattern that finds what steers a terminal and no letter."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "decode" and isinstance(call.func.value, ast.Call):
        words = [*call.func.value.args, *(keyword.value for keyword in call.func.value.keywords)]
        return any(isinstance(word, ast.Constant) and word.value == "backslashreplace" for word in words)
    if not dotted(call.func).startswith("re.") or not call.args or not isinstance(call.args[0], ast.Constant):
        return False
    pattern = re.compile(str(call.args[0].value))
    return all(pattern.search(char) for char in "\x00\x1b\x7f") and not pattern.search("a~Z")


def test_text_is_made_printable_in_one_place() -> None:
    """Each maker of its own had other exceptions."""
    made = [at for source in sources(*PRODUCT) if source.path not in MAKERS for at in _made_text(source)]
    assert not made, f"call core.base.printable: {made}"


@pytest.mark.parametrize(
    "line",
    [
        '"".join(c if c.isprintable() else "?" for c in text)',
        '"".join(["?" if not c.isprintable() else c for c in text])',
        '"".join(c for c in text if c.isprintable())',
        '"".join(map(lambda c: c if c.isprintable() else "?", text))',
        '"".join(filter(str.isprintable, text))',
        '"".join(c if ord(c) >= 32 else "?" for c in text)',
        're.sub(r"[^ -~]", "?", text)',
        're.sub(r"[\\x00-\\x1f\\x7f]", "", text)',
        'text.encode("utf-8", "backslashreplace").decode()',
        'text.encode(errors="backslashreplace").decode("ascii")',
        'text if text.isprintable() else repr(text)',
        '"".join(_shown(c) for c in text)\n\n\nfor c in "x":\n    print(c if c.isprintable() else "?")',
        'text\nfor c in "x":\n    if not c.isprintable():\n        break',
    ],
)  # fmt: skip
def test_each_way_to_make_text_is_found(line: str) -> None:
    assert _made_text(Source("governor/text/planted.py", f"shown = {line}\n"))


def test_who_refuses_a_text_or_takes_a_name_apart_makes_none() -> None:
    fine = (
        "if not text.isprintable() or not all(one.isprintable() for one in texts):\n    raise ValueError\n"
        "kept = text if text.isprintable() else None\n"
        'name = re.sub(r"[^A-Za-z0-9._-]", "-", text)\nbare = re.sub("\\x1b\\\\[[0-9;]*m", "", text)\n'
    )
    assert _made_text(Source("governor/text/planted.py", fine)) == []


def _only_writes(node: ast.stmt) -> bool:
    """`from pickle import Pickler`: what it writes is read by torch, with names that are allowed one by one."""
    return isinstance(node, ast.ImportFrom) and {one.name for one in node.names} == {"Pickler"}


def test_nothing_is_parsed_by_running_it() -> None:
    unsafe = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    wrong = [
        f"{source.at(node)} imports {name}"
        for source in sources(*PRODUCT)
        for node, name in source.imports()
        if name.split(".")[0] in unsafe and not _only_writes(node)
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


def _reads_a_log_at_once(statement: ast.Assert) -> bool:
    """`assert … X.log.read_text() …`; `not in` alone cannot fail by a line that comes late."""
    operators = [op for node in ast.walk(statement.test) if isinstance(node, ast.Compare) for op in node.ops]
    if operators and all(isinstance(op, ast.NotIn) for op in operators):
        return False
    calls = [node for node in ast.walk(statement.test) if isinstance(node, ast.Call)]
    return any(dotted(call.func).endswith(".log.read_text") for call in calls)


def test_drills_wait_for_a_line_of_a_governors_log() -> None:
    """A thread writes it: `status` and an incident may tell of what the log has not yet."""
    planted = [ast.parse(line).body[0] for line in (
        'assert governor.log.read_text().count("x") == 1', 'assert "x" in made.log.read_text()',
        'assert "x" not in governor.log.read_text()', "assert is_over(), governor.log.read_text()",
    )]  # fmt: skip
    assert [isinstance(one, ast.Assert) and _reads_a_log_at_once(one) for one in planted] == [True, True, False, False]
    wrong = [
        source.at(statement)
        for source in sources("tests")
        if source.path.startswith("tests/drills/") and ".log.read_text" in source.text
        for statement in source.named(ast.Assert)
        if _reads_a_log_at_once(statement)
    ]
    assert not wrong, f"wait with until_said, or count in log_at_end: {wrong}"


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
