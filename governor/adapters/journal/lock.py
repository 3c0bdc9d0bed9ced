"""The lock beside a journal: two governors must not write one file."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any

from governor.adapters.machine import lock_file


class JournalUnavailable(Exception):  # noqa: N818 - the condition is the name.
    """The file cannot be used now. The message is one line: what is wrong and what to do."""


class JournalLocked(JournalUnavailable):
    """Another governor holds this journal. `holder` is as of `lock_file.LockHeld`."""

    def __init__(self, journal: str, holder: str) -> None:
        super().__init__(f"{journal}: another governor (pid {holder}) uses this journal; stop it first")
        self.holder = holder


class JournalLock:
    """Held from the start until `close`. Its file stays, as the journal does: a full disk has no room for a new one."""

    def __init__(self, path: str) -> None:
        """Take it, and create the journal's directory. Raises `JournalLocked` with the holder's pid."""
        self._journal = path
        self._path = path + ".lock"
        self._fd = self._taken()

    def keep(self) -> str | None:
        """Take the lock again if its file was removed. Returns what was found and done; None: nothing."""
        try:
            if lock_file.is_named(self._fd, self._path):
                return None
            self._take_again()
        except (JournalUnavailable, OSError) as error:
            return f"the lock of {self._journal} was removed while in use, and cannot be taken again: {error}"
        return f"the lock of {self._journal} was removed while in use; it is taken again"

    def keep_with_directory(self) -> None:
        """As `keep`, where the journal's directory may be gone too. Raises `JournalUnavailable` or OSError."""
        if not os.path.isdir(os.path.dirname(self._journal)) or not lock_file.is_named(self._fd, self._path):
            self._take_again()

    def note_metered(self, row: Mapping[str, Any]) -> None:
        """See `ports.Journal`."""
        with contextlib.suppress(OSError):  # The next governor knows of the last commit.
            lock_file.leave_note(self._fd, json.dumps(row))

    def metered(self) -> Mapping[str, Any] | None:
        """The last holder's row; None: there is none, or it is not readable."""
        try:
            row = json.loads(lock_file.note(self._fd) or "null")
        except (OSError, ValueError, RecursionError):
            return None
        return row if isinstance(row, dict) else None

    def close(self) -> None:
        os.close(self._fd)

    def _take_again(self) -> None:
        fd = self._taken()
        os.close(self._fd)
        self._fd = fd

    def _taken(self) -> int:
        try:
            os.makedirs(os.path.dirname(self._journal) or ".", mode=0o700, exist_ok=True)
            return lock_file.take(self._path)
        except lock_file.LockHeld as held:
            raise JournalLocked(self._journal, str(held)) from None
        except OSError as error:
            text = f"{self._path}: {error.strerror}; make the state directory writable for us"
            raise JournalUnavailable(text) from error
