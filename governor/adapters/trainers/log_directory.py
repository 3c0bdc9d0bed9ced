"""A directory of logs, one file a launch, followed as one log: which of its files is read, and when another one is.

A file takes the place of the one that is read by what it tells, not by being there. Several writers in one directory
(one a rank, a validation beside) are rivals: one of them is read on, and what the others tell is aside.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from governor.adapters.trainers.deciders import Deciders
from governor.adapters.trainers.jsonl_tail import Chunk, JsonlTail, Position
from governor.adapters.trainers.log_place import LogFile, LogPlace
from governor.wire.files.cutter import Cutter

# Looks are a quarter of a second apart. A rival is read once the present file has told nothing for a minute, and for
# ten of its own longest pauses; for ten minutes where that one has told too little to know its pauses.
SILENT_LOOKS: Final = 240
SILENT_PAUSES: Final = 10
SILENT_LOOKS_UNKNOWN: Final = 2_400
# One that was left goes on, and the one that took its place is silent: that was a test, and no launch.
BACK_LOOKS: Final = 3
# Beside the present file, a look reads so many others, and so many are kept open.
PROBES_A_LOOK: Final = 2
PROBES_MAX: Final = 8
# Of a file that was there before us: whether it is one of training. Its configuration may be long.
GLANCE_READS: Final = 4
GLANCES_MAX: Final = 8
# Of the lines of one look, by which a file is known to tell of training still.
LAST_LINES: Final = 8


@dataclass(frozen=True, slots=True)
class Told:
    """What lines have said: anything of training, and its loss."""

    training: bool = False
    loss: bool = False

    def __or__(self, other: Told) -> Told:
        return Told(self.training or other.training, self.loss or other.loss)


Tells = Callable[[Iterable[bytes]], Told]


@dataclass(slots=True)
class _Beside:
    """A file that is not the present one."""

    file: LogFile
    mark: int  # Its first bytes that are no news.
    is_rival: bool  # It is written at the same time as the present one, or may be.
    size: int
    seen_at: int  # The look at which it was there first.
    is_named: bool = False  # That was said. It is read no more, until the present one is silent.
    was_present: bool = False
    grown: int = 0  # Looks at which it was longer, since it has told of training.
    told: Told = Told()  # Behind its mark.
    tail: JsonlTail | None = None
    holds: bool = False

    @property
    def is_news(self) -> bool:
        return self.holds or self.size > (self.mark if self.tail is None else self.tail.offset)

    def close(self) -> None:
        if self.tail is not None:
            self.tail.close()
        self.tail, self.holds = None, False

    def pass_all(self) -> None:
        self.close()
        self.mark, self.told, self.grown = self.size, Told(), 0

    def note_size(self) -> None:
        before, self.size = self.size, self.file.size
        self.grown += self.told.training and self.size > before
        if self.size < self.mark:
            self.pass_all()  # Emptied, or another file.


class DirectoryTail:
    """`JsonlTail` of a path that may be a directory. History is what it holds at the first look."""

    def __init__(self, place: LogPlace, cutter: Callable[[], Cutter], tells: Tells) -> None:
        self._place, self._cutter, self._tells = place, cutter, tells
        self._present = JsonlTail(place.path, cutter=cutter())
        self._file: LogFile | None = None  # The present one. None: the path itself.
        self._beside: dict[int, _Beside] = {}
        self._saved: Position | None = None
        self._is_first = True  # What is there is history.
        self._told = Told()
        self._look = self._told_at = 0
        self._has_told = False
        self._pause: int | None = None  # The longest, in looks.
        self._grew_at = 0
        self._was_at_end = False
        self._next = 0  # Which of those beside is looked at next.

    # --- as JsonlTail ------------------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        return self._present.path

    @property
    def owner(self) -> int | None:
        return self._present.owner

    @property
    def deciders(self) -> Deciders:
        return self._present.deciders

    @property
    def position(self) -> Position | None:
        found = self._present.position if self._file is not None or self._saved is None else self._saved
        rivals = {str(inode): one.mark for inode, one in self._beside.items() if one.is_rival}
        return replace(found, beside=rivals) if found is not None and rivals else found

    def trace(self) -> None:
        self._present.trace()

    def close(self) -> None:
        self._present.close()
        for one in self._beside.values():
            one.close()

    def go_on(self, saved: Position) -> None:
        self.close()
        self._beside, self._file, self._saved = {}, None, saved
        self._present = JsonlTail(self._place.path, cutter=self._cutter())
        self._present.go_on(saved)

    def begin(self) -> None:
        try:
            found = self._place.logs()
        except OSError:
            return
        if not found:
            self._is_first = self._is_first and found is None and os.path.exists(self._place.path)
            if found is None:
                self._present.begin()
            return
        self._settle(found)
        self._present.begin()

    def read(self) -> Chunk:
        self._look += 1
        try:
            found = self._place.logs()
        except OSError as error:
            return Chunk(problem=f"{self._place.path}: {error.strerror}", position=self.position)
        if found is None and (self._file is None or not os.path.isdir(self._place.path)):
            self._forget()
            self._is_first = self._is_first and os.path.exists(self._place.path)
            return self._present.read()
        if found:
            self._settle(found)
        elif self._file is None:
            self._is_first = False  # Any file that appears there from now on is new.
            return Chunk(problem=self._place.lacks, position=self._saved)
        return self._read(found or [])

    # --- which file is the present one ---------------------------------------------------------------------------

    def _forget(self) -> None:
        """The path is no directory, or no more."""
        if self._file is not None:
            self.close()
            self._beside, self._file = {}, None
            self._present = JsonlTail(self._place.path, from_start=True, cutter=self._cutter())

    def _settle(self, found: list[LogFile]) -> None:
        """Note the files that are there. At first, choose one."""
        is_first = self._file is None
        if is_first:
            self._choose(found)
        assert self._file is not None
        kept = self._saved.beside if self._saved is not None else {}
        is_history = is_first and self._is_first and self._saved is None
        here = set[int]()
        for file in found:
            if file.inode == self._file.inode or file.path == self._file.path:
                self._file = file  # It may have been written anew under its name.
                continue
            here.add(file.inode)
            if (one := self._beside.get(file.inode)) is None:
                one = _Beside(file, 0, is_rival=file < self._file, size=file.size, seen_at=self._look)
                self._beside[file.inode] = one
                if is_history or (is_first and self._saved is not None and file < self._file):
                    one.mark = one.size
                if str(file.inode) in kept:
                    one.mark, one.is_rival = kept[str(file.inode)], True
            one.note_size()
        for inode in self._beside.keys() - here:
            self._beside.pop(inode).close()
        self._is_first, self._saved = False, None

    def _choose(self, found: list[LogFile]) -> None:
        saved = self._saved
        at = next((file for file in found if saved is not None and file.inode == saved.inode), None)
        if at is not None:
            self._file, self._told = at, self._glance(at.path)
        else:  # What was written instead of the saved one is read whole, so it is none of before.
            self._file, self._told = self._newest(found) if saved is None else (found[-1], Told())
        self._present.close()
        self._present = JsonlTail(self._file.path, from_start=not self._is_first, cutter=self._cutter())
        if saved is not None:
            self._present.go_on(saved)

    def _newest(self, found: list[LogFile]) -> tuple[LogFile, Told]:
        """The newest file that tells of training, or else the newest one."""
        return next(self._telling(found), (found[-1], Told()))

    def _telling(self, found: list[LogFile]) -> Iterator[tuple[LogFile, Told]]:
        for file in found[: -1 - GLANCES_MAX : -1]:
            if (told := self._glance(file.path)).training:
                yield file, told

    def here(self, since_s: float) -> tuple[str, ...]:
        """The file to read, and others that tell of training, if all were written since then (wall time). OSError.

        The path itself, if it is no directory. Nothing of one without a log.
        """
        found = self._place.logs()
        if not found:
            return () if found is not None else (self._place.path,)
        telling = [file.path for file, _ in self._telling(found)] or [found[-1].path]
        late = [path for path in telling if os.stat(path).st_mtime >= since_s]
        return tuple(late) if len(late) > 1 else (telling[0],)

    def _glance(self, path: str) -> Told:
        """What the begin of a file tells."""
        tail, told = JsonlTail(path, from_start=True, cutter=self._cutter()), Told()
        for _ in range(GLANCE_READS):
            told |= self._tells(tail.read().lines)
            if told.loss or tail.is_at_end:
                break
        told |= self._tells(tail.leave().lines)
        return told

    # --- one look ------------------------------------------------------------------------------------------------

    def _read(self, found: list[LogFile]) -> Chunk:
        chunk = self._read_present()
        rivals = self._note_present(chunk)
        if self._present.is_at_end and (heir := self._heir(found)) is not None:
            chunk = _joined(chunk, self._take(heir))
            chunk = _joined(chunk, self._read_present())
        waits = any(one.is_news and not one.is_rival and not one.told.training for one in self._beside.values())
        return replace(chunk, position=self.position, rivals=rivals, holds=chunk.holds or waits)

    def _read_present(self) -> Chunk:
        before = self._present.offset
        chunk = self._present.read()
        if self._was_at_end and self._present.offset != before:
            self._grew_at = self._look
        self._was_at_end = self._present.is_at_end
        if not self._told.loss and chunk.lines:
            self._told |= self._tells(chunk.lines)
        return chunk

    def _note_present(self, chunk: Chunk) -> str | None:
        """Where it still tells of training, whoever tells beside is a rival. Returns that, once."""
        if not chunk.lines or not self._grew_at or not self._tells(chunk.lines[-LAST_LINES:]).training:
            return None
        grew_at, self._grew_at = self._grew_at, 0
        if self._has_told:
            self._pause = max(self._pause or 0, self._look - self._told_at)
        self._told_at, self._has_told = self._look, True
        new = list[str]()
        for one in self._beside.values():
            one.is_rival = one.is_rival or one.seen_at < grew_at
            if one.is_rival and one.told.training and not one.is_named:
                one.is_named = True
                new.append(one.file.path)
            if one.is_named:
                one.pass_all()
        return rivals_text(self._place.path, [self._present.path, *new]) if new else None

    @property
    def _is_silent(self) -> bool:
        most = SILENT_LOOKS_UNKNOWN if self._pause is None else max(SILENT_LOOKS, SILENT_PAUSES * self._pause)
        return self._look - self._told_at >= most

    def _heir(self, found: list[LogFile]) -> _Beside | None:
        """Who takes the place of the present one, which is read to its end."""
        assert self._file is not None
        is_seen = any(file.inode == self._file.inode or file.path == self._file.path for file in found)
        is_gone = not is_seen and not os.path.exists(self._file.path)  # Of very many files it is not among the newest.
        is_over = self._is_silent or self._present.is_damaged
        for one in self._probed(is_awake=is_over):
            if not one.told.training:
                continue
            is_better = not self._told.training or (one.told.loss and not self._told.loss)
            is_next = not one.is_rival and (one.told.loss or not self._told.loss)
            is_back = one.was_present and one.grown >= BACK_LOOKS
            if is_better or is_next or is_back or is_over or is_gone:
                return one
        return max(self._beside.values(), key=lambda one: one.file, default=None) if is_gone else None

    def _probed(self, *, is_awake: bool) -> Iterator[_Beside]:
        """Those that were begun behind the present one, in their order, then those before it. A look reads a few."""
        assert self._file is not None
        order = sorted(self._beside.values(), key=lambda one: one.file)
        later = [one for one in order if one.file > self._file]
        order = [*later, *order[: len(order) - len(later)][::-1]]
        waiting = [one for one in order if not one.told.training and one.is_news and (is_awake or not one.is_named)]
        begin = self._next % len(waiting) if len(waiting) > PROBES_A_LOOK else 0
        self._next = begin + PROBES_A_LOOK
        for one in [*waiting[begin:], *waiting[:begin]][:PROBES_A_LOOK]:
            self._probe(one)
        return iter(order)

    def _probe(self, one: _Beside) -> None:
        if one.tail is None:
            if not self._has_room():
                return
            one.tail = self._tail_of(one)
        chunk = one.tail.read()
        one.holds, one.told = chunk.holds, self._tells(chunk.lines)
        position = one.tail.position
        is_whole = position is None or position.offset == one.tail.offset
        if one.told.training:
            one.close()  # It is read again from its mark, should it be the next.
        elif one.tail.is_at_end and is_whole and not one.holds:
            one.size = max(one.size, one.tail.offset)
            one.pass_all()

    def _has_room(self) -> bool:
        """Whether one more may be open. One that was read to its end, perhaps into a torn record, makes room."""
        tails = [(one, one.tail) for one in self._beside.values() if one.tail is not None]
        if len(tails) < PROBES_MAX:
            return True
        idle = next((one for one, tail in tails if tail.is_at_end), None)
        if idle is not None:
            idle.close()
        return idle is not None

    def _tail_of(self, one: _Beside) -> JsonlTail:
        tail = JsonlTail(one.file.path, from_start=True, cutter=self._cutter())
        if one.mark:
            tail.go_on(Position(one.file.inode, b"", one.mark))
        return tail

    def _take(self, heir: _Beside) -> Chunk:
        """Leave the present file. It may yet be written: then it is a rival."""
        left, before = self._present.leave(), self._file
        heir.close()
        self._beside.pop(heir.file.inode)
        for one in self._beside.values():
            one.is_rival = one.is_rival or one.file < heir.file
        if before is not None:
            mark = max(self._present.offset, 0)
            self._beside[before.inode] = _Beside(before, mark, is_rival=True, size=mark, seen_at=self._look)
            self._beside[before.inode].was_present = True
        self._present, self._file, self._told = self._tail_of(heir), heir.file, heir.told
        self._grew_at, self._was_at_end = 0, False
        self._told_at, self._has_told, self._pause = self._look, False, None
        return left


def rivals_text(path: str, written: Sequence[str]) -> str:
    """One line: that several files of one directory are written at a time, of which the first is read."""
    first, *others = (os.path.relpath(one, path) for one in written)
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    return (
        f"{path}: several writers at a time: {first} is followed, and {others[0]}{more} is not; give each run a "
        "directory of its own, or name the file that tells the run's loss"
    )


def _joined(first: Chunk, then: Chunk) -> Chunk:
    return replace(then, lines=(*first.lines, *then.lines), faulty=first.faulty + then.faulty)
