"""The shim's README names what is in somebody else's process, and is held to the code."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib

import pytest

import trainer_shim
from tests.tidy.sources import ROOT, sources
from trainer_shim.engines.deepspeed_comm import COLLECTIVES
from trainer_shim.engines.waits import torch_comm
from trainer_shim.saving import save_at_step

README = (ROOT / "trainer_shim/README.md").read_text()
NAMED = set(re.findall(r"`([^`\n]+)`", README))


def _calls(name: str) -> list[ast.Call]:
    return [
        node
        for source in sources("trainer_shim")
        for node in source.named(ast.Call)
        if ast.unparse(node.func).split(".")[-1] == name
    ]


def test_every_method_that_is_replaced_is_named() -> None:
    calls = [*_calls("replace"), *_calls("give_once")]
    literal = {a.value for call in calls for a in call.args[2:3] if isinstance(a, ast.Constant)}
    assert {"forward", "train_batch", "_save_checkpoint", "fit", "train"} <= literal, "the search finds them"
    assert literal <= NAMED, f"trainer_shim/README.md, Hooks by name, lacks {literal - NAMED}"
    assert {"makedirs", "save", "commit", "_copy_recovery_script", "_INSTRUCTION_MAP"} <= NAMED
    assert {COLLECTIVES[0], COLLECTIVES[-1]} <= NAMED
    assert {next(iter(torch_comm.COLLECTIVES)), list(torch_comm.COLLECTIVES)[-1], torch_comm.BUFFERS} <= NAMED


def test_every_registered_hook_thread_and_end_of_the_process_is_named() -> None:
    threads = {k.value.value for c in _calls("Thread") for k in c.keywords if isinstance(k.value, ast.Constant)}
    names = {name for name in threads if isinstance(name, str)}
    assert {"costgov-listener", "costgov-agree"} <= names, "the search finds them"
    assert names <= NAMED, f"trainer_shim/README.md, Threads, lacks {names - NAMED}"
    registered = {
        name
        for name in ("register_forward_pre_hook", "register_forward_hook", "register_step_pre_hook")
        if _calls(name)
    }
    assert len(registered) == 3
    assert registered <= NAMED
    assert len(_calls("_exit")) == 1, "README: called nowhere else"
    assert len(_calls("register_at_fork")) == 3
    assert len([c for c in _calls("register") if ast.unparse(c.func) == "atexit.register"]) == 2, "README: two handlers"
    assert f"no governor for {save_at_step.GONE_NS // 10**9} s" in README
    assert f"{save_at_step.OVERDUE_NS // 10**9} s past the deadline" in README


def test_every_keyword_and_variable_is_named() -> None:
    keywords = set(inspect.signature(trainer_shim.attach).parameters) - {"engine", "make_watch"}
    unnamed = {name for name in keywords if f"{name}=" not in README}
    assert not unnamed
    texts = {node.value for source in sources("trainer_shim") for node in source.named(ast.Constant)}
    variables = {text for text in texts if isinstance(text, str) and re.fullmatch(r"COSTGOV_[A-Z_]+", text)}
    assert "COSTGOV_SOCKET" in variables
    assert not {name for name in variables if name not in README}


@pytest.mark.parametrize("package", ["torch", "deepspeed"])
def test_the_versions_drilled_are_the_pinned_ones(package: str) -> None:
    demo = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["demo"]
    (pinned,) = [line.split("==")[1] for line in demo if line.startswith(f"{package}==")]
    row = next(line for line in README.splitlines() if line.lower().startswith(f"| {package} |"))
    assert pinned in row
