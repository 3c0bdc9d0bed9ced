from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.base.findings import Finding, Reading, Response
from governor.core.base.identity import ConnectionId, Peer, ProcessId
from governor.core.base.policy import ALL, AT_ONCE, Budget, Member, Mode, Persistence, PersistenceKind, Policy, Rule
from governor.core.base.units import NS_PER_S, BootNs, MonoNs, UsdMicros, WallNs
from governor.core.events.inputs import Hello, Step, Tick
from governor.core.rules.condition import PersistenceTimer
from governor.core.rules.evaluate import Rules
from governor.core.rules.trigger import defaults
from governor.core.rules.triggers import load
from governor.core.runs import intake
from governor.core.runs.state import Run

QUIET, FIRING, UNKNOWN = Reading.QUIET, Reading.FIRING, Reading.UNKNOWN
TEN_SECONDS = Persistence(PersistenceKind.DURATION, 10 * NS_PER_S)


def a_run() -> Run:
    return Run("r", 0, MonoNs(0))


def a_rule(**changes: object) -> Rule:
    rule = Rule(
        "nan", "nonfinite", {}, Persistence(PersistenceKind.STEPS, 1, 1), Response.HALT, Mode.ENFORCE, "suspect"
    )
    return replace(rule, **changes)  # type: ignore[arg-type]


def a_policy(*rules: Rule) -> Policy:
    return Policy("p", rules=rules or (a_rule(),))


def a_step(number: int, loss: float | None, rank: int = 0) -> Step:
    return Step(MonoNs(number * NS_PER_S), None, "r", rank, number, loss=loss)


def seconds(timer: PersistenceTimer, *readings: tuple[float, Reading]) -> list[bool]:
    return [timer.add(Finding(reading), MonoNs(int(at * NS_PER_S)), None, a_run()) for at, reading in readings]


def steps(timer: PersistenceTimer, *readings: tuple[int, Reading]) -> list[bool]:
    return [timer.add(Finding(reading), MonoNs(0), a_step(step, 1.0), a_run()) for step, reading in readings]


def feed(book: Rules, event: Step) -> list[str]:
    book.observe(event)
    return [verdict.rule for verdict in book.judge(event.at, event)]


# --- holds ----------------------------------------------------------------------------------------------------


def test_a_duration_is_reached_at_its_end_and_not_a_tick_before() -> None:
    assert seconds(PersistenceTimer(TEN_SECONDS), (0, FIRING), (9.75, FIRING), (10, FIRING)) == [False, False, True]


def test_quiet_starts_a_duration_anew() -> None:
    readings = [(0, FIRING), (9, FIRING), (9.5, QUIET), (10, FIRING), (19.75, FIRING), (20, FIRING)]
    assert seconds(PersistenceTimer(TEN_SECONDS), *readings) == [False, False, False, False, False, True]


def test_unknown_neither_counts_nor_resets() -> None:
    readings = [(0, FIRING), (6, FIRING), (7, UNKNOWN), (99, UNKNOWN), (100, FIRING), (103, FIRING), (104, FIRING)]
    assert seconds(PersistenceTimer(TEN_SECONDS), *readings) == [False, False, False, False, False, False, True]


def test_unknown_alone_never_holds() -> None:
    assert not any(seconds(PersistenceTimer(TEN_SECONDS), *[(at, UNKNOWN) for at in range(1000)]))
    assert not any(seconds(PersistenceTimer(AT_ONCE), *[(at, UNKNOWN) for at in range(10)]))


def test_steps_of_unknown_reading_are_no_steps_of_the_window() -> None:
    timer = PersistenceTimer(Persistence(PersistenceKind.STEPS, 2, 2))
    assert steps(timer, (1, FIRING), (2, UNKNOWN), (3, FIRING)) == [False, False, True]


def test_ranks_of_one_step_are_one_step() -> None:
    timer = PersistenceTimer(Persistence(PersistenceKind.STEPS, 2, 2))
    assert steps(timer, (1, FIRING), (1, FIRING), (1, FIRING), (2, QUIET), (2, FIRING)) == [False] * 4 + [True]


def test_two_of_three_steps() -> None:
    timer = PersistenceTimer(Persistence(PersistenceKind.STEPS, 2, 3))
    assert steps(timer, (1, FIRING), (2, QUIET), (3, QUIET), (4, FIRING), (5, FIRING)) == [False] * 4 + [True]


