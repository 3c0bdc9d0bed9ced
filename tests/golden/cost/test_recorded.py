"""`costgov policy replay --recorded` word for word: what policies would have saved of a month's ledger."""

from __future__ import annotations

import json
import math
import os
from decimal import Decimal
from pathlib import Path

import pytest

from governor.adapters.journal.db import Database
from governor.cli.common import ExitCode
from governor.cli.cost.charges import Scope, Unread
from governor.cli.policy.bill_text import bill_text
from governor.cli.policy.played import load_each
from governor.cli.policy.recorded import gather
from governor.core.base.units import NS_PER_S, parse_utc
from governor.core.money.charges import Payer
from governor.text.screen import Screen, without_colour
from tests.golden.cost.conftest import AsAgreed, Call
from tests.paths import ROOT
from tests.unit.cost.ledger_file import SPOT, charge, write_ledger
from tests.unit.replay.recorded_file import Written, halt_entry, journal_entry, run_entries, run_row

RULE = '[policy]\nname = "{0}"\n[[rule]]\nname = "nan"\ntrigger = "nonfinite"\nfor = "{1} steps"\nresponse = "halt"\n'
OBSERVED = RULE + 'mode = "observe"\n'
DAY = "2026-11-02"
WALL_S = parse_utc(DAY) // NS_PER_S
HOUR = 3600
NAN = math.nan
MONTH = ("--since", "2026-11-01")


@pytest.fixture
def recorded(state_dir: Path) -> Path:
    """Runs that ended in every way, with recordings, of which one has a gap, and one that has none."""
    root = state_dir / "recordings"
    # Healthy but for one bad step an hour before its end, at 12:00.
    anna = Written("anna", WALL_S).hello(10 * HOUR).steps(range(1, 60), 10 * HOUR + 60)
    anna.steps([60], 11 * HOUR, loss=NAN).steps(range(61, 120), 11 * HOUR + 60).exited(12 * HOUR).save(root)
    # Halted for real, and launched again; that attempt failed. Nobody listened from 16:20 to 16:40.
    ben = Written("ben", WALL_S).hello(13 * HOUR).steps(range(1, 30), 13 * HOUR + 60)
    ben.steps([30], 13 * HOUR + 1800, loss=NAN).halted(13 * HOUR + 1801, "ben.1").save(root)
    ben.hello(16 * HOUR, "b").steps(range(31, 40), 16 * HOUR + 60).gap(16 * HOUR + 1200, 7)
    ben.hello(16 * HOUR + 2400, "b").steps(range(41, 61), 16 * HOUR + 2460, loss=NAN).exited(17 * HOUR).save(root, 2)
    # Halted for real; older segments of its recording are gone.
    carl = Written("carl", WALL_S).hello(18 * HOUR).steps(range(900, 930), 18 * HOUR + 60)
    carl.steps([930], 18 * HOUR + 1860, loss=NAN).halted(18 * HOUR + 1861, "carl.1").save(root, 3)
    charges = [
        charge(f"{DAY}T10:00:00Z", 2.0),
        charge(f"{DAY}T13:00:00Z", 1.0, Payer("ben")),
        charge(f"{DAY}T16:00:00Z", 1.0, Payer("ben"), SPOT),
        charge(f"{DAY}T18:00:00Z", 1.0, Payer("carl"), SPOT),
        charge(f"{DAY}T20:00:00Z", 1 / 3, Payer("dora"), SPOT),
        charge(f"{DAY}T21:00:00Z", 0.25, Payer(), SPOT),
    ]
    write_ledger(state_dir / "costgov.db", charges)
    noon, five, seven = (parse_utc(f"{DAY}T{hour}:00:00Z") for hour in (12, 17, 19))
    rows = [
        run_row("anna", noon, completed=True),
        run_row("ben", five, end={"exit_code": 1, "cause": "out of GPU memory"}),
        run_row("carl", seven),
        run_row("dora", seven, completed=True),
    ]
    halts = [
        halt_entry("ben.1", "ben", "nan", parse_utc(f"{DAY}T13:30:01Z"), parse_utc(f"{DAY}T13:31:00Z")),
        halt_entry("carl.1", "carl", "nan", parse_utc(f"{DAY}T18:31:01Z"), parse_utc(f"{DAY}T18:32:00Z")),
    ]
    database = Database(str(state_dir / "costgov.db"))
    began = {"attempt": "b", "policy": "hasty", "uid": 1000, "world_size": 1}
    again = journal_entry(9_000, "run", "ben", parse_utc(f"{DAY}T16:00:00Z"), began)
    database.write([*run_entries(rows), *halts, again], full=False)
    database.close()
    return state_dir


