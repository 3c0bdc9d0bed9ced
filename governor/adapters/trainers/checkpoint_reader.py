"""The process that reads one checkpoint for the governor, with the rights of the checkpoint's owner.

It reads files that a stranger has written, so it is a process of its own: what it may use is limited, it holds nothing
of the daemon's, and it can be killed where a thread could not. It imports the standard library and the shim, and
starts in a few hundredths of a second. One request comes as a line of JSON on stdin; a dot a second goes out while it
gets on, then one line of JSON: the answer. The format of the manifest is trainer_shim's (saving/manifest.py).
"""

from __future__ import annotations

import codecs
import errno
import json
import os
import resource
import select
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from governor.adapters.machine.parent_death import end_with
from governor.adapters.trainers.checkpoint_files import ENTRIES_MAX, Weight, list_files, weigh
from governor.core.base.printable import storable
from trainer_shim.saving.manifest import (
    MANIFEST,
    CrowdedError,
    Entry,
    TornError,
    count_bytes,
    open_regular,
    parse,
    size_fault,
)
from trainer_shim.saving.weights_sample import sample

MANIFEST_BYTES_MAX: Final = 24 << 20  # So many entries of 250 bytes: a name, a size, a hash, a node.
# A manifest of the full length takes 120 MiB, the interpreter 30.
MEMORY_BYTES_MAX: Final = 192 << 20
DESCRIPTORS_MAX: Final = 16
# The shim hashes for at most a minute on each rank. One reader needs eight minutes for what eight ranks hashed.
HASH_TIME_MAX_S: Final = 900.0
CPU_TIME_MAX_S: Final = 960
ANSWER_BYTES_MAX: Final = 16 * 1024
REASON_CHARS_MAX: Final = 500
ENOUGH: Final = b"enough\n"  # A second line on stdin: others wait, so say what you have.
_OWN_TAG: Final = "cg_"  # A checkpoint that the shim has named has a manifest, or is none.
# Of zips' names and of pickles. Python imports one when it is first used, and the user may not read Python's folders.
_CODECS: Final = ("cp437", "ascii", "raw_unicode_escape", "unicode_escape")
_CHUNK_BYTES: Final = 4 << 20
_FAULTS_TOLD: Final = 3
_DOT_EVERY_S: Final = 1.0


class UnreadError(Exception):
    """It cannot be said whether the checkpoint is whole: its text is the reason."""


class Answer(NamedTuple):
    """Of look()."""

    whole: bool | None  # None: it cannot be said.
    files: int
    hashed: int
    reason: str
    counted: str | None = None  # What its files hold and what its parameters need. None: the manifest does not count.
    nonfinite: str | None = None  # The file and the tensor in which a sample has a NaN or an infinity.
    unsampled: str | None = None  # What of its weights was not looked into.
    few_harmed: str | None = None  # As in weights_sample.Sampled.


class FindAnswer(NamedTuple):
    """Of find()."""

    there: bool | None  # None: it cannot be said.
    reason: str
    nonfinite: str | None = None
    unsampled: str | None = None
    torn: str | None = None  # What of it is missing or cut short.
    lacks: str | None = None  # What a training that goes on from it begins anew.
    few_harmed: str | None = None


def line_of(answer: Answer | FindAnswer | Weight) -> bytes:
    return b"\n" + json.dumps(answer._asdict()).encode() + b"\n"


# --- what this process may do ---------------------------------------------------------------------------------


def confine() -> None:
    """Take from this process what it does not need. Before anything of a stranger is read."""
    for name in _CODECS:
        codecs.lookup(name)
    for what, limit in (
        (resource.RLIMIT_AS, MEMORY_BYTES_MAX),
        (resource.RLIMIT_CPU, CPU_TIME_MAX_S),
        (resource.RLIMIT_NOFILE, DESCRIPTORS_MAX),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    ):
        _, hard = resource.getrlimit(what)
        most = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(what, (most, most))
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")  # The governor's own is -900. Where memory lacks, this process goes first.
    except OSError:  # Without /proc nothing is lost but this.
        pass


def become(uid: int, gid: int) -> None:
    """Go on with the rights of a user, in no group but `gid`. Without root the rights stay as they are."""
    if os.geteuid() == 0 and uid != 0:
        try:
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
        except OSError as error:
            raise UnreadError(f"the reader may not become uid {uid}: {error.strerror}") from error


# --- the manifest ---------------------------------------------------------------------------------------------


class Progress:
    """Tells the governor, by a dot a second, that this process gets on. One that hangs is silent.

    `asked`: what is readable once the governor wants the answer now.
    """

    def __init__(self, fd: int, asked: int | None = None) -> None:
        self._fd = fd
        self._asked = asked
        self._dot_at = time.monotonic() + _DOT_EVERY_S

    def step(self) -> None:
        if time.monotonic() >= self._dot_at:
            self._dot_at = time.monotonic() + _DOT_EVERY_S
            os.write(self._fd, b".")

    def is_enough(self) -> bool:
        return self._asked is not None and bool(select.select([self._asked], [], [], 0)[0])


