"""A journal damaged anywhere: the start goes on, the file is kept, and money that was spent stays spent or is told."""

from __future__ import annotations

import json
import random
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from governor.adapters.journal.file_set import CORRUPT_KEPT_MAX
from governor.adapters.journal.reader import read_charges
from governor.adapters.journal.runtime_files import MIRROR_NAME
from governor.adapters.journal.writer import SqliteJournal, open_journal
from governor.core.base.units import NS_PER_HOUR, DurationNs, MonoNs, WallNs, utc_text
from governor.core.money.charges import LOST, Charge, ChargeBook, Line, LineKind, Part, Payer, Place, Unit, charge_row
from governor.ports import Row

PAGE = 4096
BEGIN = 1_790_000_000 * 10**9
LINE = Line(LineKind.COMPUTE, "machine", Unit.HOUR, 98_320_000, "config", "2026-11-01")
RUNS = ("anna", "ben", "cleo")
HOURS = 60
SEEDS = range(63)  # Each damage seven times.
SPEND = {True: "unallocated_usd_micros", False: "spend_usd_micros"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """The files of a governor that was killed: the last third is in the WAL alone. And what each run had spent."""
    directory = tmp_path_factory.mktemp("whole")
    live, kept = directory / "live", directory / "kept"
    kept.mkdir()
    journal, problem = open_journal(str(live / "costgov.db"), str(live / "run"))
    assert problem is None
    book = ChargeBook(Place("node-1"), WallNs(BEGIN))
    spent = dict.fromkeys(("", *RUNS), 0)
    for number in range(HOURS):
        keep_an_hour(journal, book, spent, number)
        if number == HOURS // 2:
            journal.save_incident("i-1", {"incident_id": "i-1", "stage": "termed", "text": "x" * 20_000})
        if number == 2 * HOURS // 3:
            journal.runs()
            with closing(sqlite3.connect(live / "costgov.db")) as beside:
                assert beside.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)
    journal.runs()  # Answered behind the commit.
    for name in ("costgov.db", "costgov.db-wal"):
        shutil.copy(live / name, kept / name)
    journal.close()
    shutil.copytree(live / "run", kept / "run")  # Written behind the answer, so only now for certain.
    return kept, spent


