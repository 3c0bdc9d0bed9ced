"""What reads one `[[log]]`: who follows its file, and who makes records of its lines."""

from __future__ import annotations

from governor.adapters.trainers.jsonl_tail import JsonlTail
from governor.adapters.trainers.log_place import LogPlace
from governor.settings.streams import Jsonl
from governor.wire import files, formats
from governor.wire.files.choice import named
from governor.wire.files.cutter import Cutter
from governor.wire.files.lines import Lines
from governor.wire.jsonl import field_map


def text_log(entry: Jsonl) -> formats.TextLog | None:
    """A new reader of a console's lines. None: whoever follows the file makes JSON of what is none."""
    if entry.format not in formats.NAMES:
        return None
    return formats.named(entry.format, sequence_length=entry.sequence_length, gpus=entry.gpus)


def cutter_of(entry: Jsonl) -> Cutter:
    """What cuts the bytes of the log's file into lines for a RecordReader."""
    if entry.format in files.NAMES:
        return named(entry.format, field_map(entry.fields))
    return Lines(is_console=entry.format in formats.NAMES)


def place_of(entry: Jsonl) -> LogPlace | None:
    """Where the log is, if its path may be a directory."""
    return LogPlace(str(entry.path), entry.format) if entry.format in files.IN_DIRECTORIES else None


def tail_of(entry: Jsonl) -> JsonlTail:
    return JsonlTail(str(entry.path), cutter=cutter_of(entry), place=place_of(entry))