@given(st.integers(1, 6), st.integers(0, 4), st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=40))
def test_steps_agree_with_looking_at_the_window(need: int, more: int, readings: list[tuple[int, bool]]) -> None:
    """A step that the rank comes back to is trained again; only a line that follows at once is of the same step."""
    timer, last = PersistenceTimer(Persistence(PersistenceKind.STEPS, need, need + more)), -1
    window: dict[int, bool] = {}
    for step, fired in readings:
        if step != last:
            window.pop(step, None)
        window[step], last = window.get(step, False) or fired, step
        window = dict(list(window.items())[-(need + more) :])
        assert steps(timer, (step, FIRING if fired else QUIET)) == [sum(window.values()) >= need]


_REPORTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12), st.sampled_from([FIRING, QUIET, UNKNOWN])))


@given(st.integers(1, 3), st.integers(0, 3), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12))), _REPORTS)
def test_what_was_quiet_before_the_first_firing_decides_nothing(
    need: int, more: int, quiet: list[tuple[int, int]], then: list[tuple[int, int, Reading]]
) -> None:
    """A calm rule is not asked: it must count as one that was, also when ranks report late and steps go back."""
    hold = Persistence(PersistenceKind.STEPS, need, need + more)
    asked, calm = PersistenceTimer(hold), PersistenceTimer(hold)
    for rank, step in quiet:
        assert not asked.add(Finding(QUIET), MonoNs(0), a_step(step, 1.0, rank), a_run())
    for rank, step, reading in then:
        answers = [timer.add(Finding(reading), MonoNs(0), a_step(step, 1.0, rank), a_run()) for timer in (asked, calm)]
        assert answers[0] is answers[1]


def test_steps_trained_again_and_well_are_not_in_a_row_with_those_that_were_ill() -> None:
    """Set back by two steps: both ranks train them again. A step is ill when one of them finds it so."""
    timer = PersistenceTimer(Persistence(PersistenceKind.STEPS, 3, 3))
    ill = [(0, 10, FIRING), (1, 10, FIRING), (0, 11, FIRING), (1, 11, FIRING)]
    well = [(0, 10, QUIET), (1, 10, QUIET), (1, 11, QUIET), (0, 11, QUIET)]
    then = [(0, 12, FIRING), (1, 12, FIRING), (0, 13, QUIET), (1, 13, FIRING), (1, 14, QUIET)]
    told = [
        timer.add(Finding(reading), MonoNs(0), a_step(step, 1.0, rank), a_run())
        for rank, step, reading in ill + well + then
    ]
    assert told == [False] * len(told)
    assert timer.add(Finding(FIRING), MonoNs(0), a_step(14, 1.0, 0), a_run())


def test_a_frame_stamped_before_the_last_tick_does_no_harm() -> None:
    assert seconds(PersistenceTimer(TEN_SECONDS), (0, FIRING), (5, FIRING), (4, FIRING), (10, FIRING)) == [
        False
    ] * 3 + [True]


def test_tokens_are_counted_between_firing_readings() -> None:
    timer, run, held = PersistenceTimer(Persistence(PersistenceKind.TOKENS, 1000)), a_run(), []
    for tokens, reading in ((0, FIRING), (900, FIRING), (5000, UNKNOWN), (6000, FIRING), (6100, FIRING)):
        run.tokens_total = tokens
        held.append(timer.add(Finding(reading), MonoNs(0), None, run))
    assert held == [False, False, False, False, True]


def test_without_a_token_count_a_hold_in_tokens_is_not_reached() -> None:
    assert not any(
        seconds(PersistenceTimer(Persistence(PersistenceKind.TOKENS, 1)), *[(at, FIRING) for at in range(10)])
    )


@pytest.mark.parametrize(
    "hold", [TEN_SECONDS, Persistence(PersistenceKind.STEPS, 3, 5), Persistence(PersistenceKind.TOKENS, 10)]
)
def test_a_timer_survives_json(hold: Persistence) -> None:
    timer = PersistenceTimer(hold)
    seconds(timer, (0, FIRING), (6, FIRING))
    timer.add(Finding(FIRING), MonoNs(7 * NS_PER_S), a_step(1, 1.0), a_run())
    other = PersistenceTimer(hold)
    other.restore(json.loads(json.dumps(timer.snapshot())))
    assert other.snapshot() == timer.snapshot()


