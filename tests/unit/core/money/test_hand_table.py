"""Whole runs worked out by hand, to the micro-dollar, and what every view tells of them: the difference is nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from governor.adapters.exporters.prometheus_metrics import METRICS
from governor.core.base.units import MICROS_PER_USD, MonoNs, UsdMicros
from governor.core.engine.incidents import persist_incident
from governor.core.events.inputs import OperatorHalt, PriceRead
from governor.core.money.lines import Lines
from governor.core.views.metrics import GovernorHealth, LagReading, take_snapshot
from governor.core.views.status import run_status
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import hello, peer
from tests.unit.core.money.test_waste import FEE, a_world, end, stage_row, steps, until


@dataclass(frozen=True)
class Case:
    """What a run did, and by hand: its spend and its tokens, and the waste by cause. In micro-dollars."""

    name: str
    play: Callable[[World], None]
    spend: int
    trained: int
    repeated: int = 0
    waste: dict[str, int] = field(default_factory=dict)
    fee: bool = False
    hourly: int = 3_600_000  # A tenth of a cent a second.


def _plain(world: World) -> None:
    """2 s to the first step's end, 8 more steps of a second, 2 s to the end."""
    world.hear()
    steps(world, range(1, 10), began=2)
    until(world, 12)
    end(world)


def _restarted(world: World) -> None:
    """As above; 5 s later another launch: 3 s to its first step's end; it trains steps 6 to 9 again, and 10 to 12."""
    _plain(world)
    until(world, 17)
    world.hear(attempt="a2", peer=peer(200))
    until(world, 17.25)
    steps(world, range(6, 13), began=20)
    until(world, 27)
    end(world)


def _dearer(world: World) -> None:
    """The price doubles after the fifth of nine steps, at 6 s."""
    world.hear()
    steps(world, range(1, 6), began=2)
    now, boot, wall = MonoNs(world.mono), world.node.ledger.charged_to, world.node.metered_wall
    world.play(PriceRead(now, boot, wall, UsdMicros(7_200_000), "x", "2026-11-01"))
    steps(world, range(6, 10), began=7, first=6)
    until(world, 12)
    end(world)


def _beside_another(world: World) -> None:
    """Two runs hold the node for all the time: half of it each."""
    world.hear(run="other", peer=peer(300), connection=hello(7).connection)
    _plain(world)


def _without_a_governor(world: World) -> None:
    """Steps go on, 5 to 14, while no governor runs; it comes back at 14 s and hears of 15."""
    world.hear()
    steps(world, range(1, 5), began=2)
    until(world, 5.25)
    world.pass_time("run", 8_750_000_000)
    world.restart()
    world.tick()
    world.hear()
    steps(world, range(15, 18), began=16, first=15)
    until(world, 20)
    end(world)


def _halted(world: World) -> None:
    """A person halts it 0.5 s after its ninth step; the processes are not gone 3 s later."""
    world.hear()
    steps(world, range(1, 10), began=2)
    until(world, 10.5)
    world.play(OperatorHalt(MonoNs(world.mono), "llama", uid=0, reason="enough"))
    until(world, 13.5)


STEP = 10_000  # Tokens.
CASES = [
    Case("seconds times price", _plain, 12_000, 9 * STEP, waste={"start_up": 2_000, "after_last_step": 2_000}),
    Case(
        "an odd price",
        _plain,
        12 * 98_320_000 // 3_600,
        9 * STEP,
        # 2 s at $98.32/h are $0.054622…; each amount is what the ledger had at that moment, rounded down.
        waste={"start_up": 54_622, "after_last_step": 327_733 - 273_111},
        hourly=98_320_000,
    ),
    Case(
        "another launch",
        _restarted,
        12_000 + 10_000,
        16 * STEP,
        4 * STEP,
        # Of the steps that are trained again the first one is part of the start.
        {"start_up": 2_000 + 3_000, "after_last_step": 2_000 + 1_000, "trained_twice": 3_000},
    ),
    Case("a price that doubles", _dearer, 6_000 + 12_000, 9 * STEP, 0, {"start_up": 2_000, "after_last_step": 4_000}),
    Case("a fee", _plain, 17_000, 9 * STEP, 0, {"start_up": 7_000, "after_last_step": 2_000}, fee=True),
    Case("beside another run", _beside_another, 6_000, 9 * STEP, 0, {"start_up": 1_000, "after_last_step": 1_000}),
    Case("downtime", _without_a_governor, 20_000, 17 * STEP, 0, {"start_up": 2_000, "after_last_step": 2_000}),
    Case("a halt", _halted, 13_500, 9 * STEP, 0, {"start_up": 2_000, "halt": 3_000}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_view_tells_the_figure_of_the_hand(case: Case) -> None:
    lines = Lines(per_launch=(FEE,)) if case.fee else Lines()
    world = a_world(price_usd_micros_per_hour=UsdMicros(case.hourly), lines=lines)
    case.play(world)
    world.tick()  # The views tell the spend of the last tick.
    waste = {"start_up": 0, "after_last_step": 0, "halt": 0, "trained_twice": 0} | case.waste
    all_in = case.spend * MICROS_PER_USD // case.trained
    useful = case.spend * MICROS_PER_USD // (case.trained - case.repeated)
    by_hand = (case.spend, all_in, useful, waste)
    row = stage_row(world)
    assert world.charged("llama") == case.spend
    assert {view: told for view, told in told_by(world).items() if told != by_hand} == {}
    assert (row.actual_usd_micros, row.wasted_tokens) == (case.spend, case.repeated)
    assert (row.wasted_usd_micros, row.wasted_by_cause) == (sum(waste.values()), waste)
    per_mtok = row.actual_per_mtok
    assert per_mtok is not None
    assert int(per_mtok) == useful, "its price is that of tokens of progress"


Told = tuple[int, int | None, int | None, dict[str, int]]


def told_by(world: World) -> dict[str, Told]:
    """Spend, both prices of a million tokens, and waste by cause, as each view has them."""
    managed, now = world.node.runs["llama"], MonoNs(world.mono)
    status = run_status(managed, now)
    by_status: Told = (
        micros(status["spend_usd"]),
        micros(status["usd_per_mtok_all_in"]),
        micros(status["usd_per_mtok_useful"]),
        {cause: micros(amount) for cause, amount in status["wasted_usd_by_cause"].items()},
    )
    snapshot = take_snapshot(world.node, now, GovernorHealth(), LagReading(), "")
    shown = {
        metric.name: {labels[5:]: value for labels, value in metric.samples(snapshot) if labels[0] == "llama"}
        for metric in METRICS
        if metric.name.startswith("costgov_run_")
    }
    by_metrics: Told = (
        micros(shown["costgov_run_spend_usd_total"][()]),
        micros(shown["costgov_run_all_in_usd_per_million_tokens"][()]),
        micros(shown["costgov_run_useful_usd_per_million_tokens"][()]),
        {cause: micros(amount) for (cause,), amount in shown["costgov_run_wasted_usd_total"].items()},
    )
    told = {"status": by_status, "metrics": by_metrics}
    if managed.incident is not None:
        kept = persist_incident(world.node, managed).snapshot
        told["incident"] = (
            kept["spend_usd_micros"], kept["usd_micros_per_mtok_all_in"], kept["usd_micros_per_mtok_useful"],
            dict(kept["wasted_usd_micros"]),
        )  # fmt: skip
    return told


def micros(dollars: float) -> int:
    return round(dollars * MICROS_PER_USD)
