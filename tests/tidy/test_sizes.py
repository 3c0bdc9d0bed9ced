"""A page that cannot be read in one sitting is not reviewed."""

from __future__ import annotations

import ast

from tests.tidy.sources import sources

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
MEASURED = ("governor", "trainer_shim", "tests", "examples", "benchmarks", "docs")


def test_files_are_short() -> None:
    long = {
        source.path: lines for source in sources(*MEASURED) if (lines := len(source.text.splitlines())) > FILE_LINES_MAX
    }
    assert not long, f"longer than {FILE_LINES_MAX} lines: {long}"


def test_functions_are_short() -> None:
    long = []
    for source in sources(*MEASURED):
        for node in source.named(ast.FunctionDef, ast.AsyncFunctionDef):
            assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                long.append(f"{source.at(node)} {node.name}: {lines}")
    assert not long, f"longer than {FUNCTION_LINES_MAX} lines: {long}"
