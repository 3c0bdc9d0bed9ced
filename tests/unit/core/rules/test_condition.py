"""Rules of several triggers, and when a rule may speak: what holds for any series of readings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.base.findings import Finding, Reading, Response, Verdict
from governor.core.base.policy import ALL, AT_ONCE, Member, Mode, Persistence, PersistenceKind, Policy, Rule, WarmUp
from governor.core.base.units import NS_PER_S, DurationNs, MonoNs
from governor.core.engine import verdicts
from governor.core.engine.managed_run import ManagedRun
from governor.core.events.effects import Alarm, Effect, Record
from governor.core.events.inputs import Event, Step
from governor.core.rules.condition import All, evidence_of
from governor.core.rules.evaluate import ATTEMPT, Rules
from governor.core.rules.triggers.nonfinite import Nonfinite
from governor.core.runs import intake
from governor.core.runs.state import Run
from tests.unit.core.engine.test_step import make_node

QUIET, FIRING, UNKNOWN = Reading.QUIET, Reading.FIRING, Reading.UNKNOWN
READINGS = st.sampled_from(list(Reading))
NAN = Rule("nan", "nonfinite", {}, AT_ONCE, Response.HALT, Mode.ENFORCE, "suspect")


class Says(Nonfinite):
    """A trigger that reads what it is given, and counts how often it was asked."""

    def __init__(self, reading: Reading, **evidence: object) -> None:
        self.finding = Finding(reading, f"is_{reading.value}", reading.value, evidence)
        self.asked = 0

    def judge(self, at: MonoNs, run: Run) -> Finding:
        self.asked += 1
        return self.finding


def a_run(**labels: str) -> Run:
    return Run("r", 0, MonoNs(0), labels=labels)


def together(*readings: Reading) -> Finding:
    return All([(f"t{index}", Says(reading)) for index, reading in enumerate(readings)]).judge(MonoNs(0), a_run())


def feed(book: Rules, *events: Event) -> list[str]:
    told = []
    for event in events:
        book.observe(event)
        told += [verdict.rule for verdict in book.judge(event.at, event)]
    return told


def a_step(number: int, loss: float) -> Step:
    return Step(MonoNs(number * NS_PER_S), None, "r", 0, number, loss=loss)


# --- several triggers -----------------------------------------------------------------------------------------


@given(st.lists(READINGS, min_size=1, max_size=8))
def test_all_fires_when_all_fire_and_is_quiet_when_any_is(readings: list[Reading]) -> None:
    expected = FIRING if set(readings) == {FIRING} else QUIET if QUIET in readings else UNKNOWN
    assert together(*readings).reading is expected


@given(st.lists(READINGS, min_size=1, max_size=7), st.integers(0, 7))
def test_another_member_never_makes_a_rule_fire(readings: list[Reading], where: int) -> None:
    """One that is quiet or unknown keeps the rule from firing; one that fires leaves it as it was."""
    alone = together(*readings).reading
    for more in Reading:
        joined = together(*readings[:where], more, *readings[where:]).reading
        assert joined is not FIRING or (alone is FIRING and more is FIRING)


def test_each_member_is_asked_although_the_first_is_quiet() -> None:
    members = [Says(QUIET), Says(UNKNOWN), Says(FIRING)]
    All([("t", member) for member in members]).judge(MonoNs(0), a_run())
    assert [member.asked for member in members] == [1, 1, 1]


def test_the_evidence_is_that_of_all_members_and_as_old_as_the_oldest() -> None:
    finding = All([("a", Says(FIRING, step=9, x=1)), ("b", Says(FIRING, step=7))]).judge(MonoNs(0), a_run())
    assert finding.evidence == {
        "all": [
            {"trigger": "a", "reason": "is_firing", "step": 9, "x": 1},
            {"trigger": "b", "reason": "is_firing", "step": 7},
        ],
        "step": 7,
    }
    assert (finding.reason, finding.text) == ("is_firing_and_is_firing", "firing; and firing")


def test_what_is_unknown_is_said_by_name() -> None:
    assert together(FIRING, UNKNOWN).reason == "t1_is_unknown"


def test_the_evidence_of_one_trigger_is_found_alone_and_among_others() -> None:
    alone = Verdict("r", "p", "n", "hang", Response.HALT, True, Finding(FIRING, evidence={"limit_s": 9}), 1, "good")
    both = All([("nonfinite", Says(FIRING)), ("hang", Says(FIRING, limit_s=9))]).judge(MonoNs(0), a_run())
    for verdict in (alone, replace(alone, trigger="all", finding=both)):
        assert (evidence_of(verdict, "hang") or {})["limit_s"] == 9
        assert evidence_of(verdict, "budget") is None


def test_state_of_other_members_starts_fresh() -> None:
    book = Rules(Policy("p", rules=(replace(NAN, members=(Member("nonfinite", {}),)),)), a_run())
    feed(book, a_step(1, float("nan")))
    saved = json.loads(json.dumps(book.snapshot(), allow_nan=False))
    other = Rules(Policy("p", rules=(replace(NAN, members=(Member("hang", {}),)),)), a_run())
    other.restore(saved)
    assert other.snapshot()["nan"]["state"] == Rules(other.policy, a_run()).snapshot()["nan"]["state"]


# --- the runs a rule is for -----------------------------------------------------------------------------------


def test_a_rule_for_other_runs_is_neither_judged_nor_shown() -> None:
    red = replace(NAN, name="red", match={"team": ("red",)})
    for team, told in (("blue", ["nan"]), ("red", ["nan", "red"])):
        run = a_run(team=team)
        book = Rules(Policy("p", rules=(NAN, red)), run)
        assert feed(book, a_step(1, float("nan"))) == told
        assert list(book.findings) == told


def test_a_rule_that_is_for_other_runs_by_now_has_nothing_left_to_act_on() -> None:
    """Else the end of an operator's hold would halt the run by a rule that its owner has taken off it."""
    nan = replace(NAN, match={"team": ("red",)})
    run = a_run(team="red")
    book = Rules(Policy("p", rules=(nan,)), run)
    assert feed(book, a_step(1, float("nan"))) == ["nan"]
    book = book.with_policy(Policy("p", rules=(replace(nan, match={"team": ("blue",)}),)))
    assert book.judge(MonoNs(2 * NS_PER_S)) == []
    assert book.reported() == book.standing() == ()
    run.labels = {"team": "blue"}
    assert feed(book, a_step(3, float("nan"))) == ["nan"], "for it again, it tells anew"


