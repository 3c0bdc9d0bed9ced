"""A trainer's console log: wire.formats makes records of its lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from governor.replay.readers.lines import LogUnreadable
from governor.text.table import plain
from governor.wire import formats
from governor.wire.jsonl import parse_line

# What comes before the first step: the configuration, NCCL's lines, warnings of each rank.
HEAD_LINES: Final = 50_000
HEAD_BYTES: Final = 8 * 1024 * 1024
SAMPLE_CHARS_MAX: Final = 80
SUFFIXES: Final = tuple(name + packed for name in (".log", ".out", ".txt") for packed in ("", ".gz", ".xz"))
JSONL: Final = "jsonl"

Lines = Iterator[tuple[int, bytes | None]]
Placed = tuple[int, dict[str, Any] | list[str]]


@dataclass(frozen=True, slots=True)
class TextOptions:
    """What the user says of text logs. `tell` is told in a line what a log does not say of itself."""

    format: str | None = None
    sequence_length: int | None = None
    gpus: int | None = None
    tell: Callable[[str], None] | None = None


ANY: Final = TextOptions()


def recognised(lines: Lines, name: str) -> tuple[str | None, Lines]:
    """The log's format, or "jsonl", and all of its lines. None for a log without lines.

    LogUnreadable for a log of which no line is known. `name` is the log's.
    """
    head: list[tuple[int, bytes | None]] = []
    damage: list[LogUnreadable] = []
    said, again = _head(lines, head, damage), _again(lines, head, damage)
    first = next(said, None)
    if first is None:
        return None, again
    if _is_object(head[-1][1]):
        return JSONL, again
    found = formats.recognise(chain((first,), said))
    if found is None:
        # An object on a line, behind a torn one or a header.
        if not any(_is_object(line) for _, line in head):
            raise LogUnreadable(
                f"{name}: no known format: {_such(first)}; known: {', '.join(formats.NAMES)}; or export JSONL"
            )
        found = JSONL
    return found, again


def records(name: str, lines: Iterable[tuple[int, bytes | None]], log: str, options: TextOptions) -> Iterator[Placed]:
    """The records of a log of that format, by line."""
    reader = formats.named(name, sequence_length=options.sequence_length, gpus=options.gpus)
    first, is_known = b"", False
    for number, line in lines:
        if line is None:
            continue  # A record is no such line.
        record = reader.record(formats.text_of(line))
        if record is not None:
            is_known = True
            yield number, record
        first = first or line.strip()[: 4 * SAMPLE_CHARS_MAX]
    if first and not is_known:
        raise LogUnreadable(f"{log}: no line of it is a record of {name}: {_such(formats.text_of(first))}")
    lacks = reader.missing()
    if lacks is not None and options.tell is not None:
        options.tell(f"{log}: {lacks}")


def _such(text: str) -> str:
    return f'lines such as "{plain(text)[:SAMPLE_CHARS_MAX]}"'


def _head(lines: Lines, head: list[tuple[int, bytes | None]], damage: list[LogUnreadable]) -> Iterator[str]:
    """The texts of the first lines, which are kept in `head`, as is what ends them. Blank ones are left out."""
    size = 0
    try:
        for number, line in lines:
            head.append((number, line))
            size += len(line or b"")
            if line is not None and line.strip():
                yield formats.text_of(line)
            if len(head) >= HEAD_LINES or size >= HEAD_BYTES:
                return
    except LogUnreadable as error:
        damage.append(error)


def _again(lines: Lines, head: Sequence[tuple[int, bytes | None]], damage: Sequence[LogUnreadable]) -> Lines:
    """All lines, those that were looked at too, and the damage behind them."""
    yield from head
    if damage:
        raise damage[0]
    yield from lines


def _is_object(line: bytes | None) -> bool:
    return (
        line is not None
        and line.lstrip(b"\xef\xbb\xbf \t").startswith(b"{")
        and isinstance(parse_line(line.removeprefix(b"\xef\xbb\xbf")), dict)
    )
