"""What bought no training: by hand, exactly, and the same in every view."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from governor.adapters.exporters.prometheus_metrics import METRICS
from governor.core.base.policy import Budget
from governor.core.base.units import MICROS_PER_USD, NS_PER_S, DurationNs, MonoNs, UsdMicros
from governor.core.engine.incident_json import incident_of, incident_snapshot
from governor.core.engine.node_journal import persist
from governor.core.events.inputs import ProcessesSeen, TrainerExited
from governor.core.events.machine import PriceRead
from governor.core.events.operators import OperatorHalt
from governor.core.money.charges import Line, LineKind, Unit
from governor.core.money.expected import ExpectedCost, WindowRow, row_of
from governor.core.money.lines import Lines
from governor.core.money.reports.cost import Sum
from governor.core.money.reports.stage_row import StageRow
from governor.core.money.reports.stage_table import StageTally
from governor.core.money.token_windows import TokenMeter, Window
from governor.core.money.waste import STAGES_MAX, WASTE, Seen, SpendSplit, SpentOn
from governor.core.views.metrics import GovernorHealth, LagReading, take_snapshot
from governor.core.views.status import run_status
from governor.reports.terminal import closing_line
from governor.text.incident_money import spent_text
from tests.sweeps import share_of
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import a_step, hello, make_node, peer
from tests.unit.cost.stages_file import spent

FEE = Line(LineKind.FIXED, "launch fee", Unit.PIECE, 5_000, "contract", "2026-11-01")
# $3.60/h is 1,000 micro-dollars a second: a tenth of a cent.
A_SECOND = 1_000


def a_world(**facts: Any) -> World:
    facts = {"price_usd_micros_per_hour": UsdMicros(3_600_000), "cloud": "none"} | facts
    world = World(make_node(budget=Budget(), **facts))
    world.tick()
    return world


def until(world: World, seconds: float) -> None:
    """Ticks of a quarter second, as the daemon's."""
    while world.mono < round(seconds * NS_PER_S):
        world.pass_time("run", NS_PER_S // 4)
        world.tick()


def steps(world: World, numbers: range, began: int, first: int = 1, run: str = "llama", **changes: Any) -> None:
    """A step of 10,000 tokens each second. The first one ends at `began`."""
    for place, number in enumerate(numbers):
        until(world, began + place)
        said = {"run": run, "attempt_step": first + place, "tokens": 10_000, "tokens_total": number * 10_000} | changes
        world.play(a_step(number, when=began + place, **said))


def wasted(world: World, run: str = "llama") -> dict[str, int]:
    told = world.node.runs[run].history.split.wasted_usd_micros()
    assert told is not None
    return told


def said(start_up: int = 0, after_last_step: int = 0, halt: int = 0, trained_twice: int = 0) -> dict[str, int]:
    """Seconds by cause, as micro-dollars."""
    seconds = {"start_up": start_up, "after_last_step": after_last_step, "halt": halt, "trained_twice": trained_twice}
    return {cause: A_SECOND * one for cause, one in seconds.items()}


def end(world: World, run: str = "llama") -> None:
    world.play(TrainerExited(MonoNs(world.mono), run, exit_code=0))


def test_start_training_and_end_by_hand() -> None:
    """Ten seconds to the first step's end, nine more steps, five seconds to the exit: $0.024 in all."""
    world = a_world()
    world.hear()
    steps(world, range(1, 11), began=10)
    until(world, 24)
    assert wasted(world) == said(start_up=10), "what comes after the last step may yet become a step"
    end(world)
    assert wasted(world) == said(start_up=10, after_last_step=5)
    assert world.node.runs["llama"].history.split.by_cause()[SpentOn.TRAINING] == 9 * A_SECOND
    assert world.charged("llama") == 24 * A_SECOND


def test_a_run_that_never_got_past_its_old_mark_has_wasted_it_in_every_view() -> None:
    """50,000 tokens, a crash, and 30,000 of them again: no window closes."""
    world = a_world()
    world.hear()
    steps(world, range(1, 6), began=1)
    until(world, 8)
    world.hear(attempt="a2", peer=peer(200))
    until(world, 10)
    steps(world, range(1, 4), began=11)
    until(world, 13.25)
    # 1 s to the first step, 3 s after the fifth, 3 s to the first of the second attempt; its next two steps are 2 s.
    assert wasted(world) == said(start_up=1 + 3, after_last_step=3, trained_twice=2)
    every_view_tells(world, tokens=30_000)


def test_over_a_crash_of_the_governor_nothing_changes() -> None:
    world = a_world()
    world.hear()
    steps(world, range(1, 6), began=3)
    until(world, 8)
    world.pass_time("run", 4 * NS_PER_S)  # Nobody meters. The run trains on.
    world.restart()
    world.tick()
    world.hear()
    steps(world, range(14, 16), began=14, first=12)
    until(world, 17)
    end(world)
    assert wasted(world) == said(start_up=3, after_last_step=2)
    assert world.charged("llama") == 17 * A_SECOND


def test_a_halt_is_waste_from_its_verdict_on() -> None:
    world = a_world()
    world.hear()
    steps(world, range(1, 6), began=2)
    until(world, 6.25)
    world.play(OperatorHalt(MonoNs(world.mono), "llama", uid=0, reason="enough"))
    until(world, 10)
    assert wasted(world) == {**said(start_up=2), "halt": 3_750}
    every_view_tells(world, tokens=0)


def test_a_price_that_changes_and_a_fee_leave_the_sum_exact() -> None:
    world = a_world(lines=Lines(per_launch=(FEE,)))
    world.hear()
    steps(world, range(1, 4), began=4)
    until(world, 7)
    now, wall = MonoNs(world.mono), world.node.metered_wall
    world.play(PriceRead(now, world.node.ledger.charged_to, wall, UsdMicros(7_200_000), "x", "2026-11-01"))
    until(world, 9)
    end(world)
    # Half a cent for the launch and four seconds to the first step's end, two of training, then one second at the old
    # price and two at twice as much.
    assert wasted(world) == said(start_up=5 + 4, after_last_step=1 + 2 * 2)
    assert world.charged("llama") == (5 + 11) * A_SECOND


def test_the_fee_of_another_attempt_is_for_its_start() -> None:
    world = a_world(lines=Lines(per_launch=(FEE,)))
    world.hear()
    steps(world, range(1, 4), began=1)
    until(world, 5)
    world.hear(attempt="a2", peer=peer(200))
    until(world, 6)
    end(world)
    assert wasted(world) == said(start_up=5 + 1 + 5 + 1, after_last_step=2)


def test_two_runs_share_the_node_and_each_has_its_own_waste() -> None:
    world = a_world()
    world.hear()
    world.hear(run="other", peer=peer(300), connection=hello(7).connection)
    steps(world, range(1, 5), began=2)
    until(world, 10)
    end(world)
    end(world, "other")
    assert wasted(world) == {cause: amount // 2 for cause, amount in said(start_up=2, after_last_step=5).items()}
    assert wasted(world, "other") == {cause: amount // 2 for cause, amount in said(start_up=10).items()}


def every_view_tells(world: World, tokens: int) -> None:
    managed, now = world.node.runs["llama"], MonoNs(world.mono)
    figure, by_cause = sum(wasted(world).values()), wasted(world)
    status = run_status(managed, now)
    assert status["wasted_usd"] == figure / MICROS_PER_USD
    assert status["wasted_usd_by_cause"] == {cause: amount / MICROS_PER_USD for cause, amount in by_cause.items()}
    assert status["tokens_wasted"] == tokens
    assert f"wasted ${figure / MICROS_PER_USD:.4f} (" in closing_line(status, "ended")
    metrics = take_snapshot(world.node, now, GovernorHealth(), LagReading(), "")
    [metric] = [one for one in METRICS if one.name == "costgov_run_wasted_usd_total"]
    assert {labels[-1]: value for labels, value in metric.samples(metrics)} == status["wasted_usd_by_cause"]
    assert metric.labels[-1] == "spent_on", "not the causes of costgov_run_time_usd_total"
    row = stage_row(world)
    assert (row.wasted_usd_micros, row.wasted_tokens) == (figure, tokens)
    assert row.wasted_by_cause == by_cause
    world.play(OperatorHalt(now, "llama", uid=0, reason="to look at"))
    assert managed.incident is not None
    kept = json.loads(json.dumps(incident_snapshot(world.node, managed.incident)))
    assert kept["wasted_usd_micros"] == by_cause
    assert incident_of(kept).wasted_usd_micros == by_cause
    assert f"${figure / MICROS_PER_USD:.4f} of it wasted" in spent_text(kept)


def test_no_more_is_trained_twice_than_was_trained() -> None:
    """A count of repeated tokens that is ahead of the trained ones takes the steps' money once."""
    split = SpendSplit(first_step_at=1, step_at=1, counted_usd_micros=0)
    split.count(Seen(900, lambda _: 900, None, MonoNs(0), MonoNs(1), MonoNs(2), trained_tokens=10, repeated_tokens=30))
    assert split.by_cause() == {SpentOn.TRAINED_TWICE: 900}


def test_the_windows_that_have_closed_are_not_counted_again_with_the_open_one() -> None:
    """The run's snapshot is older than its windows: its open window began at 0, and the first has closed since."""
    tally = StageTally()
    tally.enter_window(
        "r", WindowRow("s", "a1", Window(0, 1_000_000, DurationNs(NS_PER_S), UsdMicros(5), 0), ExpectedCost())
    )
    tally.enter_open("r", "s", TokenMeter(progress_tokens=1_200_000))
    assert [(row.stage, row.tokens) for row in tally.rows()] == [("s", 1_200_000)]


def test_a_ceiling_is_used_by_what_the_run_spent_in_every_stage() -> None:
    """$4 in the first stage and $6 in the second, under one ceiling of $20."""
    tally, plan = StageTally(), ExpectedCost(ceiling_usd_micros=UsdMicros(20_000_000))
    for stage, hours, start in (("one", 4, 0), ("two", 6, 1_000_000)):
        for one in spent("r", stage, "1.00", hours):
            tally.enter_charges(Sum(one, 1))
        window = Window(start, start + 1_000_000, DurationNs(NS_PER_S), UsdMicros(hours * MICROS_PER_USD), 0)
        tally.enter_window("r", WindowRow(stage, "a1", window, plan))
    used = {row.stage: row.used for row in tally.rows()}
    assert used["two"] == Fraction(1, 2)


def stage_row(world: World, stage: str | None = None) -> StageRow:
    return next(row for row in stage_rows(world) if row.tokens and stage in (None, row.stage))


def stage_rows(world: World) -> list[StageRow]:
    """As `costgov cost stages` reads the journal."""
    world.take([persist(world.node, MonoNs(world.mono))])
    tally = StageTally()
    for charge in (one for one in world.charges.values() if one.payer.run == "llama"):
        tally.enter_charges(Sum(charge, 1))
    for data in world.windows:  # Of the one run that trains.
        tally.enter_window("llama", row_of(data))
    kept = world.runs["llama"]
    tally.enter_open("llama", kept["stage"], TokenMeter.restored(kept["tokens"], same_boot=False))
    tally.enter_split("llama", SpendSplit.restored(kept["spend_split"]))
    return tally.rows()


ACTS = st.one_of(
    st.tuples(st.just("run"), st.integers(1, 3 * NS_PER_S)),
    st.tuples(st.just("restart"), st.integers(0, 30 * NS_PER_S)),
    st.tuples(st.just("again"), st.integers(0, 2)),  # A new attempt, in another stage perhaps.
    st.tuples(st.just("step"), st.integers(0, 12)),
    st.tuples(st.just("exit"), st.just(0)),
    st.tuples(st.just("halt"), st.just(0)),
    st.tuples(st.just("price"), st.integers(1_000_000, 100_000_000)),
)


@settings(max_examples=share_of(300), deadline=None)
@given(st.lists(ACTS, max_size=60))
def test_training_and_all_causes_add_up_to_the_spend(acts: list[tuple[str, int]]) -> None:
    """At each tick, over restarts of the run and of the governor, by stage too, and no cause ever loses money."""
    world, before, attempts = a_world(lines=Lines(per_launch=(FEE,))), dict[SpentOn, int](), 0
    for act, amount in [*acts, ("exit", 0)]:
        now = MonoNs(world.mono)
        match act:
            case "run":
                world.pass_time("run", amount)
            case "restart":
                world.pass_time("run", amount)
                world.restart()
            case "again":
                attempts += 1
                stage = None if amount == 0 else f"stage{amount}"
                world.hear(attempt=f"a{attempts}", peer=peer(1000 + attempts), stage=stage)
            case "step":
                total = 10_000 * (amount + 1)
                world.play(a_step(amount + 1, when=now / NS_PER_S, tokens=10_000, tokens_total=total))
            case "exit":
                world.play(TrainerExited(now, "llama", exit_code=1))
            case "halt":
                world.play(OperatorHalt(now, "llama", uid=0, reason="enough"))
            case "price":
                boot, wall = world.node.ledger.charged_to, world.node.metered_wall
                world.play(PriceRead(now, boot, wall, UsdMicros(amount), "x", "2026-11-01"))
        world.tick()
        if "llama" not in world.node.runs:
            continue
        split = world.node.runs["llama"].history.split
        assert sum(split.by_cause().values()) == world.node.ledger.spend("llama")
        told = SpendSplit.restored(json.loads(json.dumps(split.snapshot())))
        assert told == split
        after = split.by_cause()
        if act != "restart":  # What no commit took along is counted anew, by what is known then.
            assert all(after.get(cause, 0) >= amount for cause, amount in before.items() if cause in WASTE)
        before = after
    world.take([persist(world.node, MonoNs(world.mono), *world.node.runs.values())])
    by_stage = world.node.runs["llama"].history.split.of_stages() if "llama" in world.node.runs else {}
    assert sum(sum(told.values()) for told in by_stage.values()) == world.charged("llama")


def test_a_journal_without_causes_has_spend_that_is_untold() -> None:
    world = a_world()
    world.hear()
    steps(world, range(1, 4), began=1)
    until(world, 4)
    world.take([persist(world.node, MonoNs(world.mono))])
    world.runs["llama"] = {key: value for key, value in world.runs["llama"].items() if key != "spend_split"}
    world.restart()
    world.tick()
    world.hear()
    until(world, 6)
    end(world)
    by_cause = world.node.runs["llama"].history.split.by_cause()
    assert by_cause == {SpentOn.UNTOLD: 4 * A_SECOND, SpentOn.AFTER_LAST_STEP: 2 * A_SECOND}


def test_more_stages_than_are_kept_are_summed() -> None:
    split = SpendSplit()
    for number in range(2 * STAGES_MAX):
        split.count(Seen(number + 1, int, stage=f"stage{number}", has_ended=True))
    assert len(split.by_stage) == STAGES_MAX
    assert split.by_cause() == {SpentOn.START_UP: 2 * STAGES_MAX}


def test_of_a_step_that_ends_after_the_verdict_the_halt_pays_from_the_verdict_on() -> None:
    """The first step ends at 2 s, the verdict is at 3 s, and the step that was under way ends at 4 s."""
    split = SpendSplit()

    def spent_at(at: MonoNs) -> int:
        return at * A_SECOND // NS_PER_S

    first, verdict, last = (MonoNs(second * NS_PER_S) for second in (2, 3, 4))
    split.count(Seen(2 * A_SECOND, spent_at, first_step_at=first, step_at=first))
    split.count(Seen(5 * A_SECOND, spent_at, first_step_at=first, step_at=last, halting_since=verdict))
    assert split.by_cause() == {
        SpentOn.START_UP: 2 * A_SECOND, SpentOn.TRAINING: A_SECOND, SpentOn.HALT: 2 * A_SECOND,
    }  # fmt: skip


def test_frames_of_a_halt_that_is_closed_are_valued_at_nothing_more() -> None:
    """A step that is read a second after the last tick: nobody pays for that second."""
    world = a_world(can_stop=False)
    world.hear()
    steps(world, range(1, 6), began=2)
    until(world, 6.25)
    world.play(OperatorHalt(MonoNs(world.mono), "llama", uid=0, reason="enough"))
    until(world, 25)
    managed = world.node.runs["llama"]
    incident, meter = managed.incident, managed.history.meter
    assert incident is not None
    assert meter is not None
    world.play(ProcessesSeen(MonoNs(world.mono), incident.incident_id, ()))
    assert incident.is_closed
    spent = world.node.ledger.spend("llama")
    assert managed.run.spend_rate_usd_micros_per_hour
    world.play(a_step(6, when=26, run="llama", attempt_step=6, tokens=10_000, tokens_total=60_000))
    assert (meter.progress_tokens, meter.step_usd_micros) == (60_000, spent)


# --- a governor that is killed ------------------------------------------------------------------------------------


def committed_at_15_s() -> tuple[World, dict[str, Any]]:
    """A run of 14 steps of a second, and what its journal has of it."""
    world = a_world()
    world.hear()
    steps(world, range(1, 15), began=1)
    until(world, 15)
    world.take([persist(world.node, MonoNs(world.mono), *world.node.runs.values())])
    return world, dict(world.runs)


def test_what_was_trained_after_the_last_commit_is_no_waste_of_a_governor_that_was_killed() -> None:
    """Committed at 15 s. It is killed at 18 s, with its command, and a minute later the next launch begins."""
    world, kept = committed_at_15_s()
    steps(world, range(15, 18), began=15)
    until(world, 18)
    world.runs = kept  # What was committed since is not.
    world.pass_time("run", 60 * NS_PER_S)
    world.restart()
    world.play(TrainerExited(MonoNs(world.mono), "llama", None))
    world.tick()
    world.hear(attempt="a2", peer=peer(900))
    world.tick()
    causes = world.node.runs["llama"].history.split.by_cause()
    assert wasted(world)["after_last_step"] <= A_SECOND, "from the last step that the journal has to its commit"
    assert causes[SpentOn.UNTOLD] == 3 * A_SECOND
    assert sum(causes.values()) == world.node.ledger.spend("llama")


def test_what_was_trained_meanwhile_is_training_where_the_attempt_goes_on() -> None:
    world, kept = committed_at_15_s()
    until(world, 18)
    world.runs = kept
    world.restart()
    world.hear()
    steps(world, range(18, 22), began=18, first=18)
    end(world)
    causes = world.node.runs["llama"].history.split.by_cause()
    assert SpentOn.UNTOLD not in causes
    assert wasted(world) == said(start_up=1)
