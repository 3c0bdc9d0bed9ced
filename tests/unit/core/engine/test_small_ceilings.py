"""Ceilings of some minutes: what their halt may take of them, and when they are told to be met."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from governor.core.base.findings import Response
from governor.core.base.policy import Budget, HaltSettings, Mode, PolicySet
from governor.core.base.units import NS_PER_HOUR, NS_PER_MINUTE, NS_PER_S, DurationNs, UsdMicros, usd
from governor.core.engine import halt_plan
from governor.core.engine import step as engine
from governor.core.engine.halt_plan import halt_times, least_ceiling
from governor.core.engine.node import Node
from governor.core.events.checkpoints import NamedCheckpoint
from governor.core.events.effects import Alarm, Ask
from governor.core.events.inputs import TrainerExited
from governor.core.views.status import run_status
from tests.unit.core.engine.test_ceiling_forecast import a_tick, said, trained, with_ceiling
from tests.unit.core.engine.test_ceiling_forecast import started as of_tokens
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, peer, play, rule, tick

PRICE = usd(360)


def started(ceiling_usd: float, mode: Mode = Mode.ENFORCE, total_steps: int | None = None) -> Node:
    """The settings of the packaged policy, whose ceiling is enforced, on a machine that bills by the second."""
    node = make_node(price_usd_micros_per_hour=PRICE, cloud="none", granularity_ns=DurationNs(0))
    budget = Budget(ceiling_usd_micros=usd(ceiling_usd))
    policy = replace(
        node.policies.policies[0], budget=budget, halt=HaltSettings(), rules=(rule("budget", checkpoint="good"),),
        mode=mode,
    )  # fmt: skip
    engine.reload(node, PolicySet((policy,), "d"))
    play(node, tick(0), hello(0, 0, world_size=1, total_steps=total_steps))
    return node


def until_asked(node: Node, from_s: int = 1, limit_s: int = 40_000) -> int:
    """Train a step a second without a save. Returns the second at which the run is asked for its checkpoint."""
    for second in range(from_s, limit_s):
        if any(isinstance(effect, Ask) for effect in play(node, a_step(second, when=second), tick(second))):
            return second
    raise AssertionError("never asked")


@cache
def asked(ceiling_usd: float) -> tuple[Node, int]:
    """The node, and the second at which it asks: for tests that only look. Ten seconds a step to half of the time."""
    node, half_s = started(ceiling_usd), round(ceiling_usd * 1_800 / 360)
    for second in range(10, half_s, 10):
        assert not any(isinstance(effect, Ask) for effect in play(node, a_step(second, when=second), tick(second)))
    return node, until_asked(node, half_s)


@pytest.mark.parametrize("ceiling_usd", [5, 10, 60, 360, 2_000])
def test_less_than_a_fifth_of_a_ceiling_stays_unused_where_the_halt_takes_no_time(ceiling_usd: float) -> None:
    """$5 last 50 s at $360/h, $2,000 five hours and a half."""
    node, _ = asked(ceiling_usd)
    assert 0.8 * usd(ceiling_usd) < node.ledger.spend("llama") < usd(ceiling_usd)


@pytest.mark.parametrize("ceiling_usd", [3, 10, 60, 360, 2_000])
def test_the_halt_keeps_to_what_was_reserved_for_it(ceiling_usd: float) -> None:
    node, second = asked(ceiling_usd)
    managed = node.runs["llama"]
    assert managed.incident is not None
    plan = managed.incident.plan
    longest = plan.grace_ns + plan.term_grace_ns + plan.kill_grace_ns + NS_PER_S
    assert node.ledger.spend("llama") + PRICE * longest // NS_PER_HOUR <= usd(ceiling_usd) + PRICE // 3600, second


@pytest.mark.parametrize("ceiling_usd", [10, 60, 360])
def test_a_ceiling_is_met_when_it_was_told_to_be_met(ceiling_usd: float) -> None:
    """It was told at twice the time: the reserve grows with the work that is not saved yet."""
    node = started(ceiling_usd)
    for second in range(1, 21):
        play(node, a_step(second, when=second), tick(second))
    told_s = run_status(node.runs["llama"], at(20))["ceiling_in_s"]
    assert until_asked(node, 21) == pytest.approx(20 + told_s, abs=1)


@pytest.mark.parametrize("ceiling_usd", [10, 60, 360])
def test_it_is_told_before_the_first_step_too(ceiling_usd: float) -> None:
    node = started(ceiling_usd)
    for second in range(1, 6):
        play(node, tick(second))
    told_s = run_status(node.runs["llama"], at(5))["ceiling_in_s"]
    assert until_asked(node, 6) == pytest.approx(5 + told_s, abs=1)


@pytest.mark.parametrize("save_s", [0.5, 0.002, None])
def test_a_run_that_saves_meets_its_ceiling_in_the_interval_that_was_told(save_s: float | None) -> None:
    """Every 20 s. Told after 190 s of the 300 that $30 last: eight in ten are inside, and none far outside.

    However long training stands still for a save, and also where an asynchronous one tells no time at all.
    """
    inside = 0
    for tenth in range(20):
        node = started(30 + tenth / 10)  # A second longer each: every moment between two saves.
        run, told, asked_s = node.runs["llama"].run, [0.0, 0.0], 0
        for second in range(1, 400):
            saves = second % 20 == 0
            step = a_step(second, when=second, checkpoint_s=save_s if saves else None)
            if any(isinstance(effect, Ask) for effect in play(node, step, tick(second))):
                asked_s = second
                break
            if saves:
                run.name_last_good(NamedCheckpoint(second, None), at(second))
            if second == 190:
                told = run_status(node.runs["llama"], at(second))["ceiling_between_s"]
        assert 190 + told[0] - 2 <= asked_s <= 190 + told[1] + 3
        inside += told[0] - 0.5 <= asked_s - 190 <= told[1] + 0.5
    assert 13 <= inside <= 19


def told_from(node: Node, second: int) -> list[float]:
    return [second + s for s in run_status(node.runs["llama"], at(second))["ceiling_between_s"]]


@pytest.mark.parametrize("ceiling_usd", [30, 360])
@pytest.mark.parametrize("saved", ["never", "just before", "on the way"])
def test_before_a_rhythm_is_known_both_ends_are_told(ceiling_usd: float, saved: str) -> None:
    """After a fifth of its time, and after its first save: no save comes before, one comes just before, or between."""
    node = started(ceiling_usd)
    run, lasts_s = node.runs["llama"].run, round(ceiling_usd * 10)
    for second in range(1, lasts_s // 5):
        play(node, a_step(second, when=second), tick(second))
    early_s, late_s = told_from(node, lasts_s // 5 - 1)
    assert late_s - early_s >= lasts_s // 11, "the tenth that a save may take"
    first = {"never": None, "just before": int(early_s) - 1, "on the way": lasts_s // 2}[saved]
    for second in range(lasts_s // 5, lasts_s):
        if any(isinstance(effect, Ask) for effect in play(node, a_step(second, when=second), tick(second))):
            break
        if second == first:
            run.name_last_good(NamedCheckpoint(second, None), at(second))
            play(node, tick(second + 0.25))
            assert told_from(node, second)[1] == pytest.approx(late_s, abs=1), "one save has no rhythm"
        if saved == "just before" and second >= early_s:  # And once more each second: that is the latest.
            run.last_good_at = at(second)
    expected = {"never": early_s, "just before": late_s, "on the way": early_s}[saved]
    assert second == pytest.approx(expected, abs=1)


def test_of_a_log_the_moment_is_one_since_nobody_can_tell_of_a_save() -> None:
    node = started(30)
    for second in range(1, 60):
        play(node, a_step(second, when=second), tick(second))
    early_s, late_s = told_from(node, 59)
    node.runs["llama"].run.jsonl_only = True
    assert told_from(node, 59) == [early_s, early_s] != [early_s, late_s]


def test_a_rhythm_is_of_states_that_are_saved_however_often_each_is_named() -> None:
    """Two ranks name each, one of them when it connects anew; what an attempt began from is none of its own saves."""
    node = started(360)
    run = node.runs["llama"].run
    run.name_last_good(NamedCheckpoint(1, None, mono_ns=-5), at(0.5))
    for second in (100, 160, 220):
        for later in (0, 0.25, 3):
            run.name_last_good(NamedCheckpoint(second, None), at(second + later))
    assert list(run.saves.rhythm_ns) == [60 * NS_PER_S] * 2
    run.saves.new_attempt()
    run.name_last_good(NamedCheckpoint(900, None), at(900))
    assert list(run.saves.rhythm_ns) == [60 * NS_PER_S] * 2


def test_a_save_that_was_measured_to_take_longer_is_waited_for() -> None:
    node = started(10)
    node.runs["llama"].run.note_save(DurationNs(12 * NS_PER_S))
    until_asked(node)
    incident = node.runs["llama"].incident
    assert incident is not None
    assert incident.plan.grace_ns == 24 * NS_PER_S, "twice as long, and not a tenth of 100 s"


def test_a_ceiling_of_hours_gives_its_halt_what_the_policy_does() -> None:
    node, _ = asked(2_000)
    incident, settings = node.runs["llama"].incident, HaltSettings()
    assert incident is not None
    told = (incident.plan.grace_ns, incident.plan.term_grace_ns, incident.plan.kill_grace_ns)
    assert told == (settings.grace_ns, settings.term_grace_ns, settings.kill_grace_ns)
    assert settings.grace_ns == 10 * NS_PER_MINUTE


def test_a_group_of_small_ceilings_shortens_the_halt_of_each_member() -> None:
    """A cap of a group that is shown to the run counts as its own ceiling does."""
    node = started(2_000)
    policy, run = node.policies.policies[0], node.runs["llama"].run
    alone = halt_times(node.facts, policy, None, run, at(3_600))
    small = halt_times(node.facts, policy, 100 * NS_PER_S, run, at(3_600))
    assert small.whole_ns <= 100 * NS_PER_S * 17 // 100
    assert small.whole_ns < alone.whole_ns


def test_what_a_ceiling_must_be_above_is_enough() -> None:
    node = started(2_000)
    policy = node.policies.policies[0]
    needed = least_ceiling(node.facts, policy, usd("0.01"))
    assert needed > usd("0.01")
    above = UsdMicros(needed + 10_000)
    assert least_ceiling(node.facts, policy, above) < above


def test_a_halt_that_is_not_about_money_has_what_the_ceiling_has_left() -> None:
    """A save may take a tenth of the 1,000 s that $100 last, and $67 are left; of $40, 9 s more than the tenth are."""
    for ceiling_usd, grace_s in ((1_000, 329), (100, 329), (40, 48)):
        node = started(ceiling_usd)
        policy = node.policies.policies[0]
        rules = (*policy.rules, rule("nonfinite", checkpoint="suspect"))
        engine.reload(node, PolicySet((replace(policy, rules=rules),), "d2"))
        for second in range(1, 331):
            play(node, a_step(second, when=second), tick(second))
        play(node, a_step(331, when=330.1, loss=float("nan")))
        incident = node.runs["llama"].incident
        assert incident is not None
        plan = incident.plan
        assert plan.grace_ns // NS_PER_S == pytest.approx(grace_s, abs=2), ceiling_usd
        longest = plan.grace_ns + plan.term_grace_ns + plan.kill_grace_ns + NS_PER_S
        assert node.ledger.spend("llama") + PRICE * longest // NS_PER_HOUR <= usd(ceiling_usd)


def test_what_the_ceiling_has_left_ends_a_tick_early() -> None:
    """A frame's verdict comes up to a tick after the spend was counted. $40 at a dime a second, $3.00 of it spent."""
    node = started(40)
    play(node, *(tick(second) for second in range(1, 31)))
    managed = node.runs["llama"]
    room = usd(40) - usd(3) - (managed.run.reserve_usd_micros or 0)
    assert halt_plan._spare_ns(managed) == room * NS_PER_HOUR // PRICE - NS_PER_S // 4


