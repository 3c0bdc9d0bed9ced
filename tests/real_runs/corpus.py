"""Runs that others trained: an archive of their logs, unpacked and replayed once for every test."""

from __future__ import annotations

import copy
import math
import os
import random
import tarfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from governor.core.base.policy import Policy
from governor.core.base.units import NS_PER_HOUR
from governor.policies.parse import load_policies
from governor.replay.logs import records
from governor.replay.play import Replay, ReplayVerdict

ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = Path(os.environ.get("COSTGOV_REAL_RUNS", ROOT.parent / "shared/data/real_runs.tar.xz"))
DEFAULT_POLICY = ROOT / "policies/default.toml"
RUN_ON_NS = 4 * NS_PER_HOUR  # More than the longest limit for silence: whoever is not caught by then is not caught.
CUT_SEED = 20261122
RECORDS_MIN = 20  # Below, a log has no rhythm and is no run.


@dataclass(frozen=True)
class Outcome:
    """What the policy said of one log; `cut`: of its first part, with a clock that ran on."""

    log: str
    meta: dict[str, Any]
    halts: tuple[ReplayVerdict, ...]
    steps: tuple[tuple[int | None, float | None, bool], ...]  # Of a troubled log: step, time, is its loss broken.
    hours: float
    cut_at: float | None = None
    cut_halts: tuple[ReplayVerdict, ...] = ()


def unpack(into: Path) -> list[Path]:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(into, filter="data")
    return sorted(into.rglob("*.jsonl"))


def replay_all(logs: Sequence[Path], policy: Path = DEFAULT_POLICY) -> list[Outcome]:
    with ProcessPoolExecutor() as pool:
        return list(pool.map(_outcome, logs, [policy] * len(logs), chunksize=8))


@cache
def _policies(policy: Path) -> tuple[Policy, ...]:
    policies, problems = load_policies([(str(policy), policy.read_text())])
    assert policies is not None, problems
    return policies.policies


def _outcome(log: Path, policy: Path) -> Outcome:
    read = [record for _, record in records(log) if isinstance(record, dict)]
    meta = read[0].get("meta", {})
    is_cut = meta.get("role") == "healthy" and meta.get("clock") == "wall" and len(read) > RECORDS_MIN
    # The same cut every time, also when other logs come or go.
    cut = random.Random(f"{CUT_SEED} {log.name}").randrange(2, len(read)) if is_cut else None
    whole = Replay(_policies(policy))
    cut_at, cut_halts = None, ()
    for at, record in enumerate(read):
        if at == cut:
            hung = copy.deepcopy(whole)
            cut_at = hung.t
            hung.end(RUN_ON_NS)
            cut_halts = _halts(hung)
        assert whole.read(record) is None, (log, record)
    whole.end()
    steps = tuple(_step(record) for record in read[1:]) if meta["role"] == "troubled" else ()
    hours = (whole.t or 0.0) / 3600
    return Outcome(log.stem, meta, _halts(whole), steps, hours, cut_at, cut_halts)


def _halts(replay: Replay) -> tuple[ReplayVerdict, ...]:
    return tuple(told for told in replay.verdicts if told.response == "halt")


def _step(record: dict[str, Any]) -> tuple[int | None, float | None, bool]:
    loss = record.get("loss")
    return record.get("step"), record.get("t"), isinstance(loss, float) and not math.isfinite(loss)
