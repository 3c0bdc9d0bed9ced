"""A run's account beside the timers of its ranks."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from governor.adapters.journal.db import JournalReader
from governor.core.attribution.account import TimeAccount
from governor.core.attribution.causes import Cause
from governor.core.attribution.rows import Whole, whole_of
from governor.core.base.units import NS_PER_S

# What is injected, and the causes that it is to be told as.
EXPECTED: Final[Mapping[str, tuple[Cause, ...]]] = {
    "none": (),
    "data": (Cause.DATA,),
    "collate": (Cause.DATA,),
    "uneven": (Cause.DATA, Cause.OTHER_TENANTS),
    "slow": (Cause.STRAGGLER,),
    "neighbour": (Cause.OTHER_TENANTS,),
    "collective": (Cause.COMMUNICATION,),
    "wire": (Cause.COMMUNICATION,),
    "saves": (Cause.CHECKPOINT,),
    "eval": (Cause.EVALUATION,),
    "recompute": (Cause.RECOMPUTE,),
    "loop": (Cause.LOOP,),
    "restart": (Cause.RESTART, Cause.LOST_STEPS),
    "compile": (Cause.COMPILE,),
    "bubble": (Cause.BUBBLE,),
    "offload": (Cause.OFFLOAD,),
}
# A toy trains for seconds, and takes longer to begin and to end. None of that is a step's.
BESIDE_STEPS: Final = (Cause.START_UP, Cause.SHUT_DOWN, Cause.RESTART, Cause.COMPILE)
TIMERS: Final = {
    "data": Cause.DATA, "eval": Cause.EVALUATION, "recompute": Cause.RECOMPUTE, "loop": Cause.LOOP,
    "save": Cause.CHECKPOINT, "communication": Cause.COMMUNICATION, "bubble": Cause.BUBBLE, "offload": Cause.OFFLOAD,
}  # fmt: skip
_NOT_COMPUTING: Final = ("data", "eval", "loop", "save", "communication", "bubble", "offload")
US_NS: Final = 1000
NEAR_FRAC, FALSE_FRAC, UNKNOWN_FRAC = 0.15, 0.10, 0.05


@dataclass(frozen=True, slots=True)
class Row:
    """Shares are of the time in the ranks' loops. `false`: causes told so much too large that they are not there."""

    injected: str
    engine: str
    amount: float
    truth_s: float
    truth_share: float
    truth_top: str
    told_top: str
    told_s: float
    told_share: float
    error: float | None
    unknown_share: float
    loop_s: float
    wall_s: float
    goodput: float | None
    sums: bool
    false: Mapping[str, float] = field(default_factory=dict)
    truth: Mapping[str, float] = field(default_factory=dict)
    told: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_right(self) -> bool:
        """A healthy run has no cause that is not there. On a busy machine another one may outweigh what is injected."""
        if not EXPECTED[self.injected]:
            return not self.false
        return self.told_top in {self.truth_top, *(cause.value for cause in EXPECTED[self.injected])}

    @property
    def is_outweighed(self) -> bool:
        """By the ranks' own timers another cause took more than the injected one."""
        wanted = {cause.value for cause in EXPECTED[self.injected]}
        return bool(wanted) and self.truth_top not in wanted

    @property
    def is_near(self) -> bool:
        return self.error is None or abs(self.error) <= NEAR_FRAC

    @property
    def ok(self) -> bool:
        return self.is_right and self.is_near and self.sums and self.unknown_share < UNKNOWN_FRAC

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "right": self.is_right, "near": self.is_near, "ok": self.ok}

    @staticmethod
    def titles() -> str:
        names = ("injected", "engine", "truth", "told top", "told", "error", "unknown", "sums", "false, or larger")
        return "{:<11}{:<10}{:>7}  {:<22}{:>6}{:>7}{:>8}  {:<5}{}".format(*names)

    def line(self) -> str:
        error = "-" if self.error is None else f"{self.error:+.0%}"
        notes = [f"{name} {share:+.0%}" for name, share in self.false.items()]
        if self.is_outweighed:
            notes.append(f"{self.truth_top} was larger")
        return (
            f"{self.injected:<11}{self.engine:<10}{self.truth_share:>7.1%}  {self.told_top:<22}{self.told_share:>6.1%}"
            f"{error:>7}{self.unknown_share:>8.1%}  {'yes' if self.sums else 'NO':<5}{', '.join(notes)}"
        )