def read_manifest(path: str) -> dict[str, Any]:
    """The manifest with `files` as entries. Raises UnreadError, or TornError."""
    fd, facts = _open_manifest(path)
    try:
        if facts.st_size > MANIFEST_BYTES_MAX:
            raise UnreadError(
                f"the manifest has {facts.st_size:,} bytes: more than {MANIFEST_BYTES_MAX:,} are not read"
            )
        return parse(b"".join(_chunks(fd, facts.st_size)), ENTRIES_MAX)
    except CrowdedError as error:
        raise UnreadError(f"the manifest has more than {ENTRIES_MAX:,} entries: that many are not read") from error
    except MemoryError as error:
        raise UnreadError(f"the manifest needs more memory than a reader has: {MEMORY_BYTES_MAX >> 20} MiB") from error
    finally:
        os.close(fd)


def _open_manifest(directory: str) -> tuple[int, os.stat_result]:
    try:
        return open_regular(os.path.join(directory, MANIFEST))
    except TornError as error:
        raise TornError(f"the manifest {error}") from error
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            is_there = os.path.exists(os.path.dirname(directory) or "/")
            raise UnreadError("not readable by the governor" if is_there else "not visible here") from error
        if error.errno in (errno.EACCES, errno.EPERM):
            raise UnreadError("not readable by the governor") from error
        raise TornError(f"the manifest cannot be read: {error.strerror}") from error


def _chunks(fd: int, size: int) -> Iterator[bytes]:
    """The first `size` bytes, or fewer where the file shrinks."""
    while size > 0 and (chunk := os.read(fd, min(size, _CHUNK_BYTES))):
        size -= len(chunk)
        yield chunk


# --- its files ------------------------------------------------------------------------------------------------


def check_sizes(path: str, entries: Sequence[Entry], progress: Progress) -> None:
    """Raises UnreadError, or TornError."""
    faults: list[str] = []
    for entry in entries:
        progress.step()
        try:
            fault = size_fault(os.path.join(path, entry.path), entry.size)
        except PermissionError as error:
            raise UnreadError(f"{entry.path} is not readable by the governor") from error
        if fault is not None:
            faults.append(f"{entry.path} {fault}")
            if len(faults) == _FAULTS_TOLD:
                break
    if faults:
        raise TornError("; ".join(faults))


def check_hashes(path: str, entries: Sequence[Entry], progress: Progress, hash_s: float) -> int:
    """Compare while time lasts. Returns how many were hashed. Raises TornError."""
    faults: list[str] = []
    until = time.monotonic() + hash_s
    hashed = 0
    for entry in entries:
        if entry.sha256 is None:
            continue
        equal = _has_hash(os.path.join(path, entry.path), entry, progress, until)
        if equal is None:
            break
        if not equal:
            faults.append(f"{entry.path} differs from its hash")
            if len(faults) == _FAULTS_TOLD:
                break
        hashed += 1
    if faults:
        raise TornError("; ".join(faults))
    return hashed


def _has_hash(full: str, entry: Entry, progress: Progress, until: float) -> bool | None:
    """Whether the file's contents are the manifest's. None: time is up."""
    import hashlib  # OpenSSL's. See main().

    digest = hashlib.sha256()
    try:
        fd, _ = open_regular(full)
    except OSError as error:
        raise TornError(f"{entry.path} cannot be read: {error.strerror}") from error
    except TornError as error:  # It was one, a moment ago.
        raise TornError(f"{entry.path} {error}") from error
    try:
        for chunk in _chunks(fd, entry.size):
            digest.update(chunk)
            progress.step()
            if time.monotonic() > until or progress.is_enough():
                return None
    except OSError as error:
        raise TornError(f"{entry.path} cannot be read: {error.strerror}") from error
    finally:
        os.close(fd)
    return digest.hexdigest() == entry.sha256


def look(path: str, progress: Progress, hash_s: float = HASH_TIME_MAX_S) -> Answer:
    files = 0
    try:
        manifest = read_manifest(path)
        entries: list[Entry] = manifest["files"]
        files = len(entries)
        counted = count_bytes(manifest)
        here = os.uname().nodename
        mine = [entry for entry in entries if entry.node in (None, here)]
        check_sizes(path, mine, progress)
        sizes = [(entry.path, entry.size) for entry in entries]
        seen = sample(path, sizes, progress.step, mine=[entry.path for entry in mine])
        harm, torn, left = (None if text is None else _short(text) for text in (seen.harm, seen.torn, seen.unsampled))
        if torn is not None:
            return Answer(False, files, 0, torn, nonfinite=harm)
        hashed = check_hashes(path, mine, progress, hash_s)
    except UnreadError as error:
        return Answer(None, files, 0, _short(error))
    except TornError as error:
        return Answer(False, files, 0, _short(error))
    except MemoryError:
        return Answer(None, files, 0, f"a reader has {MEMORY_BYTES_MAX >> 20} MiB, and this needs more")
    if hashed == sum(entry.sha256 is not None for entry in entries):
        text = "every file is there with its size and hash"
        return Answer(True, files, hashed, text, counted, harm, left, seen.few_harmed)
    reason = f"every file is there with its size; {hashed} hashes were compared in time"
    return Answer(True, files, hashed, reason, counted, harm, left, seen.few_harmed)


