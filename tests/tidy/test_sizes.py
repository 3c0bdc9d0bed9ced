"""A page that cannot be read in one sitting is not reviewed."""

from __future__ import annotations

import ast
from collections import Counter

from tests.tidy.sources import PRODUCT, sources

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


FILE_LINES_ALONE = 60  # A shorter file with one importer is a part of it.
FOLDER_FILES_MAX = 22
# One file for each trigger, found by a scan. A policy's word is the file's name, and no file imports another: there may
# be as many as there are triggers.
CATALOGUES = {"governor/core/rules/triggers"}
# One file each, found by a scan, or run as what it is called.
SCANNED = ("/adapters/clouds/", "/adapters/prices/", "/adapters/alerts/", "/adapters/exporters/", "/rules/triggers/")
ALONE = {
    "governor/__main__.py": "`python -m governor`",
    "trainer_shim/engines/select.py": "it imports every engine, and no engine may import it",
    "trainer_shim/version.py": "the two distributions' one version, read by a test and by packaging",
}


def _absolute(module: str, path: str) -> str:
    """`..guard` said in a/b/c.py is a.guard."""
    level = len(module) - len(module.lstrip("."))
    above = path.split("/")[:-level] if level else []
    return ".".join([*above, *filter(None, [module.lstrip(".")])])


def _importers() -> dict[str, set[str]]:
    """Who imports a module, by its path. A name of a package may be a module in it."""
    found: dict[str, set[str]] = {source.path: set() for source in sources(*PRODUCT)}
    for source in sources(*PRODUCT):
        for node, named in source.imports():
            module = _absolute(named, source.path)
            names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            for full in (module, *(f"{module}.{name}" for name in names)):
                path = full.replace(".", "/") + ".py"
                if path in found:
                    found[path].add(source.path)
    return found


def test_no_small_file_has_a_single_importer() -> None:
    importers = _importers()
    alone = [
        f"{source.path} ({lines} lines): {next(iter(importers[source.path]), 'no file')} imports it"
        for source in sources(*PRODUCT)
        if (lines := len(source.text.splitlines())) < FILE_LINES_ALONE
        and len(importers[source.path]) <= 1
        and not source.path.endswith("__init__.py")
        and source.path not in ALONE
        and not any(folder in f"/{source.path}" for folder in SCANNED)
    ]
    assert not alone, f"move each into its importer or into a file that it resembles: {alone}"


def test_no_folder_is_full() -> None:
    files = Counter(source.path.rpartition("/")[0] for source in sources(*PRODUCT))
    full = {folder: count for folder, count in files.items() if count > FOLDER_FILES_MAX}
    assert set(full) <= CATALOGUES, f"part it: {full}"


def test_no_file_of_a_catalogue_imports_another() -> None:
    for path, by in _importers().items():
        folder = path.rpartition("/")[0]
        if folder in CATALOGUES:
            assert not {one for one in by if one.rpartition("/")[0] == folder}, path
