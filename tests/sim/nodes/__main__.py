"""Play histories of a run on several nodes: `--seed N` tells one, `--seeds N [--from K]` many, `--bugs` hunts bugs."""

from __future__ import annotations

import argparse
import sys
import time

from tests.sim.nodes.histories import BrokenError, draw, play
from tests.sim.nodes.planted_bugs import BUGS, hunt


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.nodes", description=__doc__)
    parser.add_argument("--seed", type=int, help="play one history and print everything that happens in it")
    parser.add_argument("--seeds", type=int, default=500, help="how many histories to play")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed")
    parser.add_argument("--bugs", action="store_true", help="plant each bug, and print the history that catches it")
    arguments = parser.parse_args()
    if arguments.bugs:
        caught = {bug.__name__: hunt(bug) for bug in BUGS}
        for name, error in caught.items():
            print(f"{name}: {str(error).splitlines()[0] if error is not None else 'NOT CAUGHT'}")
        return 1 if None in caught.values() else 0
    if arguments.seed is not None:
        return tell(arguments.seed)
    began, failed = time.monotonic(), 0
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        try:
            play(seed)
        except BrokenError as error:
            failed += 1
            print(f"FAILED {error}")
    print(f"{arguments.seeds} histories, {failed} failed, {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


def tell(seed: int) -> int:
    print(draw(seed))
    try:
        world = play(seed)
    except BrokenError as error:
        print(*error.log, f"\nFAILED {error}", sep="\n")
        return 1
    print(*world.log, f"\nmessages sent: {dict(world.sent)}", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