def find(path: str, progress: Progress) -> FindAnswer:
    """Whether a checkpoint is still there, and samples of its weights: of a file, or of all below a directory.

    A directory of ours must have its manifest. Lightning's own checkpoints are single files.
    """
    try:
        facts = os.stat(path)
        if stat.S_ISREG(facts.st_mode):
            if not facts.st_size:
                return FindAnswer(False, "is empty")
            return _with_sample(os.path.dirname(path), [(os.path.basename(path), facts.st_size)], progress)
        names = {entry.name for entry, _ in zip(os.scandir(path), range(ENTRIES_MAX), strict=False)}
    except FileNotFoundError:
        if not os.path.isdir(os.path.dirname(path.rstrip("/")) or "/"):
            return FindAnswer(None, "not visible here")  # Another mount, or another machine's disk.
        return FindAnswer(False, "is no longer there")
    except OSError as error:
        return FindAnswer(None, f"cannot be looked at: {error.strerror}")
    except ValueError:  # A zero, or half of a surrogate pair.
        return FindAnswer(None, "its path names no file")
    if not names:
        return FindAnswer(False, "is empty")
    if os.path.basename(path.rstrip("/")).startswith(_OWN_TAG) and MANIFEST not in names:
        return FindAnswer(False, "has lost its manifest")
    try:
        elsewhere, unread = _unlike_manifest(path, progress) if MANIFEST in names else ([], None)
    except TornError as error:
        return FindAnswer(True, "is there", torn=_short(error))
    files, unlisted = list_files(path, progress.step)
    return _with_sample(path, files, progress, unlisted or unread, elsewhere)


def _unlike_manifest(path: str, progress: Progress) -> tuple[list[tuple[str, int]], str | None]:
    """Compare the names and sizes of what is here with the manifest. Raises TornError.

    Returns the files that other nodes have, and why it cannot be compared.
    """
    try:
        here = os.uname().nodename
        entries: list[Entry] = read_manifest(path)["files"]
        check_sizes(path, [entry for entry in entries if entry.node in (None, here)], progress)
        return [(entry.path, entry.size) for entry in entries if entry.node not in (None, here)], None
    except UnreadError as error:
        return [], str(error)
    except MemoryError:
        return [], f"a reader has {MEMORY_BYTES_MAX >> 20} MiB, and its manifest needs more"


def _with_sample(
    path: str, files: Sequence[tuple[str, int]], progress: Progress, unlisted: str | None = None,
    elsewhere: Sequence[tuple[str, int]] = (),
) -> FindAnswer:  # fmt: skip
    seen = sample(path, [*files, *elsewhere], progress.step, are_all=unlisted is None, mine=[name for name, _ in files])
    harm, torn = (None if text is None else _short(text) for text in (seen.harm, seen.torn))
    left = None if harm or torn else seen.unsampled or unlisted
    return FindAnswer(True, "is there", harm, None if left is None else _short(left), torn, seen.lacks, seen.few_harmed)


def _short(reason: Exception | str) -> str:
    return storable(str(reason))[:REASON_CHARS_MAX]


def main() -> int:
    confine()
    line = sys.stdin.buffer.readline(ANSWER_BYTES_MAX)
    if not line:
        return 0  # The governor has no use for it any more.
    request = json.loads(line)
    if request["look"] == "read":
        # Nothing needs it before, and it is 4 MiB; afterwards the user may not read Python's folders. It takes 3 ms.
        import hashlib  # noqa: F401
    os.write(1, line_of(_answer(request)))
    return 0


def _answer(request: dict[str, Any]) -> Answer | FindAnswer | Weight:
    kind, uid = request["look"], int(request["uid"])
    try:
        become(uid, int(request["gid"]))
    except UnreadError as error:
        if kind == "weigh":
            return Weight(None, _short(error))
        return FindAnswer(None, _short(error)) if kind == "find" else Answer(None, 0, 0, _short(error))
    end_with(int(request["parent"]))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    path, progress = request["path"], Progress(1, 0)
    if kind == "weigh":
        return weigh(path, progress.step, uid)
    return (find if kind == "find" else look)(path, progress)


if __name__ == "__main__":
    sys.exit(main())
