"""Most ticks of a quiet run are left out: what is told and shown must be what every tick would have told and shown."""

from __future__ import annotations

import random
from typing import Final

import pytest

from governor.core.base.findings import Reading, Response
from governor.core.base.policy import (
    ALL,
    AT_ONCE,
    Budget,
    Expected,
    Member,
    Mode,
    Persistence,
    PersistenceKind,
    Policy,
    Rule,
    WarmUp,
)
from governor.core.base.units import NS_PER_S, DurationNs, usd
from governor.core.rules.trigger import defaults
from governor.core.rules.triggers import load
from governor.timeline.player import Player
from governor.timeline.series import play
from tests.sweeps import share_of

# The seeds of each kind. Its answer, made too late, fails some of them.
SEEDS: Final = range(share_of(6))
LINES: Final = 16
_GPUS: Final = ("gpus 0.9 0.005", "gpus 0.0 0.0", "gpus", "steps 12 every 1s", "quiet 5m", "quiet 130s")
# The kinds that say until when they are steady, and the lines that matter to each.
ABOUT: Final = {
    "budget": ("money spend=1 rate=20", "money spend=9 reserve=1 rate=40", "money spend=1"),
    "gpu_starvation": _GPUS,
    "hang": (
        "quiet 5m",
        "steps 12 every 1s",
        "blind 4s",
        "blind {s}s",
        "phase checkpoint",
        "restart",
        "stand {s}s in_step fetch",
        "stand {s}s 0: in_step 1: in_step fetch",
    ),
    "log_stalled": (
        "steps 12 every 1s",
        "steps 12 every 7s",
        "quiet 5m",
        "quiet 9m",
        "blind 4s",
        "blind {s}s",
        "phase checkpoint",
        "phase train",
        "restart",
    ),
    "memory_pressure": (
        "memory 1 of 64",
        "memory 60 of 64",
        "gpus 0.9 0.9",
        "quiet 10m",
        "quiet 45s",
        "steps 2 every 1s mem_allocated_bytes=80000000000",
    ),
    "node_idle": _GPUS,
    "restart_loop": (*["attempt"] * 6, "hello", "quiet 130s", "quiet 10m"),
    "silence": _GPUS,
    "spot_notice": ("spot terminate 110s", "spot none", "quiet 5m"),
    "unsaved_work": ("steps 12 every 1s", "saved", "quiet 5m", "money spend=1 rate=20"),
    "usd_per_mtok": ("steps 40 every 1s tokens=1000", "money spend=1 rate=20", "money spend=9 rate=20", "quiet 130s"),
}
DURATIONS_S: Final = (1, 6, 20, 45, 130)
FOR_RANKS: Final = (
    "attempt", "stand {s}s", "stand {s}s in_step last_hook=comm:all_reduce", "stand {s}s 0: phase=eval 1: in_step",
    "stand {s}s 0: silent 1: in_step", "stand {s}s phase=checkpoint", "work {s}s", "lose 1", "hello", "bye 0", "saved",
)  # fmt: skip
FOR_BOTH: Final = (
    "steps 12 every 1s loss=2.0 tokens=1000 mem_allocated_bytes=80000000000", "steps 3 every 7s loss=2.0/nan tokens=9",
    "steps 2 every 40s loss=2.0", "quiet {s}s", "quiet 5m", "quiet {s}s", "blind {s}s", "restart", "rewind 1",
    "phase eval", "phase train", "phase checkpoint", "gpus 0.9 0.005", "gpus 0.0 0.0", "gpus 0.5 absent", "gpus",
    "memory 1 of 64", "memory 60 of 64", "spot terminate 110s", "spot none", "hold {s}s", "money spend=1 rate=20",
    "money spend=9 reserve=1 rate=40", "money spend=2", "money spend=2 rate=90 accrues",
)  # fmt: skip


# Of `hang` alone.
FETCHES: Final = (
    "stand 130s 0: in_step 1: fetch", "stand 200s 0: device_wait=wait 1: fetch fetched=70.3s",
    "stand {s}s 0: in_step 1: fetch starts=1", "stand 200s 0: in_step fetched=70.3s 1: fetch starts=2",
    "steps 12 every 1s", "steps 2 every 2.1s", "restart",
)  # fmt: skip


class EveryTick(Player):
    """Plays every tick."""

    def _steady_until(self) -> int:
        return self.now


def params_of(rng: random.Random, kind: str) -> dict[str, object]:
    """With limits that a short history reaches."""
    params = defaults(load()[kind].KEYS)
    for key in load()[kind].KEYS:
        if key.kind == "duration" and rng.random() < 0.8:
            params[key.name] = max(key.parsed_least or 0, rng.choice(DURATIONS_S) * NS_PER_S)
        elif key.kind == "count" and rng.random() < 0.8:
            params[key.name] = max(int(key.parsed_least or 0), rng.choice([1, 2, 4]))
    return params


