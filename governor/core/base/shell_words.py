"""A text as a shell reads it: its commands, their words, and where these stand. What no shell takes is read too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

REDACTED: Final = "<redacted>"
_ENDS: Final = frozenset(";&|()<>`\n")  # Of a command, or of a word where another begins.


@dataclass(frozen=True, slots=True)
class Piece:
    """A word. `text` is without its quotes; `expands`: a variable in it has its value put in by the shell."""

    start: int
    end: int
    text: str
    expands: bool = False


def commands(text: str) -> Iterator[list[Piece]]:
    """The commands of the text, each with its words."""
    pieces: list[Piece] = []
    at = 0
    while at < len(text):
        char = text[at]
        if char in _ENDS and not text.startswith(REDACTED, at):
            yield pieces
            pieces = []
            at += 1
        elif char.isspace():
            at += 1
        elif char == "#" and (at == 0 or text[at - 1].isspace()):
            at += 1  # A comment's words are words, but its line has no command before it.
        else:
            piece = _piece(text, at)
            pieces.append(piece)
            at = piece.end
    yield pieces


def _piece(text: str, start: int) -> Piece:
    """The word that begins here: parts in quotes and without. A quote that is not closed goes to the text's end."""
    parts: list[str] = []
    at, expands = start, True
    while at < len(text):
        char = text[at]
        if text.startswith(REDACTED, at):
            parts.append(REDACTED)
            at += len(REDACTED)
        elif char.isspace() or char in _ENDS:
            break
        elif char == "\\":
            parts.append(text[at + 1 : at + 2].replace("\n", ""))
            at += 2
        elif char in "\"'" or (char == "$" and text[at + 1 : at + 2] in ("'", '"')):
            is_escaped = char != "'"
            expands = expands and char == '"'
            at += 1 if char in "\"'" else 2
            at = _inside(text, at, text[at - 1], parts, is_escaped=is_escaped)
        else:
            parts.append(char)
            at += 1
    return Piece(start, min(at, len(text)), "".join(parts), expands)


def _inside(text: str, at: int, quote: str, parts: list[str], *, is_escaped: bool) -> int:
    """Add what is in the quotes to `parts`. Returns where they are closed."""
    while at < len(text) and text[at] != quote:
        if is_escaped and text[at] == "\\":
            at += 1
        parts.append(text[at : at + 1])
        at += 1
    return at + 1
