"""How fast `costgov policy replay` plays a log under the default policy, and in how much memory: CPU time of one core.

`python -m benchmarks.bench_replay`. A log of twenty steps a second with loss, gradient norm and step time: records that
are parsed already (beside bare json.loads of the same lines), the same log from gzip (beside gunzip and json.loads
alone), many logs at once, and how much a long log adds to the memory.
"""

from __future__ import annotations

import gzip
import json
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.table import Row, program, row
from governor.core.base.policy import Policy
from governor.policies.files import PACKAGED_POLICY
from governor.policies.parse import load_policies
from governor.replay.logs import records
from governor.replay.one_log import Terms
from governor.replay.play import Replay
from governor.replay.workers import Workers, cores

RECORDS = 50_000
REPEATS = 5
LOGS = 16
MANY_RECORDS = 10_000
LONG_RECORDS = 1_000_000
WARM_RECORDS = 100_000  # Windows are full, and the interpreter has its memory.


def log(count: int) -> Iterator[dict[str, Any]]:
    for n in range(count):
        loss, grad_norm, step_time_s = 2.0 + (n * 7919 % 13) / 130, 1.0 + (n * 31 % 7) / 10, 0.05 + (n * 17 % 5) / 1000
        yield {"t": round(n * 0.05, 3), "step": n, "loss": loss, "grad_norm": grad_norm, "step_time_s": step_time_s}


def policies() -> tuple[Policy, ...]:
    loaded, problems = load_policies([(str(PACKAGED_POLICY), PACKAGED_POLICY.read_text())])
    assert loaded is not None, problems
    return loaded.policies


def play(read: Iterator[dict[str, Any]]) -> None:
    replay = Replay(policies())
    for record in read:
        replay.read(record)
    replay.end()
    assert not replay.verdicts, "a healthy log"


def per_second(times: int, call: Any) -> list[float]:
    rates = []
    for _ in range(REPEATS):
        begun_s = time.process_time()
        call()
        rates.append(times / (time.process_time() - begun_s))
    return rates


def parsed_rates() -> list[float]:
    parsed = list(log(RECORDS))
    return per_second(RECORDS, lambda: play(iter(parsed)))


def many_rates(lines: list[bytes], directory: Path, jobs: int) -> list[float]:
    """Records a second by the clock on the wall, of as many logs as two batches of a few cores."""
    logs = [directory / f"{n}.jsonl" for n in range(LOGS)]
    for path in logs:
        path.write_bytes(b"".join(lines[:MANY_RECORDS]))
    rates = []
    for _ in range(REPEATS):
        begun_s = time.perf_counter()
        with Workers(Terms(policies()), jobs) as workers:
            played = sum(one.records for one in workers.play(logs))
        assert played == LOGS * MANY_RECORDS
        rates.append(played / (time.perf_counter() - begun_s))
    return rates


def rss_kib() -> int:
    """The most that was resident so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def grown_mib(count: int) -> float:
    """What the records after the first WARM_RECORDS add."""
    replay = Replay(policies())
    before = 0
    for n, record in enumerate(log(count)):
        replay.read(record)
        if n == WARM_RECORDS:
            before = rss_kib()
    return (rss_kib() - before) / 1024


def measure() -> list[Row]:
    grown = grown_mib(LONG_RECORDS)  # First: later, the most so far is somebody else's.
    parsed = list(log(RECORDS))
    lines = [json.dumps(record).encode() + b"\n" for record in parsed]
    rules = f"{len(policies()[0].rules)} rules"
    with tempfile.TemporaryDirectory() as directory:
        packed = Path(directory) / "log.jsonl.gz"
        packed.write_bytes(gzip.compress(b"".join(lines)))
        of_records = parsed_rates()
        of_json = per_second(RECORDS, lambda: [json.loads(line) for line in lines])
        of_gzip = per_second(RECORDS, lambda: play(record for _, record in records(packed) if isinstance(record, dict)))
        alone = per_second(RECORDS, lambda: [json.loads(line) for line in gzip.open(packed)])  # noqa: SIM115
        of_cores = many_rates(lines, Path(directory), cores())
        of_one = many_rates(lines, Path(directory), 1)
    return [
        row("records replayed, parsed", "1/s", of_records, more_is_better=True, aim="> 200,000",
            note=rules, peer="json.loads alone", peer_samples=of_json),
        row("records replayed, from gzip", "1/s", of_gzip, more_is_better=True, aim="> 50,000", note=rules,
            peer="gunzip and json.loads alone", peer_samples=alone),
        row("records replayed, many logs", "1/s", of_cores, more_is_better=True, aim="> 300,000",
            note=f"{LOGS} logs, {cores()} cores, by the clock", peer="on one core", peer_samples=of_one),
        row("memory of a long log", "MiB", [grown], aim="< 1", note=f"{LONG_RECORDS:,} steps, after {WARM_RECORDS:,}"),
    ]  # fmt: skip


if __name__ == "__main__":
    program(__doc__, measure)
