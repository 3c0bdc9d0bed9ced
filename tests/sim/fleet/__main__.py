"""Play histories of a fleet that shares budgets: `--seeds N [--from K]` many, `--etcd` against a real etcd.

`--jobs J` plays them in J processes. A history is twenty governors, fifty runs and what befalls them, in virtual time.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from governor.remote_ports import FleetStore
from tests.contract.fleet.conftest import memory
from tests.contract.fleet.etcd_server import etcd_server
from tests.contract.fleet.fake_store import FakeFleetStore
from tests.sim.fleet.history import draw
from tests.sim.fleet.judge import BrokenError
from tests.sim.fleet.real import KeptAlive
from tests.sim.fleet.world import World

Told = tuple[int, int, int, int, int, list[int], str]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.fleet", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many histories to play")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="in how many processes")
    parser.add_argument("--etcd", action="store_true", help="with a real etcd of our own, in memory, for its store")
    arguments = parser.parse_args()
    seeds, began = range(arguments.first, arguments.first + arguments.seeds), time.perf_counter()
    counts: collections.Counter[str] = collections.Counter()
    spreads: collections.Counter[int] = collections.Counter()
    failed = 0
    with store_of(arguments.etcd) as url:
        work = ((seed, url) for seed in seeds)
        with multiprocessing.get_context("fork").Pool(arguments.jobs) as pool:
            for number, told in enumerate(pool.imap_unordered(one, work, chunksize=4), 1):
                names = ("events", "transactions", "halts", "denied", "alone")
                counts.update(dict(zip(names, told[:5], strict=True)))
                spreads.update(told[5])
                if told[6]:
                    failed += 1
                    print(f"FAILED {told[6]}", flush=True)
                if number % 50 == 0:
                    print(f"{number} histories, {failed} failed, {time.perf_counter() - began:.0f} s", flush=True)
    print(f"{len(seeds)} histories from seed {seeds.start}, {failed} failed, in {time.perf_counter() - began:.0f} s")
    print(f"  {counts['transactions']:,} transactions applied, {counts['events']:,} events")
    print(
        f"  {counts['halts']:,} runs halted: {counts['denied']:,} as nothing was left, {counts['alone']:,} in silence"
    )
    print(f"  then, the others could go on for: {', '.join(shares(spreads))}")
    return 1 if failed else 0


@contextmanager
def store_of(is_real: bool) -> Iterator[str]:
    if not is_real:
        yield ""
        return
    with memory() as folder, etcd_server(folder) as server:
        yield server.url


def one(work: tuple[int, str]) -> Told:
    """Play one history. Every seed has names of its own, so many share one etcd."""
    seed, url = work
    store: FleetStore = KeptAlive(url) if url else FakeFleetStore()
    world = World(draw(seed), store)
    problem = ""
    try:
        world.play()
    except BrokenError as broken:
        problem = str(broken)
    finally:
        store.close()
    judge = world.judge
    spreads = [ns // 10**9 for ns in judge.spreads_ns]
    return world.events_total, judge.transactions, judge.halted, judge.denied, judge.alone, spreads, problem


def shares(spreads: collections.Counter[int]) -> Iterator[str]:
    """Of all other runs of a scope whose first run was denied: how long each could still go on."""
    every, total = sorted(spreads), sum(spreads.values())
    for percent in (50, 90, 99, 100):
        below = 0
        for seconds in every:
            below += spreads[seconds]
            if below * 100 >= total * percent:
                yield f"{percent} % at most {seconds} s"
                break


if __name__ == "__main__":
    sys.exit(main())
