"""The manifest of a checkpoint as all read it: resume() in the trainer, and the governor's reader after a halt.

Both ask the same functions whether a checkpoint is one. They differ in what they can spend on it: the governor reads
fewer bytes, and what it does not read is not torn to it but unknown.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from trainer_shim.wire import TEXT_CHARS_MAX

MANIFEST = "costgov_manifest.json"
NAME_BYTES_MAX = 4096  # PATH_MAX.
DEPTH_MAX = 32  # Two or three are usual.
OWN_FILES = "costgov_"  # Generators and positions: without weights they are no checkpoint.
_OPEN_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_COUNT_MAX = 2**63  # No disk holds more, and a sum of larger numbers is longer than Python writes out.
_UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


class TornError(Exception):
    """The checkpoint is not whole: its text is the reason."""


class CrowdedError(Exception):
    """It has more entries than its reader wants."""


class Entry(NamedTuple):
    """One file. The governor holds a hundred thousand of them, so there is no more to it."""

    path: str
    size: int
    sha256: Optional[str]
    node: Optional[str]


class IrregularError(OSError):
    """A directory, a pipe, a socket or a device."""

    def __init__(self, full: str) -> None:
        super().__init__(errno.EINVAL, "is no regular file", full)


def opened(full: str) -> int:
    """Open a file to read it. Raises OSError; IrregularError for what is no regular file, and that is not opened.

    A pipe waits for its writer, and opening a device may act on it.
    """
    if not stat.S_ISREG(os.stat(full).st_mode):
        raise IrregularError(full)
    fd = os.open(full, _OPEN_FLAGS)
    if not stat.S_ISREG(os.fstat(fd).st_mode):  # It was replaced a moment ago.
        os.close(fd)
        raise IrregularError(full)
    return fd


def open_regular(full: str) -> Tuple[int, os.stat_result]:
    """As `opened`, with its facts. Raises OSError, or TornError for what is no regular file."""
    try:
        fd = opened(full)
    except IrregularError as error:
        raise TornError(error.strerror) from error
    return fd, os.fstat(fd)


def size_fault(full: str, size: int) -> Optional[str]:
    """What is wrong with a file that shall have so many bytes. Raises PermissionError for one that we may not read."""
    try:
        facts = os.stat(full)
        if not stat.S_ISREG(facts.st_mode):  # Opening a pipe would wait for its writer.
            return "is no regular file"
        if not os.access(full, os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except PermissionError:
        raise
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return "cannot be read: %s" % (error.strerror or error)
    return None if facts.st_size == size else "has %d bytes instead of %d" % (facts.st_size, size)


def parse(raw: bytes, entries_max: Optional[int] = None) -> Dict[str, Any]:
    """Return a manifest with `files` as entries. Raises TornError, or CrowdedError above `entries_max`.

    It may be read by another user than wrote it: no entry may point outside the directory. Facts beside step and files
    are left out where they make no sense.
    """
    try:
        manifest = json.loads(raw.decode("utf-8"), object_pairs_hook=_Entries(entries_max))
    except (ValueError, RecursionError) as error:
        raise TornError("the manifest cannot be parsed") from error
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, list) or not all(isinstance(entry, Entry) for entry in files):
        raise TornError("the manifest cannot be parsed")
    if not is_count(manifest.get("step")):
        raise TornError("the manifest cannot be parsed")
    sane = {"tokens_total": is_count, "created_unix_s": _is_time, "run": is_run_name, "origin": _is_origin}
    return {name: value for name, value in manifest.items() if name not in sane or sane[name](value)}


class _Entries:
    """Makes entries of the manifest's objects, and gives up at the limit: not after a million of them."""

    def __init__(self, most: Optional[int]) -> None:
        self._left = math.inf if most is None else most + 64  # The manifest itself, and what else it may say.

    def __call__(self, pairs: Sequence[Tuple[str, Any]]) -> Any:
        self._left -= 1
        if self._left < 0:
            raise CrowdedError
        found: Dict[str, Any] = dict(pairs)
        size: Any = found.get("bytes")
        name, sha256, node = (found.get(key) for key in ("path", "sha256", "node"))
        if not isinstance(name, str) or not is_inside(name) or not is_count(size):
            return found
        if not isinstance(sha256, (str, type(None))) or not isinstance(node, (str, type(None))):
            return found
        return Entry(name, size, sha256, node)


def is_count(value: Any) -> bool:
    """Whether it can be a size on a disk, or a number of steps."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _COUNT_MAX


def is_run_name(value: Any) -> bool:
    """Whether a run can be called so: no hello carries more."""
    return isinstance(value, str) and 0 < len(value) <= TEXT_CHARS_MAX


def origin_of(value: Any) -> Optional[Dict[str, Any]]:
    """Return where what a run trained began, as a checkpoint says it (origin.py); None where it makes no sense."""
    if not isinstance(value, dict):
        return None
    if not value:
        return {}
    origin = {name: value[name] for name in ("run", "step", "tokens_total") if value.get(name) is not None}
    is_known = is_run_name(origin.get("run")) and is_count(origin.get("step"))
    return origin if is_known and is_count(origin.get("tokens_total", 0)) else None


def _is_origin(value: Any) -> bool:
    return origin_of(value) is not None


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _COUNT_MAX


def is_inside(name: str) -> bool:
    """No entry may point outside the directory."""
    parts = name.split("/")
    try:
        short = len(os.fsencode(name)) <= NAME_BYTES_MAX and len(parts) <= DEPTH_MAX
    except UnicodeEncodeError:  # Half of a surrogate pair: no file is called so.
        return False
    return bool(name) and short and "\0" not in name and not name.startswith("/") and ".." not in parts


def count_bytes(manifest: Dict[str, Any]) -> Optional[str]:
    """Compare what the files hold with what the manifest says that its parameters need. Raises TornError.

    The manifest is the trainer's word, and so are the sizes of other nodes' files. It guards against a framework that
    saved elsewhere, or only a part. None: the manifest does not count.
    """
    files: List[Entry] = manifest["files"]
    held = sum(entry.size for entry in files if not os.path.basename(entry.path).startswith(OWN_FILES))
    parameters, needed = manifest.get("parameters"), manifest.get("bytes_min")
    found = "its files hold %s" % _bytes(held)
    if held == 0:
        raise TornError(found)
    if not is_count(parameters) or not is_count(needed) or not needed:
        return None
    found += f"; {parameters:,} parameters and their optimizer need at least {_bytes(needed)}"
    if held < needed:
        raise TornError(found)
    return found


def _bytes(count: int) -> str:
    unit = next((unit for unit in _UNITS if count >= unit[0]), (1, "bytes"))
    return f"{count / unit[0]:,.1f} {unit[1]}" if unit[0] > 1 else "%d bytes" % count
