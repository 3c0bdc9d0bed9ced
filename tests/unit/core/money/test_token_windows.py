"""Windows of tokens: they partition the progress, and what was trained twice is waste."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.base.units import COUNT_MAX, MTOK, NS_PER_HOUR, NS_PER_S, BootNs, MonoNs, UsdMicros, accrue
from governor.core.money.token_price import whole_micros
from governor.core.money.token_windows import TokenMeter, Window

STEP_TOKENS = 100_000  # Told by each frame, and believed where a total went back.


def feed(meter: TokenMeter, totals: list[int], usd_micros: int = 100, step_ns: int = NS_PER_S) -> list[Window]:
    """Steps of a second and a hundred micro-dollars each."""
    meter.begin(0, UsdMicros(0), BootNs(0))
    closed = [
        meter.add(total, STEP_TOKENS, UsdMicros(usd_micros * step), BootNs(step_ns * step))
        for step, total in enumerate(totals, 1)
    ]
    return [window for window in closed if window is not None]


def test_a_window_ends_with_the_step_that_completes_its_million() -> None:
    [window] = feed(TokenMeter(), [400_000, 800_000, 1_200_000])
    assert (window.from_tokens, window.to_tokens) == (0, 1_200_000)
    assert (window.duration_ns, window.usd_micros) == (3 * NS_PER_S, 300)
    assert window.per_mtok == 250
    assert window.tokens_per_s == 400_000


def test_steps_larger_than_a_window_are_a_window_each() -> None:
    windows = feed(TokenMeter(), [4 * MTOK, 8 * MTOK])
    assert [(window.from_tokens, window.to_tokens) for window in windows] == [(0, 4 * MTOK), (4 * MTOK, 8 * MTOK)]


def test_steps_of_one_moment_end_no_window_for_nothing() -> None:
    """Three steps at 6 s, three at 12 s, as a buffer shows them: six seconds are three steps'."""
    meter, closed = TokenMeter(), []
    meter.begin(0, UsdMicros(0), BootNs(0))
    for step, second in enumerate([6, 6, 6, 12, 12, 12, 18], 1):
        closed.append(meter.add(step * MTOK, MTOK, UsdMicros(100 * second), BootNs(second * NS_PER_S)))
    windows = [window for window in closed if window is not None]
    assert [(window.tokens, window.usd_micros) for window in windows] == [(MTOK, 600), (3 * MTOK, 600), (3 * MTOK, 600)]
    assert meter.per_mtok == 200


def test_what_is_trained_again_is_waste_and_no_progress() -> None:
    meter = TokenMeter()
    windows = feed(meter, [600_000, 900_000, 500_000, 800_000, 1_100_000])
    assert meter.wasted_tokens == 500_000  # 400,000 to 900,000, a second time.
    [window] = windows
    assert (window.tokens, window.wasted_tokens) == (1_100_000, 500_000)
    assert window.usd_micros == 500, "the second time was paid for"


def test_the_start_of_an_attempt_costs_what_was_spent_since_the_last_step() -> None:
    """The first attempt's first step costs $0.0003; the second one's comes for another $0.0010."""
    meter = TokenMeter()
    meter.begin(0, UsdMicros(0), BootNs(0))
    for total, usd_micros, attempt in ((300_000, 300, 1), (600_000, 600, 1), (900_000, 1_600, 2)):
        meter.add(total, 0, UsdMicros(usd_micros), BootNs(usd_micros), first_step_at=MonoNs(attempt))
    window = meter.open_window
    assert (window.start_usd_micros, window.start_tokens, window.start_ns) == (1_300, 600_000, 1_300)
    assert (window.steady_usd_micros, window.steady_tokens) == (300, 300_000)


def test_a_frame_told_twice_or_late_counts_once() -> None:
    once, twice = TokenMeter(), TokenMeter()
    feed(once, [600_000, 900_000])
    feed(twice, [600_000, 600_000, 900_000, 900_000])
    assert (once.progress_tokens, once.wasted_tokens) == (twice.progress_tokens, twice.wasted_tokens)


def test_the_worked_example() -> None:
    """An 8xH100 node at $7.92/h for 40 h is $316.80; 51.6B tokens of it are 0.61 cents per million."""
    spent, _ = accrue(7_920_000, 40 * NS_PER_HOUR, 0)
    assert spent == 316_800_000
    whole = Window(0, 51_600_000_000, 40 * NS_PER_HOUR, UsdMicros(spent), 0)  # type: ignore[arg-type]
    assert whole_micros(whole.per_mtok) == 6_139  # 316.80 / 51,600 = 0.0061395...
    assert round(whole.tokens_per_s) == 358_333


