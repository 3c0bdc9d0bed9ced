"""A trainer's log in one format, a step each half second: `format_writer FORMAT LOG PIDFILE SECONDS`.

Its log is rotated after a quarter of the time and emptied after a half. After three quarters the trainer ends, and
another goes on from a checkpoint five steps before. At the end it prints, as JSON, its last step and what it trains in
a second, and waits for a line on stdin. Then its loss is NaN; it prints when that was written.
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

from tests.unit.wire.files.written import BEGAN_S, RunFile, begin, scalar
from tests.unit.wire.formats.written import BATCH, LENGTH, WRITERS, Did

STEP_S = 0.5
BACK = 5  # Steps between the last checkpoint and where the first trainer ends.
PARTS = 3  # Of the first trainer's log.
LOG, PIDFILE = Path(sys.argv[2]), Path(sys.argv[3])


class Live(list[Did]):
    """Steps that come when they are done."""

    def __iter__(self) -> Iterator[Did]:
        for one in super().__iter__():
            time.sleep(max(0.0, one.began_s + one.ended_s - time.time()))
            yield one


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


# --- what a step is in a log: each yields once it has written something of it


def jsonl(did: Sequence[Did]) -> Iterator[str]:
    for one in did:
        values = {"step": one.step, "loss": one.loss, "tokens_per_step": BATCH * LENGTH}
        yield json.dumps({**values, "timestamp": one.began_s + one.ended_s})


def text(name: str, did: Live) -> Iterator[None]:
    """A console, whose first lines are not repeated when it is rotated or emptied."""
    for line in jsonl(did) if name == "jsonl" else WRITERS[name](did):
        with LOG.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
        yield


def table(did: Live) -> Iterator[None]:
    for one in did:
        is_new = not LOG.exists() or LOG.stat().st_size == 0 or one is did[0]
        with LOG.open("a", encoding="utf-8") as file:
            if is_new:
                file.write("step,loss,tokens_per_step,timestamp\n")
            file.write(f"{one.step},{one.loss},{BATCH * LENGTH},{one.began_s + one.ended_s}\n")
        yield


def event_files(did: Live) -> Iterator[None]:
    """A directory, with a further file for each trainer and wherever another log would be rotated."""
    path, number = None, 0
    for one in did:
        if path is None or not path.exists():
            path, number = LOG / f"events.out.tfevents.{int(time.time()):010d}.node.{os.getpid()}.{number}", number + 1
            path.write_bytes(begin())
        at = one.began_s + one.ended_s - BEGAN_S  # Its events are dated from there.
        with path.open("ab") as file:
            file.write(scalar(one.step, "train/loss", one.loss, at))
            file.write(scalar(one.step, "tokens_per_step", BATCH * LENGTH, at))
        yield


def run_files(did: Live) -> Iterator[None]:
    """W&B's directory, with a run for each trainer."""
    run = LOG / f"offline-run-{time.strftime('%Y%m%d_%H%M%S')}-r{os.getpid()}"
    run.mkdir()
    path, written, size = run / f"run-r{os.getpid()}.wandb", RunFile(), 0
    for one in did:
        at = one.began_s + one.ended_s
        written.row(one.step, {"loss": one.loss, "tokens_per_step": BATCH * LENGTH, "_timestamp": at})
        with path.open("ab") as file:
            file.write(bytes(written.data[size:]))
        size = len(written.data)
        yield


def write(name: str, did: Live) -> Iterator[None]:
    others = {"csv": table, "tensorboard": event_files, "wandb": run_files}
    return others[name](did) if name in others else text(name, did)


# --- the trainers


def first_trainer(name: str, did: Live) -> None:
    PIDFILE.write_text(f"{os.getpid()}\n")
    began_s = time.monotonic()
    part = 0
    for _ in write(name, did):
        passed = int((time.monotonic() - began_s) / (len(did) * STEP_S) * PARTS)
        if passed > part:
            part = passed
            turn(name, part)


def turn(name: str, part: int) -> None:
    """Rotate the log, then empty it. TensorBoard's next file begins; W&B's is what it is."""
    if name == "tensorboard":
        for file in LOG.iterdir():
            file.rename(LOG.with_name(f"{part}-{file.name}"))
    elif name != "wandb" and part == 1:
        LOG.rename(LOG.with_suffix(".1"))
    elif name != "wandb" and part == 2:
        os.truncate(LOG, 0)


def last_trainer(name: str, did: Live) -> None:
    PIDFILE.write_text(f"{os.getpid()}\n")
    for _ in write(name, did):
        pass
    last = did[-1]
    print(json.dumps({"step": last.step, "loss": last.loss, "tokens_per_s": BATCH * LENGTH / STEP_S}), flush=True)
    sys.stdin.readline()
    for number, _ in enumerate(write(name, steps(last.step + 1, 20, is_broken=True))):
        if number == 0:
            print(json.dumps(time.time()), flush=True)


def main() -> None:
    name, seconds = sys.argv[1], float(sys.argv[4])
    before = round(seconds * 3 / 4 / STEP_S)
    if (child := os.fork()) == 0:
        first_trainer(name, steps(1, before))
        os._exit(0)
    os.waitpid(child, 0)
    last_trainer(name, steps(before - BACK + 1, round(seconds / STEP_S) - before))
    time.sleep(3600)


if __name__ == "__main__":
    main()
