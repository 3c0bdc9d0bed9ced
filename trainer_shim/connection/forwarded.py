"""What `costgov run` tells ranks of other nodes, in one variable that launchers pass on: its name begins with PYTHON.

DeepSpeed's launcher for several nodes takes along what begins so, and nothing of ours. It puts values into a shell's
line, in quotes at best. So the value has no character that a shell knows: it is JSON in URL-safe base64.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Dict, Mapping, Optional, Tuple

from trainer_shim.guard import print_line

VARIABLE = "PYTHON_COSTGOV"
INSIDE = "COSTGOV_INSIDE"  # What inherits the environment of `costgov run` has it.
# What a rank reads and what is of no one machine.
NAMES = (
    "COSTGOV_RUN", "COSTGOV_UNNAMED_RUN", "COSTGOV_STAGE", "COSTGOV_LABELS", "COSTGOV_ATTEMPT", "COSTGOV_REQUIRED",
    "COSTGOV_SIGNAL", "COSTGOV_CHECKPOINT_DIR",
)  # fmt: skip
_SOCKETS = ("COSTGOV_SOCKET",)  # `costgov run` sets it. What a person has set besides may be meant for every node.
CHARS_MAX = 32 * 1024  # A quarter of what Linux takes as one argument: a launcher may put it there.
_BOOT = "/proc/sys/kernel/random/boot_id"


def boot_id() -> str:
    """Return the kernel's id of this boot, empty where there is none."""
    try:
        with open(_BOOT, encoding="ascii") as stream:
            return stream.read(64).strip()
    except (OSError, ValueError):
        return ""


def told(environ: Mapping[str, str]) -> Optional[str]:
    """Return the variable's value for what starts with that environment on this machine. None: there is too much."""
    names = {name: environ[name] for name in NAMES if environ.get(name)}
    sockets = {name: environ[name] for name in _SOCKETS if environ.get(name)}
    text = json.dumps([boot_id(), names, sockets], separators=(",", ":"))
    value = base64.urlsafe_b64encode(text.encode("ascii")).decode("ascii").rstrip("=")
    return value if len(value) <= CHARS_MAX else None


def with_forwarded(environ: Mapping[str, str]) -> Dict[str, str]:
    """Return the environment with what was told to this rank. What stands in it already counts.

    On another machine than the one where `costgov run` is, the socket there is left out: the places of this machine's
    own governor are tried.
    """
    value = environ.get(VARIABLE)
    if not value:
        return dict(environ)
    found = _read(value)
    if found is None:
        print_line("%s is not what costgov wrote: the launcher has changed it; it is left out" % VARIABLE)
        return dict(environ)
    boot, names, sockets = found
    is_here = bool(boot) and boot == boot_id()
    if is_here and INSIDE in environ:
        return dict(environ)  # Whoever started this rank has taken out what is missing.
    known = dict(environ) if is_here else {k: v for k, v in environ.items() if sockets.get(k) != v}
    return {**names, **known}


def _read(value: str) -> Optional[Tuple[str, Dict[str, str], Dict[str, str]]]:
    if len(value) > CHARS_MAX:
        return None
    try:
        found: Any = json.loads(base64.b64decode(value + "=" * (-len(value) % 4), altchars=b"-_", validate=True))
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list) or len(found) != 3 or not isinstance(found[0], str):
        return None
    boot, names, sockets = found
    is_ours = _is_ours(names, NAMES) and _is_ours(sockets, _SOCKETS)
    return (boot, names, sockets) if is_ours else None


def _is_ours(part: Any, allowed: Tuple[str, ...]) -> bool:
    return isinstance(part, dict) and all(
        name in allowed and isinstance(value, str) and "\0" not in value for name, value in part.items()
    )