# --- over restarts and reloads --------------------------------------------------------------------------------


def test_a_snapshot_of_before_warm_ups_is_taken_up() -> None:
    two = replace(NAN, persistence=replace(AT_ONCE, kind=PersistenceKind.STEPS, need=2, of=2))
    run = a_run()
    book = Rules(Policy("p", rules=(two,)), run)
    assert feed(book, a_step(1, float("nan"))) == []
    saved = json.loads(json.dumps(book.snapshot(), allow_nan=False))
    del saved[ATTEMPT], saved["nan"]["told_at"]  # As the version before wrote it.
    assert saved["nan"]["meaning"] == ["nonfinite", "steps", 2, 2, "halt", "enforce"]
    fresh = Rules(book.policy, run)
    fresh.restore(saved)
    assert feed(fresh, a_step(2, float("nan"))) == ["nan"]


def test_a_reload_keeps_the_cool_down_and_the_warm_up() -> None:
    rule = replace(NAN, response=Response.WARN, cooldown_ns=DurationNs(30 * NS_PER_S))
    run = a_run()
    book = Rules(Policy("p", rules=(rule,)), run)
    assert feed(book, a_step(1, float("nan")), a_step(2, 1.0)) == ["nan"]
    late = replace(rule, name="late", warmup=WarmUp(PersistenceKind.DURATION, 3 * NS_PER_S))
    book = book.with_policy(Policy("p", rules=(rule, late)))
    assert feed(book, a_step(3, float("nan"))) == ["late"], "its warm-up began with the attempt"


