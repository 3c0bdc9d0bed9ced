"""How a recording lies on disk: a directory a run, in it numbered segments that are each replayable by themselves."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_SEGMENT: Final = re.compile(r"frames-([0-9]{6,12})\.jsonl\.gz")


def segment_name(number: int) -> str:
    return f"frames-{number:06d}.jsonl.gz"


def number_of(name: str) -> int | None:
    """None for what is no segment."""
    found = _SEGMENT.fullmatch(name)
    return int(found[1]) if found is not None else None


def segments(directory: Path) -> list[Path]:
    """In the order in which they were written. OSError when the directory cannot be read."""
    found = [(number, path) for path in directory.iterdir() if (number := number_of(path.name)) is not None]
    return [path for _, path in sorted(found)]
