"""Command lines of a process table, within bounds of memory: whoever writes long ones takes none from others."""

from __future__ import annotations

from governor.core.base.identity import ProcessId

# More than any real one has, but for lists of files. Hiding secrets takes some 40 us a word (measured).
ARGV_WORDS_MAX = 2048
# Of the distinct command lines of one user, and of all users but root, in bytes of our memory. A rank with 300 words
# takes 25 KB, and its workers share it. Beyond, a command line is known by its first words and a sum of the rest.
ARGVS_OF_UID_BYTES_MAX = 8 * 1024 * 1024
ARGVS_BYTES_MAX = 64 * 1024 * 1024
CUT_BYTES, CUT_WORDS = 512, 16
_WORD_BYTES = 84  # A str of one byte that is no ASCII, and its place in a tuple.


class CommandLines:
    """The command lines of one process table. Each distinct one is kept once, and shared with the table before."""

    def __init__(self, before: CommandLines | None = None) -> None:
        self.by_process: dict[ProcessId, tuple[str, ...]] = {}
        self._known: dict[tuple[int, int], tuple[str, ...]] = {}
        self._before = before._known if before is not None else {}
        self._bytes: dict[int, int] = {}  # By uid.

    def keep(self, process: ProcessId, uid: int, raw: bytes) -> tuple[str, ...]:
        # setproctitle leaves one string padded with NULs or spaces. The padding is not an argument.
        raw = raw.rstrip(b"\0")
        key = uid, hash(raw)  # 64 bits, and of each process of ours others.
        argv = self._known.get(key)
        if argv is None and self._has_room(uid, raw):
            argv = self._known[key] = self._before.get(key) or _split_argv(raw, len(raw), ARGV_WORDS_MAX)
        self.by_process[process] = argv if argv is not None else _split_argv(raw, CUT_BYTES, CUT_WORDS)
        return self.by_process[process]

    def _has_room(self, uid: int, raw: bytes) -> bool:
        words = min(raw.count(b"\0") + 1, ARGV_WORDS_MAX)
        spent = self._bytes.get(uid, 0) + 2 * len(raw) + words * _WORD_BYTES
        if spent > ARGVS_OF_UID_BYTES_MAX or (uid != 0 and spent + self._of_others(uid) > ARGVS_BYTES_MAX):
            return False
        self._bytes[uid] = spent
        return True

    def _of_others(self, uid: int) -> int:
        return sum(its for other, its in self._bytes.items() if other not in (0, uid))

    def forget_before(self) -> None:
        """The table is complete."""
        self._before = {}


def _split_argv(raw: bytes, bytes_max: int, words_max: int) -> tuple[str, ...]:
    """The first whole words. The rest, if any, is one more, so that command lines which differ there stay different."""
    if not raw:
        return ()
    words = raw[:bytes_max].split(b"\0", words_max)
    is_whole = len(raw) <= bytes_max and len(words) <= words_max
    kept = tuple(word.decode("utf-8", "surrogateescape") for word in (words if is_whole else words[:-1]))
    if is_whole:
        return kept
    return (*kept, f"[cut: {len(raw)} bytes in all, {hash(raw) & 0xFFFFFFFFFFFFFFFF:016x}]")
