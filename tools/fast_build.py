"""Build a compiled copy of the package, for replays of many logs: `make fast`; docs/adr/0017.

`python -m tools.fast_build [DIRECTORY]`, by default build/fast. The copy is the whole package, with what judges each
record compiled by mypyc; beside it stand the launcher `costgov` and a stamp of the sources that it was made from. It
replays, tunes and tests policies and does nothing else: no daemon is ever started from it.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import io
import os
import shlex
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
FAST: Final = ROOT / "build/fast"
PACKAGES: Final = ("governor", "trainer_shim")
STAMP: Final = "stamp"
LAUNCHER: Final = "costgov"

# Compiled is what a replay loads of the core, and of the rest what every record passes. By that rule a new trigger is
# compiled together with its base classes: a class whose base stays interpreted loses its own attributes without a word.
ENTRY: Final = "governor.replay.play"
CORE: Final = "governor.core"
TRIGGERS: Final = "governor.core.rules.triggers"
RECORD_PATH: Final = frozenset({"governor.replay.play", "governor.wire.records", "governor.wire.jsonl"})
# Of these the rest, each with what mypyc makes of it. Everything else is asked once a log, or once a command.
INTERPRETED: Final = {
    "governor.core.money.budgets": "checked_fractions is given ints and floats mixed; compiled it takes floats alone",
    "governor.core.engine.run_forecast": "_landing unpacks a generator into three names, which mypyc refuses",
    "governor.core.engine.overrun": "a dict comprehension over reversed(…) crashes mypyc 2.4",
}

_LAUNCHER: Final = """#!/bin/sh
# Made by `make fast`: replays policies with the compiled copy beside it.
here=$(dirname "$(readlink -f "$0")")
case "$1 $2" in
  "policy replay" | "policy tune" | "policy test") ;;
  *) echo "costgov: the compiled copy only does policy replay, tune and test; for the rest: {plain}" >&2; exit 2 ;;
esac
if [ -n "$(find {sources} -name '*.py' -newer "$here/stamp" -print -quit 2>/dev/null)" ]; then
  echo "costgov: this compiled copy is older than its sources: make fast" >&2
fi
PYTHONPATH="$here${{PYTHONPATH:+:$PYTHONPATH}}" exec {python} -P -m governor "$@"
"""


def lacking() -> str | None:
    """What this machine lacks to compile, in one line; None: nothing."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "gcc")[0]
    if shutil.which(compiler) is None:
        return f"no C compiler ({compiler}): apt-get install gcc libc6-dev"
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        return f"no headers of this Python ({header}): apt-get install python3-dev"
    return None


def modules() -> list[str]:
    """Which modules are compiled, sorted."""
    triggers = (ROOT / TRIGGERS.replace(".", "/")).glob("*.py")
    waiting = [ENTRY, *RECORD_PATH, *(f"{TRIGGERS}.{path.stem}" for path in triggers if path.stem != "__init__")]
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in found and (name in RECORD_PATH or name.startswith(f"{CORE}.")) and _path(name).exists():
            found.add(name)
            waiting += _imported(_path(name))
    return sorted(found - INTERPRETED.keys())


def _path(module: str) -> Path:
    return ROOT / (module.replace(".", "/") + ".py")


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def stamp() -> str:
    """Of the sources as they are now, and of what they are compiled by."""
    whole = hashlib.sha256(f"{sys.version} {version('mypy')}".encode())
    for path in sorted((Path(__file__), *(path for name in PACKAGES for path in (ROOT / name).rglob("*")))):
        if path.is_file() and path.suffix != ".pyc" and not any("egg-info" in part for part in path.parts):
            data = path.read_bytes()
            whole.update(f"{path.relative_to(ROOT)} {len(data)}\n".encode() + data)
    return whole.hexdigest()


# gcc's -O level. Most of the minutes are its second; 0 makes the same program, slower, which is enough to test.
OPTIMISE = "COSTGOV_FAST_O"


def is_stale(directory: Path = FAST) -> bool:
    """Whether the copy was made from other sources than those of now. OSError where there is none."""
    return (directory / STAMP).read_text() != stamp()


def build(directory: Path) -> None:
    """Make the copy, whole or not at all: until then an earlier one stays. SystemExit where mypyc refuses a module."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        (staged / STAMP).write_text(stamp())  # First: what is changed from here on is newer.
        for name in PACKAGES:
            shutil.copytree(ROOT / name, staged / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        _compile(staged)
        plain = Path(sys.executable).with_name("costgov")
        launcher = staged / LAUNCHER
        sources = " ".join(shlex.quote(str(ROOT / name)) for name in PACKAGES)
        launcher.write_text(_LAUNCHER.format(python=shlex.quote(sys.executable), plain=plain, sources=sources))
        launcher.chmod(0o755)
        staged.chmod(0o755)
        shutil.rmtree(directory, ignore_errors=True)
        staged.rename(directory)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _compile(tree: Path) -> None:
    from mypyc.build import mypycify
    from setuptools import setup

    paths = [str(_path(name).relative_to(ROOT)) for name in modules()]
    with tempfile.TemporaryDirectory() as work, contextlib.chdir(tree):
        settings = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", f"{work}/mypy"]
        # One file of C for everything, so that calls between modules are calls of C.
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):  # That it makes lists of generators, mostly.
                extensions = mypycify(
                    [*settings, *paths],
                    opt_level=os.environ.get(OPTIMISE, "2"),
                    debug_level="0",
                    target_dir=f"{work}/c",
                )
        except SystemExit:
            sys.stderr.write(said.getvalue())
            raise
        places = ["--build-temp", f"{work}/objects", "--build-lib", f"{work}/lib"]
        setup(
            name="costgov-fast",
            packages=[],
            ext_modules=extensions,
            script_name="setup.py",
            script_args=["--quiet", "build_ext", "--inplace", *places],
        )


def main(arguments: list[str]) -> int:
    lacks = lacking()
    if lacks is not None:
        print(f"make fast: {lacks}", file=sys.stderr)
        return 1
    directory = Path(arguments[0]).resolve() if arguments else FAST
    if (directory / LAUNCHER).exists() and not is_stale(directory):
        print(f"make fast: {directory} is up to date")
        return 0
    print(f"make fast: compiling {len(modules())} modules into {directory}: two to four minutes", flush=True)
    build(directory)
    print(f"make fast: {directory / LAUNCHER} policy replay …")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