# --- observing ------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from([1.0, float("nan"), float("inf")]), max_size=30), st.sampled_from(list(Response)))
@pytest.mark.parametrize("members", [(), (Member("nonfinite", {}), Member("nonfinite", {"skipped_streak": 9}))])
def test_observing_touches_nothing_and_tells_everything(
    members: tuple[Member, ...], losses: list[float], response: Response
) -> None:
    """Whatever a rule would do, observed it is a record, and an alarm unless it only watches."""
    rule = replace(NAN, trigger=ALL if members else NAN.trigger, members=members, response=response)
    steps = [a_step(index, loss) for index, loss in enumerate(losses)]
    enforced = feed(Rules(Policy("p", rules=(rule,)), a_run()), *steps)

    policy, run, node = Policy("p", rules=(rule,)).observing(), a_run(), make_node()
    managed = ManagedRun(run, policy, Rules(policy, run))
    effects: list[Effect] = []
    for step in steps:
        managed.rules.observe(step)
        effects += verdicts.judge(node, managed, step.at, step)
    records = [effect for effect in effects if isinstance(effect, Record)]
    alarms = [effect for effect in effects if isinstance(effect, Alarm)]
    assert len(records) + len(alarms) == len(effects)
    assert [record.data["rule"] for record in records] == enforced, "it decides all the same"
    assert len(alarms) == (0 if response is Response.WATCH else len(records))
    assert managed.incident is None


def a_log_run() -> Run:
    return Run("r", 0, MonoNs(0), jsonl_only=True)


def a_log(book: Rules, run: Run, *numbers: int) -> list[int]:
    """The steps at which a rule that always fires has told, for the lines of a log."""
    told = []
    for place, number in enumerate(numbers, 1):
        event = Step(MonoNs(place * NS_PER_S), None, "r", 0, number, loss=float("nan"))
        intake.apply_step(run, None, event)
        told += [number] * len(feed(book, event))
    return told


@pytest.mark.parametrize(
    ("steps", "first"),
    [
        (range(1, 100), 51),
        (range(10, 2_000, 10), 60),
        (range(5_000, 50_000, 500), 5_500),
        ([1, 1, 1, 10, 10, 50, 50, 51], 51),
        ([10, 20, 10, 20, 30, 40, 50], 50),
        ([1, 20_000, 20_010, 20_060], 20_060),
    ],
)
def test_a_warm_up_in_steps_is_of_steps_of_training(steps: Sequence[int], first: int) -> None:
    """However many of them a log prints. A step far ahead is of another training."""
    run = a_log_run()
    book = Rules(Policy("p", rules=(replace(NAN, warmup=WarmUp(PersistenceKind.STEPS, 50)),)), run)
    assert a_log(book, run, *steps) == [first]


def test_a_warm_up_in_steps_goes_on_over_a_restart_in_a_log() -> None:
    run, policy = a_log_run(), Policy("p", rules=(replace(NAN, warmup=WarmUp(PersistenceKind.STEPS, 50)),))
    book = Rules(policy, run)
    assert a_log(book, run, 10, 20, 30, 40) == []
    saved, again = json.loads(json.dumps(book.snapshot())), a_log_run()
    restarted = Rules(policy, again)
    restarted.restore(saved)
    assert a_log(restarted, again, 50, 60, 70) == [70], "how many steps the first line stands for is not known"


def test_a_for_in_steps_counts_those_that_are_reported() -> None:
    run = a_log_run()
    book = Rules(Policy("p", rules=(replace(NAN, persistence=Persistence(PersistenceKind.STEPS, 3, 3)),)), run)
    assert a_log(book, run, 10, 20, 30, 40) == [30]


def test_a_warm_up_goes_on_over_a_restart_of_the_governor() -> None:
    """The restarted governor takes its own return for the attempt's begin, and has seen none of its tokens."""
    time = replace(NAN, warmup=WarmUp(PersistenceKind.DURATION, 20 * NS_PER_S))
    tokens = replace(NAN, name="tokens", warmup=WarmUp(PersistenceKind.TOKENS, 1000))
    steps = replace(NAN, name="steps", warmup=WarmUp(PersistenceKind.STEPS, 9))
    book = Rules(Policy("p", rules=(time, tokens, steps)), run := a_run())
    run.attempt_step, run.tokens_total, run.step_tokens = 9, 5000, 900
    feed(book, a_step(9, 1.0))
    run.tokens_total = 5000 + 100
    feed(book, a_step(10, 1.0))
    later = a_run()
    later.attempt_at, later.tokens_total, later.step_tokens = MonoNs(15 * NS_PER_S), 5100, 900
    fresh = Rules(book.policy, later)
    fresh.restore(json.loads(json.dumps(book.snapshot(), allow_nan=False)))
    assert feed(fresh, a_step(19, float("nan"))) == []
    later.tokens_total, later.attempt_step = 5101, 10
    assert feed(fresh, a_step(20, float("nan"))) == ["nan", "tokens", "steps"]
