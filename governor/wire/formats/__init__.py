"""Text formats of trainers' console logs. Each makes records of lines, which wire.records reads as those of JSONL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from governor.wire.formats.bars import Lightning, Nemo
from governor.wire.formats.hugging_face import HuggingFace
from governor.wire.formats.libraries import DeepSpeed, Torchtitan, Torchtune
from governor.wire.formats.line import clean, parts, text_of
from governor.wire.formats.megatron import Megatron
from governor.wire.formats.mllog import Mllog
from governor.wire.formats.scripts import LlmC, ModdedNanoGpt, NanoGpt
from governor.wire.formats.text_log import Dialect, LineFormat, TextLog
from governor.wire.jsonl import parse_line

_DIALECTS: Final[Mapping[str, Callable[[], Dialect]]] = {
    "megatron": Megatron,
    "nemo": Nemo,
    "torchtitan": Torchtitan,
    "hf": HuggingFace,
    "nanogpt": NanoGpt,
    "modded-nanogpt": ModdedNanoGpt,
    "llm.c": LlmC,
    "torchtune": Torchtune,
    "deepspeed": DeepSpeed,
    "lightning": Lightning,
    "mllog": Mllog,
}
NAMES: Final = tuple(_DIALECTS)
LENGTH_MAX: Final = 2**30  # No model reads longer sequences, and no run has more GPUs.
GPUS_MAX: Final = 2**20
# So many steps of one format, and what the log is needs no more lines.
CERTAIN_AFTER: Final = 32


def named(name: str, *, sequence_length: int | None = None, gpus: int | None = None) -> TextLog:
    """A new reader of one log of that format. KeyError for a name that is not in NAMES."""
    return TextLog(name, _DIALECTS[name](), sequence_length=sequence_length, gpus=gpus)


def recognise(lines: Iterable[str]) -> str | None:
    """The format of a log by its first lines, at most as many as are given. None for JSONL, and for what is unknown.

    Of two formats whose lines a log has, it is the one with more losses, then with more steps: DeepSpeed prints beside
    what others train with it.
    """
    readers = {name: named(name) for name in NAMES}
    found = {name: [0, 0] for name in NAMES}  # Losses, and steps.
    objects = 0
    for line in lines:
        if line.lstrip().startswith("{") and isinstance(parse_line(line.encode("utf-8", "replace")), dict):
            objects += 1
            continue
        for cleaned in map(clean, parts(line)):
            for name, reader in readers.items():
                record = reader.read(cleaned)
                if isinstance(record, dict) and "step" in record and "val_loss" not in record:
                    found[name][0] += record.get("loss") is not None
                    found[name][1] += 1
        if max(counts[0] for counts in found.values()) >= CERTAIN_AFTER:
            break
    name = max(found, key=lambda one: found[one])
    return name if found[name][1] and found[name][1] >= objects else None


__all__ = ["GPUS_MAX", "LENGTH_MAX", "NAMES", "LineFormat", "TextLog", "named", "recognise", "text_of"]
