"""The run has become much slower than it was itself after warm-up."""

from __future__ import annotations

from typing import ClassVar

from governor.core.rules.run_speed import RunSpeed
from governor.core.rules.trigger import Key


class ThroughputCollapse(RunSpeed):
    """The median speed of the last `window_steps` steps is below a part of the run's own baseline.

    Speed is tokens/s where tokens are known, else steps/s. Batch and sequence schedules make healthy steps up to 3.8
    times longer by design. Tokens/s mostly allows for that, steps/s does not: hence two limits, `floor_frac` and
    `floor_frac_steps`. The baseline is the median over `baseline_steps` steps, after `warmup_steps` steps *and*
    `warmup_time`: first steps compile (hundreds of times slower) or run on prefetched data (ten times faster than later
    ones). The lead rank is measured, without the time for saving, agreeing or evaluating and without the steps
    around evaluation and compilation. A log without step times is timed by its arrival. UNKNOWN until the baseline is
    complete and while no rank is connected. Resets at each attempt.

    What it does not see: a run that was slow from its first step has a slow baseline (`slower_than_planned` holds it
    against the plan). A run that slows down before its baseline is complete has a baseline of both speeds, or the slow
    one: with the default keys these are 80 records, which take 80 minutes at one a minute. The packaged policies have a
    second rule, whose baseline is complete after 40 records and which fires below an eighth. A loss of speed of 10 to
    25 %, sudden or slow, is no collapse at any packaged limit.
    """

    KIND: ClassVar[str] = "throughput_collapse"
    KEYS: ClassVar[tuple[Key, ...]] = (
        Key("floor_frac", "frac", 0.3, "Fires below this part of the baseline in tokens/s."),
        Key("floor_frac_steps", "frac", 0.2, "Fires below this part of the baseline in steps/s, tokens being unknown."),
        Key("window_steps", "count", 20, "Steps whose median is compared: one slow step means nothing.", 1),
        Key("warmup_steps", "count", 30, "Steps left out before the baseline."),
        Key("warmup_time", "duration", "60s", "Time left out before the baseline; both must have passed."),
        Key("baseline_steps", "count", 50, "Steps whose median is the baseline.", 1),
    )
    REASON: ClassVar[str] = "throughput_collapsed"
    WHOSE: ClassVar[str] = "this run's own"
    LIMITS: ClassVar[tuple[str, ...]] = ("floor_frac", "floor_frac_steps")
    MEANING: ClassVar[tuple[str, ...]] = (
        "the median speed of the last {window_steps} steps is below {floor_frac} of the run's own in tokens/s, or "
        "where tokens are unknown below {floor_frac_steps} in steps/s",
        "Its own speed is the median of {baseline_steps} steps, after {warmup_steps} steps and {warmup_time}.",
    )
