"""Checkpoints as the governor reads them: in a process of its own for each (checkpoint_reader), so many at a time.

A manifest and the files that it names are a stranger's. A reader that hangs is killed. One that cannot be killed (its
file system is gone) has its memory taken, and its user no further one; the others have theirs (reader_places).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from governor.adapters.machine.own_process import OwnProcess
from governor.adapters.trainers.checkpoint_files import Weight
from governor.adapters.trainers.checkpoint_reader import ANSWER_BYTES_MAX, ENOUGH, HASH_TIME_MAX_S, Answer, FindAnswer
from governor.adapters.trainers.reader_places import READERS_MAX, Hung, Places, Reader, Seat
from governor.core.events.checkpoints import CheckpointLook, CheckpointSeen
from trainer_shim.saving import weights_sample

# A reader says each second that it gets on. A disk that gives 4 MiB in half a minute is gone.
SILENT_MAX_S: Final = 30.0
WALL_MAX_S: Final = HASH_TIME_MAX_S + 2 * SILENT_MAX_S
# From then on no further checkpoint is looked at: the end of `costgov run` waits ten seconds for all of it.
FIND_MAX_S: Final = 6.0
_REAP_S: Final = 2.0
# What a reader that is wanted back may take for its last chunk and its answer.
LEAVE_MAX_S: Final = 30.0
_LOOK_S: Final = 0.25
# Linux 5.15, the same number on every architecture. A killed reader in uninterruptible sleep keeps 10 MiB, up to 120
# with a long manifest, and after it nothing but 100 kB of page tables and its stack in the kernel (measured, 6.18).
_SYS_PROCESS_MRELEASE: Final = 448
_STATM_BYTES_MAX: Final = 256
_READY_MAX: Final = READERS_MAX
_DOTS_MAX: Final = 2 * round(WALL_MAX_S)
_NOBODY: Final = 65534
# Of the shim only what reads: attach() and all that it needs would be loaded with it.
_BOOT: Final = (
    "import sys, types; sys.path += sys.argv[1:]; "
    "shim = sys.modules['trainer_shim'] = types.ModuleType('trainer_shim'); "
    "shim.__path__ = [sys.argv[-1] + '/trainer_shim']; "
    "from governor.adapters.trainers.checkpoint_reader import main; sys.exit(main())"
)


A = TypeVar("A", Answer, FindAnswer, Weight)
_LOOKS: Final = {Answer: "read", FindAnswer: "find", Weight: "weigh"}


class DiskCheckpoints:
    """`ports.Checkpoints`. As root it reads with the rights of the run's user, else with its own.

    So another user's 0700 directory is UNKNOWN to a governor that is not root: not torn.
    """

    def __init__(
        self, command: Sequence[str] | None = None, silent_s: float = SILENT_MAX_S, places: Places | None = None
    ) -> None:
        # The two distributions may lie in different places.
        roots = dict.fromkeys((str(Path(__file__).parents[3]), str(Path(weights_sample.__file__).parents[2])))
        self._command = tuple(command or (sys.executable, "-I", "-S", "-c", _BOOT, *roots))
        self._silent_s = silent_s
        self._places = places or Places()
        self._ready: queue.SimpleQueue[Reader] = queue.SimpleQueue()
        self._wanted: queue.SimpleQueue[bool] = queue.SimpleQueue()  # False: nobody wants one any more.
        self._starter: threading.Thread | None = None

    def prepare(self) -> None:
        """Have one more reader stand ready: an interpreter takes a tenth of a second to be there."""
        if self._starter is None:
            # One thread that stays: a reader would end with the thread that started it (PR_SET_PDEATHSIG).
            self._starter = threading.Thread(target=self._start_wanted, name="readers", daemon=True)
            try:
                self._starter.start()
            except RuntimeError:  # No thread is free: read() starts its reader itself.
                self._starter = None
                return
        self._wanted.put(True)

    def close(self) -> None:
        """End the readers that stand ready."""
        if self._starter is not None:
            self._wanted.put(False)
            self._starter.join(_REAP_S)
        with contextlib.suppress(queue.Empty):
            while True:
                _is_over(self._ready.get_nowait())

    def read(self, path: str, manifest: str, *, uid: int, gid: int | None) -> CheckpointLook:
        found = self._have_read(Answer, path, uid, gid)
        return CheckpointLook(None, 0, 0, found) if isinstance(found, str) else CheckpointLook(**found._asdict())

    def find(self, paths: Sequence[str], *, uid: int, gid: int | None) -> list[CheckpointSeen]:
        looks: list[CheckpointSeen] = []
        until = time.monotonic() + FIND_MAX_S
        for path in paths:
            found = self._have_read(FindAnswer, path, uid, gid)
            known = {"there": None, "reason": found} if isinstance(found, str) else found._asdict()
            looks.append(CheckpointSeen(path, **known))
            if looks[-1].is_fit or time.monotonic() > until:
                break
        return looks

    def weigh(self, path: str, *, uid: int, gid: int | None) -> tuple[int | None, str]:
        found = self._have_read(Weight, path, uid, gid)
        return (None, found) if isinstance(found, str) else found

    def _have_read(self, kind: type[A], path: str, uid: int, gid: int | None) -> A | str:
        """The answer, or why there is none."""
        seat = self._places.enter(uid, is_urgent=kind is Answer)
        if isinstance(seat, str):
            return seat
        reader: Reader | None = None
        try:
            reader = self._take_ready() or self._start()
            whose = {"uid": uid, "gid": _NOBODY if gid is None else gid, "parent": os.getpid()}
            _say(reader, json.dumps({"look": _LOOKS[kind], "path": path, **whose}).encode() + b"\n")
            said = self._listen(reader, seat, kind)
            seat.has_answered = isinstance(said, kind)
            return said
        except OSError as error:
            return f"no reader can be started: {error.strerror}"
        finally:
            self._places.leave(seat, None if reader is None or _is_over(reader) else Hung(reader, _take_memory(reader)))

    def _start_wanted(self) -> None:
        while self._wanted.get():
            if self._ready.qsize() < _READY_MAX:
                with contextlib.suppress(OSError):  # No process or descriptor is free: read() tries again, and says so.
                    self._ready.put(self._start())

    def _start(self) -> Reader:
        # None of our environment: it may hold secrets, and the reader becomes another user.
        return OwnProcess(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={}, cwd="/", start_new_session=True,
        )  # fmt: skip

    def _take_ready(self) -> Reader | None:
        """One that stands ready and has not ended meanwhile."""
        while True:
            try:
                reader = self._ready.get_nowait()
            except queue.Empty:
                return None
            if reader.poll() is None:
                return reader
            _discard(reader)

    def _listen(self, reader: Reader, seat: Seat, kind: type[A]) -> A | str:
        assert reader.stdout is not None
        fd, said = reader.stdout.fileno(), b""
        last_at = time.monotonic()
        until, is_asked = last_at + WALL_MAX_S, False
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        while (now := time.monotonic()) < min(until, last_at + self._silent_s):
            if seat.is_wanted and not is_asked:
                is_asked, until = True, min(until, now + LEAVE_MAX_S)
                _say(reader, ENOUGH)
            if not poller.poll(1000 * min(_LOOK_S, self._silent_s)):
                continue
            chunk = os.read(fd, ANSWER_BYTES_MAX)
            last_at = time.monotonic()
            said += chunk
            if not chunk or len(said) > ANSWER_BYTES_MAX + _DOTS_MAX:
                return _answer_of(said.lstrip(b"."), kind) or "the reader of the checkpoint ended without an answer"
        if is_asked and time.monotonic() >= until:
            return "it had no answer when its reader was wanted for others"
        return f"its files gave no answer within {self._silent_s:.0f} s"


def _say(reader: Reader, line: bytes) -> None:
    assert reader.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # It ended just now: it will have no answer either.
        reader.stdin.write(line)
        reader.stdin.flush()


def _answer_of(answer: bytes, kind: type[A]) -> A | None:
    try:
        found: dict[str, Any] = json.loads(answer)
        return kind(**found)
    except (ValueError, TypeError, KeyError):
        return None


def _is_over(reader: Reader) -> bool:
    """End a reader, whatever it does. False: not even SIGKILL ends it now."""
    _discard(reader)
    try:
        reader.wait(_REAP_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _take_memory(reader: Reader) -> int:
    """Take the memory of a reader that was killed and sleeps on. Returns what it still has: its own, in bytes."""
    try:
        pidfd = os.pidfd_open(reader.pid)
        try:
            ctypes.CDLL(None).syscall(_SYS_PROCESS_MRELEASE, pidfd, 0)  # EPERM, ENOSYS: it keeps it.
        finally:
            os.close(pidfd)
        with open(f"/proc/{reader.pid}/statm", "rb") as file:
            _, resident, shared, *_ = map(int, file.read(_STATM_BYTES_MAX).split())
    except (OSError, ValueError):  # It ends just now, or cannot be looked at.
        return 0
    return (resident - shared) * os.sysconf("SC_PAGESIZE")


def _discard(reader: Reader) -> None:
    # It is our child and not yet reaped, so its pid cannot have been reused.
    reader.kill()
    for pipe in (reader.stdin, reader.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
