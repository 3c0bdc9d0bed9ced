"""Reads the rows of a journal that SQLite will not open, page by page, from the whole pages of the file and its WAL.

SQLite rejects a file for one bad page. Each leaf page holds its rows in full, except the tail of a long row
(https://www.sqlite.org/fileformat2.html, sections 1.6 and 2). Each of our rows states its identity twice, in columns
and in its JSON; a row whose two statements differ is skipped. Superseded pages hold older versions of rows; each
row's number tells the newest.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, NamedTuple

from governor.adapters.journal.runtime_files import Entry
from governor.core.base.printable import storable
from governor.core.money.charges import charge_of

PAGE_SIZES: Final = tuple(2**power for power in range(9, 17))
# Used if the file's header does not say.
PAGE_SIZE_USUAL: Final = 4096
# More than any incident has had. A torn length may ask for terabytes.
RECORD_BYTES_MAX: Final = 64 * 1024 * 1024
_LEAF: Final = 0x0D
_WAL_HEAD: Final = 32
_FRAME_HEAD: Final = 24
_INT_BYTES: Final = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}


class _Torn(Exception):  # noqa: N818 - the condition is the name.
    """A record that is invalid or incomplete."""


def rows_of(path: str, tables: Collection[str]) -> Iterator[Entry]:
    """Yield the readable rows of these tables, in no order. A row may appear more than once, in different versions.

    Torn data raises nothing. OSError: the file cannot be opened at all.
    """
    with _opened(path) as main, contextlib.ExitStack() as beside:
        wal = None
        with contextlib.suppress(OSError):
            wal = beside.enter_context(_opened(path + "-wal"))
        pages = _Pages(main, wal, _page_size(main))
        for page in pages:
            for cell in _cells(page):
                with contextlib.suppress(_Torn, IndexError, ValueError, KeyError, TypeError, AttributeError):
                    entry = _entry(*_record(page, cell, pages))
                    if entry is not None and entry["table"] in tables:
                        yield entry


class _File(NamedTuple):
    fd: int
    length: int

    def read(self, at: int, length: int) -> bytes:
        """Returns less, or nothing, where the file ends or the disk fails. With mmap, a bad sector would kill us."""
        try:
            return os.pread(self.fd, length, at)
        except OSError:
            return b""


@contextlib.contextmanager
def _opened(path: str) -> Iterator[_File]:
    # O_NONBLOCK: a pipe would wait for its writer.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        yield _File(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)


def _page_size(main: _File) -> int:
    size = int.from_bytes(main.read(16, 2), "big")
    size = 65_536 if size == 1 else size
    return size if size in PAGE_SIZES else PAGE_SIZE_USUAL


class Page(NamedTuple):
    data: bytes
    # Where the page's own header begins. The first page has the file's header before it.
    begin: int


class _Pages:
    """Every page of the file and every frame of its WAL, current or not. By number: the page's newest frame."""

    def __init__(self, main: _File, wal: _File | None, size: int) -> None:
        self._main, self._wal, self.size = main, wal, size
        # Page number -> offset of its newest frame since the WAL was last restarted.
        self._newest: dict[int, int] = {}
        if wal is not None:
            salts = wal.read(16, 8)
            for at in self._frames():
                head = wal.read(at, 16)
                if head[8:16] == salts:
                    self._newest[int.from_bytes(head[:4], "big")] = at + _FRAME_HEAD

    def __iter__(self) -> Iterator[Page]:
        for at in range(0, self._main.length, self.size):
            yield Page(self._main.read(at, self.size), 100 if at == 0 else 0)
        for at in self._frames():
            assert self._wal is not None, "it has frames"
            frame = self._wal.read(at, _FRAME_HEAD + self.size)
            yield Page(frame[_FRAME_HEAD:], 100 if int.from_bytes(frame[:4], "big") == 1 else 0)

    def _frames(self) -> range:
        length = 0 if self._wal is None else self._wal.length
        return range(_WAL_HEAD, length - _FRAME_HEAD - self.size + 1, _FRAME_HEAD + self.size)

    def numbered(self, number: int) -> bytes:
        at = self._newest.get(number)
        if at is not None and self._wal is not None:
            return self._wal.read(at, self.size)
        return self._main.read((number - 1) * self.size, self.size) if number > 0 else b""


