"""Single changes to a run and what each would save, and what they save together: never more than there is to save.

A saving is a share of the run's time. Savings of several levers multiply in what they leave, and end where the run is
as fast as the best plan for its GPUs: what is faster than possible was counted twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Evidence(StrEnum):
    MEASURED = "measured"  # on this run, as its user states it
    MODELLED = "modelled"  # by this planner, for this run
    RULE = "rule of thumb"  # seen on others' runs


@dataclass(frozen=True, slots=True)
class Lever:
    """Shares of the run's time that remain: 0.8 saves a fifth. `best` <= `usual` <= `least`."""

    name: str
    change: str
    best: float
    usual: float
    least: float
    evidence: Evidence
    basis: str
    is_bound: bool = False  # What others can save together, no change of its own: in no sum.
    is_done: bool = False  # The plan counts on it already: it is what leaving it out would cost.


@dataclass(frozen=True, slots=True)
class Together:
    """What the levers leave together, as shares of the run's time."""

    best: float
    usual: float
    least: float
    possible: float  # No plan for these GPUs leaves less.

    @property
    def is_bounded(self) -> bool:
        return self.usual <= self.possible


# Of runs whose GPUs wait for data. Ranges that users of one to eight GPUs report when they make the change; no law.
DATA_RULES: Final = (
    ("local NVMe", "read the data set from the node's own disk, not over the network", 0.70, 0.75, 0.80),
    ("loader workers", "as many as keep the queue full: more steal the trainer's cores", 0.85, 0.88, 0.90),
    ("pre-tokenised data", "tokenise once, before training", 0.90, 0.93, 0.95),
)  # fmt: skip


WAIT: Final = "waiting for data"


def data_levers(wait_share: float | None) -> list[Lever]:
    """`wait_share`: the share of the time in which GPUs wait for data; None: nobody measured it.

    A plan counts on none. Known, it bounds what all three save together.
    """
    levers = []
    for name, change, best, usual, least in DATA_RULES:
        if wait_share is None:
            basis = "of a run whose GPUs wait for data; the plan counts on none that do"
            levers.append(Lever(name, change, best, usual, least, Evidence.RULE, basis, is_done=True))
            continue
        floor = 1 - wait_share
        basis = f"of the {wait_share:.0%} in which GPUs wait for data"
        levers.append(Lever(name, change, max(best, floor), max(usual, floor), max(least, floor), Evidence.RULE, basis))
    if wait_share is not None:
        change = "none any more: the most that the three above save together"
        floor, basis = 1 - wait_share, "as stated, or the measured speed below the predicted"
        levers.append(Lever(WAIT, change, floor, floor, floor, Evidence.MEASURED, basis, is_bound=True))
    return levers


def modelled(name: str, change: str, seconds_now: float, seconds_then: float, basis: str) -> Lever | None:
    """A lever that a model gives both times of; None where it saves less than a thousandth."""
    left = seconds_then / seconds_now
    if left > 0.999:
        return None
    return Lever(name, change, left, left, left, Evidence.MODELLED, basis)


def together(levers: Iterable[Lever], possible: float, wait_share: float | None = None) -> Together:
    """Everything that is not done yet. Levers on the loader save no more than the wait for data, all of them no more
    than lies between the run and the best plan (`possible`: its share of the run's time)."""
    data_names = {name for name, *_ in DATA_RULES}
    open_levers = [lever for lever in levers if not (lever.is_done or lever.is_bound)]
    left = []
    for pick in ("best", "usual", "least"):
        of_data = of_others = 1.0
        for lever in open_levers:
            if lever.name in data_names:
                of_data *= getattr(lever, pick)
            else:
                of_others *= getattr(lever, pick)
        of_data = max(of_data, 1 - (wait_share or 0.0))
        left.append(max(of_data * of_others, min(possible, 1.0)))
    return Together(left[0], left[1], left[2], possible)
