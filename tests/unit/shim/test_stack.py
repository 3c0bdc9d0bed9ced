"""What a stack sample says, on stacks that are really standing."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer_shim.sight import stack
from trainer_shim.wire import LIST_ITEMS_MAX


class Blocking:
    """Stands in the C call of a lock under the name of a device wait: a bound C method, as torch's are."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        self.item = self.cpu = self.wait = self.fetch = self.lock.acquire


def sampled(run: Callable[[], object], release: Callable[[], None]) -> stack.Sample:
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert thread.ident is not None
    looked = stack.sample(thread.ident)
    while not looked.frames or "test_stack.py" not in looked.frames[0]:
        looked = stack.sample(thread.ident)
    # The thread is on its way into the call: look until it stands still there.
    for _ in range(1000):
        looked = stack.sample(thread.ident)
    release()
    thread.join(20)
    return looked


@pytest.mark.parametrize("name", ["item", "cpu", "wait", "fetch"])
def test_the_innermost_call_is_named_when_it_waits_for_a_device(name: str) -> None:
    held = Blocking()
    calls = {
        "item": lambda: float(held.item()),
        "cpu": lambda: (held.cpu(),),
        "wait": lambda: [held.wait(True)],
        "fetch": lambda: (held.fetch(),),
    }
    looked = sampled(calls[name], held.lock.release)
    assert looked.device_wait == (name if name != "fetch" else None)


def test_waiting_for_another_thread_is_no_device_wait() -> None:
    event = threading.Event()
    thread = threading.Thread(target=lambda: event.wait(20), daemon=True)
    thread.start()
    assert thread.ident is not None
    assert stack.sample(thread.ident).device_wait is None
    event.set()
    thread.join(20)


def test_frames_are_innermost_first_and_bounded() -> None:
    def deeper(depth: int) -> stack.Sample:
        return deeper(depth - 1) if depth else stack.of_frame(sys._getframe())

    looked = deeper(100)
    assert len(looked.frames) == LIST_ITEMS_MAX
    assert looked.frames[0].startswith("test_stack.py:deeper:")
    assert looked.digest == deeper(100).digest, "the same place is the same digest"
    assert looked.digest != deeper(3).digest


def frame_in(filename: str) -> stack.Sample:
    """Sample from inside code that says it stands in that file."""
    space: dict = {"look": lambda: stack.of_frame(sys._getframe().f_back)}
    exec(compile("def run():\n    return look()\n", filename, "exec"), space)
    return space["run"]()


@pytest.mark.parametrize(
    ("filename", "compiling"),
    [
        ("/x/site-packages/torch/_dynamo/convert_frame.py", True),
        ("/x/site-packages/torch/_inductor/compile_fx.py", True),
        ("/x/site-packages/triton/compiler/compiler.py", True),
        ("/x/site-packages/torch/utils/cpp_extension.py", True),
        (subprocess.__file__, True),
        # On the stack of every step of a compiled model, and of every optimizer step of any model.
        ("/x/site-packages/torch/_dynamo/eval_frame.py", False),
        ("/x/site-packages/torch/_inductor/output_code.py", False),
        ("/x/site-packages/triton/runtime/jit.py", False),
        ("/home/ada/train.py", False),
        ("/home/ada/triton/subprocess.py", False),
    ],
)
def test_compilers_are_recognised_and_compiled_code_is_not(filename: str, compiling: bool) -> None:
    assert frame_in(filename).compiling is compiling


def test_a_thread_that_is_gone_is_an_empty_sample() -> None:
    assert stack.sample(-1) == stack.Sample([], "", None, False)


def test_the_shim_is_importable_without_any_dependency() -> None:
    """It lives in other people's images."""
    code = "import sys, trainer_shim.watcher as w; exit(any(m in sys.modules for m in ('torch', 'numpy', 'deepspeed')))"
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], timeout=60)
    assert done.returncode == 0
