"""Files of an export in a directory that may hold others': written beside, then put in place; only our own replaced.

`.costgov-export.json` in the directory says which files are ours, of which run, and their digests. A file of a name
that we want and that is not listed there, or not as we wrote it, is somebody's: the export is refused.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Final

from governor.adapters.machine.regular_file import open_regular
from governor.exports.form import ExportRefused, Written
from governor.replay.logs import EXPORT_PART
from governor.wire.named_file import read_whole

MARKER: Final = ".costgov-export.json"
PART: Final = EXPORT_PART  # Whoever reads directories of logs leaves it out.
FORMAT: Final = 1
_MARKER_BYTES_MAX: Final = 64 * 1024
_READ_BYTES: Final = 1024 * 1024
_ELSEWHERE: Final = "move it away, or name another directory"


class HashedFile:
    """A file that is written, and the digest of what was written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] = open(path, "wb")  # noqa: SIM115 - closed by whoever puts it in place.
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> None:
        self._hash.update(data)
        self._file.write(data)

    def take(self, path: Path) -> None:
        """Become a copy of another file."""
        with open(path, "rb") as other:
            while data := other.read(_READ_BYTES):
                self.write(data)

    def close(self) -> str:
        self._file.close()
        return self._hash.hexdigest()


class OwnFiles:
    """Files of fixed names in one directory. Until `commit` nothing but PART has changed there."""

    def __init__(self, directory: Path, run: str, files: Mapping[str, HashedFile]) -> None:
        self.files = files
        self.beside = directory / PART
        self._directory = directory
        self._run = run

    def has(self, series: str) -> bool:
        """Whether what is there was made of the same: of a form whose files differ each time they are made."""
        found, marked = check_ours(self._directory, self._run, tuple(self.files))
        return found.keys() == self.files.keys() and marked == series

    def unchanged(self) -> Written:
        return Written(self._paths(), is_unchanged=True)

    def commit(self, series: str | None = None) -> Written:
        """Put the files in place. Raises `ExportRefused` if one that is there is not ours, and OSError."""
        digests = {name: file.close() for name, file in self.files.items()}
        found, _ = check_ours(self._directory, self._run, tuple(digests))
        if found == digests:
            return self.unchanged()
        # Both digests are ours until all files are in place: what a kill leaves is taken for ours the next time.
        self._mark({name: sorted({digest, found.get(name, digest)}) for name, digest in digests.items()}, None)
        for name, file in self.files.items():
            os.replace(file.path, self._directory / name)
        self._mark({name: [digest] for name, digest in digests.items()}, series)
        return Written(self._paths(), is_unchanged=False)

    def _paths(self) -> tuple[str, ...]:
        return tuple(str(self._directory / name) for name in self.files)

    def _mark(self, digests: Mapping[str, Sequence[str]], series: str | None) -> None:
        marked = {"costgov_export": FORMAT, "run": self._run, "files": digests, "series": series}
        part = self.beside / MARKER
        part.write_text(json.dumps(marked, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        os.replace(part, self._directory / MARKER)


@contextmanager
def own_files(directory: Path, run: str, names: Sequence[str]) -> Iterator[OwnFiles]:
    """Begin to write files of these names. Raises `ExportRefused` before anything is read, if they are not ours."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        check_ours(directory, run, names)
        with _beside(directory / PART) as beside, ExitStack() as stack:
            files = {name: HashedFile(beside / name) for name in names}
            for file in files.values():
                stack.callback(file.close)
            yield OwnFiles(directory, run, files)
    except OSError as error:
        raise ExportRefused(f"{error.filename or directory}: cannot be written: {error.strerror}") from error


@contextmanager
def _beside(part: Path) -> Iterator[Path]:
    """A directory of its own. What a killed export has left there goes."""
    if os.path.islink(part) or not part.is_dir():
        if os.path.lexists(part):
            raise ExportRefused(f"{part}: is there already and no directory of an export; {_ELSEWHERE}")
    else:
        shutil.rmtree(part)
    part.mkdir()
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


def check_ours(directory: Path, run: str, names: Sequence[str]) -> tuple[dict[str, str], str | None]:
    """The digests of those of the files that are there, and of their series.

    Raises `ExportRefused` for one that is not this export's.
    """
    marked = _marker(directory)
    if marked and marked["run"] != run:
        raise ExportRefused(f"{directory}: holds the export of run {marked['run'][:60]!r}; name another directory")
    found: dict[str, str] = {}
    for name in names:
        path = directory / name
        digest = _digest_of(path)
        if digest is None:
            continue
        known = marked.get("files", {}).get(name)
        if not isinstance(known, list):
            raise ExportRefused(f"{path}: is there already and not of an export; {_ELSEWHERE}")
        if digest not in known:
            raise ExportRefused(f"{path}: was changed since it was exported; {_ELSEWHERE}")
        found[name] = digest
    return found, marked.get("series")


def is_changed(log: Path) -> bool | None:
    """Whether a file of an export, or one of a directory of them, is not as that left it. None: nothing says it.

    A link stands for what it leads to. What is gone, is no file or cannot be read is not as it was left.
    """
    directory = log if log.is_dir() and log.name not in _listed(log.parent) else log.parent
    files = _listed(directory)
    names = {name for name in files if "/" not in name} if directory == log else {log.name} & files.keys()
    try:
        return any(not _is_as_left(directory / name, files[name]) for name in names) if names else None
    except (TypeError, ValueError):  # A marker may have anything in the place of a digest, and of a name.
        return None


def _is_as_left(path: Path, digests: Any) -> bool:
    try:
        return _digest_of(path, follows=True) in digests
    except ExportRefused:
        return False


def _listed(directory: Path) -> Mapping[str, Any]:
    """The files that a directory's marker names, with their digests. Of a marker that is none: none."""
    try:
        files = _marker(directory).get("files", {})
    except ExportRefused:
        return {}
    return dict(files)


def _marker(directory: Path) -> dict[str, Any]:
    path = directory / MARKER
    try:
        marked = json.loads(read_whole(str(path), _MARKER_BYTES_MAX))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ExportRefused(f"{path}: {error.strerror}; {_ELSEWHERE}") from error
    except (ValueError, RecursionError) as error:
        raise ExportRefused(f"{path}: is damaged ({type(error).__name__}); {_ELSEWHERE}") from error
    is_ours = isinstance(marked, dict) and marked.get("costgov_export") == FORMAT
    if not is_ours or not isinstance(marked.get("run"), str) or not isinstance(marked.get("files"), dict):
        raise ExportRefused(f"{path}: is not as this costgov writes it; {_ELSEWHERE}")
    return dict(marked)


def _digest_of(path: Path, *, follows: bool = False) -> str | None:
    """None: there is no such file. Something else than a file is nobody's export, nor a link, unless it `follows`."""
    try:
        opened = open_regular(str(path), follows=follows)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ExportRefused(f"{path}: is there already and cannot be read: {error.strerror}; {_ELSEWHERE}") from error
    with io.BufferedReader(opened) as file:
        try:
            return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ExportRefused(f"{path}: {error.strerror}; {_ELSEWHERE}") from error