def row_of(injected: str, engine: str, amount: float, out: Path, journal: Path) -> Row:
    attempts = read_truth(out)
    run = read_run(journal)
    whole = whole_of(TimeAccount.restored(run["time"], same_boot=False))
    truth = truth_of(injected, attempts)
    loop_s = sum(statistics.fmean(_loop_s(rank) for rank in ranks) for ranks in attempts)
    told = {cause: amount.ns / NS_PER_S for cause, amount in whole.by_cause.items()}
    wanted = EXPECTED[injected]
    ranked = {
        cause: seconds
        for cause, seconds in told.items()
        if cause is not Cause.PRODUCTIVE and (cause in wanted or cause not in BESIDE_STEPS)
    }
    top = max(ranked, key=lambda cause: ranked[cause], default=Cause.UNKNOWN)
    truth_top = max((cause for cause in truth if cause not in BESIDE_STEPS or cause in wanted), key=truth.__getitem__)
    truth_s, told_s = (sum(of.get(cause, 0.0) for cause in wanted) for of in (truth, told))
    beyond = {cause: (seconds - truth.get(cause, 0.0)) / loop_s for cause, seconds in ranked.items()}
    return Row(
        injected, engine, amount, truth_s, truth_s / loop_s, truth_top.value, top.value, told_s, told_s / loop_s,
        told_s / truth_s - 1 if truth_s else None, told.get(Cause.UNKNOWN, 0.0) / loop_s, loop_s,
        whole.wall_ns / NS_PER_S, whole.goodput, adds_up(whole, run),
        {cause.value: share for cause, share in beyond.items() if share > FALSE_FRAC and cause not in wanted},
        {cause.value: seconds for cause, seconds in truth.items()},
        {cause.value: seconds for cause, seconds in told.items()},
    )  # fmt: skip


def read_truth(out: Path) -> list[list[dict[str, Any]]]:
    """By attempt and rank."""
    attempts = sorted({int(path.name.split(".")[1]) for path in out.glob("truth.*.json")})
    return [[json.loads(path.read_text()) for path in sorted(out.glob(f"truth.{nth}.*"))] for nth in attempts]


def read_run(journal: Path) -> dict[str, Any]:
    reader = JournalReader(str(journal))
    try:
        (row,) = (row for row in reader.runs() if row["run"])  # The node's own has no name.
    finally:
        reader.close()
    return dict(json.loads(row["snapshot"]))


def truth_of(injected: str, attempts: Sequence[Sequence[Mapping[str, Any]]]) -> dict[Cause, float]:
    """Seconds of the node by cause, as the ranks' timers have them."""
    found: dict[Cause, float] = {}
    for timer, cause in TIMERS.items():
        for ranks in attempts:
            seconds = [rank["spent"].get(timer, 0.0) for rank in ranks]
            # Whoever comes last to a collective waits for nobody: what the others wait longer is not the wire's.
            mine = min(seconds) if cause is Cause.COMMUNICATION else statistics.fmean(seconds)
            # For one rank that saves all others wait, and for one that has no data.
            is_of_one = cause is Cause.CHECKPOINT or (injected == "uneven" and cause is Cause.DATA)
            found[cause] = found.get(cause, 0.0) + (max(seconds) if is_of_one else mine)
    # On a busy machine every run has other tenants.
    found[Cause.OTHER_TENANTS] = sum(max(rank["spent"].get("queued", 0.0) for rank in ranks) for ranks in attempts)
    if injected == "neighbour":
        found[Cause.OTHER_TENANTS] = sum(max(_without_core_s(rank) for rank in ranks) for ranks in attempts)
    else:
        found[Cause.STRAGGLER] = sum(_behind_s(ranks) for ranks in attempts)
    if Cause.BUBBLE in found:  # A stage waits for the slow one as long as that computes longer.
        found[Cause.BUBBLE] -= sum(_waited_s(ranks) for ranks in attempts)
    if injected == "compile":
        found[Cause.COMPILE] = statistics.fmean(_first_s(rank) for rank in attempts[0])
    if injected == "restart":
        before, after = attempts
        done = max(before[0]["steps"])[0]
        found[Cause.RESTART] = min(rank["steps"][0][1] for rank in after) - max(rank["steps"][-1][2] for rank in before)
        redone = [sum(end - begin for step, begin, end in rank["steps"] if step <= done) for rank in after]
        found[Cause.LOST_STEPS] = statistics.fmean(redone)
    return {cause: seconds for cause, seconds in found.items() if seconds}


def _behind_s(ranks: Sequence[Mapping[str, Any]]) -> float:
    """What the slowest rank computed longer than the fastest, whoever made it slow: the machine has other tenants."""
    own = [_loop_s(rank) - sum(rank["spent"].get(timer, 0.0) for timer in _NOT_COMPUTING) for rank in ranks]
    return max(own) - min(own)


def _waited_s(ranks: Sequence[Mapping[str, Any]]) -> float:
    """What ranks waited for the slowest one, on average."""
    waits = [rank["spent"].get("bubble", 0.0) for rank in ranks]
    return statistics.fmean(waits) - min(waits)


def _without_core_s(rank: Mapping[str, Any]) -> float:
    """By the main thread's own clock: when it neither ran nor waited for the other rank. Nothing else here waits."""
    spent = rank["spent"]
    return _loop_s(rank) - float(spent["cpu"]) - float(spent.get("communication", 0.0))


def _loop_s(rank: Mapping[str, Any]) -> float:
    return float(rank["steps"][-1][2] - rank["steps"][0][1])


def _first_s(rank: Mapping[str, Any]) -> float:
    """What the first step took beyond the others."""
    lengths = [end - begin for _, begin, end in rank["steps"]]
    return float(lengths[0] - statistics.median(lengths[1:]))


def adds_up(whole: Whole, run: Mapping[str, Any]) -> bool:
    """To the ledger's micro-dollars; at PRICE one is a microsecond, so the ledger tells the time as well."""
    return whole.usd_micros == run["spend_usd_micros"] and abs(whole.wall_ns / US_NS - whole.usd_micros) < 2