def _cells(page: Page) -> Iterator[int]:
    data, begin = page
    if len(data) < begin + 8 or data[begin] != _LEAF:
        return
    count = int.from_bytes(data[begin + 3 : begin + 5], "big")
    for at in range(begin + 8, min(begin + 8 + 2 * count, len(data) - 1), 2):
        yield int.from_bytes(data[at : at + 2], "big")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, and the offset behind it."""
    value = 0
    for offset in range(8):
        byte = data[at + offset]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + offset + 1
    return value << 8 | data[at + 8], at + 9


def _record(page: Page, cell: int, pages: _Pages) -> tuple[int, list[Any]]:
    """The row's number in its table, and its columns."""
    length, at = _varint(page.data, cell)
    rowid, at = _varint(page.data, at)
    if rowid >= 2**63:  # Negative. Our numbers count up from one.
        raise _Torn
    payload = _payload(page.data, at, length, pages)
    head, at = _varint(payload, 0)
    kinds = []
    while at < head:
        kind, at = _varint(payload, at)
        kinds.append(kind)
    values = []
    for kind in kinds:
        value, at = _value(payload, at, kind)
        values.append(value)
    if at != length:
        raise _Torn
    return rowid, values


def _payload(data: bytes, at: int, length: int, pages: _Pages) -> bytes:
    if not 0 < length <= RECORD_BYTES_MAX:
        raise _Torn
    usable = pages.size
    if length <= usable - 35:
        payload = data[at : at + length]
    else:
        least = (usable - 12) * 32 // 255 - 23
        local = least + (length - least) % (usable - 4)
        local = local if local <= usable - 35 else least
        payload = data[at : at + local]
        following = int.from_bytes(data[at + local : at + local + 4], "big")
        while following and len(payload) < length:
            more = pages.numbered(following)
            payload += more[4 : 4 + length - len(payload)]
            following = int.from_bytes(more[:4], "big") if len(more) > 4 else 0
    if len(payload) != length:
        raise _Torn
    return payload


def _value(payload: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind >= 12:
        end = at + (kind - 12) // 2
        return (payload[at:end].decode() if kind % 2 else payload[at:end]), end
    if kind in _INT_BYTES:
        end = at + _INT_BYTES[kind]
        return int.from_bytes(payload[at:end], "big", signed=True), end
    if kind in (0, 8, 9):
        return {0: None, 8: 0, 9: 1}[kind], at
    raise _Torn  # Our rows hold no floats.


# --- our tables: identified by their number of columns, checked against their own JSON ----------------------


def _entry(rowid: int, values: list[Any]) -> Entry | None:
    read = _TABLES.get(len(values))
    return None if read is None else read(rowid, values)


def _journal(rowid: int, values: list[Any]) -> Entry | None:
    _, kind, run, incident_id, mono_ns, wall_ns, boot_id, data = values
    json.loads(data)
    times = isinstance(mono_ns, int) and isinstance(wall_ns, int)
    if not (times and isinstance(kind, str) and isinstance(boot_id, str)):
        return None
    return {
        "seq": rowid, "table": "journal", "kind": kind, "run": run, "incident_id": incident_id, "mono_ns": mono_ns,
        "wall_ns": wall_ns, "boot_id": boot_id, "data": data,
    }  # fmt: skip


def _charge(_: int, values: list[Any]) -> Entry | None:
    charge_id, seq, run, from_wall_ns, to_wall_ns, usd_micros, data = values
    charge = charge_of(json.loads(data))
    own = (storable(charge.charge_id), storable(charge.payer.run), charge.from_wall, charge.to_wall, charge.usd_micros)
    if own != (charge_id, run, from_wall_ns, to_wall_ns, usd_micros) or not isinstance(seq, int):
        return None
    return {
        "seq": seq, "table": "charges", "charge_id": charge_id, "run": run, "from_wall_ns": from_wall_ns,
        "to_wall_ns": to_wall_ns, "usd_micros": usd_micros, "data": data,
    }  # fmt: skip


def _run(_: int, values: list[Any]) -> Entry | None:
    run, seq, snapshot = values
    if not isinstance(seq, int) or storable(json.loads(snapshot)["run"]) != run:
        return None
    return {"seq": seq, "table": "runs", "run": run, "snapshot": snapshot}


def _incident(_: int, values: list[Any]) -> Entry | None:
    incident_id, seq, first_seq, is_open, snapshot = values
    if not (isinstance(seq, int) and isinstance(first_seq, int) and is_open in (0, 1)):
        return None
    if not isinstance(json.loads(snapshot), dict) or not isinstance(incident_id, str):
        return None
    return {"seq": seq, "table": "incidents", "incident_id": incident_id, "open": is_open, "snapshot": snapshot}


_TABLES: Final[dict[int, Callable[[int, list[Any]], Entry | None]]] = {3: _run, 5: _incident, 7: _charge, 8: _journal}
