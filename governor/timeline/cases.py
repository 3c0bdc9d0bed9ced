"""A file of tests: TOML text -> cases, each a series and the expected results of a policy along it and at its end.

    policy = "default.toml"             # relative to this file; or rules = \"\"\"…\"\"\"; a case may name its own
    [[case]]
    name = "the first NaN halts"
    series = ["hello", "steps 30 every 2s loss=2.0", "steps 1 every 2s loss=nan"]
    verdicts = ["1m2s nonfinite loss_nan halt"]         # all that come, in order; quiet = true: none
    halt = ["62s asked suspect", "...", "72s saved", "72s term", "...", "117s halted"]     # the halt, to its end
    findings = ["10s hang quiet", "62s nonfinite firing loss_nan"]     # triggers' findings at a time
    readings = { hang = "quiet" }                       # … and at the end

Every error names file, line and key. Pure: the policies that cases name are read elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from governor.core.base.findings import Reading
from governor.core.base.units import parse_duration
from governor.policies.keys import PolicyError, did_you_mean
from governor.policies.reader import Reader, alone
from governor.timeline import halt_words
from governor.timeline.entries import Decided, Entry
from governor.wire.toml_file import KeyPath

RANKS_MAX: Final = 64  # In a test: every rank beats every second, and each beat is an event.
FILE_KEYS: Final = ("policy", "rules", "case")
CASE_KEYS: Final = (
    "name", "policy", "rules", "ranks", "world_size", "log", "stage", "labels",
    "series", "verdicts", "findings", "readings", "halt", "quiet",
)  # fmt: skip
EXPECTATIONS: Final = ("verdicts", "findings", "readings", "halt", "quiet")


class Line(NamedTuple):
    """A line of a series, and its line in the file."""

    text: str
    number: int


class Expected(NamedTuple):
    """The expected finding of a rule's trigger at a time. `reason` "": any reason."""

    at_ns: int
    rule: str
    reading: Reading
    reason: str


@dataclass(frozen=True, slots=True)
class Rules:
    """The source of a case's rules: files beside the test, or the test's own text."""

    files: tuple[str, ...]
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Case:
    """One test. `verdicts`, `halt` None: not checked. In `halt`, None: any number of entries."""

    file: str
    line: int
    name: str
    rules: Rules
    ranks: int
    world_size: int
    log: bool
    stage: str | None
    labels: Mapping[str, str]
    series: tuple[Line, ...]
    verdicts: tuple[Decided, ...] | None
    findings: tuple[Expected, ...]
    readings: Mapping[str, str]
    halt: tuple[Entry | None, ...] | None

    @property
    def plays_halts(self) -> bool:
        """Whether its halts are played to their end: it expects something of them, or says how the world answers."""
        begins = (line.text.split("#")[0].split()[:1] for line in self.series)
        return self.halt is not None or any(word in halt_words.WORDS for words in begins for word in words)


def read_cases(file: str, text: str) -> tuple[list[Case], list[PolicyError]]:
    """Read one file. Returns no cases if anything is wrong."""
    reader = Reader(alone(file, text))
    if reader.errors:
        return [], reader.errors
    if isinstance(reader.doc.get("policy"), dict):
        reader.fail(("policy",), 'this is a policy; a file of tests names one: policy = "FILE", then [[case]]')
        return [], reader.errors
    for key in reader.doc:
        if key not in FILE_KEYS:
            reader.fail((key,), f"unknown key{did_you_mean(key, FILE_KEYS)}")
    tables = reader.doc.get("case", [])
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        reader.fail(("case",), "holds no tests; write [[case]]")
        return [], reader.errors
    common = _rules(reader, (), reader.doc)
    lines = text.splitlines()
    cases = [_case(reader, ("case", index), table, common, lines) for index, table in enumerate(tables)]
    return ([], reader.errors) if reader.errors else ([case for case in cases if case is not None], [])


def _case(
    reader: Reader, path: KeyPath, table: Mapping[str, Any], common: Rules | None, lines: Sequence[str]
) -> Case | None:
    for key in table:
        if key not in CASE_KEYS:
            reader.fail((*path, key), f"unknown key{did_you_mean(key, CASE_KEYS)}")
    name = table.get("name")
    if not isinstance(name, str) or not name:
        reader.fail((*path, "name"), "is missing: say in a few words what it proves")
    rules = _rules(reader, path, table) or common
    if rules is None:
        reader.fail(path, 'has no rules; write policy = "FILE" (relative to this file) or rules = """…"""')
    if not any(key in table for key in EXPECTATIONS):
        reader.fail(path, f"expects nothing; write one of {', '.join(EXPECTATIONS)}")
    ranks = _whole(reader, path, table, "ranks", 2)
    case = Case(
        file=reader.file,
        line=reader.line(path),
        name=str(name),
        rules=rules or Rules((), "", 0),
        ranks=ranks,
        world_size=_whole(reader, path, table, "world_size", ranks),
        log=_flag(reader, path, table, "log"),
        stage=_text(reader, path, table, "stage"),
        labels=_texts_by_name(reader, path, table, "labels"),
        series=tuple(_series(reader, path, table, lines)),
        verdicts=_verdicts(reader, path, table),
        findings=tuple(_findings(reader, path, table)),
        readings=_readings(reader, path, table),
        halt=_halt(reader, path, table),
    )
    return None if reader.errors else case