def test_a_changed_size_applies_from_the_next_window_on() -> None:
    meter = TokenMeter()
    meter.begin(0, UsdMicros(0), BootNs(0))
    sizes = [2 * MTOK] * 4 + [500_000] * 6
    closed = [
        meter.add(total, STEP_TOKENS, UsdMicros(0), BootNs(total), then_tokens=sizes[total // 500_000 - 1])
        for total in range(500_000, 5_000_001, 500_000)
    ]
    edges = [(window.from_tokens, window.to_tokens) for window in closed if window is not None]
    # One million was open when the policy was loaded anew, two millions when it was changed again.
    assert edges == [
        (0, 1_000_000),
        (1_000_000, 3_000_000),
        *((k, k + 500_000) for k in range(3_000_000, 5_000_000, 500_000)),
    ]


def test_a_governor_that_comes_back_goes_on_within_the_window() -> None:
    meter = TokenMeter()
    feed(meter, [600_000])
    kept = json.loads(json.dumps(meter.snapshot()))
    back = TokenMeter.restored(kept, same_boot=True)
    window = back.add(1_000_000, STEP_TOKENS, UsdMicros(500), BootNs(10 * NS_PER_S))
    assert window is not None
    assert (window.tokens, window.duration_ns, window.usd_micros) == (MTOK, 10 * NS_PER_S, 500)
    before = {name: value for name, value in kept.items() if name != "began_tokens"}
    assert TokenMeter.restored(before, same_boot=True).began_tokens == 0, "an older journal has no such figure"
    other_boot = TokenMeter.restored(kept, same_boot=False)
    window = other_boot.add(1_000_000, STEP_TOKENS, UsdMicros(500), BootNs(9 * NS_PER_S))
    assert window is not None
    assert window.duration_ns == NS_PER_S, "the new clock says nothing of the time before it"


SIZES = st.integers(1, 2 * MTOK)
STEPS = st.tuples(st.integers(-3 * MTOK, 3 * MTOK), st.integers(0, 10**6), st.integers(0, 10**10))


BETWEEN = st.sampled_from(["", "restart", "stage"])


@given(st.lists(st.tuples(STEPS, SIZES, BETWEEN), max_size=60), SIZES, st.integers(0, 5 * MTOK))
def test_windows_partition_the_progress_the_money_and_the_time(
    steps: list[tuple[tuple[int, int, int], int, str]], size: int, began: int
) -> None:
    """Also where the policy's size is another at every step, and a governor or a stage begins between any two."""
    meter = TokenMeter(window_tokens=size)
    meter.begin(began, UsdMicros(0), BootNs(0))
    usd_micros = boot = trained = 0
    total, windows, open_size = began, [], size
    for (change, micros, elapsed), size, between in steps:
        if between == "restart":
            meter = TokenMeter.restored(json.loads(json.dumps(meter.snapshot())), same_boot=True)
        if between == "stage" and (cut := meter.cut()) is not None:
            windows.append(cut)
            assert (meter.open_window.tokens, meter.open_window.wasted_tokens) == (0, 0), "the next stage has it"
        before, total = total, max(0, total + change)
        trained += max(0, total - before) if total >= before else min(STEP_TOKENS, total)
        usd_micros, boot, progress = usd_micros + micros, boot + elapsed, meter.progress_tokens
        closed = meter.add(total, STEP_TOKENS, UsdMicros(usd_micros), BootNs(boot), size)
        if closed is not None:
            assert closed.tokens >= open_size, "closed before it was whole"
            windows.append(closed)
            open_size = size
        if meter.progress_tokens > progress and meter.spent_ns:  # Steps of one moment end no window.
            assert meter.progress_tokens - meter.from_tokens < open_size
    edges = [began, *(window.to_tokens for window in windows)]
    assert [window.from_tokens for window in windows] == edges[:-1]
    assert meter.from_tokens == edges[-1]
    assert sum(window.usd_micros for window in windows) == meter.from_usd_micros
    assert sum(window.duration_ns for window in windows) + meter.spent_ns == boot
    assert meter.progress_tokens - meter.began_tokens + meter.wasted_tokens == trained
    assert sum(window.wasted_tokens for window in windows) + meter.open_window.wasted_tokens == meter.wasted_tokens


def test_time_without_a_price_in_which_nothing_was_trained_is_of_the_next_tokens() -> None:
    """A frame told twice has the time, and no tokens for it."""
    meter = TokenMeter()
    meter.begin(0, UsdMicros(0), BootNs(0))
    for step, (total, unpriced_ns) in enumerate([(900_000, 0), (900_000, 5), (1_800_000, 5), (2_900_000, 5)], 1):
        window = meter.add(total, 0, UsdMicros(100 * step), BootNs(step), unpriced_ns=unpriced_ns)
        assert window is None or window.is_unpriced == (total == 1_800_000)
    assert meter.unpriced_tokens == 900_000
    assert meter.per_mtok is not None


def test_a_cut_window_may_have_only_tokens_that_were_trained_again() -> None:
    """Ten tokens a step: three and a cut, two of them again and a cut, one again and two more."""
    meter = TokenMeter(window_tokens=MTOK)
    meter.begin(0, UsdMicros(0), BootNs(0))
    cut = []
    for second, (attempt, total) in enumerate([(1, 10), (1, 20), (1, 30), (2, 20), (2, 30), (3, 30), (3, 50)], 1):
        if (attempt, total) in ((2, 20), (3, 30)):
            cut.append(meter.cut())
            assert meter.cut() is None, "nothing was trained since"
        meter.add(total, 10, UsdMicros(100 * second), BootNs(second), first_step_at=MonoNs(attempt))
    windows = [window for window in [*cut, meter.cut()] if window is not None]
    assert [(w.from_tokens, w.to_tokens, w.wasted_tokens) for w in windows] == [(0, 30, 0), (30, 30, 20), (30, 50, 10)]
    assert [(w.duration_ns, w.usd_micros) for w in windows] == [(3, 300), (2, 200), (2, 200)]
    assert (windows[1].per_mtok, windows[1].tokens_per_s, meter.last_tokens) == (None, 0.0, 0), "no sample of anything"


def test_steps_of_the_moment_in_which_a_window_closed_are_of_the_stage_that_ends() -> None:
    """Three lines together: the first completes the window, and has all of their time."""
    meter = TokenMeter(window_tokens=10)
    meter.begin(0, UsdMicros(0), BootNs(0))
    windows = [meter.add(total, 10, UsdMicros(600), BootNs(6)) for total in (10, 20, 30)]
    windows.append(meter.cut())
    assert [(w.tokens, w.usd_micros, w.duration_ns) for w in windows if w is not None] == [(10, 600, 6), (20, 0, 0)]
    assert meter.last_tokens == 10


def test_tokens_that_another_run_has_paid_for_are_no_window_of_the_stage_that_ends() -> None:
    meter = TokenMeter(window_tokens=MTOK)
    meter.begin(0, UsdMicros(0), BootNs(0))
    meter.add(10, 10, UsdMicros(100), BootNs(1))
    assert meter.cut() is not None
    meter.lend(30, BootNs(2))
    assert meter.cut() is None
    meter.add(20, 10, UsdMicros(200), BootNs(3))
    window = meter.cut()
    assert window is not None
    assert (window.tokens, window.lent_tokens, window.wasted_tokens, window.usd_micros) == (0, 20, 10, 100)
    meter.lend(50, BootNs(4))
    meter.add(60, 10, UsdMicros(300), BootNs(5))
    window = meter.cut()
    assert window is not None
    assert (window.tokens, window.lent_tokens, window.wasted_tokens, window.usd_micros) == (10, 20, 0, 100)


def test_the_tokens_of_a_logs_first_line_are_of_its_start() -> None:
    """Its step ends at 10 s, of which the start is a part, and the next one 2 s and 2 micro-dollars later."""
    meter = TokenMeter(window_tokens=20)
    meter.begin(10, UsdMicros(0), BootNs(0))
    meter.add(10, 0, UsdMicros(10), BootNs(10), first_step_at=MonoNs(10))
    meter.begin_earlier(10)
    window = meter.add(20, 0, UsdMicros(12), BootNs(12), first_step_at=MonoNs(10))
    assert window is not None
    assert (window.tokens, window.usd_micros, window.duration_ns) == (20, 12, 12)
    assert (window.steady_tokens, window.steady_usd_micros, window.steady_ns) == (10, 2, 2)


def test_no_window_pays_again_what_a_step_was_valued_too_high() -> None:
    """A step is valued at 10, and the tick after it says 8: what a window has is not taken from it, and comes once."""
    windows = feed_spent([10, 8, 12])
    assert [window.usd_micros for window in windows] == [10, 0, 2]


def feed_spent(spent: list[int]) -> list[Window]:
    """A window each."""
    meter = TokenMeter(window_tokens=1)
    meter.begin(0, UsdMicros(0), BootNs(0))
    told = enumerate(spent, 1)
    closed = [meter.add(step, 1, UsdMicros(usd_micros), BootNs(step)) for step, usd_micros in told]
    return [window for window in closed if window is not None]


def test_a_launch_that_trains_the_last_step_again_has_trained_it_twice() -> None:
    """Told twice by the same one, it was trained once."""
    meter = TokenMeter(window_tokens=MTOK)
    for attempt, total, wasted in ((1, 10, 0), (1, 20, 0), (1, 20, 0), (2, 20, 10), (2, 30, 10), (3, 30, 20)):
        meter.add(total, 10, UsdMicros(total), BootNs(total), first_step_at=MonoNs(attempt))
        assert meter.wasted_tokens == wasted, (attempt, total)


def test_a_launch_from_a_checkpoint_behind_a_launch_from_the_beginning_has_trained_its_own_steps_alone() -> None:
    """Ten steps; two from the beginning, which nobody goes on with; from the eighth on: two again, and two more."""
    meter = TokenMeter(window_tokens=MTOK)
    told = [*((1, step) for step in range(1, 11)), (2, 1), (2, 2), (3, 9), (3, 10), (3, 11), (3, 12)]
    for place, (attempt, step) in enumerate(told):
        meter.add(10 * step, 10, UsdMicros(place), BootNs(place), first_step_at=MonoNs(attempt))
    assert (meter.useful_tokens, meter.wasted_tokens) == (120, 40)


@pytest.mark.parametrize(("paid", "progress", "trained"), [(0, 510, 30), (23, 510, 30), (24, 510, 510)])
def test_what_was_trained_unheard_is_in_the_prices_if_it_may_have_been_paid_for(
    paid: int, progress: int, trained: int
) -> None:
    """480 tokens, behind steps of ten tokens for a micro-dollar each. Tokens may have cost half of that."""
    meter = TokenMeter(window_tokens=MTOK)
    for place, total in enumerate((10, 20), 1):
        meter.add(total, 10, UsdMicros(place), BootNs(place), first_step_at=MonoNs(1))
    assert meter.go_on(COUNT_MAX + 1, paid) == 0, "beyond what any run trains"
    assert meter.go_on(500, paid) == (480 if trained == 30 else 0)
    meter.add(510, 10, UsdMicros(3), BootNs(3), first_step_at=MonoNs(1), has_gone_on=True)
    assert (meter.progress_tokens, meter.trained_tokens, meter.wasted_tokens) == (progress, trained, 0)


def test_where_the_price_is_not_known_what_was_trained_unheard_is_among_the_tokens() -> None:
    meter = TokenMeter(window_tokens=MTOK)
    for total in (10, 20):
        meter.add(total, 10, UsdMicros(0), BootNs(total), first_step_at=MonoNs(1))
    assert meter.go_on(500, 0) == 0
    meter.add(510, 10, UsdMicros(0), BootNs(30), first_step_at=MonoNs(2), has_gone_on=True)
    assert meter.trained_tokens == 510


def test_steps_whose_frames_are_lost_behind_a_step_back_are_trained_again() -> None:
    meter = TokenMeter(window_tokens=MTOK)
    for total in (10, 20, 30, 40):
        meter.add(total, 10, UsdMicros(total), BootNs(total), first_step_at=MonoNs(1))
    meter.go_on(10, 0)
    meter.add(40, 10, UsdMicros(80), BootNs(80), first_step_at=MonoNs(2), has_gone_on=True)
    assert (meter.progress_tokens, meter.wasted_tokens) == (40, 30)


def test_what_another_training_of_the_process_passes_over_is_by_its_own_totals() -> None:
    meter = TokenMeter(window_tokens=MTOK)
    for total in (90, 100):
        meter.add(total, 100, UsdMicros(total), BootNs(total), first_step_at=MonoNs(1))
    meter.begin_attempt("a1", None, trains_again=False, is_anew=True)
    meter.begin_attempt("a1+1", None, trains_again=True, is_anew=True)
    assert meter.go_on(500, 0) == 500
    meter.add(510, 10, UsdMicros(110), BootNs(110), first_step_at=MonoNs(2), has_gone_on=True)
    assert (meter.progress_tokens, meter.trained_tokens, meter.wasted_tokens) == (610, 110, 0)
