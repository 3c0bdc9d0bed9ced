"""Whether anything in a log is understood, and if not, what was seen and what to write about it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from governor.core.events.inputs import PhaseChange, Step
from governor.text.table import plain
from governor.wire import files
from governor.wire.files.choice import recognise as recognise_file
from governor.wire.formats import NAMES, recognise, text_of
from governor.wire.jsonl import parse_line
from governor.wire.likely_names import leaves, likely

# A log may begin with its configuration and a header.
HEADERS_MAX: Final = 2
# What Lightning and others log beside the first losses.
UNKNOWN_MAX: Final = 20
# What comes before the first step of a console: the configuration, NCCL's lines, warnings of each rank.
TEXTS_MAX: Final = 5_000
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
    lines: int = 0
    not_json: int = 0
    first: str = ""  # Neutralised, as the keys are.
    keys: dict[str, type] = field(default_factory=dict)  # With the type of their value.
    texts: deque[str] = field(default_factory=lambda: deque(maxlen=TEXTS_KEPT))  # The last ones.

    def see(self, line: bytes, found: Sequence[object]) -> None:
        """Note a line, and what a RecordReader made of it."""
        if self.has_record or not line.strip():
            return
        if any(isinstance(event, Step | PhaseChange) for event in found):
            self.has_record = True
            self.texts.clear()
            return
        self.lines += 1
        if self._is_text:
            self.texts.append(text_of(line[:TEXT_BYTES_MAX]))
        self.first = self.first or plain(line[:LINE_CHARS_MAX].decode("utf-8", "replace"))
        if len(self.keys) >= KEYS_MAX or self._is_text:
            return
        record = parse_line(line)
        if not isinstance(record, dict):
            self.not_json += 1
            return
        for name, value in leaves(record):
            if len(self.keys) < KEYS_MAX:
                self.keys.setdefault(plain(name[:KEY_CHARS_MAX]), type(value))

    @property
    def _is_text(self) -> bool:
        return self.format in NAMES

    @property
    def is_foreign(self) -> bool:
        """Whether lines have come, and it is no header alone that is not understood."""
        if self._is_text:
            return not self.has_record and self.lines >= TEXTS_MAX
        most = HEADERS_MAX if self.format in (None, files.CSV) else UNKNOWN_MAX
        return not self.has_record and (self.not_json > 0 or self.lines > most)

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
        """What to write in costgov.toml."""
        if self._is_text:
            other = recognise(self.texts)
            every = ", ".join((*NAMES, *files.NAMES))
            return f'write format = "{other}"' if other is not None else f"say what it is: {every}"
        if self.format in files.IN_DIRECTORIES:
            return f'map its loss: fields = {{ loss = "{likely(self.keys, ("loss",)).get("loss", "NAME")}" }}'
        if self.format is None and self.not_json and (file := recognise_file(self.first)) is not None:
            return f'write format = "{file}"'
        if not self.keys and self.format == files.CSV:
            return "its first line names the columns, such as step,loss: have the trainer write such a file"
        if not self.keys:
            return "a stream has one JSON object a line, with a step and a loss: have the trainer write such a file"
        names = likely(self.keys, ("step", "loss"))
        step, loss = (names.get(field, "NAME") for field in ("step", "loss"))
        return f'map its names: fields = {{ step = "{step}", loss = "{loss}" }}'