@pytest.fixture
def policies(tmp_path: Path) -> list[str]:
    (tmp_path / "hasty.toml").write_text(RULE.format("hasty", 1))
    (tmp_path / "patient.toml").write_text(OBSERVED.format("patient", 10))
    return ["--policy", str(tmp_path / "hasty.toml"), "--policy", str(tmp_path / "patient.toml")]


def test_the_tables_read_as_agreed(recorded: Path, policies: list[str], anything: Call, as_agreed: AsAgreed) -> None:
    done = anything("policy", "replay", "--recorded", *MONTH, *policies)
    assert (done.code, done.err) == (0, "")
    as_agreed("recorded.txt", done.out)
    example = "\n\n".join(done.out.split("\n\n")[:3])
    assert f"```text\n{example}\n```" in (ROOT / "docs/howto/replay.md").read_text(), "the example is this output"
    as_agreed("recorded_one.txt", anything("policy", "replay", "--recorded", *MONTH, *policies[:2]).out)


def test_a_narrow_terminal_cuts_nothing(recorded: Path, policies: list[str], as_agreed: AsAgreed) -> None:
    since = parse_utc("2026-11-01")
    loaded = load_each([Path(path) for path in policies[1::2]])
    told, is_bad = gather(loaded, None, None, Unread(Scope(since, None, ())), since)
    text = without_colour(bill_text(told, Screen(80, True)))
    assert not is_bad
    assert max(map(len, text.splitlines())) <= 80
    as_agreed("recorded_narrow.txt", text)


def test_the_lines_read_as_agreed(recorded: Path, policies: list[str], anything: Call, as_agreed: AsAgreed) -> None:
    done = anything("policy", "replay", "--recorded", *MONTH, *policies, "--json")
    assert (done.code, done.err) == (0, "")
    as_agreed("recorded.jsonl", done.out)


def _trained_without_a_price(state_dir: Path, name: str) -> None:
    """Healthy but for one bad step; nothing was charged."""
    run = Written(name, WALL_S).hello(10 * HOUR).steps(range(1, 60), 10 * HOUR + 60)
    run.steps([60], 11 * HOUR, loss=NAN).exited(12 * HOUR).save(state_dir / "recordings")
    noon = parse_utc(f"{DAY}T12:00:00Z")
    database = Database(str(state_dir / "costgov.db"))
    database.write(run_entries([run_row(name, noon, completed=True, unpriced_ns=7_200 * NS_PER_S)]), full=False)
    database.close()


