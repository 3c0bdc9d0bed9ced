"""One line of a trainer's console, without what launchers, loggers and terminals put before and into it.

Everything here takes time in proportion to the line: a log is written by others.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from governor.core.base.units import read_float

# A record of any trainer here has some hundred characters. A longer line is searched at its end, where a record that
# followed a progress bar would be.
LINE_CHARS_MAX: Final = 16 * 1024
PREFIXES_MAX: Final = 12
PARTS_MAX: Final = 256  # Of one line, the last ones.

# A copy of a console may have colours without the character that begins them.
_ESCAPES: Final = re.compile(
    r"\x1b?\[[0-9;]{1,20}m|\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,512}(?:\x07|\x1b\\)|[@-Z\\^_])"
)
_CLOCK: Final = r"[0-9]{2}:[0-9]{2}:[0-9]{2}"
_LEVEL: Final = r"(?:DEBUG|INFO|WARNING|WARN)"
# What may stand before a record. A name that begins with "rank" tells which process speaks, one with "date" when.
_PREFIX: Final = re.compile(
    r"\s+"
    # torchrun, srun -l, mpirun --tag-output, Ray, docker compose, torchx.
    r"|\[(?:default|rank|Rank)[ _-]?(?P<rank_a>[0-9]{1,6})(?:/[0-9]{1,6})?\]:?"
    r"|(?P<rank_b>[0-9]{1,5}):\s"
    r"|\[(?P<rank_c>[0-9]{1,5})\]:?\s"
    r"|\[[0-9]{1,6},(?P<rank_d>[0-9]{1,6})\]<std(?:out|err)>:"
    r"|\((?:\w{1,64} )?pid=(?P<rank_e>[0-9]{1,10})[^)]{0,80}\)\s"
    r"|[A-Za-z][\w.-]{0,63} {0,20}\| "
    r"|[A-Za-z][\w.-]{0,63}/(?P<rank_f>[0-9]{1,5})\s"
    # Dates: Megatron-LM's, NeMo's, Primus', Python's logging, loguru.
    r"|(?:\[NeMo [A-Z] |\[)?(?P<date_a>[0-9]{4}-[0-9]{2}-[0-9]{2}[T ]" + _CLOCK + r"(?:[.,][0-9]{1,6})?)[0-9]{0,3}"
    r" ?(?P<zone>Z|[+-][0-9]{2}:?[0-9]{2})?\]?:?"
    r"|\[?(?P<date_b>[0-9]{8} " + _CLOCK + r")\]?:?"
    r"|\[?(?P<date_c>[0-9]{4}/[0-9]{2}/[0-9]{2} " + _CLOCK + r")\]?:?"
    # Levels, names of loggers, and places in a source.
    r"|\[" + _LEVEL + r"\|[\w./-]{1,80}:[0-9]{1,6}\](?: >>)?"
    r"|\[[A-Za-z][\w.-]{0,31} {0,8}\]:?"
    r"|\[[-\w./]{1,100}\.py:[0-9]{1,6}(?::\w{1,60})?\](?: :)?"
    r"|\|? ?" + _LEVEL + r"\b(?::[\w.]{1,80}:)?[ :|-]{0,12}"
    r"|[\w.]{1,80}:[\w<>]{1,60}:[0-9]{1,6} - "
    r"|(?:[IWE][0-9]{4} " + _CLOCK + r"\.[0-9]{6} +[0-9]{1,10} )?[\w.]{1,80}:[0-9]{1,6}\] "
    r"|- (?:[\w.]{1,64} - )?"
    r"|>> "
    r"|: "
)  # fmt: skip
_PADDED: Final = frozenset(("nan.", "inf.", "-nan", "-inf"))  # Lightning's bar pads a number to five characters.
_RANKS: Final = ("rank_a", "rank_b", "rank_c", "rank_d", "rank_e", "rank_f")


class Line(NamedTuple):
    """What a trainer has said, when by its own or its launcher's date, and which of the log's processes said it."""

    text: str
    date: str | None
    voice: str | None


def text_of(line: bytes) -> str:
    """The line's text, of whatever encoding: records are ASCII, and so they are in UTF-16 but for its zeros."""
    return line.replace(b"\0", b"").decode("utf-8", "replace").lstrip("\ufeff\ufffd")


def parts(line: str) -> list[str]:
    """The parts of a line in their order: a progress bar writes over itself, and others write behind it."""
    return [part for part in line.rstrip("\n").split("\r")[-PARTS_MAX:] if part and not part.isspace()]


def clean(part: str) -> Line:
    """The part without colours and prefixes."""
    text = part[-LINE_CHARS_MAX:]
    if "\x1b" in text or "[39m" in text or "[0m" in text:
        text = _ESCAPES.sub("", text)
    at, date, voice = 0, None, None
    for _ in range(PREFIXES_MAX):
        found = _PREFIX.match(text, at)
        if found is None or found.end() == at:
            break
        at = found.end()
        name = found.lastgroup
        if name is None:
            continue
        if name in _RANKS:
            voice = voice or found[name]
        elif date is None or (found["zone"] and _is_without_zone(date)):
            date = _date(found)
    return Line(text[at:].rstrip(), date, voice)


def _date(found: re.Match[str]) -> str:
    if found["date_a"]:
        return found["date_a"] + (found["zone"] or "")
    if found["date_b"]:
        day = found["date_b"]
        return f"{day[:4]}-{day[4:6]}-{day[6:]}"
    return found["date_c"].replace("/", "-")


def _is_without_zone(date: str) -> bool:
    return not date.endswith("Z") and "+" not in date and date.count("-") == 2


def figure(text: str | None) -> float | None:
    """A number as trainers print it: "1,234", "1.5E-03", "nan". None for anything else."""
    if not text:
        return None
    text = text.strip().replace(",", "")
    if text[:4].lower() in _PADDED:
        text = text.rstrip("0.")
    try:
        return read_float(text)
    except ValueError:
        return None


def count(text: str | None) -> int | None:
    """A whole number from 0, also printed as a float ("99.00"). None for one that was rounded ("1.2e+04")."""
    value = figure(text) if text is not None and "e" not in text.lower() else None
    return int(value) if value is not None and 0 <= value < 2.0**53 and value == int(value) else None
