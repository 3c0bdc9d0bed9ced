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

- `start_up`: waste has each attempt's time until its first step has *ended*, with the launch fee. The causes end it where that step *begins*: the step itself
  is productive or `{compile}`, and an attempt behind one that had trained is `{restart}`.
- `halt`: both have the time from the verdict until the halt is closed. Waste meets its ends where the money was charged, so the two may differ by what
  a second or two cost.

`after_last_step` is `{shut_down}` here, `{hang}`, or what a save behind the last step took; `trained_twice` is `{lost_steps}`.
"""


def render() -> str:
    waste = _WASTE.format(
        names=", ".join(f"`{one.value}`" for one in WASTE), compile=Cause.COMPILE.value, restart=Cause.RESTART.value,
        shut_down=Cause.SHUT_DOWN.value, hang=Cause.HANG.value, lost_steps=Cause.LOST_STEPS.value,
    )  # fmt: skip
    return _HEAD + "".join(_rows()) + _WEAKER.format(share=WEAK_FRAC) + "".join(_weaker()) + waste


def _rows() -> Iterator[str]:
    productive = Cause.PRODUCTIVE.value
    yield f"| `{productive}` | forward, backward and optimizer of steps that nobody had trained before | | |\n"
    for cause in LOST:
        advice = ADVICE[cause]
        yield f"| `{cause.value}` | {advice.evidence} | {advice.confidence} | {advice.next_step or ''} |\n"


def _weaker() -> Iterator[str]:
    for cause, (confidence, evidence) in WEAKER.items():
        yield f"| `{cause.value}` | {confidence} | {evidence} |\n"