def test_the_first_seconds_of_unsaved_work_let_no_reserve_grow() -> None:
    """Of a step a second without a save the halt waits for a second at least, and for a tenth of 100 s at most."""
    node = started(10)
    play(node, a_step(1, when=1), tick(1))
    grows = {second: halt_plan.reserve_growth(node.runs["llama"], at(1 + second)).most_ns for second in (0, 1, 3, 9)}
    assert grows == {0: 9 * NS_PER_S, 1: 9 * NS_PER_S, 3: 7 * NS_PER_S, 9: NS_PER_S}


@pytest.mark.parametrize("how", ["no rule", "it warns", "it is observed"])
def test_a_ceiling_that_halts_nothing_shortens_no_halt(how: str) -> None:
    node = started(10)
    policy = node.policies.policies[0]
    told = {"it warns": {"response": Response.WARN}, "it is observed": {"mode": Mode.OBSERVE}}.get(how)
    budgets = (rule("budget", **told),) if told is not None else ()
    changed = replace(policy, rules=(*budgets, rule("nonfinite", checkpoint="suspect")))
    engine.reload(node, PolicySet((changed,), "d2"))
    for second in range(1, 50):
        play(node, a_step(second, when=second), tick(second))
    play(node, a_step(50, when=49.1, loss=float("nan")))
    incident = node.runs["llama"].incident
    assert incident is not None
    assert incident.plan.grace_ns // NS_PER_S == 48
    assert incident.plan.term_grace_ns == HaltSettings().term_grace_ns


