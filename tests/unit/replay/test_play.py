"""Logs that are already written, on a clock that they drive: who decides is the daemon's own engine."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any

import pytest

from governor.core.base.policy import Policy
from governor.core.base.units import NS_PER_S
from governor.policies.parse import load_policies
from governor.replay.play import Replay
from trainer_shim.wire import head

NAN = {"step": 3, "loss": math.nan}


def policy(*rules: str, mode: str = "enforce") -> Policy:
    text = f'[policy]\nname = "p"\nmode = "{mode}"\n' + "".join(f"[[rule]]\n{rule}\n" for rule in rules)
    policies, problems = load_policies([("p.toml", text)])
    assert policies is not None, problems
    return policies.policies[0]


NONFINITE = 'name = "nan"\ntrigger = "nonfinite"\nfor = "1 step"\nresponse = "halt"'
HANG = 'name = "hang"\ntrigger = "hang"\nresponse = "halt"\nbetween_limit = "1h"\nlog_gap_times = 2'


def play(records: Iterable[dict[str, Any]], *policies: Policy, run_on_s: float = 0) -> Replay:
    replay = Replay(policies or (policy(NONFINITE, HANG),))
    for record in records:
        replay.read(record)
    replay.end(round(run_on_s * 1e9))
    return replay


def healthy(count: int, every_s: float = 10.0) -> list[dict[str, Any]]:
    return [{"t": n * every_s, "step": n, "loss": 2.0} for n in range(count)]


def test_a_broken_loss_is_told_with_its_step_and_time() -> None:
    (told,) = play([*healthy(3), {"t": 30.0, **NAN}]).verdicts
    assert (told.rule, told.response, told.mode, told.step, told.t, told.reason) == (
        "nan", "halt", "enforce", 3, 30.0, "loss_nan",
    )  # fmt: skip


def test_what_only_observes_is_told_as_what_it_would_do() -> None:
    (told,) = play([*healthy(3), {"t": 30.0, **NAN}], policy(NONFINITE, mode="observe")).verdicts
    assert (told.response, told.mode) == ("halt", "observe")


def test_a_halt_ends_no_log_and_hides_no_other_rule() -> None:
    replay = play([*healthy(3), {"t": 30.0, **NAN}, {"t": 40.0, "step": 4, "loss": 2.0}], run_on_s=7200)
    assert [told.rule for told in replay.verdicts] == ["nan", "hang"]


def test_silence_counts_only_while_the_clock_runs_on() -> None:
    assert not play(healthy(30)).verdicts
    (told,) = play(healthy(30), run_on_s=7200).verdicts
    assert told.t is not None
    assert 290 + 3600 <= told.t <= (290 + 3600) * 1.01


def test_a_pause_amid_the_log_is_timed_to_a_hundredth() -> None:
    records = [*healthy(30), {"t": 290 + 5400.0, "step": 31, "loss": 2.0}]
    (told,) = play(records).verdicts
    assert told.t is not None
    assert 3600 <= told.t - 290 <= 3600 * 1.01


def test_a_pause_of_the_usual_length_costs_one_tick_and_is_judged_at_its_end() -> None:
    slow = policy('name = "hang"\ntrigger = "hang"\nresponse = "halt"\nbetween_limit = "1h"\nlog_gap_times = 2')
    replay = play(healthy(300, every_s=3000.0), slow)
    assert not replay.verdicts
    longer = [*healthy(300, every_s=3000.0), {"t": 299 * 3000.0 + 6001.0, "step": 300, "loss": 2.0}]
    assert [told.rule for told in play(longer, slow).verdicts] == ["hang"]


def test_a_log_without_times_is_judged_by_its_steps_and_never_as_late() -> None:
    records = [{key: value for key, value in record.items() if key != "t"} for record in healthy(30)]
    (told,) = play([*records, NAN], run_on_s=7200).verdicts
    assert (told.rule, told.t) == ("nan", None)


def test_the_meta_line_is_no_record() -> None:
    replay = play([{"meta": {"role": "healthy"}}, *healthy(2)])
    assert (replay.meta["role"], replay.records) == ("healthy", 2)


@pytest.mark.parametrize(
    "seconds", [math.nan, math.inf, 1e300, "1e300", *(pytest.param(at, id="huge") for at in (10**400, -(10**400)))]
)
def test_an_impossible_time_is_said_and_its_record_judged_all_the_same(seconds: float | str) -> None:
    replay = Replay((policy(NONFINITE),))
    for record in healthy(3):
        replay.read(record)
    assert "time" in (replay.read({"t": seconds, **NAN}) or "")
    assert [told.t for told in replay.verdicts] == [20.0]


def test_a_clock_that_begins_anew_goes_on() -> None:
    replay = play([*healthy(30), *healthy(3)])
    assert replay.t == 290 + 20


def test_seconds_since_1970_count_from_the_first_record() -> None:
    assert play([{"t": 1.7e9 + n, "step": n} for n in range(5)]).t == 4


@pytest.mark.parametrize("scale", [1_000, 10**6, 10**9])
def test_since_1970_may_be_in_milliseconds_microseconds_or_nanoseconds(scale: int) -> None:
    times = [(1_700_000_000 + 10 * n) * scale for n in range(4)]
    replay = play({"timestamp": at, "step": n, "loss": math.nan if n == 3 else 2.0} for n, at in enumerate(times))
    assert [told.t for told in replay.verdicts] == [pytest.approx(30.0)]


def test_a_time_may_be_a_number_in_words() -> None:
    (told,) = play({"t": f"{10 * n}.0", "step": n, "loss": math.nan if n == 3 else 2.0} for n in range(4)).verdicts
    assert told.t == 30.0


def dated(times: Iterable[str], key: str = "timestamp") -> Replay:
    return play({key: at, "step": n, "loss": 2.0} for n, at in enumerate(times))


@pytest.mark.parametrize(
    "times",
    [
        ("2026-11-20T03:04:05Z", "2026-11-20T03:04:35Z"),
        ("2026-11-20 03:04:05", "2026-11-20 03:04:35"),
        ("2026-11-20T03:04:05.250+00:00", "2026-11-20T03:04:35.250+00:00"),
        ("2026-11-20 03:04:05,250", "2026-11-20 03:04:35,250"),
        ("2026-11-20T03:04:05.250000123Z", "2026-11-20T03:04:35.250000456Z"),
        ("2026-12-31T23:59:45-08:00", "2027-01-01T00:00:15-08:00"),
        ("2026-10-25T02:59:45+02:00", "2026-10-25T02:00:15+01:00"),  # Summer time ends: half a minute, no hour back.
        ("2026-11-20T03:04:05Z", "2026-11-20 03:04:35"),  # Whoever names no zone is taken to be in UTC.
        ("9998-01-01T00:00:05Z", "9998-01-01T00:00:35Z"),  # Seconds all the same, however many.
    ],
)
def test_a_time_may_be_a_date_with_a_time_of_day(times: tuple[str, str]) -> None:
    assert dated(times).t == pytest.approx(30.0, abs=1e-5)


@pytest.mark.parametrize("key", ["asctime", "time", "ts", "@timestamp", "wall_time"])
def test_a_date_is_a_clock_where_a_number_may_be_a_step_time(key: str) -> None:
    assert dated(["2026-11-20 03:04:05,123", "2026-11-20 03:04:07,623"], key).t == 2.5
    assert play({key: 2.5 + n, "step": n, "loss": 2.0} for n in range(3)).t is None


@pytest.mark.parametrize("key", ["asctime", "time", "ts", "@timestamp", "wall_time"])
@pytest.mark.parametrize("unit_s", [1.0, 1e-3, 1e-9])
def test_a_number_since_1970_is_a_clock_under_each_name_of_a_time(key: str, unit_s: float) -> None:
    got = play({key: (1.7e9 + n) / unit_s, "step": n, "loss": 2.0} for n in range(3))
    assert got.t == pytest.approx(2.0, abs=1e-5)


@pytest.mark.parametrize(
    "text", ["2026-11-20", "20261120T030405", "03:04:05", "2 days, 3:04:05", "yesterday", "", "::"]
)
def test_a_text_without_date_or_time_of_day_is_no_clock(text: str) -> None:
    assert dated([text] * 3, "time").t is None
    assert dated([text] * 3).t is None


def test_a_log_is_as_long_wherever_it_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where summer time begins, the hour from two to three has no instants: a log that names no zone may have some."""
    try:
        monkeypatch.setenv("TZ", "EST5EDT,M3.2.0,M11.1.0")
        time.tzset()
        assert dated(["2026-03-08 01:59:00", "2026-03-08 03:01:00"]).t == 3720
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_bad_date_happens_with_the_record_before_it() -> None:
    replay = dated(["2026-11-20 03:04:05", "2026-11-20 03:04:65", "2026-11-20 03:04:15"])
    assert replay.t == 10
    assert replay.records == 3


