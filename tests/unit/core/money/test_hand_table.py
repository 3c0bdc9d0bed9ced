"""Whole runs worked out by hand, to the micro-dollar, and what every view tells of them: the difference is nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from governor.adapters.exporters.prometheus_metrics import METRICS
from governor.core.base.policy import Budget, Expected, PolicySet
from governor.core.base.units import MICROS_PER_USD, BootNs, MonoNs, UsdMicros, WallNs
from governor.core.engine.incidents import persist_incident
from governor.core.engine.run_forecast import outlook
from governor.core.events.inputs import OperatorHalt, PriceRead
from governor.core.money.lines import Lines
from governor.core.views.metrics import GovernorHealth, LagReading, take_snapshot
from governor.core.views.status import run_status
from governor.reports.terminal import closing_line, live_line
from tests.unit.core.engine.test_launched_command import launched, pass_time
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import hello, peer, play
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
    hourly: int | None = 3_600_000  # A tenth of a cent a second. None: no price is known at first.


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


def _priced_late(world: World) -> None:
    """Five of nine steps end before a price is known, at 6.5 s."""
    world.hear()
    steps(world, range(1, 6), began=2)
    until(world, 6.5)
    learn_price(world)
    steps(world, range(6, 10), began=7, first=6)
    until(world, 12)
    end(world)


def _priced_while_it_starts(world: World) -> None:
    """The price is known at 1 s, a second before the first step's end."""
    world.hear()
    until(world, 1)
    learn_price(world)
    steps(world, range(1, 10), began=2)
    until(world, 12)
    end(world)