@pytest.mark.parametrize(
    ("ceiling_usd", "goal"), [(30, 258), (30, 270), (30, 279), (360, 3_240), (360, 3_348), (360, 3_492)]
)
def test_who_never_saves_is_warned_before_its_ceiling_halts_it_short_of_its_last_step(
    ceiling_usd: float, goal: int
) -> None:
    """A step a second, of which $30 last for 300: with a save just before, it would make all of them."""
    node, warned_at = started(ceiling_usd, total_steps=goal), None
    for second in range(1, goal + 1):
        effects = play(node, a_step(second, when=second, tokens=1_000, tokens_total=second * 1_000), tick(second))
        if warned_at is None and any(isinstance(one, Alarm) and one.name == "ceiling_ahead" for one in effects):
            warned_at = second
        if any(isinstance(one, Ask) for one in effects):
            break
    else:
        raise AssertionError("never asked")
    assert warned_at is not None
    assert warned_at < second


@pytest.mark.parametrize("ceiling_usd", [10, 300])
def test_a_ceiling_that_is_enforced_under_a_policy_that_observes_keeps_no_more_back(ceiling_usd: float) -> None:
    """As `--ceiling` is. The bounds of a save that nobody shortens are minutes: it halted at a quarter of $300."""
    node = started(ceiling_usd, Mode.OBSERVE)
    assert until_asked(node) == asked(ceiling_usd)[1]


@pytest.mark.parametrize("start_s", [1, 60])
def test_what_a_start_has_cost_is_no_part_of_what_was_left(start_s: int) -> None:
    """10.5M of 100M tokens in 42 s; the next launch's first step takes a second, or a minute. Then the ceiling falls.

    357 s are left, $0.357, so it lands at $0.401 or $0.460. Of $0.48 its halt leaves $0.411.
    """
    node = of_tokens("0.70")
    trained(node, range(1, 43), 0)
    play(node, TrainerExited(at(42.5), "llama", 0), hello(0, 42.5, world_size=1, attempt="a2", peer=peer(200)))
    assert trained(node, range(43, 44), 42.5, step_s=start_s) == []
    with_ceiling(node, "0.48")
    assert bool(said(play(node, a_tick(43 + start_s)))) is (start_s == 60)
