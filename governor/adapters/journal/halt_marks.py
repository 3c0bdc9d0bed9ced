"""The file of halt marks: one JSON object a line, only ever appended to, synced at each.

All governors with one `paths.marks_dir` read it: the service, and every `costgov run` below its state directory. It is
the audit of who said what of which halt. A last line without an end is of a crash before anybody was answered, and does
not count. Any other damage takes the force of all marks: the rules then do what their policies say. So does a file that
somebody else could have written: whoever writes it takes the force of rules.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from governor.adapters.machine.host_watch import Poller
from governor.core.base.halt_marks import Entry, HaltMark, HaltMarks, Rearm, entry_of, row_of
from governor.core.base.units import MonoNs
from governor.core.events.inputs import Event
from governor.core.events.machine import FilesLost, HaltMarksRead
from governor.wire.peers import has_all_uids, is_own, overflow_uid

FILE_NAME: Final = "halt_marks.jsonl"
LINE_BYTES_MAX: Final = 32 * 1024  # A note of 512 characters and five names of 256, all escaped.
FILE_BYTES_MAX: Final = 4 * 1024 * 1024  # Ten thousand marks.
# Of a user who marks own halts alone: one user fills no file that all share.
OF_ONE_UID_MAX: Final = 500
# Somebody else writes a line meanwhile, which takes a sync.
LOCK_TRIES_MAX: Final = 40
LOCK_PERIOD_S: Final = 0.05
LOOK_PERIOD_S: Final = 1.0
# A process out of descriptors, or a server of files that starts anew, is over in a second or two.
READ_TRIES_MAX: Final = 3
_NEVER: Final = ()  # The signature of no file.
UNREADABLE: Final = "halt_marks_unreadable"


class HaltMarksUnusable(Exception):  # noqa: N818 - the condition is the name.
    """The file cannot be read or written. The message is one line: what is wrong and what to do.

    `may_pass`: the system refused (no descriptor free, a disk's error), and says nothing of what the file has.
    """

    def __init__(self, text: str, *, may_pass: bool = False) -> None:
        super().__init__(text)
        self.may_pass = may_pass


@dataclass(frozen=True, slots=True)
class HaltMarkFile:
    path: Path

    def read(self) -> HaltMarks:
        """What the file has; nothing where there is none. Raises HaltMarksUnusable."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return HaltMarks()
        except OSError as error:
            raise self._unusable(error) from error
        try:
            return HaltMarks.of(self._entries(self._lines(fd)))
        except OSError as error:
            raise self._unusable(error) from error
        finally:
            os.close(fd)

    def append(self, entry: Entry) -> HaltMarks:
        """Add a line and return what the file has then. It is on disk when this returns. Raises HaltMarksUnusable.

        A mark that says again what the last one of its halt says adds nothing.
        """
        try:
            fd = self._locked()
        except OSError as error:
            raise self._unusable(error) from error
        try:
            lines = self._lines(fd)
            marks = HaltMarks.of(self._entries(lines))
            if not _is_news(marks, entry):
                return marks
            self._check_room(marks, entry, size := sum(map(len, lines)))
            self._write(fd, size, entry)
        except OSError as error:
            raise self._unusable(error) from error
        finally:
            os.close(fd)
        marks.add(entry)
        return marks

    def signature(self) -> tuple[int, ...] | None:
        """It changes when the file does, or who may write it. None: there is none. OSError: it cannot be seen."""
        try:
            seen = os.lstat(self.path)
        except FileNotFoundError:
            return None
        return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns

    def _lines(self, fd: int) -> list[bytes]:
        """Its whole lines, each with its end."""
        seen = os.fstat(fd)
        if not stat.S_ISREG(seen.st_mode):
            raise HaltMarksUnusable(f"{self.path}: is no file; {_ADVICE}")
        doubt = _doubt(seen, os.stat(self.path.parent).st_uid)
        if doubt:
            raise HaltMarksUnusable(f"{self.path}: {doubt}; {_ADVICE}")
        if seen.st_size > FILE_BYTES_MAX + LINE_BYTES_MAX:
            raise HaltMarksUnusable(f"{self.path}: {seen.st_size:,} bytes are more than we write; {_ADVICE}")
        data = os.pread(fd, FILE_BYTES_MAX + LINE_BYTES_MAX, 0)
        return data[: data.rfind(b"\n") + 1].splitlines(keepends=True) if data else []

    def _entries(self, lines: list[bytes]) -> list[Entry]:
        entries = []
        for number, line in enumerate(lines, 1):
            try:
                entries.append(entry_of(json.loads(line)))
            except (ValueError, RecursionError) as error:
                raise HaltMarksUnusable(f"{self.path}: line {number} is none of ours; {_ADVICE}") from error
        return entries

    def _locked(self) -> int:
        """A descriptor of the file under this name, locked."""
        for _ in range(LOCK_TRIES_MAX):
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(self.path, flags, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(fd), os.lstat(self.path)):
                    self._give_to_directory(fd)
                    return fd
            except (BlockingIOError, FileNotFoundError):
                pass
            except OSError:
                os.close(fd)
                raise
            os.close(fd)
            time.sleep(LOCK_PERIOD_S)
        raise HaltMarksUnusable(f"{self.path}: somebody else has held it for seconds; try again")

    def _give_to_directory(self, fd: int) -> None:
        """Root may be the first to mark, in a user's or the service's state directory: these must read it."""
        owner, seen = os.stat(self.path.parent), os.fstat(fd)
        # One that is not root's was made by somebody else, who may hold it open.
        if os.geteuid() == 0 == seen.st_uid != owner.st_uid and seen.st_size == 0:
            os.fchown(fd, owner.st_uid, owner.st_gid)

    def _check_room(self, marks: HaltMarks, entry: Entry, size: int) -> None:
        if size + LINE_BYTES_MAX > FILE_BYTES_MAX:
            text = f"{self.path}: is full with {len(marks.entries):,} lines; move it aside to begin anew: rules that"
            raise HaltMarksUnusable(f"{text} have fallen back then enforce again")
        of_uid = sum(one.uid == entry.uid and not one.for_all for one in marks.entries)
        if not entry.for_all and of_uid >= OF_ONE_UID_MAX:
            raise HaltMarksUnusable(f"uid {entry.uid} has made {of_uid} marks here, which is the most; ask root")

    def _write(self, fd: int, size: int, entry: Entry) -> None:
        line = line_of(entry).encode()
        assert len(line) <= LINE_BYTES_MAX, "every text of an entry is bounded"
        try:
            os.ftruncate(fd, size)  # What a crash has left of a line.
            if os.pwrite(fd, line, size) < len(line):
                raise OSError("no room for a whole line")
            os.fsync(fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, size)
            raise
        if not size:
            self._sync_directory()

    def _sync_directory(self) -> None:
        fd = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _unusable(self, error: OSError) -> HaltMarksUnusable:
        return HaltMarksUnusable(f"{self.path}: {error.strerror or error}; {_ADVICE}", may_pass=True)


_ADVICE: Final = "repair it or move it aside: until then no rule falls back, and nothing is marked"


def _doubt(seen: os.stat_result, directory_uid: int) -> str:
    """Why others than root, the directory's owner and our own user could have written the file. "": they could not."""
    uid = seen.st_uid
    is_somebodys = uid == overflow_uid() and not has_all_uids()  # In a user namespace: of whoever has no number there.
    if not is_own(uid) and (is_somebodys or uid not in (0, directory_uid)):
        return f"belongs to uid {uid}, who is neither root nor you, nor has that directory"
    if seen.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write it (mode {stat.S_IMODE(seen.st_mode):o})"
    if seen.st_nlink > 1:
        return f"has {seen.st_nlink} names (hard links)"
    return ""


def line_of(entry: Entry) -> str:
    return json.dumps(row_of(entry), separators=(",", ":")) + "\n"


def _is_news(marks: HaltMarks, entry: Entry) -> bool:
    if isinstance(entry, Rearm):
        return bool(marks.counted(entry.rule_key))
    before: HaltMark | None = marks.marks.get(entry.key)
    told = (entry.said, entry.note, entry.uid, entry.for_all)
    return before is None or (before.said, before.note, before.uid, before.for_all) != told


@dataclass(slots=True)
class HaltMarkWatch:
    """A source of the loop. A separate thread looks, so a disk that hangs holds up nobody."""

    file: HaltMarkFile
    _seen: tuple[int, ...] | None = _NEVER
    _failed: int = 0  # So many looks in a row could not read it.
    _poller: Poller[tuple[HaltMarks, str]] = field(init=False)
    close: Callable[[], None] = field(init=False)

    def __post_init__(self) -> None:
        self._poller = Poller("halt marks", LOOK_PERIOD_S, self.look)
        self.close = self._poller.close

    def first(self) -> tuple[HaltMarks, str]:
        """As of now, for the start: the marks, and what is wrong with the file ("": nothing)."""
        self._failed = READ_TRIES_MAX - 1  # Nothing is known that could stand meanwhile.
        return self.look() or (HaltMarks(), "")

    def poll(self, at: MonoNs) -> list[Event]:
        found = self._poller.take()
        if found is None:
            return []
        marks, problem = found
        told: list[Event] = [FilesLost(at, UNREADABLE, problem)] if problem else []
        return [HaltMarksRead(at, marks.wrong()), *told]

    def look(self) -> tuple[HaltMarks, str] | None:
        """What the file has, if it has changed. None: it has not, or the next look tries again to read it.

        What was known stands meanwhile, for `READ_TRIES_MAX` looks.
        """
        try:
            seen = self.file.signature()
            if seen == self._seen != _NEVER:
                return None
        except OSError:
            seen = _NEVER
        try:
            marks, problem = self.file.read(), ""
        except HaltMarksUnusable as unusable:
            if unusable.may_pass:
                self._seen = _NEVER
                self._failed += 1
                return (HaltMarks(), str(unusable)) if self._failed == READ_TRIES_MAX else None
            marks, problem = HaltMarks(), str(unusable)
        self._seen, self._failed = seen, 0
        return marks, problem
