"""Tables of metrics in CSV, cut as they grow, are emptied and are written again."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.wire.files import CSV, NAMES
from governor.wire.files.choice import named
from governor.wire.files.cutter import Cutter
from governor.wire.files.lines import LINE_BYTES_MAX
from governor.wire.files.rows import LOOKS_FOR_LAST_ROW, ROW_LINES_MAX
from governor.wire.jsonl import DEFAULT_FIELDS

HEADER = "step,loss,lr\n"


def cutter() -> Cutter:
    made = named(CSV, DEFAULT_FIELDS)
    made.anew()
    return made


def told(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines]


def steps(lines: Iterable[bytes]) -> list[float]:
    return [one["step"] for one in told(lines)]


def rows(numbers: Iterable[int], loss: float = 2.0) -> str:
    return "".join(f"{n},{loss},1e-4\n" for n in numbers)


def table(records: Iterable[Mapping[str, Any]]) -> str:
    """As csv.DictWriter and pandas write it."""
    records = list(records)
    columns = sorted({name for record in records for name in record})
    out = io.StringIO()
    writer = csv.DictWriter(out, columns)
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_rows_are_records_under_their_columns(size: int) -> None:
    data = table(
        [{"step": 1, "loss": 2.5, "note": 'a "b", \nc'}, {"step": 2, "val_loss": 3.0}, {"step": 3, "loss": "nan"}]
    )
    made, found = cutter(), list[bytes]()
    for n in range(0, len(data), size):
        found += made.give(data[n : n + size].encode())
    first, second, third = told(found)
    assert (first["step"], first["loss"]) == (1, 2.5)
    assert first["note"] in ('a "b", \nc', 'a "b", \r\nc')
    assert second == {"step": 2, "val_loss": 3.0}, "an empty cell was not logged"
    assert third["loss"] == "nan" or math.isnan(third["loss"])
    assert made.faulty == 0


def test_a_header_that_comes_again_is_the_header_of_what_follows() -> None:
    made = cutter()
    found = made.give((HEADER + rows([1, 2]) + HEADER + rows([2]) + "loss,step\n1.5,3\n").encode())
    assert steps(found) == [1, 2, 2, 3]
    assert told(found)[-1] == {"loss": 1.5, "step": 3.0}


def test_a_header_of_names_that_we_do_not_know_comes_again_as_it_was() -> None:
    found = cutter().give(b"it, ce\n1,2.0\nit, ce\n1,2.0\n")
    assert told(found) == [{"it": 1.0, "ce": 2.0}] * 2


def test_a_table_that_is_written_again_under_more_columns_goes_on() -> None:
    made = cutter()
    found = made.give((HEADER + rows(range(1, 50))).encode())
    made.rest()
    made.anew()
    again = "grad_norm,step,loss,lr\n" + "".join(f",{line}\n" for line in rows(range(1, 50)).splitlines())
    found += made.give((again + "1.5,50,2.0,1e-4\n").encode())
    assert steps(found) == list(range(1, 51))


def test_a_table_of_another_launch_is_told_from_its_first_row() -> None:
    made = cutter()
    made.give((HEADER + rows(range(1, 50))).encode())
    made.anew()
    assert steps(made.give((HEADER + rows([1], loss=2.1)).encode())) == [1]


def test_a_table_that_begins_as_the_last_one_did_is_told_after_a_second() -> None:
    made = cutter()
    made.give((HEADER + rows(range(1, 50))).encode())
    made.anew()
    data = (HEADER + rows([1, 2])).encode()
    assert made.give(data) == []
    for _ in range(LOOKS_FOR_LAST_ROW):
        assert not made.wants_begin
        made.at_end(grew=True)
    assert made.wants_begin
    made.anew()
    assert steps(made.give(data)) == [1, 2]


def test_history_is_passed_and_its_rows_are_known_when_it_is_written_again() -> None:
    past = (HEADER + rows(range(1, 50))).encode()
    data = past + b"50,2.0,1e-4\n"
    made = named(CSV, DEFAULT_FIELDS)
    at = made.begin(len(past), lambda count, offset: data[offset : offset + count])
    assert at == len(past)
    made.rest()
    made.anew()
    assert steps(made.give(data)) == [50]


def test_who_goes_on_knows_the_columns_and_the_last_row() -> None:
    data = (HEADER + rows(range(1, 50)) + "loss,step\n1.0,50\n1.0,51\n").encode()
    made = cutter()
    first = steps(made.give(data[:-4]))
    state = json.loads(json.dumps(made.state()))
    for offset, rest in ((len(data) - 4 - made.behind, None), (0, data)):
        again = named(CSV, DEFAULT_FIELDS)
        again.go_on(offset or len(data) - 4 - made.behind, state, lambda count, at: data[at : at + count])
        if rest is not None:
            again.anew()  # It was written again meanwhile.
        assert first + steps(again.give(data[offset:])) == list(range(1, 52))


def test_a_torn_row_is_counted_and_takes_no_other_with_it() -> None:
    made = cutter()
    found = made.give((HEADER + '1,2.0,"torn\n' + rows(range(2, 40))).encode())
    assert steps(found) == list(range(2, 40))
    assert made.faulty == 1


def test_a_gigabyte_without_a_line_is_one_fault_and_no_memory() -> None:
    made = cutter()
    made.give(HEADER.encode())
    for _ in range(64):
        assert made.give(b'"' + b"x," * (LINE_BYTES_MAX // 4)) == []
        assert made.behind <= 2 * LINE_BYTES_MAX
    assert steps(made.give(("\n" + rows([5])).encode())) == [5]
    assert made.faulty == 1


def test_rows_that_do_not_fit_their_header_are_said_as_they_are() -> None:
    (line,) = cutter().give(b"my training\n1,2,3\n")
    assert line == b"row: 1,2,3"


@given(st.binary(max_size=600), st.integers(1, 50))
def test_whatever_a_table_holds_is_read_or_counted(data: bytes, size: int) -> None:
    made = cutter()
    for n in range(0, len(data), size):
        for line in made.give(data[n : n + size]):
            assert line.startswith(b"row: ") or json.loads(line)
    made.rest()
    made.anew()
    made.give(data)


@pytest.mark.parametrize("line", ['"a', 'a",b"c,"d', 'a","', '"', '"","', '"a""', 'x",y,"' + "z" * 500])
def test_each_line_is_parsed_once_or_twice_whatever_its_quotes(line: str) -> None:
    made, calls = cutter(), 0
    made.give(HEADER.encode())
    data = f"{line}\n".encode() * 2_000

    def count(_frame: object, event: str, called: Any) -> None:
        nonlocal calls
        calls += event == "c_call" and called is csv.reader

    sys.setprofile(count)
    try:
        made.give(data)
    finally:
        sys.setprofile(None)
    assert calls <= 2 * 2_000


def cells_in_vain(lines: list[bytes]) -> list[list[str]]:
    """Rows by csv alone, which is asked anew with each line that comes to a row."""
    found, waiting, held = list[list[str]](), [*lines], list[bytes]()
    while waiting:
        held.append(waiting.pop(0))
        try:
            cells = next(csv.reader([line.decode("utf-8-sig") + "\n" for line in held], strict=True), [])
        except csv.Error as error:
            if "unexpected end" in str(error) and len(held) < ROW_LINES_MAX:
                continue
            cells = []
        if cells:
            found.append(cells)
            held = []
        else:
            held, waiting = [], held[1:] + waiting
    return found


@given(st.text('"",,a \r\n\n\ufeff', max_size=150))
def test_quotes_mean_what_they_mean_to_csv(data: str) -> None:
    made = cutter()
    made.give(b"name\n")  # Rows with more cells than that are told as they are.
    told = [line for line in made.give(f"{data}\n".encode()) if line.startswith(b"row: ")]
    wanted = [cells for cells in cells_in_vain(data.encode().split(b"\n")) if len(cells) > 1]
    assert told == [b"row: " + ",".join(cells).encode() for cells in wanted]


def test_each_format_is_named_and_no_other() -> None:
    for name in NAMES:
        assert named(name, DEFAULT_FIELDS) is not named(name, DEFAULT_FIELDS)
    with pytest.raises(KeyError):
        named("parquet", DEFAULT_FIELDS)
