"""Play schedules of the halt: `--seed N` tells one, `--seeds N [--from K]` plays many.

With `--engine` the whole engine takes the place of the bare table where many are played; one seed is told of both.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
from collections.abc import Callable
from pathlib import Path

from governor.core.events.effects import PersistIncident, PersistRuns
from tests.sim import ceiling, node_invariants
from tests.sim.ceiling import summary
from tests.sim.ceiling_sizes import page, size_table, sizes_of
from tests.sim.engine_driver import run_engine_schedule
from tests.sim.forecasts import all_coverages, all_shapes, coverage_table, miss, shape_table
from tests.sim.moments import all_moments, moment_table, outside
from tests.sim.schedule import FailedError, Result, run_schedule

FORECASTS = 3  # For each run that reaches its ceiling.
RUNS_OF_A_SHAPE = 20  # So many fewer for each shape and number of windows.
COVERAGE_RUNS_MIN = 1_000  # Fewer say little of a share.


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="play one schedule and print everything that happens in it")
    parser.add_argument("--seeds", type=int, default=2_000, help="how many schedules to play")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed")
    parser.add_argument("--engine", action="store_true", help="play many with the engine instead of the bare table")
    parser.add_argument("--ceiling", action="store_true", help="play many runs that reach their ceiling")
    parser.add_argument("--page", type=Path, help="with --ceiling: write what came of it to this page of the documents")
    parser.add_argument("--node", action="store_true", help="play nodes that people come to and leave")
    arguments = parser.parse_args()
    if arguments.node:
        one = arguments.seed is not None
        first, count = (arguments.seed, 1) if one else (arguments.first, arguments.seeds)
        return play_nodes(range(first, first + count), tells=one)
    if arguments.ceiling:
        return play_ceiling(range(arguments.first, arguments.first + arguments.seeds), arguments.page)
    if arguments.seed is not None:
        return max(tell(arguments.seed, run) for run in (run_schedule, run_engine_schedule))
    return play(range(arguments.first, arguments.first + arguments.seeds), arguments.engine)


def tell(seed: int, run: Callable[[int], Result]) -> int:
    who = "engine" if run is run_engine_schedule else "table"
    try:
        result = run(seed)
    except FailedError as failed:
        print(f"== seed {seed}, {who} ==", *failed.log, f"\nFAILED {failed}\n", sep="\n")
        return 1
    plan, faults = result.schedule.plan, result.schedule.faults
    print(f"== seed {seed}, {who} ==", plan, f"faults: {', '.join(faults.names) or 'none'}", *result.log, sep="\n")
    print(f"\nended {describe(result)} after {result.took_ns / 1e9:.0f} simulated seconds\n")
    return 0


def play(seeds: range, engine: bool) -> int:
    ends: collections.Counter[str] = collections.Counter()
    simulated_ns = 0
    began = time.perf_counter()
    for seed in seeds:
        try:
            result = run_engine_schedule(seed) if engine else run_schedule(seed)
        except FailedError as failed:
            print(f"FAILED seed {seed}: {failed}")
            return 1
        ends[describe(result)] += 1
        simulated_ns += result.took_ns
    took = time.perf_counter() - began
    print(f"{len(seeds)} schedules from seed {seeds.start}: {dict(ends)}")
    print(f"{len(seeds) / took:.0f} schedules/s, {simulated_ns / 3.6e12:.0f} simulated hours in {took:.1f} s")
    return 0


def play_ceiling(seeds: range, to: Path | None) -> int:
    outcomes = [ceiling.play(seed) for seed in seeds]
    told, sizes = summary(outcomes), sizes_of(outcomes)
    print(f"{told.runs} runs reached their ceiling; in {told.answered_for} all kept to what the reserve answers for")
    print(f"  of these above the ceiling when billing ended: {len(told.over)} {list(told.over[:10])}")
    print(f"  of the others: {told.over_excused}; without a stated cause: {len(told.silent)} {list(told.silent[:10])}")
    print(f"  by a price that rose after the verdict: {len(told.over_by_price)}; not named: {list(told.unnamed[:10])}")
    print(f"  median unused: {told.unused_by_reserve:.2f} of the reserve", "", *size_table(sizes), sep="\n")
    covered = all_coverages(FORECASTS * len(seeds), seeds.start)
    print("\nof simulated runs whose truth is known, inside the forecasts' 80 % intervals:")
    shapes = all_shapes(len(seeds) // RUNS_OF_A_SHAPE, seeds.start)
    print(*coverage_table(covered), "", *shape_table(shapes), sep="\n")
    met = all_moments(len(seeds), seeds.start)
    print("\nof runs that save, inside the ends of their ceiling's moment:", *moment_table(met), sep="\n")
    if to is not None:
        to.write_text(page(told, sizes, seeds, covered, shapes, met), encoding="utf-8")
    is_broken = outside(met) or told.over or told.silent or told.unnamed or told.unused_by_reserve >= 1
    return 1 if is_broken or (len(seeds) >= COVERAGE_RUNS_MIN and miss(covered)) else 0


def play_nodes(seeds: range, *, tells: bool) -> int:
    """Tell all that one schedule came to, or how many there were."""
    stops = abandoned = 0
    for seed in seeds:
        try:
            world, judge = node_invariants.play(seed)
        except node_invariants.BrokenError as failed:
            print(f"FAILED {failed}\nreproduce: python -m tests.sim --node --seed {seed}")
            return 1
        stops += judge.stops > 0
        abandoned += any('"halt_stage": "abandoned"' in text for text, _ in world.incidents.values())
        if tells:
            told = [(at, effect) for at, effect in world.log if not isinstance(effect, PersistRuns | PersistIncident)]
            print(world.schedule, *(f"{at:5}  {effect}" for at, effect in told), sep="\n")
    print(f"{len(seeds)} nodes: {stops} were asked to stop, {abandoned} of these stops were given up at least once")
    return 0


def describe(result: Result) -> str:
    return "dark" if result.dark else result.stage.value


if __name__ == "__main__":
    sys.exit(main())
