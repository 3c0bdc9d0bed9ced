"""Predicts each row of a table of set-ups. The output has one line for each row, whatever the row contains."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from governor.planner.model.memory import memory_of
from governor.planner.model.predict import DOES_NOT_FIT, predict
from governor.planner.model.setup import Checkpointing
from governor.planner.model.shape import Shape, divisors_near
from governor.planner.table import Read, Row, UnreadableRowError, read
from governor.planner.words import GB
from governor.text.screen import Screen
from governor.text.table import Head, render_rows
from governor.wire.csv_table import ROW_CHARS_MAX, RowLines, RowTooLongError
from governor.wire.named_file import opened_file

NOT_PREDICTED: Final = "not predicted: "
# Words for "unknown" in tables, besides a blank. "none" is a value: of checkpointing, of offload.
UNKNOWN_WORDS: Final = frozenset({"-", "?", "n/a", "na", "nan", "null", "unknown"})
# A table has at least one of these columns. Otherwise its separator is not the comma.
KNOWN: Final = frozenset({"model", "hidden", "params_b", "gpu"})
NOTE_CHARS_MAX: Final = 400


class TableUnreadableError(ValueError):
    """The file is not a table. The message is one line."""


def predictions(path: Path) -> Iterator[dict[str, Any]]:
    """One object for each row, in order. TableUnreadableError when the file itself cannot be read."""
    try:
        with (
            io.BufferedReader(opened_file(str(path))) as data,
            io.TextIOWrapper(data, encoding="utf-8-sig", newline="") as file,
        ):
            lines = RowLines(_without_remarks(iter(partial(file.readline, ROW_CHARS_MAX + 1), "")))
            rows = csv.DictReader(lines)
            columns = [name.strip() for name in rows.fieldnames or []]
            if not KNOWN.intersection(columns):
                hint = "; columns are separated by commas" if any(";" in one or "\t" in one for one in columns) else ""
                raise TableUnreadableError(
                    f"{path}: no column that a set-up has ({', '.join(sorted(KNOWN))}) in line 1{hint}"
                )
            rows.fieldnames = columns
            number = 0
            for number, row in enumerate(rows, 1):
                lines.begin_row()
                plain = {key: _known(value) for key, value in row.items() if isinstance(key, str) and value is not None}
                yield prediction(plain, plain.get("row_id", "").strip() or str(number))
            if not number:
                raise TableUnreadableError(f"{path}: a line of titles, and no row below it")
    except OSError as error:
        raise TableUnreadableError(f"{path}: {error.strerror}") from error
    except RowTooLongError as error:
        raise TableUnreadableError(f"{path}: {error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise TableUnreadableError(f"{path}: is no CSV in UTF-8: {error}") from error


def _known(cell: str) -> str:
    return "" if cell.strip().lower() in UNKNOWN_WORDS else cell


def _without_remarks(file: Iterable[str]) -> Iterator[str]:
    """Lines that begin with # are comments above the column titles. Below them they may be rows."""
    lines = iter(file)
    for line in lines:
        if not line.startswith("#"):
            yield line
            break
    yield from lines


def prediction(row: Row, row_id: str) -> dict[str, Any]:
    """The output line of a row. Every figure is null when no trainable set-up follows from the row."""
    try:
        known = read(row)
        _check_heads(row, known.setup.shape)
        made = predict(known.setup, known.assumed)
        memory, speed = made.memory, made.tokens_per_gpu_s
        allocated = memory.last_stage if known.shows_last_rank else memory.allocated
        figures = (*speed, allocated / GB, memory.reserved / GB)
        if not all(map(math.isfinite, figures)) or not round(min(speed), 2):
            raise UnreadableRowError("its sizes are beyond every machine")
    except (ValueError, ArithmeticError) as error:
        why = str(error) if isinstance(error, ValueError) else "its sizes are beyond every machine"
        return _line(row_id, f"{NOT_PREDICTED}{why}")
    low, mid, high = (round(value, 2) for value in speed)
    notes = list(made.notes)
    fits = memory.surely_fits
    if not fits and _could_recompute(known):
        notes = [note for note in notes if not note.startswith(DOES_NOT_FIT)]
        fits, notes = True, [*notes, "fits by recomputing activations: act_ckpt is not stated"]
    return _line(
        row_id,
        "; ".join(notes),
        tok_s_gpu=mid,
        tok_s_gpu_low=low,
        tok_s_gpu_high=high,
        mem_gb_allocated=round(figures[3], 3),
        mem_gb_reserved=round(figures[4], 3),
        fits=fits,
    )


def _could_recompute(known: Read) -> bool:
    """Whether a finished run recomputed something: the row states nothing, and full recomputation fits."""
    is_open = any(one.startswith("act_ckpt") for one in known.assumed)
    return is_open and memory_of(known.setup.but(checkpointing=Checkpointing.FULL)).surely_fits


def _check_heads(row: Row, shape: Shape) -> None:
    """Refuse heads that do not divide the hidden size, unless the catalogue knows the model's head width."""
    if row.get("heads", "").strip() and shape.hidden % shape.heads and shape.head_dim == shape.hidden // shape.heads:
        near = divisors_near(shape.hidden, shape.heads)
        raise UnreadableRowError(f"{shape.heads} heads do not divide hidden {shape.hidden}: {near} do")


def _line(row_id: str, notes: str, **figures: float | bool) -> dict[str, Any]:
    names = ("tok_s_gpu", "tok_s_gpu_low", "tok_s_gpu_high", "mem_gb_allocated", "mem_gb_reserved", "fits")
    return {"row_id": row_id, **{name: figures.get(name) for name in names}, "notes": notes[:NOTE_CHARS_MAX]}


def as_table(lines: Sequence[Mapping[str, Any]], *, screen: Screen) -> str:
    heads = (
        Head("ROW"), Head("TOK/S/GPU", is_number=True), Head("LOW", is_number=True), Head("HIGH", is_number=True),
        Head("GB ALLOCATED", is_number=True), Head("RESERVED", is_number=True), Head("FITS"),
        Head("NOTES", may_wrap=True),
    )  # fmt: skip
    return render_rows(heads, [_cells(line) for line in lines], total=False, screen=screen)


def _cells(line: Mapping[str, Any]) -> tuple[str, ...]:
    speeds = ("tok_s_gpu", "tok_s_gpu_low", "tok_s_gpu_high")
    fits = {True: "yes", False: "NO", None: ""}[line["fits"]]
    return (
        line["row_id"],
        *("" if line[name] is None else f"{line[name]:,.0f}" for name in speeds),
        *("" if line[name] is None else f"{line[name]:,.1f}" for name in ("mem_gb_allocated", "mem_gb_reserved")),
        fits,
        line["notes"],
    )
