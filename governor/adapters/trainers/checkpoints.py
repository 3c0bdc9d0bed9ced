"""Checkpoints as the governor reads them: in a process of its own for each (checkpoint_reader), so many at a time.

A manifest and the files that it names are a stranger's. A reader that hangs is killed. One that cannot be killed (its
file system is gone) takes a place of its own user, not of the others.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from governor.adapters.trainers.checkpoint_reader import ANSWER_BYTES_MAX, HASH_TIME_MAX_S
from governor.ports import CheckpointLook
from trainer_shim.saving import weights_sample

# So many readers with all the memory that each may have (192 MiB) stay within the service's MemoryMax=1G.
READERS_MAX: Final = 4
# A user's second reader begins only while half of the places are free.
READERS_PER_USER_MAX: Final = 2
# As many runs of one user end at once when a node of eight GPUs reaches its budget.
WAITING_PER_USER_MAX: Final = 8
# In uninterruptible sleep, on a file system that is gone. Each keeps its memory.
HUNG_MAX: Final = 32
WAIT_MAX_S: Final = 300.0
# A reader says each second that it gets on. A disk that gives 4 MiB in half a minute is gone.
SILENT_MAX_S: Final = 30.0
WALL_MAX_S: Final = HASH_TIME_MAX_S + 2 * SILENT_MAX_S
_REAP_S: Final = 2.0
_READY_MAX: Final = READERS_MAX
_DOTS_MAX: Final = 2 * round(WALL_MAX_S)
_NOBODY: Final = 65534
_BOOT: Final = (
    "import sys; sys.path += sys.argv[1:]; "
    "from governor.adapters.trainers.checkpoint_reader import main; sys.exit(main())"
)

Reader = subprocess.Popen[bytes]


class DiskCheckpoints:
    """`ports.Checkpoints`. As root it reads with the rights of the run's user, else with its own.

    So another user's 0700 directory is UNKNOWN to a governor that is not root: not torn.
    """

    def __init__(self, command: Sequence[str] | None = None, silent_s: float = SILENT_MAX_S) -> None:
        # The two distributions may lie in different places.
        roots = dict.fromkeys((str(Path(__file__).parents[3]), str(Path(weights_sample.__file__).parents[2])))
        self._command = tuple(command or (sys.executable, "-I", "-S", "-c", _BOOT, *roots))
        self._silent_s = silent_s
        self._places = Places()
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
        return self._have_read({"look": "read", "path": path}, uid, gid)

    def find(self, path: str, *, uid: int, gid: int | None) -> CheckpointLook:
        return self._have_read({"look": "find", "path": path}, uid, gid)

    def _have_read(self, request: dict[str, Any], uid: int, gid: int | None) -> CheckpointLook:
        refused = self._places.enter(uid)
        if refused is not None:
            return CheckpointLook(None, 0, 0, refused)
        reader: Reader | None = None
        try:
            reader = self._take_ready() or self._start()
            whose = {"uid": uid, "gid": _NOBODY if gid is None else gid, "parent": os.getpid()}
            return self._ask(reader, {**request, **whose})
        except OSError as error:
            return CheckpointLook(None, 0, 0, f"no reader can be started: {error.strerror}")
        finally:
            self._places.leave(uid, reader if reader is not None and not _is_over(reader) else None)

    def _start_wanted(self) -> None:
        while self._wanted.get():
            if self._ready.qsize() < _READY_MAX:
                with contextlib.suppress(OSError):  # No process or descriptor is free: read() tries again, and says so.
                    self._ready.put(self._start())

    def _start(self) -> Reader:
        # None of our environment: it may hold secrets, and the reader becomes another user.
        return subprocess.Popen(
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

    def _ask(self, reader: Reader, request: dict[str, Any]) -> CheckpointLook:
        assert reader.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # It ended just now: it will have no answer either.
            reader.stdin.write(json.dumps(request).encode() + b"\n")
            reader.stdin.flush()
        said = self._listen(reader)
        return said if isinstance(said, CheckpointLook) else CheckpointLook(None, 0, 0, said)

    def _listen(self, reader: Reader) -> CheckpointLook | str:
        assert reader.stdout is not None
        fd, said = reader.stdout.fileno(), b""
        until = time.monotonic() + WALL_MAX_S
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        while (left := min(self._silent_s, until - time.monotonic())) > 0 and poller.poll(left * 1000):
            chunk = os.read(fd, ANSWER_BYTES_MAX)
            said += chunk
            if not chunk or len(said) > ANSWER_BYTES_MAX + _DOTS_MAX:
                return _look_of(said.lstrip(b".")) or "the reader of the checkpoint ended without an answer"
        return f"its files gave no answer within {self._silent_s:.0f} s"


def _look_of(answer: bytes) -> CheckpointLook | None:
    try:
        found: dict[str, Any] = json.loads(answer)
        return CheckpointLook(**found)
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


def _discard(reader: Reader) -> None:
    # It is our child and not yet reaped, so its pid cannot have been reused.
    reader.kill()
    for pipe in (reader.stdin, reader.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


# --- fair shares ------------------------------------------------------------------------------------------------


class Places:
    """Who may have a reader now. Safe from any thread."""

    def __init__(self, wait_max_s: float = WAIT_MAX_S) -> None:
        self._wait_max_s = wait_max_s
        self._change = threading.Condition()
        self._reading: Counter[int] = Counter()
        self._waiting: Counter[int] = Counter()
        self._hung: list[tuple[int, Reader]] = []

    def enter(self, uid: int) -> str | None:
        """Wait for a place. Returns why there is none. After None, the caller calls `leave`."""
        with self._change:
            if (crowd := self.crowd(uid)) is not None:
                return crowd
            with self._counted(self._waiting, uid):
                self._change.wait_for(lambda: self._refusal(uid) is not None or self._is_free(uid), self._wait_max_s)
            refusal = self._refusal(uid)
            if refusal is None and not self._is_free(uid):
                refusal = f"no reader was free within {self._wait_max_s:.0f} s"
            if refusal is None:
                self._reading[uid] += 1
            return refusal

    def crowd(self, uid: int) -> str | None:
        """Why nobody may wait any more."""
        if self._waiting[uid] < WAITING_PER_USER_MAX:
            return None
        return f"{WAITING_PER_USER_MAX} checkpoints of uid {uid} wait for a reader already"

    def leave(self, uid: int, hung: Reader | None) -> None:
        """Give the place back. `hung`: the reader, if it could not be ended."""
        with self._change:
            self._reading[uid] -= 1
            if not self._reading[uid]:
                del self._reading[uid]
            if hung is not None:
                self._hung.append((uid, hung))
            self._change.notify_all()

    def _refusal(self, uid: int) -> str | None:
        self._hung = [(whose, reader) for whose, reader in self._hung if reader.poll() is None]
        of_user = sum(whose == uid for whose, _ in self._hung)
        if of_user >= READERS_PER_USER_MAX:
            return f"{of_user} readers hang on files of uid {uid}, and nothing ends them"
        if len(self._hung) >= HUNG_MAX:
            return f"{len(self._hung)} readers hang on file systems that do not answer, and nothing ends them"
        return None

    def _is_free(self, uid: int) -> bool:
        total, own = self._reading.total(), self._reading[uid] + sum(whose == uid for whose, _ in self._hung)
        if own == 0:
            return total < READERS_MAX
        return own < READERS_PER_USER_MAX and total < READERS_MAX // 2

    @contextlib.contextmanager
    def _counted(self, counter: Counter[int], uid: int) -> Iterator[None]:
        counter[uid] += 1
        try:
            yield
        finally:
            counter[uid] -= 1
            if not counter[uid]:
                del counter[uid]