def test_dates_that_go_back_or_leap_are_as_numbers_of_1970_that_do() -> None:
    """A clock that was set back says nothing of the interval: it was as long as the one before, here 30 s."""
    assert dated(["2026-11-20 03:00:00", "2026-11-20 03:00:30", "2026-11-20 02:00:00", "2026-11-20 02:00:05"]).t == 65
    replay = dated(["2026-11-20 03:00:00", "2026-11-20 03:00:30"])
    assert "after the last record's" in (replay.read({"timestamp": "2027-03-01 00:00:00", "step": 2}) or "")
    assert replay.t == 30


def test_on_dates_silence_counts_as_on_seconds() -> None:
    times = [f"2026-11-20T03:{n // 6:02}:{n % 6}0Z" for n in range(30)]
    records = [{"timestamp": at, "step": n, "loss": 2.0} for n, at in enumerate(times)]
    assert [told.rule for told in play(records, run_on_s=7200).verdicts] == ["hang"]
    assert [told.t for told in play(records, run_on_s=7200).verdicts] == [
        told.t for told in play(healthy(30), run_on_s=7200).verdicts
    ]


def test_a_policy_is_replayed_whatever_runs_it_is_for() -> None:
    text = f'[policy]\nname = "p"\nmatch = {{ stage = "stage1" }}\n[[rule]]\n{NONFINITE}\n'
    policies, problems = load_policies([("p.toml", text)])
    assert policies is not None, problems
    assert len(play([*healthy(3), {"t": 30.0, **NAN}], *policies.policies).verdicts) == 1


