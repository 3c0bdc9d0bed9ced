"""A budget that all nodes of a drill share, in an etcd of three members beside them: what its rows say, asked there.

with sharing(fleet, 1000.0) as budget, talking(fleet) as talk:
    talk.begin(toml=budget.toml)
    budget.etcd.kill()
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from governor.adapters.etcd.opening import OfFleet
from governor.adapters.etcd.store import EtcdConfig, EtcdStore
from governor.core.events.fleet_store import Answer
from governor.core.fleet.presence import LIVE_ROWS
from governor.core.fleet.scopes import GRANT_ROWS, GrantRow, ScopeRow, grant_row, scope_key, scope_row
from tests.contract.fleet.conftest import memory
from tests.contract.fleet.etcd_server import Cluster, Place, etcd_cluster
from tests.drills.fleet.nodes import Fleet

T = TypeVar("T")
HOSTS = (201, 202, 203)
SCOPE = "fleet"


@dataclass
class Budget:
    etcd: Cluster
    toml: str

    def row(self) -> ScopeRow:
        return self._asked(lambda store: scope_in(store, SCOPE))

    def grants(self) -> dict[str, GrantRow]:
        """All that are held, by the IDs that `costgov fleet list` shows."""
        return self._asked(grants_in)

    def speaking(self) -> list[str]:
        """The rows of governors whose lease has not ended."""
        return self._asked(lambda store: [kept.key for kept in store.range(LIVE_ROWS, 100).rows])

    def _asked(self, ask: Callable[[OfFleet], T]) -> T:
        def asked() -> T:
            with contextlib.closing(opened(*self.etcd.urls)) as store:
                return ask(store)

        found: T = self.etcd.place.within(asked)
        return found


def opened(*urls: str) -> OfFleet:
    return OfFleet(EtcdStore(EtcdConfig(urls, plain=True)), "main")


def scope_in(store: OfFleet, scope: str) -> ScopeRow:
    row = scope_row(store.read([scope_key(scope)]).rows[0])
    assert row is not None
    return row


def grants_in(store: OfFleet) -> dict[str, GrantRow]:
    found = store.range(GRANT_ROWS, 100)
    assert found.answer is Answer.READ, found
    rows = {kept.key.removeprefix(GRANT_ROWS): grant_row(kept) for kept in found.rows}
    assert None not in rows.values()
    return {name: row for name, row in rows.items() if row is not None}


@contextlib.contextmanager
def sharing(made: Fleet, ceiling_usd: float) -> Iterator[Budget]:
    """Its scope has the ceiling once a governor has come up. etcd's hosts are no nodes: no governor is on them."""
    network = made[1].network
    place = Place(tuple(network.entered()), network.inside)
    hosts = [network.host(number) for number in HOSTS]
    with memory() as folder, etcd_cluster(folder, hosts, place=place) as etcd:
        toml = f"[fleet]\netcd = {json.dumps(etcd.urls)}\nplain = true\n"
        yield Budget(etcd, f'{toml}[[fleet.budget]]\nscope = "{SCOPE}"\nceiling_usd = {ceiling_usd}\n')