@pytest.mark.parametrize("beside", ["alone", "beside"])
def test_what_a_run_without_a_price_has_cost_is_unknown_and_not_nothing(
    beside: str, state_dir: Path, policies: list[str], anything: Call, as_agreed: AsAgreed,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    if beside == "beside":
        request.getfixturevalue("recorded")
    else:
        write_ledger(state_dir / "costgov.db", [])
    _trained_without_a_price(state_dir, "free")
    words = ("policy", "replay", "--recorded", *MONTH, *policies)
    as_agreed(f"recorded_unpriced_{beside}.txt", anything(*words).out)
    rows = [json.loads(line) for line in anything(*words, "--json").out.splitlines()]
    free = next(row for row in rows if row.get("run") == "free")
    told = [free, *free["policies"], *(halt for one in free["policies"] for halt in one["halts"])]
    assert {row[name] for row in told for name in row if name.endswith("_usd")} == {None}
    assert (rows[-1]["sum"]["ledger_usd"] is None) is (beside == "alone")
    assert rows[-1]["sum"]["unpriced_runs"] == 1


@pytest.mark.parametrize("since", ["2026-11-01", "2026-11-02T11:30:00", "2026-11-02T16:50:01"])
def test_its_sums_are_the_ledgers(since: str, recorded: Path, policies: list[str], anything: Call) -> None:
    done = anything("policy", "replay", "--recorded", "--since", since, *policies, "--json")
    rows = [json.loads(line) for line in done.out.splitlines()]
    runs = [row for row in rows if "ledger_usd" in row]
    total = rows[-1]["sum"]
    spends = json.loads(anything("cost", "--since", since, "--json").out)
    assert total["ledger_usd"] == spends["total"]["usd"]
    assert Decimal(total["recorded_usd"]) + Decimal(total["unrecorded_usd"]) == Decimal(total["ledger_usd"])
    charged = {group["key"]: group["usd"] for group in spends["groups"]}
    assert {row["run"] or "(unallocated)": row["ledger_usd"] for row in runs} == charged
    for comparison in (row["comparison"] for row in rows if "comparison" in row):
        own = [row for row in rows if row.get("policy") == comparison["policy"]]
        after = Decimal(comparison["after_usd"])
        assert after == sum(Decimal(row["after_usd"]) for row in own), "those of its rules"
        judged = [one for row in runs for one in row["policies"] if one["policy"] == comparison["policy"]]
        assert after == sum(Decimal(halt["after_usd"]) for one in judged for halt in one["halts"])
        assert after + Decimal(comparison["before_usd"]) == Decimal(total["recorded_usd"])


def test_a_ledger_without_recordings_is_one_line(ledger: Path, anything: Call) -> None:
    done = anything("policy", "replay", "--recorded")
    assert (done.code, done.out, done.err.count("\n")) == (ExitCode.FAILED, "", 1)
    assert f"{ledger}/recordings: holds no recording" in done.err


def test_none_that_is_new_enough_is_one_line(recorded: Path, anything: Call) -> None:
    for part in (recorded / "recordings").rglob("*.gz"):
        os.utime(part, (WALL_S, WALL_S))
    done = anything("policy", "replay", "--recorded", "--since", "2026-11-20")
    assert (done.code, done.err.count("\n")) == (ExitCode.FAILED, 1)
    assert "holds no recording since 2026-11-20T00:00:00Z" in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--recorded", "a.jsonl"), "leave out LOG"),
        (("--recorded", "--run-on", "3h", "--format", "hf"), "leave out --run-on, --format"),
        (("a.jsonl", "--since", "30d"), "--since is for --recorded"),
        ((), "Missing argument 'LOG...'"),
    ],
)
def test_mistakes_are_refused(words: tuple[str, ...], said: str, recorded: Path, anything: Call) -> None:
    done = anything("policy", "replay", *words)
    assert (done.code, done.out) == (ExitCode.USAGE, "")
    assert said in done.err


def test_what_cannot_be_read_is_named_and_the_rest_is_billed(
    recorded: Path, policies: list[str], anything: Call
) -> None:
    """A recording under another run's name is of no run's money; a damaged one is billed up to there."""
    os.rename(recorded / "recordings/anna", recorded / "recordings/dora")
    [part] = (recorded / "recordings/carl").iterdir()
    part.write_bytes(part.read_bytes() + b"no gzip")
    done = anything("policy", "replay", "--recorded", *MONTH, *policies, "--json")
    assert done.code == ExitCode.FAILED
    assert "dora: is of run anna; it is in no figure here" in done.err
    rows = {row["run"]: row for row in map(json.loads, done.out.splitlines()) if "run" in row}
    assert rows["dora"]["recording"] is None
    assert rows["carl"]["recording"]["problem"] is not None
    assert rows["ben"]["recording"]["problem"] is None
