"""What happens to a fleet in one history, by its seed: runs, prices, ceilings and faults. Times in ns from 0."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from governor.core.base.units import NS_PER_HOUR, NS_PER_MINUTE, NS_PER_S

GOVERNORS, RUNS = 20, 50
RISE = (5, 4)  # A price rises by at most a quarter while a halt lasts: every reserve has that.
PRICE_GAP_NS = 16 * NS_PER_MINUTE
HALT_MAX_S = 600
DOWN_MAX_S = 30  # A governor that dies is back within this, and every reserve has that. Else its machine has vanished.


@dataclass(frozen=True)
class RunPlan:
    name: str
    governor: int
    scopes: tuple[str, ...]
    usd_micros_per_hour: int
    starts: int
    ends: int | None  # By itself. None: it trains until it is halted.
    halt_ns: int  # What its halt takes at most; a save a little earlier makes it shorter.
    cycle_ns: int


@dataclass(frozen=True)
class History:
    seed: int
    ceilings: dict[str, int]
    runs: tuple[RunPlan, ...]
    prices: dict[int, tuple[tuple[int, int], ...]]  # By governor: when, and percent of the first price.
    changes: tuple[tuple[int, str, int], ...]  # When a person sets a scope's ceiling, and to what.
    partitions: tuple[tuple[int, int, frozenset[int]], ...]  # From, until, of whom.
    kills: tuple[tuple[int, int, int], ...]  # When, whom, how long.
    vanishes: tuple[tuple[int, int, int, int], ...]  # When, whom, when its billing ends, when somebody reads that back.
    lost: float
    unanswered: float
    late: float
    doubled: float
    faults: frozenset[str] = field(default_factory=frozenset)

    @property
    def healed_ns(self) -> int:
        """From then on nobody is cut off or down, and of each machine that has vanished the end is known."""
        cuts = (until for _, until, _ in self.partitions)
        kills = (at + down for at, _, down in self.kills)
        return max((0, *cuts, *kills, *(read_back for *_, read_back in self.vanishes)))

    @property
    def cut_ns(self) -> int:
        """How long the governors are cut off, all together."""
        total, cuts = 0, sorted(self.partitions, key=lambda cut: cut[:2])
        for governor in range(GOVERNORS):
            known = 0
            for begins, until, of in cuts:
                if governor in of and until > known:
                    total += until - max(begins, known)
                    known = until
        return total


def draw(seed: int) -> History:
    rng = random.Random(f"fleet/{seed}")
    suffix = f"{seed}"
    teams = [f"team:{word}/{suffix}" for word in ("nlp", "vision", "speech")]
    kinds = ("lost", "unanswered", "late", "doubled", "partition", "outage", "kill", "vanish", "lower", "price")
    faults = frozenset(kind for kind in kinds if rng.random() < 0.5) if rng.random() < 0.9 else frozenset()
    runs = tuple(_run(rng, number, teams, f"fleet/{suffix}") for number in range(RUNS))
    ceilings = {}
    for scope in (*teams, f"fleet/{suffix}"):
        hourly = sum(run.usd_micros_per_hour for run in runs if scope in run.scopes)
        ceilings[scope] = max(1, int(hourly * rng.choice((0.05, 0.1, 0.2, 0.3)) * rng.uniform(0.7, 1.3)))
    return History(
        seed,
        ceilings,
        runs,
        _prices(rng) if "price" in faults else {},
        _changes(rng, ceilings) if "lower" in faults else (),
        (*(_partitions(rng) if "partition" in faults else ()), *(_outages(rng) if "outage" in faults else ())),
        _kills(rng) if "kill" in faults else (),
        _vanishes(rng) if "vanish" in faults else (),
        rng.choice((0.02, 0.1, 0.3)) if "lost" in faults else 0.0,
        rng.choice((0.02, 0.1, 0.3)) if "unanswered" in faults else 0.0,
        rng.choice((0.02, 0.1)) if "late" in faults else 0.0,
        rng.choice((0.05, 0.3)) if "doubled" in faults else 0.0,
        faults,
    )


def _run(rng: random.Random, number: int, teams: list[str], fleet: str) -> RunPlan:
    scopes = [rng.choice(teams)] if rng.random() < 0.9 else []
    if not scopes or rng.random() < 0.5:
        scopes.append(fleet)
    starts = rng.choice((0, rng.randrange(10 * NS_PER_MINUTE)))
    ends = starts + rng.randrange(NS_PER_MINUTE, 60 * NS_PER_MINUTE) if rng.random() < 0.4 else None
    dollars = 10 ** rng.uniform(0, 2.6)
    halt_s = rng.choice((5, 20, 60, 180, HALT_MAX_S))
    cycle = rng.randrange(2 * NS_PER_MINUTE, 20 * NS_PER_MINUTE)
    rate = int(dollars * 1e6)
    return RunPlan(f"run-{number}", number % GOVERNORS, tuple(scopes), rate, starts, ends, halt_s * NS_PER_S, cycle)


def _prices(rng: random.Random) -> dict[int, tuple[tuple[int, int], ...]]:
    prices = {}
    for governor in range(GOVERNORS):
        at, percent, steps = 0, 100, []
        for _ in range(rng.randrange(4)):
            at += rng.randrange(PRICE_GAP_NS, 2 * PRICE_GAP_NS)
            percent = percent * rng.randint(75, 125) // 100
            steps.append((at, percent))
        prices[governor] = tuple(steps)
    return prices


def _changes(rng: random.Random, ceilings: dict[str, int]) -> tuple[tuple[int, str, int], ...]:
    made = []
    for _ in range(rng.randrange(1, 4)):
        scope = rng.choice(sorted(ceilings))
        made.append((rng.randrange(20 * NS_PER_MINUTE), scope, max(1, int(ceilings[scope] * rng.uniform(0.2, 1.3)))))
    return tuple(sorted(made))


def _partitions(rng: random.Random) -> list[tuple[int, int, frozenset[int]]]:
    cut = []
    for _ in range(rng.randrange(1, 6)):
        begins = rng.randrange(25 * NS_PER_MINUTE)
        lasts = rng.choice((10, 60, 600, 2_000)) * rng.randrange(NS_PER_S // 2, 2 * NS_PER_S)
        cut.append((begins, begins + lasts, frozenset(rng.sample(range(GOVERNORS), rng.randint(1, GOVERNORS // 2)))))
    return cut


def _outages(rng: random.Random) -> list[tuple[int, int, frozenset[int]]]:
    begins = rng.randrange(20 * NS_PER_MINUTE)
    return [(begins, begins + rng.choice((15, 300, 2_000)) * NS_PER_S, frozenset(range(GOVERNORS)))]


def _kills(rng: random.Random) -> tuple[tuple[int, int, int], ...]:
    """Far enough apart that a reserve pays for each."""
    return tuple(
        (at + rng.randrange(5 * NS_PER_MINUTE), governor, rng.randint(1, DOWN_MAX_S) * NS_PER_S)
        for governor in rng.sample(range(GOVERNORS), rng.randint(1, GOVERNORS))
        for at in range(0, 30 * NS_PER_MINUTE, rng.choice((15, 30)) * NS_PER_MINUTE)
        if rng.random() < 0.6
    )


def _vanishes(rng: random.Random) -> tuple[tuple[int, int, int, int], ...]:
    gone = []
    for governor in rng.sample(range(GOVERNORS), rng.randint(1, 3)):
        at = rng.randrange(25 * NS_PER_MINUTE)
        ends = at + rng.choice((0, 60, 600, 3_600)) * NS_PER_S
        gone.append((at, governor, ends, ends + rng.randrange(20 * NS_PER_MINUTE)))
    return tuple(gone)


def reserve_ns(plan: RunPlan, at: int) -> int:
    """What the run's halt takes at most, if it begins now: the longer ago its last save, the longer."""
    part = (at - plan.starts) % plan.cycle_ns
    return plan.halt_ns * 3 // 10 + plan.halt_ns * 7 // 10 * part // plan.cycle_ns


def reserve_usd_micros(rate: int, ns: int) -> int:
    return -(-rate * RISE[0] * ns // (RISE[1] * NS_PER_HOUR)) + 2