def test_downtime_is_not_counted() -> None:
    timer = PersistenceTimer(TEN_SECONDS)
    seconds(timer, (0, FIRING), (6, FIRING))
    other = PersistenceTimer(TEN_SECONDS)
    other.restore(timer.snapshot())
    assert seconds(other, (100, FIRING), (103, FIRING), (104, FIRING)) == [False, False, True]


# --- the book -------------------------------------------------------------------------------------------------


def test_a_verdict_says_what_the_rule_says() -> None:
    book = Rules(a_policy(a_rule(mode=Mode.OBSERVE)), a_run())
    event = a_step(7, float("nan"))
    book.observe(event)
    (verdict,) = book.judge(event.at, event)
    assert (verdict.policy, verdict.rule, verdict.trigger) == ("p", "nan", "nonfinite")
    assert (verdict.response, verdict.enforced, verdict.checkpoint) == (Response.HALT, False, "suspect")
    assert (verdict.step, verdict.finding.reason) == (7, "loss_nan")


def test_every_rule_is_judged_although_another_one_fired() -> None:
    slow = a_rule(name="slow", trigger="throughput_collapse")
    book = Rules(a_policy(a_rule(), slow), a_run())
    feed(book, a_step(1, float("nan")))
    assert book.findings["slow"].reason != "not_judged_yet"


def test_a_rule_that_was_never_judged_is_unknown() -> None:
    assert Rules(a_policy(), a_run()).findings["nan"].reading is UNKNOWN


def test_standing_lasts_as_long_as_the_condition() -> None:
    book = Rules(a_policy(), a_run())
    feed(book, a_step(1, float("nan")))
    assert [verdict.rule for verdict in book.standing()] == ["nan"]
    feed(book, a_step(2, 1.0))
    assert book.standing() == ()


def test_a_reloaded_policy_keeps_the_state_of_unchanged_rules() -> None:
    two_steps = Persistence(PersistenceKind.STEPS, 2, 2)
    book = Rules(a_policy(a_rule(persistence=two_steps)), a_run())
    feed(book, a_step(1, float("nan")))
    book = book.with_policy(a_policy(a_rule(persistence=two_steps), a_rule(name="new", trigger="hang")))
    assert feed(book, a_step(2, float("nan"))) == ["nan"]
    assert feed(book.with_policy(book.policy), a_step(3, float("nan"))) == [], "the same episode"


def test_time_in_which_a_log_cannot_be_read_makes_no_step_last_longer() -> None:
    """Else the last line before an outage of the file system would halt the run after five minutes of it."""
    run = a_run()
    run.jsonl_only = True
    params = {"run": NS_PER_S, "attempt": 0}
    runs = a_rule(name="runs", trigger="runtime", params=params, persistence=TEN_SECONDS)
    book, told = Rules(a_policy(a_rule(persistence=TEN_SECONDS), runs), run), []
    assert feed(book, a_step(1, float("nan"))) == []
    for second in range(2, 60):
        run.stream.lost_at = MonoNs(2 * NS_PER_S) if second < 40 else None
        at = second * NS_PER_S
        book.observe(Tick(MonoNs(at), BootNs(at), WallNs(at)))
        told += [(verdict.rule, second) for verdict in book.judge(MonoNs(at))]
    assert told == [("runs", 12), ("nan", 50)], "what is not of steps is known all the same"


def test_time_in_which_no_steps_are_trained_makes_none_of_them_last_longer() -> None:
    """Else some slow steps before a long evaluation halt a healthy run."""
    run = a_run()
    run.jsonl_only = True
    book, told = Rules(a_policy(a_rule(persistence=TEN_SECONDS)), run), []
    assert feed(book, a_step(1, float("nan"))) == []
    for second in range(2, 60):
        run.stream.phase = "eval" if second < 40 else "train"
        told += [(verdict.rule, second) for verdict in book.judge(MonoNs(second * NS_PER_S))]
    assert told == [("nan", 50)]