def a_rule(rng: random.Random, name: str, kind: str) -> Rule:
    both = (kind, rng.choice(["nonfinite", "unsaved_work", "hang"]))
    members = tuple(Member(one, params_of(rng, one)) for one in both) if rng.random() < 0.2 else ()
    kind = ALL if members else kind
    holds = [
        Persistence(PersistenceKind.STEPS, 1, 1),
        Persistence(PersistenceKind.STEPS, 2, 4),
        Persistence(PersistenceKind.DURATION, rng.choice(DURATIONS_S) * NS_PER_S),
        Persistence(PersistenceKind.TOKENS, 2000),
    ]
    warmups = [None, None, None, WarmUp(PersistenceKind.DURATION, 60 * NS_PER_S), WarmUp(PersistenceKind.STEPS, 5)]
    return Rule(
        name, kind, {} if members else params_of(rng, kind), rng.choice(holds), rng.choice(list(Response)),
        rng.choice(list(Mode)), "good", members=members, warmup=rng.choice(warmups),
        cooldown_ns=DurationNs(rng.choice([0, 0, 90]) * NS_PER_S),
    )  # fmt: skip


def shown(player: Player) -> dict[str, tuple[Reading, str]]:
    """Texts tell the time at the last tick that was played."""
    return {rule: (finding.reading, finding.reason) for rule, finding in player.findings().items()}


@pytest.mark.parametrize(("kind", "seed"), [(kind, seed) for kind in ABOUT for seed in SEEDS])
def test_nothing_is_missed_moved_or_made_by_leaving_out_ticks(kind: str, seed: int) -> None:
    rng = random.Random(f"{kind} {seed}")
    policy = Policy(
        "p",
        rules=tuple(a_rule(rng, f"rule {index}", one) for index, one in enumerate((kind, kind, "nonfinite"))),
        budget=Budget(ceiling_usd_micros=usd("10")),
        expected=Expected(usd_micros_per_mtok=usd("1")),
        halts_per_day_max=2,
    )
    is_log = seed % 2 == 1 and kind != "restart_loop"
    known = FOR_BOTH if is_log else FOR_BOTH + FOR_RANKS
    lines = [rng.choice(rng.choice([known, ABOUT[kind]])) for _ in range(LINES)]
    lines = [line.format(s=rng.choice(DURATIONS_S)) for line in lines if not (is_log and line == "attempt")]
    start = ["steps 20 every 1s loss=2.0"] if is_log else ["hello", "steps 20 every 1s loss=2.0"]
    assert_alike(policy, [*start, *lines], log=is_log)


@pytest.mark.parametrize("seed", range(share_of(3)))
def test_a_rank_that_sleeps_in_its_data_is_found_at_the_same_tick(seed: int) -> None:
    rng = random.Random(f"fetch {seed}")
    policy = Policy("p", rules=tuple(a_rule(rng, f"rule {index}", "hang") for index in range(2)), halts_per_day_max=9)
    lines = [rng.choice(rng.choice([FOR_RANKS, FETCHES, FETCHES])).format(s=rng.choice(DURATIONS_S)) for _ in range(24)]
    assert_alike(policy, ["hello", "steps 20 every 1s loss=2.0", *lines])


def assert_alike(policy: Policy, lines: list[str], *, log: bool = False) -> None:
    """Play every tick, and as few as possible."""
    recorded = [rule.name for rule in policy.rules]
    every = EveryTick(policy, 2, 2, log=log, recorded=recorded)
    few = Player(policy, 2, 2, log=log, recorded=recorded)
    for line in lines:
        play(every, line)
        play(few, line)
        assert few.verdicts == every.verdicts, line
        assert few.history == every.history, line
        assert shown(few) == shown(every), line


class Counted(Player):
    ticks = 0

    def _tick(self, at: int) -> None:
        self.ticks += 1
        super()._tick(at)


def played(kind: str, lines: list[str], *, log: bool = False) -> tuple[list[str], int]:
    """The verdicts of this trigger with its defaults, and how many ticks they took."""
    rule = Rule(kind, kind, defaults(load()[kind].KEYS), AT_ONCE, Response.HALT, Mode.ENFORCE, "good")
    player = Counted(Policy("p", rules=(rule,), halts_per_day_max=1), 1, 1, log=log)
    for line in lines:
        play(player, line)
    return [str(verdict) for verdict in player.verdicts], player.ticks


def test_a_quiet_night_takes_few_ticks() -> None:
    told, ticks = played("hang", ["steps 30 every 10s", "quiet 10h"], log=True)
    assert told == ["40m hang overdue_step halt"]
    assert ticks < 100


def test_what_holds_a_halt_back_ends_in_time() -> None:
    held, held_ticks = played("nonfinite", ["hello", "hold 1h", "steps 1 every 2s loss=nan", "quiet 2h"])
    assert held == ["2s nonfinite loss_nan held", "1h nonfinite loss_nan halt"]
    once = "steps 1 every 2s loss=nan"
    broken, broken_ticks = played("nonfinite", ["hello", once, "attempt", once, "quiet 26h"])
    assert broken == ["2s nonfinite loss_nan halt", "4s nonfinite loss_nan breaker", "24h2s nonfinite loss_nan halt"]
    assert max(held_ticks, broken_ticks) < 100


@pytest.mark.parametrize(("blind", "overdue_at"), [("4s", "40m"), ("6s", "45m6.25s")])
def test_the_governor_was_blind_for_no_longer_than_it_was(blind: str, overdue_at: str) -> None:
    told, _ = played("hang", ["steps 30 every 10s", "quiet 5m", f"blind {blind}", "quiet 1h"], log=True)
    assert told == [f"{overdue_at} hang overdue_step halt"]
