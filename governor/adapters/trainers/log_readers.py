"""What reads one `[[log]]`: who follows its file, and who makes records of its lines."""

from __future__ import annotations

from collections.abc import Iterable

from governor.adapters.trainers.jsonl_tail import JsonlTail
from governor.adapters.trainers.log_directory import DirectoryTail, Told
from governor.adapters.trainers.log_place import LogPlace
from governor.core.base.units import MonoNs
from governor.core.events.inputs import Step
from governor.settings.streams import Jsonl
from governor.wire import files, formats
from governor.wire.files.choice import named
from governor.wire.files.cutter import Cutter
from governor.wire.files.lines import Lines
from governor.wire.jsonl import field_map
from governor.wire.records import RecordReader


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


def directory_of(entry: Jsonl) -> DirectoryTail | None:
    """What follows the files of a directory, if the log's path may be one."""
    if entry.format not in files.IN_DIRECTORIES:
        return None
    place = LogPlace(str(entry.path), entry.format)
    return DirectoryTail(place, lambda: cutter_of(entry), lambda lines: told_of(entry, lines))


def told_of(entry: Jsonl, lines: Iterable[bytes]) -> Told:
    """What such lines of the log say, as a RecordReader understands them."""
    reader, told = RecordReader(entry.run, field_map(entry.fields)), Told()
    for line in lines:
        found = [event for event in reader.read_line(line, MonoNs(0)) if isinstance(event, Step)]
        told |= Told(bool(found), any(event.loss is not None for event in found))
        if told.loss:
            break
    return told


def tail_of(entry: Jsonl) -> JsonlTail | DirectoryTail:
    return directory_of(entry) or JsonlTail(str(entry.path), cutter=cutter_of(entry))