def test_a_rank_that_goes_on_training_pauses_nothing_whatever_it_last_said() -> None:
    run = a_run()
    peer = Peer(ProcessId(7, 1, "b"), 0)
    rank = intake.apply_hello(run, Hello(MonoNs(0), ConnectionId(1), peer, 1, "r", "a", 0, 0, 1))
    rank.phase, rank.phase_at = "checkpoint", MonoNs(5)
    assert intake.is_paused(run)
    rank.step_at = MonoNs(5)
    assert not intake.is_paused(run)


@pytest.mark.parametrize("touched", [{"source": "edited"}, {"budget": Budget(UsdMicros(9))}])
def test_a_reload_takes_nothing_of_what_triggers_have_seen(touched: dict[str, object]) -> None:
    """Else whoever reloads more often than a limit is long keeps a hung run alive, and paid for."""
    run = a_run()
    run.jsonl_only, run.step, run.step_at = True, 1, MonoNs(0)
    limit = {"start_limit_without_beats": 35 * 60 * NS_PER_S}  # Of a log that has shown no rhythm.
    hang = a_rule(name="hang", trigger="hang", params=defaults(load()["hang"].KEYS) | limit, persistence=AT_ONCE)
    members = (Member("hang", hang.params), Member("runtime", {"run": NS_PER_S}))
    both = replace(hang, name="both", trigger=ALL, params={}, members=members)
    book, told = Rules(a_policy(hang, both), run), []
    for second in range(36 * 60):
        at = second * NS_PER_S
        tick = Tick(MonoNs(at), BootNs(at), WallNs(at))
        book.observe(tick)
        told += [(verdict.rule, second) for verdict in book.judge(tick.at)]
        if second % 600 == 599:
            policy = a_policy(hang, both)
            is_touched = book.policy != policy
            book = book.with_policy(policy if is_touched else replace(policy, **touched))  # type: ignore[arg-type]
    assert told == [("hang", 35 * 60), ("both", 35 * 60)]


def test_a_rule_that_begins_to_enforce_reports_the_episode_again() -> None:
    book = Rules(a_policy(a_rule(mode=Mode.OBSERVE)), a_run())
    assert feed(book, a_step(1, float("nan"))) == ["nan"]
    book = book.with_policy(a_policy(a_rule(mode=Mode.ENFORCE)))
    assert feed(book, a_step(2, float("nan"))) == ["nan"]


def test_a_raised_ceiling_is_judged_at_once() -> None:
    run = a_run()
    run.spend_usd_micros, run.spend_rate_usd_micros_per_hour = UsdMicros(10), UsdMicros(1)
    rule = a_rule(name="budget", trigger="budget", persistence=AT_ONCE)
    low = Policy("p", budget=Budget(UsdMicros(9)), rules=(rule,))
    book = Rules(low, run)
    assert [verdict.rule for verdict in book.judge(MonoNs(0))] == ["budget"]
    book = book.with_policy(replace(low, budget=Budget(UsdMicros(11))))
    assert book.judge(MonoNs(1)) == []
    run.spend_usd_micros = UsdMicros(11)
    assert [verdict.rule for verdict in book.judge(MonoNs(2))] == ["budget"]


def test_a_snapshot_of_other_rules_is_left_alone() -> None:
    book = Rules(a_policy(a_rule(name="gone"), a_rule(name="other", trigger="hang", persistence=AT_ONCE)), a_run())
    feed(book, a_step(1, float("nan")))
    saved = json.loads(json.dumps(book.snapshot(), allow_nan=False))
    fresh = Rules(a_policy(a_rule(), a_rule(name="other")), a_run())
    fresh.restore(saved)
    assert feed(fresh, a_step(2, float("nan"))) == ["nan", "other"]


@pytest.mark.parametrize("trigger", sorted(load()))
def test_state_of_another_version_starts_fresh(trigger: str) -> None:
    book = Rules(a_policy(a_rule(trigger=trigger, persistence=AT_ONCE)), a_run())
    feed(book, a_step(1, 2.0))
    saved = json.loads(json.dumps(book.snapshot(), allow_nan=False))
    saved["nan"]["state"] = {"ranks": [[0, {"what": "another version kept"}, 5]], "recent": 7}
    fresh = Rules(book.policy, a_run())
    fresh.restore(saved)
    assert json.loads(json.dumps(fresh.snapshot())) == json.loads(json.dumps(Rules(book.policy, a_run()).snapshot()))
