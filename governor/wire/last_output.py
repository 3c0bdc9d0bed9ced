"""The failures of ranks, as frames say them, and the last lines of a command's output: bytes -> what they mean.

Both are a stranger's words. They are bounded and made printable here; the engine redacts them before anything is
written of them.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from governor.core.base.identity import ConnectionId
from governor.core.base.known_failures import known_failure
from governor.core.base.printable import printable
from governor.core.base.units import MonoNs
from governor.core.events.ends import Failure, LastLine, RankFailed

LINE_CHARS_MAX: Final = 400  # Of a line that is quoted.
LINE_BYTES_MAX: Final = 4_096  # Of a line that is looked at: progress bars write one line for hours.
LINES_MAX: Final = 16  # Lines with a meaning. Each of 64 ranks may print a few.
# Ours, and those of a launcher that only repeats what a rank has said.
_OURS: Final = re.compile(r"costgov: |\[[a-z_]+\] ")
# torchrun, of the rank that failed first: "failed (exitcode: -9) local_rank: 1 (pid: 17) of binary: python".
_ELASTIC: Final = re.compile(r"failed \(exitcode: (-?[0-9]{1,4})\) local_rank: ([0-9]{1,4}) ")
# deepspeed: "['python', …] exits with return code = -9".
_DEEPSPEED: Final = re.compile(r"exits with return code = (-?[0-9]{1,4})$")
# A shell's own line about its child: "Killed", or bash's "FILE: line N: PID Killed   COMMAND"; the DataLoader's.
_KILLED: Final = re.compile(
    r"^Killed$|^.{1,200}: line [0-9]+: +[0-9]+ Killed {2,}\S"
    r"|DataLoader worker \(pid.{1,100}\) is killed by signal: Killed"
)
# "torch.OutOfMemoryError: …" after a traceback; c10d's and torchrun's prefixes stand before "Traceback" only.
_RAISED: Final = re.compile(r"(\[rank(?P<rank>[0-9]{1,5})\]: ?)?(?P<name>[A-Za-z_][\w.]{0,200})(: .*)?$")
_TRACEBACK: Final = "Traceback (most recent call last)"
_RANK: Final = re.compile(r"\[(?i:rank) ?([0-9]{1,5})\]")
# An exception that nobody caught, as torch's own hook prints it.
_UNCAUGHT: Final = re.compile(r"\[rank([0-9]{1,5})\]:")
# It repeats that a rank, or a child, has failed.
_REPEATS: Final = re.compile(r"\b(ChildFailedError|CalledProcessError)\b")
_ANSI: Final = re.compile(r"\x1b\[[0-9;?]{0,32}[ -/]?[@-~]")


def failed(frame: Mapping[str, Any], connection: ConnectionId, at: MonoNs, run: str) -> RankFailed:
    """A phase frame that reports an exception."""
    record = frame["failure"]
    name, place, thread = (_text(record.get(key)) for key in ("name", "place", "thread"))
    failure = Failure(name or "an exception", _text(record.get("text")) or "", place or None, thread or None)
    return RankFailed(at, connection, run, frame["rank"], failure)


def _text(value: object) -> str | None:
    return printable(value)[:LINE_CHARS_MAX] if isinstance(value, str) else None


def last_lines(output: bytes) -> tuple[LastLine, ...]:
    """The lines among these whose meaning is known, and the end of the last traceback. Each meaning and rank once."""
    found: dict[tuple[object, ...], LastLine] = {}
    raised: list[LastLine] = []
    inside: set[str | None] = set()  # Whose traceback has begun: ranks print at the same time.
    for line, is_indented in _lines(output):
        of_rank = _UNCAUGHT.match(line)
        whose = of_rank[1] if of_rank is not None else None
        if _OURS.match(line) or (whose in inside and is_indented):
            continue  # The source of a frame may say anything.
        said = _meant(line)
        if _TRACEBACK in line:
            inside.add(whose)
        elif whose in inside and line != "Killed" and _RAISED.match(line) is not None:
            inside.discard(whose)
            raised.append(replace(said, is_raised=True))
        elif said.what is not None or said.signum is not None:
            found.setdefault((said.what, said.rank, said.signum), said)
    return (*list(found.values())[:LINES_MAX], *_last_raised(raised))


def _meant(line: str) -> LastLine:
    known = known_failure(line)
    signum, is_exit_code = _signum(line)
    said = LastLine(None, line[:LINE_CHARS_MAX], rank=_rank(line), signum=signum, is_exit_code=is_exit_code)
    return said if known is None else replace(said, what=known.what, is_late=known.is_late, is_oom=known.is_oom)


def _last_raised(raised: Sequence[LastLine]) -> Sequence[LastLine]:
    """The end of the last traceback that says more than that a child failed.

    Where it often follows another rank's failure, an exception that a rank did not catch comes before it.
    """
    own = [line for line in raised if not _REPEATS.search(line.text)] or raised
    if own and own[-1].is_late:
        first = [line for line in own if not line.is_late and _UNCAUGHT.match(line.text)]
        return [*first, own[-1]][:1]
    return own[-1:]


def _lines(output: bytes) -> Iterator[tuple[str, bool]]:
    """Each line made printable, and whether it is indented, as a frame of a traceback is."""
    for raw in re.split(rb"[\r\n]+", output):
        text = _ANSI.sub("", raw[:LINE_BYTES_MAX].decode("utf-8", "replace"))
        bare = re.sub(r"^\[(?i:rank) ?[0-9]{1,5}\]:", "", text)
        if text.strip():
            yield printable(text.strip()), bare.removeprefix(" ").startswith((" ", "\t"))


def _rank(line: str) -> int | None:
    elastic, named = _ELASTIC.search(line), _RANK.search(line)
    return int(elastic[2]) if elastic is not None else int(named[1]) if named is not None else None


def _signum(line: str) -> tuple[int | None, bool]:
    """The signal of which this line says that it ended a process, and whether a launcher says so by an exit code."""
    for pattern in (_ELASTIC, _DEEPSPEED):
        found = pattern.search(line)
        if found is not None and int(found[1]) < 0:
            return -int(found[1]), True
    return (signal.SIGKILL if _KILLED.search(line) else None), False