def _rules(reader: Reader, path: KeyPath, table: Mapping[str, Any]) -> Rules | None:
    if "policy" in table and "rules" in table:
        reader.fail((*path, "rules"), "stands beside policy; one of them is enough")
    if "policy" in table:
        named = table["policy"]
        files = named if isinstance(named, list) else [named]
        if not files or not all(isinstance(file, str) and file and file.isprintable() for file in files):
            reader.fail((*path, "policy"), "is not the name of a policy file, or a list of them")
            return None
        return Rules(tuple(files), "", reader.line((*path, "policy")))
    if "rules" in table:
        text = _text(reader, path, table, "rules")
        return None if text is None else Rules((), text, reader.line((*path, "rules")))
    return None


def _series(reader: Reader, path: KeyPath, table: Mapping[str, Any], lines: Sequence[str]) -> Iterator[Line]:
    given = table.get("series")
    texts = given.splitlines() if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        said = "is not a list of lines" if "series" in table else "is missing"
        reader.fail((*path, "series"), f'{said}; write for example series = ["hello", "quiet 90s"]')
        return
    # tomllib retains no line numbers, so the search for each element starts where the previous one was found.
    number = reader.line((*path, "series"))
    for text in texts:
        at = number
        while at <= len(lines) and text not in lines[at - 1]:
            at += 1
        number = at if at <= len(lines) else number
        yield Line(text, number)


def _verdicts(reader: Reader, path: KeyPath, table: Mapping[str, Any]) -> tuple[Decided, ...] | None:
    quiet = _flag(reader, path, table, "quiet")
    if "verdicts" not in table:
        return () if quiet else None
    decided = []
    for text in _lines(reader, path, table, "verdicts"):
        try:
            decided.append(Decided.read(text))
        except ValueError as error:
            reader.fail((*path, "verdicts"), str(error))
    if quiet and decided:
        reader.fail((*path, "quiet"), "contradicts verdicts")
    return tuple(decided)


def _halt(reader: Reader, path: KeyPath, table: Mapping[str, Any]) -> tuple[Entry | None, ...] | None:
    if "halt" not in table:
        return None
    entries = []
    for text in _lines(reader, path, table, "halt"):
        try:
            entries.append(Entry.read(text))
        except ValueError as error:
            reader.fail((*path, "halt"), str(error))
    return tuple(entries)


def _findings(reader: Reader, path: KeyPath, table: Mapping[str, Any]) -> Iterator[Expected]:
    for text in _lines(reader, path, table, "findings"):
        words = text.split()
        try:
            if not 3 <= len(words) <= 4:
                raise ValueError(f'"{text}" is no finding; write "AT RULE quiet|firing|unknown [REASON]"')
            yield Expected(parse_duration(words[0]), words[1], _reading(words[2]), "".join(words[3:]))
        except ValueError as error:
            reader.fail((*path, "findings"), str(error))


def _readings(reader: Reader, path: KeyPath, table: Mapping[str, Any]) -> dict[str, str]:
    readings = _texts_by_name(reader, path, table, "readings")
    for rule, reading in readings.items():
        try:
            _reading(reading)
        except ValueError as error:
            reader.fail((*path, "readings", rule), str(error))
    return readings


def _reading(text: str) -> Reading:
    try:
        return Reading(text)
    except ValueError:
        raise ValueError(f'"{text}" is not one of {", ".join(reading.value for reading in Reading)}') from None


def _lines(reader: Reader, path: KeyPath, table: Mapping[str, Any], key: str) -> list[str]:
    lines = table.get(key, [])
    if isinstance(lines, list) and all(isinstance(line, str) for line in lines):
        return lines
    reader.fail((*path, key), "is not a list of texts")
    return []


def _texts_by_name(reader: Reader, path: KeyPath, table: Mapping[str, Any], key: str) -> dict[str, str]:
    texts = table.get(key, {})
    if isinstance(texts, dict) and all(isinstance(text, str) for text in texts.values()):
        return texts
    reader.fail((*path, key), 'is not a table of texts; write { name = "text" }')
    return {}


def _text(reader: Reader, path: KeyPath, table: Mapping[str, Any], key: str) -> str | None:
    text = table.get(key)
    if text is not None and not isinstance(text, str):
        reader.fail((*path, key), f"{text!r} is not text")
        return None
    return text


def _flag(reader: Reader, path: KeyPath, table: Mapping[str, Any], key: str) -> bool:
    flag = table.get(key, False)
    if not isinstance(flag, bool):
        reader.fail((*path, key), f"{flag!r} is not true or false")
    return flag is True


def _whole(reader: Reader, path: KeyPath, table: Mapping[str, Any], key: str, default: int) -> int:
    whole = table.get(key, default)
    if isinstance(whole, bool) or not isinstance(whole, int) or not 1 <= whole <= RANKS_MAX:
        reader.fail((*path, key), f"{whole!r} is not a number of ranks from 1 to {RANKS_MAX}")
        return default
    return whole
