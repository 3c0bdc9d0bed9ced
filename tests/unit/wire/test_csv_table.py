"""A table of any size takes bounded memory, and a file that is none is a short line that keeps its secrets."""

from __future__ import annotations

import gzip
import io
import time
import tracemalloc
from collections.abc import Iterable, Iterator

import pytest

from governor.core.money.reports.bill import Bill
from governor.wire.bill_map import bill_map
from governor.wire.bills import Wanted, read_bill
from governor.wire.csv_table import COLUMNS_MAX, ROW_CHARS_MAX, CsvTable, TableError, opened_csv

MIB = 1024 * 1024
MAP = ("date=Date", "amount=Amount")
WITHOUT_END = {
    "one line": (b"", b"a" * MIB),
    "commas": (b"Date,Amount\n", b"," * MIB),
    "quoted cells over many lines": (b"Date,Amount\n", b'"x\n",' * (MIB // 5)),
    "zeros": (b"", bytes(MIB)),
    "one open quote": (b'Date,Amount\n"', b"x\n" * (MIB // 2)),
}


class Stream(io.RawIOBase):
    """So many pieces, of which the reader holds one."""

    def __init__(self, head: bytes, piece: bytes, times: int) -> None:
        self._left = self._pieces(head, piece, times)
        self._rest = b""
        self.taken = 0

    @staticmethod
    def _pieces(head: bytes, piece: bytes, times: int) -> Iterator[bytes]:
        yield head
        for _ in range(times):
            yield piece

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._rest:
            try:
                self._rest = next(self._left)
            except StopIteration:
                return 0
        part = self._rest[: len(buffer)]
        self._rest = self._rest[len(part) :]
        buffer[: len(part)] = part
        self.taken += len(part)
        return len(part)


def refusal(stream: io.RawIOBase, pairs: Iterable[str] = MAP) -> str:
    with pytest.raises(TableError) as raised:
        read_bill(stream, "bill.csv", Wanted(columns=bill_map(tuple(pairs))))
    assert "\n" not in str(raised.value)
    return str(raised.value)


def of(text: str) -> io.RawIOBase:
    return io.BytesIO(text.encode())  # type: ignore[return-value]


@pytest.mark.parametrize("what", WITHOUT_END)
def test_a_row_without_end_is_refused_before_it_is_in_memory(what: str) -> None:
    stream = Stream(*WITHOUT_END[what], times=64)
    tracemalloc.start()
    try:
        said = refusal(stream)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert said.startswith("bill.csv:")
    assert len(said) < 200
    assert stream.taken < 4 * ROW_CHARS_MAX
    assert peak < 24 * MIB


def test_so_is_one_that_was_packed() -> None:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1) as file:
        for _ in range(64):
            file.write(b"a" * MIB)
    packed.seek(0)
    tracemalloc.start()
    try:
        said = refusal(packed)  # type: ignore[arg-type]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert said == f"bill.csv:1: a row of more than {ROW_CHARS_MAX:,} characters: this is no table"
    assert peak < 24 * MIB


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_each_way_to_end_a_line_is_one(end: str) -> None:
    with opened_csv(of(end.join(["a,b", "1,2", '3,"4', '5"', ""])), "t.csv") as table:
        assert [cells for _, cells in table.lists()] == [["1", "2"], ["3", f"4{end}5"]]


def test_a_header_is_checked_in_linear_time_and_has_a_bound() -> None:
    begun = time.process_time()
    said = refusal(of(",".join(f"c{number}" for number in range(100_000)) + "\n"))
    assert said == f"bill.csv:1: 100,000 columns, and no bill has more than {COLUMNS_MAX:,}"
    assert time.process_time() - begun < 2


def test_a_missing_column_is_told_with_ten_of_those_that_are_there() -> None:
    said = refusal(of(",".join(f"c{number}" for number in range(COLUMNS_MAX)) + "\n"))
    assert said.endswith("; it has c0, c1, c2, c3, c4, c5, c6, c7, c8, c9 and 4,086 more")
    assert len(refusal(of(f"{'x' * 1_000},{'y' * 1_000}\n1,2\n"))) < 200


SECRETS = [
    "root:$y$j9T$pCZ0Qx3Ym2VbR1$8oTnWkXUtH1sYH2:20228:0:99999:7:::\ndaemon:*:20228:0:99999:7:::\n",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmU\n",
    "ghp_0123456789abcdefghijklmnopqrstuvwxyz,ghp_0123456789abcdefghijklmnopqrstuvwxyz\n",
    "AKIAIOSFODNN7EXAMPLE,xyz\n1,2\n",
]


@pytest.mark.parametrize("text", SECRETS)
def test_the_first_line_of_another_kind_of_file_is_not_repeated(text: str) -> None:
    said = refusal(of(text))
    for word in text.splitlines()[0].replace(":", ",").split(","):
        assert len(word) < 8 or word not in said, said


def test_a_cell_is_repeated_in_part_and_nothing_of_it_steers_a_terminal() -> None:
    said = refusal(of(f"Date,Amount\n\x1b[31m{'2' * 5_000},5\n"))
    assert len(said) < 200
    assert said.isprintable()


def test_the_bounds_leave_a_large_bill_alone() -> None:
    tags = [f"resourceTags/user:{number}" for number in range(1_000)]
    row = ["2026-11-02", "5", *("x" * 255 for _ in tags)]
    bill: Bill = read_bill(
        of(f"{','.join(['Date', 'Amount', *tags])}\n{','.join(row)}\n"), "b.csv", Wanted(columns=bill_map(MAP))
    )
    assert bill.rows == 1
    assert CsvTable(io.StringIO("a\n1\n"), "t.csv").columns == ["a"]