def recorded(*, is_gap_noted: bool) -> Iterable[dict[str, Any]]:
    """A step a second, ten minutes in which nobody listened, and from then on one every twenty seconds."""

    def said(kind: str, at_s: int, **values: Any) -> dict[str, Any]:
        return {**head(kind, 0, 0), **values, "at_ns": at_s * NS_PER_S, "conn": 1}

    launch = {"seq": 1, "run": "r", "attempt": "a", "local_rank": 0, "world_size": 1, "signal": 0, "pid": 40}
    hello = {**launch, "start_ticks": 9}
    beat = {"phase": "train", "phase_since_ns": 0, "in_step": True}
    yield said("hello", 1, **hello)
    for n in range(2, 60):
        yield said("step", n, step=n, attempt_step=n, loss=2.0, step_s=1.0, progress_seq=n)
        yield said("beat", n, progress_seq=n, **beat)
    if is_gap_noted:
        yield said("note", 60, note="gap", lines=0)
        yield said("hello", 660, **hello, again=True)
    for n in range(19):
        yield said("beat", 661 + n, progress_seq=59, **beat)
    yield said("step", 680, step=60, attempt_step=60, loss=2.0, step_s=20.0, progress_seq=60)


@pytest.mark.parametrize(("is_gap_noted", "halts"), [(True, 0), (False, 1)])
def test_a_gap_is_no_silence_also_where_the_next_step_takes_its_time(is_gap_noted: bool, halts: int) -> None:
    rule = 'name = "hang"\ntrigger = "hang"\nresponse = "halt"\nsilent_min = "2m"\nworth_max = "1m"'
    assert len(play(recorded(is_gap_noted=is_gap_noted), policy(rule)).verdicts) == halts


def test_tokens_that_are_held_when_the_log_ends_are_counted() -> None:
    replay = play([{"step": step, "loss": 2.0, "tokens": 30_000 + 100 * step} for step in range(1, 6)])
    assert replay._judges[0].node.runs["log"].run.tokens_total == 5 * 30_000 + 1_500
