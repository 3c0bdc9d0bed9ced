"""Play schedules of the halt: `python -m tests.sim --seed N` tells one, `--seeds N [--from K]` plays many."""

from __future__ import annotations

import argparse
import collections
import sys
import time

from tests.sim.schedule import FailedError, Result, run_schedule


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="play one schedule and print everything that happens in it")
    parser.add_argument("--seeds", type=int, default=2_000, help="how many schedules to play")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed")
    arguments = parser.parse_args()
    return tell(arguments.seed) if arguments.seed is not None else play(arguments.first, arguments.seeds)


def tell(seed: int) -> int:
    try:
        result = run_schedule(seed)
    except FailedError as failed:
        print(*failed.log, f"\nFAILED {failed}", sep="\n")
        return 1
    plan, faults = result.schedule.plan, result.schedule.faults
    print(f"seed {seed}: {plan}", f"faults: {', '.join(faults.names) or 'none'}", *result.log, sep="\n")
    print(f"\nended {describe(result)} after {result.took_ns / 1e9:.0f} simulated seconds")
    return 0


def play(first: int, seeds: int) -> int:
    ends: collections.Counter[str] = collections.Counter()
    simulated_ns = 0
    began = time.perf_counter()
    for seed in range(first, first + seeds):
        try:
            result = run_schedule(seed)
        except FailedError as failed:
            print(f"FAILED seed {seed}: {failed}")
            return 1
        ends[describe(result)] += 1
        simulated_ns += result.took_ns
    took = time.perf_counter() - began
    print(f"{seeds} schedules from seed {first}: {dict(ends)}")
    print(f"{seeds / took:.0f} schedules/s, {simulated_ns / 3.6e12:.0f} simulated hours in {took:.1f} s")
    return 0


def describe(result: Result) -> str:
    return "dark" if result.dark else result.stage.value


if __name__ == "__main__":
    sys.exit(main())
