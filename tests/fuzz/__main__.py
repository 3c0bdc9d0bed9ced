"""Break the inputs that strangers control: `python -m tests.fuzz [TARGET …] [--inputs N] [--seed S]`; `make fuzz`.

Every input is drawn from its number: `--seed S --only K` of one TARGET plays it again, after those that made its state.
A finding is an exception, a fault on a thread, more than a second of processor (20 for the tests of a policy, 5 for a
replay), or output that is not as documented.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import structlog

from tests.fuzz.checkpoints import Indexes, Manifests, Pidfiles, Readers, Weights
from tests.fuzz.files import Policies, PolicyTests, SettingsFile, Tables
from tests.fuzz.frames import Control, Frames
from tests.fuzz.log_files import LogFiles
from tests.fuzz.logs import Lines, Replayed
from tests.fuzz.peers import Datagrams
from tests.fuzz.providers import Providers
from tests.fuzz.runner import Figures, Target, run, table

TARGETS = {
    kind.name: kind
    for kind in (
        Frames, Lines, LogFiles, Control, Manifests, Pidfiles, Weights, Indexes, Providers, Tables, Policies, Replayed,
        SettingsFile, PolicyTests, Readers, Datagrams,
    )
}  # fmt: skip
MEMORY = Path("/dev/shm")


def fuzz(names: list[str], seed: int, inputs: int, only: int | None = None) -> list[Figures]:
    """Play the inputs of these targets, by their shares."""
    # What the daemon logs is of no use here, and takes longer than the input.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("critical"))
    shares = sum(TARGETS[name].share for name in names)
    found = []
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as directory:
        for name in names:
            target: Target = TARGETS[name]()
            count = max(1, round(inputs * target.share / shares))
            numbers = range(count) if only is None else range(only, only + 1)
            found.append(run(target, Path(directory) / name, seed, numbers, only=only is not None))
            print(f"{name}: {found[-1].inputs:,} in {found[-1].seconds:.0f} s", file=sys.stderr)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"one of {', '.join(TARGETS)}; default: all")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of all targets together (default 1,000,000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="play this input of one target, and show it")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.targets if name not in TARGETS]
    if unknown or (arguments.only is not None and len(arguments.targets) != 1):
        parser.error(f"no such target: {unknown[0]}" if unknown else "--only needs one target")
    found = fuzz(arguments.targets or list(TARGETS), arguments.seed, arguments.inputs, arguments.only)
    if arguments.json:
        print(json.dumps([asdict(one) for one in found]))
    else:
        print(f"seed {arguments.seed}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")
        table(found)
    return 1 if any(one.findings for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
