"""docs/reference/causes.md: every cause of lost time, how sure its seconds are, what it is known by, and what to do."""

from __future__ import annotations

from collections.abc import Iterator

from governor.core.attribution.causes import LOST, Cause
from governor.core.attribution.rows import ADVICE, WEAK_FRAC, WEAKER
from governor.core.money.waste import WASTE

_HEAD = """# Causes

<!-- Drawn from governor/core/attribution/causes.py and rows.py by `make docs`: change it there. -->

Every second of a run, and every micro-dollar, is `productive` or of one of these causes
([ADR 0026](../adr/0026-every-second-has-one-cause.md)). `costgov report`, `costgov top`, `costgov status --json`, `costgov export` and the
[metrics](metrics.md) `costgov_run_time_seconds_total` and `costgov_run_time_usd_total` name them so.

- **Sure**: *high*, the trainer or the engine itself times it; *medium*, it is worked out of what they time; *low*, it is a bound, or only a part of it was seen.
- **What to do** is what the report says where nothing more is known. Of data starvation it says more where the loader tells
  what it does.
- **`{restart}`** is time for which the run held the node: between two attempts of one command, and behind a launch whose name had trained before. The time between two launches of
  `costgov run` costs that run nothing, and is of no cause.

| cause | what its seconds are | sure | what to do |
|---|---|---|---|
"""

_WEAKER = """
## Less sure

Where more than {share:.0%} of a cause was told in a weaker way than usual, the report says this instead.

| cause | sure | what its seconds are then |
|---|---|---|
"""

_WASTE = """
## Waste is the coarse answer

`wasted_usd` of `costgov status` and `costgov_run_wasted_usd_total` have no causes. They say when the money was spent that bought no training that
lasts ([cost](../howto/cost.md)): {names}. A ceiling and the closing line of `costgov run` need that at once. Two of the names are causes too, and have other money there:

- `start_up`: waste has each attempt's time until its first step has *ended*, with the launch fee. The causes have the time until that step *begins*, and what it
  waits for data or spends in the loop's code beyond an ordinary step. The rest of the step is productive or `{compile}`, and an attempt behind one that had
  trained is `{restart}`.
- `halt`: both have the time from the verdict until the halt is closed.

`after_last_step` is `{shut_down}` here, `{hang}`, or what a save behind the last step took; `trained_twice` is `{lost_steps}`.

Both split the same money, at other moments: waste where it was charged, the causes by what ranks have told between two counts, on average over the ranks. So where
waste and causes are of the same time, either may be larger, by what a second or two cost.
"""


def render() -> str:
    waste = _WASTE.format(
        names=", ".join(f"`{one.value}`" for one in WASTE), compile=Cause.COMPILE.value, restart=Cause.RESTART.value,
        shut_down=Cause.SHUT_DOWN.value, hang=Cause.HANG.value, lost_steps=Cause.LOST_STEPS.value,
    )  # fmt: skip
    head, weaker = _HEAD.format(restart=Cause.RESTART.value), _WEAKER.format(share=WEAK_FRAC)
    return head + "".join(_rows()) + weaker + "".join(_weaker()) + waste


def _rows() -> Iterator[str]:
    productive = Cause.PRODUCTIVE.value
    yield f"| `{productive}` | forward, backward and optimizer of steps that nobody had trained before | | |\n"
    for cause in LOST:
        advice = ADVICE[cause]
        yield f"| `{cause.value}` | {advice.evidence} | {advice.confidence} | {advice.next_step or ''} |\n"


def _weaker() -> Iterator[str]:
    for cause, (confidence, evidence) in WEAKER.items():
        yield f"| `{cause.value}` | {confidence} | {evidence} |\n"