def learn_price(world: World, since: WallNs | None = None) -> None:
    now, boot, wall = MonoNs(world.mono), BootNs(world.boot), WallNs(world.boot + world.wall_offset)
    world.play(PriceRead(now, boot, wall, UsdMicros(3_600_000), "x", "2026-11-01", since))


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
    Case("a price learned late", _priced_late, 5_500, 9 * STEP, 0, {"after_last_step": 2_000}, hourly=None),
    Case(
        "a price learned while it starts",
        _priced_while_it_starts,
        11_000,
        9 * STEP,
        0,
        {"start_up": 1_000, "after_last_step": 2_000},
        hourly=None,
    ),
    Case("a halt", _halted, 13_500, 9 * STEP, 0, {"start_up": 2_000, "halt": 3_000}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_view_tells_the_figure_of_the_hand(case: Case) -> None:
    lines = Lines(per_launch=(FEE,)) if case.fee else Lines()
    hourly = UsdMicros(case.hourly) if case.hourly is not None else None
    world = a_world(price_usd_micros_per_hour=hourly, lines=lines)
    case.play(world)
    world.tick()  # The views tell the spend of the last tick.
    waste = {"start_up": 0, "after_last_step": 0, "halt": 0, "trained_twice": 0} | case.waste
    # Of a stretch that has no price nobody knows what it cost, so it is unknown what all of it cost.
    all_in = case.spend * MICROS_PER_USD // case.trained if hourly is not None else None
    useful = case.spend * MICROS_PER_USD // (case.trained - case.repeated) if hourly is not None else None
    by_hand = (case.spend, all_in, useful, waste)
    row = stage_row(world)
    assert world.charged("llama") == case.spend
    assert {view: told for view, told in told_by(world).items() if told != by_hand} == {}
    assert (row.actual_usd_micros, row.wasted_tokens) == (case.spend, case.repeated)
    assert (row.wasted_usd_micros, row.wasted_by_cause) == (sum(waste.values()), waste)
    per_mtok = row.per_mtok_useful
    assert (int(per_mtok) if per_mtok is not None else None) == useful, "its price is that of tokens of progress"


def test_windows_before_the_price_was_known_have_none_in_any_view() -> None:
    """A window is four steps of 250,000 tokens. The price is learned at 10 s: in the middle of the third window."""
    world = a_world(price_usd_micros_per_hour=None)
    world.hear()
    big_steps(world, range(1, 11))
    until(world, 10.25)
    learn_price(world)
    big_steps(world, range(11, 16))
    status = shown_of(world)
    assert (status["usd_per_mtok"], status["usd_per_mtok_all_in"], status["drift_all_in_frac"]) == (None, None, None)
    assert status["window"]["usd_per_mtok"] is None
    assert "$ -/1M now" in live_line(status)
    assert "all-in price of its tokens unknown: for 10.0s no price was known" in closing_line(status, "ended")
    assert world.node.runs["llama"].run.usd_micros_per_mtok is None, "what an expression reads"
    big_steps(world, range(16, 25))
    status = shown_of(world)
    assert (micros(status["usd_per_mtok"]), micros(status["usd_per_mtok_steady"])) == (4_000, 4_000)
    assert status["usd_per_mtok_all_in"] is None
    until(world, 40)
    assert [bool(window.get("unpriced")) for window in world.windows] == [True, True, True, False, False, False]
    world.restart()
    world.tick()
    assert shown_of(world)["usd_per_mtok_all_in"] is None, "the next governor has forgotten it"


def test_a_price_that_reaches_back_to_the_start_makes_all_of_it_known() -> None:
    world = a_world(price_usd_micros_per_hour=None)
    world.hear()
    steps(world, range(1, 6), began=2)
    until(world, 6.5)
    learn_price(world, since=WallNs(world.wall_offset))
    steps(world, range(6, 10), began=7, first=6)
    until(world, 12)
    status = shown_of(world)
    assert micros(status["usd_per_mtok_all_in"]) == 12_000 * MICROS_PER_USD // (9 * STEP)
    assert status["usd_per_mtok"] is None, "the window has money of before it, too"


def test_time_of_a_command_that_waited_without_a_price_is_the_runs_that_takes_it_over() -> None:
    node = launched(ceiling=None)
    node.ledger.compute.metered = None
    pass_time(node, 10)
    now = node.ledger.charged_to
    play(node, PriceRead(MonoNs(now), now, node.wall(MonoNs(now)), UsdMicros(3_600_000), "x", "2026-11-01"))
    pass_time(node, 20, 11)
    play(node, hello(0, 20, run="other", world_size=1))
    assert node.runs["other"].history.unpriced_ns == now > 0


def big_steps(world: World, numbers: range) -> None:
    for number in numbers:
        steps(world, range(number, number + 1), number, number, tokens=250_000, tokens_total=number * 250_000)


def shown_of(world: World) -> dict[str, Any]:
    world.tick()
    return dict(run_status(world.node.runs["llama"], MonoNs(world.mono)))


Told = tuple[int, int | None, int | None, dict[str, int]]


def told_by(world: World) -> dict[str, Told]:
    """Spend, both prices of a million tokens, and waste by cause, as each view has them."""
    managed, now = world.node.runs["llama"], MonoNs(world.mono)
    status = run_status(managed, now)
    by_status: Told = (
        micros(status["spend_usd"]),
        maybe_micros(status["usd_per_mtok_all_in"]),
        maybe_micros(status["usd_per_mtok_useful"]),
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
        maybe_micros(shown["costgov_run_usd_per_mtok_all_in"].get(())),
        maybe_micros(shown["costgov_run_usd_per_mtok_useful"].get(())),
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


def maybe_micros(dollars: float | None) -> int | None:
    return micros(dollars) if dollars is not None else None


def micros(dollars: float) -> int:
    return round(dollars * MICROS_PER_USD)


def test_spend_that_no_token_has_bought_is_in_no_price() -> None:
    """The journal had lost all but the run's charges: $0.05. From there nine steps and 12 s, $0.012."""
    world = a_world()
    policy = world.node.policies.policies[0]
    plan = Expected(usd_micros_per_mtok_all_in=100_000)
    world.node.policies = PolicySet((replace(policy, expected=plan, budget=Budget(window_tokens=STEP)),), "digest")
    world.node.ledger.carry_in("llama", UsdMicros(50_000))
    _plain(world)
    world.tick()
    ahead = outlook(world.node.runs["llama"], MonoNs(world.mono))
    all_in = 12_000 * MICROS_PER_USD // (9 * STEP)
    assert (ahead.prices.all_in, ahead.prices.useful) == (all_in, all_in)
    assert ahead.drift_all_in_frac == pytest.approx(12_000 / 9 / STEP * MICROS_PER_USD / 100_000 - 1)