def keep_an_hour(journal: SqliteJournal, book: ChargeBook, spent: dict[str, int], number: int) -> None:
    """As the daemon does: charges, windows, and what each has spent by then, in one commit."""
    at, end = BEGIN + number * NS_PER_HOUR, BEGIN + (number + 1) * NS_PER_HOUR
    parts = [Part(Payer(run, "1"), NS_PER_HOUR // 4, 24_580_000 + number) for run in spent]
    charges = book.add(LINE, WallNs(at), DurationNs(NS_PER_HOUR), parts)
    for part in parts:
        spent[part.payer.run] += part.usd_micros
    moments = {"boot_id": "boot", "boot_ns": end - BEGIN, "wall_ns": end}
    runs: dict[str, Any] = {run: {"run": run, "spend_usd_micros": spent[run], **moments} for run in RUNS}
    runs[""] = {"run": "", "unallocated_usd_micros": spent[""], "carry": 0, "unpriced_ns": 0, **moments}
    rows = [Row("window", run, None, MonoNs(1), WallNs(end), "boot", {"number": number}) for run in RUNS]
    assert journal.save_runs(runs, [charge_row(one) for one in (*charges, *book.open_charges())], rows)


Damage = Callable[[random.Random, Path], None]


def _pages(dice: random.Random, path: Path) -> None:
    with path.open("r+b") as file:
        for _ in range(dice.randint(1, 8)):
            file.seek(dice.randrange(path.stat().st_size // PAGE) * PAGE)
            file.write(dice.choice([dice.randbytes(PAGE), bytes(PAGE), b"\xff" * PAGE]))


def _cut(dice: random.Random, path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(dice.randrange(path.stat().st_size))


def _head(dice: random.Random, path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(dice.randrange(100))
        file.write(dice.randbytes(dice.randint(1, 40)))


def _zeros(dice: random.Random, path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(dice.randrange(path.stat().st_size))
        file.write(bytes(dice.randint(PAGE, 20 * PAGE)))


def _empty(_: random.Random, path: Path) -> None:
    path.write_bytes(b"")


def _garbage(dice: random.Random, path: Path) -> None:
    path.write_bytes(dice.randbytes(path.stat().st_size))


def _without_wal(dice: random.Random, path: Path) -> None:
    path.with_name(path.name + "-wal").unlink()
    _pages(dice, path)


def _wal_too(dice: random.Random, path: Path) -> None:
    _pages(dice, path.with_name(path.name + "-wal"))
    dice.choice([_cut, _zeros, _head])(dice, path)


DAMAGES: tuple[Damage, ...] = (_pages, _pages, _cut, _head, _zeros, _empty, _garbage, _without_wal, _wal_too)


def copied(whole: Path, to: Path) -> Path:
    """Also what the runtime directory knows, of this journal."""
    shutil.copytree(whole, to)
    mirror = to / "run" / MIRROR_NAME
    _, *lines = mirror.read_text().splitlines(keepends=True)
    mirror.write_text("".join([json.dumps({"journal": str(to / "costgov.db")}) + "\n", *lines]))
    return to / "costgov.db"


def damaged(whole: Path, to: Path, seed: int) -> Path:
    path = copied(whole, to)
    DAMAGES[seed % len(DAMAGES)](random.Random(seed), path)
    return path


def told_missing(problem: str | None) -> int:
    """What the line says was in charges that are lost, in cents."""
    found = re.search(r"\$([\d.]+) more that the runs had spent", problem or "")
    return round(float(found.group(1)) * 100) if found else 0


def check_files(path: Path, before: bytes, problem: str) -> None:
    assert problem.startswith(f"{path}: corrupt; kept as {path}.corrupt-")
    assert "\n" not in problem
    [aside] = path.parent.glob("*.corrupt-*Z")
    assert aside.read_bytes() == before, "kept as it was found"
    assert not list(path.parent.glob("*.new*"))


@pytest.mark.parametrize("seed", SEEDS)
def test_budgets_and_charges_outlive_damage_by_what_the_runtime_directory_knows(
    tmp_path: Path, whole: tuple[Path, dict[str, int]], seed: int
) -> None:
    kept, spent = whole
    path = damaged(kept, tmp_path / "state", seed)
    before = path.read_bytes()
    journal, problem = open_journal(str(path), str(tmp_path / "state" / "run"))
    try:
        runs = journal.runs()
        assert {run: runs[run]["spend_usd_micros"] for run in RUNS} == {run: spent[run] for run in RUNS}
        assert runs[""]["unallocated_usd_micros"] == spent[""]
        assert runs[""]["boot_ns"] == HOURS * NS_PER_HOUR, "the gap begins where its charges end"
        assert [incident["stage"] for incident in journal.open_incidents()] == ["termed"]
        check_charges(path, spent, problem)
        if problem is not None and "its last commits" not in problem:
            check_files(path, before, problem)
    finally:
        journal.close()
    again, problem = open_journal(str(path), str(tmp_path / "state" / "run"))
    assert problem is None, "what was begun anew is whole"
    again.close()


def check_charges(path: Path, spent: dict[str, int], problem: str | None) -> None:
    """Each once, and together what was spent; what is lost is in a charge of its own, and in the line to the cent."""
    charges = list(read_charges(str(path)))
    assert len({one.charge_id for one in charges}) == len(charges)
    found = sum_by_run(charges)
    assert {run: found.get(run, 0) for run in spent} == spent
    lost = sum(one.usd_micros for one in charges if one.line.name == LOST)
    assert abs(told_missing(problem) - lost / 10_000) <= 1
    assert all(one.reconstructed for one in charges if one.line.name == LOST)


def sum_by_run(charges: list[Charge]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for one in charges:
        sums[one.payer.run] = sums.get(one.payer.run, 0) + one.usd_micros
    return sums


@pytest.mark.parametrize("seed", SEEDS)
def test_after_a_reboot_the_file_alone_says_what_was_spent(
    tmp_path: Path, whole: tuple[Path, dict[str, int]], seed: int
) -> None:
    """tmpfs is gone: what the charges say that can be read is the least that each budget goes on with."""
    kept, spent = whole
    path = damaged(kept, tmp_path / "state", seed)
    shutil.rmtree(tmp_path / "state" / "run")
    journal, problem = open_journal(str(path), str(tmp_path / "state" / "run"))
    try:
        runs, charges = journal.runs(), list(read_charges(str(path)))
        found = sum_by_run(charges)
        for run in RUNS:
            assert found.get(run, 0) <= runs.get(run, {}).get("spend_usd_micros", 0) <= spent[run]
        if charges:
            assert runs[""]["wall_ns"] >= max(one.to_wall for one in charges), "no moment is charged twice"
        if sum(found.values()) != sum(spent.values()) and problem is None:
            # To SQLite it is whole: the state of an earlier commit, from whose moment on the time is charged again.
            assert found == {run: runs[run][SPEND[run == ""]] for run in runs}
            assert runs[""]["wall_ns"] == max(one.to_wall for one in charges)
        elif sum(found.values()) != sum(spent.values()):
            moment = utc_text(runs[""]["wall_ns"]) if charges else "nothing of what was spent could be read"
            assert moment in str(problem), "a loss is told, at the least by the moment up to which it is none"
    finally:
        journal.close()


def test_most_of_it_comes_over(tmp_path: Path, whole: tuple[Path, dict[str, int]]) -> None:
    """Else the tests above would hold for one that reads nothing and says so."""
    kept, spent = whole
    found = 0
    for seed in SEEDS:
        if DAMAGES[seed % len(DAMAGES)] not in (_pages, _head):
            continue
        path = damaged(kept, tmp_path / str(seed), seed)
        shutil.rmtree(path.parent / "run")
        journal, _ = open_journal(str(path), str(path.parent / "run"))
        found += sum(one.usd_micros for one in read_charges(str(path)))
        journal.close()
        shutil.rmtree(path.parent)
    tried = sum(DAMAGES[seed % len(DAMAGES)] in (_pages, _head) for seed in SEEDS)
    assert found > 0.9 * tried * sum(spent.values())


def test_the_evidence_is_bounded_and_the_newest_is_kept(tmp_path: Path, whole: tuple[Path, dict[str, int]]) -> None:
    path = damaged(whole[0], tmp_path / "state", 0)
    path.with_name("costgov.db-wal").unlink()
    last = b""
    for accident in range(CORRUPT_KEPT_MAX + 2):
        last = b"torn %d " % accident * 1000
        path.write_bytes(last)
        journal, problem = open_journal(str(path), str(tmp_path / "state" / "run"))
        journal.close()
        assert problem is not None
    kept = sorted(path.parent.glob("costgov.db.corrupt-*Z"))
    assert len(kept) == CORRUPT_KEPT_MAX
    assert kept[-1].read_bytes() == last
    charges = list(read_charges(str(path)))
    assert sum_by_run(charges) == whole[1], "accident after accident, no money is lost or there twice"
    assert {one.line.name for one in charges} == {LOST}


def test_who_is_interrupted_amid_it_begins_again(tmp_path: Path, whole: tuple[Path, dict[str, int]]) -> None:
    """A half-written fresh file beside the damaged one is no journal."""
    path = damaged(whole[0], tmp_path / "state", 7)
    path.with_name("costgov.db.new").write_bytes(b"SQLite format 3\0 and no more")
    path.with_name("costgov.db.new-wal").write_bytes(b"half of it")
    journal, problem = open_journal(str(path), str(tmp_path / "state" / "run"))
    assert problem is not None
    check_charges(path, whole[1], problem)
    journal.close()


def test_a_file_that_was_removed_begins_anew_whatever_the_runtime_directory_knows(
    tmp_path: Path, whole: tuple[Path, dict[str, int]]
) -> None:
    path = copied(whole[0], tmp_path / "state")
    for name in ("costgov.db", "costgov.db-wal"):
        path.with_name(name).unlink()
    assert (tmp_path / "state" / "run" / MIRROR_NAME).stat().st_size > 0
    for _ in range(2):  # Nor does whoever finds the new file still empty.
        journal, problem = open_journal(str(path), str(tmp_path / "state" / "run"))
        assert problem is None
        assert journal.runs() == {}
        assert journal.open_incidents() == []
        journal.close()
