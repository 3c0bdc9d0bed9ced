"""What the main thread is doing, sampled from outside it: evidence for a hang report, never proof."""

from __future__ import annotations

import dis
import hashlib
import os
import sys
from types import CodeType, FrameType
from typing import List, NamedTuple, Optional

from trainer_shim.wire import LIST_ITEMS_MAX

# Calls in which the host waits for a device or for another rank.
DEVICE_WAITS = frozenset(("item", "cpu", "tolist", "synchronize", "wait", "barrier"))
_LIBRARIES = ("/torch/", "/deepspeed/")

# Below these, many minutes without a hook are normal. Paths are as installed: a project may have such names too.
_COMPILERS = (
    "/torch/_dynamo/",
    "/torch/_inductor/",
    "-packages/triton/",
    "/torch/utils/cpp_extension.py",
    os.path.join(os.path.dirname(os.__file__), "subprocess.py"),
)
# But compiled code runs through these at every step: below them nothing compiles.
_RUNNERS = (
    "/torch/_dynamo/eval_frame.py",
    "/torch/_dynamo/external_utils.py",
    "/torch/_inductor/output_code.py",
    "/torch/_inductor/utils.py",
    "/torch/_inductor/runtime/",
    "/triton/runtime/jit.py",
    "/triton/runtime/autotuner.py",
    "/triton/backends/",
)

_LOOK_BACK_WORDS = 48  # From the call to the load of its name: arguments of a wait are few.
_LOAD_NAMES = {dis.opmap[name] for name in ("LOAD_METHOD", "LOAD_ATTR") if name in dis.opmap}
_LOAD_ATTR = dis.opmap["LOAD_ATTR"]
_EXTENDED_ARG = dis.opmap["EXTENDED_ARG"]
# Before 3.12 LOAD_METHOD was an instruction of its own; since then it is the lowest bit of LOAD_ATTR's argument.
_ATTR_SHIFT = 1 if sys.version_info >= (3, 12) else 0


class Sample(NamedTuple):
    """One look at a thread. `frames` innermost first, "file.py:function:line"."""

    frames: List[str]
    digest: str
    device_wait: Optional[str]
    compiling: bool


def sample(thread_id: int) -> Sample:
    """Look at a thread's stack. Cost: 35–100 µs for 65 frames, on the calling thread."""
    frame = sys._current_frames().get(thread_id)
    return Sample([], "", None, False) if frame is None else of_frame(frame)


def of_frame(innermost: FrameType) -> Sample:
    """Describe the stack that ends in this frame."""
    frames: List[str] = []
    compiling = False
    frame: Optional[FrameType] = innermost
    while frame is not None and len(frames) < LIST_ITEMS_MAX:
        code = frame.f_code
        frames.append("%s:%s:%d" % (os.path.basename(code.co_filename), code.co_name, frame.f_lineno or 0))
        compiling = compiling or _compiles(code.co_filename)
        frame = frame.f_back
    digest = hashlib.sha256("\n".join(frames).encode("utf-8", "replace")).hexdigest()[:16]
    return Sample(frames, digest, device_wait(innermost), compiling)


def device_wait(innermost: FrameType) -> Optional[str]:
    """Name the wait in which the innermost frame sits, or None. Reads bytecode: C calls have no frame."""
    called = _called_name(innermost.f_code, innermost.f_lasti)
    if called in DEVICE_WAITS:
        return called
    # Waits that are Python functions around an unnamed C call, e.g. torch.cuda.synchronize.
    code = innermost.f_code
    inside_library = any(part in code.co_filename for part in _LIBRARIES)
    return code.co_name if inside_library and code.co_name in DEVICE_WAITS else None


def _compiles(filename: str) -> bool:
    return any(part in filename for part in _COMPILERS) and not any(part in filename for part in _RUNNERS)


def _called_name(code: CodeType, at: int) -> Optional[str]:
    """The attribute whose call is running at byte offset `at`: the nearest one loaded before it."""
    raw = code.co_code
    if not 0 <= at < len(raw) or not dis.opname[raw[at]].startswith(("CALL", "PRECALL")):
        return None
    for offset in range(at - 2, max(-1, at - 2 * _LOOK_BACK_WORDS), -2):
        if raw[offset] in _LOAD_NAMES:
            index = raw[offset + 1]
            if offset >= 2 and raw[offset - 2] == _EXTENDED_ARG:
                index |= raw[offset - 1] << 8
            if raw[offset] == _LOAD_ATTR:
                index >>= _ATTR_SHIFT
            return code.co_names[index] if index < len(code.co_names) else None
    return None
