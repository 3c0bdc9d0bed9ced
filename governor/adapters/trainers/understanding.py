"""Whether anything in a log is understood, and if not, what was seen and what to write about it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from governor.core.base.units import NS_PER_MINUTE, NS_PER_S, MonoNs
from governor.core.events.inputs import PhaseChange, Step
from governor.settings.streams import JSONL
from governor.text.table import plain
from governor.wire import files
from governor.wire.files.choice import recognise as recognise_file
from governor.wire.formats import NAMES, recognise, text_of
from governor.wire.jsonl import parse_line
from governor.wire.likely_names import leaves, likely, separator

# A log may begin with its configuration and a header.
HEADERS_MAX: Final = 2
# What Lightning and others log beside the first losses.
UNKNOWN_MAX: Final = 20
# From so many lines or so long a time on, a console whose lines are another format's is that one's.
OTHERS_LINES: Final = 200
OTHERS_NS: Final = 30 * NS_PER_S
# Before the first step of a console come the configuration, NCCL's lines and warnings of each rank, and no step for
# minutes. Lines that go on for longer are of no format.
UNKNOWN_NS: Final = 5 * NS_PER_MINUTE
# They print beside what others train with them, and often sooner.
BESIDE: Final = frozenset({"deepspeed", "mllog"})
# By which another format is recognised: a quarter of a megabyte for each of 64 logs.
TEXTS_KEPT: Final = 256
TEXT_BYTES_MAX: Final = 1_024
KEYS_MAX: Final = 12
KEY_CHARS_MAX: Final = 40
LINE_CHARS_MAX: Final = 80


@dataclass(slots=True)
class Understanding:
    """Counts the lines of one launch until one of them is a step or a phase."""

    has_record: bool = False
    format: str | None = None  # What the log is said to be. None: JSONL.
    by_option: bool = False  # It is named on a command line, which has no table.
    lines: int = 0
    not_json: int = 0
    first: str = ""  # Neutralised, as the keys are.
    keys: dict[str, type] = field(default_factory=dict)  # With the type of their value.
    texts: deque[str] = field(default_factory=lambda: deque(maxlen=TEXTS_KEPT))  # The last ones.
    _began: MonoNs = MonoNs(0)  # When the first line came, and the last one.
    _last: MonoNs = MonoNs(0)
    _looked: tuple[int, MonoNs, str | None] | None = None  # After how many lines, when, and what they are.

    def see(self, line: bytes, found: Sequence[object], at: MonoNs) -> None:
        """Note a line that came at `at`, and what a RecordReader made of it."""
        if self.has_record or not line.strip():
            return
        if any(isinstance(event, Step | PhaseChange) for event in found):
            self.has_record = True
            self.texts.clear()
            return
        self._began = self._began if self.lines else at
        self._last = at
        self.lines += 1
        if self._is_text:
            self.texts.append(text_of(line[:TEXT_BYTES_MAX]))
        self.first = self.first or plain(line[:LINE_CHARS_MAX].decode("utf-8", "replace"))
        if self._is_text:
            return
        if len(self.keys) >= KEYS_MAX:
            return
        record = parse_line(line)
        if not isinstance(record, dict):
            self.not_json += 1
            if self.format is None:
                self.texts.append(text_of(line[:TEXT_BYTES_MAX]))
            return
        for name, value in leaves(record):
            if len(self.keys) < KEYS_MAX:
                self.keys.setdefault(plain(name[:KEY_CHARS_MAX]), type(value))

    @property
    def _is_text(self) -> bool:
        return self.format in NAMES

    def is_foreign(self, at: MonoNs) -> bool:
        """Whether lines have come, and it is no header alone that is not understood."""
        if self.has_record or not self.lines:
            return False
        if not self._is_text:
            return self._has_no_step
        if self._last - self._began >= UNKNOWN_NS:
            return True
        is_enough = self.lines >= OTHERS_LINES or at - self._began >= OTHERS_NS
        return is_enough and self._others(at) not in (None, *BESIDE)

    def is_foreign_at_a_look(self, *, is_whole: bool) -> bool:
        """`is_foreign` of one look, which knows no times. `is_whole`: all of the log has been seen."""
        if self.has_record or not self.lines:
            return False
        if not self._is_text:
            return self._has_no_step
        return not is_whole or recognise(self.texts) not in (None, self.format, *BESIDE)

    @property
    def _has_no_step(self) -> bool:
        most = HEADERS_MAX if self.format in (None, files.CSV) else UNKNOWN_MAX
        return self.not_json > 0 or self.lines > most

    def _others(self, at: MonoNs) -> str | None:
        """Which other format the lines have. Looked at twice a minute at most: it costs milliseconds."""
        if self._looked is None or (self._looked[0] != self.lines and at - self._looked[1] >= OTHERS_NS):
            self._looked = (self.lines, at, self._recognised())
        return self._looked[2]

    def _recognised(self) -> str | None:
        name = recognise(self.texts)
        if name is None and self._is_text and self.texts:
            objects = sum(line.lstrip().startswith("{") and _has_step(line) for line in self.texts)
            name = JSONL if 2 * objects > len(self.texts) else None
        return name if name != self.format else None

    def problem(self, path: str) -> str:
        """One line: what was seen."""
        count = "1 line" if self.lines == 1 else f"{self.lines} lines"
        if self._is_text:
            return f'{path}: no record of {self.format} in {count}, such as "{self.first}"'
        if self.format == files.CSV and self.not_json and not self.keys:
            return f'{path}: no table with a header, nothing understood in {count} such as "{self.first}"'
        if self.format is not None:
            what = {files.CSV: "columns", files.TENSORBOARD: "tags"}.get(self.format, "names")
            return (
                f"{path}: nothing of {self.format} understood in {self.lines:,} records with the {what} {self._names}"
            )
        if self.not_json and not self.keys:
            return f'{path}: not JSON, nothing understood in {count} such as "{self.first}"'
        return f"{path}: no step understood in {count} with the keys {self._names}"

    @property
    def _names(self) -> str:
        return ", ".join(self.keys) or "(none)"

    def advice(self) -> str:
        """What to write in costgov.toml, or to pass."""
        if self._is_text:
            other = self._recognised()
            return self._write(other) if other is not None else self._say_which(_OF_LINES)
        if self.format in files.IN_DIRECTORIES:
            return self._map("its loss", loss=likely(self.keys, ("loss",)).get("loss", "NAME"))
        if self.format is None and self.not_json and (file := self._recognised() or recognise_file(self.first)):
            return self._write(file)
        apart = separator(self.keys or (self.first,)) if self.format == files.CSV else None
        if apart is not None:
            return f"its columns are separated by {apart!r}: write the table with commas"
        if not self.keys and self.format == files.CSV:
            return "its first line names the columns, such as step,loss: have the trainer write such a file"
        if not self.keys:
            return (
                f"{JSONL} has one JSON object a line, with a step and a loss: have the trainer write such a file, or "
                f"say what this one is: {_EVERY}"
            )
        names = likely(self.keys, ("step", "loss"))
        return self._map("its names", **{field: names.get(field, "NAME") for field in ("step", "loss")})

    def _say_which(self, names: str) -> str:
        option = "--log-format NAME" if self.by_option else 'format = "NAME"'
        return f"say what it is: {names} ({option}); of none of these, have the trainer write {JSONL}"

    def _write(self, name: str) -> str:
        return f"pass --log-format {name}" if self.by_option else f'write format = "{name}"'

    def _map(self, what: str, **names: str) -> str:
        fields = ", ".join(f'{field} = "{name}"' for field, name in names.items())
        if not self.by_option:
            return f"map {what}: fields = {{ {fields} }}"
        return f'map {what} in a [[log]] of --config: format = "{self.format or JSONL}", fields = {{ {fields} }}'


# A directory's files have no lines: who has text has none of them.
_OF_LINES: Final = ", ".join((*NAMES, *(name for name in files.NAMES if name not in files.IN_DIRECTORIES)))
_EVERY: Final = ", ".join((*NAMES, *files.NAMES))


def _has_step(line: str) -> bool:
    record = parse_line(line.encode("utf-8", "replace"))
    if not isinstance(record, dict):
        return False
    return "step" in likely({name: type(value) for name, value in leaves(record)}, ("step",))
