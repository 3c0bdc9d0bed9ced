"""A trainer's console in one format, a step each half second: `format_writer FORMAT LOG PIDFILE SECONDS`.

Its log is rotated after a quarter of the time and emptied after a half. After three quarters the trainer ends, and
another goes on from a checkpoint five steps before. At the end it prints, as JSON, its last step and what it trains in
a second, and waits for a line on stdin. Then its loss is NaN; it prints when that line was written.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.unit.wire.formats.written import BATCH, LENGTH, WRITERS, Did

STEP_S = 0.5
BACK = 5  # Steps between the last checkpoint and where the first trainer ends.


class Live(list[Did]):
    """Steps that come when they are done."""

    def __iter__(self) -> Iterator[Did]:
        for one in super().__iter__():
            time.sleep(max(0.0, one.began_s + one.ended_s - time.time()))
            yield one


def jsonl(did: Sequence[Did]) -> Iterator[str]:
    for one in did:
        values = {"step": one.step, "loss": one.loss, "tokens_per_step": BATCH * LENGTH}
        yield json.dumps({**values, "timestamp": one.began_s + one.ended_s})


def steps(first: int, count: int, *, is_broken: bool = False) -> Live:
    began_s, chance = time.time(), random.Random(first)
    return Live(
        Did(
            first + n,
            math.nan if is_broken else round(2.0 + chance.uniform(-0.05, 0.05), 3),
            math.nan if is_broken else 1.0,
            STEP_S,
            STEP_S * (n + 1),
            began_s,
        )
        for n in range(count)
    )


def write(log: Path, lines: Iterator[str], until_s: float | None = None) -> None:
    """Append the lines as they come, unbuffered. A log that was rotated is opened again."""
    with log.open("a", buffering=1, encoding="utf-8") as file:
        while until_s is None or time.monotonic() < until_s:
            line = next(lines, None)
            if line is None:
                return
            file.write(f"{line}\n")


def trainer(name: str, log: Path, pidfile: Path, first: int, seconds: float, *, is_last: bool) -> None:
    pidfile.write_text(f"{os.getpid()}\n")
    writer = jsonl if name == "jsonl" else WRITERS[name]
    did = steps(first, round(seconds / STEP_S))
    lines = writer(did)
    if not is_last:
        began_s = time.monotonic()
        write(log, lines, began_s + seconds / 3)
        log.rename(log.with_suffix(".1"))
        write(log, lines, began_s + 2 * seconds / 3)
        os.truncate(log, 0)
        write(log, lines)
        return
    write(log, lines)
    last = did[-1]
    said = {"step": last.step, "loss": last.loss, "tokens_per_s": BATCH * LENGTH / STEP_S}
    print(json.dumps(said), flush=True)
    sys.stdin.readline()
    for number, line in enumerate(writer(steps(last.step + 1, 20, is_broken=True))):
        write(log, iter([line]))
        if number == 0:
            print(json.dumps(time.time()), flush=True)


def main() -> None:
    name, log, pidfile, seconds = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])
    before = seconds * 3 / 4
    if (child := os.fork()) == 0:
        trainer(name, log, pidfile, 1, before, is_last=False)
        os._exit(0)
    os.waitpid(child, 0)
    first = round(before / STEP_S) - BACK + 1
    trainer(name, log, pidfile, first, seconds - before, is_last=True)
    time.sleep(3600)


if __name__ == "__main__":
    main()
